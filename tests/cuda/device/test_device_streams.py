"""What is waited for and what is not: streams, copies, launches, and work that fails later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from device_checks import Copies, Foreign, check_same, on_gpu, to_device

import reference
import udfkit
from checks import sequence_variable
from udfkit import Ragged, Value, sanitize_batch
from udfkit.kernels import cuda_arrays, cuda_launch, cuda_moves, cuda_target
from udfkit.places import place_of

F32 = np.float32
ARRAY = np.arange(12, dtype=F32).reshape(2, 3, 2)
BATCH = [ARRAY[0], ARRAY[0][:0], ARRAY[1][:1]]
cuda = cuda_target.module()

pytestmark = pytest.mark.filterwarnings("ignore:Grid size")


@pytest.fixture
def stream() -> Any:
    """A stream of another library; the simulator has none, but its number goes the same ways."""
    return 7 if cuda_target.is_simulated() else cuda.stream()


class Waits:
    """Records which streams wait for which: (waits, is waited for)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[int, int]] = []
        for name in ("wait", "release"):
            monkeypatch.setattr(cuda_moves, name, self.wrap(getattr(cuda_moves, name), name))

    def wrap(self, inner: Callable[..., None], name: str) -> Callable[..., None]:
        def recorded(other: int | None, stream: Any) -> None:
            numbers = cuda_arrays.stream_number(other), cuda_arrays.stream_number(stream)
            if numbers[0] != numbers[1]:
                self.log.append(numbers if name == "release" else numbers[::-1])
            inner(other, stream)

        return recorded


