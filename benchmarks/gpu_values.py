"""Values and user functions on a GPU against the same on the CPU, without a test framework."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import reference
import udfkit
from benchmarks.gpu_correctness import batch
from benchmarks.gpu_speed import torch_sees_device
from udfkit.kernels import cuda_target
from udfkit.kernels.cuda_arrays import download, upload

__all__ = ["square_function", "value_checks"]

Check = tuple[str, Callable[[], None]]
SHAPE = (3,)
cuda = cuda_target.module()


def variable(dtype: Any = np.float32, **options: Any) -> Any:
    """Return a sequence variable with samples of three numbers."""
    return udfkit.sequence.input_variable(SHAPE, dtype, **options)


def sequences(smoke: bool, dtype: Any = np.float32) -> list[Any]:
    """Return whole numbers that every dtype holds, in sequences some of which are empty."""
    lengths = (2, 0, 3) if smoke else np.random.default_rng(5).integers(0, 60, 200)
    return [(np.arange(3 * n).reshape(n, 3) % 100).astype(dtype) for n in lengths]


def same(value: Any, expected: Any) -> None:
    """Assert that a Value on the device says what one on the host says."""
    assert value.device.is_gpu
    reference.assert_same(value.asarray(), np.asarray(expected.asarray()))
    reference.assert_same(download(value.mask), np.asarray(expected.mask))
    reference.assert_same(download(value.values), np.asarray(expected.values))
    assert value.lengths.tolist() == expected.lengths.tolist()
    assert value.starts.tolist() == expected.starts.tolist()
    assert value.equals(expected)


def value_checks(smoke: bool) -> Iterator[Check]:
    """Yield the name of a check and what runs it."""
    for dtype in (np.float16, np.float32, np.float64, np.int64, np.bool_):
        yield f"lists of {np.dtype(dtype)}", partial(check_lists, smoke, dtype)
    for source in (np.float64, np.float16, np.int64, np.bool_):
        yield f"cast of {np.dtype(source)}", partial(check_casts, smoke, source)
    yield "a cast that does not fit", check_bad_cast
    yield "general masks", check_masks
    yield "filled rows", partial(check_filled_rows, smoke)
    yield "sparse values", check_sparse
    yield "ragged over device memory", partial(check_ragged, smoke)
    yield "DLPack of our own arrays", partial(check_dlpack, smoke)
    yield "strides", partial(check_strides, smoke)
    yield "forward and backward", partial(check_function, smoke)
    yield "arrays without bytes", check_empty
    if cuda_target.is_simulated() or not torch_sees_device():
        return
    for name in ("float16", "float32", "int64", "bool"):
        yield f"torch tensors of {name}", partial(check_torch, smoke, name)
    yield "torch takes what is handed out", partial(check_torch_takes, smoke)
    yield "torch tensors with strides", check_torch_strides
    yield "torch tensors of another stream", check_torch_stream


def check_lists(smoke: bool, dtype: Any) -> None:
    """Host arrays and device arrays, with starts, both ways."""
    x, device = variable(dtype), udfkit.gpu(0)
    data = batch(np.random.default_rng(1), 3 if smoke else 200, 4 if smoke else 90, SHAPE, np.uint8)
    data = [array.astype(dtype) for array in data]
    starts = [k % 3 > 0 for k in range(len(data))]
    expected = udfkit.sanitize_batch(x, data, starts)
    value = udfkit.sanitize_batch(x, data, starts, device)
    same(value, expected)
    same(udfkit.sanitize_batch(x, [upload(array) for array in data], starts), expected)
    same(udfkit.Value(upload(expected.asarray()), expected.mask, starts=starts), expected)
    reference.assert_same_list(udfkit.variable_value_to_seq(value, x), data)
    assert value.to(udfkit.cpu()).equals(expected)


def check_casts(smoke: bool, source: Any) -> None:
    """Cast device arrays to float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", udfkit.CastWarning)
        data = sequences(smoke, source)
        expected = udfkit.sanitize_batch(variable(), data)
        same(udfkit.sanitize_batch(variable(), [upload(array) for array in data]), expected)
        whole = expected.asarray().astype(source)
        value = udfkit.sanitize_batch(variable(), upload(whole))
        reference.assert_same(value.asarray(), whole.astype(np.float32))


