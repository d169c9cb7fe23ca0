"""docs/paper.md: the paper's figures and tables beside ours."""

from __future__ import annotations

from collections.abc import Iterator

from assumed import assumptions
from bounds import bounds_section
from figures import EXAMPLES
from markdown_text import items, paragraph
from numbers_of_figures import figure_1_case, figure_1_table, figure_7_table
from numbers_of_tables import before_after, table_1, table_2, table_5
from orderings import contradicted


def paper_page(images: str) -> str:
    """Returns the page.

    Args:
        images: the folder of its pictures, as seen from the page.
    """
    lines = [
        "# The paper, beside ours",
        "",
        *paragraph(
            "`make paper` writes this page. It sets the numbers of FlexRLHF's paper (arXiv"
            " 2312.11819) beside what our cost model and simulator say to the same cases."
            " *Published* is what a digest of the paper prints; its own body was not at hand."
            " **Everything called simulated is simulated**: a task graph on a virtual clock, the"
            " numbers that `flexrlhf predict` gives for the rows of `benchmarks/published/`."
            " How right these are, row by row, says [planner-accuracy.md](planner-accuracy.md);"
            " which speed-up survives over fair baselines, [what-remains.md](what-remains.md)."
        ),
        *paragraph(
            "The paper states neither batch nor device splits, so its samples/s are sound only as"
            " quotients inside a table; a simulated absolute number is no more than that."
        ),
        *_figure_1(images),
        *_layouts(images),
        *_courses(images),
        *_measured(images),
        *_figure_7(images),
        "## Table I: interleaving, samples/s",
        "",
        *table_1(),
        "## Table II: disaggregation, samples/s",
        "",
        *table_2(),
        "## Table V: interleaving over trlX, actor and critic shared, samples/s",
        "",
        *table_5(),
        *paragraph("Tables III and IV are in no source that we have."),
        "## Before and after",
        "",
        *before_after(),
        *bounds_section(),
        *_orderings(),
        "## What is assumed",
        "",
        *paragraph(
            "What the paper does not state and what stands in its place. The lower rows are the"
            " rules of `flexrlhf predict`, with the number of the paper's rows that needed them."
        ),
        *assumptions(),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _figure_1(images: str) -> Iterator[str]:
    yield "## Figure 1: where the time goes"
    yield ""
    yield f"![Shares of an iteration, published and simulated]({images}/figure1.svg)"
    yield ""
    yield from figure_1_table()
    yield from paragraph(f"The figure names no configuration; simulated is: {figure_1_case()}.")


def _layouts(images: str) -> Iterator[str]:
    yield "## Figure 2: the four placements"
    yield ""
    yield from paragraph(
        "Columns are workers. Dashed bars are shadows; an arrow is the weights that a shadow gets."
        " These are the plans of the requests behind Figures 3 and 4."
    )
    for letter, example in zip("abcd", EXAMPLES.values(), strict=True):
        yield f"![{example.layout}]({images}/figure2{letter}.svg)"
    yield ""


def _courses(images: str) -> Iterator[str]:
    yield "## Figures 3 and 4: one round"
    yield ""
    yield from paragraph(
        "One iteration of the shipped requests, a lane for each worker, simulated."
        " `tests/integration/test_figures.py` holds them to what the paper shows:"
    )
    yield from items(
        "3a to 3b: reference on W1 and reward on W2 score at the same time, and the batch of 6 on"
        " each worker becomes 12 in equal memory.",
        "4a: scoring of micro-batch 1 (F1) starts when its generation (G1) ends, with 3 and 4 still"
        " to be generated. W3 and W4 do one thing at a time here, so F1 goes before G2.",
        "4b: the shadow actor is alone on W6 and W7, and W4 and W5 score one micro-batch while the"
        " next one is generated.",
        "Weights move once per round, after training.",
    )
    for name, example in EXAMPLES.items():
        yield f"`flexrlhf plan examples/{name}.yaml`"
        yield ""
        yield f"![{example.course}]({images}/{name}.svg)"
        yield ""


def _measured(images: str) -> Iterator[str]:
    yield "### The same figures, run"
    yield ""
    yield from paragraph(
        "Here nothing is simulated: tiny models in two, four and seven processes, and the last"
        " iteration that `flexrlhf train examples/workers/figure*.yaml` measured, drawn by"
        " `make figures`. Up to seven processes share two cores, so order and overlap are the"
        " paper's and durations are this machine's. `tests/integration/test_real_figures.py` holds"
        " what the simulated ones are held to: reference and reward at the same time in 3b, twelve"
        " micro-batches in 4a and 4b, each scored when it is there, one bar of weights per round."
    )
    for name, example in EXAMPLES.items():
        title = example.course.replace("simulated", "measured")
        yield f"![{title}]({images}/measured-{name}.svg)"
        yield ""


def _figure_7(images: str) -> Iterator[str]:
    yield "## Figure 7: generation and training"
    yield ""
    yield f"![Generation and training, published and simulated]({images}/figure7.svg)"
    yield ""
    yield from figure_7_table()
    yield from paragraph(
        "Shares are of generation and training alone. The two batches differ, in the paper too."
    )


def _orderings() -> Iterator[str]:
    wrong, right = contradicted()
    yield "## Orderings"
    yield ""
    total = len(wrong) + right
    yield from paragraph(
        f"Of {total} pairs of one model in Tables I, II and V that differ by 3 % or more, the"
        f" simulation orders {right} as published." + ("" if wrong else " None is contradicted.")
    )
    if wrong:
        yield from items(*wrong)
