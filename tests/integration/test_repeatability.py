"""The same seed gives the same run, and how work is cut up changes nothing."""

from __future__ import annotations

import pytest
import torch

ALGORITHMS = {
    "sft": ("sft", {}),
    "reward_model": ("reward_model", {}),
    "dpo": ("dpo", {"epochs": 2, "beta": 0.5}),
    "ipo": ("ipo", {}),
    "ppo": ("ppo", {"epochs": 2}),
    "ppo-shared": ("ppo", {"share_actor_critic": True}),
    "grpo": ("grpo", {"epochs": 2, "entropy_coef": 0.01}),
}


def content_of(document, case, **keys):
    algorithm, algorithm_keys = ALGORITHMS[case]
    return document(algorithm, **algorithm_keys, **keys)


@pytest.mark.parametrize("case", ALGORITHMS)
def test_the_same_seed_gives_the_same_run(train, document, assert_same_run, case):
    content = content_of(document, case)
    first, second = (train(content, name).run_dir for name in ("first", "second"))
    assert_same_run(second, first)


def test_another_seed_gives_another_run(train, document, samples, weights):
    runs = [train(document("ppo"), f"{s}", overrides=[f"run.seed={s}"]).run_dir for s in (0, 1)]
    assert samples(runs[0])[0]["response"] != samples(runs[1])[0]["response"]
    assert not any(
        torch.equal(a, b)
        for a, b in zip(*(weights(r).values() for r in runs), strict=True)
        if a.dim() > 1
    )


def test_random_numbers_in_a_reward_function_come_from_the_seed(train, document, world, samples):
    content = document("grpo")
    content["reward"]["functions"][0]["path"] = f"{world / 'rewards.py'}:noisy"
    first, second = (samples(train(content, name).run_dir) for name in ("first", "second"))
    assert first == second
    assert any(row["reward"] not in (0, row["response"].count("good")) for row in first)


def test_a_run_of_stages_is_the_same_twice(train, staged, assert_same_run):
    first, second = (train(staged(), name).run_dir for name in ("first", "second"))
    for name in ("sft", "rm", "ppo"):
        assert_same_run(second / "stages" / name, first / "stages" / name)


CUTS = {
    "one sample at a time": {"training": {"micro_batch_samples": 1}},
    "three samples at a time, three generation parts": {
        "training": {"micro_batch_samples": 3},
        "rollout": {"micro_batches": 3},
    },
    "small token budget, two generation parts, few sequences at once": {
        "training": {"micro_batch_tokens": 24},
        "rollout": {"micro_batches": 2, "max_sequences": 3},
    },
    "measured token budget, gradient checkpointing": {
        "training": {"micro_batch_tokens": "auto", "gradient_checkpointing": True}
    },
    "transformers engine": {"rollout": {"engine": "transformers"}},
}


@pytest.mark.parametrize("case", ALGORITHMS)
def test_how_work_is_cut_changes_nothing(train, document, same_metrics, samples, weights, case):
    """In float64: same tokens, and rewards, losses and final weights to 1e-9."""
    content = content_of(document, case, dtype="float64")
    content["training"] |= {"iterations": 2, "mini_batch_samples": 8}
    content["run"] |= {"recorded_samples": 100, "checkpoint_every": 100}
    expected = train(content, "expected").run_dir
    for name, changes in CUTS.items():
        if not changes.keys() <= content.keys():
            continue
        run_dir = train(_changed(content, changes), name.replace(" ", "-")).run_dir
        _assert_close_rows(samples(run_dir), samples(expected), name)
        _assert_close_rows(same_metrics(run_dir), same_metrics(expected), name)
        found = weights(run_dir)
        for key, tensor in weights(expected).items():
            assert tensor.dtype == torch.float64
            difference = (found[key] - tensor).norm() / tensor.norm()
            assert difference < 1e-9, (name, key, difference)


def _changed(content, changes):
    changed = {**content, **{section: content[section] | keys for section, keys in changes.items()}}
    if "micro_batch_samples" in changed["training"]:
        del changed["training"]["micro_batch_tokens"]
    return changed


def _assert_close_rows(found, expected, name) -> None:
    assert len(found) == len(expected)
    for row, expected_row in zip(found, expected, strict=True):
        assert row.keys() == expected_row.keys()
        for key, value in expected_row.items():
            if key == "logprob_gap/max":
                assert row[key] < 1e-12, name
            elif isinstance(value, float):
                assert row[key] == pytest.approx(value, rel=1e-9, abs=1e-12), (name, key)
            else:
                assert row[key] == value, (name, key)
