"""Packed tokens, with shared prompts read once, against each sequence alone in Hugging Face's own
forward pass, in float64: results and the gradient of every parameter."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flexrlhf.core import packed_rows
from flexrlhf.learning.data.experience import Batch, collate_sequences
from flexrlhf.learning.models.families import trainable_family
from flexrlhf.learning.models.forward import (
    sequence_scores,
    token_logprobs,
    token_values,
)
from flexrlhf.learning.models.loading import load_policy, load_scorer
from flexrlhf.learning.models.packing import pack

VOCABULARY = 61
POSITIONS = 256


def grouped_batch(prompts: list[int], answers: list[tuple[int, int]], *, seed: int = 0) -> Batch:
    """Rows of (prompt, answer tokens), with a token in the middle of an answer not trained on."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(length: int) -> torch.Tensor:
        return torch.randint(VOCABULARY, (length,), generator=generator)

    heads = [drawn(length) for length in prompts]
    tokens = [torch.cat((heads[prompt], drawn(length))) for prompt, length in answers]
    masks = []
    for row, (prompt, _) in zip(tokens, answers, strict=True):
        mask = torch.arange(len(row)) >= prompts[prompt]
        if len(row) - prompts[prompt] > 4:
            mask[prompts[prompt] + 2] = False
        masks.append(mask)
    return collate_sequences(tokens, masks)


BATCHES = {
    "one group": grouped_batch([5], [(0, 4)] * 3),
    "groups of unlike sizes, lengths and order": grouped_batch(
        [5, 1, 7], [(1, 6), (0, 3), (2, 1), (0, 9), (1, 6), (0, 5), (2, 8)]
    ),
    "prompts of one length": grouped_batch([6, 6], [(0, 5), (1, 2), (1, 7), (0, 1)]),
    "nothing shared": grouped_batch([3, 5, 2], [(0, 4), (1, 4), (2, 9)]),
    "rows of one length": grouped_batch([4, 4], [(0, 5), (1, 5)]),
    "answers far longer than prompts": grouped_batch([3], [(0, 150), (0, 120)]),
    "two that are the same": grouped_batch([4], [(0, 0), (0, 0), (0, 3)]),
}


