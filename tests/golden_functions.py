"""The user functions behind the recorded cases, rebuilt from their names, and how to run them.

Methods take positional-only arguments without defaults, so that a call with another number of
arguments, or with keywords, fails: the number of arguments in the log needs no counting.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any

import numpy as np

import golden_cases as golden
import udfkit as C
from golden_bodies import BODIES, each, raiser
from udfkit import Value

LENGTHS = {"ragged": (3, 1, 2), "equal": (2, 2), "zero": (2, 0), "steps": (3, 1)}


@dataclass
class Spec:
    """What a case's class computes; bodies default to a linear function of the inputs."""

    inputs: int = 1
    outputs: int = 1
    kind: str = "ragged"
    shape: tuple[int, ...] = (2,)
    needs: tuple[bool, ...] = (True, True)
    out_needs: bool = True
    as_numpy: bool = True
    state: Any = None
    weights: Any = None
    second: str = "input"  # what x1 is; or "same", "parameter", "constant"
    used: tuple[int, ...] | None = None  # the outputs that the root is the sum of
    forward: Callable[..., Any] | None = None
    backward: Callable[..., Any] | None = None
    infer: Callable[..., Any] | None = None
    out_kind: str | None = None
    base: Any = None
    more: dict[str, Any] = field(default_factory=dict)


def add(terms: list[tuple[int, Any]]) -> Any:
    """Sum of weight times x; one of the x may be a plain array beside lists."""
    lists = [x for _, x in terms if isinstance(x, list)]
    if not lists:
        return sum(w * x for w, x in terms)
    return [
        sum(w * (x[k] if isinstance(x, list) else x) for w, x in terms)
        for k in range(len(lists[0]))
    ]


# ---- classes: two forms of forward, two of backward ---------------------------------------------


class Recorded(C.UserFunction):
    """Writes down its calls; the spec says what they return."""

    spec: Spec

    def __init__(self, inputs: list[Any], spec: Spec) -> None:
        super().__init__(inputs, as_numpy=spec.as_numpy, name="recorded")
        self.spec = spec
        self.log: list[tuple[str, tuple[Any, ...]]] = []
        self.broken = True  # functions that raise do it the first time only

    def record(self, call: str, *args: Any) -> None:
        self.log.append((call, tuple(snapshot(x) for x in args)))

    def infer_outputs(self) -> Any:
        first, spec = self.inputs[0], self.spec
        if spec.infer is not None:
            return spec.infer(self)
        axes = first.dynamic_axes[:1] if spec.out_kind == "batch" else first.dynamic_axes
        return [
            C.output_variable(first.shape, first.dtype, axes, needs_gradient=spec.out_needs)
            for _ in range(spec.outputs)
        ]

    def linear(self, arg: Any) -> list[Any]:
        """The result for every output."""
        xs = arg if isinstance(arg, tuple) else (arg,)
        return [
            add([(w, x) for w, x in zip(row, xs, strict=True) if w])
            if self.spec.as_numpy
            else xs[row.index(1)]
            for row in self.spec.weights
        ]

    def gradients(self, root: Any) -> list[Any]:
        """The gradient for every input."""
        roots = [root[o] for o in self.outputs] if isinstance(root, dict) else [root]
        if not self.spec.as_numpy:
            return [roots[min(i, len(roots) - 1)] for i in range(len(self.inputs))]
        columns = zip(*self.spec.weights, strict=True)
        return [add(list(zip(column, roots, strict=True))) for column in columns]


class ForwardOne(Recorded):
    def forward(self, arg, device, outputs_to_retain, /):
        self.record("forward", arg, device, outputs_to_retain)
        body = self.spec.forward
        return body(self, arg) if body else (self.spec.state, self.linear(arg)[0])


class ForwardMany(Recorded):
    def forward(self, arg, outputs, device, outputs_to_retain, /):
        self.record("forward", arg, outputs, device, outputs_to_retain)
        if self.spec.forward:
            return self.spec.forward(self, arg, outputs)
        outputs.update(zip(self.outputs, self.linear(arg), strict=True))
        return self.spec.state


class BackwardOne(Recorded):
    def backward(self, state, root, /):
        self.record("backward", state, root)
        body = self.spec.backward
        return body(self, root) if body else self.gradients(root)[0]


