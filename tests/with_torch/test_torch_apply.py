"""`udfkit.torch.apply` computes what the same formula computes in PyTorch, in every form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import adapted_functions as adapted
import udfkit
import udfkit.torch

FORMS = ["nested", "lengths", "mask", "offsets", "packed"]
LENGTHS = [3, 0, 2, 1]
CLASSES = [
    adapted.Square,
    adapted.SquareRagged,
    adapted.SquareValue,
    adapted.SquareBroken,
]


def offsets_of(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *np.cumsum(lengths).tolist()])


def cells_of(lengths: list[int], steps: int) -> torch.Tensor:
    return torch.arange(steps) < torch.tensor(lengths).reshape(-1, 1)


def batch(form: str, lengths: list[int], shape=(2,), dtype=torch.float64, steps: int = 4):
    """Return a batch in a form, the leaf tensor, and the function from the leaf to flat samples."""
    generator = torch.Generator().manual_seed(5)
    total = sum(lengths)
    if form in ("lengths", "mask"):
        leaf = torch.randn((len(lengths), steps, *shape), generator=generator, dtype=torch.float64)
        leaf = leaf.to(dtype).requires_grad_()
        cells = cells_of(lengths, steps)
        return (leaf, torch.tensor(lengths) if form == "lengths" else cells), leaf, cells
    leaf = torch.randn((total, *shape), generator=generator, dtype=torch.float64)
    leaf = leaf.to(dtype).requires_grad_()
    if form == "offsets":
        return (leaf, offsets_of(lengths)), leaf, None
    if form == "nested":
        made = torch.nested.nested_tensor_from_jagged(leaf, offsets_of(lengths))
        return made, leaf, None
    parts = torch.nn.utils.rnn.pad_sequence(torch.split(leaf, lengths), batch_first=True)
    packed = pack_padded_sequence(
        parts, torch.tensor(lengths), batch_first=True, enforce_sorted=False
    )
    return packed, leaf, None


def flat(result, lengths: list[int]) -> torch.Tensor:
    """Return the samples of a batch in any form, by torch alone."""
    if isinstance(result, PackedSequence):
        padded, found = pad_packed_sequence(result, batch_first=True)
        assert found.tolist() == lengths
        return padded[cells_of(lengths, padded.shape[1])]
    if isinstance(result, torch.Tensor):
        assert result.is_nested
        assert result.offsets().diff().tolist() == lengths
        return result.values()
    tensor, extents = result
    if extents.dtype == torch.bool:
        assert extents.sum(dim=1).tolist() == lengths
        assert not tensor[~extents].any()
        return tensor[extents]
    if tensor.shape[0] == len(extents) and tensor.dim() > 2:
        assert extents.tolist() == lengths
        return tensor[cells_of(lengths, tensor.shape[1])]
    assert extents.diff().tolist() == lengths
    return tensor


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("out_form", [None, *FORMS])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_forward_and_backward(kind, copy, out_form, form):
    lengths = [3, 1, 2] if "packed" in (form, out_form) else LENGTHS
    function = kind([adapted.sequences(2)])
    given, leaf, cells = batch(form, lengths)
    result = udfkit.torch.apply(function, given, out_form=out_form, copy=copy)
    found = flat(result, lengths)
    samples = leaf if cells is None else leaf[cells]
    if kind is adapted.SquareBroken:
        torch.testing.assert_close(found, (samples * samples).float().double(), rtol=0, atol=0)
    else:
        assert torch.equal(found, samples * samples)
    weights = torch.arange(found.numel(), dtype=found.dtype).reshape(found.shape)
    (found * weights).sum().backward()
    expected = torch.zeros_like(leaf)
    if cells is None:
        expected = 2 * leaf.detach() * weights
    else:
        expected[cells] = 2 * samples.detach() * weights
    assert torch.equal(leaf.grad, expected)


@pytest.mark.parametrize("out_form", ["offsets", "lengths"])
@pytest.mark.parametrize("form", ["offsets", "lengths", "mask", "packed"])
def test_gradcheck(form, out_form):
    lengths = [2, 1] if form == "packed" else [2, 0, 1]
    function = adapted.Square([adapted.sequences(2)])
    given, leaf, _ = batch(form, lengths, steps=3)

    def run(tensor):
        again = given._replace(data=tensor) if form == "packed" else (tensor, given[1])
        return udfkit.torch.apply(function, again, out_form=out_form)[0]

    start = given.data.detach().requires_grad_() if form == "packed" else leaf
    assert torch.autograd.gradcheck(run, (start,))


def test_gradcheck_tells_a_wrong_gradient():
    class Wrong(adapted.Square):
        def backward(self, x, grad):
            return [s * g for s, g in zip(x, grad, strict=True)]

    (_, offsets), leaf, _ = batch("offsets", LENGTHS)
    function = Wrong([adapted.sequences(2)])
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(lambda v: udfkit.torch.apply(function, (v, offsets))[0], (leaf,))


def test_gradcheck_of_several_inputs_and_outputs():
    function = adapted.several()
    (_, lengths), first, _ = batch("lengths", LENGTHS, shape=())
    b = torch.randn(sum(LENGTHS), dtype=torch.float64, requires_grad=True)

    def run(first, second):
        product, total, count = udfkit.torch.apply(
            function, (first, lengths), (second, offsets_of(LENGTHS))
        )
        assert count.tolist() == LENGTHS
        return product[0], total

    assert torch.autograd.gradcheck(run, (first, b))


def test_gradcheck_of_parameters():
    function = adapted.scale()
    (_, offsets), leaf, _ = batch("offsets", LENGTHS)
    weight, bias = (
        torch.randn(2, dtype=torch.float64, requires_grad=True),
        torch.randn(2, dtype=torch.float64, requires_grad=True),
    )
    assert torch.autograd.gradcheck(
        lambda v, w, b: udfkit.torch.apply(function, (v, offsets), w, b)[0], (leaf, weight, bias)
    )


def test_sequence_to_batch_and_back():
    function = adapted.Mean([adapted.sequences(2)])
    given, leaf, _ = batch("lengths", LENGTHS)
    means = udfkit.torch.apply(function, given)
    assert means.shape == (4, 2)
    cells = cells_of(LENGTHS, 4).unsqueeze(-1)
    count = torch.tensor(LENGTHS).clamp(min=1).unsqueeze(-1)
    torch.testing.assert_close(means, (leaf * cells).sum(dim=1) / count)
    assert torch.autograd.gradcheck(lambda x: udfkit.torch.apply(function, (x, given[1])), (leaf,))


@pytest.mark.parametrize("axes", [adapted.BATCH, ()])
@pytest.mark.parametrize("copy", [True, False])
def test_variables_without_a_sequence_axis(axes, copy):
    x = udfkit.input_variable((3,) if axes else (4, 3), np.float64, True, dynamic_axes=axes)
    function = adapted.Affine([x])
    leaf = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    result = udfkit.torch.apply(function, leaf, copy=copy)
    assert torch.equal(result, 2 * leaf + 1)
    assert torch.autograd.gradcheck(lambda x: udfkit.torch.apply(function, x, copy=copy), (leaf,))


@pytest.mark.parametrize("form", ["nested", "lengths", "mask", "offsets"])
def test_output_of_other_lengths(form):
    function = adapted.DropFirst([adapted.sequences(2)])
    given, leaf, cells = batch(form, LENGTHS)
    result = udfkit.torch.apply(function, given)
    shorter = [max(n - 1, 0) for n in LENGTHS]
    found = flat(result, shorter)
    samples = leaf if cells is None else leaf[cells]
    kept = torch.ones(sum(LENGTHS), dtype=torch.bool)
    kept[[0, 3, 5]] = False
    assert torch.equal(found, samples[kept])
    found.sum().backward()
    grad = leaf.grad if cells is None else leaf.grad[cells]
    assert torch.equal(grad, kept.unsqueeze(-1).expand(-1, 2).double())


@pytest.mark.parametrize("form", ["lengths", "mask", "offsets"])
@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]])
@pytest.mark.parametrize("shape", [(), (2,), (0,), (2, 0, 3)])
def test_empty_batches(form, lengths, shape):
    function = adapted.Square([adapted.sequences(shape)])
    given, leaf, _ = batch(form, lengths, shape=shape, steps=0 if not lengths else 2)
    tensor, extents = udfkit.torch.apply(function, given)
    assert tensor.shape == leaf.shape
    assert torch.equal(extents, given[1])
    tensor.sum().backward()
    assert not leaf.grad.any()
    assert leaf.grad.shape == leaf.shape


def test_mask_with_gaps_left_padding_and_an_empty_row():
    mask = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0]], dtype=torch.bool)
    leaf = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    for kind in CLASSES[:3]:
        leaf.grad = None
        result, found = udfkit.torch.apply(kind([adapted.sequences(2)]), (leaf, mask))
        assert found is mask
        assert torch.equal(result, torch.where(mask.unsqueeze(-1), leaf * leaf, 0.0))
        result.sum().backward()
        assert torch.equal(leaf.grad, torch.where(mask.unsqueeze(-1), 2 * leaf, 0.0))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_padding_is_never_seen(poison):
    function = adapted.Square([adapted.sequences()])
    leaf = torch.full((2, 3), poison, dtype=torch.float64)
    leaf[0, :2] = torch.tensor([1.0, 2.0])
    leaf.requires_grad_()
    result, _ = udfkit.torch.apply(function, (leaf, torch.tensor([2, 0])))
    assert result.tolist() == [[1.0, 4.0, 0.0], [0.0, 0.0, 0.0]]
    result.backward(torch.where(leaf.isfinite(), 1.0, poison))
    assert leaf.grad.tolist() == [[2.0, 4.0, 0.0], [0.0, 0.0, 0.0]]


def test_parts_of_the_output_are_shared_with_the_input():
    function = adapted.Square([adapted.sequences(2)])
    for form in ("lengths", "mask", "offsets"):
        given, _, _ = batch(form, LENGTHS)
        assert udfkit.torch.apply(function, given)[1] is given[1]
    nested, _, _ = batch("nested", LENGTHS)
    assert (udfkit.torch.apply(function, nested) - nested).shape == nested.shape


def test_lengths_may_be_lists_and_any_integers():
    function = adapted.Square([adapted.sequences()])
    data = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    for lengths in ([2, 3], (2, 3), np.array([2, 3], np.uint8), torch.tensor([2, 3]).int()):
        result, found = udfkit.torch.apply(function, (data, lengths))
        assert result.tolist() == [[0, 1, 0], [9, 16, 25]]
        assert found is lengths
    result, _ = udfkit.torch.apply(function, (data[:0], []))
    assert result.shape == (0, 3)


def test_large_batches_go_the_way_with_threads():
    lengths = [20_000, 0, 30_000, 1]
    for form in ("offsets", "lengths"):
        given, leaf, cells = batch(form, lengths, shape=(8,), steps=30_000)
        result = udfkit.torch.apply(adapted.Square([adapted.sequences(8)]), given)
        result[0].sum().backward()
        expected = 2 * leaf.detach()
        if cells is not None:
            expected[~cells] = 0
        assert torch.equal(leaf.grad, expected)


def test_free_dimension():
    function = adapted.Square([adapted.sequences((udfkit.FreeDimension, 2))])
    leaf = torch.randn(3, 5, 2, dtype=torch.float64, requires_grad=True)
    result, _ = udfkit.torch.apply(function, (leaf, torch.tensor([0, 1, 3])))
    assert torch.equal(result, leaf * leaf)
    result.sum().backward()
    assert torch.equal(leaf.grad, 2 * leaf)


@pytest.mark.parametrize("contract", ["auto", "cntk-beta", "cntk-2.0", "cntk-2.7"])
def test_contracts(contract):
    class Chosen(adapted.Square):
        pass

    Chosen.contract = contract
    (values, offsets), leaf, _ = batch("offsets", LENGTHS)
    result, _ = udfkit.torch.apply(Chosen([adapted.sequences(2)]), (values, offsets))
    result.sum().backward()
    assert torch.equal(leaf.grad, 2 * leaf)


def test_a_named_axis_means_equal_lengths():
    axis = udfkit.Axis("words")
    a, b = (
        udfkit.sequence.input_variable((), np.float64, sequence_axis=axis, name=name)
        for name in "ab"
    )
    values = torch.zeros(5, dtype=torch.float64)
    one, other = torch.tensor([0, 2, 5]), torch.tensor([0, 3, 5])
    with pytest.raises(ValueError, match="sequence 0 has length 3, expected 2, the length of"):
        udfkit.torch.apply(adapted.Several([a, b]), (values, one), (values, other))

    class Shorter(adapted.Square):
        def forward(self, x, device, outputs_to_retain):
            return None, [s[1:] for s in x]

    with pytest.raises(ValueError, match="sequence 0 has length 1, expected 2, the length of"):
        udfkit.torch.apply(Shorter([a]), (values, one))
