"""Section 5 of the contract, the rest: sparse, one-hot, memory, outputs, and no half-done work."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse

import udfkit
from checks import batch_variable, raises, sequence_variable
from udfkit import Ragged, Value, sanitize_batch

F32 = np.float32


def csr(rows, columns, fmt="csr"):
    return scipy.sparse.random(rows, columns, 0.5, fmt, F32, random_state=np.random.default_rng(1))


@pytest.mark.parametrize("sparse_first", [True, False])
@pytest.mark.parametrize("is_sparse", [True, False])
def test_dense_and_sparse_mixed(sparse_first, is_sparse):
    batch = [csr(2, 3), np.ones((2, 3), F32)]
    with raises(TypeError) as caught:
        sanitize_batch(
            sequence_variable((3,), is_sparse=is_sparse), batch if sparse_first else batch[::-1]
        )
    assert "CSR" in str(caught.value) or "sparse" in str(caught.value)


@pytest.mark.parametrize("fmt", ["csc", "coo", "lil", "dok", "bsr", "dia"])
@pytest.mark.parametrize("whole", [True, False])
def test_sparse_formats_other_than_csr(fmt, whole):
    matrix = csr(2, 3, fmt)
    for batch in [matrix] if whole else [[matrix], [csr(2, 3), matrix]]:
        with raises(TypeError) as caught:
            sanitize_batch(sequence_variable((3,)), batch)
        assert "tocsr" in str(caught.value)


def test_nested_csr():
    with raises(TypeError) as caught:
        sanitize_batch(sequence_variable((3,)), [[csr(1, 3), csr(1, 3)]])
    assert "vstack" in str(caught.value) or "one CSR matrix" in str(caught.value)


def test_csr_columns_that_do_not_fit():
    with raises(ValueError, 2) as caught:
        sanitize_batch(sequence_variable((3,)), [csr(5, 3), csr(1, 3), csr(6, 4)])
    assert "4" in str(caught.value)
    assert "3" in str(caught.value)
    with raises(ValueError):
        sanitize_batch(sequence_variable((3,)), csr(5, 4))
    with raises(ValueError):
        sanitize_batch(sequence_variable((2, 3)), [csr(4, 3)])
    with raises(ValueError):
        sanitize_batch(sequence_variable(()), [csr(4, 1)])


def test_csr_for_a_variable_without_axes():
    with raises((ValueError, TypeError)):
        sanitize_batch(udfkit.input_variable((3,), dynamic_axes=[]), [csr(1, 3)])


def test_seq_starts_with_one_whole_csr_matrix():
    for starts in ([True], [True, True]):
        with raises(ValueError, "seq_starts"):
            sanitize_batch(sequence_variable((3,)), csr(2, 3), seq_starts=starts)


def test_a_corrupt_csr_matrix_is_refused_before_it_is_read():
    # Nothing dense is made here: with a fault in the check that would overwrite foreign memory.
    for field, values in (
        ("indices", [7]),
        ("indices", [3]),
        ("indices", [-1]),
        ("indptr", [0, 5]),
        ("indptr", [1, 1]),
        ("indptr", [0, -1]),
        ("indptr", [0]),
        ("indptr", [0, 1, 1]),
    ):
        matrix = scipy.sparse.csr_matrix(np.array([[0, 0, 1]], F32))
        setattr(matrix, field, np.array(values, np.int32))
        for is_sparse in (True, False):
            variable = sequence_variable((3,), is_sparse=is_sparse)
            with raises(ValueError, 1):
                sanitize_batch(variable, [csr(2, 3), matrix])


@pytest.mark.parametrize(
    ("batch", "parts"),
    [
        ([[1, 2], [0, 3]], [3]),
        ([[1, 2], [0, -1]], [-1]),
        ([[1, 2], [0, 2**32]], [2**32]),
        ([np.array([1, 2]), np.array([0, 3])], [3]),
        ([0, 0, 0, 3, 1], [3]),
        ((1, -1), [-1]),
        (np.array([0, 1, 3], np.uint8), [2]),
    ],
    ids=str,
)
def test_one_hot_indices_out_of_range(batch, parts):
    # The index itself, its place, and the last class that there is.
    place = [3] if len(batch) == 5 else [1] if len(batch) == 2 else [2]
    with raises(ValueError, *parts, *place, 2):
        Value.one_hot(batch, 3)


def test_one_hot_names_sequence_and_position():
    # Sequence 4, position 5, index 9, classes 0 to 6.
    with raises(ValueError, 4, 5, 9, 6):
        Value.one_hot([[0]] * 4 + [[1, 2, 3, 0, 2, 9], [0]], 7)


@pytest.mark.parametrize(
    "batch", [[[1, 0.5]], [np.array([1.0, 2.0])], [["a"]], [[None]], [[1j]], [0.5, 1]], ids=str
)
def test_one_hot_indices_that_are_no_integers(batch):
    with raises((ValueError, TypeError), 0):
        Value.one_hot(batch, 3)


def test_one_hot_lengths_that_do_not_divide():
    with raises(ValueError, 1) as caught:
        Value.one_hot([[0, 1], [0, 1, 2]], (2, 4))
    assert "2" in str(caught.value)
    assert "3" in str(caught.value)


@pytest.mark.parametrize("classes", [0.5, "3", None, (), (2, -1), -3, (2.5,), 2.5])
def test_one_hot_classes_that_make_no_sense(classes):
    with pytest.raises((ValueError, TypeError)):
        Value.one_hot([[0, 1]], classes)


@pytest.mark.parametrize("batch", [None, 3, "abc", {0: 1}])
def test_one_hot_of_what_is_no_batch(batch):
    with raises(TypeError):
        Value.one_hot(batch, 3)


class Bare(udfkit.UserFunction):
    """A function whose outputs are what the test says."""

    declared = None

    def forward(self, arg, device=None, outputs_to_retain=None):
        return None, arg

    def backward(self, state, grad):
        return grad

    def infer_outputs(self):
        return type(self).declared


@pytest.mark.parametrize("declared", [None, [], (), "x", [None], [3], {}, [udfkit.Variable]])
def test_infer_outputs_that_gives_no_variables(declared):
    made = type("Bad", (Bare,), {"declared": declared})([sequence_variable((2,))], name="Named")
    with raises((TypeError, ValueError)) as caught:
        _ = made.outputs
    assert "infer_outputs" in str(caught.value)
    assert "Named" in str(caught.value)


def test_a_padded_size_over_the_limit(tmp_path):
    code = """
