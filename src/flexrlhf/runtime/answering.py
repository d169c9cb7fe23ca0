"""Answers of a trained policy to prompts, outside of any run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from flexrlhf.config.loading import load_saved_config
from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.data.experience import Prompt
from flexrlhf.learning.data.prompts import load_prompts
from flexrlhf.learning.models.loading import load_policy, load_tokenizer
from flexrlhf.learning.models.sizes import max_positions
from flexrlhf.learning.models.soundness import check_soundness
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.learning.rollout.engines import build_engine
from flexrlhf.learning.rollout.protocol import Sampling
from flexrlhf.runtime.generation import Generator, end_tokens
from flexrlhf.runtime.prompt_file import PromptContent

DEFAULT_NEW_TOKENS: Final = 128
UNLIMITED: Final = 1 << 20
"""Tokens that a model without a limit may read here."""


def policy_folder(source: Path) -> Path:
    """Returns the model folder of a run's last trained actor, or `source` if it is a model.

    Raises:
        ConfigError: there is neither.
    """
    if source.suffix == ".gguf" or (source / "config.json").is_file():
        return source
    found = [*source.glob("model/actor"), *source.glob("stages/*/model/actor")]
    if found:
        return max(found, key=lambda folder: folder.stat().st_mtime)
    raise ConfigError(
        f"{source} holds no model: it has neither config.json nor model/actor.",
        "A run folder has model/actor once its run, or one of its stages, is finished.",
        "Give a model folder, a GGUF file, or the folder of a finished run.",
    )


def _trained_form(folder: Path) -> dict[str, Any] | None:
    """Returns how the run that wrote a model folder made its prompts; None without a run."""
    config_file = folder.parent.parent / "config.yaml"
    if folder.parent.name != "model" or not config_file.is_file():
        return None
    data = load_saved_config(config_file).data
    rows = data.prompts or data.supervised
    return None if rows is None else {"chat": rows.chat, "system_prompt": rows.system_prompt}


def answers(
    source: Path,
    prompts: Sequence[PromptContent],
    *,
    max_new_tokens: int | None,
    temperature: float,
    seed: int,
) -> list[tuple[str, str]]:
    """Returns each prompt with the policy's answer.

    A run's policy gets its prompts in the form that it was trained with; for any other model they
    go through its chat template where it has one.

    Args:
        source: a run folder, a model folder, or a GGUF file.
        prompts: texts or conversations.
        max_new_tokens: the longest answer; None is 128, or what the model has room for.
        temperature: 0 takes the most likely token.
        seed: of the sampling.

    Raises:
        ConfigError: there is no such model, it cannot compute, a prompt is not one or is too long
            for it, or the temperature is out of range.
    """
    _check_temperature(temperature)
    folder = policy_folder(source)
    model_source = ModelSource(path=str(folder))
    tokenizer = load_tokenizer(model_source)
    model = load_policy(model_source)
    check_soundness(str(folder), model)
    nn.Module.to(model, "cuda" if torch.cuda.is_available() else "cpu")
    positions = max_positions(model) or UNLIMITED
    rows = load_prompts(
        [{"prompt": prompt} for prompt in prompts],
        tokenizer,
        max_prompt_tokens=UNLIMITED,
        **(_trained_form(folder) or {"chat": "always" if tokenizer.chat_template else "auto"}),
    )
    room = _room(rows, positions, max_new_tokens or 1)
    sampling = Sampling(
        max_new_tokens=max_new_tokens or min(DEFAULT_NEW_TOKENS, room),
        temperature=temperature or 1.0,
        greedy=temperature == 0,
        seed=seed,
        end_tokens=end_tokens(model, tokenizer),
    )
    generator = Generator(build_engine("native", model), tokenizer, torch.float32)
    samples = generator.answer(list(enumerate(rows)), 1, sampling)
    return [(_asked(prompt), sample.text) for prompt, sample in zip(prompts, samples, strict=True)]


def _asked(prompt: PromptContent) -> str:
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])


def _check_temperature(temperature: float) -> None:
    if not 0 <= temperature < math.inf:  # nor nan
        raise ConfigError(
            f"The temperature {temperature} is out of range.",
            "Right: 0 for the most likely token, or a number above, mostly 1.",
            "Correct --temperature.",
        )


def _room(rows: Sequence[Prompt], positions: int, max_new_tokens: int) -> int:
    """Returns the tokens that are left for an answer to any of the prompts."""
    longest = max(rows, key=lambda row: len(row.tokens))
    room = positions - len(longest.tokens)
    if room < max_new_tokens:
        raise ConfigError(
            f"Prompt {longest.index + 1} has {len(longest.tokens)} tokens, and its answer may have "
            f"{max_new_tokens}; the model reads {positions}.",
            "Prompt and answer together must fit.",
            "Shorten the prompt, or lower --max-new-tokens.",
        )
    return room
