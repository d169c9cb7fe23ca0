"""Whether the second digest's critics are right, decided by the simulated numbers alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from baselines import (
    COLOCATED,
    DISAGGREGATED,
    GATHER_ONCE,
    INTERLEAVED_1,
    INTERLEAVED_1_ZERO_3,
    INTERLEAVED_2,
    INTERLEAVED_2_BEST,
    LOCAL_PER_TOKEN,
    OVERLAPPED,
    PER_TOKEN,
    REWARD_ON_ONE,
    TENSOR_PARALLEL,
    Way,
)
from compared import (
    LARGE,
    SHARED,
    TWO_NODES,
    Scene,
    best_fair,
    outcome,
    over_fair,
    scenes_of,
    speed_up,
)
from markdown_text import percent_spread, spread

TIE: Final = 0.03
"""Differences below it are none, as for the paper's own tables."""
_SHORT, _LONG = 256, 8192
ZERO_3_MODELS: Final = ("llama-33b", "llama-65b")
"""Models that the paper shards by ZeRO-3."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One criticism and what the numbers say to it."""

    claim: str
    holds_in: int
    """Cases in which it holds."""
    cases: int
    evidence: str

    @property
    def finding(self) -> str:
        """In one or two words."""
        if self.holds_in == self.cases:
            return "right"
        return f"right in {self.holds_in} of {self.cases} cases" if self.holds_in else "wrong"


def verdicts() -> list[Verdict]:
    """Returns the criticisms that speed can judge, in the digest's order."""
    return [
        _weak_baseline(),
        _one_device_reward(),
        _share_falls(),
        _speed_up_shrinks(),
        _interleaving_1(),
        _interleaving_2(),
    ]


def _judged(
    claim: str, scenes: Sequence[Scene], holds: Callable[[Scene], bool], evidence: str
) -> Verdict:
    return Verdict(claim, sum(map(holds, scenes)), len(scenes), evidence)


def _weak_baseline() -> Verdict:
    scenes = scenes_of(LARGE, _SHORT)
    weak = [_factor(scene, DISAGGREGATED, PER_TOKEN) for scene in scenes]
    fair = [over_fair(scene, DISAGGREGATED) for scene in scenes]
    stale = [over_fair(scene, OVERLAPPED) for scene in scenes]
    names = dict.fromkeys(best_fair(scene).way.name for scene in scenes)
    return _judged(
        "The speed-up of disaggregation rests on a weak baseline: a reasonable one, still with all"
        " roles on all devices, takes most of it away (attack 1).",
        scenes,
        lambda scene: _is_taken_away(
            _factor(scene, DISAGGREGATED, PER_TOKEN), over_fair(scene, DISAGGREGATED)
        ),
        f"At 256 tokens, 33B and 65B on 32 and 128 devices: {spread(weak)} over the gather per"
        f" token, {spread(fair)} over the best fair baseline ({', '.join(names)})."
        f" One round stale, so that generation and training overlap: {spread(stale)}.",
    )


def _one_device_reward() -> Verdict:
    weak = [_factor(scene, INTERLEAVED_1, REWARD_ON_ONE) for scene in SHARED]
    fair = [_factor(scene, INTERLEAVED_1, COLOCATED) for scene in SHARED]
    return _judged(
        "trlX's reward on one device is a flaw: with the reward on all devices, colocated, the"
        " speed-up shrinks (attack 1).",
        SHARED,
        lambda scene: _is_taken_away(
            _factor(scene, INTERLEAVED_1, REWARD_ON_ONE), _factor(scene, INTERLEAVED_1, COLOCATED)
        ),
        f"Shared actor and critic of 7B and 13B on 8 and 32 devices: Interleaved 1 is"
        f" {spread(weak)} over the one-device reward, {spread(fair)} over the sharded one.",
    )


def _share_falls() -> Verdict:
    scenes = scenes_of(LARGE, _SHORT)
    parts = [
        f"{way.name} {percent_spread(_shares(scenes, way))} at 256 tokens,"
        f" {percent_spread(_shares([_longer(s) for s in scenes], way))} at 8k"
        for way in (PER_TOKEN, TENSOR_PARALLEL)
    ]
    if once := _shares(scenes, GATHER_ONCE):
        parts.append(f"{GATHER_ONCE.name} {percent_spread(once)} at 256 tokens, where it fits")
    found = _judged(
        "256 tokens inflate generation's share, since gathers do not grow with the length: at 2k to"
        " 8k tokens it falls (attack 2).",
        scenes,
        lambda scene: _share(_longer(scene), PER_TOKEN) < _share(scene, PER_TOKEN) - TIE,
        f"Share of an iteration: {'; '.join(parts)}.",
    )
    if found.holds_in:
        return found
    why = " It is the gather for every token that inflates it, and that grows with the answer."
    return replace(found, evidence=found.evidence + why)


