"""A kernel or a copy that fails half way: an error, and no half-written data behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from device_checks import check_same, on_gpu, read, to_device

import reference
import udfkit
from checks import sequence_variable
from dispatch_helpers import Remembering
from udfkit import Ragged, Value, sanitize_batch
from udfkit.kernels import cuda_arrays, cuda_target

F32 = np.float32
BATCH = [F32([[1, 2], [3, 4], [5, 6]]), np.empty((0, 2), F32), F32([[7, 8]])]
STARTS = [True, False, False]
GAPS = np.int8([[0, 2, 1, 0, 2, 0], [1, 1, 2, 2, 0, 0]])
PADDED = np.arange(1, 13, dtype=F32).reshape(2, 6)
VARIABLE = sequence_variable(2)


class BoomError(Exception):
    """What a failing device raises in these tests."""


class Failing:
    """Lets a kernel or a copy do its work and then fail, while it is on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on = False
        self.seen = 0
        for module, name in ((cuda_target, "launch"), (cuda_arrays, "upload")):
            monkeypatch.setattr(module, name, self.wrap(getattr(module, name)))
        monkeypatch.setattr(cuda_arrays.Staging, "send", self.wrap(cuda_arrays.Staging.send))

    def wrap(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def failing(*arguments: Any, **options: Any) -> Any:
            result = inner(*arguments, **options)
            if self.on:
                self.seen += 1
                raise BoomError
            return result

        return failing


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    return Failing(monkeypatch)


def listed(device: Any) -> Value:
    return sanitize_batch(VARIABLE, BATCH, STARTS, device)


def csr(device: Any) -> Value:
    matrices = [scipy.sparse.csr_matrix(x) for x in BATCH]
    return sanitize_batch(VARIABLE, matrices, STARTS, device)


MAKERS: dict[str, Callable[[Any], Value]] = {
    "flat": listed,
    "gaps": lambda device: Value(PADDED, GAPS, device=device),
    "moved gaps": lambda device: Value(PADDED, GAPS).to(device),
    "rectangle": lambda device: Value(PADDED, lengths=[6, 2], device=device),
    "one-hot": lambda device: Value.one_hot([[1, 0], [2]], 3, device=device),
    "csr": csr,
    "rows": udfkit.fill_rows(BATCH, row_length=3).value.to,
}
READERS: dict[str, Callable[[Value], Any]] = {
    "data": lambda value: value.data,
    "mask": lambda value: value.mask,
    "values": lambda value: value.values,
    "asarray": lambda value: value.asarray(),
    "sequences": lambda value: udfkit.variable_value_to_seq(
        value, sequence_variable(value.shape[2:], value.dtype)
    ),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("maker", MAKERS)
def test_a_read_that_failed_is_done_again(failing: Failing, maker: str, reader: str) -> None:
    value, expected = MAKERS[maker](on_gpu()), MAKERS[maker](udfkit.cpu())
    failing.on = True
    for _ in range(2):
        before = failing.seen
        try:
            READERS[reader](value)
        except BoomError:
            assert failing.seen > before
        else:
            # What is there already needs neither a kernel nor a copy to the device.
            assert failing.seen == before
    failing.on = False
    check_same(value, expected)
    reference.assert_same(read(value.values), np.asarray(expected.values))


def test_the_failures_are_met(failing: Failing) -> None:
    met = set()
    for maker, make in MAKERS.items():
        for reader, call in READERS.items():
            failing.on = False
            value = make(on_gpu())
            failing.on = True
            before = failing.seen
            try:
                call(value)
            except BoomError:
                met.add((maker, reader))
            assert (failing.seen > before) == ((maker, reader) in met)
    assert len(met) >= 20
    assert {maker for maker, _ in met} == set(MAKERS)
    assert {reader for _, reader in met} == set(READERS)


@pytest.mark.parametrize(
    "make",
    [
        listed,
        lambda device: sanitize_batch(VARIABLE, Ragged.from_list(BATCH), device=device),
        lambda device: sanitize_batch(VARIABLE, BATCH[0][np.newaxis], device=device),
        lambda device: sanitize_batch(VARIABLE, [to_device(x) for x in BATCH]),
        lambda device: sanitize_batch(VARIABLE, to_device(BATCH[0][np.newaxis])),
        lambda device: sanitize_batch(VARIABLE, BATCH).to(device),
        lambda device: Value(PADDED, GAPS, device=device),
    ],
)
def test_no_value_is_made_when_its_copy_fails(failing: Failing, make: Any) -> None:
    failing.on = True
    with pytest.raises(BoomError):
        make(on_gpu())
    failing.on = False
    assert make(on_gpu()).device == on_gpu()


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_function_works_again_after_a_failure(failing: Failing, phase: str) -> None:
    function = Remembering(sequence_variable(2, needs_gradient=True))
    x, out = function.inputs[0], function.output
    value = sanitize_batch(x, BATCH, STARTS, on_gpu())
    outputs: dict[Any, Any] = {out: None}
    gradients: dict[Any, Any] = {x: None}
    failing.on = phase == "forward"
    if phase == "forward":
        with pytest.raises(BoomError):
            function._forward([value], outputs)
        assert outputs == {out: None}
    failing.on = False
    state, outputs = function._forward([value], outputs)
    failing.on = phase == "backward"
    if phase == "backward":
        with pytest.raises(BoomError):
            function._backward(state, {out: outputs[out]}, gradients)
        assert gradients == {x: None}
    failing.on = False
    function._backward(state, {out: outputs[out]}, gradients)
    reference.assert_same_list(outputs[out].as_sequences(), [s * s for s in BATCH])
    reference.assert_same_list(gradients[x].as_sequences(), [2 * s * s * s for s in BATCH])
    assert gradients[x].starts.tolist() == STARTS
