"""The dry step measures every trained role and leaves no trace in any of them."""

from __future__ import annotations

import pytest
import torch

from flexrlhf.runtime import trial_step
from flexrlhf.runtime.micro_batch_limit import ItemLimit
from flexrlhf.runtime.trial_step import measured_micro_batch_tokens


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("ppo", {}),
        ("ppo", {"share_actor_critic": True}),
        ("grpo", {"kl_coef": 0.1, "entropy_coef": 0.01}),
        ("sft", {}),
        ("reward_model", {}),
        ("dpo", {}),
    ],
)
def test_weights_gradients_and_optimisers_stay_as_they_were(make_launched, algorithm, options):
    trainers = make_launched(algorithm, algorithm=options).worker.trainers
    before = {
        role: [p.detach().clone() for p in trainer.backend.model.parameters()]
        for role, trainer in trainers.items()
    }
    random_state = torch.get_rng_state()
    rows = 2 if algorithm in ("reward_model", "dpo") else 1
    found = measured_micro_batch_tokens(
        list(trainers.values()), longest=10 * rows, rows_per_item=rows, num_items=4
    )
    assert found in {10 * rows * count for count in (1, 4)}
    assert torch.equal(torch.get_rng_state(), random_state)
    for role, trainer in trainers.items():
        parameters = list(trainer.backend.model.parameters())
        assert all(torch.equal(p, q) for p, q in zip(parameters, before[role], strict=True))
        assert all(p.grad is None for p in parameters)
        assert not trainer.backend._optimizer.state


def test_every_role_is_tried_with_room_for_the_moments_of_all(make_launched, monkeypatch):
    trainers = make_launched("ppo").worker.trainers
    searches = []

    def search(dry_step, **limits):
        dry_step(3)
        searches.append(limits)
        return {0: 60, 1: 40}[len(searches) - 1]

    monkeypatch.setattr(trial_step, "find_micro_batch_tokens", search)
    found = measured_micro_batch_tokens(
        list(trainers.values()), longest=20, rows_per_item=1, num_items=8
    )
    assert found == 40
    moments = sum(trainer.backend.optimizer_bytes() for trainer in trainers.values())
    assert [limits["reserved_bytes"] for limits in searches] == [moments, moments]
    assert all((s["longest"], s["num_samples"]) == (20, 8) for s in searches)


def test_memory_that_runs_out_half_way_leaves_no_gradient(make_launched, monkeypatch):
    """Else the first real step would add to what the failed one had got to."""
    trainer = make_launched("sft").worker.trainers["actor"]
    backward = trainer.backend.backward
    rows = []

    def exhausted(loss):
        backward(loss)
        rows.append(len(rows))
        if len(rows) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(trainer.backend, "backward", exhausted)
    found = measured_micro_batch_tokens([trainer], longest=10, rows_per_item=1, num_items=4)
    assert found == 10
    assert all(p.grad is None for p in trainer.backend.model.parameters())


def test_auto_is_replaced_by_what_was_measured(make_launched):
    launched = make_launched("ppo", training={"micro_batch_tokens": "auto"})
    longest = 2 + 5  # the longest prompt and answer
    assert launched.config.training.micro_batch_tokens in {longest, 4 * longest, 8 * longest}
    samples = make_launched(
        "ppo", training={"micro_batch_tokens": "auto", "micro_batch_samples": 2}
    )
    assert samples.config.training.micro_batch_tokens == "auto"
    assert samples.worker.steps.settings.limit == ItemLimit(2)
