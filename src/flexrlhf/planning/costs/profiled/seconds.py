"""Seconds of passes, generation and updates of one model on a profiled machine.

Host and device take turns where the device is the host itself, so their times add up. What a layer
computes is its products at the speed of layers as wide as it, all that lies between the products
included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flexrlhf.core.packed_rows import PackedRows
from flexrlhf.planning.costs.continuous import Ends, ends
from flexrlhf.planning.costs.held_model import DTYPE_BYTES, HeldModel
from flexrlhf.planning.costs.profiled.batches import Bin, SequenceLength
from flexrlhf.planning.costs.profiled.constants import ProfiledCosts
from flexrlhf.planning.costs.profiled.memory import CHUNK_TOKENS
from flexrlhf.planning.costs.speculation import Speculation

_TRAIN_PASSES = 3
"""A backward pass has twice the operations of a forward one."""


@dataclass(frozen=True, slots=True)
class ModelSeconds:
    """One role's model on a profiled machine."""

    model: HeldModel
    costs: ProfiledCosts
    packs: bool = False
    """Whether passes leave out padding, and read a shared prompt once, where that pays."""
    reads_ends: bool = False
    """Whether a pass says something of last tokens, which else nothing is wanted of."""

    def score(self, bins: Sequence[Bin], rows_per_item: int = 1) -> float:
        """Returns the seconds in which the model reads `bins` without gradients."""
        return self.costs.wholes.score * sum(self._score_pass(part, rows_per_item) for part in bins)

    def train(self, part: Bin, rows_per_item: int = 1) -> float:
        """Returns the seconds in which the gradient of one pass is added."""
        costs, shape = self.costs, self.model.shape
        passes = _TRAIN_PASSES + (1 if self.model.recomputes else 0)
        seconds = costs.train.seconds(shape.layers, part.items * rows_per_item)
        _, flops = self._read(part, rows_per_item)
        seconds += passes * flops / costs.train_speed(shape.hidden)
        head = self._head_s(part.responses, costs.logits.train_s, _TRAIN_PASSES)
        # Of the head's chunks all but the last are computed once more in the backward pass.
        again = max(0.0, part.responses - CHUNK_TOKENS)
        head += self._head_s(again, costs.logits.score_s, 1)
        return self.costs.wholes.train * (seconds + head)

    def update(self) -> float:
        """Returns the seconds of an optimiser step."""
        update, shape = self.costs.update, self.model.shape
        tensors = shape.num_tensors + 2 * shape.layers  # every layer's two norms
        whole_s = update.step_s + tensors * update.tensor_s
        return self.costs.wholes.train * (whole_s + self.model.trainable_params * update.param_s)

    def generate(
        self,
        answers: Sequence[SequenceLength],
        samples_per_prompt: int,
        *,
        at_once: int | None = None,
        together_s: Callable[[float], float] = lambda _: 0.0,
        speculation: Speculation | None = None,
    ) -> Ends:
        """Returns when answers end that begin in order.

        Args:
            answers: their lengths.
            samples_per_prompt: that follow each other and share one, which is read once.
            at_once: answers that are generated at one time; None: all.
            together_s: seconds by which a pass over a token of so many answers is longer, as
                processes wait for each other in it.
            speculation: how several tokens come of a step; None: one does.
        """
        prompt = sum(answer.prompt for answer in answers) / max(1, len(answers))
        whole = self.costs.wholes.generate

        def begin_s(begun: range) -> float:
            firsts = [answers[n].prompt for n in begun if n % samples_per_prompt == 0]
            seconds = len(begun) * self.costs.answer_s + self._draw_s(len(begun))
            if firsts:
                seconds += self._prefill_s(firsts)
                if speculation is not None and speculation.draft is not None:
                    seconds += ModelSeconds(speculation.draft, self.costs)._prefill_s(firsts)
            return whole * seconds + (together_s(len(begun)) if firsts else 0.0)

        def token_s(rows: float, generated: float) -> float:
            seconds = whole * self.token_s(rows, prompt + generated, speculation)
            per_step = 1.0 if speculation is None else speculation.tokens_per_step
            return seconds + together_s(rows) / per_step

        return ends(
            [answer.response for answer in answers],
            at_once or max(1, len(answers)),
            token_s,
            begin_s,
        )

    def token_s(self, rows: float, context: float, speculation: Speculation | None) -> float:
        """Returns the seconds in which each of `rows` sequences gets a token."""
        if speculation is None:
            return self._step_s(rows, context)
        return speculation.token_s(
            lambda tokens: self._step_s(rows, context, tokens),
            lambda draft: ModelSeconds(draft, self.costs)._step_s(rows, context),
        )

    def _score_pass(self, part: Bin, rows_per_item: int) -> float:
        costs, shape = self.costs, self.model.shape
        seconds = costs.score.seconds(shape.layers, part.items * rows_per_item)
        tokens, flops = self._read(part, rows_per_item)
        seconds += flops / self._speed(tokens)
        return seconds + self._head_s(part.responses, costs.logits.score_s, 1)

    def read(self, part: Bin) -> PackedRows | None:
        """Returns what layers of our own read of `part`; None where the model runs its own."""
        if not self.packs:
            return None
        packed = part.packed(reads_ends=self.reads_ends)
        return packed or part.as_it_is(reads_ends=self.reads_ends)

    def _read(self, part: Bin, rows_per_item: int) -> tuple[float, float]:
        """Tokens that a pass reads, and its operations through the layers.

        A mask hides positions, but spares no work.
        """
        read = self.read(part)
        tokens, context = part.tokens, part.longest / rows_per_item
        if read is not None:
            tokens, context = read.num_tokens, read.pairs / max(1, read.num_tokens)
        return tokens, self.model.shape.forward_flops(tokens, context, with_head=False)

    def _speed(self, rows: float) -> float:
        width = self.model.shape.hidden
        return min(self.costs.score_speed(width), self.costs.row_speed(rows, width))

    def _head_s(self, tokens: float, logit_s: float, passes: int) -> float:
        """The head runs at the tokens that the loss counts alone."""
        if not self.model.has_vocabulary_head:
            return 0.0
        shape = self.model.shape
        product = 2 * shape.hidden * passes / self.costs.score_speed(shape.hidden)
        return tokens * shape.vocab * (product + logit_s)

    def _prefill_s(self, prompts: Sequence[float]) -> float:
        """Each distinct prompt is read once, all of a wave in one pass."""
        part = Bin(len(prompts), max(prompts, default=0.0), 0.0)
        costs, shape = self.costs, self.model.shape
        host_s = costs.score.seconds(shape.layers, part.items)
        _, flops = self._read(part, 1)
        return host_s + flops / self._speed(part.tokens)

    def _draw_s(self, rows: float) -> float:
        return rows * self.model.shape.vocab * self.costs.logits.draw_s

    def _step_s(self, rows: float, context: float, tokens: int = 1) -> float:
        """Some tokens of each of `rows` sequences, which attend to `context` tokens."""
        costs, shape = self.costs, self.model.shape
        read = rows * tokens
        flops = shape.forward_flops(read, 0.0, with_head=True)
        cache = rows * context * shape.cache_values_per_token
        cache *= DTYPE_BYTES[self.model.compute_dtype]
        host_s = costs.decode.seconds(shape.layers, read)
        products_s = flops / costs.row_speed(read, shape.hidden)
        return host_s + products_s + cache / costs.memory.cache_bandwidth + self._draw_s(read)
