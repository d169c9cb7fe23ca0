"""Tables of docs/what-remains.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from baselines import (
    COLOCATED,
    DISAGGREGATED,
    GATHER_ONCE,
    INTERLEAVED_1,
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
    FAIR,
    LARGE,
    LARGE_WAYS,
    SHARED,
    SMALL,
    TWO_NODES,
    Scene,
    best_fair,
    outcome,
    over_fair,
    scenes_of,
    speed_up,
)
from gains import (
    PUBLISHED,
    PUBLISHED_INTERLEAVED_1,
    PUBLISHED_INTERLEAVED_2,
    PUBLISHED_SHARED,
    Pairs,
    gain,
)
from markdown_text import model_name, paragraph, percent, rate, table, times
from published import cells
from work import LENGTHS

PICTURE: Final = "generation-share.svg"


def disaggregation() -> list[str]:
    """Returns the speed-up of disaggregation over every baseline."""
    ways = (PER_TOKEN, *FAIR)
    header = ("model", "devices", "published over DeepSpeed-Chat", *(w.name for w in ways))
    lengths = (f"{tokens} tokens" for tokens in LENGTHS)
    stale = (f"{tokens} tokens, stale" for tokens in LENGTHS)
    short = scenes_of(LARGE, 256)
    return [
        "## Disaggregation",
        "",
        *paragraph(
            "Speed-up of disaggregation over each baseline at 256 tokens. `-`: the baseline runs"
            " out of memory. Below 1 it is slower, since one part of the devices waits while the"
            " other works."
        ),
        *table((*header, "best fair"), map(_speed_ups, short)),
        *paragraph(
            "Over the best fair baseline, by length. *Stale* lets generation use the weights of"
            " the round before, so that it overlaps training:"
        ),
        *table(("model", "devices", *lengths, *stale), map(_by_length, short)),
        *(line for tokens in LENGTHS for line in _rates_at(tokens)),
    ]


def shares(images: str) -> list[str]:
    """Returns generation's share against the length."""
    ways = (PER_TOKEN, GATHER_ONCE, TENSOR_PARALLEL)
    header = [f"{way.name}, {tokens}" for way in ways for tokens in LENGTHS]
    published = cells()["flex-fig7-002"].published
    rows = (
        [*_head(scene), *(percent(share_of(scene, w, t)) for w in ways for t in LENGTHS)]
        for scene in scenes_of(LARGE, 256)
    )
    return [
        "## Generation's share against the length",
        "",
        *paragraph(
            "Share of an iteration, all roles on all devices, by tokens of a sequence. Published:"
            f" {percent(published)} of generation and training at 256 tokens, 33B on 32 devices,"
            " DeepSpeed-Chat."
        ),
        f"![Simulated shares of an iteration by length]({images}/{PICTURE})",
        "",
        *table(("model", "devices", *header), rows),
    ]


def share_of(scene: Scene, way: Way, tokens: int) -> float | None:
    """Returns generation's share at another length; None where the placement does not run."""
    found = outcome(_at(scene, tokens), way)
    return None if found.samples_per_s is None else found.shares["generate"]


def interleaving() -> list[str]:
    """Returns the speed-up of reference beside reward."""
    header = ("model", "devices", "published", *(f"{tokens} tokens" for tokens in LENGTHS))
    return [
        "## Interleaved 1",
        "",
        *paragraph(
            "Speed-up of reference beside reward over the best colocated plan. In the paper the"
            " batch that memory holds grows from 24 to 36, and samples/s with it; at equal work"
            " only larger passes and two models side by side are left."
        ),
        *table(header, map(_interleaved_1, scenes_of(SMALL, 256))),
    ]


def two_nodes() -> list[str]:
    """Returns the speed-up of the actor inside one of two nodes."""
    header = ("model", "tokens", "published", PER_TOKEN.name, LOCAL_PER_TOKEN.name)
    return [
        "## Interleaved 2, on two nodes",
        "",
        *paragraph(
            "Speed-up of the actor inside one node over gathers per token across nodes (what the"
            " paper's 33B and 65B are measured against), over the same inside nodes and, with"
            " generation as is best on both sides, over the best colocated plan (which stands for"
            " the whole copies that its 7B and 13B are measured against)."
        ),
        *table((*header, "best against best"), map(_interleaved_2, TWO_NODES)),
    ]


def reward() -> list[str]:
    """Returns the speed-up over the reward on one device, and over a sharded one."""
    header = ("model", "devices", "published", "Interleaved 1 over the one-device reward")
    return [
        "## The reward on one device",
        "",
        *paragraph(
            "Actor and critic share a trunk; 256 tokens. The published column is Table V's"
            " interleaving over trlX."
        ),
        *table(
            (*header, "Interleaved 1 over the sharded reward", "sharded over one-device reward"),
            map(_shared, SHARED),
        ),
    ]


def _speed_ups(scene: Scene) -> list[str]:
    return [
        *_head(scene),
        _published(PUBLISHED, scene),
        *(times(speed_up(scene, DISAGGREGATED, way)) for way in (PER_TOKEN, *FAIR)),
        f"{times(over_fair(scene, DISAGGREGATED))} ({best_fair(scene).way.name})",
    ]


def _by_length(scene: Scene) -> list[str]:
    scenes = [_at(scene, tokens) for tokens in LENGTHS]
    plain = (times(over_fair(longer, DISAGGREGATED)) for longer in scenes)
    stale = (times(over_fair(longer, OVERLAPPED)) for longer in scenes)
    return [*_head(scene), *plain, *stale]


def _rates_at(tokens: int) -> list[str]:
    header = ("model", "devices", *(way.name for way in LARGE_WAYS))
    rows = (
        [*_head(scene), *(rate(outcome(scene, way).samples_per_s) for way in LARGE_WAYS)]
        for scene in scenes_of(LARGE, tokens)
    )
    return [*paragraph(f"Samples/s at {tokens} tokens:"), *table(header, rows)]


def _interleaved_1(scene: Scene) -> list[str]:
    scenes = [_at(scene, tokens) for tokens in LENGTHS]
    gains = (times(speed_up(longer, INTERLEAVED_1, COLOCATED)) for longer in scenes)
    return [*_head(scene), _published(PUBLISHED_INTERLEAVED_1, scene), *gains]


def _interleaved_2(scene: Scene) -> list[str]:
    is_published = scene.tokens == 256
    return [
        model_name(scene.model),
        str(scene.tokens),
        _published(PUBLISHED_INTERLEAVED_2, scene) if is_published else times(None),
        times(speed_up(scene, INTERLEAVED_2, PER_TOKEN)),
        times(speed_up(scene, INTERLEAVED_2, LOCAL_PER_TOKEN)),
        times(speed_up(scene, INTERLEAVED_2_BEST, COLOCATED)),
    ]


def _shared(scene: Scene) -> list[str]:
    return [
        *_head(scene),
        _published(PUBLISHED_SHARED, scene),
        times(speed_up(scene, INTERLEAVED_1, REWARD_ON_ONE)),
        times(speed_up(scene, INTERLEAVED_1, COLOCATED)),
        times(speed_up(scene, COLOCATED, REWARD_ON_ONE)),
    ]


def _at(scene: Scene, tokens: int) -> Scene:
    return replace(scene, tokens=tokens)


def _head(scene: Scene) -> list[str]:
    return [model_name(scene.model), str(scene.devices)]


def _published(pairs: Pairs, scene: Scene) -> str:
    return times(gain(pairs, scene).published)
