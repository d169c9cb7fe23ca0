"""The models that can score next to each other: what interleaving rests on."""

from __future__ import annotations

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import Role, in_order


def independent_models(spec: AlgorithmSpec) -> tuple[Role, ...]:
    """Returns the frozen models whose scoring passes over the same answers need none of the others.

    No pass of a spec depends on another, so it is all its frozen models: two reward models beside a
    reference are three. A trained role is not among them, since training wants it everywhere; nor
    are functions, which need no device.
    """
    return in_order(spec.frozen) if spec.generates else ()


def why_not_interleaved(spec: AlgorithmSpec) -> str:
    """Returns why an algorithm has nothing to interleave; nothing where it has."""
    models = independent_models(spec)
    if len(models) > 1:
        return ""
    if not spec.generates:
        return (
            f"{spec.name} has given answers: nothing is scored between generation and training "
            "that could stand side by side."
        )
    found = f"only one frozen model ({models[0]})" if models else "no frozen model"
    functions = f"; {', '.join(spec.functions)} comes from functions" if spec.functions else ""
    return (
        f"{spec.name} has {found} that scores answers{functions}, and interleaving "
        "puts two or more side by side."
    )
