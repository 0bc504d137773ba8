"""Section 6 of the contract: empty is normal, in every function."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse

import reference
import strategies
import udfkit
from checks import batch_variable, no_warning, plain_variable, sequence_variable
from udfkit import Ragged, Value, sanitize_batch, variable_value_to_seq

F32 = np.float32
LENGTHS = [[], [0], [0, 0, 0], [0, 2], [2, 0], [2, 0, 1], [0, 1, 0, 1], [0, 3, 0, 2, 0]]
SHAPES = [(), (1,), (3,), (0,), (2, 0)]


def batch_of(lengths, shape, dtype=F32):
    rng = np.random.default_rng(len(lengths))
    return [strategies.bit_noise(rng, (length, *shape), dtype) for length in lengths]


def forms(batch, shape, dtype=F32):
    yield list(batch)
    yield tuple(batch)
    yield Ragged(
        reference.flat(batch, shape, dtype), reference.offsets(len(item) for item in batch)
    )
    yield Ragged.from_list(batch, dtype=dtype, sample_shape=shape)


@pytest.mark.parametrize("dtype", ["float32", "bool", "int64", "float16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_pack_unpack_and_everything_a_value_does(lengths, shape, dtype):
    batch = batch_of(lengths, shape, dtype)
    data, mask = reference.pad(batch, shape, dtype)
    variable = sequence_variable(shape, dtype)
    for form in forms(batch, shape, dtype):
        for copy in (True, False):
            with no_warning():
                value = sanitize_batch(variable, form, copy=copy)
            reference.assert_same(value.data, data)
            reference.assert_same(value.mask, mask)
            assert len(value) == value.rows == len(lengths)
            reference.assert_same_list(variable_value_to_seq(value, variable), batch)
            reference.assert_same_list(value.as_sequences(), batch)
            reference.assert_same(value.asarray(), data)
            reference.assert_same_list(list(value.ragged()), batch)
            assert value.equals(value.to(udfkit.cpu()))
            assert value.equals(pickle.loads(pickle.dumps(value, 5)))
            assert isinstance(repr(value), str)
            assert value.is_masked == bool((mask == 0).any())
            assert sanitize_batch(variable, value) is value


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_everything_a_ragged_does(lengths, shape):
    batch = batch_of(lengths, shape)
    ragged = Ragged.from_list(batch, dtype=F32, sample_shape=shape)
    assert ragged.lengths.tolist() == lengths
    assert ragged.equals(ragged[:])
    assert ragged.equals(pickle.loads(pickle.dumps(ragged, 5)))
    assert ragged.equals(ragged.take(range(len(lengths))))
    assert len(ragged.take([])) == len(ragged[:0]) == 0
    assert ragged.equals(Ragged.concat([ragged]))
    assert ragged.equals(Ragged.concat([ragged[:0], ragged, ragged[:0]]))
    assert ragged.with_values(ragged.values).equals(ragged)
    assert isinstance(repr(ragged), str)


@pytest.mark.parametrize(
    "starts", [[True, True, True], [False, False, False], [True, False, True]], ids=str
)
def test_starts_of_empty_sequences_are_kept(starts):
    variable = sequence_variable((2,))
    value = sanitize_batch(variable, batch_of([0, 2, 0], (2,)), seq_starts=starts)
    assert np.asarray(value.starts).tolist() == starts
    assert value.is_masked
    again = sanitize_batch(
        variable, variable_value_to_seq(value, variable), seq_starts=value.starts
    )
    assert again.equals(value)
    only_empty = sanitize_batch(variable, batch_of([0, 0, 0], (2,)), seq_starts=starts)
    assert np.asarray(only_empty.starts).tolist() == starts
    assert only_empty.shape == (3, 0, 2)
    assert only_empty.is_masked == (not all(starts))


@pytest.mark.parametrize("size", [(0, 0), (0, 4), (3, 0)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_rectangle_keeps_its_number_of_steps(size, shape):
    whole = np.zeros((*size, *shape), F32)
    variable = sequence_variable(shape)
    for copy in (True, False):
        value = sanitize_batch(variable, whole, copy=copy)
        assert value.shape == whole.shape
        assert value.mask.shape == size
        reference.assert_same_list(variable_value_to_seq(value, variable), list(whole))
        assert value.equals(Value(whole))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_empty_list_needs_only_the_variable(shape):
    variable = sequence_variable(shape)
    value = sanitize_batch(variable, [])
    assert value.shape == (0, 0, *shape)
    assert value.mask.shape == (0, 0)
    assert variable_value_to_seq(value, variable) == []
    variable = batch_variable(shape)
    value = sanitize_batch(variable, [])
    assert value.shape == (0, *shape)
    assert value.mask.shape == (0,)
    reference.assert_same(variable_value_to_seq(value, variable), np.zeros((0, *shape), F32))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_only_and_plain_variables_of_no_size(shape):
    for count in (0, 2):
        variable = batch_variable(shape)
        whole = np.zeros((count, *shape), F32)
        for form in (whole, list(whole)):
            value = sanitize_batch(variable, form)
            reference.assert_same(value.data, whole)
            reference.assert_same(variable_value_to_seq(value, variable), whole)
            assert value.equals(pickle.loads(pickle.dumps(value)))
    variable = plain_variable(shape)
    whole = np.zeros(shape, F32)
    value = sanitize_batch(variable, whole)
    reference.assert_same(variable_value_to_seq(value, variable), whole)
    assert value.equals(pickle.loads(pickle.dumps(value)))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("size", [(0, 0), (0, 3), (3, 0), (2, 3)], ids=str)
def test_an_all_invalid_mask(size, shape):
    # What stands in the padding must not leak out.
    data = np.full((*size, *shape), np.nan, F32)
    for value in (
        Value(data, np.zeros(size, np.int8)),
        Value(data, lengths=np.zeros(size[0], np.int64)),
    ):
        variable = sequence_variable(shape)
        expected = [np.zeros((0, *shape), F32)] * size[0]
        reference.assert_same_list(variable_value_to_seq(value, variable), expected)
        reference.assert_same(np.asarray(value.lengths), np.zeros(size[0], np.int64))
        assert np.asarray(value.starts).tolist() == [True] * size[0]
        assert value.ragged().values.shape == (0, *shape)
        assert value.equals(Value(np.ones_like(data), np.zeros(size, np.int8)))
        assert sanitize_batch(variable, value) is value


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("is_sparse", [True, False])
def test_csr_matrices_without_rows_or_without_entries(lengths, is_sparse):
    variable = sequence_variable((3,), is_sparse=is_sparse)
    dense = [np.zeros((length, 3), F32) for length in lengths]
    value = sanitize_batch(variable, [scipy.sparse.csr_matrix(rows) for rows in dense])
    data, mask = reference.pad(dense, (3,), F32)
    reference.assert_same(value.data, data)
    reference.assert_same(value.mask, mask)
    reference.assert_same_list(variable_value_to_seq(value, variable), dense)
    for matrix, rows in zip(value.as_sequences(), dense, strict=True):
        assert matrix.shape == rows.shape
    assert value.equals(pickle.loads(pickle.dumps(value, 5)))


def test_one_csr_matrix_without_rows():
    matrix = scipy.sparse.csr_matrix((0, 3), dtype=F32)
    assert sanitize_batch(sequence_variable((3,)), matrix).shape == (1, 0, 3)
    assert sanitize_batch(batch_variable((3,)), matrix).shape == (0, 3)


@pytest.mark.parametrize("lengths", LENGTHS[1:], ids=str)
def test_one_hot_of_empty_sequences(lengths):
    batch = [list(range(length)) for length in lengths]
    for given in (batch, [np.array(item, np.int64) for item in batch]):
        value = Value.one_hot(given, 4)
        data, mask = reference.pad(reference.one_hot(batch, (4,), F32, -1), (4,), F32)
        reference.assert_same(value.data, data)
        reference.assert_same(value.mask, mask)


def test_one_hot_of_an_empty_array_knows_its_kind():
    assert Value.one_hot(np.zeros((0, 0), np.int64), 4).shape == (0, 0, 4)
    assert Value.one_hot(np.zeros((0, 3), np.int64), 4).shape == (0, 3, 4)
    assert Value.one_hot(np.zeros((2, 0), np.int64), 4).shape == (2, 0, 4)
    assert Value.one_hot(np.zeros(0, np.int64), 4).shape == (0, 4)


def test_one_hot_of_no_classes():
    value = Value.one_hot([[], []], 0)
    assert value.shape == (2, 0, 0)


class Twice(udfkit.UserFunction):
    """Doubles every sample."""

    def forward(self, arg, device=None, outputs_to_retain=None):
        return None, [sequence * 2 for sequence in arg]

    def backward(self, state, grad):
        return [sequence * 2 for sequence in grad]

    def infer_outputs(self):
        x = self.inputs[0]
        return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]


class TwiceFlat(Twice):
    """The same over flat values."""

    layout = "ragged"

    def forward(self, arg, device=None, outputs_to_retain=None):
        return None, arg.with_values(arg.values * 2)

    def backward(self, state, grad):
        return grad.with_values(grad.values * 2)


@pytest.mark.parametrize("cls", [Twice, TwiceFlat])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_forward_and_backward(lengths, shape, cls):
    function = cls([sequence_variable(shape, needs_gradient=True)])
    batch = [np.ones((length, *shape), F32) for length in lengths]
    doubled = [item * 2 for item in batch]
    for form in forms(batch, shape):
        reference.assert_same_list(list(function.eval(form)), doubled)
        reference.assert_same_list(list(function.grad(form)), doubled)
        roots = [item * 3 for item in batch]
        reference.assert_same_list(
            list(function.grad(form, root_gradients=roots)), [item * 6 for item in batch]
        )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward_and_backward_of_an_all_invalid_mask(shape):
    x = sequence_variable(shape, needs_gradient=True)
    function = Twice([x])
    value = Value(np.full((2, 3, *shape), np.nan, F32), np.zeros((2, 3), np.int8))
    state, outputs = function._forward([value], {function.outputs[0]: None})
    result = outputs[function.outputs[0]]
    empty = [np.zeros((0, *shape), F32)] * 2
    reference.assert_same_list(result.as_sequences(), empty)
    gradients = {x: None}
    function._backward(state, {function.outputs[0]: result}, gradients)
    reference.assert_same_list(gradients[x].as_sequences(), empty)


class Flat(Twice):
    """Doubles a whole array: for variables without a sequence axis."""

    def forward(self, arg, device=None, outputs_to_retain=None):
        return None, arg * 2

    def backward(self, state, grad):
        return grad * 2


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward_and_backward_without_a_sequence_axis(shape):
    function = Flat([batch_variable(shape, needs_gradient=True)])
    for count in (0, 2):
        whole = np.ones((count, *shape), F32)
        reference.assert_same(function.eval(whole), whole * 2)
        reference.assert_same(function.grad(whole), whole * 2)
    function = Flat([plain_variable(shape, needs_gradient=True)])
    whole = np.ones(shape, F32)
    reference.assert_same(np.asarray(function.eval(whole)), np.asarray(whole * 2))
    reference.assert_same(np.asarray(function.grad(whole)), np.asarray(whole * 2))
