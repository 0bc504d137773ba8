"""All hot paths over arrays in memory of every kind, freed at once, or under the output."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hot_paths
import reference
import udfkit
from checks import raises


class Subclass(np.ndarray):
    """A subclass that would be in the way: results are plain arrays."""

    def __array_finalize__(self, other: Any) -> None:
        self.note = getattr(other, "note", "kept")


def swapped(array: np.ndarray) -> np.ndarray:
    return array.byteswap().view(array.dtype.newbyteorder())


def misaligned(array: np.ndarray) -> np.ndarray:
    room = bytearray(array.nbytes + 1)
    made = np.frombuffer(room, array.dtype, array.size, 1).reshape(array.shape)
    made[...] = array
    return made


def read_only(array: np.ndarray) -> np.ndarray:
    made = array.copy()
    made.setflags(write=False)
    return made


def backwards(array: np.ndarray) -> np.ndarray:
    return array[::-1].copy()[::-1]


def every_other(array: np.ndarray) -> np.ndarray:
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


FORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "subclass": lambda array: array.copy().view(Subclass),
    "swapped": swapped,
    "misaligned": misaligned,
    "read only": read_only,
    "backwards": backwards,
    "every other": every_other,
    "Fortran": np.asfortranarray,
}


def check(expected: hot_paths.HotPaths, sequences: list[np.ndarray]) -> None:
    """Assert that these sequences, in whatever memory, are the expected ones on every path."""
    before = [sequence.tobytes() for sequence in sequences]
    flags = [sequence.flags.num for sequence in sequences]
    value = udfkit.sanitize_batch(expected.x, sequences, expected.starts)
    expected.check_value(value)
    reference.assert_same(udfkit.Ragged.from_list(sequences).values, expected.flat)
    for side in "right", "left":
        padded = udfkit.pad(sequences, side=side, padding_value=1 if side == "left" else 0)
        reference.assert_same(padded.data, expected.left if side == "left" else expected.data)
        expected.check_list(list(udfkit.unpad(padded)))
    for function in expected.identity, expected.ragged_identity:
        expected.check_list(function.eval(sequences))
        expected.check_list(function.grad(expected.roots, root_gradients=sequences))
    assert [sequence.tobytes() for sequence in sequences] == before
    assert [sequence.flags.num for sequence in sequences] == flags


def check_rectangle(expected: hot_paths.HotPaths, data: np.ndarray) -> None:
    """The same for padded data."""
    before = data.tobytes()
    expected.check_value(udfkit.Value(data, expected.mask))
    expected.check_list(list(udfkit.unpad(data, expected.mask)))
    lengths = list(map(len, expected.sequences))
    expected.check_list(list(udfkit.unpad(data, lengths=lengths)))
    for copy in True, False:
        value = udfkit.sanitize_batch(expected.x, data, copy=copy)
        reference.assert_same(value.data, expected.data)
        whole = udfkit.variable_value_to_seq(value, expected.x)
        reference.assert_same_list(whole, list(expected.data))
    reference.assert_same(udfkit.pad(data).data, expected.data)
    reference.assert_same(udfkit.pad(data, expected.mask).data, expected.data)
    ragged = udfkit.Ragged(FORMS["misaligned"](expected.flat), expected.offsets, expected.starts)
    expected.check_value(udfkit.sanitize_batch(expected.x, ragged))
    assert data.tobytes() == before


@pytest.fixture(params=["small", "large"])
def hot(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> hot_paths.HotPaths:
    monkeypatch.setenv("UDFKIT_NUM_THREADS", "3")
    return getattr(hot_paths, request.param)(6)


@pytest.mark.parametrize("form", FORMS)
def test_arrays_in_any_memory(form: str, hot: hot_paths.HotPaths) -> None:
    make = FORMS[form]
    check(hot, [make(sequence) for sequence in hot.sequences])
    # One odd array among plain ones.
    some = [make(s) if k == len(s) % 5 else s for k, s in enumerate(hot.sequences)]
    check(hot, [make(hot.sequences[0]), *some[1:-1], make(hot.sequences[-1])])
    check_rectangle(hot, make(hot.data))


def test_memory_mapped_arrays(tmp_path: Path, hot: hot_paths.HotPaths) -> None:
    path = tmp_path / "samples"
    path.write_bytes(hot.data.tobytes() + hot.flat.tobytes())
    data = np.memmap(path, hot.dtype, "r", shape=hot.data.shape)
    flat = np.memmap(path, hot.dtype, "r", hot.data.nbytes, hot.flat.shape)
    pieces = [flat[a:b] for a, b in zip(hot.offsets[:-1], hot.offsets[1:], strict=True)]
    check(hot, list(pieces))
    check_rectangle(hot, data)
    # The mapping may go at once; nothing reads it any more.
    value = udfkit.sanitize_batch(hot.x, pieces, hot.starts)
    borrowed = udfkit.sanitize_batch(hot.x, udfkit.Ragged(flat, hot.offsets), copy=False)
    sequences = udfkit.variable_value_to_seq(borrowed, hot.x)
    del pieces, flat, data, borrowed
    gc.collect()
    hot.check_value(value)
    hot.check_list(sequences)
    out = np.memmap(tmp_path / "out", hot.dtype, "w+", shape=hot.data.shape)
    udfkit.pad(hot.sequences, out=out)
    out.flush()
    assert (tmp_path / "out").read_bytes() == hot.data.tobytes()


def test_views_of_one_block_and_one_array_many_times(hot: hot_paths.HotPaths) -> None:
    block = hot.flat.copy()
    check(hot, np.split(block, hot.offsets[1:-1]))
    overlapping = [block[: len(sequence)] for sequence in hot.sequences]
    check(hot_paths.HotPaths([view.copy() for view in overlapping]), overlapping)
    last = hot.sequences[-1]
    same = [last[:0], *[last] * 20]
    check(hot_paths.HotPaths([array.copy() for array in same]), same)


def test_arrays_freed_and_overwritten_right_after_the_call(hot: hot_paths.HotPaths) -> None:
    def overwrite(arrays: list[np.ndarray]) -> list[np.ndarray]:
        sizes = [array.nbytes for array in arrays]
        for array in arrays:
            array.view(np.uint8).fill(0xAB)
        arrays.clear()
        # Memory of the same sizes is what the allocator gives out again.
        return [np.full(nbytes, 0xCD, np.uint8) for nbytes in sizes]

    def fresh() -> list[np.ndarray]:
        return [sequence.copy() for sequence in hot.sequences]

    for _ in range(3):
        lists = [fresh() for _ in range(4)]
        value = udfkit.sanitize_batch(hot.x, lists[0], hot.starts)
        ragged = udfkit.Ragged.from_list(lists[1])
        padded = udfkit.pad(lists[2], side="left", padding_value=1)
        _, outputs = hot.identity._forward([udfkit.sanitize_batch(hot.x, lists[3], hot.starts)])
        churn = [overwrite(arrays) for arrays in lists]
        hot.check_value(value)
        reference.assert_same(ragged.values, hot.flat)
        reference.assert_same(padded.data, hot.left)
        hot.check_value(outputs[hot.identity.output])
        whole = hot.data.copy()
        made = udfkit.sanitize_batch(hot.x, whole), udfkit.Value(whole, hot.mask)
        back = udfkit.unpad(whole, hot.mask)
        churn.append(overwrite([whole]))
        reference.assert_same(made[0].data, hot.data)
        hot.check_value(made[1])
        hot.check_list(list(back))
        assert len(churn) == 5


def test_outputs_that_overlap_the_batch(hot: hot_paths.HotPaths) -> None:
    out, mask_out = np.full_like(hot.data, 7), np.full_like(hot.mask, 7)
    steps = out.shape[1]
    flat = out.reshape(-1, *hot.shape)
    last = hot.sequences[-1]
    cases: list[Any] = [
        [*hot.sequences[:-1], out[-1]],
        [*hot.sequences[:-1], flat[5 : 5 + steps]],
        [out[-1, :1], *hot.sequences[1:-1], last],
        list(out),
        out,
        udfkit.Ragged(flat, np.arange(len(out) + 1) * steps),
    ]
    for batch in cases:
        with raises(ValueError, "out", "overlaps"):
            udfkit.pad(batch, out=out, mask_out=mask_out)
        assert (out == 7).all()
        assert (mask_out == 7).all()
    # What has to be copied first may come from the output, whatever the order of the writes.
    chance = np.random.default_rng(0)
    out[...] = chance.standard_normal(out.shape).astype(out.dtype)
    expected = out[::-1, ::-1].copy()
    assert udfkit.pad([row[::-1] for row in out[::-1]], out=out).data is out
    reference.assert_same(out, expected)


def test_padding_twice_in_place_of_the_first_result(hot: hot_paths.HotPaths) -> None:
    padded = udfkit.pad(hot.sequences)
    with raises(ValueError, "out", "overlaps"):
        udfkit.pad(padded, out=padded.data)
    reference.assert_same(padded.data, hot.data)
    with raises(ValueError, "mask_out", "overlaps"):
        udfkit.pad([np.ones(3, np.int8)], out=(room := np.zeros((1, 3), np.int8)), mask_out=room)
