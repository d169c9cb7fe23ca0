"""Whole runs that take a second: a language of eleven words, and one config per algorithm.

Nothing is trivial in them: several epochs and mini-batches, answers of unlike lengths, held-out
rows, a KL coefficient that moves, a reward model smaller than the policy.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from flexrlhf.config.loading import build_config
from flexrlhf.config.resolution import resolve, spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.learning.models.loading import load_tokenizer
from flexrlhf.runtime.datasets import RunData, load_data
from flexrlhf.runtime.reward_role import reward_functions

Document = dict[str, Any]

WORDS: Final = ("<unk>", "<end>", "red", "green", "blue", "one", "two", "three", "four", "five")
POLICY: Final[Mapping[str, Any]] = {
    "model_type": "llama",
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
}
JUDGE: Final = {**POLICY, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
"""About a tenth of the policy's layers."""
_REWARDS: Final = '''
def length(prompts, completions, **columns):
    """A tenth per word of an answer."""
    return [0.1 * len(answer.split()) for answer in completions]
'''
VARIANTS: Final = (
    "ppo",
    "ppo-shared",
    "grpo",
    "grpo-functions",
    "grpo-once",
    "sft",
    "reward_model",
    "dpo",
)
"""The algorithms, PPO in both forms, GRPO with a reward model, without, and with one step alone."""
GENERATING: Final = VARIANTS[:3]


def write_files(folder: Path) -> None:
    """Writes tokenizer, rows and reward functions that the configs name."""
    words = WORDS[2:]
    prompts = [{"prompt": " ".join(words[i : i + 1 + i % 3])} for i in range(6)]
    held_out = [{"prompt": word} for word in words[:3]]
    pairs = list(pairwise(words))
    supervised = [
        {"prompt": a, "completion": " ".join(words[: 1 + i % 4])} for i, (a, _) in enumerate(pairs)
    ]
    preferences = [
        {"prompt": a, "chosen": f"{a} {b}", "rejected": " ".join([b] * (1 + i % 3))}
        for i, (a, b) in enumerate(pairs)
    ]
    rows = {
        "prompts": prompts,
        "held-out-prompts": held_out,
        "supervised": supervised,
        "held-out-supervised": supervised[:3],
        "preferences": preferences,
        "held-out-preferences": preferences[:3],
    }
    for name, content in rows.items():
        text = "".join(json.dumps(row) + "\n" for row in content)
        (folder / f"{name}.jsonl").write_text(text)
    (folder / "rewards.py").write_text(_REWARDS)
    _write_tokenizer(folder / "tokenizer")


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    numbers = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<end>", pad_token="<end>"
    ).save_pretrained(folder)


def tiny_config(
    folder: Path,
    variant: str,
    *,
    dtype: str = "float64",
    iterations: int = 3,
    changes: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Returns the resolved config of a variant.

    Args:
        folder: where `write_files` wrote.
        variant: one of `VARIANTS`.
        dtype: of all models.
        iterations: of training.
        changes: keys of sections that are laid over.
    """
    document = _document(folder, variant, dtype)
    document["training"]["iterations"] = iterations
    for section, keys in (changes or {}).items():
        value = document.get(section)
        document[section] = {**value, **keys} if isinstance(value, dict) else keys
    return resolve(build_config(copy.deepcopy(document)))


def tiny_data(config: RunConfig, folder: Path) -> RunData:
    """Returns the rows of a config."""
    spec = spec_of(config)
    rewards = reward_functions(config.reward) if spec.generates else ()
    return load_data(config.data, spec.data, load_tokenizer(str(folder / "tokenizer")), rewards)


def _document(folder: Path, variant: str, dtype: str) -> Document:
    kinds = {"sft": "supervised", "reward_model": "preferences", "dpo": "preferences"}
    kind = kinds.get(variant, "prompts")
    model = {"init": "random", "tokenizer": str(folder / "tokenizer"), "dtype": dtype}
    policy, judge = {**model, "architecture": POLICY}, {**model, "architecture": JUDGE}
    held_out: Document = {"path": str(folder / f"held-out-{kind}.jsonl"), "every": 2}
    document: Document = {
        "model": {"reward" if variant == "reward_model" else "actor": policy},
        "data": {kind: {"path": str(folder / f"{kind}.jsonl")}, "evaluation": held_out},
        "training": {
            "prompts_per_iteration": 4,
            "learning_rate": 0.01,
            "micro_batch_tokens": 40,
        },
        "run": {"seed": 5, "trackers": [], "recorded_samples": 100, "checkpoint_every": 100},
    }
    if variant == "dpo":  # another reference than the first actor: no pair is a tie, up to rounding
        document["model"]["reference"] = policy
    if kind != "prompts":
        document["algorithm"] = {"name": variant, "epochs": 2}
        document["data"]["max_tokens"] = 12
        document["training"]["mini_batch_samples"] = 2
        return document
    document["data"]["max_prompt_tokens"] = 8
    document["rollout"] = {"max_new_tokens": 6, "samples_per_prompt": 2}
    document["training"] |= {"critic_learning_rate": 0.01, "mini_batch_samples": 4}
    functions = {"functions": [{"path": f"{folder / 'rewards.py'}:length"}]}
    document["algorithm"] = {"name": variant.partition("-")[0]}
    if variant == "ppo":  # function and model give rewards, and the KL coefficient moves
        document["algorithm"] |= {"epochs": 2, "kl_coef": 0.1, "kl_target": 0.01, "kl_horizon": 20}
        document["model"]["reward"] = judge
        document["reward"] = functions
    elif variant == "ppo-shared":  # the model alone
        document["algorithm"] |= {"share_actor_critic": True}
        document["model"]["reward"] = judge
    elif variant == "grpo-once":  # the pass that trains is the first to look at an answer
        document["algorithm"] |= {"kl_coef": 0.0}
        document["training"]["mini_batch_samples"] = "auto"
        document["reward"] = functions
    else:
        document["algorithm"] |= {"epochs": 2, "kl_coef": 0.1, "entropy_coef": 0.01}
        document["reward"] = functions
    if variant == "grpo":
        document["model"]["reward"] = judge
    return document
