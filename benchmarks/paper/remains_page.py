"""docs/what-remains.md: which speed-up of the paper survives over weak and over fair baselines."""

from __future__ import annotations

from baselines import COLOCATED, INTERLEAVED_1, REWARD_ON_ONE
from compared import FAIR, LARGE_WAYS, TWO_NODES_WAYS
from critics import verdicts
from markdown_text import items, model_name, paragraph, table
from remains_tables import disaggregation, interleaving, reward, shares, two_nodes
from survival import survival
from work import LENGTHS, SAMPLES_PER_DEVICE


def remains_page(images: str) -> str:
    """Returns the page.

    Args:
        images: the folder of its picture, as seen from the page.
    """
    lines = [
        "# What remains of the paper's speed-ups",
        "",
        *paragraph(
            "`make paper` writes this page. FlexRLHF's paper measures its placements against"
            " DeepSpeed-Chat and trlX. Here the same placements stand beside baselines that its"
            " critics ask for, at equal work. **Every number that is not called published is"
            " simulated**; [planner-accuracy.md](planner-accuracy.md) says how far to trust it. The"
            " paper's own tables are in [paper.md](paper.md)."
        ),
        *survival(),
        *_verdicts(),
        *_conditions(),
        *disaggregation(),
        *shares(images),
        *interleaving(),
        *two_nodes(),
        *reward(),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _verdicts() -> list[str]:
    return [
        "## Are the critics right?",
        "",
        *paragraph(
            "What the second digest criticises, as far as speed can judge it. The second column"
            " follows from the numbers in the third; a difference below 3 % counts as none, and a"
            " gain is taken away if less than half of it is left."
        ),
        *table(
            ("criticism", "finding", "simulated"),
            [(v.claim, f"**{v.finding}**", v.evidence) for v in verdicts()],
        ),
        *paragraph(
            "That stale weights may harm learning, and that a lost worker stops the run, are no"
            " matter of speed and not judged here."
        ),
    ]


def _conditions() -> list[str]:
    batches = ", ".join(f"{model_name(m)} {n}" for m, n in SAMPLES_PER_DEVICE.items())
    lengths = ", ".join(f"{prompt} + {answer}" for prompt, answer in LENGTHS.values())
    ways = dict.fromkeys((*LARGE_WAYS, COLOCATED, INTERLEAVED_1, *TWO_NODES_WAYS, REWARD_ON_ONE))
    return [
        "## What is compared",
        "",
        *paragraph("Nothing but the placement differs between two numbers of a comparison:"),
        *items(
            "LLaMA of one size for all roles, adapters of rank 128, A100 of 80 GB in nodes of"
            " eight, the software and the links with which Table I's cases are predicted.",
            f"Prompt and answer of {lengths} tokens; every sequence is as long. Activations are"
            " kept at 256 tokens and recomputed beyond.",
            f"Samples of an iteration per device: {batches}. Figure 7 and Table II give 372 samples"
            " on 32 devices; 72 are passes of 24 or of 36. Gradients add up over passes, so memory"
            " limits a pass and a round of generation, not the batch.",
            "What is trained is sharded by ZeRO; stage and span are as is best where a placement"
            " leaves them open.",
            "An iteration counts whole, with scoring, which the paper's samples/s leave out.",
        ),
        *table(("name", "placement"), [(way.name, way.words) for way in ways]),
        *paragraph(f"Fair baselines are: {', '.join(way.name for way in FAIR)}."),
    ]
