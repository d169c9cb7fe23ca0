"""Models and tokenizers as Hugging Face folders that plain transformers reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from flexrlhf.core.atomic_files import atomic_folder
from flexrlhf.learning.models.heads import VALUE_HEAD_FILE, SharedActorCritic, pretrained
from flexrlhf.learning.models.quiet import quiet_transformers
from flexrlhf.learning.models.tensor_files import disk_errors, write_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def save_model(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase | None, folder: Path | str
) -> None:
    """Writes a model folder: config, safetensors with tied weights once, and the tokenizer.

    The value head of a `SharedActorCritic` lies beside its language model in a file of its own.
    The folder appears whole or not at all, and replaces one of the same name.

    Raises:
        OSError: the disk is full, or does not take the files for another reason.
    """
    with atomic_folder(Path(folder)) as workplace:
        write_model(model, tokenizer, workplace)


def write_model(model: nn.Module, tokenizer: PreTrainedTokenizerBase | None, folder: Path) -> None:
    """Writes the files of `save_model` straight into an existing folder.

    Raises:
        OSError: the disk is full, or does not take the files for another reason.
    """
    if isinstance(model, SharedActorCritic):
        write_tensors(folder / VALUE_HEAD_FILE, model.value_head.state_dict())
    with quiet_transformers(), disk_errors():
        pretrained(model).save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
