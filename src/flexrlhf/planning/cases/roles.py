"""Which roles a case has, and what their models are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec, ScoreStep, algorithm_spec
from flexrlhf.core.names import Role, labelled
from flexrlhf.planning.cases.assumptions import Assumptions
from flexrlhf.planning.cases.case import Case
from flexrlhf.planning.cases.systems import System
from flexrlhf.planning.cases.vocabulary import UNSTATED
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.shape_catalogue import shape_named

OLD: Final = labelled("reference", "old")
"""The trainer's own look at the samples, where a shadow generates: weights as trained so far."""
_COST: Final = "cost"
_USUAL_ACTOR: Final = {2023: "llama-7b", 2024: "llama2-7b", 2025: "qwen2.5-7b"}
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8"}


@dataclass(frozen=True, slots=True)
class Roles:
    """An algorithm's spec and the models of its roles."""

    spec: AlgorithmSpec
    models: Mapping[Role, HeldModel]


def roles_of(case: Case, system: System, taken: Assumptions, *, is_apart: bool) -> Roles:
    """Returns what a case trains and scores.

    Args:
        case: what is stated.
        system: what it does where nothing is stated.
        taken: notes what is assumed.
        is_apart: generation has devices of its own.
    """
    shapes = _shapes(case, system, taken)
    spec = _spec(case, shapes, system, taken, is_apart=is_apart)
    recomputes = case.flag("recompute")
    if recomputes is None:
        usual = system.recomputes and not case.number("lora_rank")
        recomputes = taken.take("recompute", usual, "usual, with adapters not")
    dtype = _dtype(case, taken)
    is_engine = case.word("strategy") == "inference_only"
    weights = dtype if dtype != "float8" or is_engine else "bfloat16"
    models: dict[Role, HeldModel] = {}
    for role in spec.roles:
        kind = role.partition(":")[0]
        shape = shapes.get("actor" if role == OLD else kind)
        if shape is None:
            continue
        is_trained = role in spec.trained and not is_engine
        models[role] = HeldModel(
            shape_named(shape),
            head="value" if kind in ("critic", "reward") else "language_model",
            weight_dtype=weights,
            compute_dtype=dtype,
            is_trained=is_trained,
            lora_rank=case.count("lora_rank") if is_trained and case.number("lora_rank") else None,
            recomputes=recomputes,
        )
    return Roles(spec, models)


def _shapes(case: Case, system: System, taken: Assumptions) -> dict[str, str]:
    """Names of the models by role; a role without one is absent."""
    actor = case.word("actor_model")
    if actor in (None, UNSTATED):
        usual = _USUAL_ACTOR[system.year]
        actor = taken.take("actor_model", usual, f"usual in {system.year}")
    shapes: dict[str, str] = {"actor": actor}
    for role in ("critic", "reference", "reward"):
        stated = case.word(f"{role}_model")
        if stated == UNSTATED:
            shapes[role] = taken.take(f"{role}_model", actor, "as the actor")
        elif stated is not None:
            shapes[role] = stated
    return shapes


def _spec(
    case: Case, shapes: Mapping[str, str], system: System, taken: Assumptions, *, is_apart: bool
) -> AlgorithmSpec:
    algorithm = case.word("algorithm")
    if algorithm is None:
        algorithm = "ppo" if "critic" in shapes else "grpo"
        taken.take("algorithm", algorithm, "by its roles")
    strategy = case.word("strategy")
    if strategy == "trainer_only":
        return algorithm_spec("sft")
    bare = algorithm_spec("reinforce_pp", uses_reference=False, has_reward_model=False)
    if strategy == "inference_only" or algorithm == "none":
        return replace(bare, scored=())
    has = {"uses_reference": "reference" in shapes, "has_reward_model": "reward" in shapes}
    if algorithm == "ppo_shared":
        spec = algorithm_spec("ppo", share_actor_critic=True, **has)
    elif algorithm in ("ppo", "safe_rlhf") and "critic" in shapes:
        spec = algorithm_spec("ppo", **has)
    elif algorithm in ("grpo", "dapo"):
        spec = algorithm_spec(algorithm, **has)
    else:
        spec = algorithm_spec("reinforce_pp", **has)
    if algorithm == "safe_rlhf":
        spec = _with_costs(spec)
    return _with_scoring(spec, system, taken, is_apart=is_apart)


def _with_costs(spec: AlgorithmSpec) -> AlgorithmSpec:
    """A second reward model and a second critic, for what an answer costs."""
    doubled = [step for step in spec.scored if step.role in ("critic", "reward")]
    costs = tuple(ScoreStep(labelled(s.role, _COST), s.operation) for s in doubled)
    trained = tuple(labelled(role, _COST) for role in spec.trained if role == "critic")
    return replace(spec, scored=(*spec.scored, *costs), trained=(*spec.trained, *trained))


def _with_scoring(
    spec: AlgorithmSpec, system: System, taken: Assumptions, *, is_apart: bool
) -> AlgorithmSpec:
    """The actor's own scoring as the system does it."""
    others = tuple(step for step in spec.scored if step.role != "actor")
    if is_apart and not system.scores_actor_when_apart:
        taken.note(f"log-probs of the engine are taken as they are (usual of {system.name})")
        return replace(spec, scored=others)
    if is_apart and not system.shadow_scores:
        return replace(spec, scored=(ScoreStep(OLD, "logprobs"), *others))
    return spec


def _dtype(case: Case, taken: Assumptions) -> str:
    stated = case.word("dtype")
    if stated in _DTYPES:
        return _DTYPES[stated]
    why = "usual" if stated is None else f"{stated} is not in the list"
    return _DTYPES[taken.take("dtype", "bf16", why)]
