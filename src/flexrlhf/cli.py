"""Sub-commands: parse, call `app`, print."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flexrlhf.core.errors import ConfigError, EngineMissing, FlexError, PlanError

if TYPE_CHECKING:
    from flexrlhf.runtime.prompt_file import PromptContent

cli = typer.Typer(
    name="flexrlhf",
    help="RLHF training that decides by itself where each model of the loop runs.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="The run's config.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Override a key; may be given several times."),
]
StrategyOption = Annotated[
    str | None, typer.Option(help="The same as --set placement.strategy=NAME.")
]


def main() -> None:
    """Runs the command line; exit status 2 is the user's input, 1 a run that failed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # answers may hold what a terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        cli(standalone_mode=True)
    except (ConfigError, PlanError, EngineMissing) as error:
        sys.exit(_complain(error, 2))
    except FlexError as error:
        sys.exit(_complain(error, 1))


def _complain(error: FlexError, status: int) -> int:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
    return status


def _overrides(assignments: list[str] | None, strategy: str | None) -> list[str]:
    chosen = [] if strategy is None else [f"placement.strategy={strategy}"]
    return [*(assignments or []), *chosen]


@cli.command()
def train(
    config: ConfigArgument,
    assignments: SetOption = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Run folder [default: runs/ALGORITHM-TIME].")
    ] = None,
    *,
    resume: Annotated[bool, typer.Option("--resume", help="Go on in a run folder.")] = False,
    strategy: StrategyOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print it, start nothing.")
    ] = False,
) -> None:
    """Run a training config, one stage or several."""
    from flexrlhf import app

    request = app.load(config, _overrides(assignments, strategy))
    if dry_run:
        typer.echo(app.dry_run(request))
        return
    result = app.train_with_progress(request, run_dir=run_dir, resume=resume)
    typer.echo(app.summary(result.run_dir))
    typer.echo(f"report: {result.run_dir / 'report.html'}")


@cli.command()
def plan(
    config: ConfigArgument,
    assignments: SetOption = None,
    strategy: StrategyOption = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page that opens offline.")
    ] = None,
) -> None:
    """Say where each role would run, how fast that would be, and why not otherwise."""
    from flexrlhf import app
    from flexrlhf.report.plan_text import plan_text

    loaded = app.load(config, _overrides(assignments, strategy))
    document = app.plan_document(loaded, page=html)
    typer.echo(json.dumps(document, indent=2) if as_json else plan_text(document))
    if html is not None:
        typer.echo(f"page: {html}", err=True)


@cli.command()
def predict(
    cases: Annotated[Path, typer.Argument(metavar="CASES.csv", help="One configuration a row.")],
    out: Annotated[Path, typer.Option(metavar="PREDICTIONS.csv", help="Where answers go.")],
) -> None:
    """Say what published configurations would take by our costs."""
    from flexrlhf import app

    typer.echo(app.predict(cases, out))


@cli.command()
def profile(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where it goes.")] = Path(
        "profile.yaml"
    ),
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="auto|HOST:PORT",
            help="Measure the machines of this Ray cluster too, and what joins them.",
        ),
    ] = None,
    *,
    workers: Annotated[
        bool,
        typer.Option(
            "--workers/--no-workers",
            help="Measure what several processes cost on its CPU; runs in one process need none"
            " of it.",
        ),
    ] = True,
) -> None:
    """Measure this machine in a few minutes, so that plans reckon with it."""
    from flexrlhf import app

    def say(words: str) -> None:
        typer.echo(f"measuring {words}", err=True)

    typer.echo(app.profile(out, say, ray=ray, with_workers=workers))


@cli.command()
def report(
    run_dir: Annotated[Path, typer.Argument(help="A run folder.")],
    *,
    open_page: Annotated[bool, typer.Option("--open", help="Show it in a browser.")] = False,
) -> None:
    """Write report.html of a run and print a short table."""
    from flexrlhf import app

    page = app.report(run_dir)
    typer.echo(app.summary(run_dir))
    typer.echo(f"report: {page}")
    if open_page:
        typer.launch(str(page))


@cli.command()
def generate(
    source: Annotated[Path, typer.Argument(metavar="RUN_DIR|MODEL_DIR")],
    prompt: Annotated[str | None, typer.Option(help="One prompt.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="A file of prompts.")] = None,
    *,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer, in tokens; 128 if there is room.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
) -> None:
    """Let a trained policy answer prompts."""
    from flexrlhf import app

    answers = app.generate(
        source,
        prompts=_prompts(prompt, prompts),
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
    )
    for asked, answer in answers:
        if prompt is None:
            typer.echo(f"> {asked}")
        typer.echo(answer)


def _prompts(prompt: str | None, file: Path | None) -> Sequence[PromptContent]:
    from flexrlhf import app

    if prompt is not None and file is None:
        if not _is_text(prompt):
            raise ConfigError(
                f"--prompt {prompt!a} is not text.", "A prompt is UTF-8.", "Correct its encoding."
            )
        return [prompt]
    if file is not None and prompt is None:
        return app.read_prompts(file)
    raise ConfigError(
        "generate needs prompts.", "Either --prompt or --prompts.", "Give one of the two."
    )


def _is_text(argument: str) -> bool:
    """Says whether an argument was UTF-8; Python keeps other bytes as halves of characters."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


@cli.command()
def doctor() -> None:
    """Say what this machine can run, and what is wrong with it."""
    from flexrlhf import app

    text, is_healthy = app.doctor()
    typer.echo(text)
    if not is_healthy:
        raise typer.Exit(1)


if __name__ == "__main__":
    main()
