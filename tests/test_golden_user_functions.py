"""Every recorded user-function case, reproduced or listed as a difference, under two contracts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import checks
import golden_cases as golden
import golden_differences as differences
import golden_functions as functions
import udfkit as C
from golden_bodies import MARK
from golden_differences import Raises, Row, Skipped, UserError, Works
from udfkit import Value

CASES = golden.load("user_functions")
CONTRACTS = ["cntk-2.7", "auto"]
ONCE = pytest.mark.parametrize("contract", CONTRACTS)
PHASES = ("build", "forward", "backward", "grad", "eval")


def row_of(name: str, contract: str) -> Row | None:
    """The row that says how a case differs under this contract, or what its error must name."""
    if contract == "auto":
        row = differences.find(differences.FUNCTIONS_AUTO, name)
        if row is not None:
            return row
    rows = differences.FUNCTIONS + differences.FUNCTION_REFUSALS
    return differences.find(rows, name)


# ---- comparison with what was recorded ----------------------------------------------------------


def assert_like(got: Any, node: Any, fn: Any, where: str) -> None:
    """`got` is of the recorded type, with the recorded bits."""
    kind = node.get("t") if isinstance(node, dict) else None
    if kind == "nd":
        assert type(got) is np.ndarray, f"{where}: {type(got)}"
        golden.assert_bits(got, golden.decode(node), where)
    elif kind in ("list", "tuple"):
        assert type(got) is (list if kind == "list" else tuple), f"{where}: {type(got)}"
        assert len(got) == len(node["items"]), f"{where}: {got!r}"
        for k, (g, item) in enumerate(zip(got, node["items"], strict=True)):
            assert_like(g, item, fn, f"{where}[{k}]")
    elif kind == "device":
        assert got == C.cpu()
        assert str(got) == node["str"]
    elif kind == "var":
        assert got is named(fn, node["name"]), f"{where}: {got!r}"
    elif kind == "dict":
        assert type(got) is dict, f"{where}: {type(got)}"
        assert set(got) == {named(fn, name) for name, _, _ in node["items"]}, where
        for name, _, item in node["items"]:
            assert_like(got[named(fn, name)], item, fn, f"{where}[{name}]")
    elif kind == "Value":
        assert_value(got, node, where)
    elif isinstance(node, dict):
        assert set(got) == set(node), f"{where}: {got!r}"
        for key, item in node.items():
            assert_like(got[key], item, fn, f"{where}.{key}")
    else:
        assert type(got) is type(node), f"{where}: {got!r}"
        assert got == node, where


def assert_value(got: Any, node: dict[str, Any], where: str) -> None:
    assert type(got) is Value, f"{where}: {type(got)}"
    golden.assert_bits(got.data, golden.decode(node["data"]["ok"]), where)
    mask = node["mask"] and golden.decode(node["mask"])
    if mask is None:
        assert not got.is_masked, where
        assert got.mask.all(), where
    else:
        golden.assert_bits(got.mask, mask, where)
    assert got.is_sparse == node["is_sparse"]
    assert not got.data.flags.writeable


def named(fn: Any, name: str) -> Any:
    """The variable that the log calls inputs[i] or outputs[i]."""
    group, index = name.removesuffix("]").split("[")
    return getattr(fn, group)[int(index)]


def calls_of(case: dict[str, Any]) -> list[dict[str, Any]]:
    log = case["result"].get("log", [])
    return [entry for entry in log if not entry["call"].startswith("inner_exception")]


def assert_log(got: list[Any], want: list[dict[str, Any]], fn: Any) -> None:
    """The user's methods were called in the recorded order, with the recorded arguments."""
    assert [call for call, _ in got] == [entry["call"] for entry in want]
    for k, ((call, args), entry) in enumerate(zip(got, want, strict=True)):
        assert len(args) == entry["nargs"], f"{call}: {len(args)} arguments"
        assert entry["kwargs"] == []
        for i, (arg, node) in enumerate(zip(args, entry["args"], strict=True)):
            where = f"call {k}, {call}, argument {i}"
            if call == "forward" and i == entry["nargs"] - 1:
                # CNTK takes outputs_to_retain from an unordered set.
                assert type(arg) is list, where
                assert_like(sorted(arg, key=fn.outputs.index), in_order(node), fn, where)
            else:
                assert_like(arg, node, fn, where)


def in_order(node: dict[str, Any]) -> dict[str, Any]:
    return {**node, "items": sorted(node["items"], key=lambda item: item["name"])}


