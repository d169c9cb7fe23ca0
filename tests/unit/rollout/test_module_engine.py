"""What both in-process engines promise: batches, versions, memory and the trainer's modes."""

from __future__ import annotations

import copy
import gc
import threading
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from flexrlhf.core.errors import ConfigError, DataError, FlexError, RunFailed, StaleWeights
from flexrlhf.core.names import BUILT_ENGINES
from flexrlhf.learning.rollout.engines import build_engine
from flexrlhf.learning.rollout.protocol import Generation, Request, Sampling
from flexrlhf.learning.rollout.weight_loading import load_in_place

END = 1
SAMPLING = Sampling(max_new_tokens=12, end_tokens=(END, 2, 3), seed=4, top_p=0.95)
GROUPS = [
    Request((5, 6, 7), (40, 41, 42, 43)),
    Request((8,), (44, 45, 46, 47)),
    Request((9, END, 4, 4, 10, 11, 12), (48, 49, 50, 51)),
]

both_engines = pytest.mark.parametrize("name", BUILT_ENGINES)


def tiny_llama(dtype: torch.dtype = torch.float32, seed: int = 0, **options: object) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
        "initializer_range": 0.5,
    }
    config = LlamaConfig(
        **{**sizes, **options}, vocab_size=29, bos_token_id=None, eos_token_id=END, pad_token_id=END
    )
    return LlamaForCausalLM(config).to(dtype)


def by_id(generations: list[Generation]) -> dict[int, tuple[int, ...]]:
    return {one.sample_id: one.tokens for one in generations}


@both_engines
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_samples_tokens_do_not_depend_on_its_batch(name: str, dtype: torch.dtype) -> None:
    model = tiny_llama(dtype)
    together = build_engine(name, model).generate(GROUPS, SAMPLING)
    assert [one.sample_id for one in together] == list(range(40, 52))
    reordered = [
        Request(group.prompt_tokens, group.sample_ids[::-1]) for group in (GROUPS[2], GROUPS[0])
    ]
    small_waves = build_engine(name, model, max_sequences=3)
    expected = by_id(together)
    assert by_id(small_waves.generate(GROUPS, SAMPLING)) == expected
    for sample_id, tokens in by_id(build_engine(name, model).generate(reordered, SAMPLING)).items():
        assert tokens == expected[sample_id]
    for group in GROUPS:
        for sample_id in group.sample_ids:
            alone = Request(group.prompt_tokens, (sample_id,))
            (one,) = build_engine(name, model).generate([alone], SAMPLING)
            assert one.tokens == expected[sample_id]


@both_engines
def test_group_members_differ_and_can_be_repeated(name: str) -> None:
    engine = build_engine(name, tiny_llama())
    first = engine.generate(GROUPS, Sampling(max_new_tokens=12, seed=4))
    assert engine.generate(GROUPS, Sampling(max_new_tokens=12, seed=4)) == first
    assert len({one.tokens for one in first}) == len(first)
    other = engine.generate(GROUPS, Sampling(max_new_tokens=12, seed=5))
    assert by_id(other) != by_id(first)


@both_engines
def test_the_limits_of_length_hold(name: str) -> None:
    sampling = Sampling(
        max_new_tokens=6, min_new_tokens=4, end_tokens=tuple(range(15)), temperature=3.0
    )
    answers = build_engine(name, tiny_llama()).generate(GROUPS, sampling)
    assert {len(one.tokens) for one in answers} <= {5, 6}
    for one in answers:
        assert not set(one.tokens[:-1]) & set(range(15))
        assert one.finished == (one.tokens[-1] < 15)


@both_engines
def test_an_optimiser_step_is_visible_at_once(name: str) -> None:
    model = tiny_llama()
    engine = build_engine(name, model)
    before = by_id(engine.generate(GROUPS, SAMPLING))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(torch.tensor([[5, 6, 7, 8]]), labels=torch.tensor([[5, 6, 7, 8]])).loss.backward()
    optimizer.step()
    engine.load_weights((), version=1)
    after = engine.generate(GROUPS, SAMPLING)
    assert by_id(after) != before
    assert {one.weight_version for one in after} == {1}
    fresh = build_engine(name, copy.deepcopy(model))
    assert by_id(fresh.generate(GROUPS, SAMPLING)) == by_id(after)


