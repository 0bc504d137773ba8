"""Reading tuples of arrays: same results compiled and plain, whatever the items are."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from udfkit.kernels import pyobjects

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]
SHAPES: list[tuple[int, ...]] = [(), (1,), (3,), (0,), (2, 3), (2, 0, 4), (1, 2, 1, 3)]


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run every test with compiled code and with the plain path."""
    assert pyobjects.why_plain is None
    if request.param == "plain":
        pyobjects._bind("a test asks for it")
    yield request.param
    pyobjects._bind(None)


def run_scan(
    batch: list[Any], dtype: Any, shape: tuple[int, ...]
) -> tuple[tuple[int, int, int], list[int], list[int]]:
    pointers, lengths = np.full((2, len(batch) + 2), 77, np.int64)
    found = pyobjects.scan(tuple(batch), np.dtype(dtype), shape, pointers, lengths)
    assert pointers[len(batch) :].tolist() == lengths[len(batch) :].tolist() == [77, 77]
    return found, pointers[: len(batch)].tolist(), lengths[: len(batch)].tolist()


def plain_items(count: int, shape: tuple[int, ...], dtype: Any = np.float32) -> list[np.ndarray]:
    return [np.ones((length % 7, *shape), dtype) for length in range(count)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_items_of_every_dtype_and_rank(dtype: str, shape: tuple[int, ...]) -> None:
    batch = plain_items(40, shape, dtype)
    found, pointers, lengths = run_scan(batch, dtype, shape)
    assert pointers == [item.ctypes.data for item in batch]
    assert lengths == [len(item) for item in batch]
    assert found == (0, 6, sum(lengths))


def test_an_empty_batch() -> None:
    assert run_scan([], "f4", (3,)) == ((0, 0, 0), [], [])


class Subclass(np.ndarray):
    pass


def unaligned(shape: tuple[int, ...]) -> np.ndarray:
    raw = np.zeros(4 * int(np.prod(shape)) + 1, np.uint8)
    return raw[1:].view(np.float32).reshape(shape)


ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "int": lambda: 3,
    "str": lambda: "ab",
    "list": lambda: [[1.0, 2.0, 3.0]],
    "tuple": lambda: ((1.0, 2.0, 3.0),),
    "object": object,
    "scalar": lambda: np.float32(3),
    "0-d": lambda: np.array(1, np.float32),
    "subclass": lambda: np.zeros((4, 3), np.float32).view(Subclass),
    "matrix": lambda: np.ma.zeros((4, 3), np.float32),
    "byte-swapped": lambda: np.zeros((4, 3), np.dtype("f4").newbyteorder()),
    "other dtype": lambda: np.zeros((4, 3), np.float64),
    "same size": lambda: np.zeros((4, 3), np.int32),
    "complex": lambda: np.zeros((4, 3), np.complex64),
    "objects": lambda: np.zeros((4, 3), object),
    "structure": lambda: np.zeros((4, 3), "f4,f4"),
    "Fortran": lambda: np.zeros((4, 3), np.float32, order="F"),
    "negative stride": lambda: np.zeros((4, 3), np.float32)[::-1],
    "sliced": lambda: np.zeros((4, 6), np.float32)[:, ::2],
    "broadcast": lambda: np.broadcast_to(np.zeros(3, np.float32), (4, 3)),
    "unaligned": lambda: unaligned((4, 3)),
    "rank below": lambda: np.zeros(3, np.float32),
    "rank above": lambda: np.zeros((4, 3, 1), np.float32),
    "other size": lambda: np.zeros((4, 2), np.float32),
    "other size, empty": lambda: np.zeros((0, 4), np.float32),
}


@pytest.mark.parametrize("at", [0, 1, 37, 49])
@pytest.mark.parametrize("kind", ODD)
def test_one_odd_item_leaves_the_others_plain(kind: str, at: int) -> None:
    batch: list[Any] = plain_items(50, (3,))
    batch[at] = ODD[kind]()
    found, pointers, lengths = run_scan(batch, "f4", (3,))
    others = [item for i, item in enumerate(batch) if i != at]
    assert found == (1, 6, sum(map(len, others)))
    assert (pointers.pop(at), lengths.pop(at)) == (0, -1)
    assert pointers == [item.ctypes.data for item in others]
    assert lengths == [len(item) for item in others]


def test_all_items_odd() -> None:
    batch = [make() for make in ODD.values()]
    found, pointers, lengths = run_scan(batch, "f4", (3,))
    assert found == (len(batch), 0, 0)
    assert set(pointers) == {0}
    assert set(lengths) == {-1}


