from __future__ import annotations

import math

import pytest
import torch

from flexrlhf.core.errors import DataError
from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.transport.parcel import Parcel
from flexrlhf.learning.transport.samples import samples_from_parcel, samples_to_parcel


def prompt_of(sample_id: int) -> Prompt:
    return Prompt(sample_id // 2, (1, 2), f"prompt of {sample_id}")


def make_sample(sample_id: int, length: int, **fields: torch.Tensor) -> Sample:
    return Sample(
        sample_id=sample_id,
        prompt=prompt_of(sample_id),
        tokens=torch.arange(length) + sample_id,
        num_prompt_tokens=2,
        mask=torch.arange(length) >= 2,
        text=f"antwört {sample_id}",
        finished=sample_id % 2 == 0,
        weight_version=sample_id + 3,
        fields=fields,
        reward=math.nan if sample_id == 1 else 0.1 * sample_id,
        reward_parts={} if sample_id == 1 else {"maths": 1 / 3, "length": -0.0},
    )


def same(first: Sample, second: Sample) -> bool:
    return (
        first.prompt == second.prompt
        and torch.equal(first.tokens, second.tokens)
        and torch.equal(first.mask, second.mask)
        and first.mask.dtype == torch.bool
        and first.fields.keys() == second.fields.keys()
        and all(
            torch.equal(first.fields[name], value) and first.fields[name].dtype == value.dtype
            for name, value in second.fields.items()
        )
        and (first.reward == second.reward or math.isnan(first.reward + second.reward))
        and first.reward_parts == second.reward_parts
        and all(
            getattr(first, name) == getattr(second, name)
            for name in ("sample_id", "num_prompt_tokens", "text", "finished", "weight_version")
        )
    )


def samples() -> list[Sample]:
    return [
        make_sample(4, 5, logprobs=torch.randn(5), values=torch.randn(5, dtype=torch.float64)),
        make_sample(1, 3, logprobs=torch.randn(3)),
        make_sample(9, 2, logprobs=torch.randn(2)),
    ]


def test_samples_come_back_as_they_were():
    sent = samples()
    back = samples_from_parcel(samples_to_parcel(sent), prompt_of)
    assert all(same(a, b) for a, b in zip(back, sent, strict=True))
    assert math.isnan(back[1].reward)


def test_only_the_named_fields_are_packed():
    parcel = samples_to_parcel(samples(), fields=["values", "advantages"])
    back = samples_from_parcel(parcel, prompt_of)
    assert [list(sample.fields) for sample in back] == [["values"], [], []]


def test_no_samples_are_a_parcel_too():
    parcel = samples_to_parcel([])
    assert samples_from_parcel(Parcel(parcel.header, parcel.tensors), prompt_of) == []


def test_a_field_has_one_type():
    mixed = [make_sample(0, 2, v=torch.zeros(2)), make_sample(2, 2, v=torch.zeros(2).double())]
    with pytest.raises(DataError, match=r"float32 and torch\.float64"):
        samples_to_parcel(mixed)
