"""What all adapters stand on, without any other library: batches at the border of user code."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest

import adapted_functions as adapted
import udfkit
from udfkit.adapters.arguments import all_inputs, check_function, named
from udfkit.adapters.bridge import is_one_to_one, run_backward, run_forward
from udfkit.adapters.bridge_batches import (
    ArrayBatch,
    check_starts_fit,
    in_cells,
    layout_at,
    layout_of_offsets,
)
from udfkit.kernels import pyobjects, pyobjects_borders
from udfkit.layout import Layout

INT64 = np.dtype(np.int64)
LENGTHS = np.array([3, 0, 2, 1])
CLASSES = [adapted.Square, adapted.SquareRagged, adapted.SquareValue, adapted.SquareBroken]


@pytest.fixture(params=["compiled", "plain"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "plain":
        pyobjects._bind("a test asks for it")
    yield request.param
    pyobjects._bind(None)


def batch(pad: bool, shape: tuple[int, ...] = (2,), steps: int = 4) -> ArrayBatch:
    layout = Layout.of_lengths(LENGTHS, None, steps)
    rng = np.random.default_rng(2)
    size = (len(LENGTHS), steps, *shape) if pad else (int(LENGTHS.sum()), *shape)
    return ArrayBatch(layout, pad, rng.standard_normal(size))


def flat(array: np.ndarray, pad: bool) -> np.ndarray:
    return (
        np.concatenate([row[:n] for row, n in zip(array, LENGTHS, strict=True)]) if pad else array
    )


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("pad_in", [True, False])
@pytest.mark.parametrize("pad_out", [True, False])
def test_forward_and_backward(path, kind, copy, pad_in, pad_out):
    function, given = kind([adapted.sequences(2)]), batch(pad_in)
    before = given.array.copy()
    state, (made,) = run_forward(function, [given], copy, pad_out)
    samples = flat(before, pad_in)
    tolerance = 1e-6 if kind is adapted.SquareBroken else 0
    np.testing.assert_allclose(flat(made.array, pad_out), samples**2, rtol=tolerance)
    assert made.layout is given.layout
    root = np.ones_like(made.array)
    made.array = root
    (gradient,) = run_backward(function, state, [given], [made], [0], copy)
    np.testing.assert_array_equal(flat(gradient.array, pad_in), 2 * samples)
    if pad_in:
        for row, n in zip(gradient.array, LENGTHS, strict=True):
            assert not row[n:].any()
    assert np.array_equal(given.array, before)
    assert (root == 1).all()


def test_user_code_sees_memory_only_without_copy(path):
    seen = []

    class Look(adapted.Square):
        def forward(self, x, device, outputs_to_retain):
            seen.append(x)
            return None, x

    for copy in (True, False):
        given = batch(pad=False)
        _, (made,) = run_forward(Look([adapted.sequences(2)]), [given], copy, False)
        (sequences,) = seen
        seen.clear()
        assert np.shares_memory(sequences[0], given.array) == (not copy)
        assert sequences[0].flags.writeable == copy
        assert not np.shares_memory(made.array, given.array)


def test_ragged_user_code_sees_starts_and_new_lengths_keep_theirs(path):
    seen = []

    class Look(adapted.SquareRagged):
        def forward(self, x, device, outputs_to_retain):
            seen.append(x.starts.tolist())
            return None, udfkit.Ragged(x.values[:4], [0, 1, 1, 4, 4], [True, False, False, True])

    given = batch(pad=False)
    given.layout = Layout.of_lengths(LENGTHS, np.array([True, False, True, False]))
    _, (made,) = run_forward(Look([adapted.sequences(2)]), [given], True, True)
    assert seen == [[True, False, True, False]]
    assert made.layout.starts.tolist() == [True, False, False, True]
    assert made.layout.lengths.tolist() == [1, 0, 3, 0]


def test_starts_fit_a_mask_but_not_an_empty_sequence():
    layout = Layout.of_lengths(np.array([2, 0]), np.array([False, True]))
    check_starts_fit(layout, "mask", "y", "cure")
    with pytest.raises(ValueError, match=r"y: sequence 0 continues .* 'lengths' cannot say: cure"):
        check_starts_fit(layout, "lengths", "y", "cure")
    empty = Layout.of_lengths(np.array([2, 0]), np.array([False, False]))
    with pytest.raises(ValueError, match=r"y: sequence 1 continues .* 'mask' cannot say"):
        check_starts_fit(empty, "mask", "y", "cure")


def test_other_cells_of_equal_lengths():
    left = Layout.of_mask(np.array([[0, 2, 1], [0, 0, 2]], np.int8))
    array = np.array([[9, 1, 2], [9, 9, 3]])
    made = in_cells(ArrayBatch(left, True, array), Layout.of_lengths(np.array([2, 1]), None, 4))
    assert made.array.tolist() == [[1, 2, 0, 0], [3, 0, 0, 0]]
    assert in_cells(made, left).array.tolist() == [[0, 1, 2], [0, 0, 3]]
    assert in_cells(made, made.layout) is made


def test_results_and_gradients_are_checked(path):
    class Short(adapted.Square):
        def forward(self, x, device, outputs_to_retain):
            return None, x[:2]

        def backward(self, state, grad):
            return [g[:1] for g in grad]

    function, given = Short([adapted.sequences(2)]), batch(pad=False)
    with pytest.raises(ValueError, match="2 sequences came, expected 4"):
        run_forward(function, [given], True, False)
    with pytest.raises(ValueError, match="sequence 0 has length 1, expected 3"):
        run_backward(function, None, [given], [given], [0], True)


def test_a_gradient_left_none():
    class Nothing(adapted.Square):
        contract = "cntk-2.7"

        def backward(self, state, grad):
            return None

    given = batch(pad=True)
    (made,) = run_backward(Nothing([adapted.sequences(2)]), None, [given], [given], [0], True)
    assert made.array.shape == given.array.shape
    assert not made.array.any()
    Nothing.contract = "auto"
    with pytest.raises(ValueError, match="gradients were not provided"):
        run_backward(Nothing([adapted.sequences(2)]), None, [given], [given], [0], True)


def test_which_functions_are_one_to_one():
    assert is_one_to_one(adapted.Square([adapted.sequences()]))
    assert not is_one_to_one(adapted.several())
    assert not is_one_to_one(adapted.scale())


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "?", "i1", "u4", "i8"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_gather_and_copy_views_move_every_byte(dtype, shape):
    rng = np.random.default_rng(0)
    items = [(rng.random((n, *shape)) * 9).astype(dtype) for n in LENGTHS]
    offsets = np.cumsum([0, *LENGTHS])
    whole = np.concatenate(items)
    out = np.empty_like(whole)
    args = np.dtype(dtype), shape, offsets, INT64
    assert pyobjects_borders.gather(tuple(items), *args, out, -1) == 0
    assert out.tobytes() == whole.tobytes()
    data = np.empty((len(items), 4, *shape), dtype)
    data.view(np.uint8).fill(7) if data.size and shape else None
    assert pyobjects_borders.gather(tuple(items), *args, data, 4) == 0
    for row, item in zip(data, items, strict=True):
        assert row[: len(item)].tobytes() == item.tobytes()
        assert not row[len(item) :].any()
    for source, steps in ((whole, -1), (data, 4)):
        block = np.empty_like(whole)
        views = pyobjects_borders.copy_views(
            block, LENGTHS, shape, INT64, pyobjects.address(source), steps
        )
        assert [view.tobytes() for view in views] == [item.tobytes() for item in items]
        assert [view.shape for view in views] == [item.shape for item in items]
        assert all(view.base is block for view in views)


GOOD = [np.zeros((2, 3), np.float32), np.zeros((1, 3), np.float32)]
ODD = {
    "another length": [GOOD[0], GOOD[0]],
    "another count": GOOD[:1],
    "another dtype": [GOOD[0], GOOD[1].astype(np.float64)],
    "another shape": [GOOD[0], np.zeros((1, 4), np.float32)],
    "another rank": [GOOD[0], np.zeros(3, np.float32)],
    "no array": [GOOD[0], [[0.0, 0.0, 0.0]]],
    "not contiguous": [np.zeros((2, 6), np.float32)[:, ::2], GOOD[1]],
    "swapped bytes": [GOOD[0], GOOD[1].astype(">f4")],
}


@pytest.mark.parametrize("name", ODD)
def test_gather_leaves_odd_items_to_others(name):
    args = np.dtype(np.float32), (3,), np.array([0, 2, 3]), INT64
    out = np.empty((3, 3), np.float32)
    assert pyobjects_borders.gather(tuple(GOOD), *args, out, -1) == 0
    assert pyobjects_borders.gather(tuple(ODD[name]), *args, out, -1) == -1


def test_gather_and_copy_views_check_the_room():
    args = np.dtype(np.float32), (3,), np.array([0, 2, 3]), INT64
    assert pyobjects_borders.gather(tuple(GOOD), *args, np.empty((2, 3), np.float32), -1) == -1
    assert pyobjects_borders.gather(tuple(GOOD), *args, np.empty((2, 1, 3), np.float32), 1) == -1
    fixed = np.empty((3, 3), np.float32)
    fixed.flags.writeable = False
    assert pyobjects_borders.gather(tuple(GOOD), *args, fixed, -1) == -1
    source = pyobjects.address(GOOD[0])
    for lengths, block in (([2, 2], np.empty((3, 3), np.float32)), ([-1, 2], np.empty((1, 3)))):
        made = pyobjects_borders.copy_views(block, np.array(lengths), (3,), INT64, source, -1)
        assert made is None


@pytest.mark.parametrize(
    ("numbers", "limit", "expected"),
    [
        ([0, 2, 2, 5], 5, [2, 0, 3]),
        ([0], 0, []),
        ([0, 2, 1, 5], 5, None),
        ([1, 2, 5], 5, None),
        ([0, 2, 4], 5, None),
        ([0, -1, 5], 5, None),
        ([0, 2**63 - 1, 5], 5, None),
    ],
)
def test_reading_offsets(numbers, limit, expected):
    array = np.array(numbers)
    layout = layout_at(pyobjects.address(array), len(array) - 1, limit, offsets=True)
    assert (layout is None) == (expected is None)
    if layout is not None:
        assert layout.lengths.tolist() == expected
        assert layout.offsets.tolist() == numbers
        assert layout.steps == max(expected, default=0)
        assert not np.shares_memory(layout.offsets, array)


@pytest.mark.parametrize(
    ("numbers", "limit", "fits"),
    [
        ([2, 0, 3], 4, True),
        ([], 4, True),
        ([5], 4, False),
        ([-1], 4, False),
        ([2**62] * 2, 2**62, False),
    ],
)
def test_reading_lengths(numbers, limit, fits):
    array = np.array(numbers, np.int64)
    layout = layout_at(pyobjects.address(array), len(array), limit, offsets=False)
    assert (layout is not None) == fits
    if layout is not None:
        assert layout.lengths.tolist() == numbers
        assert layout.offsets.tolist() == [0, *np.cumsum(numbers).tolist()]
        assert layout.steps == limit


def test_a_named_axis_means_equal_lengths():
    axis = udfkit.Axis("words")
    a, b = (udfkit.sequence.input_variable(2, np.float64, sequence_axis=axis) for _ in "ab")
    other = ArrayBatch(Layout.of_lengths(LENGTHS[::-1].copy()), False, batch(pad=False).array)
    with pytest.raises(ValueError, match="sequence 0 has length 1, expected 3"):
        run_forward(adapted.Several([a, b]), [batch(pad=False), other], True, False)


LIBRARIES = {
    "to_torch": "torch",
    "to_awkward": "awkward",
    "to_arrow": "pyarrow",
    "to_tensorflow": "tensorflow",
    "to_pandas": "pandas",
    "to_csr": "scipy",
}


@pytest.mark.parametrize("method", LIBRARIES)
def test_a_missing_library_is_named(method, monkeypatch):
    package = LIBRARIES[method]
    loaded = [name for name in sys.modules if name.split(".")[0] == package]
    for name in [*loaded, *(f"udfkit.adapters.{a}" for a in ("scipy", "torch_ragged"))]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    ragged = udfkit.Ragged(np.zeros((2, 1)), [0, 2])
    with pytest.raises(ModuleNotFoundError, match=f"needs {package}, which is not installed"):
        getattr(ragged, method)()


def test_arguments_of_a_call():
    x, weight = adapted.sequences(2, name="x"), udfkit.Parameter(init=np.ones(2), name="w")
    scale = adapted.Scale([x, weight, udfkit.Constant(np.zeros(2))])
    given = all_inputs(scale, ["batch"], lambda value: value.tolist())
    assert given == ["batch", [1.0, 1.0], [0.0, 0.0]]
    assert all_inputs(scale, ["batch", "w", "b"], list) == ["batch", "w", "b"]
    for count in (0, 2):
        text = rf"takes 1 input\(s\), \['x'\], got {count}: .* as one tuple"
        with pytest.raises(TypeError, match=text):
            all_inputs(scale, [None] * count, list)


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (adapted.Square, r"the class Square, .* pass Square\(\[input variables\]\)"),
        (len, "fn is a builtin_function_or_method, expected a udfkit.UserFunction"),
        (int, "fn is a type, expected"),
    ],
)
def test_what_is_no_function(fn, text):
    with pytest.raises(TypeError, match=text):
        check_function(fn)


def test_errors_in_extents_name_the_input():
    x = adapted.sequences(name="x")
    assert named(x, layout_of_offsets, np.array([0, 2, 2], np.uint8), 2).lengths.tolist() == [2, 0]
    for offsets, text in (
        ([0, 1], r"the last offset is 1, but there are 2 values: .* values\[:1\]"),
        ([0, 3], "offset 3 .* overruns the 2"),
        ([1, 2], "first offset must be 0"),
    ):
        with pytest.raises(ValueError, match=f"input 'x': .*{text}"):
            named(x, layout_of_offsets, np.array(offsets), 2)
