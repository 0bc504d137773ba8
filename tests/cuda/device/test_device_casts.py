"""Device arrays of another dtype than the variable's: the rules of the host, on the device."""

from __future__ import annotations

import itertools
import os
import warnings
from typing import Any

import numpy as np
import pytest
from device_checks import Copies, Foreign, check_same, on_gpu, read, to_device

import udfkit
from checks import batch_variable, plain_variable, raises, sequence_variable
from udfkit import CastWarning, Ragged, sanitize_batch
from udfkit.casting import cast_exactly
from udfkit.kernels import cuda_arrays, cuda_casts

F32 = np.float32
CODES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]
PAIRS = [
    (np.dtype(source), np.dtype(target))
    for source, target in itertools.permutations(CODES, 2)
    # A device compiles a kernel for each pair: there, one of each way that a value may not fit.
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
    or f"{source} {target}"
    in {"f8 f4", "f4 f2", "f2 f8", "f8 i4", "f4 ?", "i8 f4", "u8 i4", "? f2"}
]
NUMBERS: list[float] = [
    0, 1, -1, 2, 127, 128, -128, -129, 255, 256, 2047, 2048, 2049, 4098, 32767, 32768, 65504, 65519,
    65520, 65535, 65536, 2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**53 + 1,
    2**62, 2**63 - 1, -(2**63), 2**63, 2**63 + 2**40, 2**64 - 1, 0.5, -0.0, 1.5, np.nan, np.inf,
    -np.inf, 1e300, -1e300, 3.4028235677973366e38, 3.40282356779733e38, 6e-8, 1e-320, -(2.0**63),
    2.0**64, 65519.99, -65520.0,
]  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore:Grid size")


def numbers_of(dtype: np.dtype) -> np.ndarray:
    """The numbers at the borders of all dtypes, those that this one has."""
    found = []
    for number in NUMBERS:
        with np.errstate(all="ignore"):
            try:
                found.append(np.array(number, dtype if isinstance(number, int) else None))
                found[-1] = found[-1].astype(dtype)
            except OverflowError:
                found = [x for x in found if x.dtype == dtype]
    return np.array(found, dtype)


def on_host(number: Any, target: np.dtype) -> np.ndarray | None:
    try:
        return cast_exactly(np.array([number]), target, "it")
    except ValueError:
        return None


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda dtype: dtype.str[1:])
def test_every_pair_of_dtypes_casts_as_on_the_host(source: np.dtype, target: np.dtype) -> None:
    numbers = numbers_of(source)
    expected = [on_host(number, target) for number in numbers]
    fits = np.array([cast is not None for cast in expected])
    made, flag = cuda_casts.cast(to_device(numbers[fits]), target)
    got, wanted = read(made), np.concatenate([cast for cast in expected if cast is not None])
    assert flag is None or read(flag).tolist() == [0]
    assert got.dtype == target
    same = (got == wanted) | ((got != got) & (wanted != wanted))
    assert same.all()
    assert (np.signbit(got) == np.signbit(wanted))[wanted == wanted].all() or target.kind != "f"
    if flag is None:
        assert fits.all(), "a cast that is not looked at must lose nothing"
    for number in numbers[~fits]:
        _, flag = cuda_casts.cast(to_device(np.array([number])), target)
        assert read(flag).tolist() == [1], number


def test_one_bad_value_among_many_is_seen(launched: Any) -> None:
    numbers = np.zeros(100, np.float64)
    for at in (0, 50, 99):
        numbers[at] = 1e300
        _, flag = cuda_casts.cast(to_device(numbers), F32)
        assert read(flag).tolist() == [1]
        numbers[at] = 0
    assert launched.names == ["cast_checked"] * 3
    made, flag = cuda_casts.cast(to_device(np.float32(numbers)), np.float64)
    assert flag is None
    assert launched.names[3:] == ["cast_all"]
    assert (read(made) == 0).all()


def test_nothing_is_launched_for_nothing(launched: Any) -> None:
    made, flag = cuda_casts.cast(to_device(np.zeros((0, 2), np.float64)), F32)
    assert (made.shape, made.dtype, read(flag).tolist()) == ((0, 2), F32, [0])
    assert launched.names == []


