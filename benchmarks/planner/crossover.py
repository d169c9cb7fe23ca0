"""From how many devices on disaggregation is faster, at the paper's work per device."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from cases import request_of
from comparing import OWN, Comparison, fastest

MODELS: Final = ("llama-7b", "llama-13b", "llama-33b", "llama-65b")
DEVICES: Final = (8, 16, 32, 64, 128, 256, 512)
TRAINED: Final = {"LoRA": DEVICES, "all weights": DEVICES[::2]}
"""Sizes of clusters by what is trained."""
_SAMPLES: Final = 24
"""Of an iteration per device, as in `examples/plans/paper-4x8-a100.yaml`: the paper's largest batch
for 7B."""
_ONE_ITERATION_OLD: Final = 1


@dataclass(frozen=True, slots=True)
class Scene:
    """One model on one cluster."""

    model: str
    """Shape of all four."""
    trained: str
    """LoRA of rank 128 as in the authors' code, or all weights."""
    devices: int
    """A100 of 80 GB, eight in a node."""

    def document(self) -> dict[str, Any]:
        """Returns the scene as a config."""
        samples = _SAMPLES * self.devices
        is_lora = self.trained == "LoRA"
        lora = {"dtype": "bfloat16", "lora": {"rank": 128}} if is_lora else {}
        frozen = {"shape": self.model, "dtype": "bfloat16"}
        return {
            "algorithm": {"name": "ppo"},
            "model": {
                "actor": {"shape": self.model, **lora},
                "critic": {"shape": self.model, **lora},
                "reference": frozen,
                "reward": frozen,
            },
            "data": {"max_prompt_tokens": 256},
            "rollout": {"engine": "vllm", "max_new_tokens": 256, "samples_per_prompt": 1},
            "training": {
                "prompts_per_iteration": samples,
                "mini_batch_samples": samples,
                "precision": "bfloat16",
                "gradient_checkpointing": not is_lora,
            },
            "cluster": {
                "nodes": [{"count": self.devices // 8, "devices": 8, "type": "A100-80G"}],
                "links": {"inside_pool": "InfiniBand-8x200G"},
            },
        }


def scenes(most_devices: int = DEVICES[-1]) -> list[Scene]:
    """Returns every model on every cluster up to a size, the largest first."""
    sizes = [n for n in reversed(DEVICES) if n <= most_devices]
    return [Scene(m, t, n) for n in sizes for m in MODELS for t in TRAINED if n in TRAINED[t]]


def compared(scene: Scene) -> dict[str, Any]:
    """Returns the simulated seconds of an iteration by strategy.

    `together` is the best strategy that sets no devices apart, `overlapped` is disaggregation one
    round stale.
    """
    request = request_of(scene.document())
    outcomes = Comparison(request).best_of(OWN)
    stale = Comparison(replace(request, max_staleness=_ONE_ITERATION_OLD))
    overlapped = stale.best_of(["disaggregated"]).get("disaggregated")
    together = fastest({n: o for n, o in outcomes.items() if n != "disaggregated"})
    return {
        "scene": asdict(scene),
        "seconds": {name: outcome.iteration_s for name, outcome in outcomes.items()},
        "together": together.iteration_s if together else None,
        "together_strategy": together.strategy if together else None,
        "overlapped": overlapped.iteration_s if overlapped else None,
    }
