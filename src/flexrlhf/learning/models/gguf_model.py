"""The causal language model inside a GGUF file, or a reason why it cannot be had whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.foreign_errors import complaining

if TYPE_CHECKING:
    from gguf import GGUFReader
    from transformers import PreTrainedModel


def gguf_model(file: Path, reader: GGUFReader) -> PreTrainedModel:
    """Builds the causal language model of a GGUF file with its weights, in float32.

    `from_pretrained(gguf_file=...)` does the same by way of accelerate, but draws weights that the
    file lacks at random and drops those that it has no place for; here both are errors.

    Raises:
        ConfigError: the family is not known, or weights are missing or left over.
    """
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    def complaint(said: str) -> ConfigError:
        return ConfigError(
            f"{file} cannot be converted: {said}",
            "Its family must be one that transformers reads from GGUF, like llama or qwen2.",
            "Use the original Hugging Face folder.",
        )

    with complaining(complaint):
        keys = _config_keys(load_gguf_checkpoint(file)["config"], reader)
        model = _skeleton(keys)
        weights = _weights(file, reader, model, keys)
        if _repeats_embedding(weights):
            model = _skeleton({**keys, "tie_word_embeddings": True})
        model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    _refuse_absent_weights(file, model)
    return model


def gguf_field(reader: GGUFReader, key: str, absent: Any = None) -> Any:
    """Returns the value of a key of the file, or `absent`."""
    field = reader.get_field(key)
    return absent if field is None else field.contents()


def _config_keys(keys: dict[str, Any], reader: GGUFReader) -> dict[str, Any]:
    """Returns the keys of the config that transformers made of the file, put right.

    Numbers become those that their authors wrote: 1e-05, not 9.999999747378752e-06, since the file
    stores float32. The name inside the file is dropped, which transformers takes for a path. Head
    width of Qwen3 and positions of GPT-2 are added, which transformers does not read.
    """
    shortest = {
        key: float(str(np.float32(value))) for key, value in keys.items() if type(value) is float
    }
    kept = {key: shortest.get(key, keys[key]) for key in keys if key != "_model_name_or_path"}
    head_dim = gguf_field(reader, "qwen3.attention.key_length")
    if head_dim is not None:
        kept["head_dim"] = head_dim
    if kept["model_type"] == "gpt2":
        kept["n_positions"] = kept.pop("n_ctx")
        kept["n_inner"] = kept.pop("feed_forward_length", None)
    return kept


def _skeleton(keys: dict[str, Any]) -> PreTrainedModel:
    """Returns the model without memory for its weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**keys), dtype=torch.float32)


def _weights(
    file: Path, reader: GGUFReader, model: PreTrainedModel, keys: dict[str, Any]
) -> dict[str, Tensor]:
    """Returns the file's weights by their Hugging Face names.

    The processors of transformers undo what llama.cpp did to them, such as the other order of
    rotary pairs in llama's query and key weights.
    """
    from gguf import dequantize
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    family = gguf_field(reader, "general.architecture", "")
    processor = TENSOR_PROCESSORS.get(family, TensorProcessor)(config=keys)
    names = get_gguf_hf_weights_map(model, processor)
    _refuse_homeless_tensors(file, {tensor.name for tensor in reader.tensors} - names.keys())
    weights: dict[str, Tensor] = {}
    for tensor in reader.tensors:
        processed = processor.process(
            weights=dequantize(tensor.data, tensor.tensor_type),
            name=tensor.name,
            tensor_key_mapping=names,
            parsed_parameters={"tensors": weights},
        )
        # A processor that has stored the weight itself gives no name.
        if processed.name is not None:
            array = np.array(processed.weights, dtype=np.float32)
            weights[names[processed.name]] = torch.from_numpy(array)
    return weights


def _repeats_embedding(weights: dict[str, Tensor]) -> bool:
    """Whether head and embedding are the same numbers twice, as llama.cpp writes GPT-2."""
    head_VD = weights.get("lm_head.weight")
    return head_VD is not None and any(
        torch.equal(weight, head_VD)
        for name, weight in weights.items()
        if name.endswith(("embed_tokens.weight", "wte.weight"))
    )


def _refuse_homeless_tensors(file: Path, homeless: set[str]) -> None:
    if homeless:
        raise ConfigError(
            f"{file} holds {len(homeless)} tensors that its family in transformers has no place "
            f"for, {min(homeless)} first.",
            "Leaving them out would make another model.",
            "Use the original Hugging Face folder.",
        )


def _refuse_absent_weights(file: Path, model: PreTrainedModel) -> None:
    absent = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if absent:
        raise ConfigError(
            f"{file} lacks {len(absent)} of the model's weights, {absent[0]} first.",
            "A GGUF file holds the whole model.",
            "Download the file again, or use the original Hugging Face folder.",
        )
