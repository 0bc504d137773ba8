"""The checker of user functions: every planted fault is found by the check that is for it."""

import subprocess
import sys

import hypothesis
import numpy as np
import pytest

import planted_bugs as bugs
import planted_pooling as pooling
import udfkit as C
from planted_bugs import sample, sequence
from udfkit.testing import check_function, ragged_batches
from udfkit.testing.check import CHECKS

F64 = np.float64


def made(kind, dtype=F64):
    if issubclass(kind, pooling.Scaled):
        return kind([sequence(dtype=dtype), sample(dtype=dtype)])
    return kind([sequence(dtype=dtype)])


RIGHT = [
    bugs.PerStep,
    pooling.Pooled,
    pooling.PooledValues,
    pooling.Scaled,
    bugs.Clipped,
    bugs.RefusesStrides,
    pooling.Argmax,
]

# Function, the one check that fails, words of its text, words of the likely kind of fault.
PLANTED = [
    (bugs.SecondRowWrong, "gradient", "sequence 0, step 1, element (0,)", "step 0 of each"),
    (bugs.SecondSequenceWrong, "gradient", "sequence 1, step 0", "sequence 0 is right and all"),
    (bugs.RowStrideAssumed, "awkward", "with sliced rows, given to backward itself", "stride"),
    (pooling.PaddingInTheSum, "padding", "nan in the padding of the inputs", "padding leaks"),
    (pooling.MaskMultiplied, "padding", "nan in the padding of the inputs", "do not multiply"),
    (pooling.RootPaddingInTheSum, "padding", "nan in the padding of the root gradients", "leaks"),
    (pooling.StepsForLengths, "neighbours", "sequence 0 alone", "how long they are"),
    (pooling.SummedNotAveraged, "gradient", "step 0", "summed over the steps instead of averaged"),
    (bugs.BatchMean, "gradient", "step 0", "summed over the batch instead of averaged"),
    (bugs.StateOnSelf, "pending", "raised ValueError", "keep none on self"),
    (bugs.StateInOneBuffer, "pending", "with another forward before", "keep none on self"),
    (bugs.InputInPlace, "writes", "forward wrote to input 'x'[0], at (0, 0)", "in place"),
    (bugs.StateInPlace, "writes", "backward wrote to the state[0], at (0, 0)", "in place"),
    (bugs.RootInPlace, "writes", "backward wrote to the root gradient[0]", "in place"),
    (
        pooling.WrongForLengthZero,
        "gradient",
        "(lengths 0, 2, 3), sequence 0",
        "sequence of length 0",
    ),
    (pooling.EmptyIsNan, "finite", "(lengths 0, 2, 3): output 'pooled', sequence 0", "length 0"),
    (pooling.EmptyRaises, "runs", "(lengths 0, 2, 3): forward raised IndexError", "not handled"),
    (bugs.WrongForStrideZero, "awkward", "with stride 0, given to backward itself", "stride"),
    (bugs.GradOfItsOwn, "awkward", "with stride 0, through grad", "stride"),
    (bugs.IgnoresTheRoot, "gradient", "step 0", "ignores the root gradient"),
    (bugs.FactorTwo, "gradient", "step 0", "every number is 0.5 times"),
    (bugs.SlightlyWrong, "gradient", "step 0", ""),
    (bugs.WrongSign, "gradient", "step 0", "wrong sign"),
    (bugs.NotFilled, "gradient", "analytic 0, numeric", "zero everywhere"),
    (bugs.BatchStatistics, "neighbours", "sequence 0 was changed", "statistics over the batch"),
    (bugs.RunningSum, "neighbours", "sequence 0 was changed", "running sum"),
    (pooling.BackwardReversed, "gradient", "sequence 0", "those of sequences [2, 1, 0]"),
    (pooling.BothReversed, "order", "taken in the order", "wrong sequence order"),
    (bugs.StepsReversed, "gradient", "step 0", "wrong order of steps"),
    (pooling.OneGradientNone, "runs", "gradients were not provided for ['b']", ""),
    (pooling.NeedsBoth, "subset", "asked for the gradient of 'b' alone", "only when all"),
    (pooling.NeedsBothRoots, "awkward", "no root gradient for output 'o0'", "means zeros"),
    (bugs.Unstable, "repeats", "run a second time, output 'y'", "random numbers"),
    (bugs.WrongDtype, "declared", "float32 samples of shape (2,), declared float64", ""),
]


