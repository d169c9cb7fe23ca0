"""RunConfig: all sections of a run, and of the stages that it may consist of."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flexrlhf.config.algorithm import Algorithm
from flexrlhf.config.cluster import ClusterSection
from flexrlhf.config.data import Data
from flexrlhf.config.model import Models
from flexrlhf.config.placement import Placement
from flexrlhf.config.reward import Rewards
from flexrlhf.config.rollout import Rollout
from flexrlhf.config.run import Run
from flexrlhf.config.section import Auto, Section, Text
from flexrlhf.config.training import Training
from flexrlhf.config.weights import Weights

STAGE_NAME = r"^[a-z][a-z0-9_]*$"


class Sections(Section):
    """What a plain run and one stage of a longer run have in common."""

    algorithm: Algorithm = Algorithm()
    """What is learnt from the answers."""
    model: Models = Models()
    """Where each role's weights come from."""
    data: Data = Data()
    """Which rows are read."""
    reward: Rewards = Rewards()
    """What a good answer is."""
    rollout: Rollout = Rollout()
    """How answers are generated."""
    training: Training = Training()
    """Batches, optimiser and precision."""
    weights: Weights = Weights()
    """How new weights reach the engine."""
    cluster: Auto | Text | ClusterSection = "auto"
    """The machines: auto is this one, a path names a YAML file of the section's keys."""
    placement: Auto | Placement = "auto"
    """Which devices hold which role."""
    run: Run = Run()
    """Seed, checkpoints, and what is written."""


class Stage(Sections):
    """One stage of a run; a key that it does not give has the value of the top level."""

    name: Annotated[str, Field(pattern=STAGE_NAME)]
    """A lower-case word, its own in the run; later stages say `stage:NAME/ROLE`."""


class RunConfig(Sections):
    """A whole run: one set of sections, or several stages one after the other."""

    stages: tuple[Stage, ...] = ()
    """Stages in their order, each with all its sections; empty in a plain run."""

    def stage_configs(self) -> list[tuple[str, RunConfig]]:
        """Returns name and config of each stage; a plain run is one, named as its algorithm."""
        if not self.stages:
            return [(self.algorithm.name, self)]
        return [
            (stage.name, RunConfig(**{key: getattr(stage, key) for key in Sections.model_fields}))
            for stage in self.stages
        ]
