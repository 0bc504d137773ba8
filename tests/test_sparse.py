"""Sparse batches: CSR matrices and one-hot indices."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import reference
import strategies
from checks import batch_variable, no_warning, sequence_variable
from udfkit import Ragged, Value, sanitize_batch, variable_value_to_seq

F32 = np.float32
SKIP = Value.ONE_HOT_SKIP
FLOATING = ["float16", "float32", "float64"]


@st.composite
def csr_batches(draw, dtypes=("float32", "float64")):
    """(matrices, their dense rows, columns, dtype); all-zero and 0-row matrices are common."""
    rng, columns = draw(strategies.seeds()), draw(st.sampled_from([1, 3, 7]))
    dtype = draw(st.sampled_from(dtypes))
    sizes = draw(strategies.lengths())
    dense = []
    for size in sizes:
        rows = (rng.random((size, columns)) + 1).astype(dtype)
        rows[rng.random((size, columns)) < draw(st.sampled_from([0.0, 0.6, 1.1]))] = 0
        dense.append(rows)
    kind = draw(st.sampled_from([scipy.sparse.csr_matrix, scipy.sparse.csr_array]))
    return [kind(rows) for rows in dense], dense, columns, np.dtype(dtype)


@pytest.mark.parametrize("is_sparse", [True, False])
@strategies.SETTINGS
@given(case=csr_batches(), data=st.data())
def test_a_list_of_csr_matrices_is_one_sequence_each(is_sparse, case, data):
    matrices, dense, columns, dtype = case
    starts = data.draw(st.lists(st.booleans(), min_size=len(dense), max_size=len(dense)))
    variable = sequence_variable((columns,), dtype, is_sparse=is_sparse)
    with no_warning():
        value = sanitize_batch(variable, matrices, seq_starts=starts)
    padded, mask = reference.pad(dense, (columns,), dtype, starts)
    reference.assert_same(value.data, padded)
    reference.assert_same(value.mask, mask)
    assert value.shape == padded.shape
    assert value.dtype == dtype
    reference.assert_same_list(variable_value_to_seq(value, variable), dense)
    ragged = value.ragged()
    reference.assert_same(ragged.values, reference.flat(dense, (columns,), dtype))
    assert ragged.starts.tolist() == starts


@strategies.SETTINGS
@given(case=csr_batches())
def test_a_sparse_value_gives_csr_matrices_back(case):
    matrices, dense, columns, dtype = case
    variable = sequence_variable((columns,), dtype, is_sparse=True)
    got = sanitize_batch(variable, matrices).as_sequences(variable)
    assert type(got) is list
    assert len(got) == len(dense)
    for matrix, rows in zip(got, dense, strict=True):
        assert matrix.format == "csr"
        assert matrix.dtype == dtype
        assert matrix.shape == rows.shape
        reference.assert_same(
            reference.csr_to_dense(matrix.data, matrix.indices, matrix.indptr, matrix.shape, dtype),
            rows,
        )


@strategies.FEW
@given(case=csr_batches())
def test_sparse_and_dense_values_of_the_same_numbers_are_equal(case):
    matrices, dense, columns, dtype = case
    variable = sequence_variable((columns,), dtype)
    sparse, plain = sanitize_batch(variable, matrices), sanitize_batch(variable, dense)
    assert sparse.equals(plain)
    assert plain.equals(sparse)
    again = pickle.loads(pickle.dumps(sparse, 5))
    assert again.equals(sparse)
    reference.assert_same(again.data, plain.data)


def test_sparse_values_compare_by_the_bits_of_their_samples():
    def value(stored, columns):
        matrix = scipy.sparse.csr_matrix(
            (np.asarray(stored, F32), np.asarray(columns), np.array([0, len(columns)])),
            shape=(1, 3),
        )
        return sanitize_batch(sequence_variable((3,)), [matrix])

    special = strategies.special_floats("float32")
    for i in range(len(special)):
        for j in range(len(special)):
            left, right = value(special[i : i + 1], [1]), value(special[j : j + 1], [1])
            assert left.equals(right) == (i == j)
    # What counts is the sample, not how it is stored.
    assert value([0.0, 5.0], [0, 2]).equals(value([5.0], [2]))
    assert not value([-0.0, 5.0], [0, 2]).equals(value([5.0], [2]))
    assert value([1.0], [2]).equals(Value.one_hot([[2]], 3))
    assert not value([1.0], [2]).equals(Value.one_hot([[1]], 3))


@pytest.mark.parametrize("is_sparse", [True, False])
def test_one_csr_matrix_alone(is_sparse):
    dense = np.array([[0, 1, 2], [0, 0, 0], [3, 0, 0]], F32)
    matrix = scipy.sparse.csr_matrix(dense)
    variable = sequence_variable((3,), is_sparse=is_sparse)
    value = sanitize_batch(variable, matrix)
    assert value.shape == (1, 3, 3)
    reference.assert_same_list(variable_value_to_seq(value, variable), [dense])
    variable = batch_variable((3,), is_sparse=is_sparse)
    value = sanitize_batch(variable, matrix)
    assert value.shape == (3, 3)
    assert len(value) == 3
    reference.assert_same(value.data, dense)
    reference.assert_same(variable_value_to_seq(value, variable), dense)


def test_a_list_of_one_row_matrices_for_a_batch_only_variable():
    dense = np.array([[0, 1, 2], [0, 0, 0]], F32)
    variable = batch_variable((3,))
    value = sanitize_batch(variable, [scipy.sparse.csr_matrix(row[None]) for row in dense])
    reference.assert_same(value.data, dense)


def test_a_csr_matrix_with_unsorted_and_repeated_columns():
    # SciPy adds up repeated entries.
    matrix = scipy.sparse.csr_matrix(
        (np.array([1, 2, 4, 8], F32), np.array([2, 0, 2, 1]), np.array([0, 3, 4])), shape=(2, 3)
    )
    variable = sequence_variable((3,))
    got = variable_value_to_seq(sanitize_batch(variable, [matrix]), variable)
    np.testing.assert_array_equal(got[0], matrix.toarray())


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_csr_index_dtypes(index_dtype):
    dense = np.array([[0, 1, 2], [3, 0, 0]], F32)
    matrix = scipy.sparse.csr_matrix(dense)
    matrix.indices = matrix.indices.astype(index_dtype)
    matrix.indptr = matrix.indptr.astype(index_dtype)
    variable = sequence_variable((3,))
    got = variable_value_to_seq(sanitize_batch(variable, [matrix, matrix]), variable)
    reference.assert_same_list(got, [dense, dense])


@pytest.mark.parametrize("copy", [True, False])
def test_csr_inputs_are_not_changed_and_not_aliased(copy):
    dense = np.array([[0, 1, 2], [3, 0, 0]], F32)
    matrix = scipy.sparse.csr_matrix(dense)
    before = [getattr(matrix, name).tobytes() for name in ("data", "indices", "indptr")]
    variable = sequence_variable((3,), is_sparse=True)
    value = sanitize_batch(variable, [matrix], copy=copy)
    for got in value.as_sequences(variable):
        got.data[:] = 9
    assert before == [getattr(matrix, name).tobytes() for name in ("data", "indices", "indptr")]
    if copy:
        matrix.data[:] = 7
        reference.assert_same(value.data, dense[None])


@pytest.mark.parametrize("dtype", [*FLOATING, "int32", "bool"])
@strategies.FEW
@given(
    batch=strategies.lengths().flatmap(
        lambda sizes: st.tuples(
            *[
                st.lists(st.integers(0, 4) | st.just(SKIP), min_size=size, max_size=size)
                for size in sizes
            ]
        )
    ),
    form=st.sampled_from(["lists", "int64", "uint32", "tuples"]),
)
def test_one_hot_of_ragged_indices(dtype, batch, form):
    given_batch = {
        "lists": [list(items) for items in batch],
        "int64": [np.array(items, np.int64) for items in batch],
        "uint32": [np.array(items, np.uint32) for items in batch],
        "tuples": [tuple(items) for items in batch],
    }[form]
    if not given_batch:
        return  # the kind of an empty batch is tested by name in test_empty.py
    value = Value.one_hot(given_batch, 5, dtype=dtype)
    expected = reference.one_hot(batch, (5,), dtype, SKIP)
    padded, mask = reference.pad(expected, (5,), dtype)
    assert value.dtype == np.dtype(dtype)
    assert value.shape == padded.shape
    reference.assert_same(value.data, padded)
    reference.assert_same(value.mask, mask)
    variable = sequence_variable((5,), dtype)
    assert sanitize_batch(variable, value) is value
    reference.assert_same_list(variable_value_to_seq(value, variable), expected)


def test_one_hot_defaults_to_float32():
    assert Value.one_hot([[0]], 3).dtype == F32


@pytest.mark.parametrize("batch", [[1, 0, SKIP], np.array([1, 0, SKIP]), (1, 0, SKIP)], ids=repr)
def test_one_hot_of_flat_indices_is_for_a_batch_only_variable(batch):
    variable = batch_variable((4,))
    value = Value.one_hot(batch, 4)
    expected = np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], F32)
    assert value.shape == (3, 4)
    assert value.mask.shape == (3,)
    reference.assert_same(value.data, expected)
    assert sanitize_batch(variable, value) is value
    reference.assert_same(variable_value_to_seq(value, variable), expected)


def test_one_hot_of_a_rectangle_of_indices():
    value = Value.one_hot(np.array([[1, 0], [2, SKIP]]), 3)
    expected = reference.one_hot([[1, 0], [2, SKIP]], (3,), F32, SKIP)
    reference.assert_same(value.data, np.stack(expected))


@pytest.mark.parametrize("dtype", FLOATING)
def test_one_hot_of_a_sample_shape_with_more_axes(dtype):
    batch = [[0, 1, 2, 3], [SKIP, 2], []]
    value = Value.one_hot(batch, (2, 4), dtype=dtype)
    expected = reference.one_hot(batch, (2, 4), dtype, SKIP)
    padded, mask = reference.pad(expected, (2, 4), dtype)
    reference.assert_same(value.data, padded)
    reference.assert_same(value.mask, mask)
    variable = sequence_variable((2, 4), dtype)
    reference.assert_same_list(variable_value_to_seq(value, variable), expected)


def test_one_hot_as_csr():
    variable = sequence_variable((6,), is_sparse=True)
    got = Value.one_hot([[1, 5], [4, SKIP], []], 6).as_sequences(variable)
    dense = reference.one_hot([[1, 5], [4, SKIP], []], (6,), F32, SKIP)
    for matrix, rows in zip(got, dense, strict=True):
        assert matrix.format == "csr"
        assert matrix.shape == rows.shape
        np.testing.assert_array_equal(matrix.toarray(), rows)


def test_one_hot_of_a_million_classes_is_not_made_dense():
    value = Value.one_hot([[1, 5], [999_999]], 10**6)
    assert value.shape == (2, 2, 10**6)
    assert np.asarray(value.lengths).tolist() == [2, 1]
    got = value.as_sequences(sequence_variable((10**6,), is_sparse=True))
    assert [matrix.indices.tolist() for matrix in got] == [[1, 5], [999_999]]
    again = pickle.dumps(value, 5)
    assert len(again) < 10_000
    assert pickle.loads(again).shape == value.shape


def test_one_hot_values_of_many_classes_compare_without_dense_rows():
    left, right = (Value.one_hot([[1, 5], [9]], 10**12) for _ in range(2))
    assert left.equals(right)
    assert not left.equals(Value.one_hot([[1, 5], [8]], 10**12))
    assert not left.equals(Value.one_hot([[1, 5], [SKIP]], 10**12))


@pytest.mark.parametrize("dtype", FLOATING)
def test_one_hot_of_every_floating_dtype_reads_back_sparse(dtype):
    variable = sequence_variable((3,), dtype, is_sparse=True)
    got = Value.one_hot([[1, 0]], 3, dtype=dtype).as_sequences(variable)[0]
    # SciPy itself makes no dense array of float16.
    dense = reference.csr_to_dense(got.data, got.indices, got.indptr, got.shape, got.dtype)
    reference.assert_same(dense, np.array([[0, 1, 0], [1, 0, 0]], dtype))


def test_one_hot_of_a_ragged_keeps_its_starts():
    ragged = Ragged(np.array([1, 0, 2]), [0, 2, 3], starts=[True, False])
    value = Value.one_hot(ragged, 3)
    assert np.asarray(value.lengths).tolist() == [2, 1]
    assert np.asarray(value.starts).tolist() == [True, False]


def test_the_skip_index_is_the_number_of_cntk():
    assert SKIP == 4294967295


def test_dense_and_one_hot_paths_work_without_scipy():
    code = """
import sys
sys.modules["scipy"] = None
sys.modules["scipy.sparse"] = None
import numpy as np, udfkit
x = udfkit.sequence.input_variable((3,))
value = udfkit.sanitize_batch(x, [np.ones((2, 3), np.float32)])
assert udfkit.variable_value_to_seq(value, x)[0].shape == (2, 3)
hot = udfkit.Value.one_hot([[0, 2], [1]], 3)
assert hot.data.sum() == 3
assert udfkit.variable_value_to_seq(hot, x)[1].tolist() == [[0, 1, 0]]
try:
    hot.as_sequences()
except ImportError as error:
    assert "scipy" in str(error).lower()
else:
    raise AssertionError("CSR without SciPy")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