import numpy as np, udfkit
variable = udfkit.sequence.input_variable((100,))
batch = [np.zeros((50, 100), np.float32)] + [np.zeros((1, 100), np.float32)] * 199
ragged = udfkit.Ragged.from_list(batch)
for source in (batch, ragged):
    try:
        udfkit.sanitize_batch(variable, source).data
    except MemoryError as error:
        print(error)
small = udfkit.sanitize_batch(variable, batch[1:3])
print(small.shape)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "UDFKIT_MAX_BYTES": "1000000"},
    )
    assert done.returncode == 0, done.stderr
    first, second, shape = done.stdout.strip().splitlines()
    for text in (first, second):
        plain = text.replace(",", "")
        for part in ("200", "50", "4000000", "1000000", "UDFKIT_MAX_BYTES", "agged", "%"):
            assert part in plain, text
    assert shape == "(2, 1, 100)"


@pytest.mark.parametrize("classes", [2**61, 2**62])
def test_a_padded_size_that_overflows(classes):
    value = Value.one_hot([[0, 5, 7], [classes - 1]], classes)
    with raises(MemoryError, 2, 3) as caught:
        _ = value.data
    assert "agged" in str(caught.value)


def test_a_size_that_wraps_to_a_small_number():
    # 2**62 rows of 4 samples wrap to 0 in 64 bits.
    value = Value.one_hot([[0, 1, 2, 3]] * 2, 2**60, dtype=np.float64)
    with raises(MemoryError):
        _ = value.data


