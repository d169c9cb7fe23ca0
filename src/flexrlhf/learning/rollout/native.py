"""The native engine: cached decode over the trainer's own Hugging Face module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

from flexrlhf.learning.data.experience import pack_by_tokens
from flexrlhf.learning.models.families import (
    FAMILIES,
    Attend,
    AttentionCall,
    Family,
    RotaryFamily,
    unsupported_reason,
)
from flexrlhf.learning.rollout.decoding import Decoder, Room
from flexrlhf.learning.rollout.graphed_step import GraphedStep, StepGraphs
from flexrlhf.learning.rollout.kv_cache import KVCache
from flexrlhf.learning.rollout.lockstep import RunPass
from flexrlhf.learning.rollout.module_engine import ModuleEngine
from flexrlhf.learning.rollout.packed_family import PackedRotaryFamily, unpackable_reason
from flexrlhf.learning.rollout.prefix_keeper import PrefixKeeper
from flexrlhf.learning.rollout.prefix_reader import PrefixReader
from flexrlhf.learning.rollout.protocol import Sampling
from flexrlhf.learning.rollout.rounding import check_rounding
from flexrlhf.learning.rollout.run_attention import RunAttention
from flexrlhf.learning.rollout.speculation.draft_model import DraftModel
from flexrlhf.learning.rollout.speculation.drafter import Drafter
from flexrlhf.learning.rollout.speculation.prompt_lookup import PromptLookup
from flexrlhf.learning.rollout.token_attention import (
    FusedAttention,
    MultipliedAttention,
    multiplies_token,
)
from flexrlhf.learning.rollout.waves import Wave

_PREFILL_TOKENS = 8192
"""Prompt tokens read at one time; bounds the activations, not the result."""
_PACKING_PAYS_TOKENS = 8
"""New tokens from which on packing, which takes as long as a few steps, is gained back."""
_CACHE_GROWTH_TOKENS = 128
"""New tokens for which the cache has room before it is copied into a larger one."""


class NativeEngine(ModuleEngine):
    """Llama, Qwen2, Qwen3 and GPT-2 with a slotted cache.

    A sequence that ends leaves the batch at once, and the next that waits takes its place. A prompt
    is read once, and its keys and values are copied to all of its answers; where prefixes are
    kept, only what no earlier sequence began with is read. On a CPU, float32 weights are copied
    into a layout that is read faster, or rounded, anew whenever answers begin. On a GPU
    steps may be captured and repeated.
    """

    name = "native"
    families = tuple(FAMILIES)
    speculates = True
    rounds = True
    keeps = True

    @classmethod
    def unsupported_reason(cls, model: nn.Module, *, gathers_per_token: bool = False) -> str | None:
        """Returns why the engine cannot run `model`, or None."""
        if gathers_per_token:
            return "it calls parts of layers, and weights are gathered for whole ones"
        return unsupported_reason(model)

    def _decoder(self, room: Room, run: RunPass) -> Decoder:
        del run  # parts of layers are called, whose weights are here
        if self._rounds_weights:  # autocast, for one, comes with the call
            check_rounding(self._model, engine=self.name, rounds=self.rounds)
        return native_decoder(
            self._model,
            room,
            packs_weights=self._packs_weights,
            rounds_weights=self._rounds_weights,
            keeper=self._keeper,
            graphs=self._graphs if self._captures_steps else None,
        )

    @cached_property
    def _graphs(self) -> StepGraphs:
        gathers = self._parallel.needs_lockstep
        return StepGraphs(obstacle="replicas gather its weights" if gathers else None)

    def _drafter(self, room: Room, sampling: Sampling) -> Drafter:
        draft = None if self._speculation is None else self._speculation.draft
        if draft is None:
            return PromptLookup()
        one_by_one = replace(room, read_tokens=1)
        decoder = native_decoder(draft, one_by_one, packs_weights=self._packs_weights)
        return DraftModel(decoder, sampling)


def native_decoder(
    model: nn.Module,
    room: Room,
    *,
    packs_weights: bool,
    rounds_weights: bool = False,
    keeper: PrefixKeeper | None = None,
    graphs: StepGraphs | None = None,
) -> NativeDecoder:
    """Returns a model that a family runs, with its weights as they are now and an empty cache.

    Args:
        model: of a family that is known.
        room: for which weights are packed and positions prepared.
        packs_weights: they may be copied to be read faster.
        rounds_weights: they are copied in int8.
        keeper: of earlier sequences; None: every prompt is read whole.
        graphs: captures steps, where that is possible; None: no step is captured.
    """
    weight = next(model.parameters())
    device = weight.device
    # Inside autocast keys and values are of its type, else of the weights'.
    is_cast = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if is_cast else weight.dtype
    if rounds_weights:
        family = PackedRotaryFamily(model, rows=room.rows, rounds=True)
    else:
        family = _family(model, room, packs_weights=packs_weights)
    family.prepare(room.prompt_tokens + room.new_tokens)
    multiplies = multiplies_token(dtype, device)
    cache = KVCache(
        family.shape,
        growth=min(room.new_tokens, _CACHE_GROWTH_TOKENS),
        dtype=dtype,
        device=device,
        transposes_keys=multiplies,
    )
    attention = MultipliedAttention if multiplies else FusedAttention
    prefixes = None
    if keeper is not None:
        kept = keeper.kept(family.shape, dtype=dtype, device=device, family=type(family))
        prefixes = PrefixReader(family, cache, kept, keeper.counts)
    reads_runs = room.read_tokens > 1  # of unlike lengths: few steps are of one token each
    graphed = None if graphs is None or reads_runs else graphs.step(model, family, cache)
    return NativeDecoder(family, cache, device, attention, prefixes=prefixes, graphed=graphed)


def _family(model: nn.Module, room: Room, *, packs_weights: bool) -> Family:
    """Returns the model's weights as they are now, packed where that is possible and pays."""
    family = FAMILIES[type(model).__name__]
    pays = packs_weights and room.new_tokens >= _PACKING_PAYS_TOKENS
    if pays and family is RotaryFamily and unpackable_reason(model) is None:
        return PackedRotaryFamily(model, rows=room.rows * room.read_tokens)
    return family(model)


