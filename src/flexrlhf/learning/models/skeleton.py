"""Models whose weights have no memory yet, so that a process can make room for its part alone.

Not every model can be had so. What this module is not sure of, it leaves to `loading`, which makes
the whole model and says what is wrong with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.drawing import Recorder
from flexrlhf.learning.models.exact_norms import make_norms_exact
from flexrlhf.learning.models.folders import local_folder
from flexrlhf.learning.models.foreign_errors import complaining
from flexrlhf.learning.models.heads import (
    VALUE_HEAD_FILE,
    SharedActorCritic,
    head_weight,
    pretrained,
)
from flexrlhf.learning.models.output_head import is_tested, output_head
from flexrlhf.learning.models.part_values import DrawnValues, PartValues, ReadValues, WithFresh
from flexrlhf.learning.models.score_head import SCORE_WEIGHT, score_head
from flexrlhf.learning.models.seeding import seeded_weights
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.learning.models.source_config import (
    SourceConfig,
    policy_config,
    require_kind,
    scorer_config,
)
from flexrlhf.learning.models.tensor_files import read_tensors
from flexrlhf.learning.models.weight_parts import parameter_names
from flexrlhf.learning.models.weight_slices import WeightSlices

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A model with buffers but without weights."""

    model: nn.Module
    values: PartValues
    """Gives the weights their values, once they have memory."""


def policy_skeleton(source: ModelSource) -> Skeleton | None:
    """Returns what `load_policy` would load; None where it must."""
    from transformers import AutoModelForCausalLM

    def make() -> Skeleton:
        given = policy_config(source)
        _require(is_tested(given.config), "its family needs a trial of its logits")
        skeleton, model = _skeleton(AutoModelForCausalLM, given, source, {})
        output_head(model)
        return skeleton

    return _if_sure(make)


def scorer_skeleton(source: ModelSource) -> Skeleton | None:
    """Returns what `load_scorer` would load; None where it must."""
    from transformers import AutoModelForSequenceClassification

    def make() -> Skeleton:
        given = scorer_config(source)
        width = given.config.get_text_config().hidden_size
        fresh = {SCORE_WEIGHT: head_weight(width, source.seed)} if given.needs_head else {}
        skeleton, model = _skeleton(AutoModelForSequenceClassification, given, source, fresh)
        _require(score_head(model).bias is None, "its head has a bias")
        return skeleton

    return _if_sure(make)


def shared_skeleton(source: ModelSource) -> Skeleton | None:
    """Returns what `load_shared_actor_critic` would load; None where it must."""
    trunk = policy_skeleton(source)
    if trunk is None:
        return None
    model = SharedActorCritic(pretrained(trunk.model), seed=source.seed).eval()
    head = model.value_head
    fresh = {"weight": head_weight(head.in_features, source.seed), "bias": torch.zeros(1)}
    if source.path is not None:
        file = local_folder(source.path) / VALUE_HEAD_FILE
        if file.is_file():
            fresh = read_tensors(file)
    if {name: tuple(value.shape) for name, value in fresh.items()} != {
        "weight": (1, head.in_features),
        "bias": (1,),
    }:
        return None
    heads = {f"value_head.{name}": value for name, value in fresh.items()}
    return Skeleton(model, WithFresh(trunk.values, heads, prefix="trunk."))


def _if_sure(make: Callable[[], Skeleton]) -> Skeleton | None:
    """Returns what is made; None where anything fails, of which `loading` will tell the user."""
    try:
        with complaining(lambda said: ConfigError(said, "", "")):
            return make()
    except ConfigError as unsure:
        logger.info("A model is loaded as a whole, not in parts: %s", unsure.wrong)
        return None


def _skeleton(
    auto_class: Any, given: SourceConfig, source: ModelSource, fresh: Mapping[str, Tensor]
) -> tuple[Skeleton, PreTrainedModel]:
    require_kind(auto_class, given.config)
    dtype = torch.float32 if given.folder is None else source.torch_dtype
    recorder = Recorder()
    with seeded_weights(source.seed), recorder:
        model = auto_class.from_config(given.config, dtype=dtype, trust_remote_code=False)
    _refuse_other_tensors(model)
    names = [several for several in parameter_names(model) if several[0] not in fresh]
    if given.folder is None:
        values = _drawn(model, recorder, source.seed)
    else:
        values = _read(model, given.folder, names)
        _name_as_loaded(model, given.folder)
    _drop_weights(model, source.torch_dtype)
    make_norms_exact(model, source.torch_dtype)
    return Skeleton(model.eval(), WithFresh(values, fresh)), model


def _refuse_other_tensors(model: PreTrainedModel) -> None:
    """Buffers that a file would hold, and tensors that lack memory, are not looked after."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    _require(model.state_dict().keys() == parameters.keys(), "it has buffers of its own")
    for module in model.modules():
        others = [*vars(module).values(), *module.buffers(recurse=False)]
        lacks_memory = any(isinstance(each, Tensor) and each.is_meta for each in others)
        _require(not lacks_memory, f"{type(module).__name__} leaves a buffer unset")


def _drawn(model: PreTrainedModel, recorder: Recorder, seed: int) -> DrawnValues:
    script = recorder.script(model)
    if script is None:
        raise _unsure("not all of its weights are drawn one by one")
    made = {name: one.detach() for name, one in model.named_parameters() if not one.is_meta}
    return DrawnValues(script, seed, made)


def _read(model: PreTrainedModel, folder: Path, names: Sequence[Sequence[str]]) -> ReadValues:
    """Finds each weight in the folder's files, under its own name and in its own shape."""
    from transformers.conversion_mapping import get_model_conversion_mapping

    _require(getattr(model.config, "quantization_config", None) is None, "it is quantised")
    slices = WeightSlices(folder)
    converts = get_model_conversion_mapping(model)
    for name in slices.shapes:
        converted = any(each.rename_source_key(name)[1] is not None for each in converts)
        _require(not converted, f"{name} is converted")
    found = {first: [n for n in (first, *tied) if n in slices.shapes] for first, *tied in names}
    for first, each in found.items():
        _require(len(each) == 1, f"{first} lies in its files {len(each)} times")
        is_fit = slices.shapes[each[0]] == tuple(model.get_parameter(first).shape)
        _require(is_fit, f"{first} has another shape in its files")
    return ReadValues(slices, {first: each[0] for first, each in found.items()})


def _drop_weights(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Replaces every parameter by one without memory; tied ones stay so."""
    replaced: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, old in list(module.named_parameters(recurse=False)):
            if old not in replaced:
                replaced[old] = nn.Parameter(torch.empty_like(old, device="meta", dtype=dtype))
            setattr(module, name, replaced[old])


def _name_as_loaded(model: PreTrainedModel, folder: Path) -> None:
    """Says of the model what `from_pretrained` would."""
    from transformers import GenerationConfig
    from transformers.utils import GENERATION_CONFIG_NAME

    model.config.name_or_path = model.name_or_path = str(folder)
    if model.can_generate() and (folder / GENERATION_CONFIG_NAME).is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)


def _require(is_sure: bool, otherwise: str) -> None:  # noqa: FBT001 - reads like an assertion
    if not is_sure:
        raise _unsure(otherwise)


def _unsure(why: str) -> ConfigError:
    return ConfigError(f"{why}.", "", "")
