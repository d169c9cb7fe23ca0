"""What a role says of samples, as parcels: ids, and numbers per token or rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from flexrlhf.learning.data.experience import Sample
from flexrlhf.learning.transport.parcel import Parcel, ParcelLike

_REWARDS: Final = "rewards"


def scores_to_parcel(samples: Sequence[Sample], fields: Sequence[str]) -> Parcel:
    """Packs what a role wrote into samples.

    Args:
        samples: those that it scored.
        fields: that it wrote, each a tensor per sample; without any, rewards and their parts.
    """
    ids = [sample.sample_id for sample in samples]
    if not samples:
        return Parcel({"ids": []})
    if not fields:
        rewards = torch.tensor([sample.reward for sample in samples], dtype=torch.float64)
        parts = [dict(sample.reward_parts) for sample in samples]
        return Parcel({"ids": ids, "reward_parts": parts}, {_REWARDS: rewards})
    tensors: dict[str, Tensor] = {
        name: torch.cat([sample.fields[name].detach() for sample in samples]).cpu()
        for name in fields
    }
    return Parcel({"ids": ids}, tensors)


def write_scores(samples: Mapping[int, Sample], scores: ParcelLike) -> None:
    """Writes what `scores_to_parcel` packed into the same samples elsewhere.

    Args:
        samples: by id; all that were scored are among them.
        scores: of a role.
    """
    scored = [samples[sample_id] for sample_id in scores.header["ids"]]
    for name, values in scores.tensors.items():
        if name == _REWARDS:
            rows = zip(scored, values.tolist(), scores.header["reward_parts"], strict=True)
            for sample, reward, parts in rows:
                sample.reward, sample.reward_parts = reward, dict(parts)
            continue
        lengths = [sample.num_tokens for sample in scored]
        for sample, value in zip(scored, torch.split(values, lengths), strict=True):
            sample.fields[name] = value
