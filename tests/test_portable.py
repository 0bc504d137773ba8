"""udfkit.portable against the C library's functions, and in plain Python against compiled code."""

from __future__ import annotations

import math

import numpy as np
import pytest

from udfkit import portable
from udfkit.kernels.jit import JIT_DISABLED

numba = pytest.importorskip("numba")

SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 5e-324, 1e-310, 1e308, -1e308]
EDGES = [709.78, 709.79, -708.4, -745.1, -745.2, 2.2250738585072014e-308]


def each(function, *arrays):
    if JIT_DISABLED:
        rows = zip(*(a.tolist() for a in arrays), strict=True)
        return np.array([function(*row) for row in rows])
    count = len(arrays)
    if count == 1:

        @numba.njit(error_model="numpy", fastmath={"contract"})
        def run(values, out):
            for i in range(out.shape[0]):
                out[i] = function(values[0, i])

    elif count == 2:

        @numba.njit(error_model="numpy", fastmath={"contract"})
        def run(values, out):
            for i in range(out.shape[0]):
                out[i] = function(values[0, i], values[1, i])

    else:

        @numba.njit(error_model="numpy", fastmath={"contract"})
        def run(values, out):
            for i in range(out.shape[0]):
                out[i] = function(values[0, i], values[1, i], values[2, i])

    out = np.empty(len(arrays[0]))
    run(np.array(arrays, np.float64), out)
    return out


def units_off(got, want):
    """How many units in the last place of ``want`` lie between, NaN where only one is NaN."""
    with np.errstate(invalid="ignore"):
        off = np.abs(got - want) / np.spacing(np.abs(want))
    off[(got == want) | (np.isnan(got) & np.isnan(want))] = 0
    return off


def test_exp_is_within_one_unit_and_right_for_what_is_special():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-760, 720, 20000), rng.uniform(-1, 1, 5000), SPECIAL, EDGES])
    with np.errstate(all="ignore"):
        want = np.exp(x)
    off = units_off(each(portable.exp, x), want)
    assert not np.isnan(off).any(), x[np.isnan(off)]
    assert off.max() <= 1.0


def test_log_is_within_one_unit_and_right_for_what_is_special():
    rng = np.random.default_rng(1)
    x = np.concatenate(
        [np.exp(rng.uniform(-745, 709, 20000)), rng.uniform(0.3, 3, 5000), SPECIAL, EDGES]
    )
    with np.errstate(all="ignore"):
        want = np.log(x)
    off = units_off(each(portable.log, x), want)
    assert not np.isnan(off).any(), x[np.isnan(off)]
    assert off.max() <= 1.0


def test_exp_of_float32_and_int_is_float64():
    assert portable.exp(1) == pytest.approx(math.e, rel=1e-15)
    assert portable.exp(np.float32(0.1)) == pytest.approx(math.exp(np.float32(0.1)), rel=1e-15)


@pytest.mark.parametrize("name", ["minimum", "maximum"])
def test_minimum_and_maximum_agree_with_numpy(name):
    a, b = (np.array(part).ravel() for part in np.meshgrid(SPECIAL, SPECIAL))
    np.testing.assert_array_equal(each(getattr(portable, name), a, b), getattr(np, name)(a, b))


def test_log_add_agrees_with_numpy_for_all_pairs_and_triples():
    values = [*SPECIAL[:5], 1.0, -1e308, 1e308, -5000.0, 700.0]
    a, b = (np.array(part).ravel() for part in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(each(portable.log_add, a, b), np.logaddexp(a, b), rtol=1e-15)
    a, b, c = (np.array(part).ravel() for part in np.meshgrid(values, values, values))
    with np.errstate(all="ignore"):
        want = np.logaddexp(np.logaddexp(a, b), c)
    np.testing.assert_allclose(each(portable.log_add_3, a, b, c), want, rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_of_rows_are_computed_in_float64(dtype):
    total, dot = portable.total, portable.dot
    if not JIT_DISABLED:
        total = numba.njit(lambda x: portable.total(x))  # noqa: PLW0108 - as bodies call it
        dot = numba.njit(lambda x, y: portable.dot(x, y))  # noqa: PLW0108
    rng = np.random.default_rng(2)
    for n in (0, 1, 7, 8, 33, 200):
        x, y = (rng.normal(size=n).astype(dtype) for _ in range(2))
        wide = x.astype(np.float64), y.astype(np.float64)
        assert total(x) == pytest.approx(math.fsum(wide[0]), rel=1e-14, abs=1e-14)
        assert dot(x, y) == pytest.approx(math.fsum(wide[0] * wide[1]), rel=1e-14, abs=1e-14)
    tiny = np.full(64, 2.0**-30, dtype)
    assert total(np.concatenate([np.ones(1, dtype), tiny])) == 1.0 + 2.0**-24
    for special in (math.nan, math.inf, -math.inf):
        row = np.array([1.0] * 20 + [special], dtype)
        np.testing.assert_equal(total(row), special)
        np.testing.assert_equal(dot(row, np.ones(21, dtype)), special)
    assert math.isnan(total(np.array([math.inf, -math.inf], dtype)))


def test_a_barrier_does_nothing_on_the_cpu():
    compiled = portable.barrier
    if not JIT_DISABLED:
        compiled = numba.njit(lambda: portable.barrier())  # noqa: PLW0108 - as bodies call it
    assert compiled() is None


def test_bits_go_both_ways():
    for x in SPECIAL[1:]:
        bits = portable.float_bits(x)
        assert bits == int(np.array(x).view(np.int64))
        assert portable.bits_float(bits) == x
