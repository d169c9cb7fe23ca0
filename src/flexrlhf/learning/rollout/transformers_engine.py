"""The reference engine: a plain batched loop over the model's own trunk, head and cache."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from flexrlhf.learning.models.heads import pretrained
from flexrlhf.learning.models.output_head import output_head
from flexrlhf.learning.rollout.decoding import Decoder, Room
from flexrlhf.learning.rollout.lockstep import RunPass
from flexrlhf.learning.rollout.module_engine import ModuleEngine
from flexrlhf.learning.rollout.protocol import Sampling
from flexrlhf.learning.rollout.speculation.drafter import Drafter
from flexrlhf.learning.rollout.waves import Wave


class TransformersEngine(ModuleEngine):
    """Any Hugging Face causal language model; every answer reads its prompt by itself."""

    name = "transformers"
    families = ()
    speculates = False
    rounds = False
    keeps = False

    @classmethod
    def unsupported_reason(cls, model: nn.Module, *, gathers_per_token: bool = False) -> str | None:
        """Returns why the engine cannot run `model`, or None."""
        del gathers_per_token  # it calls whole layers
        if "past_key_values" not in inspect.signature(model.forward).parameters:
            return f"{type(model).__name__} keeps no past keys and values"
        return None

    def _decoder(self, room: Room, run: RunPass) -> Decoder:
        del room  # the cache grows by itself
        return TransformersDecoder(run, self._model, self._device)

    def _drafter(self, room: Room, sampling: Sampling) -> Drafter:
        raise AssertionError(f"nothing is proposed here for {room} and {sampling}")


class TransformersDecoder:
    """One wave after the other, each as a batch padded on the left with a `DynamicCache`.

    Args:
        run: makes one pass of the model.
        model: the causal language model, for what does not depend on weights.
        device: where tokens go.
    """

    admits = False

    def __init__(self, run: RunPass, model: nn.Module, device: torch.device) -> None:
        causal_lm: Any = model
        forward = inspect.signature(causal_lm.base_model.forward)
        self._run = run
        self._config = causal_lm.config
        self._takes_positions = "position_ids" in forward.parameters
        self._cache: Any = None
        self._mask_BT = torch.zeros(0, 0, dtype=torch.int64, device=device)

    def admit(self, wave: Wave) -> Tensor:
        """See `Decoder`; no other row is there."""
        from transformers import DynamicCache

        self._cache = DynamicCache(config=self._config)
        longest = max(wave.prompt_lengths)
        prompt_BT = self._mask_BT.new_zeros(len(wave.sample_ids), longest)
        self._mask_BT = torch.zeros_like(prompt_BT)
        for row, index in enumerate(wave.prompt_of_answer):
            tokens = torch.tensor(wave.prompts[index], device=prompt_BT.device)
            prompt_BT[row, longest - len(tokens) :] = tokens
            self._mask_BT[row, longest - len(tokens) :] = 1
        return self._forward(prompt_BT)

    def end(self, answers: Mapping[int, Sequence[int]]) -> None:
        """See `Decoder`; nothing is kept."""

    def keep(self, rows: Tensor) -> None:
        """See `Decoder`."""
        rows = rows.to(self._mask_BT.device)
        self._mask_BT = self._mask_BT[rows]
        self._cache.batch_select_indices(rows)

    def step(self, tokens_B: Tensor) -> Tensor:
        """See `Decoder`."""
        self._mask_BT = torch.cat([self._mask_BT, torch.ones_like(self._mask_BT[:, :1])], dim=1)
        return self._forward(tokens_B[:, None])

    def _forward(self, tokens_BT: Tensor) -> Tensor:
        """Reads the tokens behind those in the cache; returns the logits [B, V] of the last."""
        return self._run(partial(self._logits, tokens_BT))

    def _logits(self, tokens_BT: Tensor, module: nn.Module) -> Tensor:
        causal_lm: Any = pretrained(module)
        num_tokens = tokens_BT.shape[1]
        # Positions count real tokens only; those of padding are hidden by the mask.
        positions_BT = (self._mask_BT.cumsum(dim=1) - 1).clamp(min=0)[:, -num_tokens:]
        output = causal_lm.base_model(
            input_ids=tokens_BT,
            attention_mask=self._mask_BT,
            past_key_values=self._cache,
            use_cache=True,
            **({"position_ids": positions_BT} if self._takes_positions else {}),
        )
        return output_head(causal_lm).logits(output.last_hidden_state[:, -1])
