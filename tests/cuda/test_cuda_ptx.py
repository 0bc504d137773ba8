"""The generated code, run on random batches with the launch shapes of a real device.

Results are compared bit for bit; the interpreter checks bounds, alignment and races; and the
32-byte sectors of memory that warps ask for are compared with the least that the sizes imply.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import toolchain
from ptx_interpreter import run
from ptx_memory import SECTOR, Fault, Memory
from ptx_target import Device, install
from toolchain import Case

import reference
from strategies import bit_noise

pytestmark = pytest.mark.skipif(not toolchain.DEMANDED, reason=toolchain.WHY_NOT)


@pytest.fixture(scope="module")
def shared_device() -> Device:
    """One device for the module, so that each kernel is compiled once."""
    return Device()


@pytest.fixture
def device(shared_device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The interpreter in the place of ``numba.cuda``."""
    install(monkeypatch, shared_device)
    return shared_device


def least(*arrays: Any) -> int:
    """Sectors that hold the bytes of arrays, each in memory of its own."""
    return sum(-(-array.nbytes // SECTOR) for array in arrays)


def batch(rng: Any, count: int, longest: int, shape: tuple[int, ...], dtype: Any) -> list[Any]:
    return [bit_noise(rng, (n, *shape), dtype) for n in rng.integers(0, longest + 1, count)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", [(16,), (64,), (20,)])
def test_wide_moves_touch_no_sector_twice(
    device: Device, shape: tuple[int, ...], seed: int
) -> None:
    from udfkit.kernels import cuda_moves

    rng = np.random.default_rng(seed)
    sequences = batch(rng, 23, 70, shape, np.float32)
    lengths = [len(sequence) for sequence in sequences]
    values = device.to_device(reference.flat(sequences, shape, np.float32))
    offsets = device.to_device(reference.offsets(lengths))
    data, mask = cuda_moves.ragged_to_padded(values, offsets, max(lengths))
    expected = reference.pad(sequences, shape, np.float32)
    reference.assert_same(data.copy_to_host(), expected[0])
    reference.assert_same(mask.copy_to_host(), expected[1])
    # Samples of whole sectors begin at one. Others make each request of a warp, 512 bytes, share
    # the sectors at its ends with the next one.
    size = 4 * shape[0]
    shared = sum(-(-n * size // 512) + 1 for n in lengths)
    ends = 0 if size % SECTOR == 0 else shared
    padded_requests = 0 if size % SECTOR == 0 else data._ary.nbytes // 512
    assert least(values._ary) <= device.sectors("load", values) <= least(values._ary) + ends
    assert (
        least(data._ary)
        <= device.sectors("store", data)
        <= least(data._ary) + 2 * ends + padded_requests
    )
    assert device.sectors("store", mask) <= least(mask._ary) + 4 * mask.size // SECTOR + 23 * 2
    back = cuda_moves.padded_to_ragged(data, offsets, sum(lengths))
    reference.assert_same(back.copy_to_host(), values.copy_to_host())
    assert device.sectors("store", back) <= least(back._ary) + ends
    assert device.sectors("load", data) <= least(back._ary) + ends


@pytest.mark.parametrize(("shape", "dtype", "width"), [
    ((1,), np.float32, 4), ((3,), np.float16, 2), ((5,), np.int8, 1), ((3,), np.float64, 8),
])  # fmt: skip
def test_narrow_moves(device: Device, shape: tuple[int, ...], dtype: Any, width: int) -> None:
    from udfkit.kernels import cuda_moves

    rng = np.random.default_rng(width)
    sequences = batch(rng, 31, 90, shape, dtype)
    lengths = [len(sequence) for sequence in sequences]
    values = device.to_device(reference.flat(sequences, shape, dtype))
    offsets = device.to_device(reference.offsets(lengths))
    data, _ = cuda_moves.ragged_to_padded(values, offsets, max(lengths))
    reference.assert_same(data.copy_to_host(), reference.pad(sequences, shape, dtype)[0])
    back = cuda_moves.padded_to_ragged(data, offsets, sum(lengths))
    reference.assert_same(back.copy_to_host(), values.copy_to_host())
    statistics, _ = device.launches[-1]
    assert {size for kind, size in statistics.requests if kind == "store"} == {width}
    # A warp's narrow accesses lie side by side: a request of 32 * width bytes, cut once a sector.
    requests = sum(-(-n * data._ary.strides[1] // (32 * width)) for n in lengths)
    assert device.sectors("store", back) <= least(back._ary) + requests + len(lengths)


def test_list_of_arrays(device: Device) -> None:
    from udfkit.kernels import cuda_moves

    rng = np.random.default_rng(7)
    sequences = batch(rng, 40, 33, (8,), np.float64)
    arrays = [device.to_device(sequence) for sequence in sequences]
    lengths = [len(sequence) for sequence in sequences]
    starts = rng.random(40) < 0.5
    data, mask = cuda_moves.rows_to_padded(arrays, max(lengths), starts)
    expected = reference.pad(sequences, (8,), np.float64, starts)
    reference.assert_same(data.copy_to_host(), expected[0])
    reference.assert_same(mask.copy_to_host(), expected[1])
    assert device.sectors("store", data) == least(data._ary)
    values, _ = cuda_moves.rows_to_ragged(arrays)
    reference.assert_same(values.copy_to_host(), reference.flat(sequences, (8,), np.float64))


@pytest.mark.parametrize("seed", range(4))
def test_general_masks(device: Device, seed: int) -> None:
    from udfkit.kernels import cuda_mask_moves

    rng = np.random.default_rng(seed)
    cells = rng.integers(0, 3, (9, 300 + seed)).astype(np.int8)
    cells[rng.integers(0, 9)] = 0
    padded = bit_noise(rng, (*cells.shape, 8), np.float32)
    mask, data = device.to_device(cells), device.to_device(padded)
    read = cuda_mask_moves.read_mask(mask)
    reference.assert_same(read.lengths.copy_to_host(), reference.lengths_from_mask(cells))
    reference.assert_same(read.starts.copy_to_host(), reference.starts_from_mask(cells))
    values = cuda_mask_moves.cells_to_ragged(data, mask, read.row_offsets, read.total)
    expected = reference.flat(reference.unpad(padded, cells), (8,), np.float32)
    reference.assert_same(values.copy_to_host(), expected)
    assert device.sectors("store", values) == least(values._ary)
    assert device.sectors("load", data) == least(values._ary)
    back = cuda_mask_moves.ragged_to_cells(values, mask, read.row_offsets)
    padded[cells == 0] = 0
    reference.assert_same(back.copy_to_host(), padded)
    assert device.sectors("store", back) == least(back._ary)


def test_scans_of_many_blocks(device: Device) -> None:
    from udfkit.kernels import cuda_mask_moves

    lengths = np.random.default_rng(8).integers(0, 99, 5_000)
    offsets, findings = cuda_mask_moves.offsets_of(device.to_device(lengths))
    reference.assert_same(offsets.copy_to_host(), reference.offsets(lengths))
    assert cuda_mask_moves.check_offsets(findings) == lengths.sum()
    lengths[4_321] = -1
    _, findings = cuda_mask_moves.offsets_of(device.to_device(lengths))
    with pytest.raises(ValueError, match="position 4321"):
        cuda_mask_moves.check_offsets(findings)


def test_sparse_samples(device: Device) -> None:
    from udfkit.kernels import cuda_mask_moves

    rng = np.random.default_rng(9)
    codes = rng.integers(-1, 1_000, 50)
    dense = cuda_mask_moves.one_hot_to_dense(device.to_device(codes), 1_000, np.float32)
    expected = np.zeros((50, 1_000), np.float32)
    expected[codes >= 0, codes[codes >= 0]] = 1
    reference.assert_same(dense.copy_to_host(), expected)
    assert device.sectors("store", dense) == least(dense._ary)
    counts = rng.integers(0, 30, 20)
    indices = np.concatenate([rng.choice(9_000, n, replace=False) for n in counts]).astype(np.int64)
    data, indptr = bit_noise(rng, indices.shape, np.float32), reference.offsets(counts)
    positions = np.sort(rng.choice(33, 20, replace=False))
    parts = [device.to_device(part) for part in (indptr, indices, data)]
    dense = cuda_mask_moves.csr_to_dense(*parts, 9_000, device.to_device(positions), 33)
    expected = np.zeros((33, 9_000), np.float32)
    expected[positions] = reference.csr_to_dense(data, indices, indptr, (20, 9_000), np.float32)
    reference.assert_same(dense.copy_to_host(), expected)


FAR_ROW = 2**31 + 8
FAR_SAMPLE = 2**33 + 5


@pytest.mark.parametrize("width", [16, 8, 4, 2, 1])
@pytest.mark.parametrize("name", ["ragged_to_padded", "padded_to_ragged"])
@pytest.mark.parametrize("is_wide", [False, True])
def test_rows_and_offsets_past_32_bits(name: str, width: int, is_wide: bool) -> None:
    # Bases are shifted down, so that the far row of a huge batch lies in a small buffer.
    rng = np.random.default_rng(width)
    size, steps = 3 * width, 5
    values = bit_noise(rng, (3, size), np.uint8)
    offsets = np.array([FAR_SAMPLE, FAR_SAMPLE + 3], np.int64)
    padded = bit_noise(rng, (1, steps, size), np.uint8)
    mask = np.full((1, steps), 9, np.int8)
    moves_out = name == "padded_to_ragged"
    memory = Memory()
    flat = memory.place(values, writable=moves_out) - FAR_SAMPLE * size
    bounds = memory.place(offsets) - 8 * FAR_ROW
    rows = memory.place(padded, writable=not moves_out) - FAR_ROW * steps * size
    cells = memory.place(mask, writable=True) - FAR_ROW * steps
    block = (4, 8)
    place = [(FAR_ROW // 8, 0)]
    program = toolchain.ptx(Case(name, width, is_wide))
    before = values.copy(), padded.copy()
    if moves_out:
        arguments = [rows, bounds, size, steps, flat, FAR_ROW + 1]
        run(program, (2**30, 1), block, arguments, memory, place)
        assert (values == before[1][0, :3]).all()
    else:
        arguments = [flat, bounds, size, steps, rows, 0, cells, FAR_ROW + 1]
        run(program, (2**30, 1), block, arguments, memory, place)
        assert (padded[0, :3] == before[0]).all()
        assert (padded[0, 3:] == 0).all()
        assert mask.tolist() == [[2, 1, 1, 0, 0]]


@pytest.mark.parametrize("width", [16, 8, 4, 2, 1])
def test_positions_in_a_row_past_32_bits(width: int) -> None:
    # One block of a grid whose other blocks would move the 8 GB before it.
    from udfkit.kernels.cuda_launch import loads_in_flight

    def move(is_wide: bool) -> Any:
        count = loads_in_flight(width, is_wide=is_wide)
        y = 2**33 // (4 * count * width)
        first = y * 4 * count * width
        size = 4 * width
        values = bit_noise(np.random.default_rng(1), (size,), np.uint8)
        target = np.full(size + 3 * width, 7, np.uint8)
        memory = Memory()
        flat = memory.place(values) - first
        bounds = memory.place(np.array([0, first + size], np.int64))
        out = memory.place(target, writable=True) - first
        arguments = [flat, bounds, 1, first + size + 3 * width, out, 0, 0, 1]
        case = Case("ragged_to_padded", width, is_wide)
        run(toolchain.ptx(case), (1, y + 2), (4, 1), arguments, memory, [(0, y), (0, y + 1)])
        return values, target

    values, target = move(True)
    assert (target[: values.size] == values).all()
    assert (target[values.size :] == 0).all()
    with pytest.raises(Fault, match="outside all buffers"):
        move(False)