@both_engines
def test_the_trainers_modes_and_gradients_are_left_alone(name: str) -> None:
    model = tiny_llama(attention_dropout=0.5).train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    model.gradient_checkpointing_enable()
    engine = build_engine(name, model)
    answers = engine.generate(GROUPS, SAMPLING)
    assert [module.training for module in model.modules()] == modes
    assert engine.generate(GROUPS, SAMPLING) == answers
    assert all(parameter.grad is None for parameter in model.parameters())
    model(torch.tensor([[5, 6, 7]])).logits.sum().backward()


@both_engines
def test_weights_of_another_process_are_installed_in_place(name: str) -> None:
    mine, theirs = tiny_llama(seed=0), tiny_llama(seed=1)
    engine = build_engine(name, mine, shares_weights=False, weight_version=3)
    assert engine.weight_version == 3
    engine.load_weights(theirs.state_dict().items(), version=4)
    expected = build_engine(name, theirs).generate(GROUPS, SAMPLING)
    answers = engine.generate(GROUPS, SAMPLING)
    assert by_id(answers) == by_id(expected)
    assert {one.weight_version for one in answers} == {4}


def test_an_engine_with_its_own_weights_needs_all_of_them() -> None:
    engine = build_engine("native", tiny_llama(), shares_weights=False)
    with pytest.raises(StaleWeights, match="lack"):
        engine.load_weights((), version=1)


def test_weights_mixed_of_two_versions_are_not_generated_with() -> None:
    model, other = tiny_llama(), tiny_llama(seed=1)
    engine = build_engine("native", model, shares_weights=False)
    half = list(other.state_dict().items())[:3]
    with pytest.raises(StaleWeights, match="lack"):
        engine.load_weights(half, version=1)
    assert engine.weight_version == 0
    with pytest.raises(StaleWeights, match="half-way"):
        engine.generate(GROUPS, SAMPLING)
    engine.load_weights(other.state_dict().items(), version=1)
    assert engine.generate(GROUPS, SAMPLING)[0].weight_version == 1


@both_engines
@pytest.mark.parametrize("shares_weights", [True, False])
def test_released_memory_must_be_regained(name: str, shares_weights: bool) -> None:
    engine = build_engine(name, tiny_llama(), shares_weights=shares_weights)
    before = engine.generate(GROUPS, SAMPLING)
    engine.release_memory()
    with pytest.raises(FlexError, match="released"):
        engine.generate(GROUPS, SAMPLING)
    engine.regain_memory()
    assert engine.generate(GROUPS, SAMPLING) == before


@both_engines
def test_memory_is_regained_in_stages_and_new_weights_come_between(name: str) -> None:
    model, other = tiny_llama(), tiny_llama(seed=1)
    engine = build_engine(name, model, shares_weights=False)
    tensors = {key: target.tensor for key, target in engine.targets().items()}
    engine.release_memory(keep_weights=False)
    assert sum(one.untyped_storage().nbytes() for one in model.parameters()) == 0
    with pytest.raises(FlexError, match="weights is released"):
        engine.targets()
    engine.regain_memory(["weights"])
    for key, target in engine.targets().items():
        assert target.tensor.data_ptr() == tensors[key].data_ptr()
    with pytest.raises(FlexError, match="memory for cache is released"):
        engine.generate(GROUPS, SAMPLING)
    engine.regain_memory(["cache"])
    with pytest.raises(StaleWeights, match="none in it"):
        engine.generate(GROUPS, SAMPLING)
    engine.load_weights(other.state_dict().items(), version=5)
    expected = build_engine(name, other).generate(GROUPS, SAMPLING)
    assert by_id(engine.generate(GROUPS, SAMPLING)) == by_id(expected)


def test_shared_weights_stay_where_they_are() -> None:
    model = tiny_llama()
    engine = build_engine("native", model)
    before = engine.generate(GROUPS, SAMPLING)
    engine.release_memory(keep_weights=False)
    model(torch.tensor([[5, 6, 7]])).logits.sum().backward()
    engine.regain_memory()
    assert engine.generate(GROUPS, SAMPLING) == before


