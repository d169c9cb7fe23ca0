"""Weights and losses that are not finite stop a run, and are not saved."""

from __future__ import annotations

import pytest

KINDS = {"sft": "supervised", "reward_model": "preferences", "dpo": "preferences"}


@pytest.mark.parametrize("algorithm", ["sft", "reward_model", "dpo", "ppo", "grpo"])
def test_weights_that_the_last_step_ruined_are_not_saved(changed, outcome, tmp_path, algorithm):
    keys = {"training.learning_rate": 1e30, "training.iterations": 1}
    assert "The last optimiser step ruined the weights" in outcome(changed(algorithm, keys), 1)
    assert not (tmp_path / "run" / "model").exists()
    assert not list((tmp_path / "run" / "checkpoints").glob("iteration-*"))
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("algorithm", KINDS)
def test_a_held_out_loss_that_is_not_finite_stops_the_run(changed, outcome, document, algorithm):
    (source,) = document(algorithm)["data"][KINDS[algorithm]].values()
    keys = {"training.learning_rate": 1e30, "training.iterations": 1}
    keys |= {"data.evaluation": {"path": source}}
    assert "on the held-out rows is nan" in outcome(changed(algorithm, keys), 1)


def test_a_loss_that_is_not_finite_stops_the_run(changed, outcome):
    keys = {"training.learning_rate": 1e30, "training.max_grad_norm": None}
    assert "finite" in outcome(changed("sft", keys), 1)


def test_a_policy_that_is_not_finite_stops_the_run(changed, outcome, tmp_path):
    keys = {"training.learning_rate": 1e38, "training.max_grad_norm": None}
    outcome(changed("grpo", keys), 1)
    assert (tmp_path / "run/metrics.jsonl").read_text().count("\n") >= 1
