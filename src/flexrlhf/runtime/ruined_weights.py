"""What keeps a step that ruined the weights out of checkpoints and of the final model."""

from __future__ import annotations

from collections.abc import Mapping

from flexrlhf.core.errors import RunFailed
from flexrlhf.core.names import Role
from flexrlhf.learning.models.shards import Shard
from flexrlhf.learning.models.soundness import unusable_tensor


def refuse_unusable(role: Role, weights: Mapping[str, Shard]) -> None:
    """Checks the weights of a trained role, or what one worker holds of them.

    Raises:
        RunFailed: nothing finite can be computed with one.
    """
    for name, shard in weights.items():
        unusable = unusable_tensor(name, shard.tensor)
        if unusable is not None:
            raise RunFailed(
                f"The last optimiser step ruined the weights of {role}: {unusable}.",
                "Nothing finite can be computed with such a weight. Older checkpoints are "
                "untouched.",
                "Lower the learning rate, and start a new run.",
            )