@pytest.mark.filterwarnings("ignore::udfkit.CastWarning")
@pytest.mark.parametrize("form", ["list", "one_hot", "starts", "batch"])
def test_a_failed_check_leaves_every_argument_as_it_was(form):
    good = [np.arange(6, dtype=np.float64).reshape(2, 3), np.ones((1, 3), F32)]
    copies = [item.copy() for item in good]
    starts = [True, False, True]
    if form == "list":
        batch = [*good, np.full((2, 3), 1e300)]
        with pytest.raises(ValueError):
            sanitize_batch(sequence_variable((3,)), batch, seq_starts=starts)
        assert len(batch) == 3
    elif form == "one_hot":
        indices = np.array([0, 1, 9])
        with pytest.raises(ValueError):
            Value.one_hot([indices], 3)
        assert indices.tolist() == [0, 1, 9]
    elif form == "starts":
        ragged = Ragged(np.ones((3, 3), F32), [0, 1, 3])
        with pytest.raises(ValueError):
            sanitize_batch(sequence_variable((3,)), ragged, seq_starts=starts)
        assert ragged.starts.tolist() == [True, True]
    else:
        with pytest.raises(ValueError):
            sanitize_batch(batch_variable((3,)), [*good, np.ones((2, 3), F32)])
    assert starts == [True, False, True]
    for item, copy in zip(good, copies, strict=True):
        assert item.tobytes() == copy.tobytes()
        assert item.flags.writeable


class Two(udfkit.UserFunction):
    """Two inputs, whose second gradient has the wrong length."""

    def forward(self, arguments, device=None, outputs_to_retain=None):
        return None, arguments[0]

    def backward(self, state, grad, variables):
        for k, variable in enumerate(self.inputs):
            if variable in variables:
                variables[variable] = grad if k == 0 else [item[:-1] for item in grad]

    def infer_outputs(self):
        x = self.inputs[0]
        return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]


def test_a_failed_check_of_a_gradient_fills_no_gradient():
    x, y = (sequence_variable((2,), needs_gradient=True, name=name) for name in "xy")
    function = Two([x, y])
    batch = [np.ones((3, 2), F32), np.ones((1, 2), F32)]
    values = [sanitize_batch(variable, batch) for variable in (x, y)]
    state, outputs = function._forward(values, {function.outputs[0]: None})
    gradients = {function.outputs[0]: outputs[function.outputs[0]]}
    variables = {x: None, y: None}
    with raises(ValueError, "y", 0, fix=False):
        function._backward(state, gradients, variables)
    assert variables == {x: None, y: None}
    assert list(gradients) == [function.outputs[0]]


class OnGpu:
    """Says that it lives on a GPU."""

    __cuda_array_interface__ = {  # noqa: RUF012
        "shape": (2,),
        "typestr": "<f4",
        "data": (0, False),
        "version": 3,
    }


class Broken:
    """Says that it speaks DLPack, and fails."""

    def __dlpack__(self, **kwargs):
        raise BufferError("not today")

    def __dlpack_device__(self):
        return (1, 0)


@pytest.mark.parametrize("whole", [True, False])
def test_arrays_that_cannot_be_read_here(whole):
    masked = np.ma.masked_array(np.ones((2, 2), F32), [[0, 1], [0, 0]])
    for thing, part in ((masked, "mask"), (OnGpu(), "GPU"), (Broken(), "not today")):
        batch = thing if whole else [np.ones(1, F32), thing]
        with pytest.raises(Exception) as caught:
            sanitize_batch(sequence_variable(()), batch)
        assert not isinstance(caught.value, (AttributeError, BufferError, ImportError))
        assert part in str(caught.value)
        assert whole or "1" in str(caught.value)


def test_csr_matrices_of_several_rows_for_a_batch_only_variable():
    with raises(ValueError, 2, 5):
        sanitize_batch(batch_variable((3,)), [csr(1, 3), csr(1, 3), csr(5, 3)])


def test_a_ragged_from_what_is_no_batch():
    for thing in (None, 3, "abc", {1.0}, (x for x in [1.0])):
        with raises(TypeError, fix=False) as caught:
            Ragged.from_list(thing)
        assert "list" in str(caught.value)
    with raises(ValueError):
        Ragged.concat([])
