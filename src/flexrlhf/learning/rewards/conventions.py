"""The three ways in which frameworks call a reward function, told apart by parameter names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from flexrlhf.core.errors import ConfigError, DataError
from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.rewards.protocol import missing_column, place, reference_answer
from flexrlhf.learning.rewards.user_function import OPENRLHF, TRL, VERL, UserFunction


@dataclass(frozen=True, slots=True)
class Convention:
    """A way of calling a reward function."""

    call: Callable[[UserFunction, Sequence[Sample]], list[float]]
    offers: Sequence[str]
    """Names of the arguments."""
    passes_columns: bool
    """Whether columns of the rows are arguments too."""

    def check(self, function: UserFunction, prompts: Sequence[Prompt]) -> None:
        """Looks whether the function can be called for answers to these prompts.

        A column that only some rows have is None for the others.

        Raises:
            DataError: a column is missing.
        """
        columns = {name for prompt in prompts for name in prompt.columns}
        available = {*self.offers, *columns} if self.passes_columns else self.offers
        for prompt in prompts[:1]:
            function.require(available, prompt)
        if not self.passes_columns:
            for prompt in prompts:
                _ground_truth(function, prompt)


def convention_of(function: UserFunction) -> Convention:
    """Returns how `function` is to be called.

    Raises:
        ConfigError: its parameters are those of no framework.
    """
    conventions = {
        "completions": Convention(call_as_trl, TRL, passes_columns=True),
        "queries": Convention(call_as_openrlhf, OPENRLHF, passes_columns=True),
        "solution_str": Convention(call_as_verl, VERL, passes_columns=False),
    }
    for parameter, convention in conventions.items():
        if parameter in function.parameters:
            return convention
    raise ConfigError(
        f"The reward function {function.name!r} has parameters"
        f" ({', '.join(function.parameters)}), which fit no framework.",
        "Known: f(prompts, completions, **columns) as in TRL, f(queries, prompts, labels) as in"
        " OpenRLHF, f(data_source, solution_str, ground_truth, extra_info) as in verl.",
        "Rename its parameters.",
    )


def call_as_trl(function: UserFunction, samples: Sequence[Sample]) -> list[float]:
    """Calls f(prompts, completions, completion_ids, **columns) -> list of numbers or None.

    Conversational prompts and completions are lists of messages. None becomes nan: the function
    does not apply.

    Source: TRL, `GRPOTrainer._calculate_rewards`.
    """
    returned = function.call(
        samples,
        {
            **_columns(samples),
            "prompts": [_trl_prompt(sample) for sample in samples],
            "completions": [_trl_completion(sample) for sample in samples],
            "completion_ids": [
                sample.tokens[sample.num_prompt_tokens :].tolist() for sample in samples
            ],
        },
    )
    scores = _one_per_sample(function, returned, samples)
    return [
        math.nan if score is None else _number(function, score, sample)
        for score, sample in zip(scores, samples, strict=True)
    ]


def call_as_openrlhf(function: UserFunction, samples: Sequence[Sample]) -> list[float]:
    """Calls f(queries, prompts, labels) -> {"rewards": ..., "scores": ..., "extra_logs": ...}.

    A query is prompt and answer together; a label is the row's reference answer, or "". Only
    "rewards" counts; a function may also return them alone.

    Source: OpenRLHF, `--reward.remote_url FILE.py`.
    """
    prompts = [sample.prompt.text for sample in samples]
    answers = [reference_answer(sample.prompt.columns) for sample in samples]
    returned = function.call(
        samples,
        {
            **_columns(samples),
            "prompts": prompts,
            "queries": [
                prompt + sample.text for prompt, sample in zip(prompts, samples, strict=True)
            ],
            "labels": ["" if answer is None else answer for answer in answers],
        },
    )
    rewards = _entry(function, returned, "rewards", samples)
    scores = _one_per_sample(function, rewards, samples)
    return [_number(function, *pair) for pair in zip(scores, samples, strict=True)]


def call_as_verl(function: UserFunction, samples: Sequence[Sample]) -> list[float]:
    """Calls f(data_source, solution_str, ground_truth, extra_info) -> number or {"score": ...}.

    Source: verl, `NaiveRewardManager`.
    """
    return [_score_as_verl(function, sample) for sample in samples]


def _score_as_verl(function: UserFunction, sample: Sample) -> float:
    columns = sample.prompt.columns
    returned = function.call(
        [sample],
        {
            "data_source": columns.get("data_source", ""),
            "solution_str": sample.text,
            "ground_truth": _ground_truth(function, sample.prompt),
            "extra_info": columns.get("extra_info"),
        },
    )
    return _number(function, _entry(function, returned, "score", [sample]), sample)


def _ground_truth(function: UserFunction, prompt: Prompt) -> Any:
    answer = reference_answer(prompt.columns)
    if answer is None:
        raise missing_column(f"The reward function {function.name!r}", "'ground_truth'", prompt)
    return answer


def _columns(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """Returns every column of the rows, None where a row lacks it."""
    names = dict.fromkeys(name for sample in samples for name in sample.prompt.columns)
    return {name: [sample.prompt.columns.get(name) for sample in samples] for name in names}


def _trl_prompt(sample: Sample) -> Any:
    return sample.prompt.text if sample.prompt.messages is None else sample.prompt.messages


def _trl_completion(sample: Sample) -> Any:
    if sample.prompt.messages is None:
        return sample.text
    return [{"role": "assistant", "content": sample.text}]


def _entry(function: UserFunction, returned: Any, key: str, samples: Sequence[Sample]) -> Any:
    """Returns what a dict holds under `key`; anything but a dict as it is."""
    if not isinstance(returned, Mapping):
        return returned
    if key not in returned:
        raise DataError(
            f"The reward function {function.name!r} returned a dict without {key!r}"
            f" for {place(samples[0])}.",
            f"It has {', '.join(map(str, returned)) or 'no keys'}.",
            f"Return the reward under {key!r}.",
        )
    return returned[key]


def _one_per_sample(
    function: UserFunction, returned: Any, samples: Sequence[Sample]
) -> Sequence[Any]:
    if isinstance(returned, Tensor | np.ndarray):
        returned = returned.reshape(-1).tolist()
    if not isinstance(returned, list | tuple):
        raise DataError(
            f"The reward function {function.name!r} returned a {type(returned).__name__}:"
            f" {str(returned)[:80]}.",
            f"It must return a list with one number for each of the {len(samples)} answers.",
            f"Repair {function.name!r}.",
        )
    if len(returned) != len(samples):
        raise DataError(
            f"The reward function {function.name!r} returned {len(returned)} rewards"
            f" for {len(samples)} answers.",
            "It must return one for each answer, in their order.",
            f"Repair {function.name!r}.",
        )
    return returned


def _number(function: UserFunction, value: Any, sample: Sample) -> float:
    """Returns a score as a float."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        value = value.tolist()
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # a whole number of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise DataError(
            f"The reward function {function.name!r} returned {str(value)[:80]!r}"
            f" for {place(sample)}.",
            "A reward is a finite number.",
            f"Repair {function.name!r}; in TRL's form None says that it does not apply.",
        )
    return number