@pytest.mark.parametrize(
    "make",
    {
        "array": lambda array: sanitize_batch(sequence_variable(2), array(ARRAY)),
        "list": lambda array: sanitize_batch(sequence_variable(2), [array(x) for x in BATCH]),
        "ragged": lambda array: sanitize_batch(
            sequence_variable(2), Ragged(array(ARRAY[0]), [0, 1, 3])
        ),
        "lengths": lambda array: Value(array(ARRAY), lengths=[3, 1]),
        "gaps": lambda array: Value(array(ARRAY), np.int8([[2, 0, 2], [0, 2, 1]])),
    }.items(),
    ids=lambda item: item[0],
)
def test_the_stream_of_an_array_is_waited_for_and_waits(
    make: Any, stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = cuda_arrays.stream_number(stream)
    waits = Waits(monkeypatch)
    value = make[1](lambda array: Foreign(array, stream=number))
    assert waits.log, "nothing was waited for"
    for k in range(0, len(waits.log), 2):
        # Before the launch ours waits for theirs; behind it theirs waits for ours.
        assert waits.log[k : k + 2] == [(0, number), (number, 0)]
    check_same(value, make[1](np.array))


def test_an_alias_is_waited_for_where_it_is_read(
    stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = cuda_arrays.stream_number(stream)
    value = sanitize_batch(sequence_variable(2), Foreign(ARRAY, stream=number), copy=False)
    waits = Waits(monkeypatch)
    _ = value.values
    assert (0, number) in waits.log or cuda_arrays.read_array(value.values, "x").stream == number


def test_work_on_two_streams_is_in_order() -> None:
    first, second = (0, 0) if cuda_target.is_simulated() else (cuda.stream(), cuda.stream())
    lengths = np.array([3, 0, 2])
    offsets = to_device(reference.offsets(lengths))
    for k in range(3):
        flat = np.arange(10, dtype=F32).reshape(5, 2) + k
        values = cuda_arrays.upload(flat, first)
        data, _ = cuda_moves.ragged_to_padded(values, offsets, 3, stream=first)
        back = cuda_moves.padded_to_ragged(data, offsets, 5, stream=second)
        reference.assert_same(cuda_arrays.download(back, second), flat)


def test_only_valid_samples_and_offsets_cross_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    send = cuda_arrays.Staging.send

    def counted(staging: Any, block: Any, count: int, on: Any = 0) -> Any:
        sent.append(count)
        return send(staging, block, count, on)

    monkeypatch.setattr(cuda_arrays.Staging, "send", counted)
    monkeypatch.setattr(cuda_arrays, "upload", lambda *arguments: pytest.fail("the host waits"))
    batch = [np.ones((50, 2), F32), *[np.ones((1, 2), F32)] * 9]
    value = sanitize_batch(sequence_variable(2), batch, device=on_gpu())
    assert sent == [59 * 8 + 8 + 8 * 11]  # rounded up to 16 bytes before the offsets
    monkeypatch.setattr(cuda_target, "launch", lambda *arguments: None)
    _ = value.data
    assert sent[1:] == [8 * 11]
    assert value.shape == (10, 50, 2), "padding is made there"


@cuda.jit
def square(values: Any, out: Any) -> None:
    """One thread an element."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = values[i] * values[i]


class Square(udfkit.UserFunction):
    """A user function with a kernel of its own on the padded data."""

    def infer_outputs(self) -> Any:
        x = self.inputs[0]
        return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]

    def apply(self, value: Value) -> Value:
        flat = value.values
        out = cuda.device_array(flat.size, flat.dtype)
        square[-(-out.size // 4), 4](flat.reshape(flat.size), out)
        return value.with_values(out.reshape(flat.shape), copy=False)

    def forward(self, x: Any, device: Any, outputs_to_retain: Any) -> Any:
        return None, self.apply(x)

    def backward(self, state: Any, grad: Any) -> Any:
        _ = grad.data, grad.mask
        return self.apply(grad)


def test_forward_and_backward_wait_for_nothing(
    launched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, waited = Copies(monkeypatch), []
    for kind, name in ((cuda, "synchronize"), (type(cuda.event()), "synchronize")):
        monkeypatch.setattr(kind, name, lambda *arguments: waited.append(arguments))
    if not cuda_target.is_simulated():
        monkeypatch.setattr(type(cuda.stream()), "synchronize", waited.append)
    x = sequence_variable(2, needs_gradient=True)
    function = Square([x], as_numpy=False)
    value = sanitize_batch(x, BATCH, [True, False, False], on_gpu())
    state, outputs = function._forward([value], None)
    assert launched.names == []
    gradients = function._backward(state, {function.output: outputs[function.output]}, [x])
    # The one operation: data and mask of the root gradient, which backward looked at.
    assert launched.names == ["ragged_to_padded"]
    _ = gradients[x].data
    assert launched.names == ["ragged_to_padded"] * 2
    assert (copies.count, waited) == (0, [])
    assert gradients[x].starts.tolist() == [True, False, False]
    monkeypatch.undo()
    reference.assert_same_list(gradients[x].as_sequences(), [s**4 for s in BATCH])


@pytest.mark.parametrize("shape", [(5, 2), (0, 2), (3, 0), (4,)], ids=str)
@pytest.mark.parametrize("dtype", ["f2", "f8", "?"])
def test_zeros_are_made_there(shape: tuple[int, ...], dtype: str, launched: Any) -> None:
    junk = [to_device(np.full(64, 255, np.uint8)) for _ in range(3)]
    del junk
    made = place_of(on_gpu()).zeros(shape, np.dtype(dtype))
    reference.assert_same(cuda_arrays.download(made), np.zeros(shape, dtype))
    assert len(launched.names) <= 1


def test_what_waits_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = Copies(monkeypatch)
    value = sanitize_batch(sequence_variable(2), BATCH, device=on_gpu())
    value.asarray()
    assert copies.count > 0


class LateError(Exception):
    """What a device says when it is asked after a kernel has failed."""


def test_a_kernel_that_fails_half_way_leaves_nothing_half_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value = sanitize_batch(sequence_variable(2), BATCH, [True, False, True], on_gpu())
    expected = sanitize_batch(sequence_variable(2), BATCH, [True, False, True])
    launch = cuda_target.launch

    def half(compiled: Any, shape: Any, on: Any, arguments: Any) -> None:
        part = cuda_launch.Shape((max(1, shape.grid[0] // 2), shape.grid[1]), shape.block)
        launch(compiled, part, on, arguments)
        raise LateError

    for read in (lambda v: v.data, lambda v: v.mask, lambda v: v.asarray()):
        fresh = value._with_layout(value._layout)
        with monkeypatch.context() as patch:
            patch.setattr(cuda_target, "launch", half)
            with pytest.raises(LateError):
                read(fresh)
            assert fresh._padded is None
            with pytest.raises(LateError):
                read(fresh)
        check_same(fresh, expected)
        value._layout.on_device.clear()


@pytest.mark.parametrize(
    "make",
    {
        "cast": lambda: sanitize_batch(sequence_variable(2), to_device(ARRAY.astype("f8"))),
        "ragged": lambda: sanitize_batch(sequence_variable(2), Ragged(to_device(ARRAY[0]), [0, 3])),
        "list": lambda: sanitize_batch(sequence_variable(2), [to_device(x) for x in BATCH]),
    }.items(),
    ids=lambda item: item[0],
)
@pytest.mark.filterwarnings("ignore:values of dtype")
def test_no_value_is_made_when_its_kernel_fails(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = cuda_target.launch

    def late(*arguments: Any) -> None:
        launch(*arguments)
        raise LateError

    with monkeypatch.context() as patch:
        patch.setattr(cuda_target, "launch", late)
        with pytest.raises(LateError):
            make[1]()
    assert make[1]().device == on_gpu()


def test_a_failure_that_shows_later_shows_at_every_read(monkeypatch: pytest.MonkeyPatch) -> None:
    value = sanitize_batch(sequence_variable(2), BATCH, device=on_gpu())
    _ = value.data

    def broken(*arguments: Any, **options: Any) -> Any:
        raise LateError

    with monkeypatch.context() as patch:
        patch.setattr(cuda_arrays, "download", broken)
        patch.setattr(type(to_device(ARRAY)), "copy_to_host", broken)
        for read in (
            Value.asarray,
            Value.as_sequences,
            Value.ragged,
            lambda v: v.to(udfkit.cpu()),
            lambda v: udfkit.variable_value_to_seq(v, sequence_variable(2)),
        ):
            for _ in range(2):
                with pytest.raises(LateError):
                    read(value)