@pytest.mark.parametrize(("dtype", "seed"), [(np.float32, 0), (F64, 1)])
@pytest.mark.parametrize("kind", RIGHT)
def test_right_functions_pass(kind, dtype, seed):
    check_function(made(kind, dtype), seed=seed).raise_if_failed()


@pytest.mark.parametrize(
    ("kind", "name", "text", "likely"), PLANTED, ids=[kind.__name__ for kind, *_ in PLANTED]
)
def test_each_planted_fault_fails_its_check_and_no_other(kind, name, text, likely):
    report = check_function(made(kind))
    assert [check.name for check in report.failures] == [name], str(report)
    assert text in report[name].text
    assert likely in report[name].likely
    assert bool(likely) == bool(report[name].likely)


@pytest.mark.parametrize(
    "kind",
    [kind for kind, name, *_ in PLANTED if name == "gradient" and kind.__name__[:3] != "Sli"],
)
def test_float32_is_enough_to_see_gradients_that_are_plainly_wrong(kind):
    report = check_function(made(kind, np.float32), seed=1)
    assert [check.name for check in report.failures] == ["gradient"], str(report)


def test_all_planted_faults_are_in_the_table():
    kinds = {
        kind
        for module in (bugs, pooling)
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__
    }
    assert kinds - {pooling.Taken} == {*RIGHT, *(kind for kind, *_ in PLANTED)}


def test_every_check_fails_for_some_planted_fault():
    # A function and its float64 form can only differ where a test makes both.
    assert {name for _, name, *_ in PLANTED} == set(CHECKS) - {"float64"}


def test_the_report_says_what_was_done():
    report = check_function(made(pooling.Pooled, np.float32), seed=3, rounds=1)
    text = str(report)
    assert text.startswith("check of Pooled('")
    assert "no sequences, random 0 (seed 3)" in text
    assert "finite differences: in float32, step 0.062, rtol 0.005, atol 0.0002" in text
    assert "make= gives a sharper check" in text
    assert text.endswith("all 11 checks passed")
    assert max(map(len, text.splitlines()[1:])) <= 100
    assert [check.status for check in report.checks if check.name == "subset"] == ["skipped"]
    assert report.raise_if_failed() is report
    assert "passed" in repr(report)


def test_a_failed_report_is_false_and_raises():
    report = check_function(made(bugs.FactorTwo))
    assert not report
    assert "FAILED gradient" in repr(report)
    with pytest.raises(AssertionError, match=r"1 of 11 checks failed") as caught:
        report.raise_if_failed()
    assert "likely: wrong scale" in str(caught.value)
    with pytest.raises(KeyError, match="no check 'x'"):
        report["x"]


def test_later_checks_go_on_with_outputs_when_gradients_are_wrong():
    report = check_function(made(bugs.FactorTwo))
    assert "outputs only" in report["order"].text
    assert report["neighbours"].status == "passed"


def test_layouts_that_backward_refuses_are_named_but_no_fault():
    report = check_function(made(bugs.RefusesStrides))
    assert report["awkward"].status == "passed"
    assert "backward itself refuses sliced rows (TypeError)" in report["awkward"].text


def test_kinks_are_left_out_and_counted():
    fn = made(bugs.Clipped)
    x = [np.array([[0.5, -0.5], [0.1, 2.0]])]
    report = check_function(fn, x)
    assert "2 at points without a derivative" in report["gradient"].text
    assert report


def test_a_function_without_gradient():
    report = check_function(made(pooling.Argmax))
    skipped = {check.name for check in report.checks if check.status == "skipped"}
    assert skipped == {"gradient", "awkward", "subset"}
    assert "no output needs a gradient" in report["gradient"].text
    quiet = check_function(bugs.PerStep([sequence(needs_gradient=False)]))
    assert quiet
    assert "no input needs a gradient" in quiet["gradient"].text


def test_float16_needs_a_float64_form():
    def make(dtype):
        return made(bugs.PerStep, dtype)

    assert check_function(make(np.float16))["gradient"].status == "skipped"
    report = check_function(make(np.float16), make=make, skip=["float64"])
    assert report["gradient"].status == "passed"


