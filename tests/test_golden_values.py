"""Every recorded `sanitize_batch` and `one_hot` case, reproduced or listed as a difference."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import checks
import golden_cases as golden
import golden_differences as differences
import udfkit
from golden_differences import Raises, Works
from udfkit import Value, sanitize_batch, variable_value_to_seq

BATCHES = golden.load("values")["sanitize_batch"]
ONE_HOTS = golden.load("values")["one_hot"]


def shape_label(shape: list[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def label(case: dict[str, Any]) -> str:
    spec = case["var"]
    return f"{spec['kind']}:{shape_label(spec['shape'])}/{case['name']}"


def ident(case: dict[str, Any]) -> str:
    return f"{case['id']}-{label(case)}"


def all_valid(spec: dict[str, Any], shape: tuple[int, ...]) -> np.ndarray:
    """The mask of data in which nothing is padding and every sequence is new."""
    if spec["kind"] == "none":
        return np.array(2, np.int8)
    mask = np.ones(shape[: 2 if spec["kind"] == "seq" else 1], np.int8)
    mask[(slice(None), *[slice(0, 1)] * (mask.ndim - 1))] = 2
    return mask


def expectation(case: dict[str, Any]) -> Any:
    """Data, mask and sequences of a case that was recorded with a result."""
    value, back = case["expect"]["ok"], case["expect"]["back"]
    data = golden.dense(golden.decode(value["data"]["ok"]))
    mask = golden.decode(value["mask"])
    if mask is None:
        mask = all_valid(case["var"], data.shape)
    sequences = golden.recorded(back, "as_sequences_var")
    return SimpleNamespace(
        data=data,
        mask=mask,
        sequences=golden.decode(sequences["ok"]) if "ok" in sequences else sequences["exc"],
        sparse=value["is_sparse"],
        asarray=golden.recorded(back, "asarray"),
        length=golden.recorded(back, "len"),
    )


def assert_value(value: Value, var: Any, spec: dict[str, Any], want: Any) -> None:
    """The Value and everything that comes back out of it."""
    golden.assert_bits(value.data, want.data, "data")
    golden.assert_bits(value.mask, want.mask, "mask")
    assert not value.data.flags.writeable
    assert value.shape == want.data.shape
    assert value.dtype == want.data.dtype
    continued = spec["kind"] == "seq" and not all(value.starts)
    assert value.is_masked == (bool((want.mask == 0).any()) or continued)
    assert value.is_sparse == want.sparse
    golden.assert_bits(value.asarray(), want.data, "asarray")
    if want.asarray is not None and "ok" in want.asarray:
        was = golden.dense(golden.decode(want.asarray["ok"]))
        golden.assert_bits(value.asarray(), was, "asarray")
    back = variable_value_to_seq(value, var)
    if spec["kind"] == "none":
        golden.assert_bits(back, want.data, "variable_value_to_seq")
        for read in (len, lambda v: v.lengths, lambda v: v.starts):
            with pytest.raises((TypeError, ValueError)):
                read(value)
        return
    assert len(value) == len(want.data)
    if want.length is not None:
        assert len(value) == want.length["ok"]
    assert not isinstance(want.sequences, dict), f"recorded: {want.sequences}"
    if spec["kind"] == "batch":
        golden.assert_bits(back, want.data, "variable_value_to_seq")
        assert_samples(value.as_sequences(var), want.sequences)
        return
    golden.assert_sequences(value.as_sequences(var), want.sequences, "as_sequences")
    dense = [golden.dense(s) for s in want.sequences]
    golden.assert_sequences(back, dense, "variable_value_to_seq")
    assert value.lengths.tolist() == [len(s) for s in dense]


def assert_samples(got: Any, want: list[Any]) -> None:
    """The sequences of a batch-only variable: a list with one sample an item."""
    assert type(got) is list
    got, want = ([golden.dense(x).ravel() for x in xs] for xs in (got, want))
    assert bool(got) == bool(want)
    if want:
        golden.assert_bits(np.concatenate(got), np.concatenate(want), "as_sequences")


def assert_raises(outcome: Raises, case: dict[str, Any], batch: Any, call: Any) -> None:
    """The call raises the listed class, and the text names the listed parts."""
    items = batch if isinstance(batch, (list, tuple)) else ()
    names = {
        "batch": udfkit_shape(getattr(batch, "shape", ())),
        "sample": udfkit_shape(tuple(case["var"]["shape"])),
        "item0": udfkit_shape(getattr(items[0], "shape", ())) if len(items) else "",
    }
    with checks.raises(outcome.kinds, *(p.format(**names) for p in outcome.parts), fix=outcome.fix):
        call()


def udfkit_shape(shape: tuple[int, ...]) -> str:
    return str(tuple(int(n) for n in shape))


def wants_cast(case: dict[str, Any], batch: Any) -> bool:
    """Whether a typed value of another dtype than the variable's is in the batch."""
    items = batch if isinstance(batch, (list, tuple)) else [batch]
    leaves = [x for item in items for x in (item if isinstance(item, list) else [item])]
    return any(x.dtype != np.dtype(case["var"]["dtype"]) for x in leaves if hasattr(x, "dtype"))