class BackwardMany(Recorded):
    def backward(self, state, root, variables, /):
        self.record("backward", state, root, variables)
        if self.spec.backward:
            return self.spec.backward(self, root, variables)
        gradients = dict(zip(self.inputs, self.gradients(root), strict=True))
        variables.update((v, gradients[v]) for v in variables)
        return None


class ForwardOfOneOutput(Recorded):
    """Has the signature for one output, and declares two."""

    def forward(self, arg, device=None, outputs_to_retain=None):
        raise AssertionError("no call can fit")


class BackwardOfOneInput(Recorded):
    """Has the signature for one input, and is made with two."""

    def backward(self, state, root):
        raise AssertionError("no call can fit")


def snapshot(x: Any) -> Any:
    """`x` as it is now: user code goes on to change arguments in place."""
    if isinstance(x, np.ndarray):
        return x.copy()
    if type(x) in (list, tuple):
        return type(x)(snapshot(item) for item in x)
    return {k: snapshot(v) for k, v in x.items()} if type(x) is dict else x


# ---- from a name to a function ------------------------------------------------------------------

WEIGHTS = {(1, 1): ((2,),), (2, 1): ((2, 3),), (1, 2): ((2,), (5,)), (2, 2): ((1, 2), (3, 4))}
PASSED = {(1, 1): ((1,),), (2, 1): ((1, 0),), (1, 2): ((1,), (1,)), (2, 2): ((1, 0), (0, 1))}


def spec_of(name: str, doc: str = "") -> Spec:
    """What the class of a case computes, read off the case's name."""
    spec = Spec(as_numpy=not (name.startswith("value/") or name.endswith("_value")))
    counts = re.search(r"(\d)in(\d)out", f"{name} {doc}")
    spec.inputs = int(counts[1]) if counts else 1 + ("bwd_multi" in name)
    spec.outputs = int(counts[2]) if counts else 1 + ("fwd_multi" in name or "multi_out" in name)
    parts = name.split("/")
    spec.kind = next(
        (k for k in ("equal", "batch", "none") if k in parts or parts[-1].startswith(k)), "ragged"
    )
    if needs := re.search(r"ng=\((\w+), ?(\w+)\)", name):
        spec.needs = (needs[1] == "True", needs[2] == "True")
    spec.used = tuple(range(spec.outputs))
    if only := re.search(r"only_out(\d)_used", name):
        spec.used = (int(only[1]),)
    if name.endswith("only_first_used"):
        spec.used = (0,)
    shape = (spec.inputs, spec.outputs)
    spec.weights = WEIGHTS[shape] if spec.as_numpy else PASSED[shape]
    if found := re.fullmatch(r"(fwd|bwd|infer)/raise_(\w+)", name):
        method = {"fwd": "forward", "bwd": "backward", "infer": "infer"}[found[1]]
        setattr(spec, method, raiser(found[2]))
    for pattern, settings in BODIES.items():
        if fnmatchcase(name, pattern):
            for key, setting in settings.items():
                setattr(spec, key, setting)
    return spec


def batch_of(spec: Spec, i: int) -> Any:
    """The batch for x_i: arange + 100*i."""
    if spec.kind in LENGTHS:
        lengths = LENGTHS[spec.kind]
        if spec.shape == ():
            return [np.arange(n, dtype=np.float32) for n in lengths]
        flat = np.arange(sum(lengths) * 2, dtype=np.float32).reshape(-1, 2) + np.float32(100 * i)
        return np.split(flat, np.cumsum(lengths)[:-1])
    full = (3, 2) if spec.kind == "batch" else (2,)
    return np.arange(np.prod(full), dtype=np.float32).reshape(full) + np.float32(100 * i)


def build(spec: Spec, contract: str) -> SimpleNamespace:
    """The function of a case and its batches, by input."""
    if spec.base is not None:
        rest = (ForwardMany, BackwardOne) if spec.outputs > 1 else (ForwardOne, BackwardMany)
        bases = (globals()[spec.base], *rest)
    else:
        forward = ForwardMany if spec.outputs > 1 else ForwardOne
        bases = (forward, BackwardMany if spec.inputs > 1 else BackwardOne)
    cls = type("Case", bases, {"contract": contract})
    inputs, batches = [], []
    for i in range(spec.inputs):
        batch = batch_of(spec, i)
        if i == 1 and spec.second == "same":
            x = inputs[0]
        elif i == 1 and spec.second != "input":
            parameter = spec.second == "parameter"
            batch = np.array([5, 6] if parameter else [50, 51], np.float32)
            x = C.Parameter(init=batch) if parameter else C.Constant(batch)
        elif spec.kind in LENGTHS:
            x = C.sequence.input_variable(spec.shape, needs_gradient=spec.needs[i], name=f"x{i}")
        else:
            axes = [C.Axis.default_batch_axis()] if spec.kind == "batch" else []
            x = C.input_variable(
                spec.shape, needs_gradient=spec.needs[i], dynamic_axes=axes, name=f"x{i}"
            )
        inputs.append(x)
        batches.append(batch)
    return SimpleNamespace(fn=cls(inputs, spec), inputs=inputs, batches=batches, spec=spec)


