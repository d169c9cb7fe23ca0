"""Checks of the keys of section `rollout` by which several tokens are tried at a time."""

from __future__ import annotations

from collections.abc import Iterator

from flexrlhf.config.problems import Problem, absence, mistake
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.sources import STAGE


def check_speculation(config: RunConfig) -> Iterator[Problem]:
    """Yields what contradicts itself in how tokens are proposed."""
    rollout = config.rollout
    if rollout.speculation in ("prompt_lookup", "draft_model") and rollout.engine != "native":
        yield mistake(
            "rollout.speculation",
            rollout.speculation,
            f"the engine {rollout.engine} does not speculate.",
            "Right: none, or rollout.engine: native.",
            "rollout.engine",
        )
    draft = rollout.draft_model
    if rollout.speculation == "draft_model" and draft is None:
        yield absence(
            "rollout.draft_model",
            "missing; rollout.speculation = draft_model.",
            "Right: the path of a smaller model, or reference.",
            "rollout.speculation",
        )
    elif rollout.speculation in ("none", "prompt_lookup") and draft is not None:
        yield mistake(
            "rollout.draft_model",
            draft,
            f"nothing is asked of it: rollout.speculation = {rollout.speculation}.",
            "Right: rollout.speculation: draft_model, or no draft_model.",
            "rollout.speculation",
        )
    elif draft == "reference" and config.model.reference is None:
        yield mistake(
            "rollout.draft_model",
            draft,
            "there is no model.reference, so that it would be as large as the actor.",
            "Right: a smaller model.reference, or the path of a smaller model.",
            "model.reference",
        )
    elif draft is not None and draft.startswith(STAGE):
        yield mistake(
            "rollout.draft_model",
            draft,
            "a stage trains no draft model.",
            "Right: the path of a model, or reference.",
        )
