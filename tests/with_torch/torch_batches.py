"""One batch in all forms of torch, and a function on Values: for tests of calls on a device."""

from __future__ import annotations

import numpy as np
import torch
from numba import cuda

import adapted_functions as adapted
import udfkit

FORMS = ["nested", "lengths", "mask", "offsets", "packed"]
LENGTHS = [3, 1, 2]
TOTAL = sum(LENGTHS)


class SquareOnDevice(adapted.Square):
    """x * x over Values; the multiplications stand for kernels."""

    def __init__(self, inputs):
        super().__init__(inputs, as_numpy=False)

    def forward(self, x, device, outputs_to_retain):
        assert x.device == device == udfkit.gpu(0)
        assert not isinstance(x.values, np.ndarray)
        values = x.values.copy_to_host()
        return x, self.batch(values * values, x)

    def backward(self, x, grad):
        return self.batch(2 * x.values.copy_to_host() * grad.values.copy_to_host(), x)

    def batch(self, values, like):
        ends = np.cumsum(like.lengths)
        parts = [
            cuda.to_device(values[end - n : end]) for n, end in zip(like.lengths, ends, strict=True)
        ]
        return udfkit.sanitize_batch(self.output, parts, like.starts.tolist(), like.device)


def given_in(form: str, flat: torch.Tensor) -> object:
    offsets = torch.tensor(np.cumsum([0, *LENGTHS]))
    parts = flat.split(LENGTHS)
    padded = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
    if form == "nested":
        return torch.nested.nested_tensor_from_jagged(flat, offsets)
    if form == "offsets":
        return flat, offsets
    if form == "packed":
        return torch.nn.utils.rnn.pack_sequence(parts, enforce_sorted=False)
    if form == "lengths":
        return padded, torch.tensor(LENGTHS)
    mask = torch.arange(3) >= 3 - torch.tensor(LENGTHS)[:, None]
    rows, columns = mask.nonzero(as_tuple=True)
    return torch.full((3, 3, 2), 99.0).index_put((rows, columns), flat), mask


def parts_of(made: object) -> list[torch.Tensor]:
    if isinstance(made, torch.Tensor):
        return [made.values(), made.offsets()]
    return [part for part in made if part is not None]
