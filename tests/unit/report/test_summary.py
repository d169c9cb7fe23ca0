from __future__ import annotations

from flexrlhf.report.headline import headline_cards
from flexrlhf.report.run_folder import read_run
from flexrlhf.report.summary import SummaryRow, summary_rows, summary_text


def test_rows_of_a_run(runs):
    assert summary_rows(read_run(runs.write("ppo"))) == [
        SummaryRow("", "iterations", "", "3"),
        SummaryRow("", "reward", "0.5", "1.5"),
        SummaryRow("", "KL to reference (nats per token)", "0.01", "0.03"),
        SummaryRow("", "value loss", "0.3", "0.3"),
        SummaryRow("", "time per iteration (median)", "", "2 s"),
        SummaryRow("", "time of all iterations", "", "6 s"),
        SummaryRow("", "peak memory", "", "3 GiB"),
    ]


def test_an_evaluation_counts_from_before_training(runs):
    lines = [
        {"iteration": 0, "eval/reward": 0.25},
        runs.line(1),
        runs.line(2, **{"eval/reward": 1}),
    ]
    rows = summary_rows(read_run(runs.write("ppo", metrics=lines)))
    assert SummaryRow("", "evaluation reward", "0.25", "1") in rows
    assert rows[0] == SummaryRow("", "iterations", "", "2 of 3")


def test_stages_follow_each_other(runs):
    rows = summary_rows(read_run(runs.write_staged()))
    assert list(dict.fromkeys(row.stage for row in rows)) == ["sft", "rm", "ppo"]
    assert SummaryRow("rm", "preference accuracy", "60 %", "80 %") in rows


def test_the_text_is_aligned(runs):
    lines = summary_text(read_run(runs.write_staged())).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split() == ["first", "last"]
    assert lines[2].split() == ["sft", "supervised", "loss", "2", "1"]


def test_cards_show_what_the_run_has(runs):
    cards = {card.label: card for card in headline_cards(read_run(runs.write("ppo")))}
    assert list(cards) == [
        "Algorithm",
        "Iterations",
        "Reward",
        "KL to reference",
        "Time per iteration",
        "Throughput",
        "Peak memory",
    ]
    assert cards["Algorithm"].remark == "actor"
    assert cards["Throughput"].value == "16"
    assert cards["KL to reference"].remark == "nats per token, first → last"
