"""What can be planned and not trained says so before anything starts."""

from __future__ import annotations

import pytest

from flexrlhf.config import build_config, require_files
from flexrlhf.config.trainable import check_trainable
from flexrlhf.core.algorithm_specs import BUILT, algorithm_spec
from flexrlhf.core.errors import ConfigError
from flexrlhf.core.names import ALGORITHMS


def config_of(name, **sections):
    spec = algorithm_spec(name)
    model = {role: {"shape": "llama-7b"} for role in ("actor", "reward") if role in spec.roles}
    return build_config({"algorithm": {"name": name}, "model": model, **sections})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_what_is_not_built_is_refused(name):
    problems = [str(problem) for problem in check_trainable(config_of(name))]
    if name in BUILT:
        assert problems == []
    else:
        (problem,) = problems
        assert problem == (
            f'algorithm.name = "{name}": it can be planned; training it is not built yet. '
            "Right: ppo, grpo, dpo, ipo, sft, reward_model."
        )


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"weights": {"max_staleness": 1}}, "weights.max_staleness = 1: it can be planned;"),
        ({"rollout": {"speedup": 4}}, "rollout.speedup = 4.0: it is a supposition for planning;"),
        (
            {"rollout": {"generated_groups": 2}},
            "rollout.generated_groups = 2.0: it is a supposition for planning; ppo trains on every",
        ),
        (
            {
                "model": {role: {"shape": "x", "lora": {"rank": 8}} for role in ("actor",)}
                | {"reward": {"shape": "x"}}
            },
            "model.actor.lora.rank = 8: adapters can be planned;",
        ),
    ],
)
def test_the_rest(sections, said):
    (problem,) = check_trainable(config_of("ppo", **sections))
    assert str(problem).startswith(said)


@pytest.mark.parametrize(("workers", "most"), [(None, 0), (2, 1)])
def test_only_workers_can_generate_ahead_and_by_one_iteration(workers, most):
    cluster = "auto" if workers is None else {"workers": workers}
    for staleness in range(4):
        config = config_of("ppo", weights={"max_staleness": staleness}, cluster=cluster)
        keys = [problem.key for problem in check_trainable(config)]
        assert keys == ([] if staleness <= most else ["weights.max_staleness"])


def test_the_reasons_stand_beside_what_else_training_lacks():
    with pytest.raises(ConfigError) as caught:
        require_files(config_of("kto"))
    assert "training it is not built yet" in str(caught.value)
    assert "only a shape, which is enough to plan" in str(caught.value)
