"""The golden cases: reading their encoding, and what plain NumPy says a batch must become."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse

import reference
import udfkit

_FOLDER = Path(__file__).parent / "golden"
_SPARSE = {
    "csr": scipy.sparse.csr_matrix,
    "csc": scipy.sparse.csc_matrix,
    "coo": scipy.sparse.coo_matrix,
}


@functools.cache
def load(name: str) -> Any:
    """The parsed file of this name in tests/golden."""
    return json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def decode(node: Any) -> Any:
    """The Python object that a node stands for, made afresh at each call."""
    if not isinstance(node, dict):
        return node
    kind = node["t"]
    if kind == "nd":
        return _array(node)
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(decode(item) for item in node["items"])
    if kind in _SPARSE:
        dense = np.array(node["dense"], node["dtype"]).reshape(node["shape"])
        return _SPARSE[kind](dense)
    if kind == "py":
        return node["v"]
    if kind == "npscalar":
        return np.dtype(node["dtype"]).type(node["v"])
    raise AssertionError(f"no object is recorded for {kind}")


def _array(node: dict[str, Any]) -> np.ndarray:
    data = [complex(x) if isinstance(x, str) else x for x in node["data"]]
    array = np.array(data, node["dtype"]).reshape(node["shape"])
    layout = node.get("layout", "C")
    if layout == "C" or array.ndim == 0:
        return array
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "ro":
        array.flags.writeable = False
        return array
    if layout == "neg":
        return array[::-1].copy()[::-1]
    # The cells between the rows hold a number that must never show up in a result.
    if layout == "step2":
        wide = np.full((2 * len(array), *array.shape[1:]), 77, array.dtype)
        wide[::2] = array
        return wide[::2]
    if layout == "laststep2":
        wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), 77, array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    raise AssertionError(f"unknown layout {layout}")


def variable(spec: dict[str, Any]) -> Any:
    """The input variable that a case was recorded with."""
    shape, dtype, sparse = tuple(spec["shape"]), np.dtype(spec["dtype"]), spec["is_sparse"]
    if spec["kind"] == "seq":
        return udfkit.sequence.input_variable(shape, dtype=dtype, is_sparse=sparse, name="x")
    axes = [udfkit.Axis.default_batch_axis()] if spec["kind"] == "batch" else []
    return udfkit.input_variable(shape, dtype=dtype, is_sparse=sparse, dynamic_axes=axes, name="x")


def recorded(back: dict[str, Any], field: str) -> Any:
    """The outcome recorded under `field` ({"ok": node} or {"exc": ...}), or None."""
    outcome = back.get(field)
    while isinstance(outcome, str) and outcome.startswith("same as "):
        outcome = back[outcome.removeprefix("same as ")]
    return outcome if isinstance(outcome, dict) else None


def dense(x: Any) -> np.ndarray:
    """`x` as a NumPy array."""
    if scipy.sparse.issparse(x):
        x = x.tocsr()  # read by hand, as SciPy makes no dense array of float16
        return reference.csr_to_dense(x.data, x.indices, x.indptr, x.shape, x.dtype)
    return np.asarray(x)


def csr(array: np.ndarray) -> Any:
    """A CSR matrix of any dtype: SciPy makes none of a dense float16 array."""
    x = scipy.sparse.csr_matrix(array.astype(np.float64))
    return scipy.sparse.csr_matrix((x.data.astype(array.dtype), x.indices, x.indptr), x.shape)


def assert_bits(got: Any, want: np.ndarray, where: str) -> None:
    """Same dtype, shape and bytes."""
    assert isinstance(got, (np.ndarray, np.generic)), f"{where}: {type(got)}"
    assert got.dtype == want.dtype, f"{where}: {got.dtype}, expected {want.dtype}"
    assert got.shape == want.shape, f"{where}: {got.shape}, expected {want.shape}"
    assert got.tobytes() == want.tobytes(), f"{where}: {got!r}, expected {want!r}"


def assert_sequences(got: Any, want: Any, where: str) -> None:
    """A list of arrays, or of CSR matrices, that equals another one bit for bit."""
    assert type(got) is list, f"{where}: {type(got)}"
    assert len(got) == len(want), f"{where}: {len(got)} sequences, expected {len(want)}"
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        if scipy.sparse.issparse(b):
            assert scipy.sparse.issparse(a), f"{where}[{k}]: {type(a)}"
            assert a.format == "csr"
            a, b = dense(a), dense(b)
        assert_bits(a, np.asarray(b), f"{where}[{k}]")


def fingerprint(x: Any) -> Any:
    """The content of an input, to see that a call left it alone."""
    if scipy.sparse.issparse(x):
        return (x.format, x.shape, x.dtype.str, x.toarray().tobytes())
    if isinstance(x, (np.ndarray, np.generic)):
        text = x.tobytes() if x.dtype.kind != "O" else repr(x.tolist())
        return (x.shape, x.dtype.str, x.flags.writeable, text)
    if isinstance(x, (list, tuple)):
        return (type(x), [fingerprint(item) for item in x])
    return repr(x)


def plain(spec: dict[str, Any], batch: Any, starts: list[bool] | None = None) -> Any:
    """What a batch must become, from section 3 of the contract, in plain NumPy.

    `batch` is a list with one item a sequence (a sample for a batch-only variable), or a rectangle.
    Returns data, mask and the sequences.
    """
    shape, dtype = tuple(spec["shape"]), np.dtype(spec["dtype"])
    if isinstance(batch, np.ndarray):
        rows = [row.astype(dtype) for row in batch]
    else:
        width = math.prod(shape)
        items = [dense(item).astype(dtype) for item in batch]
        rows = [x.reshape(x.size // width if width else len(x), *shape) for x in items]
    if spec["kind"] == "batch":
        data = np.zeros((len(rows), *shape), dtype)
        for k, row in enumerate(rows):
            data[k] = row.reshape(shape)
        return SimpleNamespace(data=data, mask=np.full(len(rows), 2, np.int8), sequences=list(data))
    steps = batch.shape[1] if isinstance(batch, np.ndarray) else max(map(len, rows), default=0)
    data = np.zeros((len(rows), steps, *shape), dtype)
    mask = np.zeros((len(rows), steps), np.int8)
    for k, row in enumerate(rows):
        data[k, : len(row)] = row
        mask[k, : len(row)] = 1
        mask[k, : min(1, len(row))] = 2 if starts is None or starts[k] else 1
    return SimpleNamespace(data=data, mask=mask, sequences=rows)
