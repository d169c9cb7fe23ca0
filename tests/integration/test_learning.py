"""Every algorithm learns a task that is easy enough to be learnt in a few seconds."""

from __future__ import annotations

import statistics

import pytest

PER_SIDE = 5
"""Iterations at either end of a run whose rewards are compared."""


@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        ("ppo", {"kl_coef": 0.0}),
        ("ppo", {"share_actor_critic": True, "kl_coef": 0.01}),
        ("ppo", {"kl_coef": 0.01, "kl_target": 20.0}),
        ("grpo", {"kl_coef": 0.01}),
        ("grpo", {"kl_coef": 0.01, "kl_placement": "reward"}),
        ("grpo", {"kl_coef": 0.0}),
    ],
    ids=["ppo", "ppo-shared", "ppo-adaptive", "grpo-loss", "grpo-reward", "grpo-no-kl"],
)
def test_the_reward_rises(train, document, algorithm, keys):
    content = document(algorithm, **keys)
    content["training"] |= {"iterations": 40, "micro_batch_tokens": 512}
    content["rollout"] |= {"samples_per_prompt": 4}
    content["run"] |= {"checkpoint_every": 100}
    rewards = [row["reward/mean"] for row in train(content).metrics]
    first, last = rewards[:PER_SIDE], rewards[-PER_SIDE:]
    assert statistics.fmean(first) < 0.2
    assert statistics.fmean(last) > 0.7
    spread = statistics.stdev(first) + statistics.stdev(last)
    assert statistics.fmean(last) - statistics.fmean(first) > 4 * spread


def test_a_run_in_bfloat16_learns_and_its_engine_stays_below_the_alarm(train, document):
    """A sure policy has large logits, whose rounding alone would be more than the alarm allows."""
    content = document("grpo")
    content["training"] |= {"iterations": 30, "micro_batch_tokens": 512, "precision": "bfloat16"}
    content["rollout"] |= {"samples_per_prompt": 4, "max_new_tokens": 12}
    rows = train(content).metrics
    assert rows[-1]["reward/mean"] > 0.7
    assert max(row["logprob_gap/max"] for row in rows) < 1e-2


def test_kl_holds_the_policy(train, document):
    """A hundred times the KL coefficient leaves the policy near where it began."""
    divergence = {}
    for coefficient in (0.01, 1.0):
        content = document("ppo", kl_coef=coefficient)
        content["training"] |= {"iterations": 20}
        rows = train(content, f"kl-{coefficient}").metrics
        assert rows[0]["kl/mean"] == pytest.approx(0, abs=1e-6)
        divergence[coefficient] = rows[-1]["kl/mean"]
    assert divergence[1.0] < 0.2 * divergence[0.01]


def test_supervised_fine_tuning_learns_the_form_of_an_answer(train, document, world):
    content = document("sft")
    content["training"] |= {"iterations": 60, "micro_batch_tokens": 512}
    content["data"]["evaluation"] = {"path": str(world / "supervised.jsonl"), "every": 60}
    rows = train(content).metrics
    assert rows[0]["eval/loss_supervised"] > 2.5  # log(20) = 3.0 is a guess
    # The choice among three good words alone costs log(3) in one of six tokens.
    assert rows[-1]["eval/loss_supervised"] < 0.6


def test_a_reward_model_tells_good_from_bad(train, document, world):
    content = document("reward_model")
    content["training"] |= {"iterations": 30, "micro_batch_tokens": 512}
    content["data"]["evaluation"] = {"path": str(world / "preferences.jsonl"), "every": 30}
    rows = train(content).metrics
    assert rows[0]["eval/loss_preference"] == pytest.approx(0.693, abs=0.05)
    assert rows[-1]["eval/accuracy_preference"] > 0.95
    assert rows[-1]["eval/loss_preference"] < 0.2


@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        ("dpo", {"beta": 0.5}),
        ("dpo", {"beta": 0.5, "label_smoothing": 0.1}),
        ("dpo", {"beta": 0.5, "loss_type": "hinge"}),
        ("ipo", {"beta": 0.1}),
    ],
    ids=["dpo", "cdpo", "hinge", "ipo"],
)
def test_a_policy_comes_to_prefer_what_is_preferred(train, document, rule_pairs, algorithm, keys):
    """The rule: the answer that calls the thing good, kind or warm is the better one."""
    training, held_out = rule_pairs
    content = document(algorithm, **keys)
    content["data"] |= {"preferences": {"path": training}}
    content["data"]["evaluation"] = {"path": held_out, "every": 15}
    content["training"] |= {"iterations": 15, "micro_batch_tokens": 512}
    content["run"] |= {"checkpoint_every": 100}
    rows = train(content).metrics
    assert rows[0]["eval/accuracy_preference"] < 0.6  # the reference is the policy: no preference
    assert abs(rows[0]["eval/implicit_reward_margin"]) < 1e-4
    assert rows[-1]["eval/accuracy_preference"] > 0.9
    assert rows[-1]["eval/implicit_reward_margin"] > 0.1
    assert rows[-1]["implicit_reward/margin"] == pytest.approx(
        rows[-1]["implicit_reward/chosen"] - rows[-1]["implicit_reward/rejected"], rel=1e-5
    )


def test_a_reward_model_and_functions_together_train_a_policy(train, staged, world):
    content = staged()
    ppo = content["stages"][2]
    ppo["reward"] = {
        "functions": [{"path": f"{world / 'rewards.py'}:short", "weight": 0.5}],
        "model_weight": 2.0,
    }
    ppo["training"] |= {"iterations": 2}
    for row in train(content).metrics:
        parts = 2.0 * row["reward/model"] + 0.5 * row["reward/short"]
        assert row["reward/mean"] == pytest.approx(parts, rel=1e-5)
