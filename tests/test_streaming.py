"""Copies and fills that go past the caches: every alignment, and the paths that choose them."""

from __future__ import annotations

import inspect
import re

import numba
import numpy as np
import pytest

import reference
import udfkit
from udfkit import memory
from udfkit.kernels import intrinsics
from udfkit.kernels.jit import JIT_DISABLED, driver
from udfkit.kernels.streaming import LINE, clear, copy


@driver("void(int64, int64, int64)")
def copy_and_fence(target, source, count):
    copy(target, source, count)
    intrinsics.fence()


@driver("void(int64, int64)")
def clear_and_fence(target, count):
    clear(target, count)
    intrinsics.fence()


COUNTS = (0, 1, 7, 63, 64, 65, 127, 128, 129, 191, 192, 1000, 4096, 5001)


def lined_up(nbytes: int) -> np.ndarray:
    """Bytes at a multiple of a line."""
    room = np.arange(nbytes + LINE, dtype=np.uint64).astype(np.uint8)
    return room[-room.ctypes.data % LINE :][:nbytes]


@pytest.mark.parametrize("count", COUNTS)
def test_copies_write_their_bytes_and_no_others(count):
    source = lined_up(6000)
    for at in (0, 1, 15, 16, 63):
        for source_at in (0, 3, 32):
            target = np.full(6000, 200, np.uint8)
            target = target[-target.ctypes.data % LINE :]
            expected = target.copy()
            expected[at : at + count] = source[source_at : source_at + count]
            copy_and_fence(target.ctypes.data + at, source.ctypes.data + source_at, count)
            reference.assert_same(target, expected)


@pytest.mark.parametrize("count", COUNTS)
def test_fills_write_their_bytes_and_no_others(count):
    for at in (0, 1, 15, 16, 63):
        target = np.full(6000, 200, np.uint8)
        target = target[-target.ctypes.data % LINE :]
        expected = target.copy()
        expected[at : at + count] = 0
        clear_and_fence(target.ctypes.data + at, count)
        reference.assert_same(target, expected)


@pytest.mark.skipif(JIT_DISABLED, reason="no machine code")
@pytest.mark.parametrize("function", [copy, clear])
def test_the_stores_of_whole_lines_go_past_the_caches(function):
    fresh = numba.njit(function.py_func)
    signature = (numba.int64,) * len(inspect.signature(function.py_func).parameters)
    fresh.compile(signature)
    stores = re.findall(r"store <8 x i64>.*", fresh.inspect_llvm(signature))
    assert stores
    assert all("!nontemporal" in store and "align 64" in store for store in stores)


@pytest.fixture
def all_streamed(monkeypatch):
    monkeypatch.setattr(memory, "STREAMED", 0)
    monkeypatch.setattr(memory, "SMALLEST_POOLED", 0)  # short batches take another way


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("sample_shape", [(), (3,), (16,), (129,)])
def test_every_move_is_the_same_past_the_caches(monkeypatch, all_streamed, threads, sample_shape):
    monkeypatch.setenv("UDFKIT_NUM_THREADS", threads)
    monkeypatch.setattr(udfkit.threads, "SERIAL_BYTES", 0)
    rng = np.random.default_rng(5)
    lengths = [0, 1, 70, 3, 0, 33, 12]
    sequences = [rng.standard_normal((n, *sample_shape)).astype(np.float32) for n in lengths]
    data, mask = reference.pad(sequences, sample_shape, np.float32)
    variable = udfkit.sequence.input_variable(sample_shape)

    value = udfkit.sanitize_batch(variable, sequences)
    reference.assert_same(value.data, data)
    reference.assert_same(value.mask, mask)
    reference.assert_same_list(udfkit.variable_value_to_seq(value, variable), sequences)
    ragged = udfkit.Ragged.from_list(sequences)
    reference.assert_same(udfkit.sanitize_batch(variable, ragged).data, data)

    for batch in (sequences, ragged):
        for side in ("right", "left"):
            padded = udfkit.pad(batch, side=side)
            reference.assert_same_list(list(udfkit.unpad(padded)), sequences)
            if side == "right":
                reference.assert_same(padded.data, data)
                reference.assert_same(padded.mask, mask)
            else:
                for row, sequence in zip(padded.data, sequences, strict=True):
                    reference.assert_same(row[len(row) - len(sequence) :], sequence)
                    assert not row[: len(row) - len(sequence)].any()
    filled = udfkit.pad(sequences, padding_value=2.5)
    assert (filled.data[mask == 0] == 2.5).all()
    reference.assert_same(filled.data[mask != 0], np.concatenate(sequences))
