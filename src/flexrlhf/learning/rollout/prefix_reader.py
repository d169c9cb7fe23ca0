"""Reads of prompts only what is not kept of the beginnings that they have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from torch import Tensor

from flexrlhf.learning.data.experience import pack_by_tokens
from flexrlhf.learning.models.families import Family
from flexrlhf.learning.rollout.kept_prefixes import BLOCK_TOKENS, KeptPrefixes
from flexrlhf.learning.rollout.kv_cache import KVCache
from flexrlhf.learning.rollout.prompt_counts import PromptCounts
from flexrlhf.learning.rollout.rest_attention import Rest, RestAttention
from flexrlhf.learning.rollout.waves import Wave


class PrefixReader:
    """Fills the slots of a cache with prompts, and keeps prompts and answers for later ones.

    Args:
        family: the model, prepared for the longest sequence.
        cache: of the sequences that are generated.
        kept: what earlier sequences left; of the same weights, type, device and family.
        counts: what is read is added to these.
    """

    def __init__(
        self, family: Family, cache: KVCache, kept: KeptPrefixes, counts: PromptCounts
    ) -> None:
        self._family = family
        self._cache = cache
        self._kept = kept
        self._counts = counts
        self._prompts: list[tuple[int, ...]] = []
        """Of each row."""

    def begin(self, wave: Wave) -> None:
        """Adds the wave's answers behind the present rows."""
        self._prompts += [wave.prompts[index] for index in wave.prompt_of_answer]

    def read(
        self, prompts: Mapping[int, tuple[int, ...]], rows: Mapping[int, Tensor], *, at_once: int
    ) -> dict[int, Tensor]:
        """Fills the slots of answers with their prompts.

        A prompt whose beginning is being read for another one waits until that is kept.

        Args:
            prompts: distinct ones, by number.
            rows: of the answers to each.
            at_once: tokens that are read at one time.

        Returns:
            The logits [V] behind each prompt.
        """
        logits: dict[int, Tensor] = {}
        waiting = list(prompts)
        while waiting:
            rests: dict[int, Rest] = {}
            begun: set[tuple[int, ...]] = set()
            for index in waiting:
                tokens = prompts[index]
                places = self._kept.find(tokens)
                start = len(places) * BLOCK_TOKENS
                next_end = start + BLOCK_TOKENS
                if len(tokens) > next_end and tokens[:next_end] in begun:
                    continue
                last_end = min(len(tokens), self._kept.most_blocks * BLOCK_TOKENS)
                ends = range(next_end, last_end + 1, BLOCK_TOKENS)
                begun.update(tokens[:end] for end in ends)
                if places:
                    self._cache.repeat_prompt(rows[index], self._kept.read(places))
                rests[index] = Rest(tokens, start, rows[index])
                self._counts.add(prompt=len(tokens), read=len(tokens) - start)
            logits.update(self._read_rests(rests, at_once))
            for rest in rests.values():
                self._keep(rest.tokens, int(rest.rows[0]))
            waiting = [index for index in waiting if index not in rests]
        return logits

    def end(self, answers: Mapping[int, Sequence[int]]) -> None:
        """Keeps what was read of rows that end; see `Decoder`."""
        for row, tokens in answers.items():
            self._keep((*self._prompts[row], *tokens[:-1]), row)  # the last was never read

    def keep(self, rows: Sequence[int]) -> None:
        """Makes old row `rows[i]` the new row i; the others are gone."""
        self._prompts = [self._prompts[row] for row in rows]

    def _keep(self, tokens: Sequence[int], row: int) -> None:
        self._kept.keep(tokens, partial(self._cache.held, row))

    def _read_rests(self, rests: Mapping[int, Rest], at_once: int) -> dict[int, Tensor]:
        logits: dict[int, Tensor] = {}
        numbers = list(rests)
        lengths = [len(rest.tokens) - rest.start for rest in rests.values()]
        for places in pack_by_tokens(lengths, max_tokens=max(at_once, *lengths)):
            chosen = [numbers[place] for place in places]
            attend = RestAttention(self._cache, [rests[number] for number in chosen])
            # One row of a batch: on its own a sequence is taken for the tokens of a step.
            hidden_1ND = self._family.hidden(attend.tokens_1N, attend.positions_1N, attend)
            ends_PD = hidden_1ND[0, attend.ends_P]
            logits.update(zip(chosen, self._family.logits(ends_PD), strict=True))
        return logits
