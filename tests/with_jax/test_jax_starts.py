"""Starts of sequences, and masks with gaps, through `udfkit.jax.apply`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import adapted_functions as adapted
import udfkit
import udfkit.jax

PADDED = np.arange(1.0, 17, dtype=np.float32).reshape(2, 4, 2)
CONTINUED = np.array([[1, 1, 1, 0], [2, 1, 0, 0]], np.int8)
LEFT = np.array([[0, 2, 1, 1], [0, 0, 2, 1]], np.int8)
SEVERAL = np.array([[2, 2, 1, 0], [2, 1, 0, 0]], np.int8)
BATCH = udfkit.Axis.default_batch_axis()


class Seen(adapted.SquareRagged):
    """Notes the starts that it gets."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.seen = []

    def forward(self, x, device, outputs_to_retain):
        self.seen.append(x.starts.tolist())
        return super().forward(x, device, outputs_to_retain)

    def backward(self, x, grad):
        self.seen.append(grad.starts.tolist())
        return super().backward(x, grad)


class OfSecond(udfkit.UserFunction):
    """The square of the second input."""

    def infer_outputs(self):
        x = self.inputs[1]
        return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]

    def forward(self, args, device, outputs_to_retain):
        return args[1], [s * s for s in args[1]]

    def backward(self, x, grad, variables):
        for variable in variables:
            found = [2 * s * g for s, g in zip(x, grad, strict=True)]
            variables[variable] = found if variable is self.inputs[1] else [0 * g for g in grad]


class OfSecondValue(OfSecond):
    """The same over Values, whose cells are those of the second input."""

    def __init__(self, inputs):
        super().__init__(inputs, as_numpy=False)

    def forward(self, args, device, outputs_to_retain):
        x = args[1]
        return x, udfkit.Value(x.data * x.data, x.mask)

    def backward(self, x, grad, variables):
        for variable in variables:
            factor = 2 if variable is self.inputs[1] else 0
            variables[variable] = udfkit.Value(factor * x.data * grad.data, grad.mask)


class Longer(udfkit.UserFunction):
    """One more step a sequence, with starts of their own."""

    def infer_outputs(self):
        axis = udfkit.Axis.new_unique_dynamic_axis("longer")
        return [udfkit.output_variable((), np.float32, [BATCH, axis])]

    def forward(self, x, device, outputs_to_retain):
        lengths = [len(s) + 1 for s in x]
        starts = [False] + [True] * (len(x) - 1)
        return None, udfkit.Ragged(
            np.ones(sum(lengths), np.float32), np.cumsum([0, *lengths]), starts
        )


def sequences(**options):
    return adapted.sequences(2, np.float32, **options)


@pytest.mark.parametrize("jit", [True, False])
def test_user_code_sees_the_starts_of_a_mask_and_they_come_out(jit):
    function = Seen([sequences()])

    def run(x, mask):
        made, found = udfkit.jax.apply(function, (x, mask))
        return made.sum(), found

    grad = jax.grad(run, has_aux=True)
    gradient, found = (jax.jit(grad) if jit else grad)(PADDED, CONTINUED)
    assert np.array_equal(found, CONTINUED)
    assert np.array_equal(gradient, np.where(CONTINUED[..., None], 2 * PADDED, 0))
    assert all(starts == [False, True] for starts in function.seen)
    assert len(function.seen) >= 2


def two_inputs(kind):
    axis = udfkit.Axis.new_unique_dynamic_axis("other")
    return kind([sequences(), sequences(sequence_axis=axis)])


@pytest.mark.parametrize("kind", [OfSecond, OfSecondValue])
def test_left_padding_goes_out_as_lengths_from_the_first_cell_on(kind):
    function = two_inputs(kind)

    def run(x):
        return udfkit.jax.apply(function, (PADDED[:, :3], jnp.array([1, 2])), (x, LEFT))

    made, lengths = run(PADDED)
    assert lengths.tolist() == [3, 2]
    expected = np.zeros_like(PADDED)
    expected[0, :3], expected[1, :2] = PADDED[0, 1:] ** 2, PADDED[1, 2:] ** 2
    assert np.array_equal(made, expected)
    weights = np.arange(1.0, 17, dtype=np.float32).reshape(2, 4, 2)[::-1]
    gradient = jax.grad(lambda x: (run(x)[0] * weights).sum())(PADDED)
    expected[:] = 0
    expected[0, 1:], expected[1, 2:] = weights[0, :3], weights[1, :2]
    assert np.array_equal(gradient, 2 * PADDED * expected)


def test_starts_that_lengths_cannot_say_are_refused():
    function = two_inputs(OfSecond)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"sequence 0 continues .* first sequence input with a m"
    ):
        udfkit.jax.apply(function, (PADDED, jnp.array([1, 2])), (PADDED, CONTINUED))


@pytest.mark.parametrize(
    "extents", [np.array([1, 2]), np.array([[1, 0, 0, 0], [1, 1, 0, 0]], bool)]
)
def test_starts_of_new_lengths_are_refused(extents):
    function = Longer([sequences()])
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"sequence 0 continues .* cannot say"):
        udfkit.jax.apply(function, (PADDED, extents))


def test_several_sequences_in_a_row_go_in_and_out_as_a_mask_only():
    made, mask = udfkit.jax.apply(adapted.Square([sequences()]), (PADDED, SEVERAL))
    assert np.array_equal(mask, SEVERAL)
    assert np.array_equal(made, np.where(SEVERAL[..., None], PADDED**2, 0))
    text = "has 3 sequences, but JAX expects one for each of the 2 rows"
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        udfkit.jax.apply(adapted.Mean([sequences()]), (PADDED, SEVERAL))
    rows_of_three = (np.ones((3, 2, 2), np.float32), jnp.array([1, 1, 1]))
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        udfkit.jax.apply(two_inputs(OfSecond), rows_of_three, (PADDED, SEVERAL))
