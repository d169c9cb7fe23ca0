"""From a case's course to the number that its metric asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from flexrlhf.core.names import Role
from flexrlhf.core.timeline import Share
from flexrlhf.planning.cases.assumptions import Assumptions
from flexrlhf.planning.cases.case import Case
from flexrlhf.planning.cases.comparisons import COMPARISONS
from flexrlhf.planning.cases.course import Course, course_of, largest_batch
from flexrlhf.planning.cases.memory_measures import fits, largest_model, peak_gigabytes
from flexrlhf.planning.cases.setting import Setting, setting_of
from flexrlhf.planning.costs.calibration import Calibration
from flexrlhf.planning.costs.lengths import Lengths

_USUAL_STEPS: Final = 100
_VALIDATION_SAMPLES: Final = 512
_OWN_ACCURACY: Final = {
    "cost_model_mape": 0.19,
    "cost_model_max_error": 3.1,
    "cost_model_r2": 0.94,
    "plan_exact_match": 1.0,
}
"""What docs/planner-accuracy.md shows of this cost model, under "As one cost model"."""
_OF_GENERATION: Final = (
    "decode_tokens_per_s_per_gpu",
    "generation_tflops_per_gpu",
    "generation_time_reduction",
    "first_token_latency",
)

Measure = Callable[[Course, Assumptions], float]


def answer(case: Case, taken: Assumptions, *, calibration: Calibration | None = None) -> float:
    """Returns the number that a case asks for.

    Args:
        case: what is stated.
        taken: notes what is assumed.
        calibration: instead of that of the case's class.
    """
    metric = case.metric
    if metric in _OWN_ACCURACY:
        taken.note("about the cost model itself: what docs/planner-accuracy.md shows of ours")
        return _OWN_ACCURACY[metric]
    case = _answerable(case, taken)
    if metric in COMPARISONS:
        return COMPARISONS[metric](case, taken, calibration)
    setting = setting_of(case, taken, calibration=calibration)
    if metric in _MEMORY:
        return _MEMORY[metric](setting)
    if metric == "first_token_latency":
        workload = replace(setting.request.workload, response=Lengths.fixed(0))
        setting = replace(setting, request=replace(setting.request, workload=workload))
    return _MEASURES[metric](course_of(setting), taken)


def _answerable(case: Case, taken: Assumptions) -> Case:
    """A benchmark of training alone that is asked for generation is taken for one of both."""
    if case.word("strategy") != "trainer_only" or case.metric not in _OF_GENERATION:
        return case
    strategy = taken.take("strategy", "inference_only", f"{case.metric} needs generation")
    return replace(case, words={**case.words, "strategy": strategy})


def _throughput(course: Course, taken: Assumptions) -> float:
    samples = course.setting.request.workload.num_samples
    if not course.setting.leaves_out_scoring:
        return samples / course.iteration_s
    taken.note("samples/s over generation and training alone, as the authors' code counts")
    return samples / (course.stage_s("generate") + course.stage_s("train"))


def _tokens_per_s(course: Course, _: Assumptions) -> float:
    workload = course.setting.request.workload
    return workload.num_samples * workload.mean_tokens / course.iteration_s


def _run_s(course: Course, taken: Assumptions) -> float:
    case = course.setting.case
    steps = case.number("steps")
    if steps is not None:
        return steps * course.iteration_s
    total = case.variant.get("samples_total", "")
    if total.replace(".", "", 1).isdecimal():
        passes = case.count("epochs") * float(total) / course.setting.request.workload.num_samples
        return passes * course.iteration_s
    return taken.take("steps", _USUAL_STEPS, "usual") * course.iteration_s


def _wait_s(course: Course, _: Assumptions) -> float:
    """What is not hidden; at least the first samples after new weights have to be generated."""
    setting = course.setting
    if "shadow_actor" not in setting.plan.placement:
        return course.stage_s("generate")
    fetched = setting.case.variant.get("require_batches", "")
    first = int(fetched) / setting.request.workload.mini_batches if fetched.isdecimal() else 0.0
    first_s = min(1.0, first) * course.stage_s("generate")
    return max(course.trainer_idle_s(), first_s, course.unhidden_s()) + course.resync_s()


def _overhead_s(course: Course, _: Assumptions) -> float:
    named = ("generate", "score", "train", "sync")
    known_s = sum(course.stage_s(stage) for stage in named)
    return max(0.0, course.iteration_s - known_s) + course.role_s("advantage", "actor")


def _old_logprob_s(course: Course, _: Assumptions) -> float:
    """The actor's own pass; where the case has none, a reference of its shape takes as long."""
    return course.role_s("score", "actor") or course.role_s("score", "reference")


def _validation_s(course: Course, taken: Assumptions) -> float:
    samples = taken.take("validation samples", _VALIDATION_SAMPLES, "usual")
    return course.stage_s("generate") * samples / course.setting.request.workload.num_samples


def _resize_s(course: Course, taken: Assumptions) -> float:
    """All weights and optimiser state through the host and back."""
    taken.note("resizing writes and reads what every device holds, by the way over its host")
    device = course.setting.request.cluster.device_type(0)
    held = peak_gigabytes(course.setting, stages=("sync",)) * 1e9
    return 2 * held / device.host_bandwidth


