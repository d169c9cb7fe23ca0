"""What is no config, or asks for what cannot be: nothing starts."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("- sft\n- ppo\n", "is not a mapping of sections"),
        ("sft", "is not a mapping of sections"),
        (
            "algorithm: {name: sft}\nalgorithm: {name: ppo}\n",
            "line 2: key 'algorithm' is given twice",
        ),
        ("algorithm: {name: sft", "line 1: not valid YAML"),
        ("algorithm:\n\tname: sft\n", "line 2: not valid YAML"),
        ("algorithm: {name: sft}\n---\nrun: {}\n", "line 2: not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("a: &a [*a]", "an anchor contains itself"),
        ("a: " + "[" * 5000, "nested too deep"),
        ("null: 1", "None: unknown key"),
        ("algorithms: {name: sft}", "Did you mean 'algorithm'?"),
        ('stages: [{name: "sft\\n", algorithm: {name: sft}}]', "not a lower-case word"),
    ],
)
def test_what_is_no_config_is_said(outcome, text, said):
    assert said in outcome(text, 2)


def test_a_config_that_is_a_folder_or_binary_is_said(refused, tmp_path):
    (tmp_path / "binary.yaml").write_bytes(bytes(range(256)))
    for path, said in (
        (tmp_path, "Is a directory"),
        (tmp_path / "binary.yaml", "is not UTF-8"),
        (tmp_path / "nowhere.yaml", "does not exist"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        for name in ("train", "plan"):
            assert said in refused(name, path)


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("", "not of the form KEY=VALUE"),
        ("=5", "not of the form KEY=VALUE"),
        ("training.iterations", "not of the form KEY=VALUE"),
        ("training..iterations=5", "not of the form KEY=VALUE"),
        ("training.iterations=[1", "not valid YAML"),
        ("training.iterations=", "null: not accepted here"),
        ("training.iterations=five", "a whole number of at least 1"),
        ("training.iterations.x=1", "which has no keys"),
        ("reward.functions.7.weight=1", "the list has no entry '7'"),
        ("stages.sft.run.seed=1", "not a list of stages"),
        ("run.seed=99999999999", "out of range"),
        ("training.threads=100000", "at most 1024"),
        ("training.learning_rate=.nan", "out of range"),
        ("training.betas=[0.9, 1.0]", "training.betas.1 = 1.0: out of range"),
        ("data.prompts.path=~nobody-of-this-name/x", "Could not determine home directory"),
        (f"data.prompts.path={'x' * 5000}", "File name too long"),
        ("rollout.engine=vlm", "Did you mean 'vllm'?"),
        ("run.trackers=[wandb]", "tensorboard"),
    ],
)
def test_wrong_assignments_are_said(outcome, document, assignment, said):
    assert said in outcome(document("ppo"), 2, "--set", assignment)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["training.iteration=5"], "iterations"),
        (["training.iterations=0"], "training.iterations"),
        (["algorithm.name=pop"], "'ppo'"),
        (["algorithm.name=dapo"], "training it is not built yet"),
        (["algorithm.name=dpo"], "dpo reads preferences"),
        (["data.prompts.path=nowhere.jsonl"], "nowhere.jsonl"),
        (["reward.functions.0.path=nowhere.py:score"], "nowhere.py"),
        (["model.actor={path: nowhere}"], "nowhere"),
        (["data.max_prompt_tokens=2"], "max_prompt_tokens"),
        (["rollout.max_new_tokens=100", "training.micro_batch_tokens=auto"], "at most 32"),
        (["placement.strategy=disaggregated"], "cluster.workers = 2 runs two worker processes"),
        (["placement.strategy=verl"], "it can be planned, not run"),
        (["placement.ratio=[1, 0.5]"], "placement.ratio"),
        (["placement.roles.actor.zero_stage=3"], "placement.roles.actor.zero_stage = 3"),
        (["placement.strategy=colocate"], "colocated"),
        (["rollout.engine=vllm"], "generating with it is not built yet"),
        (["weights.sync_every=2", "weights.max_staleness=1"], "with the weights that it trains"),
        (["algorithm.epochs=1000000000000"], "optimiser steps (1000000000000 times over"),
        (["weights.max_staleness=99999999999"], "at least 0 and at most 100"),
        (["weights.sync_every=2"], "makes samples up to 1 iterations stale"),
        (["rollout.speedup=4"], "a supposition for planning"),
        (["model.actor.lora.rank=8"], "training them is not built yet"),
        (["model.actor.dtype=bfloat16"], "training.precision: bfloat16"),
        (["algorithm.kl_placement=loss", "algorithm.kl_estimator=k1"], "expected gradient"),
    ],
)
def test_wrong_input_starts_nothing(outcome, document, changes, said):
    assignments = [part for change in changes for part in ("--set", change)]
    assert said in outcome(document("grpo"), 2, *assignments)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["algorithm.beta=0"], "algorithm.beta = 0"),
        (["algorithm.beta=-0.1"], "algorithm.beta = -0.1"),
        (["algorithm.beta=.inf"], "algorithm.beta"),
        (["algorithm.label_smoothing=0.5"], "algorithm.label_smoothing = 0.5"),
        (["algorithm.loss_type=sigmod"], "Did you mean 'sigmoid'?"),
        (["algorithm.loss_type=hinge", "algorithm.label_smoothing=0.1"], "knows no wrong pairs"),
        (["algorithm.name=ipo", "algorithm.loss_type=sigmoid"], "ipo is named after its loss"),
        (["algorithm.name=kto"], "training it is not built yet"),
        (["data.preferences=null"], "dpo reads preferences"),
        (["model.reward={path: nowhere}"], "dpo has none"),
        (["model.reference={path: nowhere}"], "nowhere"),
        (["placement.strategy=disaggregated"], "needs at least two devices, and this run has one"),
        (["data.max_tokens=100", "training.micro_batch_tokens=auto"], None),
        (["data.max_tokens=100"], "one pair may have 200 tokens"),
    ],
)
def test_what_a_policy_on_pairs_cannot_have_is_said(outcome, document, changes, said):
    assignments = [part for change in changes for part in ("--set", change)]
    err = outcome(document("dpo"), 0 if said is None else 2, *assignments)
    assert said is None or said in err
