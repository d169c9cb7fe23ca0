"""Forward passes that scoring and training share: log-probs, values and scores of given tokens.

One pass of the trunk gives hidden states; heads then run at the positions that count, so no tensor
of batch x tokens x vocabulary exists. Positions and attention come from lengths, so neither padding
nor the pad token changes a result. Position t - 1 speaks about token t. A model of a known family
that is whole reads packed tokens, a shared prompt once, or the padded rows where that leaves out
little, and runs its own layers; others go through the model's own forward pass.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flexrlhf.learning.algorithms.token_logprobs import selected_logprobs
from flexrlhf.learning.data.experience import Batch
from flexrlhf.learning.models.families import trainable_family
from flexrlhf.learning.models.heads import SharedActorCritic, pretrained
from flexrlhf.learning.models.output_head import output_head
from flexrlhf.learning.models.packing import pack, taken
from flexrlhf.learning.models.score_head import score_head


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What a policy says about each trainable token; zero elsewhere, nats, float32 or wider."""

    logprobs: Tensor
    """[B, T]: log p(token_t | tokens_<t)."""
    entropy: Tensor | None
    """[B, T]: entropy of the distribution that token t was drawn from, when asked for."""


@dataclass(frozen=True, slots=True)
class SharedOutputs:
    """What a shared actor-critic says about each trainable token; zero elsewhere."""

    logprobs: Tensor
    entropy: Tensor | None
    values: Tensor
    """[B, T]: V(state before token t)."""


def token_logprobs(
    model: nn.Module, batch: Batch, *, temperature: float = 1.0, with_entropy: bool = False
) -> TokenLogprobs:
    """Returns the log-probs of the batch's trainable tokens under `model`, with gradients.

    Args:
        model: a causal language model or a `SharedActorCritic`.
        batch: right-padded sequences on the device of the model.
        temperature: divides the logits, as the sampler did.
        with_entropy: also return each distribution's entropy.

    Raises:
        ConfigError: the family's logits are no linear function of its hidden states.
    """
    hidden_ND = _hidden_before_tokens(model, batch)
    return _logprobs(model, hidden_ND, batch, temperature, with_entropy=with_entropy)


def token_values(scorer: nn.Module, batch: Batch) -> Tensor:
    """Returns V(state before token t) of trainable tokens as [B, T], zero elsewhere.

    Args:
        scorer: a sequence-classification model with one label, or a `SharedActorCritic`.
        batch: right-padded sequences on the device of the model.
    """
    hidden_ND = _hidden_before_tokens(scorer, batch)
    return _spread(_head_outputs(scorer, hidden_ND), batch.mask)


def sequence_scores(scorer: nn.Module, batch: Batch) -> Tensor:
    """Returns the score at the last token of each sequence as [B], by lengths, not by pad ids."""
    columns_T = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    is_last_BT = columns_T == (batch.lengths - 1)[:, None]
    return _head_outputs(scorer, _hidden_at(scorer, batch, is_last_BT))


def shared_outputs(
    model: nn.Module, batch: Batch, *, temperature: float = 1.0, with_entropy: bool = False
) -> SharedOutputs:
    """Returns log-probs and values of trainable tokens from one pass of a `SharedActorCritic`."""
    hidden_ND = _hidden_before_tokens(model, batch)
    policy = _logprobs(model, hidden_ND, batch, temperature, with_entropy=with_entropy)
    values_BT = _spread(_head_outputs(model, hidden_ND), batch.mask)
    return SharedOutputs(policy.logprobs, policy.entropy, values_BT)


def hidden_states(model: nn.Module, batch: Batch) -> Tensor:
    """Runs the trunk over right-padded sequences and returns [B, T, D]."""
    trunk = pretrained(model).base_model
    inputs = {"input_ids": batch.tokens, "attention_mask": batch.attention_mask}
    # Families without it, such as Bloom, place tokens by the attention mask.
    if "position_ids" in inspect.signature(trunk.forward).parameters:
        positions_T = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        inputs["position_ids"] = positions_T.expand_as(batch.tokens)
    return trunk(**inputs, use_cache=False).last_hidden_state


def _hidden_before_tokens(model: nn.Module, batch: Batch) -> Tensor:
    """Returns the hidden state before each trainable token, row by row."""
    is_wanted_BT = torch.zeros_like(batch.mask)
    is_wanted_BT[:, :-1] = batch.mask[:, 1:]
    return _hidden_at(model, batch, is_wanted_BT)


def _hidden_at(model: nn.Module, batch: Batch, is_wanted_BT: Tensor) -> Tensor:
    """Returns the hidden states at some positions, row by row, [N, D]."""
    family = trainable_family(pretrained(model))
    packing = None if family is None else pack(batch, is_wanted_BT)
    if family is None or packing is None:
        return hidden_states(model, batch)[is_wanted_BT]
    family.prepare(packing.num_positions)
    hidden_ND = family.hidden(packing.tokens, packing.positions, packing.attend)
    return taken(family.states(hidden_ND), packing.wanted)


def _logprobs(
    model: nn.Module, hidden_ND: Tensor, batch: Batch, temperature: float, *, with_entropy: bool
) -> TokenLogprobs:
    head = output_head(pretrained(model))
    # As in `OutputHead.logits`, but a chunk at a time.
    with torch.autocast(hidden_ND.device.type, enabled=False):
        logprobs_N, entropy_N = selected_logprobs(
            hidden_ND.to(head.weight.dtype),
            head.weight,
            batch.tokens[batch.mask],
            head_bias_V=head.bias,
            temperature=temperature / head.multiplier,
            with_entropy=with_entropy,
        )
    entropy_BT = None if entropy_N is None else _spread(entropy_N, batch.mask)
    return TokenLogprobs(_spread(logprobs_N, batch.mask), entropy_BT)


def _head_outputs(model: nn.Module, hidden_ND: Tensor) -> Tensor:
    """Returns one number per hidden state, in float32 or wider."""
    head = model.value_head if isinstance(model, SharedActorCritic) else score_head(model)
    # Autocast would round values to 8 bits, for no gain: the head is one column.
    with torch.autocast(hidden_ND.device.type, enabled=False):
        outputs_N = head(hidden_ND.to(head.weight.dtype)).squeeze(-1)
    return outputs_N.to(torch.promote_types(outputs_N.dtype, torch.float32))


def _spread(values_N: Tensor, mask_BT: Tensor) -> Tensor:
    """Puts one number per trainable token back into [B, T]."""
    empty_BT = values_N.new_zeros(mask_BT.shape)
    return empty_BT.masked_scatter(mask_BT, values_N)