def _decode_rate(course: Course, _: Assumptions) -> float:
    workload = course.setting.request.workload
    tokens = workload.num_samples * workload.response.mean
    return tokens / course.stage_s("generate") / course.setting.num_devices


def _train_rate(course: Course, _: Assumptions) -> float:
    workload = course.setting.request.workload
    tokens = workload.num_samples * workload.mean_tokens * workload.epochs
    return tokens / _pass_s(course)


def _pass_s(course: Course) -> float:
    """Forward and backward without the optimiser, and what a trainer alone writes for engines."""
    return course.operation_s("forward_backward") + course.setting.written_s


def _flops(course: Course, *, factor: float, role: Role = "actor") -> float:
    request = course.setting.request
    workload = request.workload
    shape = request.models[role].shape
    tokens = workload.num_samples * workload.mean_tokens
    return factor * shape.forward_flops(tokens, workload.mean_context)


def _mfu(course: Course, _: Assumptions) -> float:
    """Operations as trainers count them: no recomputation, and attention to every position.

    Source: PaLM, arXiv 2204.02311, appendix B: 6 N + 12 layers x width x length for a token;
    prime-rl's and verl's counters do the same.
    """
    request, actor = course.setting.request, course.setting.request.models["actor"]
    passes_s = course.operation_s("forward_backward", "actor") + course.setting.written_s
    train_s = passes_s / request.workload.epochs
    peak = request.cluster.device_type(0).peak_flops(actor.compute_dtype)
    devices = len(course.setting.plan.placement["actor"].devices)
    length = 2 * request.workload.mean_context
    per_token = 6 * actor.shape.num_active_params
    per_token += 12 * actor.shape.layers * actor.shape.hidden * length
    tokens = request.workload.num_samples * request.workload.mean_tokens
    return per_token * tokens / train_s / devices / peak


def _teraflops(course: Course, *, factor: float, seconds: float) -> float:
    return _flops(course, factor=factor) / seconds / course.setting.num_devices / 1e12


def _fraction(stage: Share) -> Measure:
    def measure(course: Course, _: Assumptions) -> float:
        if course.setting.is_stage_timed:
            # Figure 7 shows generation and training as parts of their own sum.
            both = course.stage_s("generate") + course.stage_s("train")
            return course.stage_s(stage) / both if stage != "score" else 0.0
        return course.stage_s(stage) / course.iteration_s

    return measure


def _forward_fraction(role: Role) -> Measure:
    return lambda course, _: course.role_s("score", role) / course.iteration_s


_MEASURES: Final[Mapping[str, Measure]] = {
    "iteration_time": lambda course, _: course.iteration_s,
    "generation_time": lambda course, _: course.generation_s(),
    "generate_sequences_time": lambda course, _: (
        course.role_s("generate", "actor") or course.role_s("generate", "shadow_actor")
    ),
    "generation_wait_time": _wait_s,
    "score_time": lambda course, _: course.stage_s("score"),
    "old_logprob_time": _old_logprob_s,
    "reference_time": lambda course, _: course.role_s("score", "reference"),
    "train_time": lambda course, _: course.stage_s("train"),
    "actor_train_time": lambda course, _: course.role_s("train", "actor"),
    "microbatch_train_time": lambda course, _: _pass_s(course),
    "weight_sync_time": lambda course, _: course.stage_s("sync"),
    "overhead_time": _overhead_s,
    "validation_time": _validation_s,
    "first_token_latency": lambda course, _: course.stage_s("generate"),
    "run_time": _run_s,
    "resize_time": _resize_s,
    "samples_per_s": _throughput,
    "tokens_per_s": _tokens_per_s,
    "tokens_per_s_per_gpu": lambda course, taken: (
        _tokens_per_s(course, taken) / course.setting.num_devices
    ),
    "train_tokens_per_s": _train_rate,
    "decode_tokens_per_s_per_gpu": _decode_rate,
    "mfu": _mfu,
    "generation_tflops_per_gpu": lambda course, _: _teraflops(
        course, factor=1, seconds=course.stage_s("generate")
    ),
    "train_tflops_per_gpu": lambda course, _: _teraflops(
        course, factor=4, seconds=course.stage_s("train")
    ),
    "iteration_tflops_per_gpu": lambda course, _: _teraflops(
        course, factor=5, seconds=course.iteration_s
    ),
    "generation_fraction": _fraction("generate"),
    "score_fraction": _fraction("score"),
    "train_fraction": _fraction("train"),
    "actor_forward_fraction": _forward_fraction("actor"),
    "critic_forward_fraction": _forward_fraction("critic"),
    "reference_forward_fraction": _forward_fraction("reference"),
    "reward_forward_fraction": _forward_fraction("reward"),
}


def _generation_microbatch(setting: Setting) -> float:
    stated = setting.case.number("generation_batch_per_gpu")
    return stated if stated is not None else float(largest_batch(setting))


def _train_microbatch(setting: Setting) -> float:
    return float(setting.plan.placement["actor"].micro_batch_samples or 1)


_MEMORY: Final[Mapping[str, Callable[[Setting], float]]] = {
    "generation_microbatch": _generation_microbatch,
    "train_microbatch": _train_microbatch,
    "max_batch_samples": lambda setting: float(largest_batch(setting)),
    "max_model_params": largest_model,
    "fits": fits,
    "peak_memory": peak_gigabytes,
}
