"""Figures of sequence functions against what does the same, side by side in one run, one thread.

    python benchmarks/sequence_functions.py --sections crf attention     # some of them
    python benchmarks/sequence_functions.py --save                       # into benchmarks/results/

Results are compared before anything is timed; times are medians of calls that take turns of 20 ms.
PyTorch is used where it is installed. Data is new at each run, unless ``--seed`` gives that of
another one.
"""

# ruff: noqa: E402 - thread counts are set before NumPy reads them
from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import udfkit
from benchmarks import sequence_report
from benchmarks.sequence_references import (
    CtcTorch,
    NumpyPooling,
    crf_numpy,
    crf_torch,
    dtw_numpy,
)
from udfkit import functions, sequence_running, threads

try:
    torch: Any = importlib.import_module("torch")
except ImportError:
    torch = None

DTYPES = ("float32", "float64")
TURN = 0.02
Calls = dict[str, Callable[[], Any]]
Case = tuple[dict[str, str], Calls]


def one_thread() -> None:
    """Keep to one core, ourselves and PyTorch."""
    threads._num_threads = lambda: 1
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if torch is not None:
        torch.set_num_threads(1)


def medians(calls: Calls, seconds: float) -> dict[str, float]:
    """Median time of each call; they take turns, so that a busy machine slows all of them.

    A turn is long enough for a short call to find its data in the caches again, and the processor
    at its own speed, after a long one that used other data and other instructions.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends or len(found[next(iter(calls))]) < 5:
        for name, call in calls.items():
            turn_ends = time.perf_counter() + TURN
            began = 0.0
            while began < turn_ends:
                began = time.perf_counter()
                call()
                found[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in found.items()}


def trained(fn: Any, values: list[Any], wrt: list[Any]) -> Callable[[], Any]:
    """Return a call of forward and backward, from Values to Values."""
    _, outputs = fn._forward(values)
    ones = np.ones(outputs[fn.output].shape, fn.output.dtype)
    root = udfkit.sanitize_batch(fn.output, ones)

    def call() -> Any:
        state, outputs = fn._forward(values)
        return outputs[fn.output], fn._backward(state, {fn.output: root}, dict.fromkeys(wrt))

    return call


def values_of(fn: Any, *batches: Any) -> list[Any]:
    """Make Values of batches for the inputs of a function."""
    pairs = zip(fn.inputs, batches, strict=True)
    return [udfkit.sanitize_batch(variable, batch) for variable, batch in pairs]


def close(got: Any, want: Any, rtol: float = 1e-3, atol: float = 2e-3) -> None:
    """Raise if a result is not what the peer has."""
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=rtol, atol=atol)


def case(dtype: str, shape: str, model: str, calls: Calls) -> Case:
    """Say what is measured, and how."""
    return {"dtype": dtype, "shape": shape, "model": model}, calls


def ctc(rng: np.random.Generator) -> Iterator[Case]:
    """ctc_loss against torch.nn.functional.ctc_loss."""
    if torch is None:
        return
    for count, low, high, classes, most in [
        (64, 150, 250, 40, 30),
        (16, 400, 600, 80, 60),
        (128, 60, 100, 30, 12),
    ]:
        for model in ("untrained", "well fitted", "badly fitted", "certain and wrong"):
            batch, targets = ctc_data(rng, (count, low, high, classes, most), model)
            peer = CtcTorch(torch, batch, targets)
            # Compared in float64: torch's float32 gradients are off by more than 1e-3.
            loss, gradient = peer.call("float64")()
            for dtype in DTYPES:
                x = udfkit.sequence.input_variable(classes, np.dtype(dtype), needs_gradient=True)
                fn = functions.ctc_loss(x, udfkit.sequence.input_variable((), np.int64))
                values = values_of(fn, [s.astype(dtype) for s in batch], targets)
                call = trained(fn, values, [x])
                y, gradients = call()
                tight = 1e-9 if dtype == "float64" else 1e-4
                close(y.data, loss, tight, tight)
                for k, part in enumerate(gradients[x].as_sequences()):
                    close(part, gradient[: len(part), k], tight, tight)
                shape = f"B={count} T={low}-{high} C={classes} L<{most}"
                yield case(dtype, shape, model, {"udfkit": call, "torch": peer.call(dtype)})


def ctc_data(rng: np.random.Generator, shape: tuple[int, ...], model: str) -> Any:
    """Make log-probabilities, of a model that knows its targets or another one, and targets."""
    count, low, high, classes, most = shape
    lengths = rng.integers(low, high + 1, count)
    targets = [rng.integers(1, classes, max(1, rng.integers(most // 2, most))) for _ in lengths]
    batch = []
    for n, z in zip(lengths, targets, strict=True):
        x = rng.normal(0, 1 if model == "untrained" else 3, (n, classes))
        if model == "well fitted":
            for t in range(n):
                x[t, z[t * len(z) // n] if t % 3 else 0] += 12
        elif model != "untrained":
            # With 300 all others are less likely than a step in linear space can hold.
            x[:, rng.integers(1, classes)] += 60 if model == "badly fitted" else 300
        x -= x.max(1, keepdims=True)
        batch.append(x - np.log(np.exp(x).sum(1, keepdims=True)))
    return batch, targets


def crf(rng: np.random.Generator) -> Iterator[Case]:
    """linear_chain_crf against a NumPy loop, and torch autograd of the batched algorithm."""
    for count, low, high, tags in [(256, 30, 70, 20), (64, 80, 120, 40), (512, 5, 40, 9)]:
        for model in ("untrained", "well fitted", "badly fitted"):
            lengths = rng.integers(low, high + 1, count)
            labels = [rng.integers(0, tags, n) for n in lengths]
            a = rng.normal(size=(tags, tags)) * (1.0 if model == "untrained" else 5.0)
            batch = [rng.normal(size=(n, tags)) for n in lengths]
            for s, z in zip(batch, labels, strict=True):
                shift = {"untrained": 0, "well fitted": 20, "badly fitted": -20}[model]
                s[np.arange(len(s)), z] += shift
            for dtype in DTYPES:
                data = [s.astype(dtype) for s in batch], labels, a.astype(dtype)
                calls = crf_calls(*data)
                yield case(dtype, f"B={count} T={low}-{high} K={tags}", model, calls)


def crf_calls(batch: list[Any], labels: list[Any], a: np.ndarray) -> Calls:
    """Return the calls, checked."""
    x = udfkit.sequence.input_variable(a.shape[0], a.dtype, needs_gradient=True)
    w = udfkit.Parameter(init=a)
    fn = functions.linear_chain_crf(x, udfkit.sequence.input_variable((), np.int64), w)
    call = trained(fn, values_of(fn, batch, labels, a), [x, w])

    def call_numpy() -> Any:
        grad_a = np.zeros(a.shape)
        found = [crf_numpy(s, z, a, grad_a) for s, z in zip(batch, labels, strict=True)]
        return found, grad_a

    y, gradients = call()
    found, grad_a = call_numpy()
    close(y.data, [value for value, _ in found])
    close(gradients[w].data, grad_a, atol=1e-2)
    close(gradients[x].ragged().values, np.concatenate([g for _, g in found]))
    calls = {"udfkit": call, "NumPy loop": call_numpy}
    if torch is not None:
        calls["torch"] = crf_torch(torch, batch, labels, a)
        close(calls["torch"]()[2].numpy(), grad_a, atol=1e-2)
    return calls


def soft_dtw(rng: np.random.Generator) -> Iterator[Case]:
    """soft_dtw against an anti-diagonal NumPy version."""
    for count, low, high, size in [(64, 80, 120, 1), (64, 40, 60, 4), (16, 250, 350, 2)]:
        for model in ("well fitted", "badly fitted"):
            xs, ys = (
                [rng.normal(size=(n, size)) for n in rng.integers(low, high, count)] for _ in "xy"
            )
            if model == "well fitted":
                ys = [
                    x[np.sort(rng.integers(0, len(x), len(y)))] for x, y in zip(xs, ys, strict=True)
                ]
            else:
                ys = [y + 10.0 for y in ys]
            for dtype in DTYPES:
                x = udfkit.sequence.input_variable(size, np.dtype(dtype), needs_gradient=True)
                y = udfkit.sequence.input_variable(size, np.dtype(dtype))
                fn = functions.soft_dtw(x, y)
                pairs = [[s.astype(dtype) for s in part] for part in (xs, ys)]
                call = trained(fn, values_of(fn, *pairs), [x])

                def call_numpy(pairs: Any = pairs) -> Any:
                    return [dtw_numpy(a, b, 1.0) for a, b in zip(*pairs, strict=True)]

                distance, gradients = call()
                found = call_numpy()
                close(distance.data, [value for value, _ in found])
                close(gradients[x].ragged().values, np.concatenate([g for _, g in found]))
                shape = f"B={count} T={low}-{high} D={size}"
                yield case(dtype, shape, model, {"udfkit": call, "NumPy": call_numpy})


def attention(rng: np.random.Generator) -> Iterator[Case]:
    """attention_pooling against a NumPy user function, a loop over sequences."""
    for count, low, high, size in [(1024, 5, 50, 16), (1024, 1, 20, 8), (1024, 20, 100, 32)]:
        for model, scale in (("even weights", 0.1), ("sharp weights", 10.0)):
            x = udfkit.sequence.input_variable(size, needs_gradient=True)
            w = udfkit.Parameter(init=(rng.normal(size=size) * scale).astype(np.float32))
            batch = [
                rng.normal(size=(n, size)).astype(np.float32)
                for n in rng.integers(low, high, count)
            ]
            calls = {}
            for name, fn in (
                ("udfkit", functions.attention_pooling(x, w)),
                ("NumPy loop", NumpyPooling([x, w])),
            ):
                calls[name] = trained(fn, values_of(fn, batch, w.value), [x, w])
            (_, ours), (_, theirs) = calls["udfkit"](), calls["NumPy loop"]()
            close(ours[w].data, theirs[w].data, atol=2e-2)
            close(ours[x].ragged().values, theirs[x].ragged().values)
            yield case("float32", f"B={count} T={low}-{high} D={size}", model, calls)


@udfkit.sequence_function(takes={"x": udfkit.per_step("T")}, gives={"y": udfkit.per_step("T")})
def Nothing(x: Any, y: Any) -> None:
    """Do nothing."""


def overhead(rng: np.random.Generator) -> Iterator[Case]:
    """An empty sequence function, forward, one call from Value to Value."""
    fn = Nothing([udfkit.sequence.input_variable(())])
    for count in (1, 8, 64):
        values = values_of(fn, [rng.normal(size=20).astype("f") for _ in range(count)])
        yield case("float32", f"B={count} T=20", "", {"udfkit": lambda v=values: fn._forward(v)})


def reduction(rng: np.random.Generator) -> Iterator[Case]:
    """The gradient of a shared parameter: fixed chunks and a tree, against one sum."""
    for count, low, high, tags in [(256, 30, 70, 20), (64, 80, 120, 40), (512, 5, 40, 9)]:
        lengths = rng.integers(low, high, count)
        batch = [rng.normal(size=(n, tags)).astype("f") for n in lengths]
        labels = [rng.integers(0, tags, n) for n in lengths]
        tree = crf_calls(batch, labels, rng.normal(size=(tags, tags)).astype("f"))["udfkit"]

        def naive(tree: Callable[[], Any] = tree) -> Any:
            kept, sequence_running.MOST_CHUNKS = sequence_running.MOST_CHUNKS, 1
            try:
                return tree()
            finally:
                sequence_running.MOST_CHUNKS = kept

        shape = f"linear_chain_crf B={count} T={low}-{high} K={tags}"
        yield case("float32", shape, "", {"udfkit": tree, "one sum": naive})


def two_threads(rng: np.random.Generator) -> Iterator[Case]:
    """Two threads, on any core, against one."""
    if (os.cpu_count() or 1) < 2 or not hasattr(os, "sched_setaffinity"):
        return
    pinned, one = os.sched_getaffinity(0), threads._num_threads
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    x = udfkit.sequence.input_variable(2, needs_gradient=True)
    fn = functions.soft_dtw(x, udfkit.sequence.input_variable(2))
    try:
        for count in (32, 64, 256):
            pairs = [
                [rng.normal(size=(n, 2)).astype("f") for n in rng.integers(80, 120, count)]
                for _ in "xy"
            ]
            call = trained(fn, values_of(fn, *pairs), [x])

            def run(n: int, call: Any = call) -> Any:
                threads._num_threads = lambda: n
                return call()

            calls = {"udfkit": lambda run=run: run(2), "one thread": lambda run=run: run(1)}
            yield case("float32", f"soft_dtw B={count} T=80-120 D=2", "", calls)
    finally:
        os.sched_setaffinity(0, pinned)
        threads._num_threads = one


SECTIONS: dict[str, tuple[str, Callable[[np.random.Generator], Iterator[Case]]]] = {
    "ctc": ("ctc_loss", ctc),
    "crf": ("linear_chain_crf", crf),
    "soft_dtw": ("soft_dtw", soft_dtw),
    "attention": ("attention_pooling", attention),
    "overhead": ("empty function", overhead),
    "reduction": ("reduction", reduction),
    "threads": ("two threads", two_threads),
}


def measure(name: str, seed: int, seconds: float) -> list[sequence_report.Row]:
    """Measure the cases of a section, one after the other."""
    section, cases = SECTIONS[name]
    what = str(cases.__doc__)
    sys.stdout.write(f"{what}\n")
    rows = []
    for about, calls in cases(np.random.default_rng(seed)):
        found = {key: t * 1e6 for key, t in medians(calls, seconds).items()}
        rows.append({"section": section, "what": what, **about, "microseconds": found})
        sys.stdout.write(sequence_report.line(rows[-1]) + "\n")
        sys.stdout.flush()
    return rows


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--sections", nargs="+", default=list(SECTIONS), choices=SECTIONS)
    parser.add_argument("--seconds", type=float, default=1.0, help="time for one row")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--save", action="store_true", help="write into benchmarks/results/")
    return parser.parse_args(arguments)


def main() -> None:
    """Run the sections and write the report."""
    options = parse()
    one_thread()
    rows = []
    for name in options.sections:
        rows += measure(name, options.seed, options.seconds)
    command = " ".join(["python", "benchmarks/sequence_functions.py", *sys.argv[1:]])
    where = sequence_report.about(command, options.seed)
    sys.stdout.write("\n" + sequence_report.report(rows, where))
    if options.save:
        sequence_report.save(rows, where)


if __name__ == "__main__":
    main()
