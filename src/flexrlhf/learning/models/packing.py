"""Sequences of a batch without padding, and what they have in common only once.

Rows that begin with the same prompt, as answers of one group and both answers of a pair do, share
its tokens. What comes behind the last position that anything is wanted of is left out. Where that
would leave out too little, the rows stay as they are, with their padding.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from flexrlhf.core.packed_rows import (
    CPU_KEY_BLOCK,
    AttentionPart,
    first_with_same,
    packed_rows,
    pays,
    rows_as_they_are,
    whole_blocks,
)
from flexrlhf.learning.data.experience import Batch
from flexrlhf.learning.models.families import AttentionCall


@dataclass(frozen=True, slots=True)
class Packing:
    """N tokens, each of a prompt once however many rows begin with it."""

    tokens: Tensor
    """int64 [N]."""
    positions: Tensor
    """int64 [N]: place in the sequence."""
    num_positions: int
    """Above every position."""
    wanted: Tensor
    """int64: the token at each position that something is wanted of, row by row."""
    parts: tuple[AttentionPart, ...]
    token_of_query: Tensor | None
    """int64, for the query slots of all parts: which token stands there, any one in padding; None:
    the N tokens as they are."""
    slot_of_token: Tensor | None
    """int64 [N]: the query slot of each token; None as above."""
    token_of_key: Tensor | None
    """int64, for the key slots of all parts; None as above."""
    _masks: dict[torch.dtype, list[Tensor | None]] = field(
        default_factory=dict[torch.dtype, list[Tensor | None]]
    )

    def attend(self, call: AttentionCall) -> Tensor:
        """Returns causal attention of each token to its own sequence, [N, H * K].

        Keys and values of a shared prompt are copied to the rows that begin with it. Padding is
        behind everything, where causal attention does not look.
        """
        queries = _placed(call.queries, self.token_of_query)
        keys, values = (_placed(heads, self.token_of_key) for heads in (call.keys, call.values))
        queries_of = queries.split([part.num_query_slots for part in self.parts])
        key_slots = [part.num_key_slots for part in self.parts]
        # On a GPU only some kernels take heads that share keys, and none of them a mask.
        is_cpu = queries.device.type == "cpu"
        if not is_cpu:
            repeats = queries.shape[1] // keys.shape[1]
            keys, values = (one.repeat_interleave(repeats, dim=1) for one in (keys, values))
        found: list[Tensor] = []
        for part, mask, *heads in zip(
            self.parts,
            self._masks_for(call.queries),
            queries_of,
            keys.split(key_slots),
            values.split(key_slots),
            strict=True,
        ):
            attended = scaled_dot_product_attention(
                *(one.unflatten(0, (part.num_rows, -1)).transpose(1, 2) for one in heads),
                attn_mask=mask,
                is_causal=mask is None,
                scale=call.scaling,
                enable_gqa=is_cpu,
            )
            found.append(attended.transpose(1, 2).reshape(part.num_query_slots, -1))
        whole = found[0] if len(found) == 1 else torch.cat(found)
        return whole if self.slot_of_token is None else taken(whole, self.slot_of_token)

    def _masks_for(self, queries: Tensor) -> list[Tensor | None]:
        """Returns what is added to scores in each part, the same in all layers."""
        device, dtype = queries.device, queries.dtype
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        if dtype not in self._masks:
            self._masks[dtype] = [_mask(part, dtype, device) for part in self.parts]
        return self._masks[dtype]


def pack(batch: Batch, is_wanted_BT: Tensor) -> Packing | None:
    """Returns the tokens that are needed to compute hidden states at the wanted positions.

    Args:
        batch: right-padded sequences; the tokens before the first trainable one are a prompt.
        is_wanted_BT: bool, False in padding.

    Returns:
        None where nothing is wanted. Where too little would be left out, the rows as they are.
    """
    device = batch.tokens.device
    tokens_BT, mask_BT, is_wanted_BT = batch.tokens.cpu(), batch.mask.cpu(), is_wanted_BT.cpu()
    lengths_B = (is_wanted_BT * torch.arange(1, tokens_BT.shape[1] + 1)).amax(dim=1)
    key_block = CPU_KEY_BLOCK if device.type == "cpu" else 1
    num_columns = whole_blocks(int(lengths_B.max()), key_block)
    if num_columns == 0:
        return None
    prompt_lengths_B = torch.where(mask_BT.any(dim=1), mask_BT.int().argmax(dim=1), lengths_B)
    prompt_lengths_B = torch.minimum(prompt_lengths_B, lengths_B)
    lengths, prompt_lengths = lengths_B.tolist(), prompt_lengths_B.tolist()
    owners = first_with_same(_prompts(tokens_BT, prompt_lengths))
    packed = packed_rows(lengths, prompt_lengths, owners, key_block=key_block)
    missing = max(0, num_columns - tokens_BT.shape[1])
    tokens_BT, is_wanted_BT = (
        pad(values, (0, missing))[:, :num_columns] for values in (tokens_BT, is_wanted_BT)
    )
    if not pays(packed.num_tokens, batch.tokens.numel()):
        return _as_they_are(tokens_BT, is_wanted_BT, device)
    # A slot is a place in the padded batch; a shared token stands in that of its prompt's owner.
    columns_T, rows_B, owners_B = (
        torch.arange(num_columns),
        torch.arange(len(tokens_BT)),
        torch.tensor(owners),
    )
    owners_BT = torch.where(
        columns_T < prompt_lengths_B[:, None], owners_B[:, None], rows_B[:, None]
    )
    home_BT = owners_BT * num_columns + columns_T
    is_read_BT = columns_T < lengths_B[:, None]
    is_own_BT = is_read_BT & (owners_BT == rows_B[:, None])
    slots_BT = torch.arange(home_BT.numel()).view(home_BT.shape)
    queries = torch.cat([_queries_of(part, slots_BT) for part in packed.parts])
    keys = torch.cat([_keys_of(part, slots_BT) for part in packed.parts])
    is_token = torch.cat([_tokens_of(part, is_own_BT) for part in packed.parts])
    own_slots = queries[is_token]
    numbers = torch.zeros(home_BT.numel(), dtype=torch.int64)
    numbers[own_slots] = torch.arange(len(own_slots))
    token_of_slot = numbers[home_BT.flatten()].masked_fill_(~is_read_BT.flatten(), 0)
    has_gaps = len(own_slots) < len(queries)
    has_copies = has_gaps or len(keys) > len(own_slots)
    return Packing(
        tokens_BT.flatten()[own_slots].to(device),
        (own_slots % num_columns).to(device),
        num_columns,
        token_of_slot[is_wanted_BT.flatten()].to(device),
        packed.parts,
        token_of_slot[queries].to(device) if has_gaps else None,
        is_token.nonzero().squeeze(1).to(device) if has_gaps else None,
        token_of_slot[keys].to(device) if has_copies else None,
    )


def _as_they_are(tokens_BT: Tensor, is_wanted_BT: Tensor, device: torch.device) -> Packing:
    """Returns every column of every row, so that nothing is copied from or to its place."""
    num_rows, num_columns = tokens_BT.shape
    return Packing(
        tokens_BT.flatten().to(device),
        torch.arange(num_columns).repeat(num_rows).to(device),
        num_columns,
        is_wanted_BT.flatten().nonzero().squeeze(1).to(device),
        rows_as_they_are(num_rows, num_columns).parts,
        None,
        None,
        None,
    )


def taken(values: Tensor, indices: Tensor) -> Tensor:
    """Returns the rows of `values` at `indices`; gradients are summed in an order that stays."""
    # On a CPU this takes half as long as indexing, which alone has a fixed order on a GPU.
    return values.index_select(0, indices) if values.device.type == "cpu" else values[indices]


def _queries_of(part: AttentionPart, values_BT: Tensor) -> Tensor:
    """Returns what belongs to the query slots of a part."""
    return values_BT[list(part.rows), part.begin : part.end].flatten()


def _keys_of(part: AttentionPart, values_BT: Tensor) -> Tensor:
    """Returns what belongs to the key slots of a part."""
    return values_BT[list(part.rows), : part.num_keys].flatten()


def _tokens_of(part: AttentionPart, is_own_BT: Tensor) -> Tensor:
    """Returns at which of the part's query slots a token stands that is read there."""
    columns_T = torch.arange(part.begin, part.end)
    is_inside = columns_T < torch.tensor(part.ends)[:, None]
    return (is_own_BT[list(part.rows), part.begin : part.end] & is_inside).flatten()


def _placed(heads: Tensor, tokens: Tensor | None) -> Tensor:
    """Returns heads [N, H, K] of these tokens, or as they are."""
    if tokens is None:
        return heads
    return taken(heads.flatten(1), tokens).unflatten(1, heads.shape[1:])


def _mask(part: AttentionPart, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """Returns [queries, keys] to add to scores, or None for plain causal attention."""
    if part.begin == 0:
        return None
    queries = torch.arange(part.num_queries, device=device)[:, None]
    is_unseen = torch.arange(part.num_keys, device=device) > queries + part.begin
    return torch.zeros(is_unseen.shape, dtype=dtype, device=device).masked_fill_(
        is_unseen, -torch.inf
    )


def _prompts(tokens_BT: Tensor, prompt_lengths: list[int]) -> list[bytes | None]:
    """Returns the prompt of each row, None where it has none."""
    tokens = tokens_BT.numpy()
    return [
        tokens[row, :length].tobytes() if length else None
        for row, length in enumerate(prompt_lengths)
    ]
