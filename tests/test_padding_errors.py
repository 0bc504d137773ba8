"""What `udfkit.pad` and `udfkit.unpad` refuse, what the error names; nothing is written."""

from __future__ import annotations

import numpy as np
import pytest

from checks import raises
from udfkit import PaddedSizeError, Value
from udfkit.padding import pad, unpad


def two(*shape: int) -> list[np.ndarray]:
    return [np.ones((3, *shape), np.float32), np.ones((1, *shape), np.float32)]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"side": "middle"}, ["middle", "left"]),
        ({"overflow": "truncate"}, ["truncate", "truncate_left"]),
        ({"max_length": 2}, ["sequence 0", "3", "2"]),
        ({"steps": 2}, ["sequence 0", "3", "2"]),
        ({"buckets": [1, 2]}, ["sequence 0", "3", "2"]),
        ({"buckets": []}, ["buckets"]),
        ({"buckets": [-1]}, ["buckets[0]", "-1"]),
        ({"steps": -1}, ["steps", "-1"]),
        ({"steps": 2.0}, ["steps", "2.0"]),
        ({"steps": True}, ["steps", "True"]),
        ({"multiple_of": 0}, ["multiple_of", "0"]),
        ({"max_length": -2}, ["max_length", "-2"]),
        ({"steps": 4, "multiple_of": 2}, ["steps", "multiple_of"]),
        ({"buckets": [4], "multiple_of": 2}, ["buckets", "multiple_of"]),
        ({"padding_value": 1e300}, ["padding_value", "1e+300", "float32"]),
        ({"padding_value": 2**24 + 1}, ["padding_value", "16777217", "float32"]),
        ({"padding_value": 10**30}, ["padding_value", "float32"]),
        ({"padding_value": [1, 2]}, ["padding_value", "(2,)"]),
        ({"out": np.zeros((2, 2, 1), np.float32)}, ["sequence 0", "3", "2"]),
        ({"out": np.zeros((2, 4, 1), np.float64)}, ["out", "float64", "float32"]),
        ({"out": np.zeros((3, 4, 1), np.float32)}, ["out", "(3, 4, 1)", "(2, 4, 1)"]),
        ({"out": np.zeros((2, 4, 2), np.float32)[:, :, :1]}, ["out", "C-contiguous"]),
        ({"out": np.zeros(4, np.float32)}, ["out", "(4,)"]),
        ({"out": [[0.0]]}, ["out", "NumPy array"]),
        ({"out": np.zeros((2, 4, 1), np.float32), "steps": 5}, ["out", "4", "5"]),
        ({"out": np.zeros((2, 4, 1), np.float32), "multiple_of": 5}, ["steps", "multiple_of"]),
        ({"mask_out": np.zeros((2, 4), np.uint8)}, ["mask_out", "uint8", "int8"]),
        (
            {"mask_out": np.zeros((2, 4), np.int8), "out": np.zeros((2, 3, 1), np.float32)},
            ["mask_out", "4", "3"],
        ),
    ],
    ids=lambda part: str(part)[:40],
)
def test_options_that_do_not_fit(options, parts):
    with raises(ValueError, *parts):
        pad(two(1), **options)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("i4", 0.5), ("i4", np.nan), ("u1", -1), ("u1", 256), ("bool", 2), ("i8", 2**63)],
)
def test_padding_values_that_would_be_cut(dtype, value):
    with raises(ValueError, "padding_value", "dtype"):
        pad([np.zeros(1, dtype), np.zeros(2, dtype)], padding_value=value)


@pytest.mark.parametrize("value", ["x", 1j, np.datetime64("2020-01-01")])
def test_padding_values_that_are_no_number(value):
    with raises(TypeError, "padding_value"):
        pad(two(), padding_value=value)


def test_a_batch_that_is_none():
    for batch in (None, 3, "abc", b"abc", {}, {1, 2}):
        with raises(TypeError, "batch"):
            pad(batch)
    with raises(TypeError, "generator"):
        pad(x for x in two())
    with raises(ValueError, "object array", "list(batch)"):
        pad(np.empty((2, 2), object))
    with raises(ValueError, "()"):
        pad(np.array(1.0))
    with raises(TypeError, "complex128"):
        pad(np.zeros((2, 3), complex))
    sparse = pytest.importorskip("scipy.sparse")
    with raises(TypeError, "toarray()"):
        pad(sparse.csr_matrix(np.eye(2)))


def test_items_that_do_not_fit_are_named():
    with raises(ValueError, "sequence 1", "(4, 1)"):
        pad([np.zeros((2, 3), np.float32), np.zeros((4, 1), np.float32)])
    with raises(ValueError, "sequence 1", "float64"):
        pad([np.zeros(2, np.float32), np.zeros(2)])
    with raises(ValueError, "sequence 1", "0.5", "int32"):
        pad([np.array([1.0]), np.array([0.5])], dtype=np.int32)
    with raises(TypeError, "sequence 1"):
        pad([[1.0], None])
    with raises(ValueError, "dtype="):
        pad([[], []])