def warnings_of(call: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = call()
    return made, [str(w.message) for w in caught if w.category is CastWarning]


FORMS = ["whole", "list", "mixed list", "ragged", "batch", "samples", "none"]


def batches(dtype: Any) -> dict[str, tuple[Any, Any, Any]]:
    """Variable, batch on the host and the same on the device."""
    whole = np.arange(12).reshape(2, 3, 2).astype(dtype)
    lists = [whole[0], whole[1][:0], whole[1][:1]]
    mixed = [whole[0], np.float32(whole[1])]
    flat = whole.reshape(6, 2)
    return {
        "whole": (sequence_variable(2), whole, Foreign(whole)),
        "list": (sequence_variable(2), lists, [Foreign(x) for x in lists]),
        "mixed list": (sequence_variable(2), mixed, [to_device(x) for x in mixed]),
        "ragged": (sequence_variable(2), Ragged(flat, [0, 4, 6]), Ragged(Foreign(flat), [0, 4, 6])),
        "batch": (batch_variable(2), flat, to_device(flat)),
        "samples": (batch_variable(2), list(flat), [to_device(x) for x in flat]),
        "none": (plain_variable((3, 2)), whole[0], to_device(whole[0])),
        "nothing": (sequence_variable(2), whole[:0], to_device(whole[:0])),
    }


@pytest.mark.parametrize("name", [*FORMS, "nothing"])
@pytest.mark.parametrize("dtype", ["f8", "i8", "u1", "f2", "?"])
@pytest.mark.parametrize("copy", [True, False])
def test_a_batch_is_cast_with_the_warning_of_the_host(name: str, dtype: str, copy: bool) -> None:
    variable, host, device = batches(dtype)[name]
    value, said = warnings_of(lambda: sanitize_batch(variable, device, copy=copy))
    _, again = warnings_of(lambda: sanitize_batch(variable, device, copy=copy))
    variable = type(variable)(
        variable.shape, variable.dtype, variable.dynamic_axes, name=variable.name
    )
    expected, wanted = warnings_of(lambda: sanitize_batch(variable, host))
    assert said == wanted
    assert len(said) == 1
    assert again == []
    check_same(value, expected)


def with_a_large_number(name: str, make: Any) -> Any:
    """A batch whose last sequences hold a number that no float32 can hold."""
    whole = np.arange(12.0).reshape(2, 3, 2)
    whole[1, 0, 1] = 1e300
    flat = whole.reshape(6, 2)
    batches = {
        "whole": lambda: make(whole),
        "list": lambda: [make(whole[0]), make(whole[1][:0]), make(whole[1][:1])],
        "mixed list": lambda: [make(np.float32(whole[0])), make(whole[1])],
        "ragged": lambda: Ragged(make(flat), [0, 3, 6]),
        "batch": lambda: make(flat),
        "samples": lambda: [make(x) for x in flat],
        "none": lambda: make(whole[1]),
    }
    return batches[name]()


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.filterwarnings("ignore:values of dtype")
def test_a_value_that_does_not_fit_is_named_as_on_the_host(name: str) -> None:
    variable, texts = batches("f8")[name][0], []
    for make in (np.array, to_device):
        with pytest.raises(ValueError, match="1e\\+300") as caught:
            sanitize_batch(variable, with_a_large_number(name, make))
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_a_cast_that_loses_nothing_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = Copies(monkeypatch)
    narrow = to_device(np.ones((2, 3, 2), np.float16))
    with pytest.warns(CastWarning, match="float16 are cast to float32"):
        sanitize_batch(sequence_variable(2), narrow)
    assert copies.count == 0
    wide = to_device(np.ones((2, 3, 2), np.float64))
    with pytest.warns(CastWarning, match="float64 are cast to float32"):
        sanitize_batch(sequence_variable(2), wide)
    for_the_flag, copies.count = copies.count, 0
    cuda_arrays.download(to_device(np.zeros(1, np.int32)))
    assert for_the_flag == copies.count == 2, "the flag alone is read: by download, by numba"


def test_results_of_user_code_are_cast_without_a_warning() -> None:
    class Double(udfkit.UserFunction):
        def infer_outputs(self) -> Any:
            x = self.inputs[0]
            return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]

        def forward(self, x: Any, device: Any, outputs_to_retain: Any) -> Any:
            return None, [to_device(np.float64(2 * s)) for s in x]

    function = Double([sequence_variable(2)])
    value = sanitize_batch(function.inputs[0], [np.ones((3, 2), F32)], device=on_gpu())
    _, outputs = function._forward([value], None)
    assert outputs[function.output].dtype == F32
    assert (outputs[function.output].asarray() == 2).all()


def test_what_is_no_number_or_of_the_other_byte_order() -> None:
    with raises(TypeError, "sequence 1", "complex64", fix=False):
        sanitize_batch(
            sequence_variable(2),
            [to_device(np.ones((3, 2), F32)), to_device(np.ones((3, 2), np.complex64))],
        )
    swapped = Foreign(np.ones((1, 3, 2), F32), typestr=">f8", shape=(1, 3, 1))
    with raises(ValueError, "the batch", ">f8", "byte order", fix=False):
        sanitize_batch(sequence_variable(1), swapped)


def test_bfloat16_is_moved_never_converted() -> None:
    bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    with raises(ValueError, "the batch", "float32", "bfloat16", "convert"):
        sanitize_batch(sequence_variable(2, bfloat16), to_device(np.ones((1, 3, 2), F32)))
