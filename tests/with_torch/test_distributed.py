"""User functions under DistributedDataParallel: two processes have the gradients of one."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import udfkit
import udfkit.torch
from udfkit.demo.attention import AttentionPooling

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_distributed.py"
LENGTHS = [9, 7, 3, 2, 2, 1, 5, 4]
SEED = (4, 0)
# What each of the two processes has, for the steps that are compared.
CASES = {
    "other lengths": ([0, 1, 2, 6], [3, 4, 5, 7]),
    "one sequence": ([0], [1, 2, 3, 4, 5, 6, 7]),
    "no sequence": ([0, 1, 2, 3, 4, 5, 6, 7], []),
}
WAIT = 180


def example():
    spec = importlib.util.spec_from_file_location("train_distributed", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Model(nn.Module):
    """A layer a step, a user function with a parameter, and a layer a sequence; float64."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        rng = np.random.default_rng(3)
        x = udfkit.sequence.input_variable(3, np.float64, needs_gradient=True, name="x")
        query = udfkit.Parameter(init=rng.standard_normal((3, 2)), name="query")
        self.step = nn.Linear(2, 3, dtype=torch.float64)
        self.pooling = udfkit.torch.Module(AttentionPooling(x, query))
        self.sequence = nn.Linear(6, 4, dtype=torch.float64)

    def forward(self, padded, lengths):
        return self.sequence(self.pooling((torch.tanh(self.step(padded)), lengths)).flatten(1))


def batch(chosen):
    rng = np.random.default_rng(0)
    sequences = udfkit.Ragged.from_list([rng.standard_normal((n, 2)) for n in LENGTHS])
    classes = torch.from_numpy(rng.integers(0, 4, len(LENGTHS)))
    padded = udfkit.pad(sequences.take(np.asarray(chosen, np.int64)))
    return torch.from_numpy(padded.data), torch.tensor(padded.lengths), classes[list(chosen)]


def gradients(model, chosen, reduce):
    padded, lengths, classes = batch(chosen)
    model.zero_grad()
    reduce(cross_entropy(model(padded, lengths), classes, reduction="none")).backward()
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return {name: p.grad.clone() for name, p in inner.named_parameters()}


def work(rank, folder):
    """Run in each of the two processes: save the gradients of every step."""
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=WAIT)
    )
    share_of_loss = example().share_of_loss
    model = DistributedDataParallel(Model())
    shares = udfkit.bucket_batches(LENGTHS, 10, seed=SEED, world_size=2)[rank::2]
    found = {"shares": [share.tolist() for share in shares], "scaled": [], "mean": None}
    for step in [*CASES.values(), *bucketed_steps()]:
        count = sum(map(len, step))
        found["scaled"].append(
            gradients(model, step[rank], lambda losses, n=count: share_of_loss(losses, n, 2))
        )
    found["mean"] = gradients(model, CASES["one sequence"][rank], torch.mean)
    del model
    torch.save(found, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


def bucketed_steps():
    batches = udfkit.bucket_batches(LENGTHS, 10, seed=SEED, world_size=2)
    return [(a.tolist(), b.tolist()) for a, b in zip(batches[::2], batches[1::2], strict=True)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed")
    processes = mp.start_processes(work, (folder,), 2, join=False, start_method="spawn")
    ends = time.monotonic() + WAIT
    try:
        while not processes.join(timeout=1):
            assert time.monotonic() < ends, "the two processes did not end"
    finally:
        for process in processes.processes:
            process.kill()
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


def expected(step):
    """The gradients of the mean loss over the whole batch, in this process alone."""
    return gradients(Model(), sorted([*step[0], *step[1]]), torch.mean)


def test_two_processes_have_the_gradients_of_one(found):
    steps = [*CASES.values(), *bucketed_steps()]
    assert len(steps) == len(found[0]["scaled"]) >= 5
    for k, step in enumerate(steps):
        one = expected(step)
        assert set(one) >= {"step.weight", "pooling.query", "sequence.bias"}
        for name, gradient in one.items():
            assert gradient.abs().max() > 1e-4
            for rank in range(2):
                torch.testing.assert_close(
                    found[rank]["scaled"][k][name],
                    gradient,
                    rtol=1e-12,
                    atol=1e-14,
                    msg=lambda text, at=(step, name): f"{at}: {text}",
                )
            assert torch.equal(found[0]["scaled"][k][name], found[1]["scaled"][k][name])


def test_the_mean_of_each_process_gives_other_gradients(found):
    one = expected(CASES["one sequence"])
    for name, gradient in found[0]["mean"].items():
        assert (gradient - one[name]).abs().max() > 0.05 * one[name].abs().max(), name


def test_the_shares_of_two_processes(found):
    shares = [part["shares"] for part in found]
    assert len(shares[0]) == len(shares[1]) > 1
    assert sorted(k for share in shares for b in share for k in b) == list(range(len(LENGTHS)))
    for mine, theirs in zip(*shares, strict=True):
        assert mine
        assert theirs
    assert any(len(a) != len(b) for a, b in zip(*shares, strict=True))


EPOCH = re.compile(
    r"^epoch +(\d+) +(\d+) steps  loss ([\d.]+)  accuracy ([\d.]+)%  padding ([\d.]+)%$",
    re.MULTILINE,
)


def start_example(*command: str) -> tuple[int, str, str]:
    """Run the example; whatever it started is gone afterwards, also when it hangs."""
    started = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        out, errors = started.communicate(timeout=WAIT)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        raise
    return started.returncode, out, errors


def run_example(*command: str) -> tuple[str, list[tuple[float, ...]]]:
    code, out, errors = start_example(*command)
    assert code == 0, errors
    assert "Warning" not in errors
    return out, [tuple(map(float, found)) for found in EPOCH.findall(out)]


def test_the_example_learns_in_two_processes():
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    out, epochs = run_example(*launcher, str(EXAMPLE), "--epochs", "6")
    assert out.startswith("2 processes on ")
    numbers, steps, losses, accuracies, waste = zip(*epochs, strict=True)
    assert numbers == (1, 2, 3, 4, 5, 6)
    assert len(set(steps)) == 1
    assert losses[-1] < 0.3 * losses[0]
    assert accuracies[-1] > 92
    assert max(waste) < 5


def test_the_example_runs_in_one_process_without_torchrun():
    out, epochs = run_example(str(EXAMPLE), "--epochs", "2")
    assert out.startswith("1 processes on ")
    assert len(epochs) == 2
    assert epochs[1][2] < epochs[0][2]
    assert epochs[1][3] > 80


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--cells", "5"), "--cells 5: expected 29 or more"),
        (("--epochs", "0"), "--epochs 0: expected 1 or more"),
        (("--seed", "-1"), "--seed -1: expected 0 or more"),
    ],
)
def test_arguments_without_training(options, said):
    code, out, errors = start_example(str(EXAMPLE), *options)
    assert (code, out) == (2, "")
    assert errors.startswith(f"train_distributed.py: error: {said}")
    assert errors.count("\n") == 1


def test_one_of_two_processes_says_what_is_wrong():
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    code, out, errors = start_example(*launcher, str(EXAMPLE), "--cells", "5")
    assert code != 0
    assert out == ""
    assert errors.count("--cells 5: expected 29 or more") == 1
