"""A reward function that the user wrote: where it is, and what happens when it is called."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from flexrlhf.core.errors import ConfigError, DataError, nearest
from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.rewards.protocol import missing_column, place

TRL: Final = ("prompts", "completions", "completion_ids")
OPENRLHF: Final = ("prompts", "queries", "labels")
VERL: Final = ("data_source", "solution_str", "ground_truth", "extra_info")
"""What each framework calls a function with, besides the columns of the rows."""
_OFFERED: Final = {*TRL, *OPENRLHF, *VERL}


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A function of the user's, with what is known about its parameters."""

    name: str
    function: Callable[..., Any]
    parameters: Mapping[str, inspect.Parameter]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of every call, from the config."""

    @property
    def takes_everything(self) -> bool:
        """Whether it has a parameter like `**columns`."""
        kinds = [parameter.kind for parameter in self.parameters.values()]
        return inspect.Parameter.VAR_KEYWORD in kinds

    def require(self, available: Iterable[str], prompt: Prompt) -> None:
        """Checks that every parameter without a default gets an argument.

        Args:
            available: names of arguments besides the options.
            prompt: whose row is named as one that lacks what is missing.

        Raises:
            DataError: one gets none.
        """
        offered = {*available, *self.options}
        for name, parameter in self.parameters.items():
            if name not in offered and _is_required(parameter):
                raise missing_column(f"The reward function {self.name!r}", repr(name), prompt)

    def call(self, samples: Sequence[Sample], available: Mapping[str, Any]) -> Any:
        """Calls the function with those of the available arguments that it takes.

        Raises:
            DataError: it needs an argument that there is not, or raised an error itself.
        """
        self.require(available, samples[0].prompt)
        offered = {**available, **self.options}
        if not self.takes_everything:
            offered = {name: offered[name] for name in self.parameters if name in offered}
        try:
            return self.function(**offered)
        except (Exception, SystemExit) as error:  # `exit()` ends the worker, not the run's trouble
            raise DataError(
                f"The reward function {self.name!r} raised {type(error).__name__}: {error}"
                f" ({_raised_at(error)}) for {_places(samples)}.",
                "It must return one finite number per answer, whatever the answer is.",
                f"Repair {self.name!r}; an answer may be empty, cut off or nonsense.",
            ) from error


def find_function(path: str, options: Mapping[str, Any] | None = None) -> UserFunction:
    """Returns the function at `path/to/file.py:function` or `package.module:function`.

    Raises:
        ConfigError: there is no such file, module or function, or it cannot be called.
    """
    source, _, name = path.rpartition(":")
    if not source or not name:
        raise ConfigError(
            f"The reward function {path!r} names no function.",
            "A path is FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION.",
            "Add a colon and the function's name.",
        )
    module = _import_source(source)
    function = getattr(module, name, None)
    if not callable(function):
        known = _functions_of(module)
        raise ConfigError(
            f"{source} has no function {name!r}.",
            f"It has {', '.join(known) or 'none'}.",
            nearest(name, known) or "Correct the name behind the colon.",
        )
    if inspect.iscoroutinefunction(function):
        raise ConfigError(
            f"The reward function {path!r} is asynchronous.",
            "Reward functions are called one after another.",
            "Remove `async`, or call asyncio.run inside it.",
        )
    found = UserFunction(name, function, _parameters_of(function, path), dict(options or {}))
    _check_options(found)
    return found


def _check_options(function: UserFunction) -> None:
    """Refuses options that would reach no parameter, or hide what the function is called with."""
    wrong = [
        name
        for name in function.options
        if name in _OFFERED or (name not in function.parameters and not function.takes_everything)
    ]
    if wrong:
        known = [name for name in function.parameters if name not in _OFFERED]
        raise ConfigError(
            f"The reward function {function.name!r} takes no option {wrong[0]!r}.",
            f"Options are its other parameters: {', '.join(known) or 'none'}.",
            nearest(wrong[0], known) or "Remove the option, or give the function the parameter.",
        )


def _import_source(source: str) -> ModuleType:
    is_file = source.endswith(".py")
    if is_file and not Path(source).is_file():
        raise ConfigError(
            f"There is no file {source} with reward functions"
            f" (looked for {Path(source).absolute()}).",
            "A path is FILE.py:FUNCTION, relative to where the command runs.",
            "Correct the path.",
        )
    try:
        return _run_file(Path(source)) if is_file else importlib.import_module(source)
    except (Exception, SystemExit) as error:  # a script that ends itself would end the run unsaid
        raise ConfigError(
            f"{source} with reward functions cannot be imported: {type(error).__name__}: {error}.",
            "It must be importable from where the command runs.",
            "Repair it, install what it imports, or put its folder on PYTHONPATH.",
        ) from error


def _run_file(path: Path) -> ModuleType:
    # A name with a colon hides no module that could be imported.
    spec = importlib.util.spec_from_file_location(f"reward:{path.resolve()}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def _functions_of(module: ModuleType) -> list[str]:
    """Returns the public functions that the module itself defines."""
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]


def _parameters_of(function: Callable[..., Any], path: str) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except ValueError as error:
        raise ConfigError(
            f"The reward function {path!r} does not tell its parameters.",
            "They are recognised by their names.",
            "Wrap it in a Python function.",
        ) from error


def _is_required(parameter: inspect.Parameter) -> bool:
    is_variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not is_variable


def _raised_at(error: Exception | SystemExit) -> str:
    """Returns the last line in the function's own file that the error passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = frames[1 if frames[1:] else 0].filename  # frame 0 is the call from here
    frame = next(frame for frame in reversed(frames) if frame.filename == own)
    return f"{Path(frame.filename).name}, line {frame.lineno}"


def _places(samples: Sequence[Sample]) -> str:
    first = place(samples[0])
    return first if len(samples) == 1 else f"{len(samples)} answers from {first} on"