def test_a_version_counts_once_all_of_it_is_written() -> None:
    model, other = tiny_llama(), tiny_llama(seed=1)
    engine = build_engine("native", model, shares_weights=False, has_weights=False)
    new = other.state_dict()
    seen = []

    def write(*, is_whole: bool) -> str:
        for key, target in engine.targets().items():
            target.tensor.copy_(new[key])
            seen.append(engine.weight_version)
            if not is_whole:
                raise OSError("the sender is gone")
        return "receipt"

    with pytest.raises(OSError, match="gone"):
        engine.install(3, lambda: write(is_whole=False))
    with pytest.raises(StaleWeights, match="half-way"):
        engine.generate(GROUPS, SAMPLING)
    assert engine.install(3, lambda: write(is_whole=True)) == "receipt"
    assert set(seen) == {0}
    answers = engine.generate(GROUPS, SAMPLING)
    assert answers[0].weight_version == 3
    assert by_id(answers) == by_id(build_engine("native", other).generate(GROUPS, SAMPLING))


def test_new_weights_wait_for_answers_that_another_thread_generates() -> None:
    model, other = tiny_llama(), tiny_llama(seed=1)
    engine = build_engine("native", model, shares_weights=False)
    expected = engine.generate(GROUPS, SAMPLING)
    has_begun = threading.Event()
    order = []

    def install() -> None:
        has_begun.wait(10)
        engine.install(1, lambda: load_in_place(engine.targets(), other.state_dict().items()))
        order.append("installed")

    def take(answer: Generation) -> None:
        has_begun.set()
        time.sleep(0.02)
        order.append(answer.weight_version)

    thread = threading.Thread(target=install)
    thread.start()
    assert engine.generate(GROUPS, SAMPLING, take) == expected
    thread.join(10)
    assert order == [0] * 12 + ["installed"]
    assert engine.weight_version == 1


@both_engines
def test_short_answers_arrive_before_long_ones_end_and_can_be_trained_with(name: str) -> None:
    model = tiny_llama(torch.float64)
    forward_passes = []
    hook = model.model.norm.register_forward_hook(lambda *_: forward_passes.append(1))
    arrived = {}
    weight = torch.ones(1, dtype=torch.float64, requires_grad=True)

    def take(answer: Generation) -> None:
        arrived[answer.sample_id] = (answer, len(forward_passes))
        logprobs = torch.tensor(answer.logprobs, dtype=torch.float64)
        (weight * logprobs).sum().backward()

    answers = build_engine(name, model, max_sequences=8).generate(GROUPS, SAMPLING, take)
    hook.remove()
    assert [arrived[one.sample_id][0] for one in answers] == answers
    lengths = {len(one.tokens) for one in answers}
    assert len(lengths) > 1
    first_eight = [one for one in answers if one.sample_id < 48]
    lengths = sorted(len(one.tokens) for one in first_eight)
    late = [arrived[one.sample_id][1] - len(one.tokens) for one in answers[8:]]
    if name == "transformers":
        assert all(arrived[one.sample_id][1] == len(one.tokens) for one in first_eight)
        assert late == [lengths[-1]] * 4  # the longest answer is waited for
    else:
        assert min(late) < lengths[-1]  # an answer began where a short one had ended
    assert answers == build_engine(name, model, max_sequences=8).generate(GROUPS, SAMPLING)


@both_engines
@pytest.mark.parametrize("at_once", [1, 2, 5, 12])
def test_a_stream_gives_the_same_answers_as_they_end(name: str, at_once: int) -> None:
    model = tiny_llama(torch.float64)
    expected = build_engine(name, model).generate(GROUPS, SAMPLING)
    engine = build_engine(name, model)
    stream = engine.stream(GROUPS, SAMPLING, at_once=at_once)
    taken = []
    for count in (3, 0, 4, 5):
        taken += stream.take(count)
        assert stream.num_left == 12 - len(taken)
        assert not torch.is_inference_mode_enabled()
        between = [Request((7, 7), (90 + len(taken),))]
        assert engine.generate(between, SAMPLING)  # other answers in between change nothing
    assert sorted(taken, key=lambda one: one.sample_id) == [
        replace(
            answer,
            logprobs=pytest.approx(answer.logprobs, abs=1e-12),
            sampling_logprobs=pytest.approx(answer.sampling_logprobs, abs=1e-12),
        )
        for answer in expected
    ]
    if at_once == 12:
        lengths = [len(one.tokens) for one in taken]
        assert lengths == sorted(lengths)