def sanitize(case: dict[str, Any]) -> tuple[Any, Value, list[Any]]:
    """The variable, the Value made of the case's input, and the warnings on the way."""
    var, batch = golden.variable(case["var"]), golden.decode(case["data"])
    before = golden.fingerprint(batch)
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            value = sanitize_batch(var, batch, case["seq_starts"])
    finally:
        assert golden.fingerprint(batch) == before, "the input was changed"
    return var, value, seen


def check_works(case: dict[str, Any], outcome: Works | None) -> None:
    """The call succeeds with what was recorded, or, for a listed case, what NumPy computes."""
    spec, batch = case["var"], golden.decode(case["data"])
    if outcome is None:
        want = expectation(case)
    else:
        want = golden.plain(spec, outcome.form(batch), case["seq_starts"] or None)
        want.asarray = want.length = None
        node = case["data"]
        want.sparse = "csr" in (node["t"], *(n["t"] for n in node.get("items", ())))
        if want.sparse and spec["kind"] == "seq":
            want.sequences = [golden.csr(s) for s in want.sequences]
    var, value, seen = sanitize(case)
    assert_value(value, var, spec, want)
    casts = [w for w in seen if w.category is udfkit.CastWarning]
    assert len(seen) == len(casts) == wants_cast(case, batch), [str(w.message) for w in seen]
    if outcome is None:
        recorded = any("your data is of type" in text for text in case["expect"]["warnings"])
        assert bool(casts) == recorded
    assert Value.create(var, batch, case["seq_starts"]).equals(value)


@pytest.mark.parametrize("case", BATCHES, ids=ident)
def test_sanitize_batch(case: dict[str, Any]) -> None:
    row = differences.find(differences.VALUES, label(case))
    if row is None and "ok" not in case["expect"]:
        assert "exc" in case["expect"], "a crash cannot be reproduced, it needs a row"
        row = differences.find(differences.VALUE_REFUSALS, label(case))
        assert row is not None, "no row says what the text of this error must name"
    if row is not None and isinstance(row.outcome, Raises):
        batch = golden.decode(case["data"])
        assert_raises(row.outcome, case, batch, lambda: sanitize(case))
    else:
        check_works(case, row and row.outcome)


def one_hot(case: dict[str, Any]) -> Value:
    shape, dtype = case["num_classes"], case["dtype"]
    classes = tuple(shape) if isinstance(shape, list) else shape
    return Value.one_hot(golden.decode(case["batch"]), classes, dtype and np.dtype(dtype))


def one_hot_plain(case: dict[str, Any]) -> Any:
    """The expectation computed with NumPy: rows of an identity matrix."""
    shape, batch = tuple(case["var"]["shape"]), golden.decode(case["batch"])
    eye = np.eye(shape[-1], dtype=case["var"]["dtype"])
    items = [eye[np.asarray(x, np.int64).ravel()].reshape(-1, *shape) for x in batch]
    want = golden.plain(case["var"], items)
    want.asarray = want.length = None
    want.sparse = True
    if len(shape) == 1:
        want.sequences = [golden.csr(s) for s in want.sequences]
    return want


