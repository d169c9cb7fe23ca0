"""Parts are cut as torch cuts chunks, and one process alone holds everything."""

from __future__ import annotations

import pytest
import torch

from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.models.loading import load_policy
from flexrlhf.learning.models.parallelise import ParallelModel
from flexrlhf.learning.models.shards import whole_shards
from flexrlhf.learning.models.weight_parts import rows_of, share


@pytest.mark.parametrize("length", range(9))
@pytest.mark.parametrize("num_parts", [1, 2, 3, 4])
def test_shares_are_the_chunks_of_torch(length: int, num_parts: int):
    rows = torch.arange(length)
    ours = [rows[slice(*share(length, num_parts, i))].tolist() for i in range(num_parts)]
    theirs = [chunk.tolist() for chunk in rows.chunk(num_parts)]
    assert [part for part in ours if part] == [part for part in theirs if part]
    assert [row for part in ours for row in part] == rows.tolist()


def test_rows_of_a_box_count_from_its_own_start():
    box = Box((10, 4), (15, 8))
    assert rows_of(box, 2, 0) == Box((10, 4), (13, 8))
    assert rows_of(box, 2, 1) == Box((13, 4), (15, 8))
    assert rows_of(Box((3,), (4,)), 3, 2).num_elements == 0


def test_a_model_in_one_process_is_whole_and_goes_alone(make_source):
    model = load_policy(make_source("llama"))
    parallel = ParallelModel(model)
    assert not parallel.needs_lockstep
    assert parallel.agree_max(3) == 3
    assert parallel.run(lambda module: module is model)
    shards, expected = parallel.shards(), whole_shards(model)
    assert shards.keys() == expected.keys()
    assert all(
        shards[name].tensor.data_ptr() == expected[name].tensor.data_ptr() for name in shards
    )
