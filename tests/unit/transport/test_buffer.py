from __future__ import annotations

import json
import math
import threading
import time

import pytest
import torch

from flexrlhf.core.errors import TransferLost
from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.transport.buffer import ExperienceBuffer
from flexrlhf.learning.transport.parcel import Parcel


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


def test_a_part_stays_until_it_is_released():
    buffer = ExperienceBuffer(4)
    buffer.put(0, 0, samples(1, 2), deadline_s=0.1)
    buffer.put(0, 1, samples(3), deadline_s=0.1)
    assert buffer.parts(0) == (0, 1)
    for _ in range(2):
        assert [sample.sample_id for sample in buffer.get(0, 0, deadline_s=0.1)] == [1, 2]
    buffer.release(0, 0)
    assert (buffer.parts(0), buffer.num_samples) == ((1,), 1)
    buffer.release(0)
    assert buffer.num_samples == 0


def test_who_comes_early_waits():
    buffer = ExperienceBuffer(2)
    buffer.put(0, 0, samples(0, 1), deadline_s=0.1)
    got: list[list[Sample]] = []
    threads = [
        threading.Thread(target=buffer.put, args=(1, 0, samples(2)), kwargs={"deadline_s": 5.0}),
        threading.Thread(target=lambda: got.append(buffer.get(1, 0, deadline_s=5.0))),
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    assert (buffer.num_samples, got) == (2, [])
    buffer.release(0)
    for thread in threads:
        thread.join(5.0)
    assert got[0][0].sample_id == 2


def test_waiting_ends_at_the_deadline_and_says_what_is_held():
    buffer = ExperienceBuffer(2)
    buffer.put(3, 0, samples(0, 1), deadline_s=0.1)
    with pytest.raises(
        TransferLost, match=r"(?s)Part 1 of iteration 3, 1 samples.*2 of 2.*iterations 3"
    ):
        buffer.put(3, 1, samples(2), deadline_s=0.02)
    with pytest.raises(TransferLost, match=r"Part 5 of iteration 4 did not come: 0\.02 s"):
        buffer.get(4, 5, deadline_s=0.02)


def test_closing_wakes_who_waits():
    buffer = ExperienceBuffer(2)
    errors: list[TransferLost] = []

    def wait() -> None:
        try:
            buffer.get(0, 0, deadline_s=30.0)
        except TransferLost as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    buffer.close()
    thread.join(1.0)
    assert "closed" in str(errors[0])


def test_samples_are_counted_by_version_and_staleness():
    buffer = ExperienceBuffer(10)
    buffer.put(0, 0, samples(0, 1, version=4), deadline_s=0.1)
    buffer.put(0, 1, samples(2, version=3), deadline_s=0.1)
    assert buffer.num_by_version() == {3: 1, 4: 2}
    assert buffer.num_by_staleness(5) == {1: 2, 2: 1}


def test_what_was_saved_is_restored():
    buffer = ExperienceBuffer(5)
    buffer.put(1, 1, samples(7), deadline_s=0.1)
    buffer.put(1, 0, samples(5, 6, version=2), deadline_s=0.1)
    state = buffer.state()
    saved = Parcel(json.loads(json.dumps(state.header, allow_nan=False)), state.tensors)
    other = ExperienceBuffer(5)
    other.restore(saved, prompt_of)
    assert other.parts(1) == (0, 1)
    first, second = other.get(1, 0, deadline_s=0.1)
    assert (first.sample_id, second.sample_id, second.weight_version) == (5, 6, 2)
    assert torch.equal(second.fields["logprobs"], torch.full((3,), -3.0))
    assert math.isnan(first.reward)
    assert first.prompt == prompt_of(5)


def test_an_empty_buffer_is_saved_too():
    other = ExperienceBuffer(5)
    other.restore(ExperienceBuffer(5).state(), prompt_of)
    assert other.num_samples == 0


def test_what_never_fits_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        ExperienceBuffer(0)
    buffer = ExperienceBuffer(3)
    with pytest.raises(ValueError, match="exceeds the buffer of 3"):
        buffer.put(0, 0, samples(0, 1, 2, 3), deadline_s=0.1)
    buffer.put(0, 0, samples(0), deadline_s=0.1)
    with pytest.raises(ValueError, match="already"):
        buffer.put(0, 0, samples(0), deadline_s=0.1)
