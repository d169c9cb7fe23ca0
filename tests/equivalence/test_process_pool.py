"""The pool of processes that the other tests here use: results by rank, errors, deadlines."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from process_pool import ProcessPool, RemoteError


def summed(number: int) -> list[int]:
    total = torch.tensor([number + dist.get_rank()])
    dist.all_reduce(total)
    return [dist.get_rank(), int(total)]


def failing_on_one_rank() -> None:
    if dist.get_rank() == 2:
        raise ValueError("spoilt on rank 2")
    dist.barrier()


def test_every_rank_runs_the_function_and_answers(process_pool: ProcessPool):
    assert process_pool.run(summed, number=10) == [[rank, 46] for rank in range(4)]
    assert process_pool.run(summed, number=0) == [[rank, 6] for rank in range(4)]


def test_what_went_wrong_is_told_and_the_pool_works_again(process_pool: ProcessPool):
    with pytest.raises(RemoteError) as caught:
        process_pool.run(failing_on_one_rank)
    assert "spoilt on rank 2" in str(caught.value)
    assert "rank 0 is here" in str(caught.value)
    assert "in failing_on_one_rank" in str(caught.value)
    assert process_pool.run(summed, number=1) == [[rank, 10] for rank in range(4)]