def _speed_up_shrinks() -> Verdict:
    scenes = scenes_of(LARGE, _SHORT)
    by_length = [
        (
            words,
            [_factor(move(s), DISAGGREGATED, PER_TOKEN) for s in scenes],
            [over_fair(move(s), DISAGGREGATED) for s in scenes],
        )
        for words, move in (("256 tokens", lambda s: s), ("8k", _longer))
    ]
    said = "; ".join(
        f"at {words} {spread(weak)} over the gather per token and {spread(fair)} over the best"
        " fair baseline"
        for words, weak, fair in by_length
    )
    return _judged(
        "At 2k to 8k tokens the speed-up of disaggregation over DeepSpeed-Chat is much smaller"
        " (attack 2).",
        scenes,
        lambda scene: (
            _factor(_longer(scene), DISAGGREGATED, PER_TOKEN)
            < (1 - TIE) * _factor(scene, DISAGGREGATED, PER_TOKEN)
        ),
        f"Disaggregation is {said}.",
    )


def _interleaving_1() -> Verdict:
    scenes = [scene for scene in scenes_of(TWO_NODES, _SHORT) if scene.model in ZERO_3_MODELS]
    gains = [_factor(scene, INTERLEAVED_1_ZERO_3, PER_TOKEN) for scene in scenes]
    best = [_factor(scene, INTERLEAVED_1, COLOCATED) for scene in scenes]
    return _judged(
        "Interleaved 1 gives nothing where models need ZeRO-3 (attack 5).",
        scenes,
        lambda scene: _factor(scene, INTERLEAVED_1_ZERO_3, PER_TOKEN) < 1 + TIE,
        f"33B and 65B on two nodes: {spread(gains)} with ZeRO-3 and a gather per token on both"
        f" sides, {spread(best)} with both as is best.",
    )


def _interleaving_2() -> Verdict:
    scenes = [scene for scene in scenes_of(TWO_NODES, _SHORT) if scene.model in ZERO_3_MODELS]
    weak = [_factor(scene, INTERLEAVED_2, PER_TOKEN) for scene in scenes]
    fair = [_factor(scene, INTERLEAVED_2_BEST, COLOCATED) for scene in scenes]
    local = [
        f"{scene.model.removeprefix('llama-').upper()} {found:.2f}x"
        for scene in scenes
        if (found := speed_up(scene, INTERLEAVED_2, LOCAL_PER_TOKEN)) is not None
    ]
    return _judged(
        "Interleaved 2 owes its gain to a known trick, tensor parallelism or sharding inside the"
        " node, not to its placement (attack 5).",
        scenes,
        lambda scene: _factor(scene, INTERLEAVED_2_BEST, COLOCATED) < 1 + TIE,
        f"33B and 65B on two nodes: {spread(weak)} over gathers across nodes. Colocated with"
        f" sharding inside nodes, still per token: {', '.join(local) or 'out of memory'}. Both with"
        f" generation as is best: {spread(fair)}.",
    )


def _is_taken_away(weak: float, fair: float) -> bool:
    """Whether more than half of a gain over the weak baseline is none over the fair one."""
    return weak > 1 + TIE and fair - 1 < 0.5 * (weak - 1)


def _longer(scene: Scene) -> Scene:
    return Scene(scene.model, scene.devices, _LONG, scene.shares_trunk)


def _factor(scene: Scene, way: Way, over: Way) -> float:
    found = speed_up(scene, way, over)
    assert found is not None, f"{way.name} or {over.name} does not run: {scene}"
    return found


def _share(scene: Scene, way: Way) -> float:
    """Generation's share; 0 where the placement does not run."""
    return outcome(scene, way).shares.get("generate", 0.0)


def _shares(scenes: Sequence[Scene], way: Way) -> list[float]:
    """Generation's share in the scenes where the placement runs."""
    found = [outcome(scene, way) for scene in scenes]
    return [entry.shares.get("generate", 0.0) for entry in found if entry.samples_per_s]