def test_a_memory_map_is_odd_and_an_array_over_it_is_plain(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "data", np.float32, "w+", shape=(4, 3))
    assert run_scan([mapped, np.asarray(mapped)], "f4", (3,))[2] == [-1, 4]


def test_contiguous_arrays_of_every_origin_are_plain() -> None:
    base = np.arange(24, dtype=np.float32).reshape(8, 3)
    read_only = base.copy()
    read_only.flags.writeable = False
    batch = [base[2:5], read_only, np.frombuffer(bytes(12), np.float32).reshape(1, 3)]
    batch += [base[:1][::-1], base[::2][:1], np.asfortranarray(base[:1]), base.T.copy().T[:0]]
    assert run_scan(batch, "f4", (3,))[0] == (0, 8, 3 + 8 + 1 + 1 + 1 + 1 + 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_out_of_a_pickle_are_plain(dtype: str) -> None:
    # Their dtype equals the usual one but is another object.
    item = pickle.loads(pickle.dumps(np.zeros((2, 3), dtype)))
    assert run_scan([item, item], dtype, (3,))[0] == (0, 2, 4)
    assert run_scan([np.zeros((2, 3), dtype)], item.dtype, (3,))[0] == (0, 2, 2)


def test_a_dtype_of_other_byte_order_can_be_wanted() -> None:
    swapped = np.dtype("f4").newbyteorder()
    item = np.zeros((2, 3), swapped)
    assert run_scan([item, item.astype("f4")], item.dtype, (3,))[2] == [2, -1]


def test_types_of_other_size_and_equal_kind_are_told_apart() -> None:
    for dtype, other in ("S4", "S5"), ("V4", "V5"), ("U1", "U2"), ("M8[s]", "M8[ms]"):
        item = np.zeros((2, 3), dtype)
        assert run_scan([item, np.zeros((2, 3), other)], item.dtype, (3,))[2] == [2, -1]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_samples_of_every_rank(shape: tuple[int, ...]) -> None:
    batch = [np.ones(shape, np.float32) for _ in range(30)]
    batch[7] = np.ones((1, *shape), np.float32)
    batch[8] = np.ones(shape, np.float64)
    pointers = np.empty(30, np.int64)
    assert pyobjects.scan_samples(tuple(batch), np.dtype("f4"), shape, pointers) == 2
    expected = [0 if i in {7, 8} else item.ctypes.data for i, item in enumerate(batch)]
    assert pointers.tolist() == expected


def slots(count: int = 3) -> np.ndarray:
    return np.zeros(count, np.int64)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "list": ({"batch": [np.zeros(3)]}, r"batch is a list; pass tuple\(batch\)"),
    "array": ({"batch": np.zeros(3)}, "batch is a ndarray"),
    "dtype": ({"dtype": np.float32}, "pass a numpy.dtype"),
    "no dtype": ({"dtype": None}, "dtype is None; pass"),
    "shape": ({"shape": [3]}, r"sample_shape is \[3\]; pass a tuple of integers"),
    "sizes": ({"shape": (3.0,)}, r"sample_shape is \(3\.0,\); pass a tuple of integers"),
    "few slots": ({"pointers": slots(2)}, r"pass numpy\.empty\(len\(batch\), numpy\.int64\)"),
    "few lengths": ({"lengths": slots(2)}, "a cell for each item"),
    "int32": ({"lengths": slots().astype(np.int32)}, "int64 vectors"),
    "strided": ({"lengths": slots(6)[::2]}, "contiguous"),
    "rank": ({"lengths": slots().reshape(3, 1)}, "vectors"),
    "no array": ({"pointers": [0, 0, 0]}, "pointers and lengths must be"),
    "no lengths": ({"lengths": None}, "pointers and lengths must be"),
    "subclass": ({"pointers": slots().view(Subclass)}, "pointers and lengths must be"),
    "read-only": ({"pointers": np.frombuffer(bytes(24), np.int64)}, "writeable"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_arguments_are_type_errors(kind: str) -> None:
    changed, text = WRONG[kind]
    arguments: dict[str, Any] = {
        "batch": (np.zeros((2, 3), np.float32),) * 3,
        "dtype": np.dtype("f4"),
        "shape": (3,),
        "pointers": slots(),
        "lengths": slots(),
    }
    assert pyobjects.scan(*arguments.values()) == (0, 2, 6)
    with pytest.raises(TypeError, match=text):
        pyobjects.scan(*(arguments | changed).values())
    if "lengths" not in changed:
        arguments.pop("lengths")
        with pytest.raises(TypeError, match=text):
            pyobjects.scan_samples(*(arguments | changed).values())