# ---- what a case does, phase by phase -----------------------------------------------------------


def forward_backward(case: Any, done: dict[str, Any]) -> None:
    """`_forward`, then `_backward` with root gradients of ones; `done` gets each phase's result."""
    fn = case.fn
    arguments = [Value.create(x, b) for x, b in zip(case.inputs, case.batches, strict=True)]
    done["build"] = list(fn.outputs)
    outputs = list(fn.outputs)
    before = [v.asarray() for v in arguments]
    state, values = fn._forward(arguments, dict.fromkeys(outputs), C.cpu(), outputs)
    assert set(values) == set(outputs)
    results = {f"out{k}": read(values[o], o) for k, o in enumerate(outputs)}
    done["forward"] = results
    for value, data in zip(arguments, before, strict=True):
        golden.assert_bits(value.data, data, "an argument after forward")
    roots = {o: Value.create(o, ones_like(results[f"out{k}"])) for k, o in enumerate(outputs)}
    wanted = {x: None for x in case.inputs if x.needs_gradient}
    fn._backward(state, roots, wanted)
    done["backward"] = {f"x{case.inputs.index(x)}": read(v, x) for x, v in wanted.items()}


def gradient(case: Any, done: dict[str, Any]) -> None:
    """The gradients by name and the output, the root being the sum of the used outputs."""
    fn, spec = case.fn, case.spec
    done["build"] = list(fn.outputs)
    outputs = list(fn.outputs)
    used = [outputs[k] for k in spec.used]
    roots = None
    if len(used) < len(outputs):
        # CNTK's engine hands zeros over for an output that nobody used; "auto" makes them itself.
        every = outputs if fn.contract == "cntk-2.7" else used
        like = each_like(case.batches[0])
        roots = {o: like(1.0 if o in used else 0.0) for o in every}
    wrt = [case.inputs[i] for i in spec.more.get("wrt", ())] or None
    gradients, results = fn.grad(feed(case), wrt=wrt, root_gradients=roots, outputs=used)
    asked = wrt or [x for x in case.inputs if x.needs_gradient]
    gradients = gradients if isinstance(gradients, dict) else {asked[0]: gradients}
    results = results if isinstance(results, dict) else {used[0]: results}
    total = add([(1, results[o]) for o in used])
    named = {f"x{case.inputs.index(x)}": g for x, g in gradients.items()}
    done["grad"] = {"grad": named, "out": total}


def evaluation(case: Any, done: dict[str, Any]) -> None:
    """The output, a dict by name for several outputs."""
    done["build"] = list(case.fn.outputs)
    result = case.fn.eval(feed(case), seq_starts=case.spec.more.get("seq_starts"))
    if isinstance(result, dict):
        result = {f"outputs[{case.fn.outputs.index(o)}]": r for o, r in result.items()}
    done["eval"] = result


def feed(case: Any) -> Any:
    """The batch bare for one input, a dict for several; parameters bring their own value."""
    if len(case.inputs) == 1:
        return case.batches[0]
    return dict(zip(case.inputs, case.batches, strict=True))


def read(value: Value, var: Any) -> Any:
    assert isinstance(value, Value), f"{var} was not filled: {value!r}"
    return C.variable_value_to_seq(value, var)


def ones_like(x: Any) -> Any:
    return each_like(x)(1.0)


def each_like(x: Any) -> Any:
    return lambda number: each(x, lambda s: np.full_like(s, number))


RUNS = {"fb": forward_backward, "grad": gradient, "eval": evaluation}


def run_of(case: dict[str, Any]) -> Any:
    """How a case was run, from what was recorded of it."""
    result = case["result"]
    for key, name in (("forward", "fb"), ("grad", "grad"), ("eval", "eval")):
        if key in result:
            return RUNS[name]
    return forward_backward
