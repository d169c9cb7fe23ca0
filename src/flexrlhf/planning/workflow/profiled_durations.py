"""How long the tasks of a run in one process take, by the constants of a profile."""

from __future__ import annotations

from collections.abc import Mapping

from flexrlhf.core.names import Role, kind_of
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.layout import Layout, packs
from flexrlhf.planning.costs.profiled.batches import Bin
from flexrlhf.planning.costs.profiled.constants import ProfiledCosts
from flexrlhf.planning.costs.profiled.memory import generation_bytes, score_bytes, train_bytes
from flexrlhf.planning.costs.profiled.seconds import ModelSeconds
from flexrlhf.planning.costs.profiled.work import RunWork
from flexrlhf.planning.costs.speculation import draft_bytes
from flexrlhf.planning.workflow.binding import TaskTime, TransferTime
from flexrlhf.planning.workflow.graph import Task, Transfer
from flexrlhf.planning.workflow.shape import IterationShape


class ProfiledDurations:
    """Times of the only plan that one device has.

    Args:
        models: of the roles; one without is a function that costs nothing here.
        work: what an iteration has to get through.
        shape: into which pieces it is cut.
        costs: of the machine.
    """

    def __init__(
        self,
        models: Mapping[Role, HeldModel],
        work: RunWork,
        shape: IterationShape,
        costs: ProfiledCosts,
    ) -> None:
        self._models = models
        self._work = work
        self._shape = shape
        self._costs = costs
        self._times: dict[tuple[str, Role | None, int | None, int | None], TaskTime] = {}
        self.links: Mapping[str, float] = {}

    @property
    def resting_bytes(self) -> float:
        """What the process holds throughout: libraries, weights, optimisers, kept prefixes."""
        held = sum(
            m.weight_bytes + m.optimizer_bytes + m.kept_prefix_bytes for m in self._models.values()
        )
        held += draft_bytes(self._work.speculation)
        return self._costs.memory.process_bytes + held

    def task_time(self, task: Task) -> TaskTime:
        """Returns how long `task` takes; every iteration is alike."""
        key = (task.operation, task.role, task.micro_batch, task.mini_batch)
        if key not in self._times:
            seconds, added = self._needs(task)
            peak = round(self.resting_bytes + added)
            self._times[key] = TaskTime(self._costs.task_s + seconds, peak_bytes=peak)
        return self._times[key]

    def transfer_time(self, transfer: Transfer) -> TransferTime:
        """Returns nothing, since one process hands nothing over."""
        del transfer
        return TransferTime(0.0)

    def _needs(self, task: Task) -> tuple[float, float]:
        """Returns the seconds of a task, and the bytes that it holds besides, at most."""
        if task.operation == "advantage":
            return len(self._work.sequences) * self._costs.barrier_s, 0.0
        model = self._models.get(task.role) if task.role else None
        if model is None:
            return 0.0, 0.0
        seconds = ModelSeconds(
            model,
            self._costs,
            packs=packs(model, Layout()),
            reads_ends=task.role is not None and kind_of(task.role) == "reward",
        )
        if task.operation == "generate":
            return self._generation(seconds, task)
        if task.operation == "forward_backward":
            return self._training(seconds, task)
        if task.operation == "optimizer_step":
            return seconds.update(), model.gradient_bytes
        return self._scoring(seconds, task)

    def _generation(self, seconds: ModelSeconds, task: Task) -> tuple[float, float]:
        work = self._work
        answers = work.part(task.micro_batch or 0, self._shape.rollout_micro_batches)
        at_once = min(work.max_sequences or len(answers), len(answers))
        longest_prompt = max(answer.prompt for answer in answers)
        held = generation_bytes(seconds.model, at_once, longest_prompt, work.most_new_tokens)
        ended = seconds.generate(
            answers, work.samples_per_prompt, at_once=at_once, speculation=work.speculation
        )
        return work.generated * ended.last_s, held

    def _scoring(self, seconds: ModelSeconds, task: Task) -> tuple[float, float]:
        bins = self._scored(task)
        added = (score_bytes(seconds.model, b, read=seconds.read(b)) for b in bins)
        held = max(added, default=0.0)
        repeated = self._work.generated if task.operation == "rewards" else 1.0
        return repeated * seconds.score(bins, self._work.rows_per_item), held

    def _scored(self, task: Task) -> list[Bin]:
        """The passes of a part of a rollout, or the one before a training pass, if there is one."""
        number = task.micro_batch or 0
        if task.operation != "forward":
            return self._work.scored(number, self._shape.rollout_micro_batches)
        bins = self._work.trained(task.mini_batch or 0, self._shape.mini_batches)
        return bins[number : number + 1]

    def _training(self, seconds: ModelSeconds, task: Task) -> tuple[float, float]:
        bins = self._work.trained(task.mini_batch or 0, self._shape.mini_batches)
        number = task.micro_batch or 0
        if number >= len(bins):  # the graph has as many as there can be
            return 0.0, 0.0
        part = bins[number]
        held = train_bytes(
            seconds.model,
            part,
            self._costs.memory,
            is_first=number == 0,
            read=seconds.read(part),
        )
        return seconds.train(part, self._work.rows_per_item), held
