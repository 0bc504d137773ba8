"""Variables, axes, devices: construction, identity, pickling, refusals."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

import strategies
import udfkit
from checks import batch_variable, plain_variable, raises, sequence_variable
from udfkit import Axis, Variable

AXES = {"sequence": (Axis.default_batch_axis(), Axis.default_dynamic_axis())}
AXES["batch"], AXES["none"] = AXES["sequence"][:1], ()


@pytest.mark.parametrize("kind", AXES)
def test_kinds_follow_from_the_axes(kind):
    variable = Variable((2, 3), np.float64, AXES[kind], needs_gradient=True, name="x")
    assert variable.kind == kind
    assert tuple(variable.dynamic_axes) == AXES[kind]
    assert variable.shape == (2, 3)
    assert variable.dtype == np.dtype("float64")
    assert variable.needs_gradient
    assert not variable.is_sparse
    assert variable.name == "x"


def test_the_makers_give_their_kinds():
    assert sequence_variable((2,)).kind == "sequence"
    assert batch_variable((2,)).kind == "batch"
    assert plain_variable((2,)).kind == "none"
    out = udfkit.output_variable((2,), np.float32, AXES["sequence"])
    assert out.kind == "sequence"
    assert out.needs_gradient
    assert not udfkit.output_variable((2,), np.float32, (), needs_gradient=False).needs_gradient


def test_axes_as_cntk_code_writes_them():
    made = udfkit.input_variable(
        3, dynamic_axes=[Axis.default_batch_axis(), Axis.default_dynamic_axis()]
    )
    assert made.shape == (3,)
    assert made.kind == "sequence"
    assert Axis.default_batch_axis() == Axis.default_batch_axis()
    assert Axis.default_batch_axis() != Axis.default_dynamic_axis()


@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=str)
def test_every_dtype_of_the_contract(dtype):
    for spelling in (dtype, dtype.name, dtype.type):
        assert sequence_variable((), spelling).dtype == dtype


@pytest.mark.parametrize("dtype", ["complex64", "datetime64[s]", "U3", "O", "f16", "V2"])
def test_other_dtypes_are_refused(dtype):
    if dtype == "f16" and np.dtype("longdouble").itemsize == 8:
        pytest.skip("no long double here")
    with raises((TypeError, ValueError)):
        sequence_variable((), np.dtype("longdouble") if dtype == "f16" else dtype)


def test_bfloat16_where_a_library_supplies_it():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    variable = sequence_variable((), ml_dtypes.bfloat16, needs_gradient=True)
    assert variable.dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8"])
def test_only_floating_variables_may_need_a_gradient(dtype):
    with raises(ValueError, dtype, "x"):
        sequence_variable((), dtype, needs_gradient=True, name="x")


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((-1,), ValueError), ((2, -2), ValueError), ((2.0,), TypeError), (("a",), TypeError)],
)
def test_bad_shapes_are_refused(shape, kind):
    with pytest.raises(kind):
        sequence_variable(shape)


def test_identity_not_equality():
    left, right = sequence_variable((2,), name="x"), sequence_variable((2,), name="x")
    assert left != right
    assert left == left
    assert len({left, right, left}) == 2
    assert left.uid != right.uid


def test_repr_is_readable():
    text = repr(sequence_variable((2, 3), name="features"))
    assert "features" in text
    assert "2" in text
    assert "3" in text


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_keeps_the_identity_within_a_process(protocol):
    variable = sequence_variable((2,), needs_gradient=True, name="x")
    assert pickle.loads(pickle.dumps(variable, protocol)) is variable
    left, right = pickle.loads(pickle.dumps((variable, variable), protocol))
    assert left is right is variable


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
def test_copies_are_the_same_variable(make):
    variable = sequence_variable((2,))
    assert make(variable) is variable


def test_a_variable_restored_in_another_process_keeps_uid_and_settings():
    variable = udfkit.sequence.input_variable(
        (udfkit.FreeDimension, 3), "int16", is_sparse=True, name="x"
    )
    code = (
        "import pickle, sys, udfkit\n"
        "v = pickle.load(sys.stdin.buffer)\n"
        "assert pickle.loads(pickle.dumps(v)) is v\n"
        "print(v.uid, v.shape, v.dtype, v.kind, v.is_sparse, v.name, sep='|')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(variable),
        capture_output=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.decode().strip() == f"{variable.uid}|(-3, 3)|int16|sequence|True|x"


def test_free_dimension_is_the_number_of_cntk():
    assert udfkit.FreeDimension == -3


def test_parameter_carries_a_value():
    parameter = udfkit.Parameter((2, 3), init=0.5, name="w")
    assert parameter.kind == "none"
    assert parameter.shape == (2, 3)
    assert parameter.needs_gradient
    np.testing.assert_array_equal(parameter.value, np.full((2, 3), 0.5, np.float32))
    init = np.arange(4.0)
    from_array = udfkit.Parameter(init=init)
    init[:] = 9
    np.testing.assert_array_equal(from_array.value, [0, 1, 2, 3])
    assert from_array.shape == (4,)
    assert from_array.dtype == np.float64


def test_constant_carries_a_value_and_needs_no_gradient():
    constant = udfkit.Constant([1, 2], dtype=np.int32)
    assert constant.kind == "none"
    assert constant.shape == (2,)
    assert not constant.needs_gradient
    np.testing.assert_array_equal(constant.value, np.array([1, 2], np.int32))
    with pytest.raises(ValueError):
        constant.value[0] = 3


@pytest.mark.parametrize("make", [udfkit.Parameter, udfkit.Constant])
def test_carried_values_pickle_by_identity(make):
    variable = make(init=np.ones(3)) if make is udfkit.Parameter else make(np.ones(3))
    again = pickle.loads(pickle.dumps(variable))
    assert again is variable
    np.testing.assert_array_equal(again.value, np.ones(3))


def test_devices_compare_hash_print_and_pickle():
    cpu = udfkit.cpu()
    assert cpu == udfkit.device.cpu()
    assert isinstance(cpu, udfkit.DeviceDescriptor)
    assert hash(cpu) == hash(udfkit.cpu())
    assert "cpu" in repr(cpu).lower()
    assert pickle.loads(pickle.dumps(cpu, 5)) == cpu
    assert udfkit.use_default_device() == cpu


def test_a_gpu_that_is_not_there_is_a_clear_error():
    with pytest.raises(Exception) as caught:
        udfkit.gpu(1000)
    assert not isinstance(caught.value, (ImportError, AttributeError))
    text = str(caught.value)
    assert "1000" in text
    assert "GPU" in text or "CUDA" in text


@pytest.mark.parametrize("device", ["cpu", 0, None.__class__])
def test_a_default_device_that_is_no_device_is_refused(device):
    with pytest.raises(TypeError):
        udfkit.set_default_device(device)
    assert udfkit.use_default_device() == udfkit.cpu()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: udfkit.Constant(np.array([300, 1]), dtype=np.int8), ["300", "int8"]),
        (lambda: udfkit.Constant(np.array([1.0, np.nan]), dtype=np.int8), ["nan", "int8"]),
        (lambda: udfkit.Parameter(2, np.array([1e300, 1.0]), np.float32), ["1e\\+300", "float32"]),
        (lambda: udfkit.Parameter((2, 3), init=np.arange(3.0)), [r"\(3,\)", r"\(2, 3\)"]),
        (lambda: udfkit.Parameter(init=[[1], [1, 2]]), ["differ"]),
    ],
)
def test_values_of_parameters_and_constants_are_never_cut(make, words):
    with pytest.raises(ValueError, match=".*".join(words)):
        make()


def test_a_new_value_of_a_parameter_is_checked_and_the_old_one_stays():
    weight = udfkit.Parameter(init=np.ones(2, np.float32))
    for bad in (np.array([1e300, 1.0]), np.ones(3), [[1], [1, 2]]):
        with pytest.raises(ValueError, match="Parameter"):
            weight.value = bad
    with pytest.raises(TypeError, match="real numbers"):
        weight.value = np.array([1j, 1])
    assert weight.value.tolist() == [1.0, 1.0]


def test_devices_of_other_kinds_are_refused():
    with pytest.raises(ValueError, match="tpu"):
        udfkit.DeviceDescriptor("tpu")
    for index in (-1, "0", True, 0.0):
        with pytest.raises(ValueError, match="index"):
            udfkit.gpu(index)


@pytest.mark.parametrize("shape", [2.0, None, (2**40, 2**40)])
def test_shapes_that_no_sample_can_have(shape):
    with pytest.raises((TypeError, ValueError), match="shape"):
        udfkit.input_variable(shape)


@pytest.mark.parametrize("name", [5, None, b"x", ["x"]])
def test_names_are_strings(name):
    x = udfkit.sequence.input_variable(2)
    for make in (
        lambda: udfkit.Axis(name),
        lambda: udfkit.input_variable(2, name=name),
        lambda: udfkit.Parameter(2, name=name),
        lambda: udfkit.Constant(2.0, name=name),
        lambda: udfkit.UserFunction([x], name=name),
    ):
        with raises(TypeError, "name is", "expected a str"):
            make()


@pytest.mark.parametrize("flag", ["no", 0, 1, None])
def test_flags_are_bools(flag):
    x = udfkit.sequence.input_variable(2)
    with raises(TypeError, "needs_gradient", "expected a bool"):
        udfkit.input_variable(2, needs_gradient=flag)
    with raises(TypeError, "is_sparse", "expected a bool"):
        udfkit.input_variable(2, is_sparse=flag)
    with raises(TypeError, "as_numpy", "expected a bool"):
        udfkit.UserFunction([x], as_numpy=flag)
    with raises(TypeError, "needs_gradient", "expected a bool"):
        udfkit.output_variable(2, np.int32, (), needs_gradient=flag)
    assert udfkit.input_variable(2, needs_gradient=np.bool_(True)).needs_gradient is True


def test_axes_are_axes():
    with raises(TypeError, "name is 3", "expected a str"):
        udfkit.Axis.new_unique_dynamic_axis(3)
    for axes in (3, 2.5):
        with raises(TypeError, "dynamic_axes", "expected a sequence"):
            udfkit.input_variable(2, dynamic_axes=axes)
    for axis in (0, "", "words"):
        with raises(TypeError, "dynamic axis", "expected an Axis"):
            udfkit.sequence.input_variable(2, sequence_axis=axis)
