"""Device arrays that are not contiguous: right results, silently, as on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_checks import Copies, Foreign, check_same, read, to_device

import reference
import strategies as own
from checks import batch_variable, raises, sequence_variable
from udfkit import Ragged, Value, sanitize_batch
from udfkit.kernels import cuda_arrays, cuda_moves, cuda_strides

VIEWS: dict[str, Any] = {
    "every other row": lambda x: x[::2],
    "rows backwards": lambda x: x[::-1],
    "steps backwards": lambda x: x[:, ::-1],
    "every other number": lambda x: x[..., ::2],
    "some steps": lambda x: x[:, 1:4],
    "Fortran's order": lambda x: x.transpose(2, 1, 0),
    "axes changed": lambda x: x.swapaxes(0, 1),
    "one row of many": lambda x: np.broadcast_to(x[:1], x.shape),
    "one number": lambda x: np.broadcast_to(x[:1, :1, :1], x.shape),
}


def strided(view: np.ndarray) -> Foreign:
    """A view of memory on the device, as a foreign array."""
    base = view
    while isinstance(base.base, np.ndarray):
        base = base.base
    begin = view.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    memory = Foreign(base)
    memory.__cuda_array_interface__.update(
        shape=view.shape, strides=view.strides, data=(memory.address + begin, False)
    )
    return memory


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", ["i1", "f2", "f4", "f8"])
def test_views_of_every_kind(view: str, dtype: str, launched: Any) -> None:
    base = own.bit_noise(np.random.default_rng(1), (3, 5, 4), np.dtype(dtype))
    wanted = VIEWS[view](base)
    made = cuda_strides.packed(cuda_arrays.read_array(strided(wanted), "x", strided=True))
    assert made.strides is None
    reference.assert_same(read(made), np.ascontiguousarray(wanted))
    assert launched.names == ["copy_strided"]


def test_contiguous_parts_are_moved_by_wide_accesses(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    compiled = cuda_strides._compiled
    monkeypatch.setattr(
        cuda_strides, "_compiled", lambda width, at: widths.append(width) or compiled(width, at)
    )
    base = np.arange(3 * 4 * 8, dtype=np.float32).reshape(3, 4, 8)
    for view in (base[::2], base[:, ::2], base[:, :, ::2], base[:, :, :6]):
        made = cuda_strides.packed(cuda_arrays.read_array(strided(view), "x", strided=True))
        reference.assert_same(read(made), np.ascontiguousarray(view))
    assert widths == [16, 16, 4, 8]


def test_a_contiguous_array_is_left_alone(launched: Any) -> None:
    view = cuda_arrays.read_array(to_device(np.ones((2, 3))), "x", strided=True)
    assert cuda_strides.packed(view) is view
    assert launched.names == []


def test_too_many_axes_say_so() -> None:
    view = np.ones((2,) * 14, np.int8)[(slice(None, None, 2), slice(None)) * 7]
    array = strided(np.broadcast_to(view, (2,) * 14))
    with raises(ValueError, "too many axes", "contiguous"):
        cuda_strides.packed(cuda_arrays.read_array(array, "x", strided=True))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("copy", [True, False])
def test_batches_of_views(view: str, copy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    base = np.arange(60, dtype=np.float32).reshape(3, 5, 4)
    whole = VIEWS[view](base)
    shape, flat = whole.shape[2:], whole[:, 0]
    copies = Copies(monkeypatch)
    made = [
        sanitize_batch(sequence_variable(shape), strided(whole), copy=copy),
        sanitize_batch(sequence_variable(shape), [strided(row) for row in whole]),
        sanitize_batch(batch_variable(whole.shape[1:]), strided(whole), copy=copy),
        Value(strided(whole), lengths=[1] * len(whole)),
        sanitize_batch(sequence_variable(shape), Ragged(strided(flat), [0, len(flat)]), copy=copy),
    ]
    assert copies.count == 0
    expected = [
        sanitize_batch(sequence_variable(shape), whole),
        sanitize_batch(sequence_variable(shape), list(whole)),
        sanitize_batch(batch_variable(whole.shape[1:]), whole),
        Value(whole, lengths=[1] * len(whole)),
        sanitize_batch(sequence_variable(shape), [flat]),
    ]
    for value, wanted in zip(made, expected, strict=True):
        check_same(value, wanted)


def test_kernels_alone_say_that_they_take_none() -> None:
    with raises(ValueError, "values", "strides", "contiguous"):
        cuda_moves.ragged_to_padded(
            strided(np.ones((4, 4))[:, ::2]), to_device(np.array([0, 4])), 4
        )
