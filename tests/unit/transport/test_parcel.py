from __future__ import annotations

import io
import json
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexrlhf.learning.models.tensor_bytes import DTYPES, byte_view
from flexrlhf.learning.transport.parcel import MalformedParcel, Parcel, decode, encode


def encoded(parcel: Parcel, **keys) -> bytes:
    return b"".join(bytes(piece) for piece in encode(parcel, **keys))


def decoded(data: bytes, **keys) -> Parcel:
    stream = io.BytesIO(data)

    def fill(memory: memoryview) -> None:
        if stream.readinto(memory) != len(memory):
            raise ConnectionResetError

    parcel = decode(fill, **keys)
    assert not stream.read(), "bytes are left"
    return parcel


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Any bits at all, NaNs among them; bools are 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    high = 2 if dtype == torch.bool else 256
    count = int(torch.tensor(shape).prod()) * dtype.itemsize
    raw = torch.randint(high, (count,), generator=generator, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.integers(0, 5), max_size=4).map(tuple),
    st.booleans(),
)
def test_every_type_and_shape_comes_back_bit_for_bit(dtype, shape, with_checksum):
    tensor = random_tensor(shape, DTYPES[dtype])
    back = decoded(encoded(Parcel({}, {"x": tensor}), with_checksum=with_checksum)).tensors["x"]
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert bytes(byte_view(back)) == bytes(byte_view(tensor))


def test_header_order_and_strided_tensors_survive():
    whole = torch.arange(12.0).reshape(3, 4).requires_grad_()
    header = {"text": "zwölf \ud800", "list": [1, None, {"a": 1.5}]}
    parcel = Parcel(header, {"b": whole[:, 1:3], "a": whole.T, "scalar": whole[1, 2]})
    back = decoded(encoded(parcel))
    assert back.header == header
    assert list(back.tensors) == ["b", "a", "scalar"]
    assert torch.equal(back.tensors["b"], torch.tensor([[1.0, 2.0], [5.0, 6.0], [9.0, 10.0]]))
    assert torch.equal(back.tensors["a"], whole.T)
    assert back.tensors["scalar"].item() == 6.0
    assert parcel.num_bytes == 4 * (6 + 12 + 1)


def test_a_tensor_is_sent_from_where_it_lies():
    tensor = torch.zeros(1 << 16)
    _, piece = encode(Parcel({}, {"x": tensor}))
    tensor[0] = 1.0
    assert bytes(piece[:4]) == struct.pack("<f", 1.0)


def test_a_changed_byte_is_found_where_a_checksum_was_asked_for():
    data = bytearray(encoded(Parcel({}, {"x": torch.ones(8)}), with_checksum=True))
    data[-1] ^= 1
    with pytest.raises(MalformedParcel, match="checksum"):
        decoded(bytes(data))


def announcing(tensors: object, header: object = None, checksum: object = None) -> bytes:
    text = json.dumps({"header": header or {}, "tensors": tensors, "checksum": checksum}).encode()
    return struct.pack("<4sI", b"FXP1", len(text)) + text


@pytest.mark.parametrize(
    "tensors",
    [
        [["x", "float32", [1 << 40]]],
        [["x", "float32", [1 << 62, 1 << 62]]],
        [["x", "float32", [0, 1 << 62]]],
        [["x", "uint8", [600]], ["y", "uint8", [600]]],
        [["x", "float32", [-1]]],
        [["x", "float32", [True]]],
        [["x", "float32", [2.0]]],
        [["x", "float32", [1] * 100]],
        [["x", "object", [1]]],
        [["x", ["float32"], [1]]],
        [["x", "float32"]],
        {"x": 1},
        None,
    ],
)
def test_an_absurd_header_takes_no_memory(tensors):
    with pytest.raises(MalformedParcel):
        decoded(announcing(tensors), max_bytes=1000)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        struct.pack("<4sI", b"FXP1", 1 << 31),
        struct.pack("<4sI", b"FXP1", 2) + b"[]",
        struct.pack("<4sI", b"FXP1", 2) + b"\xff\xfe",
        struct.pack("<4sI", b"FXP1", 1 << 20) + b"[" * (1 << 20),
        announcing([], header=[1]),
    ],
)
def test_what_is_no_parcel_is_refused(data):
    with pytest.raises(MalformedParcel):
        decoded(data)


def test_what_json_lacks_is_not_sent():
    with pytest.raises(ValueError, match="JSON"):
        encoded(Parcel({"reward": float("nan")}))
    with pytest.raises(ValueError, match="complex64"):
        encoded(Parcel({}, {"x": torch.zeros(1, dtype=torch.complex64)}))