def reference(case: Any, phase: str) -> Any:
    """What NumPy says a linear function returns, for cases that CNTK could not do."""
    spec, lists = case.spec, isinstance(case.batches[0], list)

    def mixed(weights: Any, xs: Any) -> Any:
        pairs = list(zip(weights, xs, strict=True))
        if not lists:
            return np.float32(sum(w * x for w, x in pairs))
        return [np.float32(sum(w * x[k] for w, x in pairs)) for k in range(len(xs[0]))]

    outs = [mixed(row, case.batches) for row in spec.weights]
    ones = functions.ones_like(case.batches[0])
    slopes = [
        sum(spec.weights[k][i] for k in spec.used) if spec.as_numpy else 1
        for i in range(spec.inputs)
    ]
    grads = {f"x{i}": mixed([slope], [ones]) for i, slope in enumerate(slopes)}
    if case.name == "bwd_multi/deletes_key":
        grads = {"x0": ones, "x1": mixed([0], [ones])}
    return {
        "forward": {f"out{k}": out for k, out in enumerate(outs)},
        "backward": grads,
        "eval": outs[0],
        "grad": {"grad": grads, "out": mixed([1] * len(spec.used), [outs[k] for k in spec.used])},
    }[phase]


def assert_equal(got: Any, want: Any, where: str) -> None:
    if isinstance(want, dict):
        assert set(got) == set(want), where
        for key in want:
            assert_equal(got[key], want[key], f"{where}.{key}")
    elif isinstance(want, list):
        golden.assert_sequences(got, want, where)
    else:
        golden.assert_bits(got, want, where)


# ---- the tests ----------------------------------------------------------------------------------

SINGLE = [
    c for c in CASES if c["name"] not in ("misc/call_counts", "misc/free_dimension")
]  # several functions or batches in one case: tests of their own below


def make(case: dict[str, Any], contract: str) -> Any:
    spec = functions.spec_of(case["name"], case["doc"])
    built = functions.build(spec, contract)
    built.name = case["name"]
    return built


@ONCE
@pytest.mark.parametrize("case", SINGLE, ids=lambda c: f"{c['id']}-{c['name']}")
def test_case(case: dict[str, Any], contract: str) -> None:
    row = row_of(case["name"], contract)
    outcome = row and row.outcome
    if isinstance(outcome, Skipped):
        pytest.skip(row.why)
    if isinstance(outcome, Raises) and outcome.phase == "construct":
        with checks.raises(outcome.kinds, *outcome.parts):
            make(case, contract)
        return
    built = make(case, contract)
    if case["name"] == "misc/seq_to_batch_last":
        check_seq_to_batch(built, case)
        return
    done: dict[str, Any] = {}
    if isinstance(outcome, UserError):
        check_user_error(built, case, outcome)
    elif isinstance(outcome, Raises):
        with checks.raises(outcome.kinds, *outcome.parts, fix=outcome.fix):
            functions.run_of(case)(built, done)
        check_results(built, case, done, outcome)
        check_calls(built, case, outcome)
    else:
        functions.run_of(case)(built, done)
        check_results(built, case, done, outcome)
        check_calls(built, case, outcome)
    if case["name"] == "state/identity":
        assert built.fn.log[-1][1][0] is MARK


def check_results(built: Any, case: dict[str, Any], done: dict[str, Any], outcome: Any) -> None:
    """What the phases gave: as recorded, or as NumPy says for a case that works here only."""
    result = case["result"]
    if isinstance(outcome, Raises):
        assert list(done) == list(PHASES[: PHASES.index(outcome.phase)])[: len(done)]
        assert outcome.phase not in done
    if "build" in done:
        flags = [o.needs_gradient for o in done["build"]]
        assert flags == result.get("out_needs_gradient", [True] * len(flags))
    for phase in set(done) - {"build"}:
        was, got = result.get(phase, {}), done[phase]
        if "ok" in was:
            whole = phase != "grad" or "grad" in was["ok"]
            assert_like(got if whole else got["grad"]["x0"], was["ok"], built.fn, phase)
        else:
            assert isinstance(outcome, Works), f"{phase} works, but {was} was recorded"
            assert_equal(got, reference(built, phase), phase)


def check_calls(built: Any, case: dict[str, Any], outcome: Any) -> None:
    """The recorded calls; where the two part, those up to that point."""
    if not case["result"].get("log") and outcome is None:
        return  # the class of this case wrote no log
    want, got = calls_of(case), built.fn.log
    if isinstance(outcome, Raises):
        if outcome.phase in ("build", "forward"):
            want = [entry for entry in want if entry["call"] == "forward"]
        if built.spec.base is not None:
            want = want[:-1]  # no call can fit, and a call that fails writes no log
        if case["name"] == "1in1out/grad/input_no_gradient":
            want = []  # refused before user code runs
    # CNTK failed earlier: what it got to is a prefix of what happens here.
    assert_log(got[: len(want)] if outcome is not None else got, want, built.fn)


