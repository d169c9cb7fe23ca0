"""Of the last layer only the last tokens of prompts are computed, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from flexrlhf.learning.models.exact_norms import make_norms_exact
from flexrlhf.learning.models.families import FAMILIES, AttentionCall, Family
from flexrlhf.learning.rollout.decoding import Room
from flexrlhf.learning.rollout.native import native_decoder
from flexrlhf.learning.rollout.packed_family import PackedRotaryFamily
from flexrlhf.learning.rollout.packed_linear import can_pack
from flexrlhf.learning.rollout.waves import Wave

PROMPTS = ((5, 6, 7, 9, 11, 2), (8,), (3, 4, 4, 9))
SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
}
FAMILY_NAMES = ("Llama", "Qwen2", "Qwen3", "GPT2")


def model_of(family: str, dtype: torch.dtype) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4}
    if family != "GPT2":
        sizes = SIZES
    config = getattr(transformers, f"{family}Config")(**sizes)
    name = "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"
    model = getattr(transformers, name)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    make_norms_exact(model, dtype)
    return model.to(dtype).eval()


class WholeAttention:
    """Causal attention of padded rows that remembers how many queries each layer asked."""

    def __init__(self, last_P: Tensor) -> None:
        self._last_P = last_P
        self.num_queries: list[int] = []

    def __call__(self, call: AttentionCall) -> Tensor:
        queries, keys, values = call.heads
        self.num_queries.append(queries.shape[:-2].numel())
        group = queries.shape[-2] // keys.shape[-2]
        keys, values = (of.repeat_interleave(group, dim=-2) for of in (keys, values))
        outputs = []
        for row, last in enumerate(self._last_P.tolist()):
            asked = queries[row, None] if queries.dim() == 3 else queries[row, : last + 1]
            seen_QT = torch.ones(len(asked), last + 1, dtype=torch.bool).tril(
                diagonal=last + 1 - len(asked)
            )
            heads = (asked, keys[row, : last + 1], values[row, : last + 1])
            out_HQK = scaled_dot_product_attention(
                *(of.transpose(0, 1) for of in heads), attn_mask=seen_QT, scale=call.scaling
            )
            outputs.append(out_HQK.transpose(0, 1).flatten(1))
        if queries.dim() == 3:
            return torch.cat(outputs)
        return nn.utils.rnn.pad_sequence(outputs, batch_first=True)


def check_wanted(run: Family, *, tolerance: float) -> None:
    run.prepare(8)
    last_P = torch.tensor([len(prompt) - 1 for prompt in PROMPTS])
    tokens_PT = nn.utils.rnn.pad_sequence([torch.tensor(one) for one in PROMPTS], batch_first=True)
    positions_PT = torch.arange(tokens_PT.shape[1]).expand_as(tokens_PT)
    ends = (torch.arange(len(PROMPTS)), last_P)
    some, whole = WholeAttention(last_P), WholeAttention(last_P)
    ours = run.logits(run.hidden(tokens_PT, positions_PT, some, wanted=ends))
    theirs = run.logits(run.hidden(tokens_PT, positions_PT, whole)[ends])
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)
    assert some.num_queries == [18, 18, 3]
    assert whole.num_queries == [18, 18, 18]


@pytest.mark.parametrize("family", FAMILY_NAMES)
@torch.no_grad()
def test_wanted_tokens_are_those_of_the_whole_output(family: str) -> None:
    model = model_of(family, torch.float64)
    check_wanted(FAMILIES[type(model).__name__](model), tolerance=1e-12)


@pytest.mark.skipif(not can_pack(), reason="PyTorch lacks oneDNN's products here")
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
@pytest.mark.parametrize("rounds", [False, True])
@torch.inference_mode()
def test_wanted_tokens_of_packed_weights(family: str, rounds: bool) -> None:
    model = model_of(family, torch.float32)
    check_wanted(PackedRotaryFamily(model, rows=3, rounds=rounds), tolerance=2e-5)


@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.parametrize("prompts", [PROMPTS, ((5, 6, 7), (8, 2, 2)), ((4,),)])
@torch.inference_mode()
def test_prompts_of_unlike_lengths_go_on_as_alone(
    family: str, prompts: tuple[tuple[int, ...], ...]
) -> None:
    """Every row has the logits of the model itself, which reads one sequence at a time."""
    model = model_of(family, torch.float64)
    decoder = native_decoder(model, Room(len(prompts) + 1, 8, 3), packs_weights=False)
    answers = (0, *range(len(prompts)))
    sequences = [list(prompts[index]) for index in answers]
    logits_BV = decoder.admit(Wave(prompts, answers, tuple(range(len(answers)))))
    for token in (7, 11, 5):
        alone = [model(torch.tensor([sequence])).logits[0, -1] for sequence in sequences]
        torch.testing.assert_close(logits_BV, torch.stack(alone), rtol=0, atol=1e-12)
        for sequence in sequences:
            sequence.append(token)
        logits_BV = decoder.step(torch.full((len(answers),), token))
