"""Samples as parcels: packed tensors and a little JSON, without the prompts they answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import torch
from torch import Tensor

from flexrlhf.core.errors import DataError
from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.transport.parcel import Parcel, ParcelLike

_FIELD: Final = "field/"


def samples_to_parcel(samples: Sequence[Sample], fields: Iterable[str] | None = None) -> Parcel:
    """Packs samples, each tensor of all of them end to end.

    Args:
        samples: on any device. Their prompts are not packed, for everybody has the data set.
        fields: numbers per token to pack, where a sample has them; None for all.

    Raises:
        DataError: samples hold one field in several types.
    """
    if fields is None:
        fields = {name for sample in samples for name in sample.fields}
    # Others may be written meanwhile, so that those asked for alone are looked at.
    packed = sorted(name for name in fields if any(name in sample.fields for sample in samples))
    parts = sorted({name for sample in samples for name in sample.reward_parts})
    tensors = {
        "sample_ids": torch.tensor([sample.sample_id for sample in samples], dtype=torch.int64),
        "lengths": torch.tensor([sample.num_tokens for sample in samples], dtype=torch.int64),
        "tokens": _joined([sample.tokens for sample in samples], torch.int64),
        "mask": _joined([sample.mask for sample in samples], torch.bool),
        # As numbers of a tensor, so that NaN, which JSON lacks, comes through.
        "rewards": torch.tensor([sample.reward for sample in samples], dtype=torch.float64),
        "reward_parts": torch.tensor(
            [[sample.reward_parts.get(part, math.nan) for part in parts] for sample in samples],
            dtype=torch.float64,
        ).view(len(samples), len(parts)),
    }
    holders = {name: [name in sample.fields for sample in samples] for name in packed}
    for name in packed:
        tensors[_FIELD + name] = _field(samples, name)
    header = {
        "num_prompt_tokens": [sample.num_prompt_tokens for sample in samples],
        "texts": [sample.text for sample in samples],
        "finished": [sample.finished for sample in samples],
        "weight_versions": [sample.weight_version for sample in samples],
        "reward_parts": parts,
        "has_part": [[part in sample.reward_parts for part in parts] for sample in samples],
        "has_field": holders,
    }
    return Parcel(header, tensors)


def samples_from_parcel(parcel: ParcelLike, prompt_of: Callable[[int], Prompt]) -> list[Sample]:
    """Returns the samples of `samples_to_parcel`; their tensors are parts of the parcel's.

    Args:
        parcel: what was packed.
        prompt_of: the prompt that a sample id answers.
    """
    header, tensors = parcel.header, parcel.tensors
    lengths = tensors["lengths"].tolist()
    tokens = torch.split(tensors["tokens"], lengths)
    masks = torch.split(tensors["mask"], lengths)
    samples = [
        Sample(
            sample_id=sample_id,
            prompt=prompt_of(sample_id),
            tokens=tokens[row],
            num_prompt_tokens=header["num_prompt_tokens"][row],
            mask=masks[row],
            text=header["texts"][row],
            finished=header["finished"][row],
            weight_version=header["weight_versions"][row],
            reward=float(tensors["rewards"][row]),
        )
        for row, sample_id in enumerate(tensors["sample_ids"].tolist())
    ]
    _fill_parts(samples, parcel)
    _fill_fields(samples, parcel)
    return samples


def _fill_parts(samples: Sequence[Sample], parcel: ParcelLike) -> None:
    names = parcel.header["reward_parts"]
    rows = zip(
        samples, parcel.tensors["reward_parts"].tolist(), parcel.header["has_part"], strict=True
    )
    for sample, values, present in rows:
        sample.reward_parts = {
            name: value for name, value, has in zip(names, values, present, strict=True) if has
        }


def _fill_fields(samples: Sequence[Sample], parcel: ParcelLike) -> None:
    for name, present in parcel.header["has_field"].items():
        holders = [sample for sample, has in zip(samples, present, strict=True) if has]
        lengths = [sample.num_tokens for sample in holders]
        values = torch.split(parcel.tensors[_FIELD + name], lengths)
        for sample, value in zip(holders, values, strict=True):
            sample.fields[name] = value


def _field(samples: Sequence[Sample], name: str) -> Tensor:
    values = [sample.fields[name] for sample in samples if name in sample.fields]
    types = {value.dtype for value in values}
    if len(types) > 1:
        raise DataError(
            f"The samples hold {name!r} as {' and '.join(sorted(map(str, types)))}.",
            "All samples of a batch hold a field in one type.",
            "Write the field in the type of the model that computes it.",
        )
    return _joined(values, values[0].dtype)


def _joined(values: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat([torch.empty(0, dtype=dtype), *(value.detach().cpu() for value in values)])