def check_user_error(built: Any, case: dict[str, Any], outcome: UserError) -> None:
    """The very exception arrives, with a note that names function and phase; then all works."""
    bodies = {
        "forward": built.spec.forward,
        "backward": built.spec.backward,
        "infer_outputs": built.spec.infer,
    }
    error = bodies[outcome.phase].error
    with pytest.raises(type(error)) as caught:
        functions.run_of(case)(built, {})
    assert caught.value is error
    inner = next(e for e in case["result"]["log"] if e["call"].startswith("inner_exception"))
    assert (type(error).__name__, str(error)) == (inner["type"], inner["msg"])
    notes = "\n".join(error.__notes__)
    assert built.fn.name in notes or type(built.fn).__name__ in notes, notes
    assert outcome.phase in notes
    assert_log(built.fn.log, calls_of(case), built.fn)
    again: dict[str, Any] = {}
    functions.run_of(case)(built, again)
    for phase in ("forward", "backward"):
        assert_equal(again[phase], reference(built, phase), f"{phase}, again")


def check_seq_to_batch(built: Any, case: dict[str, Any]) -> None:
    """A sequence goes in, its last step comes out; the gradient goes back to that step only."""
    fn, batch = built.fn, built.batches[0]
    assert_like(fn.eval(batch), case["result"]["out"], fn, "eval")
    want = [np.zeros_like(s) for s in batch]
    for s in want:
        s[-1] = 1
    golden.assert_sequences(fn.grad(batch), want, "grad")


@ONCE
def test_call_counts(contract: str) -> None:
    case = next(c for c in CASES if c["name"] == "misc/call_counts")
    done = {}
    for key, name, run in (
        ("fb", "1in1out", functions.forward_backward),
        ("grad", "1in1out", functions.gradient),
        ("eval", "1in1out", functions.evaluation),
        ("1in2out grad", "1in2out", functions.gradient),
    ):
        built = functions.build(functions.spec_of(f"{name}/ragged"), contract)
        run(built, {})
        done[key] = [call for call, _ in built.fn.log]
    assert done == {k: v for k, v in case["result"].items() if k in done}
    assert set(done) == set(case["result"]) - {"log"}


@ONCE
def test_free_dimension(contract: str) -> None:
    case = next(c for c in CASES if c["name"] == "misc/free_dimension")
    built = functions.build(functions.spec_of(case["name"]), contract)
    for key, shapes in (("a", [(2, 3), (1, 3)]), ("b", [(2, 5)])):
        result = built.fn.eval([np.ones(shape, np.float32) for shape in shapes])
        assert_like(result, case["result"][key]["ok"], built.fn, key)
    assert_log(built.fn.log, calls_of(case), built.fn)


def test_no_row_about_functions_is_stale() -> None:
    tables = (differences.FUNCTIONS, differences.FUNCTION_REFUSALS, differences.FUNCTIONS_AUTO)
    for table in tables:
        for row in table:
            for pattern in row.patterns.split():
                cases = [c for c in CASES if Row(pattern, row.outcome, row.why).fits(c["name"])]
                assert cases, f"no case is like {pattern}"
                for case in cases:
                    assert needed(row, case, table), f"{case['id']} {case['name']}"


def needed(row: Row, case: dict[str, Any], table: Any) -> bool:
    """Whether a row says something else than what was recorded (for refusals: the same)."""
    name, result = case["name"], case["result"]
    outcome, failed = row.outcome, [p for p in PHASES if "exc" in result.get(p, {})]
    if table is differences.FUNCTIONS_AUTO:
        base = row_of(name, "cntk-2.7")
        return base is None or type(base.outcome) is not type(outcome)
    if isinstance(outcome, Skipped):
        return True
    if isinstance(outcome, UserError):
        return result[failed[-1]]["exc"]["msg"] == "SWIG director method error."
    if isinstance(outcome, Works):
        return bool(failed) or "crash" in result
    if table is differences.FUNCTION_REFUSALS:
        return failed == [outcome.phase]
    return outcome.phase not in failed


def test_all_cases_are_here() -> None:
    assert len(CASES) == 134
    assert len({case["name"] for case in CASES}) == 134
    skipped = [
        c["name"]
        for c in CASES
        if isinstance(
            (row_of(c["name"], "cntk-2.7") or SimpleNamespace(outcome=None)).outcome, Skipped
        )
    ]
    assert skipped == [
        "value/fwd/returns_ndarrayview",
        "misc/trainer_test_minibatch",
        "misc/zero_length_seq_graph",
    ]


def test_the_comparison_of_logs_sees_a_wrong_argument() -> None:
    case = next(c for c in CASES if c["name"] == "2in1out/fb/ragged/ng=(True, False)")
    built = make(case, "cntk-2.7")
    functions.forward_backward(built, {})
    call, args = built.fn.log[1]
    built.fn.log[1] = (call, (*args[:2], {built.inputs[1]: None}))
    with pytest.raises(AssertionError, match="argument 2"):
        assert_log(built.fn.log, calls_of(case), built.fn)
