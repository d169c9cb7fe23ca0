from __future__ import annotations

import base64
import hashlib
import json
from html.parser import HTMLParser

import plotly.graph_objects as go
import pytest

from flexrlhf.core.errors import ConfigError
from flexrlhf.report.page import write_report


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, scripts and visible text."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.scripts = []
        self.words = []
        self.open = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.open = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self.open = None

    def handle_data(self, data):
        if self.open == "script":
            attrs, text = self.scripts[-1]
            self.scripts[-1] = (attrs, text + data)
        elif self.open != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    @property
    def figures(self):
        return json.loads(next(text for attrs, text in self.scripts if attrs.get("id")))

    def with_attribute(self, name):
        return [attrs[name] for _, attrs in self.elements if name in attrs]


def page_of(folder):
    return Page(write_report(folder).read_text(encoding="utf-8"))


def test_the_page_loads_nothing_from_elsewhere(runs):
    page = page_of(runs.write_whole())
    assert page.with_attribute("src") == []
    assert page.with_attribute("href") == []
    assert not {"link", "iframe", "img", "object", "base"} & {tag for tag, _ in page.elements}
    style = next(a for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert style["content"].startswith("default-src 'none';")


def test_only_the_scripts_of_the_page_may_run(runs):
    page = page_of(runs.write_whole())
    (policy,) = page.with_attribute("http-equiv")
    assert policy == "Content-Security-Policy"
    allowed = next(content for content in page.with_attribute("content") if "script-src" in content)
    programs = [text for attrs, text in page.scripts if "type" not in attrs]
    assert len(programs) == 2
    for text in programs:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in allowed


def test_plotly_is_in_the_page_once(runs):
    for folder in (runs.write_whole(), runs.write_staged()):
        page = page_of(folder)
        assert sum("plotly.js v" in text for _, text in page.scripts) == 1


def test_every_plot_has_its_figure_and_plotly_accepts_it(runs):
    page = page_of(runs.write_whole())
    for name in page.with_attribute("data-figure"):
        go.Figure(page.figures[name])
    choices = [a["value"] for tag, a in page.elements if tag == "option"]
    assert choices == ["timeline-1", "timeline-2"]
    assert set(choices) <= set(page.figures)


def test_a_sample_cannot_become_markup(runs):
    prompt = '</script><img src="http://x/y" onerror=alert(1)> & "quotes"'
    answer = "<!-- <script>alert(2)</script>"
    rows = [
        runs.sample(iteration, prompt, answer, kind=kind, reward_parts={"<i>": 1, "<u>": 2})
        for iteration in (1, 3)
        for kind in ("train", "evaluation")
    ]
    page = page_of(runs.write("hostile", samples=rows))
    assert not [tag for tag, _ in page.elements if tag in ("img", "i", "u")]
    assert len([tag for tag, _ in page.elements if tag == "script"]) == 3
    assert page.text.count(" ".join(prompt.split())) == 2
    assert page.text.count(answer) == 4


def test_a_metric_name_cannot_end_the_script(runs):
    parts = {"reward/</script><b>": 1.0, "reward/other": 2.0}
    page = page_of(runs.write("hostile", metrics=[runs.line(1, **parts)]))
    assert not [tag for tag, _ in page.elements if tag == "b"]
    assert any("</script><b>" in json.dumps(figure) for figure in page.figures.values())


def test_the_whole_run_is_told(runs):
    text = page_of(runs.write_whole()).text
    for words in (
        "0.5 → 1.5",
        "Iterations 3 96 samples",
        "Time per iteration 2 s",
        "Peak memory 3 GiB",
        "reward 3",
        "optimiser steps per iteration 4",
        "micro-batch 2 048 tokens",
        "Strategy colocated. One device.",
        "versions.torch 2.13.0",
        "samples_per_prompt: 4",
        "first last",
    ):
        assert words in text


def test_sections_that_a_run_has_nothing_for_are_absent(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1, "loss/supervised": 2.0}\n')
    text = page_of(tmp_path).text
    assert "Supervised loss" in text
    for title in ("Reward", "Time and memory", "Timeline", "Samples", "Plan", "Batch", "Details"):
        assert title not in text


def test_what_was_left_out_is_said(runs):
    folder = runs.write("torn")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"iter')
    assert "the last line is cut off" in page_of(folder).text


def test_a_run_of_stages_has_one_page_for_all_and_one_for_each(runs):
    folder = runs.write_staged()
    page = page_of(folder)
    assert "supervised loss 2 → 1" in page.text
    assert "preference accuracy 60 % → 80 %" in page.text
    tabs = [attrs for _, attrs in page.elements if attrs.get("role") == "tab"]
    assert [tab["aria-selected"] for tab in tabs] == ["false", "false", "true"]
    panels = [attrs for _, attrs in page.elements if attrs.get("role") == "tabpanel"]
    assert ["hidden" in panel for panel in panels] == [True, True, False]
    assert len(set(page.with_attribute("data-figure"))) == len(page.with_attribute("data-figure"))
    for name in ("sft", "rm", "ppo"):
        own = (folder / "stages" / name / "report.html").read_text(encoding="utf-8")
        assert f"<title>{name} · FlexRLHF</title>" in own


def test_writing_again_replaces_the_page_and_leaves_nothing_else(runs):
    folder = runs.write("twice")
    before = {path.name for path in folder.iterdir()}
    first = write_report(folder).read_text(encoding="utf-8")
    assert write_report(folder).read_text(encoding="utf-8") == first
    assert {path.name for path in folder.iterdir()} == before | {"report.html"}


def test_a_page_that_cannot_be_written_leaves_nothing(runs):
    folder = runs.write("taken")
    (folder / "report.html").mkdir()
    before = {path.name for path in folder.iterdir()}
    with pytest.raises(OSError, match=r"report\.html"):
        write_report(folder)
    assert {path.name for path in folder.iterdir()} == before


def test_no_page_without_a_run(tmp_path):
    with pytest.raises(ConfigError):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []
