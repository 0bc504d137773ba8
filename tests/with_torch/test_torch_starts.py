"""Starts of sequences, and masks with gaps, through `udfkit.torch.apply`, whatever comes out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence

import adapted_functions as adapted
import udfkit
import udfkit.torch

FORMS = ["nested", "lengths", "mask", "offsets", "packed"]
MASKS = {
    "new": [[2, 1, 1, 0], [2, 0, 0, 0]],
    "gaps": [[0, 2, 0, 1], [0, 0, 2, 1]],
    "left": [[0, 2, 1, 1], [0, 0, 0, 2]],
    "several in a row": [[2, 2, 1, 2], [2, 1, 0, 0]],
    "continued": [[1, 1, 1, 0], [2, 1, 0, 0]],
    "continued in gaps": [[2, 1, 0, 0], [0, 1, 0, 1]],
}
PADDED = torch.arange(1.0, 17, dtype=torch.float64).reshape(2, 4, 2)


class Seen(adapted.Square):
    """Notes the starts that it gets."""

    def forward(self, x, device, outputs_to_retain):
        self.starts = [x.starts.tolist()]
        return super().forward(x, device, outputs_to_retain)

    def backward(self, x, grad):
        self.starts.append(grad.starts.tolist())
        return super().backward(x, grad)


class SeenRagged(Seen, adapted.SquareRagged):
    pass


class SeenValue(Seen, adapted.SquareValue):
    pass


def sequences_of(mask: list[list[int]]) -> list[list[tuple[int, int]]]:
    """The cells of each sequence, by the definition of the codes."""
    found: list[list[tuple[int, int]]] = []
    for i, row in enumerate(mask):
        cells = [(j, code) for j, code in enumerate(row) if code]
        for k, (j, code) in enumerate(cells):
            if k == 0 or code == 2:
                found.append([])
            found[-1].append((i, j))
    return found


def continued(mask: list[list[int]]) -> list[bool]:
    return [mask[cells[0][0]][cells[0][1]] == 1 for cells in sequences_of(mask)]


def sequences_in(form: str, made: object) -> list[np.ndarray]:
    """Read what came out, by torch's own means."""
    if isinstance(made, PackedSequence):
        padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(made, batch_first=True)
        return [row[:n].detach().numpy() for row, n in zip(padded, lengths, strict=True)]
    if isinstance(made, torch.Tensor):
        return [part.detach().numpy() for part in made.unbind()]
    data, extents = made
    data = data.detach().numpy()
    if form == "lengths":
        assert not any(row[n:].any() for row, n in zip(data, extents, strict=True))
        return [row[:n] for row, n in zip(data, extents.tolist(), strict=True)]
    if form == "offsets":
        return [data[a:b] for a, b in pairwise(extents.tolist())]
    assert not data[extents.numpy() == 0].any()
    cells = sequences_of(extents.tolist())
    return [np.array([data[i, j] for i, j in sequence]) for sequence in cells]


@pytest.mark.parametrize("kind", [adapted.Square, SeenRagged, SeenValue])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("form", FORMS)
def test_a_mask_comes_out_in_every_form_that_can_say_it(kind, name, form):
    mask = MASKS[name]
    function = kind([adapted.sequences(2)])
    padded = PADDED.clone().requires_grad_()
    given = (padded, torch.tensor(mask, dtype=torch.int8))
    if any(continued(mask)) and form != "mask":
        k = continued(mask).index(True)
        with pytest.raises(ValueError, match=f"sequence {k} continues .* ask for out_form='mask'"):
            udfkit.torch.apply(function, given, out_form=form)
        return
    made = udfkit.torch.apply(function, given, out_form=form)
    if form == "mask":
        assert torch.equal(made[1], given[1])
    expected = [np.array([PADDED[i, j].numpy() for i, j in s]) for s in sequences_of(mask)]
    for got, want in zip(sequences_in(form, made), expected, strict=True):
        np.testing.assert_array_equal(got, want**2)
    (made[0] if isinstance(made, tuple) else made.values()).sum().backward()
    gradient = torch.zeros_like(PADDED)
    for i, j in (cell for sequence in sequences_of(mask) for cell in sequence):
        gradient[i, j] = 2 * PADDED[i, j]
    assert torch.equal(padded.grad, gradient)
    if kind is not adapted.Square:
        assert function.starts == [[not flag for flag in continued(mask)]] * 2


def test_a_mask_of_bool_has_new_sequences_only():
    function = SeenRagged([adapted.sequences(2)])
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]], dtype=torch.bool)
    udfkit.torch.apply(function, (PADDED, mask), out_form="lengths")
    assert function.starts == [[True, True]]


class Longer(udfkit.UserFunction):
    """Results of lengths that no input has, with starts of their own."""

    def infer_outputs(self):
        axis = udfkit.Axis.new_unique_dynamic_axis("longer")
        return [udfkit.output_variable((), np.float64, [udfkit.Axis.default_batch_axis(), axis])]

    def forward(self, x, device, outputs_to_retain):
        return None, udfkit.Ragged(np.arange(5.0), [0, 4, 5], starts=[False, True])


def test_starts_that_user_code_gives_come_out_as_codes():
    function = Longer([adapted.sequences(2)])
    given = (PADDED, torch.tensor([4, 2]))
    data, mask = udfkit.torch.apply(function, given, out_form="mask")
    assert mask.tolist() == [[1, 1, 1, 1], [2, 0, 0, 0]]
    assert mask.dtype == torch.int8
    assert data.tolist() == [[0, 1, 2, 3], [4, 0, 0, 0]]
    with pytest.raises(ValueError, match=r"sequence 0 continues .* form 'lengths' cannot say"):
        udfkit.torch.apply(function, given)


class OfSecond(udfkit.UserFunction):
    """Twice the second input."""

    def infer_outputs(self):
        x = self.inputs[1]
        return [udfkit.output_variable(x.shape, x.dtype, x.dynamic_axes)]

    def forward(self, args, device, outputs_to_retain):
        return None, [2 * s for s in args[1]]

    def backward(self, state, grad, variables):
        for variable in variables:
            variables[variable] = [2.0 * g for g in grad]


@pytest.mark.parametrize("first", ["new", "left"])
@pytest.mark.parametrize("second", ["new", "left"])
def test_a_graph_puts_an_output_into_the_cells_of_its_own_input(first, second):
    masks = {
        "new": torch.tensor([[2, 1, 1, 0], [2, 0, 0, 0]]),
        "left": torch.tensor([[0, 2, 1, 1], [0, 0, 0, 2]]),
    }
    axis = udfkit.Axis.new_unique_dynamic_axis("other")
    function = OfSecond([adapted.sequences(2), adapted.sequences(2, sequence_axis=axis)])
    padded = PADDED.clone().requires_grad_()

    @torch.compile(backend="eager", fullgraph=True)
    def run(x, a, b):
        return udfkit.torch.apply(function, (PADDED, a), (x, b))

    data, mask = run(padded, masks[first], masks[second])
    assert torch.equal(mask, masks[second])
    assert torch.equal(data, torch.where(mask[..., None] != 0, 2 * PADDED, 0))
    data.sum().backward()
    assert torch.equal(padded.grad, 2.0 * (mask != 0)[..., None].expand_as(PADDED))
