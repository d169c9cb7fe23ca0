"""The second digest's criticisms, as far as speed can judge them, and what the numbers say."""

from __future__ import annotations

from dataclasses import replace

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
from markdown_text import model_name, percent_spread, spread
from verdict import (
    SHORT,
    TIE,
    ZERO_3_MODELS,
    Verdict,
    factor,
    generation_shares,
    is_taken_away,
    judged,
    longer,
    running,
    running_at_both_lengths,
)


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


def _weak_baseline() -> Verdict:
    scenes = running(scenes_of(LARGE, SHORT), DISAGGREGATED, PER_TOKEN)
    weak = [factor(scene, DISAGGREGATED, PER_TOKEN) for scene in scenes]
    fair = [over_fair(scene, DISAGGREGATED) for scene in scenes]
    stale = [over_fair(scene, OVERLAPPED) for scene in scenes]
    names = dict.fromkeys(best_fair(scene).way.name for scene in scenes)
    return judged(
        "The speed-up of disaggregation rests on a weak baseline: a reasonable one, still with all"
        " roles on all devices, takes most of it away (attack 1).",
        scenes,
        lambda scene: is_taken_away(
            factor(scene, DISAGGREGATED, PER_TOKEN), over_fair(scene, DISAGGREGATED)
        ),
        f"At 256 tokens, 33B and 65B on 32 and 128 devices: {spread(weak)} over the gather per"
        f" token, {spread(fair)} over the best fair baseline ({', '.join(names)})."
        f" One round stale, so that generation and training overlap: {spread(stale)}.",
    )


def _one_device_reward() -> Verdict:
    scenes = running(SHARED, INTERLEAVED_1, REWARD_ON_ONE, COLOCATED)
    weak = [factor(scene, INTERLEAVED_1, REWARD_ON_ONE) for scene in scenes]
    fair = [factor(scene, INTERLEAVED_1, COLOCATED) for scene in scenes]
    return judged(
        "trlX's reward on one device is a flaw: with the reward on all devices, colocated, the"
        " speed-up shrinks (attack 1).",
        scenes,
        lambda scene: is_taken_away(
            factor(scene, INTERLEAVED_1, REWARD_ON_ONE), factor(scene, INTERLEAVED_1, COLOCATED)
        ),
        f"Shared actor and critic of 7B and 13B on 8 and 32 devices: Interleaved 1 is"
        f" {spread(weak)} over the one-device reward, {spread(fair)} over the sharded one.",
    )


def _share_falls() -> Verdict:
    scenes = running_at_both_lengths(scenes_of(LARGE, SHORT), PER_TOKEN)
    parts = [
        f"{way.name} {percent_spread(generation_shares(scenes, way))} at 256 tokens,"
        f" {percent_spread(generation_shares([longer(s) for s in scenes], way))} at 8k"
        for way in (PER_TOKEN, TENSOR_PARALLEL)
    ]
    if once := generation_shares(scenes, GATHER_ONCE):
        parts.append(f"{GATHER_ONCE.name} {percent_spread(once)} at 256 tokens, where it fits")
    found = judged(
        "256 tokens inflate generation's share, since gathers do not grow with the length: at 2k to"
        " 8k tokens it falls (attack 2).",
        scenes,
        lambda scene: _share(longer(scene)) < _share(scene) - TIE,
        f"Share of an iteration: {'; '.join(parts)}.",
    )
    if found.holds_in:
        return found
    why = " It is the gather for every token that inflates it, and that grows with the answer."
    return replace(found, evidence=found.evidence + why)


def _speed_up_shrinks() -> Verdict:
    scenes = running_at_both_lengths(scenes_of(LARGE, SHORT), DISAGGREGATED, PER_TOKEN)
    by_length = [
        (
            words,
            [factor(move(s), DISAGGREGATED, PER_TOKEN) for s in scenes],
            [over_fair(move(s), DISAGGREGATED) for s in scenes],
        )
        for words, move in (("256 tokens", lambda s: s), ("8k", longer))
    ]
    said = "; ".join(
        f"at {words} {spread(weak)} over the gather per token and {spread(fair)} over the best"
        " fair baseline"
        for words, weak, fair in by_length
    )
    return judged(
        "At 2k to 8k tokens the speed-up of disaggregation over DeepSpeed-Chat is much smaller"
        " (attack 2).",
        scenes,
        lambda scene: (
            factor(longer(scene), DISAGGREGATED, PER_TOKEN)
            < (1 - TIE) * factor(scene, DISAGGREGATED, PER_TOKEN)
        ),
        f"Disaggregation is {said}.",
    )


def _interleaving_1() -> Verdict:
    ways = (INTERLEAVED_1_ZERO_3, PER_TOKEN, INTERLEAVED_1, COLOCATED)
    scenes = running(_zero_3_scenes(), *ways)
    gains = [factor(scene, INTERLEAVED_1_ZERO_3, PER_TOKEN) for scene in scenes]
    best = [factor(scene, INTERLEAVED_1, COLOCATED) for scene in scenes]
    return judged(
        "Interleaved 1 gives nothing where models need ZeRO-3 (attack 5).",
        scenes,
        lambda scene: factor(scene, INTERLEAVED_1_ZERO_3, PER_TOKEN) < 1 + TIE,
        f"33B and 65B on two nodes: {spread(gains)} with ZeRO-3 and a gather per token on both"
        f" sides, {spread(best)} with both as is best.",
    )


def _interleaving_2() -> Verdict:
    ways = (INTERLEAVED_2, PER_TOKEN, INTERLEAVED_2_BEST, COLOCATED)
    scenes = running(_zero_3_scenes(), *ways)
    weak = [factor(scene, INTERLEAVED_2, PER_TOKEN) for scene in scenes]
    fair = [factor(scene, INTERLEAVED_2_BEST, COLOCATED) for scene in scenes]
    local = [
        f"{model_name(scene.model)} {found:.2f}x"
        for scene in scenes
        if (found := speed_up(scene, INTERLEAVED_2, LOCAL_PER_TOKEN)) is not None
    ]
    return judged(
        "Interleaved 2 owes its gain to a known trick, tensor parallelism or sharding inside the"
        " node, not to its placement (attack 5).",
        scenes,
        lambda scene: factor(scene, INTERLEAVED_2_BEST, COLOCATED) < 1 + TIE,
        f"33B and 65B on two nodes: {spread(weak)} over gathers across nodes. Colocated with"
        f" sharding inside nodes, still per token: {', '.join(local) or 'out of memory'}. Both with"
        f" generation as is best: {spread(fair)}.",
    )


def _share(scene: Scene) -> float:
    return outcome(scene, PER_TOKEN).shares["generate"]


def _zero_3_scenes() -> list[Scene]:
    return [scene for scene in scenes_of(TWO_NODES, SHORT) if scene.model in ZERO_3_MODELS]
