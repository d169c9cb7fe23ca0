"""Samples as the loop carries them: prompts, answers, and what the roles said about each token.

Everything per token is aligned to the full sequence, prompt and response: entry `t` of `logprobs`
is log p(token_t | tokens_<t), entry `t` of `values` is V(state before token t). Masks come from
lengths, never from token ids, since the pad token may equal the end token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from flexrlhf.core.errors import DataError
from flexrlhf.learning.data.conversation import Messages


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a data set, rendered and tokenised."""

    index: int
    """Row in the data set."""
    tokens: tuple[int, ...]
    text: str
    messages: Messages | None = None
    """The conversation, when the row was conversational."""
    columns: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The row's other columns; reward functions receive them by name."""


class TokenSequence(Protocol):
    """A sequence that goes into a batch: an answer of the policy, or one that is given."""

    @property
    def sample_id(self) -> int:
        """What an error names it by."""
        ...

    @property
    def tokens(self) -> Tensor:
        """int64 [T]."""
        ...

    @property
    def mask(self) -> Tensor:
        """Bool [T]: True at trainable tokens."""
        ...

    @property
    def fields(self) -> Mapping[str, Tensor]:
        """Numbers per token [T]."""
        ...

    @property
    def num_tokens(self) -> int:
        """T."""
        ...


@dataclass(slots=True)
class Sample:
    """One answer to one prompt; its tensors are 1-D of length T, prompt and response together."""

    sample_id: int
    """Unique in the run: the prompt's draw times answers per prompt, plus the answer's number."""
    prompt: Prompt
    tokens: Tensor
    num_prompt_tokens: int
    mask: Tensor
    """True at trainable tokens, that is, at generated ones."""
    text: str = ""
    finished: bool = True
    """Ended with an end token, which is then the last token; False when cut at the limit."""
    weight_version: int = 0
    fields: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Numbers per token, zero outside the mask: logprobs, values, advantages and so on."""
    reward: float = math.nan
    reward_parts: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and response."""
        return len(self.tokens)

    @property
    def num_response_tokens(self) -> int:
        """Generated tokens, the end token included."""
        return len(self.tokens) - self.num_prompt_tokens


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of several samples, padded on the right with zeros."""

    tokens: Tensor
    """int64 [B, T]."""
    lengths: Tensor
    """int64 [B]."""
    mask: Tensor
    """bool [B, T], False in padding and at entry 0."""
    fields: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """float [B, T] each."""
    sample_ids: tuple[int, ...] = ()

    @property
    def attention_mask(self) -> Tensor:
        """int64 [B, T]: 1 at real tokens."""
        positions_T = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return (positions_T[None, :] < self.lengths[:, None]).long()

    def to(self, device: torch.device | str) -> Batch:
        """Returns the batch on `device`."""
        return Batch(
            self.tokens.to(device),
            self.lengths.to(device),
            self.mask.to(device),
            {name: tensor.to(device) for name, tensor in self.fields.items()},
            self.sample_ids,
        )


def collate_sequences(
    tokens: Sequence[Tensor],
    masks: Sequence[Tensor],
    fields: Mapping[str, Sequence[Tensor]] | None = None,
    sample_ids: Sequence[int] = (),
) -> Batch:
    """Pads 1-D sequences on the right into one batch; entry 0 of every mask becomes False."""
    if not tokens:
        raise DataError(
            "A batch has no sequences.", "It needs at least one.", "Check the data set."
        )
    mask_BT = pad_sequence(list(masks), batch_first=True)
    mask_BT[:, 0] = False
    return Batch(
        tokens=pad_sequence(list(tokens), batch_first=True),
        lengths=torch.tensor([len(sequence) for sequence in tokens]),
        mask=mask_BT,
        fields={
            name: pad_sequence(list(values), batch_first=True)
            for name, values in (fields or {}).items()
        },
        sample_ids=tuple(sample_ids),
    )


def collate(samples: Sequence[TokenSequence], fields: Sequence[str] = ()) -> Batch:
    """Pads sequences into one batch that carries the named fields."""
    return collate_sequences(
        [sample.tokens for sample in samples],
        [sample.mask for sample in samples],
        {name: [sample.fields[name] for sample in samples] for name in fields},
        [sample.sample_id for sample in samples],
    )


def pack_by_tokens(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Cuts sequences into bins whose padded size stays within a token budget.

    Longest first, so that the sequences of a bin are of like length. The same lengths always give
    the same bins.

    Args:
        lengths: tokens of each sequence.
        max_tokens: limit of (sequences in a bin) x (longest of the bin).

    Returns:
        Indices into `lengths`, bin by bin; every index occurs once.

    Raises:
        DataError: one sequence alone is longer than `max_tokens`.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    bins: list[list[int]] = []
    for index in order:
        if lengths[index] > max_tokens:
            raise DataError(
                f"A sequence of {lengths[index]} tokens exceeds the micro-batch of {max_tokens}.",
                "A micro-batch must hold the longest prompt and response together.",
                "Raise training.micro_batch_tokens, or set it to auto.",
            )
        longest_of_bin = lengths[bins[-1][0]] if bins else 0
        if bins and (len(bins[-1]) + 1) * longest_of_bin <= max_tokens:
            bins[-1].append(index)
        else:
            bins.append([index])
    return bins
