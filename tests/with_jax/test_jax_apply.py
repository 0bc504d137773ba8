"""`udfkit.jax.apply` computes what the same formula computes in JAX: eager, jit, grad and vmap."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.test_util import check_grads

import adapted_functions as adapted
import udfkit
import udfkit.jax

LENGTHS = np.array([3, 0, 2])
MASK = np.array([[0, 1, 1, 1], [0, 0, 0, 0], [1, 0, 1, 0]], bool)
CLASSES = [adapted.Square, adapted.SquareRagged, adapted.SquareValue, adapted.SquareBroken]
FORMS = {
    "lengths": ((3, 4, 2), LENGTHS, np.arange(4) < LENGTHS[:, None]),
    "mask": ((3, 4, 2), MASK, MASK),
    "offsets": ((5, 2), np.array([0, 3, 3, 5]), np.ones(5, bool)),
}


def sequences(shape=(), dtype=np.float32, **options):
    return adapted.sequences(shape, dtype, **options)


def random(*shape):
    return jnp.asarray(np.random.default_rng(3).standard_normal(shape), jnp.float32)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("jit", [True, False])
def test_forward_and_gradient(kind, form, copy, jit):
    function = kind([sequences(2)])
    shape, extents, cells = FORMS[form]
    x, weights = random(*shape), random(*shape)[::-1]

    def run(x, extents):
        result, found = udfkit.jax.apply(function, (x, extents), copy=copy)
        return (result * weights).sum(), (result, found)

    grad = jax.value_and_grad(run, has_aux=True)
    (_, (result, found)), gradient = (jax.jit(grad) if jit else grad)(x, extents)
    valid = cells[..., None]
    assert np.array_equal(found, extents)
    np.testing.assert_array_equal(result, np.where(valid, x * x, 0))
    np.testing.assert_allclose(gradient, np.where(valid, 2 * x * weights, 0), rtol=1e-6)


def test_gradients_against_differences():
    function = adapted.scale(np.float32)
    x, extents = random(3, 4, 2), LENGTHS

    def run(x, weight, bias):
        result, _ = udfkit.jax.apply(function, (x, extents), weight, bias)
        return (result**2).sum()

    arguments = x, jnp.array([1.0, -2.0]), jnp.array([0.5, 0.25])
    check_grads(run, arguments, order=1, modes=["rev"], atol=1e-2, rtol=1e-2)


def test_only_the_gradients_that_are_needed_are_asked_for():
    function = adapted.scale(np.float32)
    x, weight = random(5, 2), jnp.ones(2)
    extents = np.array([0, 3, 3, 5])

    def run(x, weight, bias):
        return udfkit.jax.apply(function, (x, extents), weight, bias)[0].sum()

    for argnums in (0, 1, (0, 2), (0, 1, 2)):
        jax.block_until_ready(jax.grad(run, argnums)(x, weight, weight))
        asked = (argnums,) if isinstance(argnums, int) else argnums
        assert function.asked == [function.inputs[k] for k in asked]


def test_several_inputs_and_outputs():
    function = adapted.Several([sequences(name="a"), sequences(name="b")])
    function.outputs[2].dtype = np.dtype(np.int32)
    a, b = random(3, 4), random(5)

    def run(a, b):
        (product, _), total, count = udfkit.jax.apply(
            function, (a, LENGTHS), (b, np.array([0, 3, 3, 5]))
        )
        assert count.dtype == jnp.int32
        return product.sum() + (total * jnp.array([1.0, 2.0, 3.0])).sum(), (product, total, count)

    (_, (product, total, count)), (ga, gb) = jax.jit(jax.value_and_grad(run, (0, 1), has_aux=True))(
        a, b
    )
    cells = np.arange(4) < LENGTHS[:, None]
    wide = np.zeros((3, 4), np.float32)
    wide[cells] = b
    np.testing.assert_array_equal(product, np.where(cells, a * wide, 0))
    np.testing.assert_allclose(total, np.where(cells, a, 0).sum(axis=1), rtol=1e-6)
    assert count.tolist() == LENGTHS.tolist()
    np.testing.assert_allclose(ga, np.where(cells, wide + np.array([[1], [2], [3]]), 0), rtol=1e-6)
    np.testing.assert_array_equal(gb, np.asarray(a)[cells])
    gradient = jax.grad(lambda a: udfkit.jax.apply(function, (a, LENGTHS), (a, LENGTHS))[1].sum())
    np.testing.assert_array_equal(gradient(a), cells)


def test_sequence_to_batch_and_plain_arrays():
    mean = adapted.Mean([sequences(2)])
    affine = adapted.Affine([udfkit.input_variable(2, needs_gradient=True)])
    x = random(3, 4, 2)

    def run(x, lengths):
        return udfkit.jax.apply(affine, udfkit.jax.apply(mean, (x, lengths)))

    cells = (np.arange(4) < LENGTHS[:, None])[..., None]
    count = np.maximum(LENGTHS, 1)[:, None]
    result = jax.jit(run)(x, LENGTHS)
    np.testing.assert_allclose(result, 2 * (x * cells).sum(axis=1) / count + 1, rtol=1e-5)
    gradient = jax.jit(jax.grad(lambda x: run(x, LENGTHS).sum()))(x)
    np.testing.assert_allclose(gradient, 2 * cells / count[:, None] * np.ones(2), rtol=1e-6)


@pytest.mark.parametrize("form", ["lengths", "mask"])
def test_an_output_with_lengths_of_its_own_fits_the_padded_shape(form):
    function = adapted.DropFirst([sequences(2)])
    shape, extents, cells = FORMS[form]
    x = random(*shape)
    run = jax.jit(lambda x, n: udfkit.jax.apply(function, (x, n)))
    result, found = run(x, extents)
    shorter = [2, 0, 1]
    assert result.shape == x.shape
    lengths = found if form == "lengths" else found.sum(axis=1)
    assert lengths.tolist() == shorter
    for row, valid, got, n in zip(x, cells, result, shorter, strict=True):
        np.testing.assert_array_equal(got[:n], row[valid][1:])
        assert not got[n:].any()
    gradient = jax.grad(lambda x: run(x, extents)[0].sum())(x)
    expected = cells.copy()
    expected[np.arange(3), cells.argmax(axis=1)] = False
    np.testing.assert_array_equal(gradient, np.where(expected[..., None], 1, 0) * np.ones(2))


def test_an_output_that_does_not_fit_the_padded_shape():
    class Longer(adapted.DropFirst):
        def forward(self, x, device, outputs_to_retain):
            return None, [np.concatenate([s, s]) for s in x]

    function = Longer([sequences(2)])
    with pytest.raises(Exception, match=r"sequence 0 has length 6, but .* has T=4"):
        jax.block_until_ready(udfkit.jax.apply(function, (random(3, 4, 2), LENGTHS)))


def test_new_lengths_within_a_shape_compile_nothing():
    function = adapted.Square([sequences()])
    traces = 0

    @jax.jit
    def run(x, lengths):
        nonlocal traces
        traces += 1
        return jax.grad(lambda x: udfkit.jax.apply(function, (x, lengths))[0].sum())(x)

    rng = np.random.default_rng(0)
    x = random(4, 6)
    for _ in range(100):
        lengths = rng.integers(0, 7, 4)
        np.testing.assert_array_equal(run(x, lengths), 2 * x * (np.arange(6) < lengths[:, None]))
    assert traces == 1
    assert run._cache_size() == 1


def test_vmap_calls_once_for_each_index():
    calls = []

    class Counting(adapted.Square):
        def forward(self, x, device, outputs_to_retain):
            calls.append([len(s) for s in x])
            return super().forward(x, device, outputs_to_retain)

    function = Counting([sequences(2)])
    x, lengths = random(5, 3, 4, 2), np.array([[k % 5, 0, 2] for k in range(5)])

    def run(x, n):
        return udfkit.jax.apply(function, (x, n))[0]

    result = jax.vmap(run)(x, lengths)
    cells = np.arange(4) < lengths[..., None]
    np.testing.assert_array_equal(result, np.where(cells[..., None], x * x, 0))
    assert sorted(calls) == sorted(lengths.tolist())
    shared = jax.vmap(run, in_axes=(0, None))(x, LENGTHS)
    cells = (np.arange(4) < LENGTHS[:, None])[..., None]
    np.testing.assert_array_equal(shared, np.where(cells, x * x, 0))
    gradient = jax.jit(jax.vmap(jax.grad(lambda x, n: run(x, n).sum())))(x, lengths)
    cells = np.arange(4) < lengths[..., None]
    np.testing.assert_array_equal(gradient, np.where(cells[..., None], 2 * x, 0))


@pytest.mark.parametrize("lengths", [[], [0, 0]])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_empty_batches(lengths, shape):
    function = adapted.Square([sequences(shape)])
    x = jnp.ones((len(lengths), 3, *shape))
    gradient = jax.jit(jax.grad(lambda x, n: udfkit.jax.apply(function, (x, n))[0].sum()))(
        x, np.array(lengths, np.int32)
    )
    assert gradient.shape == x.shape
    assert not gradient.any()


def test_large_batches():
    function = adapted.Square([sequences(16)])
    lengths = np.array([20_000, 0, 30_000])
    x = random(3, 30_000, 16)
    gradient = jax.jit(jax.grad(lambda x, n: udfkit.jax.apply(function, (x, n))[0].sum()))
    cells = (np.arange(30_000) < lengths[:, None])[..., None]
    np.testing.assert_array_equal(gradient(x, lengths), np.where(cells, 2 * x, 0))


def test_padding_is_never_seen():
    function = adapted.Square([sequences()])
    x = jnp.where(jnp.arange(4) < LENGTHS[:, None], 2.0, jnp.nan)
    result, gradient = jax.value_and_grad(
        lambda x: udfkit.jax.apply(function, (x, LENGTHS))[0].sum()
    )(x)
    assert float(result) == 20.0
    np.testing.assert_array_equal(gradient, 4.0 * (np.arange(4) < LENGTHS[:, None]))


def test_bfloat16():
    function = adapted.Square([sequences((), ml_dtypes.bfloat16)])
    x = random(3, 4).astype(jnp.bfloat16)
    result, _ = udfkit.jax.apply(function, (x, np.array([4, 4, 4])))
    assert result.dtype == jnp.bfloat16
    np.testing.assert_array_equal(result, x * x)


def test_float64_needs_x64():
    function = adapted.Square([sequences((), np.float64, name="x")])
    with pytest.raises(TypeError, match="'x' has dtype float64, which JAX does not have now"):
        udfkit.jax.apply(function, (random(3, 4), LENGTHS))
    with jax.enable_x64(True):
        x = jnp.asarray(random(3, 4), jnp.float64)
        check_grads(
            lambda x: udfkit.jax.apply(function, (x, LENGTHS))[0], (x,), order=1, modes=["rev"]
        )


def test_the_function_is_not_kept_alive():
    function = adapted.Square([sequences()])
    udfkit.jax.apply(function, (random(3, 4), LENGTHS))
    ref = weakref.ref(function)
    del function
    gc.collect()
    assert ref() is None


def test_compiled_code_keeps_the_function_alive():
    run = jax.jit(lambda x: udfkit.jax.apply(adapted.Square([sequences()]), (x, LENGTHS))[0])
    x = random(3, 4)
    first = run(x)
    gc.collect()
    np.testing.assert_array_equal(run(x), first)


BAD = {
    "no pair": (lambda: random(3, 4, 2), TypeError, "pass \\(padded, lengths\\)"),
    "another rank": (lambda: (random(3), LENGTHS), ValueError, "pair of shapes"),
    "sample shape": (lambda: (random(3, 4, 5), LENGTHS), ValueError, "samples of shape \\(5,\\)"),
    "count": (
        lambda: (random(3, 4, 2), LENGTHS[:2]),
        ValueError,
        "lengths of shape \\(2,\\), expected",
    ),
    "a list": (lambda: [random(3, 4, 2), LENGTHS], TypeError, "is a list: .* as a tuple"),
    "an array": (lambda: random(3, 4, 2), TypeError, "is an array of shape \\(3, 4, 2\\)"),
    "complex": (lambda: (random(3, 4, 2) + 1j, LENGTHS), TypeError, "complex64, .*convert it with"),
    "floats": (lambda: (random(3, 4, 2), LENGTHS * 1.0), ValueError, "float32, expected integers"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    make, kind, text = BAD[name]
    with pytest.raises(kind, match=text):
        udfkit.jax.apply(adapted.Square([sequences(2)]), make())


def test_bad_calls():
    square = adapted.Square([sequences(2, name="x")])
    with pytest.raises(TypeError, match=r"takes 1 input\(s\), \['x'\], got 2: .* one tuple"):
        udfkit.jax.apply(square, 1, 2)
    with pytest.raises(TypeError, match="fn is the class Square, expected a function made of it"):
        udfkit.jax.apply(adapted.Square, (random(3, 4, 2), LENGTHS))
    whole = adapted.Square([sequences(2, np.int32, needs_gradient=False)])
    with pytest.raises(TypeError, match=r"float32, its variable int32.*\.astype\('int32'\)"):
        udfkit.jax.apply(whole, (random(3, 4, 2), LENGTHS))
    fixed = adapted.Square([sequences(2, name="x", needs_gradient=False)])
    with pytest.raises(ValueError, match=r"gradient by input 'x' .* needs none"):
        jax.grad(lambda x: udfkit.jax.apply(fixed, (x, LENGTHS))[0].sum())(random(3, 4, 2))
    free = adapted.Square([sequences(udfkit.FreeDimension)])
    with pytest.raises(TypeError, match="has a FreeDimension"):
        udfkit.jax.apply(free, (random(3, 4, 2), LENGTHS))
    shorter = adapted.DropFirst([sequences(2)])
    with pytest.raises(TypeError, match=r"has lengths of its own.*pass \(padded, lengths\)"):
        udfkit.jax.apply(shorter, (random(5, 2), np.array([0, 3, 5])))


def test_casts_to_floats_warn_once_and_the_gradient_goes_back():
    square = adapted.Square([sequences(2)])
    x = random(3, 4, 2).astype(jnp.float16)
    run = jax.grad(lambda x: udfkit.jax.apply(square, (x, LENGTHS))[0].sum())
    with pytest.warns(udfkit.CastWarning, match="dtype float16 are cast to float32"):
        found = run(x)
    assert found.dtype == jnp.float16
    assert jnp.array_equal(found, jnp.where((np.arange(4) < LENGTHS[:, None])[..., None], 2 * x, 0))
    run(x)


def test_offsets_that_leave_values_unused():
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"last offset is 4, .* 5 values"):
        udfkit.jax.apply(adapted.Square([sequences(2)]), (random(5, 2), np.array([0, 4])))


@pytest.mark.parametrize("jit", [True, False])
def test_what_is_wrong_at_run_time_says_so(jit):
    class Failing(adapted.Square):
        def forward(self, x, device, outputs_to_retain):
            raise ZeroDivisionError("of my own")

    class Wrong(adapted.Square):
        def forward(self, x, device, outputs_to_retain):
            return x, [s[:1] for s in x]

    def run(function, x, lengths):
        call = lambda x, n: udfkit.jax.apply(function, (x, n))[0]  # noqa: E731
        return jax.block_until_ready((jax.jit(call) if jit else call)(x, lengths))

    x = random(3, 4, 2)
    with pytest.raises(Exception, match="length 9 of sequence 1 is out of range"):
        run(adapted.Square([sequences(2)]), x, np.array([1, 9, 1]))
    with pytest.raises(Exception, match="of my own"):
        run(Failing([sequences(2)]), x, LENGTHS)
    with pytest.raises(Exception, match="declared on the sequence axis of an input, but has other"):
        run(Wrong([sequences(2)]), x, LENGTHS)


def test_ready_made_sequence_functions():
    x = udfkit.sequence.input_variable(5, needs_gradient=True, name="x")
    y = udfkit.sequence.input_variable((), np.int32, name="y")
    function = udfkit.functions.ctc_loss(x, y)
    scores, lengths = jax.nn.log_softmax(random(3, 8, 5)), np.array([7, 3, 5])
    labels, counts = np.array([[1, 2, 2], [0, 0, 0], [4, 3, 0]], np.int32), np.array([3, 0, 2])

    def loss(scores):
        return udfkit.jax.apply(function, (scores, lengths), (labels, counts))

    found = jax.jit(loss)(scores)
    lists = {
        x: [np.asarray(s[:n]) for s, n in zip(scores, lengths, strict=True)],
        y: [s[:n] for s, n in zip(labels, counts, strict=True)],
    }
    np.testing.assert_allclose(found, function.eval(lists), rtol=1e-5)
    gradient = jax.jit(jax.grad(lambda s: loss(s).sum()))(scores)
    for got, want, n in zip(gradient, function.grad(lists), lengths, strict=True):
        np.testing.assert_allclose(got[:n], want, rtol=1e-4, atol=1e-6)
        assert not got[n:].any()


@pytest.mark.filterwarnings("ignore::udfkit.CastWarning")
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize("extents", [LENGTHS, MASK], ids=["lengths", "mask"])
def test_padding_of_another_dtype_is_never_seen(extents, jit, copy):
    valid = MASK if extents is MASK else np.arange(4) < LENGTHS[:, None]
    padded = jnp.where(valid, 2.0, 1e30).astype(jnp.float32)
    function = adapted.Square([sequences(dtype=np.float16)])

    def run(x):
        return udfkit.jax.apply(function, (x, extents), copy=copy)[0]

    made = (jax.jit(run) if jit else run)(padded)
    assert made.tolist() == np.where(valid, 4.0, 0.0).tolist()
