"""Figures of sequence functions against what does the same, side by side in one run, one thread.

Run it as ``python benchmarks/sequence_functions.py [section ...]``. Results are compared before
anything is timed; each line is the ratio of medians of interleaved repetitions. PyTorch is used
where it is installed.
"""

# ruff: noqa: D103, E402 - thread counts are set before NumPy reads them
from __future__ import annotations

import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

sys.path.insert(0, str(Path(__file__).parents[1]))

import udfkit
from benchmarks.sequence_references import NumpyPooling, crf_numpy, dtw_numpy
from udfkit import functions, threads

try:
    torch: Any = importlib.import_module("torch")
except ImportError:
    torch = None

SEED = int.from_bytes(os.urandom(4), "little")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def one_thread() -> None:
    threads._num_threads = lambda: 1
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if torch is not None:
        torch.set_num_threads(1)


def medians(calls: dict[str, Callable[[], Any]], seconds: float = 1.5) -> dict[str, float]:
    """Median time of each call; they take turns, so that a busy machine slows all of them."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends or len(found[next(iter(calls))]) < 5:
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            found[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in found.items()}


def report(what: str, calls: dict[str, Callable[[], Any]]) -> None:
    found = medians(calls)
    ours = found.pop("udfkit")
    others = ", ".join(f"{name} {t / ours:.2f}x" for name, t in found.items())
    say(f"  {what}: {ours * 1e3:.3f} ms, {others}")


def trained(fn: Any, values: list[Any], wrt: list[Any], root: Any) -> Callable[[], Any]:
    def call() -> Any:
        state, outputs = fn._forward(values)
        return outputs, fn._backward(state, {fn.output: root}, dict.fromkeys(wrt))

    return call


def close(got: Any, want: Any, rtol: float = 1e-3, atol: float = 2e-3) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=rtol, atol=atol)


def ctc(rng: np.random.Generator) -> None:
    say("ctc_loss, forward and backward, against torch.nn.functional.ctc_loss")
    if torch is None:
        say("  PyTorch is not installed")
        return
    shapes = [(64, 150, 250, 40, 30), (16, 400, 600, 80, 60), (128, 60, 100, 30, 12)]
    for dtype in (np.float32, np.float64):
        for count, low, high, classes, target in shapes:
            for kind in ("untrained", "well fitted", "badly fitted"):
                ctc_case(rng, dtype, (count, low, high, classes, target), kind)


def ctc_case(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], kind: str) -> None:
    count, low, high, classes, target = shape
    lengths = rng.integers(low, high + 1, count)
    targets = [rng.integers(1, classes, max(1, rng.integers(target // 2, target))) for _ in lengths]
    batch = []
    for n, z in zip(lengths, targets, strict=True):
        x = rng.normal(0, 1 if kind == "untrained" else 3, (n, classes))
        if kind == "well fitted":
            for t in range(n):
                x[t, z[t * len(z) // n] if t % 3 else 0] += 12
        elif kind == "badly fitted":
            x[:, rng.integers(1, classes)] += 60
        batch.append(x - np.log(np.exp(x - x.max(1)[:, None]).sum(1))[:, None] - x.max(1)[:, None])
    padded = np.zeros((max(lengths), count, classes), dtype)
    for k, x in enumerate(batch):
        padded[: len(x), k] = x
    leaf = torch.tensor(padded, requires_grad=True)
    labels = torch.tensor(np.concatenate(targets))
    sizes = torch.tensor(lengths), torch.tensor([len(z) for z in targets])

    def call_torch() -> Any:
        leaf.grad = None
        loss = torch.nn.functional.ctc_loss(leaf, labels, *sizes, reduction="none")
        loss.sum().backward()
        return loss

    x = udfkit.sequence.input_variable(classes, dtype, needs_gradient=True)
    y = udfkit.sequence.input_variable((), np.int64)
    fn = functions.ctc_loss(x, y)
    values = [
        udfkit.sanitize_batch(x, [s.astype(dtype) for s in batch]),
        udfkit.sanitize_batch(y, targets),
    ]
    call = trained(fn, values, [x], udfkit.sanitize_batch(fn.output, np.ones(count, dtype)))
    outputs, gradients = call()
    # Compared in float64: torch's float32 gradients are off by more than 1e-3.
    exact = torch.tensor(padded.astype(np.float64), requires_grad=True)
    want = torch.nn.functional.ctc_loss(exact, labels, *sizes, reduction="none")
    want.sum().backward()
    tight = 1e-9 if dtype == np.float64 else 1e-4
    close(outputs[fn.output].data, want.detach().numpy(), tight, tight)
    for k, part in enumerate(gradients[x].as_sequences()):
        close(part, exact.grad.numpy()[: len(part), k], tight, tight)
    what = f"{np.dtype(dtype).name} B={count} T={low}-{high} C={classes} L<{target} {kind}"
    report(what, {"udfkit": call, "torch": call_torch})


def crf_torch(batch: list[np.ndarray], labels: list[np.ndarray], a: np.ndarray, dtype: Any) -> Any:
    count, steps, tags = len(batch), max(len(s) for s in batch), a.shape[0]
    padded = np.zeros((count, steps, tags), dtype)
    marks = np.zeros((count, steps), np.int64)
    mask = np.zeros((count, steps), bool)
    for k, (s, z) in enumerate(zip(batch, labels, strict=True)):
        padded[k, : len(s)], marks[k, : len(s)], mask[k, : len(s)] = s, z, True
    leaf = torch.tensor(padded, requires_grad=True)
    weights = torch.tensor(a.astype(dtype), requires_grad=True)
    y, m = torch.tensor(marks), torch.tensor(mask)
    valid = m.to(leaf.dtype)

    def call() -> Any:
        leaf.grad = weights.grad = None
        path = (leaf.gather(2, y[:, :, None])[:, :, 0] * valid).sum(1)
        path = path + (weights[y[:, :-1], y[:, 1:]] * valid[:, 1:]).sum(1)
        alpha = leaf[:, 0]
        for t in range(1, steps):
            after = torch.logsumexp(alpha[:, :, None] + weights, 1) + leaf[:, t]
            alpha = torch.where(m[:, t, None], after, alpha)
        value = path - torch.logsumexp(alpha, 1)
        value.sum().backward()
        return value, leaf.grad, weights.grad

    return call


def crf(rng: np.random.Generator) -> None:
    say("linear_chain_crf, forward and backward, against a NumPy loop and torch autograd")
    for dtype in (np.float32, np.float64):
        for count, low, high, tags in [(256, 30, 70, 20), (64, 80, 120, 40), (512, 5, 40, 9)]:
            lengths = rng.integers(low, high + 1, count)
            batch = [rng.normal(size=(n, tags)).astype(dtype) for n in lengths]
            labels = [rng.integers(0, tags, n) for n in lengths]
            a = rng.normal(size=(tags, tags)).astype(dtype)
            x = udfkit.sequence.input_variable(tags, dtype, needs_gradient=True)
            y = udfkit.sequence.input_variable((), np.int64)
            w = udfkit.Parameter(init=a)
            fn = functions.linear_chain_crf(x, y, w)
            values = [
                udfkit.sanitize_batch(x, batch),
                udfkit.sanitize_batch(y, labels),
                udfkit.sanitize_batch(w, a),
            ]
            root = udfkit.sanitize_batch(fn.output, np.ones(count, dtype))
            call = trained(fn, values, [x, w], root)

            def call_numpy(batch: Any = batch, labels: Any = labels, a: Any = a) -> Any:
                grad_a = np.zeros(a.shape)
                found = [crf_numpy(s, z, a, grad_a) for s, z in zip(batch, labels, strict=True)]
                return found, grad_a

            outputs, gradients = call()
            found, grad_a = call_numpy()
            close(outputs[fn.output].data, [value for value, _ in found])
            close(gradients[w].data, grad_a)
            close(gradients[x].ragged().values, np.concatenate([g for _, g in found]))
            calls = {"udfkit": call, "NumPy loop": call_numpy}
            if torch is not None:
                calls["torch"] = crf_torch(batch, labels, a, dtype)
                close(calls["torch"]()[2].numpy(), grad_a)
            report(f"{np.dtype(dtype).name} B={count} T={low}-{high} K={tags}", calls)


def soft_dtw(rng: np.random.Generator) -> None:
    say("soft_dtw, forward and backward, against an anti-diagonal NumPy version")
    for dtype in (np.float32, np.float64):
        for count, low, high, size in [(64, 80, 120, 1), (64, 40, 60, 4), (16, 250, 350, 2)]:
            pairs = [
                [rng.normal(size=(n, size)).astype(dtype) for n in rng.integers(low, high, count)]
                for _ in range(2)
            ]
            x = udfkit.sequence.input_variable(size, dtype, needs_gradient=True)
            y = udfkit.sequence.input_variable(size, dtype)
            fn = functions.soft_dtw(x, y)
            values = [udfkit.sanitize_batch(v, b) for v, b in zip((x, y), pairs, strict=True)]
            root = udfkit.sanitize_batch(fn.output, np.ones(count, dtype))
            call = trained(fn, values, [x], root)

            def call_numpy(pairs: Any = pairs) -> Any:
                return [dtw_numpy(a, b, 1.0) for a, b in zip(*pairs, strict=True)]

            outputs, gradients = call()
            found = call_numpy()
            close(outputs[fn.output].data, [value for value, _ in found])
            close(gradients[x].ragged().values, np.concatenate([g for _, g in found]))
            what = f"{np.dtype(dtype).name} B={count} T={low}-{high} D={size}"
            report(what, {"udfkit": call, "NumPy": call_numpy})


def attention(rng: np.random.Generator) -> None:
    say("attention_pooling, forward and backward, against a NumPy user function")
    for count, low, high, size in [(1024, 5, 50, 16), (1024, 1, 20, 8), (1024, 20, 100, 32)]:
        x = udfkit.sequence.input_variable(size, needs_gradient=True)
        w = udfkit.Parameter(init=rng.normal(size=size).astype(np.float32))
        batch = [
            rng.normal(size=(n, size)).astype(np.float32) for n in rng.integers(low, high, count)
        ]
        values = [udfkit.sanitize_batch(x, batch), udfkit.sanitize_batch(w, w.value)]
        calls = {}
        for name, fn in (
            ("udfkit", functions.attention_pooling(x, w)),
            ("NumPy loop", NumpyPooling([x, w])),
        ):
            root = udfkit.sanitize_batch(fn.output, np.ones((count, size), np.float32))
            calls[name] = trained(fn, values, [x, w], root)
        (_, ours), (_, theirs) = calls["udfkit"](), calls["NumPy loop"]()
        close(ours[w].data, theirs[w].data, atol=2e-2)
        close(ours[x].ragged().values, theirs[x].ragged().values)
        report(f"float32 B={count} T={low}-{high} D={size}", calls)


@udfkit.sequence_function(takes={"x": udfkit.per_step("T")}, gives={"y": udfkit.per_step("T")})
def Nothing(x: Any, y: Any) -> None:
    """Do nothing."""


def overhead(rng: np.random.Generator) -> None:
    say("an empty sequence function, one call from Value to Value")
    x = udfkit.sequence.input_variable(())
    fn = Nothing([x])
    for count in (1, 64):
        value = udfkit.sanitize_batch(x, [rng.normal(size=20).astype("f") for _ in range(count)])
        found = medians({"call": lambda value=value: fn._forward([value])})
        say(f"  B={count}: {found['call'] * 1e6:.1f} us")


def reduction(rng: np.random.Generator) -> None:
    say("gradient of a shared parameter: fixed chunks and a tree, against one chunk")
    from udfkit import sequence_running

    x = udfkit.sequence.input_variable(20, needs_gradient=True)
    y = udfkit.sequence.input_variable((), np.int64)
    w = udfkit.Parameter(init=rng.normal(size=(20, 20)).astype(np.float32))
    lengths = rng.integers(30, 70, 256)
    values = [
        udfkit.sanitize_batch(x, [rng.normal(size=(n, 20)).astype("f") for n in lengths]),
        udfkit.sanitize_batch(y, [rng.integers(0, 20, n) for n in lengths]),
        udfkit.sanitize_batch(w, w.value),
    ]
    fn = functions.linear_chain_crf(x, y, w)
    root = udfkit.sanitize_batch(fn.output, np.ones(256, np.float32))
    tree = trained(fn, values, [x, w], root)

    def naive() -> Any:
        kept, sequence_running.MOST_CHUNKS = sequence_running.MOST_CHUNKS, 1
        try:
            return tree()
        finally:
            sequence_running.MOST_CHUNKS = kept

    close(tree()[1][w].data, naive()[1][w].data)
    found = medians({"tree": tree, "naive": naive}, 3.0)
    say(f"  linear_chain_crf: {found['tree'] / found['naive']:.3f} of the naive sum's time")


def two_threads(rng: np.random.Generator) -> None:
    say("two threads against one")
    if (os.cpu_count() or 1) < 2 or not hasattr(os, "sched_setaffinity"):
        say("  needs two cores and sched_setaffinity")
        return
    pinned = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    x = udfkit.sequence.input_variable(2, needs_gradient=True)
    y = udfkit.sequence.input_variable(2)
    fn = functions.soft_dtw(x, y)
    for count in (16, 64):
        batches = [
            [rng.normal(size=(n, 2)).astype("f") for n in rng.integers(80, 120, count)]
            for _ in "xy"
        ]
        values = [udfkit.sanitize_batch(v, b) for v, b in zip((x, y), batches, strict=True)]
        call = trained(fn, values, [x], udfkit.sanitize_batch(fn.output, np.ones(count, "f")))

        def run(n: int, call: Any = call) -> Any:
            threads._num_threads = lambda: n
            return call()

        found = medians({"one": lambda run=run: run(1), "two": lambda run=run: run(2)}, 3.0)
        say(f"  soft_dtw, {found['one'] * 1e3:.1f} ms: {found['one'] / found['two']:.2f}x")
    os.sched_setaffinity(0, pinned)
    threads._num_threads = lambda: 1


SECTIONS = {
    "ctc": ctc,
    "crf": crf,
    "soft_dtw": soft_dtw,
    "attention": attention,
    "overhead": overhead,
    "reduction": reduction,
    "threads": two_threads,
}


def main() -> None:
    one_thread()
    say(f"seed {SEED}")
    for name in sys.argv[1:] or SECTIONS:
        SECTIONS[name](np.random.default_rng(SEED))


if __name__ == "__main__":
    main()
