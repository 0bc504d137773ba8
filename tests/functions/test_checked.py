"""Functions with targets of their own lengths pass the checker for user functions."""

from __future__ import annotations

import numpy as np
import pytest

import udfkit
from udfkit import functions, testing


def variables():
    x = udfkit.sequence.input_variable(3, np.float64, needs_gradient=True, name="x")
    y = udfkit.sequence.input_variable(3, np.float64, needs_gradient=True, name="y")
    labels = udfkit.sequence.input_variable((), np.int64, name="labels")
    return x, y, labels


def ctc_batch(rng):
    lengths = rng.integers(4, 9, 4)
    return {
        "x": [rng.normal(size=(n, 3)) for n in lengths],
        "labels": [rng.integers(1, 3, rng.integers(0, n // 2)) for n in lengths],
    }


def crf_batch(rng):
    lengths = rng.integers(0, 6, 4)
    return {
        "x": [rng.normal(size=(n, 3)) for n in lengths],
        "labels": [rng.integers(0, 3, n) for n in lengths],
    }


def pair_batch(rng):
    return {name: [rng.normal(size=(n, 3)) for n in rng.integers(1, 6, 4)] for name in "xy"}


@pytest.mark.parametrize("name", ["ctc_loss", "linear_chain_crf", "soft_dtw", "attention_pooling"])
def test_the_checker_finds_nothing(name):
    x, y, labels = variables()
    rng = np.random.default_rng(0)
    a = udfkit.Parameter(init=rng.normal(size=(3, 3)), name="a")
    w = udfkit.Parameter(init=rng.normal(size=3), name="w")
    fn, make_batch = {
        "ctc_loss": (functions.ctc_loss(x, labels), ctc_batch),
        "linear_chain_crf": (functions.linear_chain_crf(x, labels, a), crf_batch),
        "soft_dtw": (functions.soft_dtw(x, y), pair_batch),
        "attention_pooling": (functions.attention_pooling(x, w), None),
    }[name]
    report = testing.check_function(fn, make_batch=make_batch)
    assert report.passed, str(report)