def test_a_prompt_whose_group_is_cut_is_read_once() -> None:
    model = tiny_llama()
    read = []
    hook = model.model.layers[0].mlp.register_forward_pre_hook(
        lambda _, inputs: read.append(tuple(inputs[0].shape[:-1]))
    )
    stream = build_engine("native", model, packs_weights=False).stream(GROUPS, SAMPLING, at_once=3)
    stream.take(12)
    hook.remove()
    prompts = [shape for shape in read if len(shape) == 2]
    assert sum(count for count, _ in prompts) == 3


def test_answers_do_not_go_on_with_other_weights() -> None:
    model = tiny_llama()
    engine = build_engine("native", model)
    stream = engine.stream(GROUPS, SAMPLING, at_once=4)
    stream.take(1)
    engine.load_weights((), 1)
    with pytest.raises(StaleWeights, match="begun with weights 0; the engine holds 1"):
        stream.take(1)


@both_engines
def test_weights_that_are_no_numbers_end_the_run(name: str) -> None:
    model = tiny_llama()
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    with pytest.raises(RunFailed, match="not finite"):
        build_engine(name, model).generate(GROUPS, SAMPLING)


def test_a_prompt_beyond_the_models_positions_is_refused() -> None:
    engine = build_engine("native", tiny_llama())
    with pytest.raises(DataError, match="32 positions"):
        engine.generate([Request((4,) * 21, (0,))], SAMPLING)


@both_engines
def test_no_tensor_outlives_a_call(name: str) -> None:
    engine = build_engine(name, tiny_llama())

    def count() -> int:
        gc.collect()
        return sum(type(thing) is torch.Tensor for thing in gc.get_objects())

    engine.generate(GROUPS, SAMPLING)
    before = count()
    engine.generate(GROUPS, Sampling(max_new_tokens=20))
    assert count() == before


def test_nothing_asked_is_nothing_answered() -> None:
    assert build_engine("native", tiny_llama()).generate([], SAMPLING) == []


def test_capabilities_say_what_an_engine_offers() -> None:
    model = tiny_llama()
    native = build_engine("native", model, shares_weights=False).capabilities
    assert (native.name, native.shares_weights) == ("native", False)
    assert "LlamaForCausalLM" in native.families
    assert build_engine("transformers", model).capabilities.families == ()


@pytest.mark.parametrize(
    ("family", "option", "reason"),
    [
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "'dynamic' rotary positions",
        ),
        ("gpt2", {"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn"),
        ("gpt2", {"add_cross_attention": True}, "cross-attention"),
        ("gpt_neox", {}, "GPTNeoXForCausalLM is none of LlamaForCausalLM"),
    ],
)
def test_native_says_what_it_lacks_and_transformers_takes_over(
    family: str, option: dict[str, object], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model(
        family,
        **sizes,
        **option,
        vocab_size=29,
        pad_token_id=END,
        bos_token_id=END,
        eos_token_id=END,
    )
    engine = build_engine("native", AutoModelForCausalLM.from_config(config))
    assert engine.capabilities.name == "transformers"
    assert reason in caplog.text
    assert len(engine.generate(GROUPS, SAMPLING)) == 12


def test_a_model_without_a_cache_and_an_unknown_engine_are_refused() -> None:
    with pytest.raises(ConfigError, match="Linear keeps no past"):
        build_engine("native", nn.Linear(2, 2))
    with pytest.raises(ConfigError, match=r"nativ"):
        build_engine("nativ", tiny_llama())
    with pytest.raises(ConfigError, match="max_sequences"):
        build_engine("native", tiny_llama(), max_sequences=0)


def test_native_reads_each_prompt_of_a_group_once() -> None:
    model = tiny_llama()
    tokens_read = []
    hook = model.model.layers[0].mlp.register_forward_pre_hook(
        lambda _, inputs: tokens_read.append(inputs[0].shape[:-1].numel())
    )
    build_engine("native", model).generate(GROUPS, Sampling(max_new_tokens=3))
    hook.remove()
    assert tokens_read == [3 * 7, 12, 12]  # three prompts padded to seven, then a token a row


def test_the_batch_shrinks_as_sequences_end() -> None:
    model = tiny_llama()
    rows = []
    hook = model.model.norm.register_forward_pre_hook(
        lambda _, inputs: rows.append(inputs[0].shape[0])
    )
    answers = build_engine("native", model, packs_weights=False).generate(GROUPS, SAMPLING)
    hook.remove()
    lengths = [len(one.tokens) for one in answers]
    expected = [sum(length > position for length in lengths) for position in range(1, 12)]
    assert rows[1:] == [count for count in expected if count]