def test_a_float64_form_sees_what_float32_hides():
    def make(dtype):
        return made(bugs.SlightlyWrong, dtype)

    assert check_function(make(np.float32))
    report = check_function(make(np.float32), make=make)
    assert [check.name for check in report.failures] == ["gradient"]
    assert "of the float64 form, in float64" in str(report)


def test_a_function_that_is_not_its_float64_form():
    report = check_function(
        made(bugs.FactorTwo, np.float32), make=lambda dtype: made(bugs.PerStep, dtype)
    )
    assert [check.name for check in report.failures] == ["float64"]
    assert "gradient of 'x', sequence 0, step 0" in report["float64"].text


def taken():
    table = C.Parameter(init=np.arange(4.0).reshape(2, 2), name="table")
    return pooling.Taken([table, sequence("index", (), np.int64, False)])


def test_make_batch_keeps_to_the_rules_of_a_function():
    report = check_function(taken())
    assert [check.name for check in report.failures] == ["runs"]
    assert "pass make_batch" in report["runs"].likely

    def make_batch(rng):
        return {"index": [rng.integers(0, 2, n) for n in (2, 0, 3)]}

    report = check_function(taken(), make_batch=make_batch, rounds=1)
    assert report
    assert "batches: made 0, made 1, made 2 (seed 0)" in str(report)


def test_a_given_batch_is_the_only_one():
    fn = made(pooling.WrongForLengthZero)
    full = {"x": [np.ones((2, 2)), np.ones((1, 2))], "b": np.ones((2, 2))}
    empty = {"x": [np.ones((2, 2)), np.ones((0, 2))], "b": np.ones((2, 2))}
    assert check_function(fn, full)
    assert not check_function(fn, empty)


def test_neither_the_batch_nor_the_function_is_changed():
    fn = made(bugs.InputInPlace)
    batch = [np.ones((2, 2)), np.full((1, 2), 3.0)]
    before, kept = dict(fn.__dict__), [x.copy() for x in batch]
    check_function(fn, batch)
    assert {k: v for k, v in fn.__dict__.items() if k != "_outputs"} == {
        k: v for k, v in before.items() if k != "_outputs"
    }
    assert all(np.array_equal(a, b) for a, b in zip(batch, kept, strict=True))


def test_random_numbers_are_not_taken_from_numpy_or_from_before():
    state = np.random.get_state()[1].tobytes()
    first, second = (str(check_function(made(bugs.FactorTwo)).checks) for _ in range(2))
    assert first == second
    assert np.random.get_state()[1].tobytes() == state
    assert first != str(check_function(made(bugs.FactorTwo), seed=1).checks)


def test_skipped_checks_are_not_made():
    fn = made(bugs.BatchStatistics)
    report = check_function(fn, skip=["neighbours"])
    assert report
    assert report["neighbours"].status == "skipped"
    assert check_function(made(pooling.EmptyRaises), skip=["runs"])


def test_tolerances_can_be_chosen():
    assert check_function(made(bugs.SlightlyWrong), rtol=1e-2)
    assert not check_function(made(bugs.SlightlyWrong), rtol=1e-4)


class Shared(C.UserFunction):
    """All kinds of variables: y = sum over steps of x @ w, plus b, plus c."""

    def infer_outputs(self):
        x, w, b, _ = self.inputs
        return C.output_variable(w.shape[1:], x.dtype, b.dynamic_axes)

    def forward(self, args, device, outputs_to_retain):
        x, w, b, c = args
        return (x, w), [v.sum(axis=0) @ w + s + c for v, s in zip(x, b, strict=True)]

    def backward(self, state, grad, variables):
        x, w = state
        results = (
            [np.repeat((w @ g)[None], len(v), axis=0) for v, g in zip(x, grad, strict=True)],
            sum((np.outer(v.sum(axis=0), g) for v, g in zip(x, grad, strict=True)), 0 * w),
            grad,
            grad.sum(axis=0),
        )
        variables.update(
            {v: r for v, r in zip(self.inputs, results, strict=True) if v in variables}
        )


@pytest.mark.parametrize("width", [3, C.FreeDimension])
def test_parameters_constants_and_free_dimensions(width):
    w = C.Parameter(init=np.arange(12.0).reshape(3, 4), name="w")
    c = C.Constant(np.ones(4), name="c")
    inputs = [sequence(shape=3), w, sample(shape=4), c]
    report = check_function(Shared(inputs))
    assert report, str(report)
    assert report["subset"].status == "passed"
    square = bugs.PerStep([sequence(shape=(width, 2))])
    assert check_function(square)