def check_bad_cast() -> None:
    """Refuse a value that float32 cannot hold, with its place."""
    whole = np.zeros((2, 300, 3))
    whole[1, 200, 2] = 1e300
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", udfkit.CastWarning)
        text = "nothing"
        try:
            udfkit.sanitize_batch(variable(), upload(whole))
        except ValueError as error:
            text = str(error)
    assert "1e+300 at index (1, 200, 2)" in text, f"1e300 as a float32: {text} was said"


def check_masks() -> None:
    """Valid cells anywhere, several sequences a row."""
    mask = np.int8([[0, 2, 1, 0, 2, 0], [1, 1, 2, 2, 0, 0]])
    data = np.random.default_rng(2).random((2, 6, 3))
    expected = udfkit.Value(data, mask)
    same(udfkit.Value(data, mask, device=udfkit.gpu(0)), expected)
    same(udfkit.Value(upload(data), upload(mask)), expected)
    same(expected.to(udfkit.gpu(0)), expected)


def check_filled_rows(smoke: bool) -> None:
    """Several sequences a row, with an index of their own."""
    expected = udfkit.fill_rows(sequences(smoke), 70, split=True).value
    same(expected.to(udfkit.gpu(0)), expected)


def check_sparse() -> None:
    """One-hot samples."""
    expected = udfkit.Value.one_hot([[1, 0], [], [4, 2, 3]], 5)
    same(udfkit.Value.one_hot([[1, 0], [], [4, 2, 3]], 5, device=udfkit.gpu(0)), expected)


def check_ragged(smoke: bool) -> None:
    """Flat values that are there already, and samples for the layout of a Value."""
    host = udfkit.Ragged.from_list(sequences(smoke), np.float32, SHAPE)
    flat = upload(np.asarray(host.values))
    expected = udfkit.sanitize_batch(variable(), host)
    for copy in (True, False):
        value = udfkit.sanitize_batch(variable(), udfkit.Ragged(flat, host.offsets), copy=copy)
        same(value, expected)
        same(value.with_values(flat, copy=copy), expected)
    reference.assert_same_list([download(part) for part in host.to(udfkit.gpu(0))], list(host))


class ByDlpack:
    """An array by DLPack alone."""

    def __init__(self, array: Any) -> None:
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


def check_dlpack(smoke: bool) -> None:
    """Hand an array out by DLPack, and take it again."""
    expected = udfkit.sanitize_batch(variable(), sequences(smoke))
    value = expected.to(udfkit.gpu(0))
    again = udfkit.Value(ByDlpack(value.data), ByDlpack(value.mask))
    same(again, expected)
    for copy in (True, False):
        whole = udfkit.sanitize_batch(variable(), ByDlpack(value.data), copy=copy)
        reference.assert_same(whole.asarray(), expected.asarray())


