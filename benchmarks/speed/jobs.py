"""Jobs that are timed: one file each, which all programs that compete read alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from flexrlhf.config.section import (
    Count,
    DecayRate,
    NonNegative,
    Options,
    Positive,
    Section,
    Seed,
    Text,
)
from flexrlhf.config.yaml_text import read_yaml
from flexrlhf.core.errors import ConfigError, nearest

JOBS: Final = Path(__file__).parents[1] / "jobs"
RewardName = Literal["variety", "low_words"]
"""A function of programs/rewards.py."""


class BenchedModel(Section):
    """Weights that all programs start from."""

    architecture: Options | None = None
    """A Hugging Face config whose weights are drawn from `seed`."""
    seed: Seed = 0
    package: Text | None = None
    """A package of the registry with a GGUF file, and the name of that."""
    file: Text | None = None

    @model_validator(mode="after")
    def _check_source(self) -> BenchedModel:
        given = [self.architecture is not None, self.package is not None, self.file is not None]
        if given not in ([True, False, False], [False, True, True]):
            raise ValueError("a model is an architecture, or a package and its file")
        return self


class Peer(Section):
    """A program to be compared with."""

    program: Literal["trl", "transformers", "vllm", "limit"]
    """`limit` is what the machine allows, measured beside the programs."""
    version: Text | None = None
    goal: Positive
    """How many times as good we want to be."""

    @model_validator(mode="after")
    def _check_version(self) -> Peer:
        if (self.version is None) != (self.program == "limit"):
            raise ValueError("a program has a version, and the limit has none")
        return self

    @property
    def name(self) -> str:
        """What the tables call it."""
        return "limit" if self.version is None else f"{self.program} {self.version}"


class Turn(Section):
    """What is timed at one time."""

    iterations: Count
    deadline_s: Positive
    """After which a program that has not ended its turn is given up."""


class Optimiser(Section):
    """AdamW, with a constant rate."""

    name: Literal["adamw"]
    learning_rate: Positive
    betas: tuple[DecayRate, DecayRate]
    epsilon: Positive
    weight_decay: NonNegative
    max_grad_norm: Positive


class Kl(Section):
    """What the distance to the reference costs; 0 leaves the reference out."""

    coefficient: NonNegative


class Learning(Section):
    """What happens to the samples of an iteration."""

    epochs: Count
    mini_batches: Count
    """Optimiser steps of an epoch."""
    kl: Kl
    optimiser: Optimiser

    @property
    def steps(self) -> int:
        """Optimiser steps of an iteration, of each model that is trained."""
        return self.epochs * self.mini_batches


class LearningCurve(Section):
    """The same job with a reward that can be learnt, to see that programs learn it alike."""

    reward: RewardName
    learning_rate: Positive
    """At which it is learnt in so many iterations."""
    iterations: Count
    seeds: Annotated[Count, Field(ge=2)]
    """Runs of each program; they differ in order and sampling only."""
    resolution: Positive
    """Difference of mean rewards that must be seen if it is there, else nothing is known."""


class _Job(Section):
    what: Text
    """In words, for the page."""
    model: BenchedModel
    dtype: Literal["float32", "bfloat16"]
    turn: Turn
    peers: Annotated[tuple[Peer, ...], Field(min_length=1)]


class _Answering(_Job):
    prompts: Count
    prompt_tokens: Count
    samples_per_prompt: Count
    new_tokens: Count
    temperature: Positive

    @property
    def samples(self) -> int:
        """Answers of an iteration."""
        return self.prompts * self.samples_per_prompt

    @property
    def tokens(self) -> int:
        """New tokens of an iteration."""
        return self.samples * self.new_tokens


class Generating(_Answering):
    """Answers alone."""

    does: Literal["generate"]

    @property
    def steps(self) -> int:
        """Optimiser steps of an iteration."""
        return 0


class Reinforcing(_Answering):
    """Answers, their scores, and optimiser steps."""

    does: Literal["grpo", "ppo"]
    training: Learning
    reward: RewardName = "variety"
    """What grpo rewards."""
    curve: LearningCurve | None = None

    @property
    def steps(self) -> int:
        """Optimiser steps of an iteration, of each model that is trained."""
        return self.training.steps

    @model_validator(mode="after")
    def _check_curve(self) -> Reinforcing:
        if self.curve is not None and self.does != "grpo":
            raise ValueError("only grpo has a curve: ppo is given a reward model here")
        return self

    def learning(self, *, slowed: float = 1.0) -> Reinforcing:
        """Returns the job of the curve, in which a turn is all of it.

        Args:
            slowed: divides the learning rate.
        """
        assert self.curve is not None, "only a job with a curve is asked for it"
        rate = self.curve.learning_rate / slowed
        optimiser = self.training.optimiser.model_copy(update={"learning_rate": rate})
        return self.model_copy(
            update={
                "reward": self.curve.reward,
                "training": self.training.model_copy(update={"optimiser": optimiser}),
                "turn": self.turn.model_copy(update={"iterations": self.curve.iterations}),
            }
        )


class Preferring(_Job):
    """Optimiser steps on pairs of a better and a worse answer."""

    does: Literal["dpo"]
    pairs: Count
    side_tokens: Count
    """Of prompt and answer, in each of the two."""
    prompt_tokens: Count
    training: Learning

    @property
    def steps(self) -> int:
        """Optimiser steps of an iteration."""
        return self.training.steps

    @property
    def tokens(self) -> int:
        """Tokens of an iteration, of both sides."""
        return 2 * self.pairs * self.side_tokens


Job = Generating | Reinforcing | Preferring
_ADAPTER: Final[TypeAdapter[Job]] = TypeAdapter(Annotated[Job, Field(discriminator="does")])


def job_names() -> list[str]:
    """Returns the names of the jobs that there are."""
    return sorted(path.stem for path in JOBS.glob("*.yaml"))


def read_job(name: str) -> Job:
    """Returns the job of a name.

    Raises:
        ConfigError: there is none, or its file is wrong.
    """
    path = JOBS / f"{name}.yaml"
    if not path.is_file():
        known = job_names()
        raise ConfigError(
            f"There is no job {name!r}.",
            f"Jobs are {', '.join(known)}.",
            nearest(name, known).strip() or "Give one of these to --jobs.",
        )
    return parse_job(read_yaml(path, "job"), str(path))


def parse_job(document: Any, source: str) -> Job:
    """Returns the job that a document describes.

    Raises:
        ConfigError: lists everything that is wrong.
    """
    try:
        return _ADAPTER.validate_python(document)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        lines = [f"{_key(details['loc'])}: {details['msg']}" for details in found]
        raise ConfigError(
            f"{source}: {'1 problem' if len(lines) == 1 else f'{len(lines)} problems'}.",
            "\n  ".join(f"- {line}" for line in lines),
            "The keys of a job are described in benchmarks/speed/jobs.py.",
        ) from None


def _key(location: Sequence[str | int]) -> str:
    """Returns a dotted key, without the alternative that was tried."""
    kinds = ("generate", "grpo", "ppo", "dpo")
    return ".".join(str(part) for part in location if part not in kinds) or "job"
