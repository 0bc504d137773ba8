"""Casts to the variable's dtype: one warning, and no value lost in silence."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

import reference
import strategies
import udfkit
from checks import batch_variable, no_warning, plain_variable, raises, sequence_variable
from udfkit import CastWarning, Value, sanitize_batch, variable_value_to_seq

F32 = np.float32
INTEGERS = [dtype for dtype in strategies.DTYPES if dtype.kind in "iu"]
FLOATS = [dtype for dtype in strategies.DTYPES if dtype.kind == "f"]


def edge_values(source):
    """Values of a dtype at which some other dtype gives up."""
    wanted = [0, 1, 2, -1, 100]
    for dtype in INTEGERS:
        info = np.iinfo(dtype)
        wanted += [info.min - 1, info.min, info.min + 1, info.max - 1, info.max, info.max + 1]
    for bits in (11, 24, 53):  # significant bits of float16, float32, float64
        wanted += [2**bits - 1, 2**bits, 2**bits + 1, 2**bits + 2, -(2**bits) - 1]
    if source.kind == "b":
        return np.array([False, True])
    if source.kind in "iu":
        info = np.iinfo(source)
        return np.array([v for v in wanted if info.min <= v <= info.max], source)
    fractions = [0.5, -0.25, 1.5, -0.0, 65503.0, 65504.0, 65519.0, 65520.0, 1e5, 3.4e38, 3.5e38]
    fractions += [1e308, -1e308, 1e-300, 255.5, 2.0**63, 2.0**64, -(2.0**63)]
    with np.errstate(over="ignore"):
        numbers = np.array([*map(float, wanted), *fractions], np.float64).astype(source)
    return np.concatenate([numbers, strategies.special_floats(source)])


def holds(value, target):
    """Whether a Python number can be cast to a dtype by the rules of the contract."""
    if isinstance(value, float) and target.kind == "f":
        if not math.isfinite(value):
            return True
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.float64(value).astype(target)))
    if isinstance(value, float) and not value.is_integer():
        return False  # NaN and infinities too
    value = int(value)
    if target.kind == "b":
        return value in (0, 1)
    if target.kind in "iu":
        return np.iinfo(target).min <= value <= np.iinfo(target).max
    with np.errstate(over="ignore"):
        rounded = float(np.float64(value).astype(target)) if abs(value) < 2**53 else None
    if rounded is None:
        # Beyond 2**53 only multiples of a power of two are exact.
        digits = {2: 11, 4: 24, 8: 53}[target.itemsize]
        spare = max(abs(value).bit_length() - digits, 0)
        return value % (1 << spare) == 0 and abs(value) <= int(np.finfo(target).max)
    return math.isfinite(rounded) and int(rounded) == value


@pytest.mark.parametrize("target", strategies.DTYPES, ids=str)
@pytest.mark.parametrize("source", strategies.DTYPES, ids=str)
def test_every_pair_of_dtypes_at_its_limits(source, target):
    variable = sequence_variable((), target)
    values = edge_values(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CastWarning)
        kept = values[[source == target or holds(v.item(), target) for v in values]]
        got = variable_value_to_seq(sanitize_batch(variable, [kept]), variable)[0]
        with np.errstate(all="ignore"):
            expected = kept.astype(target)
        if source == target:
            reference.assert_same(got, kept)
        else:
            np.testing.assert_array_equal(got, expected)
            np.testing.assert_array_equal(np.signbit(got), np.signbit(expected)) if (
                source.kind == target.kind == "f"
            ) else None
        for value in values:
            if source != target and not holds(value.item(), target):
                # The value stands third of the fifth sequence.
                item = np.array([0, 0, value], source)
                with raises(ValueError, 4, source, target) as caught:
                    sanitize_batch(variable, [np.zeros(1, source)] * 4 + [item])
                assert "2" in str(caught.value), caught.value


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("target", FLOATS, ids=str)
def test_nan_and_infinities_survive_a_cast_between_floats(source, target):
    variable = sequence_variable((), target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CastWarning)
        got = sanitize_batch(variable, [np.array([np.nan, np.inf, -np.inf, -0.0], source)]).data[0]
    assert np.isnan(got[0])
    assert got[1] == np.inf
    assert got[2] == -np.inf
    assert got[3] == 0
    assert np.signbit(got[3])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.5, 1e30])
@pytest.mark.parametrize("target", ["bool", "int8", "uint64", "int64"])
def test_floats_that_no_integer_equals(value, target):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CastWarning)
        with raises(ValueError, 0, "float64", target):
            sanitize_batch(sequence_variable((), target), [np.array([value])])


FORMS = {
    "list": (sequence_variable, (), lambda bad: [np.zeros(2), np.array([0.0, bad])]),
    "rectangle": (sequence_variable, (), lambda bad: np.array([[0.0, 0.0], [0.0, bad]])),
    "ragged": (
        sequence_variable,
        (),
        lambda bad: udfkit.Ragged(np.array([0.0, 0.0, bad]), [0, 1, 3]),
    ),
    "numbers": (sequence_variable, (), lambda bad: [[0.0], [0.0, bad]]),
    "scalars": (sequence_variable, (), lambda bad: [np.float64(0), np.float64(bad)]),
    "Python scalars": (sequence_variable, (), lambda bad: [0.0, bad]),
    "batch": (batch_variable, (), lambda bad: np.array([0.0, bad])),
    "batch of items": (batch_variable, (), lambda bad: [0.0, np.float64(bad)]),
    "none": (plain_variable, (2,), lambda bad: np.array([0.0, bad])),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "bad"), [("float16", 1e6), ("float32", 1e39), ("int8", 128.0)])
def test_no_form_of_input_loses_a_value(form, dtype, bad):
    make, shape, batch = FORMS[form]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CastWarning)
        with raises(ValueError, 1, dtype):
            sanitize_batch(make(shape, dtype), batch(bad))
        good = sanitize_batch(make(shape, dtype), batch(64.0))
    assert good.data.max() == 64


def test_python_numbers_too_large_for_any_integer():
    for number in (2**64, -(2**63) - 1, 10**30):
        with raises((ValueError, TypeError), 1):
            sanitize_batch(sequence_variable((), np.int64), [[1], [number]])
    got = sanitize_batch(sequence_variable((), np.uint64), [[2**64 - 1, 2**63]])
    assert got.data.tolist() == [[2**64 - 1, 2**63]]
    got = sanitize_batch(sequence_variable((), np.int64), [[-(2**63), 2**63 - 1]])
    assert got.data.tolist() == [[-(2**63), 2**63 - 1]]


def test_python_numbers_go_through_no_float_on_the_way_to_an_integer():
    # NumPy reads a list of 2**63 and -1 as float64.
    with raises((ValueError, TypeError), 0):
        sanitize_batch(sequence_variable((), np.int64), [[2**63, -1]])
    got = sanitize_batch(sequence_variable((), np.int64), [[2**53 + 1, 2]])
    assert got.data.tolist() == [[2**53 + 1, 2]]


def test_a_cast_warns_once_for_each_variable_and_dtype():
    variable = sequence_variable((), name="features")
    with pytest.warns(CastWarning) as caught:
        sanitize_batch(variable, [np.zeros(2)])
    assert len(caught) == 1
    text = str(caught[0].message)
    for part in ("float64", "float32", "features"):
        assert part in text
    assert "dtype" in text  # the way out: pass float32, or declare the variable otherwise
    with no_warning():
        sanitize_batch(variable, [np.zeros(2)])
        sanitize_batch(variable, np.zeros((2, 3)))
        sanitize_batch(variable, [np.zeros(2, F32)])
    with pytest.warns(CastWarning, match="int32"):
        sanitize_batch(variable, [np.zeros(2, np.int32)])
    with pytest.warns(CastWarning, match="float64"):
        sanitize_batch(sequence_variable((), name="features"), [np.zeros(2)])


def test_the_warning_points_at_the_callers_line():
    with pytest.warns(CastWarning) as caught:
        sanitize_batch(sequence_variable(()), [np.zeros(2)])
    assert caught[0].filename == __file__


@pytest.mark.parametrize("form", FORMS)
def test_every_typed_form_warns(form):
    make, shape, batch = FORMS[form]
    if form in ("numbers", "Python scalars"):
        with no_warning():
            sanitize_batch(make(shape), batch(1.0))
    else:
        with pytest.warns(CastWarning, match="float64"):
            sanitize_batch(make(shape), batch(1.0))


def test_sparse_matrices_warn_and_keep_their_values():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    variable = sequence_variable((3,))
    matrix = scipy_sparse.csr_matrix(np.array([[0, 2.5, 0]]))
    with pytest.warns(CastWarning, match="float64"):
        value = sanitize_batch(variable, [matrix])
    assert variable_value_to_seq(value, variable)[0].tolist() == [[0, 2.5, 0]]
    too_large = scipy_sparse.csr_matrix(np.array([[0, 1e39, 0]]))
    with raises(ValueError, 1):
        sanitize_batch(variable, [matrix, too_large])


def test_byte_order_is_no_cast():
    with no_warning():
        value = sanitize_batch(sequence_variable(()), [np.arange(3, dtype=">f4")])
    assert value.dtype == np.dtype("float32")
    assert value.data.tolist() == [[0, 1, 2]]


def test_a_value_of_another_dtype_is_refused_not_cast():
    with raises(ValueError, "float64", "float32"):
        sanitize_batch(sequence_variable(()), Value(np.zeros((2, 3))))


class Doubled(udfkit.UserFunction):
    """Returns float64 for a float32 output."""

    def forward(self, arg, device=None, outputs_to_retain=None):
        return None, [sequence.astype(np.float64) * 2 for sequence in arg]

    def backward(self, state, grad):
        return [sequence.astype(np.float64) * 2 for sequence in grad]

    def infer_outputs(self):
        x = self.inputs[0]
        return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]


def test_results_of_user_code_are_cast_without_a_warning():
    function = Doubled([sequence_variable((), needs_gradient=True)])
    batch = [np.ones(2, F32), np.ones(1, F32)]
    with no_warning():
        out, gradient = function.eval(batch), function.grad(batch)
    for result in (out, gradient):
        reference.assert_same_list(result, [np.full(2, 2, F32), np.full(1, 2, F32)])


def test_a_result_of_user_code_that_does_not_fit_is_an_error():
    function = Doubled([sequence_variable((), np.float16)])
    with raises(ValueError, 1, "float16", fix=False):
        function.eval([np.ones(2, np.float16), np.full(1, 60000, np.float16)])


BIG = 2**53 + 1
MIXED_INTEGERS = {
    "scalars": ([np.int64(BIG), np.uint64(3)], [BIG, 3]),
    "a scalar and an int": ([np.uint64(2**63 + 1), 0], [2**63 + 1, 0]),
    "arrays": ([np.array(BIG), np.array(5, np.uint64)], [BIG, 5]),
    "negative": ([np.int64(-BIG), np.uint64(BIG + 2)], [-BIG, BIG + 2]),
    "tuples": ((np.uint64(BIG), np.int8(-1)), [BIG, -1]),
}


@pytest.mark.parametrize(("item", "expected"), MIXED_INTEGERS.values(), ids=MIXED_INTEGERS)
def test_integers_of_mixed_dtypes_go_through_no_float(item, expected):
    dtype = np.uint64 if min(expected) >= 0 else np.int64
    variable = sequence_variable((), dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CastWarning)
        assert sanitize_batch(variable, [item, item]).data.tolist() == [expected] * 2
    assert udfkit.pad([item]).data.tolist() == [expected]
    assert udfkit.pad([item], dtype=dtype).data.tolist() == [expected]
    assert udfkit.pad([[[x] for x in item]]).data.tolist() == [[[x] for x in expected]]
    assert udfkit.Ragged.from_list([item]).values.tolist() == expected


@pytest.mark.parametrize(
    "item",
    [
        [np.int64(BIG), 1.0],
        [np.int64(BIG), np.float32(1)],
        [np.uint64(2**63 + 1), np.int64(-1)],
        [np.array(BIG), np.array(0.5)],
    ],
    ids=str,
)
def test_integers_that_no_dtype_holds_beside_the_others_are_an_error(item):
    big = int(item[0])
    with raises(ValueError, "sequence 1", big):
        sanitize_batch(sequence_variable((), np.int64), [[1], item])
    with raises(ValueError, "sequence 0", big):
        udfkit.pad([item])

    class Returns(udfkit.UserFunction):
        def infer_outputs(self):
            return udfkit.output_variable((), np.int64, self.inputs[0].dynamic_axes)

        def forward(self, x, device, outputs_to_retain):
            return None, [item]

    with raises(ValueError, "sequence 0", big):
        Returns([sequence_variable(())]).eval([[1.0, 2.0]])


def test_valued_variables_round_no_integer():
    assert udfkit.Constant([np.uint64(BIG), np.int64(1)], dtype=np.int64).value.tolist() == [BIG, 1]
    with raises(ValueError, BIG):
        udfkit.Constant([BIG, 0.5], dtype=np.float64)


def test_no_dtype_is_an_error():
    for make in (udfkit.input_variable, udfkit.sequence.input_variable):
        with raises(TypeError, "dtype", "None"):
            make((2,), None)


def test_copy_is_a_flag():
    with raises(TypeError, "copy", "'x'"):
        sanitize_batch(sequence_variable(()), [[1.0]], copy="x")


def test_a_sample_that_does_not_fit_is_told_what_one_is():
    with raises(ValueError, "item 0", "(3,)", "expected (2,)") as caught:
        sanitize_batch(batch_variable((2,)), [[1.0, 2.0, 3.0]])
    assert "length" not in str(caught.value)