@dataclass(frozen=True, slots=True)
class _CutGroup:
    """The prompt of a group some of whose answers wait."""

    tokens: tuple[int, ...]
    cached: Tensor
    logits_V: Tensor


class NativeDecoder:
    """The rows inside a native family, with their cache.

    Args:
        family: the model, prepared for the longest sequence.
        cache: holds nothing yet.
        device: of the model.
        attention: makes that of a step, whose sequences have one new token each.
        prefixes: reads prompts, and keeps what ends; None: nothing is kept.
        graphed: gives the steps instead, while it can; None: there is none.
    """

    admits = True

    def __init__(
        self,
        family: Family,
        cache: KVCache,
        device: torch.device,
        attention: Callable[[KVCache, Tensor | None], Attend],
        *,
        prefixes: PrefixReader | None = None,
        graphed: GraphedStep | None = None,
    ) -> None:
        self._family = family
        self._cache = cache
        self._device = device
        self._attention = attention
        self._prefixes = prefixes
        self._graphed = graphed
        self._cut: _CutGroup | None = None

    def admit(self, wave: Wave) -> Tensor:
        """See `Decoder`; each distinct prompt is read once."""
        rows_B = self._cache.add(wave.prompt_lengths)
        prompt_of_B = torch.tensor(wave.prompt_of_answer, device=self._device)
        logits: dict[int, Tensor] = {}
        if self._cut is not None and self._cut.tokens == wave.prompts[0]:
            self._cache.repeat_prompt(rows_B[prompt_of_B == 0], self._cut.cached)
            logits[0] = self._cut.logits_V
        unread = [index for index in range(len(wave.prompts)) if index not in logits]
        if self._prefixes is None:
            lengths = [len(wave.prompts[index]) for index in unread]
            budget = max(_PREFILL_TOKENS, *lengths, 1)
            for places in pack_by_tokens(lengths, max_tokens=budget):
                prompts = [unread[place] for place in places]
                ends_PD = self._read_prompts(wave, prompts, rows_B, prompt_of_B)
                logits.update(zip(prompts, self._family.logits(ends_PD), strict=True))
        else:
            self._prefixes.begin(wave)
            rows = {index: rows_B[prompt_of_B == index] for index in unread}
            prompts = {index: wave.prompts[index] for index in unread}
            logits.update(self._prefixes.read(prompts, rows, at_once=_PREFILL_TOKENS))
        self._keep_cut_group(wave, int(rows_B[-1]), logits)
        return torch.stack([logits[index] for index in wave.prompt_of_answer])

    def end(self, answers: Mapping[int, Sequence[int]]) -> None:
        """See `Decoder`."""
        if self._prefixes is not None:
            self._prefixes.end(answers)

    def keep(self, rows: Tensor) -> None:
        """See `Decoder`."""
        self._cache.keep(rows)
        if self._prefixes is not None:
            self._prefixes.keep(rows.tolist())

    def step(self, tokens_B: Tensor) -> Tensor:
        """See `Decoder`."""
        self._cache.lengthen()
        if self._graphed is not None:
            logits_BV = self._graphed(tokens_B)
            if logits_BV is not None:
                return logits_BV
            self._graphed = None
        positions_B = self._cache.place_newest()
        attend = self._attention(self._cache, self._unseen(positions_B))
        return self._family.logits(self._family.hidden(tokens_B, positions_B, attend))

    def extend(self, tokens_N: Tensor, counts_B: Tensor) -> Tensor:
        """See `RunDecoder`."""
        tokens_N = tokens_N.to(self._device)
        if bool((counts_B == 1).all()):
            return self.step(tokens_N)
        places = self._cache.extend_by(counts_B)
        attend = RunAttention(self._cache, counts_B, places)
        return self._family.logits(self._family.hidden(tokens_N, places[1], attend))

    def shorten(self, counts_B: Tensor) -> None:
        """See `RunDecoder`."""
        self._cache.shorten(counts_B)

    def _unseen(self, positions_B: Tensor) -> Tensor | None:
        """What is added to scores, [B, 1, 1, T], or None where all sequences are of one length."""
        if self._cache.shortest == self._cache.longest:
            return None
        slots_T = torch.arange(self._cache.longest, device=self._device)
        is_unseen_BT = slots_T > positions_B[:, None]
        added_BT = torch.zeros(is_unseen_BT.shape, dtype=self._cache.dtype, device=self._device)
        return added_BT.masked_fill_(is_unseen_BT, -torch.inf)[:, None, None]

    def _keep_cut_group(self, wave: Wave, last_row: int, logits: Mapping[int, Tensor]) -> None:
        """Keeps what the answers need that wait for room, if the wave's last group is cut."""
        self._cut = None
        if wave.is_cut:
            index = wave.prompt_of_answer[-1]
            tokens = wave.prompts[index]
            self._cut = _CutGroup(tokens, self._cache.held(last_row, 0, len(tokens)), logits[index])

    def _read_prompts(
        self, wave: Wave, prompts: list[int], rows_B: Tensor, prompt_of_B: Tensor
    ) -> Tensor:
        """Fills the slots of all answers to `prompts`; returns the last tokens' hidden [P, D]."""
        tokens = [torch.tensor(wave.prompts[index]) for index in prompts]
        tokens_PT = pad_sequence(tokens, batch_first=True).to(self._device)
        positions_PT = torch.arange(tokens_PT.shape[1], device=self._device).expand_as(tokens_PT)
        is_here_BP = prompt_of_B[:, None] == torch.tensor(prompts, device=self._device)
        places, sources = is_here_BP.nonzero(as_tuple=True)
        rows = rows_B[places]
        last_P = torch.tensor([len(prompt) - 1 for prompt in tokens], device=self._device)
        attend = partial(self._attend_prompts, rows, sources, last_P)
        ends = (torch.arange(len(prompts), device=self._device), last_P)
        return self._family.hidden(tokens_PT, positions_PT, attend, wanted=ends)

    def _attend_prompts(
        self, rows: Tensor, sources: Tensor, last_P: Tensor, call: AttentionCall
    ) -> Tensor:
        """Causal attention inside the prompts, [P, T, heads, K]; padding on the right is unseen.

        Of the last layer the last tokens alone have queries, [P, heads, K].
        """
        keys, values = call.keys.transpose(1, 2), call.values.transpose(1, 2)
        self._cache.write_prompts(call.layer, rows, keys[sources], values[sources])
        if call.queries.dim() == 3:
            is_seen_PT = torch.arange(keys.shape[2], device=self._device) <= last_P[:, None]
            return scaled_dot_product_attention(
                call.queries[:, :, None],
                keys,
                values,
                attn_mask=is_seen_PT[:, None, None],
                scale=call.scaling,
                enable_gqa=True,
            ).flatten(1)
        queries = call.queries.transpose(1, 2)
        attended = scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=call.scaling, enable_gqa=True
        )
        return attended.transpose(1, 2).flatten(2)
