from __future__ import annotations

import json
import math

import pytest
import torch

from flexrlhf.core.errors import TransferLost
from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.transport.buffer import ExperienceBuffer
from flexrlhf.learning.transport.parcel import Parcel
from flexrlhf.learning.transport.scores import scores_to_parcel, write_scores


def prompt_of(sample_id: int) -> Prompt:
    return Prompt(sample_id, (1,), str(sample_id))


def samples(*ids: int, version: int = 0) -> list[Sample]:
    return [
        Sample(
            sample_id=sample_id,
            prompt=prompt_of(sample_id),
            tokens=torch.arange(3),
            num_prompt_tokens=1,
            mask=torch.tensor([False, True, True]),
            weight_version=version,
            fields={"logprobs": torch.full((3,), -0.5 * sample_id)},
        )
        for sample_id in ids
    ]


def read_back(state: Parcel) -> Parcel:
    """What a checkpoint makes of a state."""
    return Parcel(json.loads(json.dumps(state.header, allow_nan=False)), state.tensors)


def test_a_part_comes_in_pieces_in_any_order_of_ids():
    buffer = ExperienceBuffer(1, 4)
    buffer.add(0, 0, samples(3), made_here=True)
    buffer.add(0, 0, samples(0), made_here=True)
    buffer.add(0, 1, samples(2), made_here=True)
    assert buffer.made(0, 0) == [3, 0]
    assert buffer.made(0, 1) == [2]
    assert list(buffer.samples(0, 0)) == [3, 0]


def test_a_part_of_no_samples_is_one_that_was_made():
    buffer = ExperienceBuffer(1, 4)
    buffer.add(0, 0, [], made_here=True)
    buffer.add(0, 1, samples(1))
    assert buffer.made(0, 0) == []
    for part in (1, 2):  # taken over from elsewhere, and unheard of
        with pytest.raises(KeyError):
            buffer.made(0, part)


def test_what_is_here_already_stays_as_it_is():
    buffer = ExperienceBuffer(1, 2)
    buffer.add(0, 0, samples(1, 2), made_here=True)
    first = buffer.samples(0, 0)[1]
    buffer.add(0, 0, samples(1, 2))
    assert buffer.samples(0, 0)[1] is first
    assert buffer.made(0, 0) == [1, 2]


def test_an_iteration_goes_when_there_is_one_that_it_was_trained_for():
    buffer = ExperienceBuffer(2, 2)
    for iteration in range(4):
        buffer.add(iteration, 0, samples(2 * iteration, 2 * iteration + 1))
    assert buffer.num_by_iteration() == {2: 2, 3: 2}
    buffer.release(2)
    assert buffer.num_by_iteration() == {3: 2}
    with pytest.raises(TransferLost, match="iteration 2 came after those of iteration 4"):
        buffer.add(1, 0, samples(9))


def test_more_than_there_is_room_for_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        ExperienceBuffer(1, 0)
    buffer = ExperienceBuffer(2, 3)
    buffer.add(0, 0, samples(0, 1))
    buffer.add(1, 0, samples(4, 5, 6))
    with pytest.raises(TransferLost, match="3 samples of each of 2 iterations"):
        buffer.add(0, 1, samples(2, 3))
    buffer.add(0, 1, samples(2))
    assert buffer.num_by_iteration() == {0: 3, 1: 3}


def test_scores_are_written_where_the_samples_are():
    here, there = samples(0, 1), samples(0, 1, 2)
    for sample in here:
        sample.fields["values"] = torch.full((3,), 2.0 + sample.sample_id)
        sample.reward, sample.reward_parts = 0.25 * sample.sample_id, {"model": 1.0}
    by_id = {sample.sample_id: sample for sample in there}
    write_scores(by_id, read_back(scores_to_parcel(here, ("values",))))
    write_scores(by_id, read_back(scores_to_parcel(here, ())))
    write_scores(by_id, read_back(scores_to_parcel([], ("values",))))
    assert torch.equal(there[1].fields["values"], torch.full((3,), 3.0))
    assert (there[1].reward, there[1].reward_parts) == (0.25, {"model": 1.0})
    assert "values" not in there[2].fields
    assert math.isnan(there[2].reward)


def test_what_was_saved_is_restored():
    buffer = ExperienceBuffer(2, 8)
    buffer.add(1, 1, samples(7), made_here=True)
    buffer.add(1, 0, samples(6, 5, version=2), made_here=True)
    buffer.add(1, 0, samples(4))
    scored = samples(4, 6)
    for sample in scored:
        sample.fields["values"] = torch.full((3,), float(sample.sample_id))
    buffer.add_scores(1, 0, "critic", scores_to_parcel(scored, ("values",)))
    buffer.add_scores(1, 1, "critic", scores_to_parcel([], ("values",)))
    state = buffer.state({(1, 0), (1, 1)}, {(1, 0, "critic"), (1, 1, "critic")})
    other = ExperienceBuffer(2, 8)
    other.restore(read_back(state), prompt_of)
    assert (other.made(1, 0), other.made(1, 1)) == ([6, 5], [7])
    assert other.num_by_iteration() == {1: 3}  # others have saved what was taken over
    five = other.samples(1, 0)[5]
    assert (five.weight_version, five.prompt) == (2, prompt_of(5))
    assert torch.equal(five.fields["logprobs"], torch.full((3,), -2.5))
    by_id = {sample.sample_id: sample for sample in samples(4, 6)}
    write_scores(by_id, other.scores(1, 0, "critic"))
    assert torch.equal(by_id[6].fields["values"], torch.full((3,), 6.0))
    assert other.scores(1, 1, "critic").header == {"ids": []}


def test_what_was_not_done_is_not_saved():
    buffer = ExperienceBuffer(2, 8)
    buffer.add(1, 0, samples(6), made_here=True)
    buffer.add(2, 0, samples(8), made_here=True)
    buffer.add_scores(1, 0, "critic", scores_to_parcel([], ("values",)))
    other = ExperienceBuffer(2, 8)
    other.restore(buffer.state({(1, 0)}, set()), prompt_of)
    assert other.num_by_iteration() == {1: 1}
    with pytest.raises(KeyError):
        other.scores(1, 0, "critic")


def test_an_empty_buffer_is_saved_too():
    other = ExperienceBuffer(1, 5)
    other.restore(read_back(ExperienceBuffer(1, 5).state(set(), set())), prompt_of)
    assert other.num_by_iteration() == {}
