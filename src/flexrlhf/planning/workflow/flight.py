"""How far the graph of one iteration has come."""

from __future__ import annotations

from flexrlhf.planning.workflow.graph import Graph, Task, Transfer


class Flight:
    """One iteration in flight: what is done and what waits for how much.

    Args:
        graph: of the iteration.
        done: tasks that are done already; so is what moves results to such tasks alone.

    Raises:
        ValueError: one of them is no task of the graph, or waits for a task that is not done.
    """

    def __init__(self, graph: Graph, done: frozenset[str] = frozenset()) -> None:
        items = (*graph.tasks, *graph.transfers)
        self._items: dict[str, Task | Transfer] = {item.name: item for item in items}
        self._positions = {name: position for position, name in enumerate(self._items)}
        self._waits_for = graph.waits_for()
        self._num_awaited = {name: len(awaited) for name, awaited in self._waits_for.items()}
        self._barriers = [task.name for task in graph.tasks if task.is_barrier]
        self._followers: dict[str, list[str]] = {name: [] for name in self._items}
        for name, awaited in self._waits_for.items():
            for earlier in awaited:
                self._followers[earlier].append(name)
        self._done: set[str] = set()
        if done:
            self._begin_with(graph, done)

    @property
    def is_done(self) -> bool:
        """Whether every task and transfer is done."""
        return len(self._done) == len(self._items)

    def has_passed_barrier(self, begun: set[str]) -> bool:
        """Whether a barrier is done or among what was begun."""
        return any(name in self._done or name in begun for name in self._barriers)

    def position(self, name: str) -> int:
        """Returns the place of a task in its graph."""
        return self._positions[name]

    def unblocked(self) -> list[Task | Transfer]:
        """Returns what waits for nothing from the beginning."""
        return [
            item
            for name, item in self._items.items()
            if self._num_awaited[name] == 0 and name not in self._done
        ]

    def finish(self, name: str) -> list[Task | Transfer]:
        """Marks `name` as done and returns what thereby waits for nothing any more."""
        self._done.add(name)
        num_awaited = self._num_awaited
        freed: list[Task | Transfer] = []
        for follower in self._followers[name]:
            num_awaited[follower] -= 1
            if num_awaited[follower] == 0 and follower not in self._done:
                freed.append(self._items[follower])
        return freed

    def _begin_with(self, graph: Graph, done: frozenset[str]) -> None:
        """Marks tasks as done; a transfer goes again where one of its targets is yet to come."""
        moves = {transfer.name: transfer for transfer in graph.transfers}
        tasks = {task.name for task in graph.tasks}
        for name in done:
            if name not in tasks:
                raise ValueError(f"{name!r} cannot be done: it is no task of this graph.")
            for earlier in self._waits_for[name]:
                sources = moves[earlier].sources if earlier in moves else (earlier,)
                if not done.issuperset(sources):
                    raise ValueError(f"{name!r} cannot be done before {earlier!r}.")
        moved = {name for name, transfer in moves.items() if done.issuperset(transfer.targets)}
        self._done = moved.union(done)
        for name in tuple(self._done):
            self.finish(name)

    def validate(self, begun: set[str], queued: set[str]) -> None:
        """Checks that every item is in exactly one state, and none is ahead of what it waits for.

        Raises:
            AssertionError: the scheduler is wrong.
        """
        assert not begun & queued
        assert not (begun | queued) & self._done
        for name, awaited in self._waits_for.items():
            still = [earlier for earlier in awaited if earlier not in self._done]
            assert self._num_awaited[name] == len(still)
            if name in self._done:  # what was done before may be moved again, for others
                assert all(isinstance(self._items[earlier], Transfer) for earlier in still)
            else:
                is_free = name in begun or name in queued
                assert is_free == (not still), f"{name} waits for {still}"