@pytest.fixture(autouse=True)
def packs_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it does not pay."""
    monkeypatch.setattr(packed_rows, "LARGEST_SHARE", 1.0)


every_batch = pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)


@pytest.fixture
def make_policy(make_source):
    def make(family: str) -> nn.Module:
        key = "n_positions" if family == "gpt2" else "max_position_embeddings"
        return load_policy(make_source(family, **{key: POSITIONS}))

    return make


@pytest.fixture
def make_scorer(make_source):
    def make(family: str) -> nn.Module:
        key = "n_positions" if family == "gpt2" else "max_position_embeddings"
        scorer = load_scorer(make_source(family, **{key: POSITIONS}))
        scorer.config.pad_token_id = None
        return scorer

    return make


def rows_of(batch: Batch):
    for row, length in enumerate(batch.lengths.tolist()):
        yield row, batch.tokens[row : row + 1, :length]


def weights_like(outputs: torch.Tensor) -> torch.Tensor:
    """What makes a loss of outputs in which none can stand for another."""
    generator = torch.Generator().manual_seed(7)
    return torch.randn(outputs.shape, generator=generator, dtype=torch.float64)


def gradients(model: nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward(retain_graph=True)
    return [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for parameter in model.parameters()
    ]


def assert_same(model: nn.Module, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)
    weights = weights_like(ours)
    pairs = zip(
        gradients(model, (ours * weights).sum()),
        gradients(model, (theirs * weights).sum()),
        strict=True,
    )
    for ours_of_one, theirs_of_one in pairs:
        torch.testing.assert_close(ours_of_one, theirs_of_one, rtol=1e-10, atol=1e-11)


@every_batch
def test_logprobs_and_entropies_are_those_of_each_row_alone(family, make_policy, batch):
    model = make_policy(family)
    assert trainable_family(model) is not None
    outputs = token_logprobs(model, batch, temperature=0.7, with_entropy=True)
    theirs = torch.zeros(2, *batch.tokens.shape, dtype=torch.float64)
    for row, tokens in rows_of(batch):
        said = torch.log_softmax(model(tokens).logits[0] / 0.7, dim=-1)
        for t in batch.mask[row].nonzero().flatten().tolist():
            theirs[0, row, t] = said[t - 1, tokens[0, t]]
            theirs[1, row, t] = -(said[t - 1].exp() * said[t - 1]).sum()
    assert_same(model, torch.stack((outputs.logprobs, outputs.entropy)), theirs)


@every_batch
def test_values_and_scores_are_those_of_each_row_alone(family, make_scorer, batch):
    scorer = make_scorer(family)
    assert trainable_family(scorer) is not None
    values = torch.zeros(batch.tokens.shape, dtype=torch.float64)
    scores = []
    for row, tokens in rows_of(batch):
        said = scorer.score(scorer.base_model(tokens).last_hidden_state)[0, :, 0]
        scores.append(said[-1])
        for t in batch.mask[row].nonzero().flatten().tolist():
            values[row, t] = said[t - 1]
    assert_same(scorer, token_values(scorer, batch), values)
    assert_same(scorer, sequence_scores(scorer, batch), torch.stack(scores))


@every_batch
def test_rows_as_they_are_say_the_same_as_packed_ones(family, make_policy, batch, monkeypatch):
    model = make_policy(family)
    packed = token_logprobs(model, batch, with_entropy=True)
    monkeypatch.setattr(packed_rows, "LARGEST_SHARE", 0.0)
    seen = []
    model.get_input_embeddings().register_forward_hook(
        lambda _module, inputs, _output: seen.append(inputs[0].numel())
    )
    rows = token_logprobs(model, batch, with_entropy=True)
    num_columns = -(-int(batch.mask.any(dim=0).nonzero().max()) // 16) * 16  # whole blocks of keys
    assert seen == [len(batch.tokens) * num_columns]
    assert_same(
        model,
        torch.stack((rows.logprobs, rows.entropy)),
        torch.stack((packed.logprobs, packed.entropy)),
    )


@every_batch
def test_values_of_rows_as_they_are_are_those_of_packed_ones(
    family, make_scorer, batch, monkeypatch
):
    scorer = make_scorer(family)
    packed = torch.cat((token_values(scorer, batch).flatten(), sequence_scores(scorer, batch)))
    monkeypatch.setattr(packed_rows, "LARGEST_SHARE", 0.0)
    rows = torch.cat((token_values(scorer, batch).flatten(), sequence_scores(scorer, batch)))
    assert_same(scorer, rows, packed)


@every_batch
def test_every_token_that_is_needed_is_read_once(make_policy, batch):
    model = make_policy("llama")
    seen = []
    model.model.embed_tokens.register_forward_hook(
        lambda _module, inputs, _output: seen.append(inputs[0].shape)
    )
    token_logprobs(model, batch)
    needed = set()
    for row, tokens in rows_of(batch):
        trained = batch.mask[row].nonzero().flatten().tolist()
        for t in range(max(trained, default=0)):
            # A prompt's token is the same wherever the prompt is; an answer's is its row's own.
            prompt = tuple(tokens[0, : trained[0]].tolist())
            needed.add((prompt, t, None if t < trained[0] else row))
    assert seen == [(len(needed),)]


def test_long_prompts_are_attended_to_apart_from_their_answers():
    def parts(batch: Batch) -> list[tuple[int, int, int]]:
        wanted = batch.mask.roll(-1, 1)
        packing = pack(batch, wanted)
        assert packing is not None
        return [(one.num_rows, one.num_queries, one.num_keys) for one in packing.parts]

    assert parts(grouped_batch([100], [(0, 5)] * 4)) == [(1, 100, 112), (4, 4, 112)]
    assert parts(grouped_batch([3], [(0, 150)] * 4)) == [(4, 152, 160)]
    assert parts(grouped_batch([6, 9], [(0, 5), (1, 8)])) == [(2, 16, 16)]


def test_a_model_that_drops_or_is_watched_runs_as_a_whole(make_source, make_batch):
    model = load_policy(make_source("llama"))
    assert trainable_family(model) is not None
    model.config.attention_dropout = 0.1
    assert trainable_family(model) is not None  # nothing is dropped in evaluation
    model.train()
    assert trainable_family(model) is None
    model.eval()
    calls = []
    model.model.layers[1].register_forward_hook(lambda *_: calls.append(1))
    token_logprobs(model, make_batch())
    assert calls == [1]
    assert trainable_family(load_policy(make_source("mistral"))) is None


def test_packed_and_padded_agree_in_bfloat16(make_source):
    model = load_policy(make_source("qwen2", dtype="float32"))
    batch = BATCHES["one group"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        packed = token_logprobs(model, batch).logprobs
        handle = model.model.register_forward_hook(lambda *_: None)  # now it runs as a whole
        padded = token_logprobs(model, batch).logprobs
        handle.remove()
    exactly = token_logprobs(model, batch).logprobs
    spread = (padded - exactly).abs().max()
    assert 0 < (packed - exactly).abs().max() < 2 * spread
