"""Models and tokenizers of a role, from a folder, a GGUF file or at random.

Everything here is deterministic: no dropout, and random weights that depend on the seed alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.exact_norms import make_norms_exact
from flexrlhf.learning.models.folders import local_folder
from flexrlhf.learning.models.foreign_errors import complaining
from flexrlhf.learning.models.heads import VALUE_HEAD_FILE, SharedActorCritic, refresh_head
from flexrlhf.learning.models.mapped_files import MappedFiles
from flexrlhf.learning.models.output_head import check_output_head
from flexrlhf.learning.models.score_head import SCORE_WEIGHT, score_head
from flexrlhf.learning.models.seeding import seeded_weights
from flexrlhf.learning.models.sizes import require_memory
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.learning.models.source_config import policy_config, require_kind, scorer_config

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


def load_tokenizer(source: ModelSource | str) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a model, or the one at a path.

    Raises:
        ConfigError: there is none.
    """
    from transformers import AutoTokenizer

    path = source if isinstance(source, str) else source.tokenizer or source.path
    if path is None:
        raise ConfigError(
            "A model with random weights has no tokenizer of its own.",
            "Its tokenizer lies in a folder.",
            "Give the model's tokenizer: a path.",
        )
    folder = local_folder(path)

    def complaint(said: str) -> ConfigError:
        return ConfigError(
            f"{folder} has no tokenizer that can be read: {said}",
            "A tokenizer folder holds tokenizer.json and tokenizer_config.json.",
            "Give the model's tokenizer: a path.",
        )

    with complaining(complaint):
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def load_policy(source: ModelSource) -> PreTrainedModel:
    """Loads a causal language model, in evaluation mode, on the CPU.

    Raises:
        ConfigError: the source holds no causal language model, or one whose output is no plain
            linear head.
    """
    from transformers import AutoModelForCausalLM

    given = policy_config(source)
    if given.folder is None:
        model = _random_model(AutoModelForCausalLM, given.config, source)
    else:
        model, missing = _pretrained_model(AutoModelForCausalLM, given.folder, given.config, source)
        _refuse_missing(missing, given.folder)
    _own_parameters(model, source.torch_dtype)
    make_norms_exact(model, source.torch_dtype)
    check_output_head(model)
    return model.eval()


def load_scorer(source: ModelSource) -> PreTrainedModel:
    """Loads a sequence-classification model with one label: a critic or a reward model.

    A folder with a causal language model gives its trunk and a fresh small head (`refresh_head`).

    Raises:
        ConfigError: the source holds no such model, or one with several labels.
    """
    from transformers import AutoModelForSequenceClassification

    given = scorer_config(source)
    if given.folder is None:
        model = _random_model(AutoModelForSequenceClassification, given.config, source)
    else:
        model, missing = _pretrained_model(
            AutoModelForSequenceClassification, given.folder, given.config, source
        )
        _refuse_missing(missing - {SCORE_WEIGHT} if given.needs_head else missing, given.folder)
    head = score_head(model)
    if given.needs_head:
        refresh_head(head, source.seed)
    _own_parameters(model, source.torch_dtype)
    make_norms_exact(model, source.torch_dtype)
    return model.eval()


def load_shared_actor_critic(source: ModelSource) -> SharedActorCritic:
    """Loads a causal language model with a value head, a fresh one where the folder has none.

    Raises:
        ConfigError: as `load_policy`, or the folder's value head does not fit.
    """
    model = SharedActorCritic(load_policy(source), seed=source.seed)
    if source.path is not None:
        file = local_folder(source.path) / VALUE_HEAD_FILE
        if file.is_file():
            model.load_value_head(file)
    return model.eval()


def _random_model(
    auto_class: Any, config: PreTrainedConfig, source: ModelSource
) -> PreTrainedModel:
    """Draws weights in float32, whatever the dtype, so that every dtype starts alike."""

    def complaint(said: str) -> ConfigError:
        return ConfigError(
            f"The architecture of model_type = {config.model_type!r} makes no model: {said}",
            "Its numbers must fit each other, and the model must fit into memory.",
            "Correct the architecture; tested families are llama, qwen2, qwen3 and gpt2.",
        )

    require_kind(auto_class, config)
    with seeded_weights(source.seed), complaining(complaint):
        require_memory(auto_class, config, torch.float32)
        return auto_class.from_config(config, dtype=torch.float32, trust_remote_code=False)


def _pretrained_model(
    auto_class: Any, folder: Path, config: PreTrainedConfig, source: ModelSource
) -> tuple[PreTrainedModel, set[str]]:
    """Returns the model and the names of the weights that the folder did not hold."""

    def complaint(said: str) -> ConfigError:
        return ConfigError(
            f"The weights of {folder} do not load: {said}",
            "They must be whole and fit config.json.",
            "Copy or convert the folder again.",
        )

    require_kind(auto_class, config)
    # Missing weights are drawn at random before they are refused or replaced.
    with seeded_weights(source.seed), complaining(complaint):
        require_memory(auto_class, config, source.torch_dtype)
        model, report = auto_class.from_pretrained(
            folder,
            config=config,
            dtype=source.torch_dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    return model, set(report["missing_keys"])


def _refuse_missing(missing: set[str], folder: Path) -> None:
    if missing:
        raise ConfigError(
            f"{folder} lacks {len(missing)} of the model's weights, {sorted(missing)[0]} first.",
            "A folder holds every weight that its config.json asks for.",
            "Copy or convert the folder again.",
        )


def _own_parameters(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Copies every parameter, as `dtype`, into memory of its own.

    Weights that lie in the mapped file are aligned by chance, which changes the last bit of sums,
    and the file may be replaced meanwhile. Each leaves the file's memory once it is copied, so that
    the model is never here twice. Buffers stay as they are: rotary frequencies would lose digits in
    bfloat16.
    """
    files = MappedFiles()
    for parameter in model.parameters():
        read = parameter.data
        parameter.data = read.to(dtype, copy=True)
        files.give_back(read)