@cuda.jit
def square(values: Any, out: Any) -> None:
    """One thread a number."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = values[i] * values[i]


def check_strides(smoke: bool) -> None:
    """Parts of a numba array."""
    base = np.arange(4 * 50 * 6, dtype=np.float32).reshape(4, 50, 6)[:, : 5 if smoke else 50]
    there = upload(base)
    for part in (
        (slice(None, None, 2), slice(None), slice(3)),
        (slice(None), slice(4), slice(3, 6)),
    ):
        value = udfkit.sanitize_batch(variable(), there[part])
        reference.assert_same(value.asarray(), np.ascontiguousarray(base[part]))


def square_function(x: Any) -> Any:
    """Return a user function with a kernel of its own; nothing of it waits for the device."""
    threads = 4 if cuda_target.is_simulated() else 128
    buffers: dict[int, Any] = {}

    def apply(value: Any) -> Any:
        flat = value.values
        if flat.size not in buffers:
            buffers[flat.size] = cuda.device_array(flat.size, np.float32)
        out = buffers[flat.size]
        square[-(-out.size // threads), threads](flat.reshape(flat.size), out)
        return value.with_values(out.reshape(flat.shape))

    class Square(udfkit.UserFunction):
        def infer_outputs(self) -> Any:
            x = self.inputs[0]
            return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]

        def forward(self, value: Any, device: Any, outputs_to_retain: Any) -> Any:
            return None, apply(value)

        def backward(self, state: Any, grad: Any) -> Any:
            return apply(grad)

    return Square([x], as_numpy=False)


def check_function(smoke: bool) -> None:
    """A user function that never leaves the device, and one that gets arrays."""
    x = variable(needs_gradient=True)
    data = sequences(smoke)
    function = square_function(x)
    value = udfkit.sanitize_batch(x, data, device=udfkit.gpu(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numba's, of small launches
        state, outputs = function._forward([value], None)
        out = outputs[function.output]
        (gradient,) = function._backward(state, {function.output: out}, [x]).values()
    squared = [array * array for array in data]
    reference.assert_same_list(out.as_sequences(), squared)
    reference.assert_same_list(gradient.as_sequences(), [array * array for array in squared])


def check_empty() -> None:
    """Batches of nothing."""
    for data in ([], [np.zeros((0, 3), np.float32)] * 2):
        expected = udfkit.sanitize_batch(variable(), data)
        same(udfkit.sanitize_batch(variable(), data, device=udfkit.gpu(0)), expected)
        if data:
            same(udfkit.sanitize_batch(variable(), [upload(array) for array in data]), expected)


def check_torch(smoke: bool, name: str) -> None:
    """Tensors, one a sequence and whole."""
    import torch  # noqa: TID251

    x, data = variable(np.dtype(name)), sequences(smoke, np.dtype(name))
    expected = udfkit.sanitize_batch(x, data)
    same(udfkit.sanitize_batch(x, [torch.from_numpy(array).cuda() for array in data]), expected)
    whole = torch.from_numpy(expected.asarray()).cuda()
    for copy in (True, False):
        value = udfkit.sanitize_batch(x, whole, copy=copy)
        reference.assert_same(value.asarray(), expected.asarray())


def check_torch_takes(smoke: bool) -> None:
    """What a Value hands out, by both protocols."""
    import torch  # noqa: TID251

    value = udfkit.sanitize_batch(variable(), sequences(smoke), device=udfkit.gpu(0))
    for tensor in (torch.from_dlpack(value.data), torch.as_tensor(value.data, device="cuda")):
        reference.assert_same(tensor.cpu().numpy(), value.asarray())
    mask = torch.from_dlpack(value.mask)
    reference.assert_same(mask.cpu().numpy(), download(value.mask))


def check_torch_strides() -> None:
    """Tensors that are views of others."""
    import torch  # noqa: TID251

    base = torch.arange(4 * 50 * 6, dtype=torch.float32, device="cuda").reshape(4, 50, 6)
    for view in (base[:, :, ::2], base[::2, :, :3], base[:, :, 3:], base.flip(1)[:, ::3, :3]):
        value = udfkit.sanitize_batch(variable(), view)
        reference.assert_same(value.asarray(), view.contiguous().cpu().numpy())
        value = udfkit.sanitize_batch(variable(), list(view))
        reference.assert_same(value.asarray(), view.contiguous().cpu().numpy())


def check_torch_stream() -> None:
    """A tensor that is made on a stream of its own is waited for."""
    import torch  # noqa: TID251

    stream = torch.cuda.Stream()
    for k in range(5):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            made = torch.full((4, 1_000, 3), float(k), device="cuda")
            value = udfkit.sanitize_batch(variable(), made)
        assert (value.asarray() == k).all(), f"round {k} was read before it was there"
