"""What a user function costs in PyTorch over a hand-written autograd.Function that does nothing.

Identity functions over 8 short sequences, forward and backward on one thread. The two are called in
turn, so that both run in the same state of the machine and its caches; then each alone, in a loop
of its own. Needs PyTorch: ``python benchmarks/with_torch/torch_overhead.py``.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch  # noqa: TID251

import udfkit
import udfkit.torch

LENGTHS = [3, 5, 2, 7, 1, 4, 6, 2]
SAMPLE_SIZE = 4
CALLS = 2000
WARM_UP = 200


class Nothing(torch.autograd.Function):
    """The hand-written function."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


class Identity(udfkit.UserFunction):
    """Returns what it gets."""

    def infer_outputs(self):
        x = self.inputs[0]
        return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]

    def forward(self, x, device, outputs_to_retain):
        return None, x

    def backward(self, state, grad):
        return grad


class RaggedIdentity(Identity):
    """The same, with a Ragged instead of a list of arrays."""

    layout = "ragged"


def in_turn(calls: list[Callable[[], None]], rounds: int) -> list[float]:
    """Return the median microseconds of each call, called one after the other."""
    times: list[list[float]] = [[] for _ in calls]
    for k in range(rounds + WARM_UP):
        for call, taken in zip(calls, times, strict=True):
            begin = time.perf_counter()
            call()
            end = time.perf_counter()
            if k >= WARM_UP:
                taken.append(1e6 * (end - begin))
    return [statistics.median(taken) for taken in times]


def cases() -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
    """Return for each case the call of the hand-written function, and that of the user function."""
    lengths = torch.tensor(LENGTHS)
    offsets = torch.tensor([0, *np.cumsum(LENGTHS).tolist()])
    values = torch.randn(sum(LENGTHS), SAMPLE_SIZE, requires_grad=True)
    data = torch.randn(len(LENGTHS), max(LENGTHS), SAMPLE_SIZE, requires_grad=True)
    ones = {id(x): torch.ones_like(x) for x in (values, data)}
    x = udfkit.sequence.input_variable(SAMPLE_SIZE, needs_gradient=True)
    plain, ragged = Identity([x]), RaggedIdentity([x])

    def nothing(tensor):
        return lambda: Nothing.apply(tensor).backward(ones[id(tensor)])

    def user(function, tensor, extents, **options):
        def call():
            result = udfkit.torch.apply(function, (tensor, extents), **options)
            result[0].backward(ones[id(tensor)])

        return call

    def nested_nothing():
        nested = torch.nested.nested_tensor_from_jagged(values, offsets)
        made = torch.nested.nested_tensor_from_jagged(
            Nothing.apply(nested.values()), nested.offsets()
        )
        made.values().backward(ones[id(values)])

    def nested_user():
        nested = torch.nested.nested_tensor_from_jagged(values, offsets)
        udfkit.torch.apply(plain, nested).values().backward(ones[id(values)])

    return {
        "(values, offsets), list": (nothing(values), user(plain, values, offsets)),
        "(padded, lengths), list": (nothing(data), user(plain, data, lengths)),
        "(values, offsets), Ragged": (nothing(values), user(ragged, values, offsets)),
        "(values, offsets), copy=False": (
            nothing(values),
            user(ragged, values, offsets, copy=False),
        ),
        "nested jagged tensor, list": (nested_nothing, nested_user),
    }


def main() -> None:
    """Print one line a case."""
    torch.set_num_threads(1)
    head = f"{'us a forward and backward':32}{'nothing':>9}{'udfkit':>9}{'more':>7}"
    sys.stdout.write(f"{head}   alone: more\n")
    for name, (nothing, user) in cases().items():
        bare, full = in_turn([nothing, user], CALLS)
        alone = in_turn([user], CALLS)[0] - in_turn([nothing], CALLS)[0]
        line = f"{name:32}{bare:9.1f}{full:9.1f}{full - bare:7.1f}{alone:14.1f}"
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
