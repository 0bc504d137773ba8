"""Every recorded case on a device: the bits of the host, which the golden tests check."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from device_checks import check_same, on_gpu

import golden_cases as golden
from udfkit import Value, sanitize_batch

BATCHES = golden.load("values")["sanitize_batch"]
ONE_HOTS = golden.load("values")["one_hot"]


def attempt(make: Any) -> Any:
    """A Value, or the error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make()
    except (TypeError, ValueError, RuntimeError, MemoryError) as error:
        return error


def batch(case: dict[str, Any], var: Any, device: Any) -> Any:
    return attempt(
        lambda: sanitize_batch(var, golden.decode(case["data"]), case["seq_starts"], device)
    )


def one_hot(case: dict[str, Any], device: Any) -> Any:
    shape, dtype = case["num_classes"], case["dtype"]
    classes = tuple(shape) if isinstance(shape, list) else shape
    indices = golden.decode(case["batch"])
    return attempt(lambda: Value.one_hot(indices, classes, dtype and np.dtype(dtype), device))


def compare(value: Any, expected: Any, var: Any) -> None:
    if isinstance(expected, Exception):
        assert type(value) is type(expected)
        assert str(value) == str(expected)
        return
    assert isinstance(value, Value), value
    check_same(value, expected, var)
    if var.kind != "none":
        golden.assert_sequences(value.as_sequences(var), expected.as_sequences(var), "sequences")


@pytest.mark.parametrize("case", BATCHES, ids=lambda case: case["id"])
def test_sanitize_batch(case: dict[str, Any]) -> None:
    var = golden.variable(case["var"])
    compare(batch(case, var, on_gpu()), batch(case, var, None), var)


@pytest.mark.parametrize("case", ONE_HOTS, ids=lambda case: case["id"])
def test_one_hot(case: dict[str, Any]) -> None:
    compare(one_hot(case, on_gpu()), one_hot(case, None), golden.variable(case["var"]))


def test_most_cases_work() -> None:
    made = [batch(case, golden.variable(case["var"]), None) for case in BATCHES]
    assert sum(isinstance(value, Value) for value in made) > len(BATCHES) // 2
