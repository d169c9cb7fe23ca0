"""Log-probs, values and scores against the Hugging Face models' own outputs."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.data.experience import Batch
from flexrlhf.learning.models.forward import (
    sequence_scores,
    shared_outputs,
    token_logprobs,
    token_values,
)
from flexrlhf.learning.models.heads import SharedActorCritic
from flexrlhf.learning.models.loading import load_policy, load_scorer
from flexrlhf.learning.models.output_head import check_output_head, output_head


def logits_alone(model, batch: Batch, row: int) -> torch.Tensor:
    """The model's own logits of one sequence, unpadded and without masks."""
    return model(batch.tokens[row : row + 1, : batch.lengths[row]]).logits[0]


def own_logprobs(model, batch: Batch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies, token by token, from the model's own full logits."""
    logprobs = torch.zeros(batch.tokens.shape, dtype=torch.float64)
    entropies = torch.zeros(batch.tokens.shape, dtype=torch.float64)
    for row in range(len(batch.lengths)):
        logits = logits_alone(model, batch, row) / temperature
        for t in range(1, int(batch.lengths[row])):
            if batch.mask[row, t]:
                distribution = torch.log_softmax(logits[t - 1], dim=-1)
                logprobs[row, t] = distribution[batch.tokens[row, t]]
                entropies[row, t] = -(distribution.exp() * distribution).sum()
    return logprobs, entropies


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_the_models_own_logits(family, make_source, make_batch, temperature):
    model = load_policy(make_source(family))
    batch = make_batch()
    outputs = token_logprobs(model, batch, temperature=temperature, with_entropy=True)
    logprobs, entropies = own_logprobs(model, batch, temperature)
    torch.testing.assert_close(outputs.logprobs, logprobs, rtol=0, atol=1e-12)
    torch.testing.assert_close(outputs.entropy, entropies, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scaled_family", ["cohere", "granite", "mistral"])
def test_families_that_scale_their_logits(scaled_family, make_source, make_batch):
    model = load_policy(make_source(scaled_family))
    batch = make_batch()
    outputs = token_logprobs(model, batch, temperature=0.6, with_entropy=True)
    logprobs, entropies = own_logprobs(model, batch, 0.6)
    torch.testing.assert_close(outputs.logprobs, logprobs, rtol=0, atol=1e-12)
    torch.testing.assert_close(outputs.entropy, entropies, rtol=0, atol=1e-12)


def test_capped_logits_are_refused(make_source):
    with pytest.raises(ConfigError, match=r"caps them at 30\.0"):
        load_policy(make_source("gemma2"))


def test_logits_that_are_changed_after_the_head_are_refused(make_source):
    model = load_policy(make_source("mistral"))
    model.lm_head.register_forward_hook(lambda _module, _inputs, logits: logits * 1.1)
    with pytest.raises(ConfigError, match="not head times last hidden state"):
        check_output_head(model)


def test_entropy_is_absent_unless_asked_for(make_source, make_batch):
    assert token_logprobs(load_policy(make_source("llama")), make_batch()).entropy is None


def test_padding_and_its_tokens_change_nothing(family, make_source, make_batch):
    policy, scorer = load_policy(make_source(family)), load_scorer(make_source(family))
    batch = make_batch()
    tokens = torch.nn.functional.pad(batch.tokens, (0, 6))
    for row, length in enumerate(batch.lengths):
        tokens[row, length:] = 7
    longer = Batch(tokens, batch.lengths, torch.nn.functional.pad(batch.mask, (0, 6)))
    for forward in (
        lambda b: token_logprobs(policy, b).logprobs,
        lambda b: token_values(scorer, b),
    ):
        wide, narrow = forward(longer), forward(batch)
        torch.testing.assert_close(wide[:, :14], narrow, rtol=0, atol=1e-12)
        assert not wide[:, 14:].any()
    torch.testing.assert_close(
        sequence_scores(scorer, longer), sequence_scores(scorer, batch), rtol=0, atol=1e-12
    )


def test_order_of_rows_changes_nothing(family, make_source, make_batch):
    policy, scorer = load_policy(make_source(family)), load_scorer(make_source(family))
    batch = make_batch()
    order = torch.tensor([2, 0, 1])
    shuffled = Batch(batch.tokens[order], batch.lengths[order], batch.mask[order])
    for forward in (
        lambda b: token_logprobs(policy, b).logprobs,
        lambda b: token_values(scorer, b),
        lambda b: sequence_scores(scorer, b),
    ):
        torch.testing.assert_close(forward(shuffled), forward(batch)[order], rtol=0, atol=1e-12)


def test_values_are_the_classifiers_scores_of_prefixes(family, make_source, make_batch):
    scorer = load_scorer(make_source(family))
    scorer.config.pad_token_id = None  # Its own pooling then takes the last position.
    batch = make_batch()
    values = token_values(scorer, batch)
    for row in range(3):
        for t in range(batch.tokens.shape[1]):
            expected = torch.zeros(())
            if batch.mask[row, t]:
                expected = scorer(batch.tokens[row : row + 1, :t]).logits.squeeze()
            torch.testing.assert_close(
                values[row, t], expected, rtol=0, atol=1e-12, check_dtype=False
            )


def test_scores_are_the_classifiers_own(family, make_source, make_batch):
    scorer = load_scorer(make_source(family))
    scorer.config.pad_token_id = None
    batch = make_batch()
    expected = torch.stack(
        [scorer(batch.tokens[row : row + 1, : batch.lengths[row]]).logits[0, 0] for row in range(3)]
    )
    torch.testing.assert_close(sequence_scores(scorer, batch), expected, rtol=0, atol=1e-12)


def test_end_token_counts_even_where_it_is_the_pad_token(make_source, make_batch):
    end = 2
    scorer = load_scorer(make_source("llama", pad_token_id=end, eos_token_id=end))
    batch = make_batch()
    for row, length in enumerate(batch.lengths):
        batch.tokens[row, length - 1 :] = end
    scores = sequence_scores(scorer, batch)
    pooled_before_the_end = scorer(batch.tokens).logits[:, 0]
    scorer.config.pad_token_id = None
    for row, length in enumerate(batch.lengths):
        alone = scorer(batch.tokens[row : row + 1, :length]).logits[0, 0]
        torch.testing.assert_close(scores[row], alone, rtol=0, atol=1e-12)
    assert (scores - pooled_before_the_end).abs().min() > 1e-6


def test_gradients_are_those_of_the_full_logits(family, make_source, make_batch):
    model = load_policy(make_source(family))
    batch = make_batch()
    weights = torch.rand(
        batch.mask.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    (token_logprobs(model, batch).logprobs * weights).sum().backward()
    ours = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    (own_logprobs_with_gradient(model, batch) * weights).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-9, atol=1e-9)


def own_logprobs_with_gradient(model, batch: Batch) -> torch.Tensor:
    rows = []
    for row, length in enumerate(batch.lengths):
        logprobs = torch.log_softmax(logits_alone(model, batch, row)[:-1], dim=-1)
        chosen = logprobs.gather(-1, batch.tokens[row, 1:length, None]).squeeze(-1)
        padding = batch.tokens.shape[1] - int(length)
        rows.append(torch.nn.functional.pad(chosen, (1, padding)))
    return torch.stack(rows) * batch.mask


def test_gradients_of_values_and_scores_reach_the_trunk(make_source, make_batch):
    scorer = load_scorer(make_source("llama"))
    batch = make_batch()
    for output in (token_values(scorer, batch), sequence_scores(scorer, batch)):
        scorer.zero_grad()
        output.square().sum().backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in scorer.parameters())


def test_shared_outputs_are_those_of_both_heads(make_source, make_batch):
    model = SharedActorCritic(load_policy(make_source("qwen3")), seed=4)
    batch = make_batch()
    outputs = shared_outputs(model, batch, temperature=0.7, with_entropy=True)
    policy = token_logprobs(model.trunk, batch, temperature=0.7, with_entropy=True)
    torch.testing.assert_close(outputs.logprobs, policy.logprobs)
    torch.testing.assert_close(outputs.entropy, policy.entropy)
    torch.testing.assert_close(outputs.values, token_values(model, batch))
    hidden = model.trunk.model(batch.tokens[1:2, :14]).last_hidden_state[0]
    for t in range(4, 14):
        torch.testing.assert_close(outputs.values[1, t], model.value_head(hidden[t - 1])[0])


class LargestTensor(TorchDispatchMode):
    """Remembers the largest tensor that any operation returned."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return result


def test_logits_of_the_whole_batch_never_exist(make_source, make_batch):
    vocabulary, lengths = 4096, (60, 60, 60, 60)
    model = load_policy(make_source("llama", dtype="float32", vocab_size=vocabulary))
    batch = make_batch(lengths)
    batch.mask[:] = False
    batch.mask[:, -10:] = True
    with LargestTensor() as seen:
        token_logprobs(model, batch).logprobs.sum().backward()
    assert vocabulary * 32 <= seen.largest < vocabulary * sum(lengths) / 4


def test_one_forward_of_the_trunk_serves_the_whole_batch(make_source, make_batch):
    model = SharedActorCritic(load_policy(make_source("llama")))
    calls = []
    model.trunk.model.register_forward_hook(lambda *_: calls.append(1))
    shared_outputs(model, make_batch())
    assert len(calls) == 1


def test_batch_without_trainable_tokens_gives_zeros(make_source, make_batch):
    batch = make_batch()
    batch.mask[:] = False
    outputs = token_logprobs(load_policy(make_source("llama")), batch, with_entropy=True)
    assert not outputs.logprobs.any()
    assert not outputs.entropy.any()
    outputs.logprobs.sum().backward()


def test_autocast_rounds_hidden_states_but_no_logits(family, make_source, make_batch):
    model = load_policy(make_source(family, dtype="float32"))
    batch = make_batch()
    seen = []
    model.base_model.register_forward_hook(
        lambda _module, _inputs, output: seen.append(output.last_hidden_state)
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = token_logprobs(model, batch)
    exact_BTV = output_head(model).logits(seen[0]).log_softmax(dim=-1)
    for row, t in batch.mask.nonzero().tolist():
        expected = exact_BTV[row, t - 1, batch.tokens[row, t]]
        torch.testing.assert_close(found.logprobs[row, t], expected, rtol=0, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(output_head(model).logits(seen[0]).log_softmax(dim=-1), exact_BTV)
    found.logprobs.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


def test_results_in_bfloat16_are_float32(make_source, make_batch):
    source = make_source("llama", dtype="bfloat16")
    batch = make_batch()
    policy, scorer = load_policy(source), load_scorer(source)
    assert token_logprobs(policy, batch).logprobs.dtype == torch.float32
    assert token_values(scorer, batch).dtype == torch.float32
    assert sequence_scores(scorer, batch).dtype == torch.float32
    exact = token_logprobs(load_policy(make_source("llama")), batch).logprobs
    assert (token_logprobs(policy, batch).logprobs - exact).abs().max() < 0.1