@pytest.mark.parametrize("case", ONE_HOTS, ids=lambda c: f"{c['id']}-{c['name']}")
def test_one_hot(case: dict[str, Any]) -> None:
    row = differences.find(differences.ONE_HOT, case["name"])
    if row is None and "exc" in case["expect"]:
        row = differences.find(differences.ONE_HOT_REFUSALS, case["name"])
        assert row is not None, "no row says what the text of this error must name"
    if row is not None and isinstance(row.outcome, Raises):
        assert_raises(row.outcome, case, golden.decode(case["batch"]), lambda: one_hot(case))
        return
    var, value = golden.variable(case["var"]), one_hot(case)
    want = one_hot_plain(case) if row else expectation(case)
    assert_value(value, var, case["var"], want)
    assert sanitize_batch(var, value) is value


def reproduces(case: dict[str, Any], plain: Any) -> bool:
    """Whether what NumPy expects of a listed case is what was recorded anyway."""
    if "ok" not in case["expect"] or "exc" in case["expect"]["ok"]["data"]:
        return False
    was = expectation(case)
    if isinstance(was.sequences, dict) or was.data.shape != plain.data.shape:
        return False
    return was.data.tobytes() == plain.data.tobytes() and np.array_equal(was.mask, plain.mask)


def test_no_row_about_values_is_stale() -> None:
    for row in differences.VALUES:
        cases = [case for case in BATCHES if row.fits(label(case))]
        assert cases, f"no case is like {row.patterns}"
        for case in cases:
            if isinstance(row.outcome, Works):
                batch = row.outcome.form(golden.decode(case["data"]))
                plain = golden.plain(case["var"], batch, case["seq_starts"] or None)
                assert not reproduces(case, plain), f"{ident(case)} is as recorded"
            else:
                assert "exc" not in case["expect"], f"{ident(case)} raises, as recorded"
    for row in differences.VALUE_REFUSALS:
        cases = [case for case in BATCHES if row.fits(label(case))]
        assert cases, f"no case is like {row.patterns}"
        # A refusal that is listed under the differences as well would never be looked up here.
        assert all("exc" in case["expect"] for case in cases), row.patterns


def test_no_row_about_one_hot_is_stale() -> None:
    for row in differences.ONE_HOT + differences.ONE_HOT_REFUSALS:
        cases = [case for case in ONE_HOTS if row.fits(case["name"])]
        assert cases, f"no case is like {row.patterns}"
        for case in cases:
            if row in differences.ONE_HOT_REFUSALS:
                assert "exc" in case["expect"]
            elif isinstance(row.outcome, Works):
                assert not reproduces(case, one_hot_plain(case)), f"{case['id']} is as recorded"
            else:
                assert "ok" in case["expect"], f"{case['id']} raises, as recorded"


def test_all_cases_are_here() -> None:
    assert (len(BATCHES), len(ONE_HOTS)) == (350, 16)
    assert len({case["id"] for case in BATCHES + ONE_HOTS}) == 366


def test_the_comparison_sees_a_single_bit() -> None:
    case = next(case for case in BATCHES if case["name"] == "first_shorter")
    want = expectation(case)
    var, value, _ = sanitize(case)
    want.data = want.data.copy()
    want.data.view(np.uint32)[0, -1] ^= 1
    with pytest.raises(AssertionError, match="data"):
        assert_value(value, var, case["var"], want)


def test_every_group_of_fields_that_differ_is_met() -> None:
    oks = [case for case in BATCHES if "ok" in case["expect"]]
    met = {
        "mask": any(case["expect"]["ok"]["mask"] is None for case in oks),
        "variable_value_to_seq": any(
            case["expect"]["back"]["variable_value_to_seq"] == "same as asarray" for case in oks
        ),
        "sparse data": any(
            case["expect"]["ok"]["data"].get("ok", {}).get("t") == "csr" for case in oks
        ),
        "sparse asarray": any(
            "exc" in golden.recorded(c["expect"]["back"], "asarray") for c in oks
        ),
        "no axes": any(
            case["var"]["kind"] == "none" and "ok" in golden.recorded(case["expect"]["back"], "len")
            for case in oks
        ),
    }
    assert met == dict.fromkeys(differences.FIELDS, True)