def test_sequences_of_two_axes_have_lengths_of_their_own():
    seen = []

    class Both(bugs.PerStep):
        def forward(self, args, device, outputs_to_retain):
            seen.append([[len(v) for v in x] for x in args])
            return args[0], [v * v for v in args[0]]

        def backward(self, state, grad, variables):
            variables[self.inputs[0]] = super().backward(state, grad)

    inputs = [sequence("x"), sequence("t", (), np.int64, False, C.Axis("other"))]
    assert check_function(Both(inputs))
    assert any(a != b for a, b in seen)


def test_batch_only_and_axisless_functions():
    class Square(bugs.PerStep):
        def forward(self, x, device, outputs_to_retain):
            return x, x * x

        def backward(self, x, grad):
            return 2 * x * grad

    report = check_function(Square([sample()]))
    assert report
    assert "three samples, one sample, no samples" in str(report)
    assert report["padding"].status == "skipped"
    alone = Square([C.input_variable(2, F64, needs_gradient=True, dynamic_axes=[])])
    assert check_function(alone)["neighbours"].text == "no batch of two sequences"


def test_what_cannot_be_checked():
    with pytest.raises(TypeError, match="function is a type, expected a UserFunction"):
        check_function(bugs.PerStep)
    fn = made(bugs.PerStep)
    with pytest.raises(ValueError, match="batch and make_batch were both given"):
        check_function(fn, [[[1.0, 2.0]]], make_batch=lambda rng: None)
    with pytest.raises(ValueError, match=r"skip names \['speed'\], which are no checks"):
        check_function(fn, skip=["speed"])

    class Undeclared(C.UserFunction):
        pass

    report = check_function(Undeclared([sequence()]))
    assert [check.name for check in report.failures] == ["runs"]
    assert "infer_outputs raised NotImplementedError" in report["runs"].text


def test_numpy_is_all_that_is_imported():
    code = (
        "import sys, udfkit.testing;"
        "print(sorted({'hypothesis', 'scipy', 'pytest', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="src"
    )
    assert done.stdout == "[]\n"


def test_without_hypothesis_its_strategy_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(ModuleNotFoundError, match="ragged_batches needs Hypothesis"):
        ragged_batches(made(bugs.PerStep))


@hypothesis.settings(deadline=None, max_examples=25)
@hypothesis.given(ragged_batches(made(pooling.Pooled), max_sequences=3, max_length=2))
def test_batches_of_the_strategy_fit_the_function(batch):
    pooled = made(pooling.Pooled).eval(batch)
    assert len(batch) == len(pooled) <= 3
    assert all(len(x) <= 2 for x in batch)
    expected = [x.mean(axis=0) if len(x) else np.zeros(2) for x in batch]
    np.testing.assert_allclose(pooled, np.reshape(expected, (-1, 2)), atol=1e-12)


def test_the_strategy_shrinks_to_the_least_batch_that_fails():
    batches = ragged_batches(made(pooling.Scaled))
    least = hypothesis.find(batches, lambda b: sum(map(len, next(iter(b.values())))) >= 3)
    assert [len(part) for part in least.values()] == [1, 1]
    assert [v.name for v in least] == ["x", "b"]


def test_faults_of_long_sequences_and_large_batches_need_a_batch_that_shows_them():
    class WrongFromStep17(bugs.PerStep):
        def backward(self, x, grad):
            return [np.concatenate([g[:17], g[17:] * 2]) for g in super().backward(x, grad)]

    class LastOfManyZero(bugs.PerStep):
        def backward(self, x, grad):
            gradients = super().backward(x, grad)
            return [g * (k < 8 or k < len(grad) - 1) for k, g in enumerate(gradients)]

    def large(rng):
        return [rng.normal(size=(n, 2)) for n in (70, *rng.integers(0, 4, 39), 2)]

    assert check_function(made(bugs.PerStep), make_batch=large)
    for kind in (WrongFromStep17, LastOfManyZero):
        report = check_function(made(kind), make_batch=large)
        assert report["gradient"].status == "FAILED"