def test_a_failed_check_writes_nothing():
    out = np.full((2, 3), 7, np.float32)
    mask_out = np.full((2, 3), 7, np.int8)
    bad = [
        lambda: pad(two(), out=out, mask_out=mask_out, padding_value=1e300),
        lambda: pad([np.ones(4, np.float32)] * 2, out=out, mask_out=mask_out),
        lambda: pad([*two(), *two()], out=out, mask_out=mask_out),
        lambda: pad([two()[0], out[1]], out=out),
    ]
    for call in bad:
        with pytest.raises(ValueError):
            call()
    assert (out == 7).all()
    assert (mask_out == 7).all()


def test_outputs_that_share_memory():
    out = np.zeros((2, 3), np.float32)
    with raises(ValueError, "out", "sequence 1"):
        pad([np.ones(3, np.float32), out[0, :2]], out=out)
    block = np.zeros(64, np.int8)
    with raises(ValueError, "mask_out"):
        pad([np.ones(3, np.int8)], out=block[:3].reshape(1, 3), mask_out=block[2:5].reshape(1, 3))
    read_only = np.zeros((2, 3), np.float32)
    read_only.flags.writeable = False
    with raises(ValueError, "writeable"):
        pad(two(), out=read_only)
    # Neighbours in one block are apart.
    pad([np.ones(3, np.int8)], out=block[:3].reshape(1, 3), mask_out=block[3:6].reshape(1, 3))
    assert block[:6].tolist() == [1, 1, 1, 2, 1, 1]


def test_sizes_over_the_limit(monkeypatch):
    monkeypatch.setenv("UDFKIT_MAX_BYTES", "1000")
    with raises(PaddedSizeError, "1,000"):
        pad([np.zeros(300, np.float32), np.zeros(1, np.float32)])
    monkeypatch.delenv("UDFKIT_MAX_BYTES")
    with pytest.raises(PaddedSizeError):
        pad(two(), steps=2**62)


def test_unpad_needs_to_know_which_cells_are_valid():
    data = np.zeros((2, 5, 3), np.float32)
    with raises(ValueError, "mask=", "lengths="):
        unpad(data)
    with raises(ValueError, "sequence 0", "6", "5"):
        unpad(data, lengths=[6, 2])
    with raises(ValueError, "sequence 1", "-1"):
        unpad(data, lengths=[0, -1])
    with raises(ValueError, "lengths"):
        unpad(data, lengths=[1, 2, 3])
    with raises(ValueError, "lengths"):
        unpad(data, lengths=[1.0, 2.0])
    with raises(ValueError, "mask", "(2, 4)", "(2, 5)"):
        unpad(data, np.zeros((2, 4), np.int8))
    with raises(ValueError, "(1, 2)", "3"):
        unpad(data, np.array([[2, 1, 0, 0, 0], [2, 1, 3, 0, 0]], np.int8))
    with raises(ValueError, "(1, 2)", "258"):
        unpad(data, np.array([[2, 1, 0, 0, 0], [2, 1, 258, 0, 0]]))
    with raises(TypeError, "float64"):
        unpad(data, np.ones((2, 5)))
    with raises(ValueError, "(5,)"):
        unpad(np.zeros(5), lengths=[1])
    with raises(ValueError, "side"):
        unpad(data, lengths=[1, 2], side="top")
    with raises(ValueError, "layout"):
        unpad(data, lengths=[1, 2], layout="array")


def test_two_sources_of_truth():
    data = np.zeros((2, 3), np.float32)
    mask = np.array([[2, 1, 0], [2, 0, 0]], np.int8)
    with raises(ValueError, "[2, 2]", "[2, 1]"):
        unpad(data, mask, lengths=[2, 2])
    assert [len(x) for x in unpad(data, mask, lengths=[2, 1])] == [2, 1]
    with raises(ValueError, "side", "left"):
        unpad(data, mask, side="left")
    with raises(ValueError, "Padded"):
        unpad(pad(two()), mask)
    with raises(ValueError, "Value"):
        unpad(Value(data, mask), lengths=[2, 1])
    # Without padding both sides say the same.
    full = np.array([[2, 1, 1], [2, 1, 1]], np.int8)
    assert len(unpad(data, full, side="left")) == 2


def test_buckets_that_are_no_list():
    for buckets in (4, "ab"):
        with raises(ValueError, "buckets", repr(buckets)):
            pad(two(), buckets=buckets)


def test_sparse_matrices_are_told_where_they_go():
    sparse = pytest.importorskip("scipy.sparse")
    with raises(TypeError, "sequence 0", "sparse", "toarray()", "udfkit.sanitize_batch"):
        pad([sparse.csr_matrix(np.eye(2))] * 2)


def test_the_limit_of_samples_without_numbers_is_that_of_the_mask():
    with raises(PaddedSizeError, "mask", f"{2**55:,} bytes"):
        pad([np.zeros((3, 0))], steps=2**55)


def test_padding_values_of_bfloat16():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    batch = [np.ones(2, bfloat16), np.ones(1, bfloat16)]
    for value in (-1.0, -1, 0.5, np.float32(2), 256, np.inf):
        data = pad(batch, padding_value=value).data
        assert data.dtype == bfloat16
        assert data.astype(np.float64).tolist() == [[1, 1], [1, float(value)]]
    assert np.isnan(float(pad(batch, padding_value=np.nan).data[1, 1]))
    for value in (257, 1e300):
        with raises(ValueError, "padding_value", value, "bfloat16"):
            pad(batch, padding_value=value)
