"""Train a speaker identifier, with a user function in its middle, in one process or in several.

    torchrun --nproc-per-node 2 examples/train_distributed.py
    python examples/train_distributed.py

PyTorch does what is distributed: `torchrun` starts the processes, `DistributedDataParallel`
averages the gradients (gloo on CPUs, nccl where each process has a GPU). udfkit adds the user
function, and the shares: `bucket_batches` gives every process as many batches, of similar size.

The data are the utterances of ``python -m udfkit demo``, which come with the package.
"""

from __future__ import annotations

import argparse
import os
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import udfkit
import udfkit.torch
from udfkit.demo.attention import AttentionPooling
from udfkit.demo.data import SPEAKERS, Utterances, load
from udfkit.demo.model import context_windows
from udfkit.demo.training import Scaling

REACH = 3  # frames on either side that belong to the window of a frame


class SpeakerModel(nn.Module):
    """A layer a frame, attention pooling, and a layer an utterance.

    Parameters
    ----------
    window : int
        Numbers that belong to a frame.
    """

    def __init__(self, window: int, hidden: int = 64, heads: int = 4) -> None:
        super().__init__()
        features = udfkit.sequence.input_variable(hidden, needs_gradient=True, name="features")
        start = np.random.default_rng(0).normal(0, 0.1, (hidden, heads))
        query = udfkit.Parameter(init=start.astype(np.float32), name="query")
        self.frame = nn.Linear(window, hidden)
        self.pooling = udfkit.torch.Module(AttentionPooling(features, query))
        self.speaker = nn.Linear(heads * hidden, SPEAKERS)

    def forward(self, windows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return logits (B, speakers) of windows (B, T, window), of which `lengths` are valid."""
        hidden = torch.tanh(self.frame(windows))
        pooled = self.pooling((hidden, lengths))  # (B, heads, hidden), of the valid frames alone
        return self.speaker(pooled.flatten(1))


class Data:
    """Utterances as windows of standardized frames, and batches of them as tensors on a device."""

    def __init__(self, utterances: Utterances, scaling: Scaling, device: torch.device) -> None:
        frames = udfkit.Ragged.from_list(scaling.standardize(utterances.frames))
        self.windows = frames.with_values(context_windows(frames, REACH))
        self.speakers = torch.from_numpy(utterances.speakers)
        self.device = device

    def steps(self, max_cells: int, seed: int, epoch: int) -> list[list[np.ndarray]]:
        """Return the steps of an epoch, each a batch for every process; the same in all of them."""
        world_size = dist.get_world_size()
        batches = udfkit.bucket_batches(
            self.windows.lengths, max_cells, seed=(seed, epoch), world_size=world_size
        )
        return [batches[k : k + world_size] for k in range(0, len(batches), world_size)]

    def waste(self, steps: list[list[np.ndarray]]) -> float:
        """Return the share of padding in the cells of all processes."""
        found = [self.windows.lengths[batch] for step in steps for batch in step]
        cells = sum(len(lengths) * lengths.max(initial=0) for lengths in found)
        return 1 - self.windows.lengths.sum() / cells

    def tensors(self, batch: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return padded windows (B, T, window), lengths (B,) and speakers (B,).

        The lengths stay on the CPU, where they are read.
        """
        padded = udfkit.pad(self.windows.take(batch))
        windows, speakers = torch.from_numpy(padded.data), self.speakers[batch]
        return windows.to(self.device), torch.tensor(padded.lengths), speakers.to(self.device)


def share_of_loss(losses: torch.Tensor, count: int, world_size: int) -> torch.Tensor:
    """Return what this process must differentiate, so that all together follow the mean loss.

    DistributedDataParallel averages gradients over processes: it divides their sum by `world_size`.
    With batches of different sizes the mean of means is not the mean over all. The sum of losses,
    times ``world_size / count``, is: each sequence counts the same, wherever it was computed.

    Parameters
    ----------
    losses : Tensor, shape (B,)
        Of the sequences of this process; none is allowed.
    count : int
        Sequences of all processes in this step.
    """
    return losses.sum() * (world_size / count)


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Data, steps: list[list[np.ndarray]]
) -> float:
    """Take all steps; return the mean loss over the sequences of all processes."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    total = torch.zeros((), device=data.device)
    for step in steps:
        windows, lengths, speakers = data.tensors(step[rank])
        losses = cross_entropy(model(windows, lengths), speakers, reduction="none")
        # Every process knows the batches of the others: nothing has to be sent for the count.
        loss = share_of_loss(losses, sum(map(len, step)), world_size)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += losses.detach().sum()
    dist.all_reduce(total)
    return total.item() / len(data.speakers)


@torch.no_grad()
def accuracy(model: DistributedDataParallel, data: Data, steps: list[list[np.ndarray]]) -> float:
    """Return the share of utterances that are named right; each process names its own share."""
    right = torch.zeros((), device=data.device)
    for step in steps:
        windows, lengths, speakers = data.tensors(step[dist.get_rank()])
        right += (model.module(windows, lengths).argmax(dim=1) == speakers).sum()
    dist.all_reduce(right)
    return right.item() / len(data.speakers)


def join() -> torch.device:
    """Join the processes that torchrun started, or be alone; return the device to compute on."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    on_gpu = torch.cuda.device_count() >= local_size
    backend = "nccl" if on_gpu else "gloo"
    if dist.is_torchelastic_launched():
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    if not on_gpu:
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def train(device: torch.device, epochs: int, max_cells: int, seed: int) -> None:
    """Train, and let the first process say how it goes."""
    says = dist.get_rank() == 0
    training, test = load()
    scaling = Scaling.of(training)
    seen, unseen = Data(training, scaling, device), Data(test, scaling, device)
    torch.manual_seed(seed)
    model = DistributedDataParallel(SpeakerModel(seen.windows.values.shape[1]).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    steps_of_test = unseen.steps(max_cells, seed, epoch=0)
    if says:
        print(f"{dist.get_world_size()} processes on {device.type}, {dist.get_backend()}")
    for epoch in range(epochs):
        steps = seen.steps(max_cells, seed, epoch)
        loss = train_epoch(model, optimizer, seen, steps)
        right = accuracy(model, unseen, steps_of_test)
        if says:
            print(
                f"epoch {epoch + 1:2}  {len(steps)} steps  loss {loss:.3f}  "
                f"accuracy {right:.1%}  padding {seen.waste(steps):.1%}"
            )


def what_is_wrong(epochs: int, max_cells: int, seed: int) -> str:
    """Return why there can be no training with these arguments; nothing where there can."""
    longest = max(len(frames) for utterances in load() for frames in utterances.frames)
    if epochs < 1:
        return f"--epochs {epochs}: expected 1 or more"
    if max_cells < longest:
        return (
            f"--cells {max_cells}: expected {longest} or more, the frames of the longest utterance"
        )
    if seed < 0:
        return f"--seed {seed}: expected 0 or more"
    return ""


def main() -> None:
    """Read the command line, and train."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--cells", type=int, default=256, help="padded frames of one batch")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    wrong = what_is_wrong(arguments.epochs, arguments.cells, arguments.seed)
    device = join()
    if wrong:
        if dist.get_rank() == 0:
            print(f"{parser.prog}: error: {wrong}", file=sys.stderr, flush=True)
        dist.barrier()  # no process ends, and takes the others with it, before that is said
        dist.destroy_process_group()
        sys.exit(2)
    # The model is gone before the connections are closed: a DistributedDataParallel that outlives
    # them can hang.
    train(device, arguments.epochs, arguments.cells, arguments.seed)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
