"""What `udfkit.torch.apply` refuses, which dtypes it takes, and modules."""

from __future__ import annotations

import copy
import pickle
import warnings

import ml_dtypes
import numpy as np
import pytest
import torch

import adapted_functions as adapted
import udfkit
import udfkit.torch

OFFSETS = torch.tensor([0, 2, 3])
VALUES = torch.zeros(3, 2, dtype=torch.float64)


def square(dtype=np.float64, shape=2):
    return adapted.Square([adapted.sequences(shape, dtype, name="x")])


BAD = {
    "a bare tensor": (VALUES, TypeError, "pass a nested jagged tensor, \\(padded, lengths\\)"),
    "a list": ([VALUES], TypeError, "is a list of 1 \\(Tensor\\)"),
    "None": (None, TypeError, "is a NoneType"),
    "decreasing offsets": (
        (VALUES, torch.tensor([0, 3, 2, 3])),
        ValueError,
        "offset 2 at position 2 is below 3",
    ),
    "offsets from 1": ((VALUES, torch.tensor([1, 3])), ValueError, "first offset must be 0"),
    "offsets too far": ((VALUES, torch.tensor([0, 4])), ValueError, "offset 4 .* overruns the 3"),
    "offsets too short": (
        (VALUES, torch.tensor([0, 2])),
        ValueError,
        "input 'x': the last offset is 2, but there are 3 values: .* values\\[:2\\]",
    ),
    "no offsets": ((VALUES, torch.tensor([], dtype=torch.int64)), ValueError, "offsets are empty"),
    "float offsets": ((VALUES, torch.tensor([0.0, 3.0])), ValueError, "vector of integers"),
    "too long": (
        (VALUES.reshape(1, 3, 2), torch.tensor([4])),
        ValueError,
        "length 4 of sequence 0 is out of range: expected 0 to 3",
    ),
    "negative": (
        (VALUES.reshape(1, 3, 2), torch.tensor([-1])),
        ValueError,
        "length -1 of sequence",
    ),
    "too many lengths": (
        (VALUES.reshape(1, 3, 2), torch.tensor([1, 2])),
        ValueError,
        "expected 1 integers",
    ),
    "mask of another shape": (
        (VALUES.reshape(1, 3, 2), torch.ones(1, 4, dtype=torch.bool)),
        ValueError,
        "mask of shape \\(1, 4\\) does not fit data of shape \\(1, 3, 2\\)",
    ),
    "mask of other codes": (
        (VALUES.reshape(1, 3, 2), torch.tensor([[1, 7, 0]])),
        ValueError,
        "mask value 7 at \\(0, 1\\)",
    ),
    "another rank": (
        (torch.zeros(1, 1, 1, 2, dtype=torch.float64), torch.tensor([1])),
        ValueError,
        "pair of shapes \\(1, 1, 1, 2\\) and \\(1,\\)",
    ),
    "another sample shape": (
        (torch.zeros(3, 5, dtype=torch.float64), OFFSETS),
        ValueError,
        "shape \\(3, 5\\), expected \\(total, 2\\)",
    ),
    "complex": ((VALUES + 1j, OFFSETS), TypeError, "input 'x' has dtype complex128"),
    "lengths of floats": (
        (VALUES.reshape(1, 3, 2), torch.tensor([1.0])),
        ValueError,
        "input 'x': lengths are float32",
    ),
    "arrays": (
        (VALUES.numpy(), OFFSETS),
        TypeError,
        "tuple of 2 \\(ndarray, Tensor\\).*of tensors",
    ),
    "sparse": ((VALUES.to_sparse(), OFFSETS), TypeError, "layout torch.sparse_coo"),
    "meta": ((VALUES.to("meta"), OFFSETS), udfkit.DeviceError, "input 'x' is on meta, .* no data"),
    "meta offsets": ((VALUES, OFFSETS.to("meta")), udfkit.DeviceError, "are on meta, .* no data"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    given, kind, text = BAD[name]
    with pytest.raises(kind, match=text):
        udfkit.torch.apply(square(), given)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_of_the_other_layout():
    with pytest.raises(TypeError, match=r"layout=torch\.jagged"):
        udfkit.torch.apply(square(), torch.nested.as_nested_tensor([VALUES, VALUES]))


def test_bad_calls():
    function = square()
    with pytest.raises(TypeError, match=r"takes 1 input\(s\), \['x'\], got 2: .* as one tu"):
        udfkit.torch.apply(function, VALUES, OFFSETS)
    for call in (udfkit.torch.apply, lambda fn, _: udfkit.torch.Module(fn)):
        with pytest.raises(TypeError, match="fn is the class Square, expected a function made of"):
            call(adapted.Square, (VALUES, OFFSETS))
        with pytest.raises(TypeError, match=r"fn is a function, expected a udfkit.UserFunction"):
            call(square, (VALUES, OFFSETS))
    with pytest.raises(ValueError, match="out_form is 'padded', expected one of \\['nested', "):
        udfkit.torch.apply(function, (VALUES, OFFSETS), out_form="padded")
    values = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(ValueError, match="agree on the batch size: 'a' has 2 sequences, 'b' has 3"):
        udfkit.torch.apply(adapted.several(), (values, OFFSETS), (values, torch.arange(4)))
    plain = adapted.Affine([udfkit.input_variable(2, np.float64, name="y")])
    with pytest.raises(
        ValueError, match="'y' is a tensor of shape \\(3, 4\\), expected \\(B, 2\\)"
    ):
        udfkit.torch.apply(plain, torch.zeros(3, 4, dtype=torch.float64))
    with pytest.raises(TypeError, match="'y' has no sequence axis and is a tuple of 2"):
        udfkit.torch.apply(plain, (VALUES, OFFSETS))
    empty = (torch.zeros(0, 2, dtype=torch.float64), torch.tensor([0, 0]))
    with pytest.raises(ValueError, match=r"PackedSequence.*sequence 0 is empty.*out_form="):
        udfkit.torch.apply(function, empty, out_form="packed")
    nested = torch.nested.nested_tensor_from_jagged(VALUES, OFFSETS).transpose(1, 2)
    with pytest.raises(ValueError, match="ragged in dimension 2, expected 1"):
        udfkit.torch.apply(function, nested)


def test_bad_input_changes_nothing_and_runs_no_user_code():
    class Never(adapted.Square):
        def forward(self, x, device, outputs_to_retain):
            raise AssertionError

    function = Never([adapted.sequences(2)])
    values = torch.ones(3, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="overruns"):
        udfkit.torch.apply(function, (values, torch.tensor([0, 9])))
    assert torch.equal(values, torch.ones_like(values))


@pytest.mark.parametrize("kind", [adapted.Square, adapted.SquareRagged])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_floats_of_every_width(kind, dtype):
    declared = ml_dtypes.bfloat16 if dtype is torch.bfloat16 else np.dtype(str(dtype)[6:])
    function = kind([adapted.sequences(2, declared)])
    for given in (
        (torch.randn(3, 2).to(dtype).requires_grad_(), OFFSETS),
        (torch.randn(2, 3, 2).to(dtype).requires_grad_(), torch.tensor([3, 3])),
    ):
        for own in (True, False):
            result, _ = udfkit.torch.apply(function, given, copy=own)
            assert result.dtype is dtype
            assert torch.equal(result, given[0] * given[0])
            given[0].grad = None
            result.backward(torch.ones_like(result))
            assert given[0].grad.dtype is dtype
            assert torch.equal(given[0].grad, 2 * given[0])


def test_bfloat16_bits_survive():
    class Same(adapted.Square):
        def forward(self, x, device, outputs_to_retain):
            assert all(s.dtype == ml_dtypes.bfloat16 for s in x)
            return None, x

    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    values = bits.view(torch.bfloat16)
    function = Same([adapted.sequences((), ml_dtypes.bfloat16)])
    result, _ = udfkit.torch.apply(function, (values, torch.tensor([0, 5, 2**16])))
    assert torch.equal(result.view(torch.int16), bits)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.uint16])
def test_integers(dtype):
    declared = torch.zeros(1, dtype=dtype).numpy().dtype
    x = udfkit.sequence.input_variable((), declared)
    values = torch.tensor([0, 1, 1], dtype=dtype)
    result, _ = udfkit.torch.apply(adapted.Square([x]), (values, OFFSETS))
    assert result.dtype is dtype
    assert result.tolist() == values.tolist()


def test_another_dtype_is_cast_with_one_warning():
    function = square(np.float32)
    values = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    with pytest.warns(udfkit.CastWarning, match="float64 are cast to float32 for variable 'x'"):
        result, _ = udfkit.torch.apply(function, (values, OFFSETS))
    result.sum().backward()
    assert result.dtype is torch.float32
    assert values.grad.dtype is torch.float64
    torch.testing.assert_close(values.grad, 2 * values.detach().float().double())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        udfkit.torch.apply(function, (values, OFFSETS))
    halves = torch.randn(3, 2).bfloat16().requires_grad_()
    result, _ = udfkit.torch.apply(function, (halves, OFFSETS))
    result.sum().backward()
    assert torch.equal(result, halves.float() ** 2)
    assert halves.grad.dtype is torch.bfloat16
    with pytest.raises(ValueError, match=r"1e\+300 at index \(0, 0\).*cannot be held by"):
        udfkit.torch.apply(function, (torch.full_like(VALUES, 1e300), OFFSETS))
    counts = udfkit.sequence.input_variable(2, np.int64, name="n")
    with pytest.raises(TypeError, match="'n' is bfloat16, its variable int64"):
        udfkit.torch.apply(adapted.Square([counts]), (halves.detach(), OFFSETS))


def test_autocast_computes_in_the_declared_dtypes_without_a_warning():
    function = square(np.float32)
    weight = torch.randn(2, 2, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16), warnings.catch_warnings():
        warnings.simplefilter("error")
        inner = torch.randn(3, 2) @ weight
        assert inner.dtype is torch.bfloat16
        result, _ = udfkit.torch.apply(function, (inner, OFFSETS))
        assert result.dtype is torch.float32
        assert torch.equal(result, inner.float() ** 2)
        (result @ weight).sum().backward()
    assert weight.grad.dtype is torch.float32


def test_module_parameters():
    function = adapted.scale()
    module = udfkit.torch.Module(function)
    assert [(n, p.tolist()) for n, p in module.named_parameters()] == [
        ("weight", [1.0, 2.0]),
        ("layer_bias", [0.5, 0.5]),
    ]
    values = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    result, _ = module((values, OFFSETS))
    result.sum().backward()
    assert torch.equal(values.grad, module.weight.detach().expand(3, 2))
    torch.testing.assert_close(module.weight.grad, values.detach().sum(dim=0))
    assert torch.equal(module.layer_bias.grad, torch.full((2,), 3.0, dtype=torch.float64))
    torch.optim.SGD(module.parameters(), lr=1.0).step()
    assert function.inputs[1].value.tolist() == [1.0, 2.0]
    module.update_function()
    assert np.array_equal(function.inputs[1].value, module.weight.detach().numpy())
    with torch.no_grad():
        module.weight.zero_()
    assert function.inputs[1].value.any()
    assert "UserDefinedFunction" in repr(module) or function.name in repr(module)


def test_module_state_dict_copies_and_pickles(tmp_path):
    module = udfkit.torch.Module(adapted.scale())
    with torch.no_grad():
        module.weight.copy_(torch.tensor([7.0, 8.0]))
    torch.save(module.state_dict(), tmp_path / "state.pt")
    other = udfkit.torch.Module(adapted.scale())
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    given = (torch.ones(3, 2, dtype=torch.float64), OFFSETS)
    expected = module(given)[0]
    for again in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(again(given)[0], expected)
    copied = copy.deepcopy(module)
    with torch.no_grad():
        copied.weight.zero_()
    assert torch.equal(module(given)[0], expected)


def test_parameters_left_out_have_their_own_values_without_gradient():
    function = adapted.scale()
    values = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    result, _ = udfkit.torch.apply(function, (values, OFFSETS))
    assert torch.equal(result, values * torch.tensor([1.0, 2.0]) + 0.5)
    result.sum().backward()
    assert function.asked == [function.inputs[0]]


def test_module_with_constants_and_unnamed_parameters():
    x = adapted.sequences(2, name="x")
    function = adapted.Scale(
        [x, udfkit.Constant(np.array([3.0, 4.0])), udfkit.Parameter(init=np.zeros(2))]
    )
    module = udfkit.torch.Module(function, out_form="lengths")
    assert list(module.state_dict()) == ["value2"]
    result, lengths = module((torch.ones(3, 2, dtype=torch.float64), OFFSETS))
    assert lengths.tolist() == [2, 1]
    assert result[1].tolist() == [[3.0, 4.0], [0.0, 0.0]]
    with pytest.raises(TypeError, match=r"takes 1 input\(s\), \['x'\], got 2"):
        module(1, 2)


def test_module_refuses_names_that_it_cannot_use():
    x = adapted.sequences(2)
    for name in ("forward", "fn"):
        function = adapted.Scale(
            [x, udfkit.Parameter(init=np.ones(2), name=name), udfkit.Parameter(init=np.ones(2))]
        )
        with pytest.raises(ValueError, match=f"cannot be '{name}' in a module"):
            udfkit.torch.Module(function)


def test_training_moves_towards_the_data():
    module = udfkit.torch.Module(adapted.scale())
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    values = torch.randn(40, 2, dtype=torch.float64)
    offsets = torch.arange(0, 41, 8)
    target = values * torch.tensor([-1.0, 4.0]) + 2.0
    for _ in range(300):
        optimizer.zero_grad()
        loss = ((module((values, offsets))[0] - target) ** 2).mean()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(
        module.weight.detach(), torch.tensor([-1.0, 4.0]).double(), atol=1e-2, rtol=0
    )


LENGTHS = torch.tensor([2, 0])
PADDED_FORMS = {
    "lengths": (LENGTHS, [[0, 1], []]),
    "mask": (torch.tensor([[True, True, False], [False] * 3]), [[0, 1], []]),
    "left padding": (torch.tensor([[False, True, True], [False] * 3]), [[1, 2], []]),
    "gap": (torch.tensor([[True, False, True], [False] * 3]), [[0, 2], []]),
}


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("form", PADDED_FORMS)
@pytest.mark.parametrize(
    ("dtype", "rubbish"),
    [(np.float32, 1e300), (np.int32, float("nan")), (np.int32, 0.5), (np.bool_, 7.0)],
)
def test_padding_is_not_cast(dtype, rubbish, form, copy):
    extents, valid = PADDED_FORMS[form]
    tensor = torch.full((2, 3), rubbish, dtype=torch.float64)
    for row, steps in enumerate(valid):
        tensor[row, steps] = 1.0
    variable = udfkit.sequence.input_variable((), dtype, name="x")
    seen = []

    class Looks(adapted.Square):
        def forward(self, arg, device, outputs_to_retain):
            seen.extend(np.array(sequence) for sequence in arg)
            return None, arg

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", udfkit.CastWarning)
        udfkit.torch.apply(Looks([variable]), (tensor, extents), copy=copy)
        assert [s.tolist() for s in seen] == [[1, 1], []]
        assert seen[0].dtype == dtype
        tensor[0, valid[0][1]] = rubbish
        index = f"index \\(0, {valid[0][1]}\\)"
        with pytest.raises(ValueError, match=f"input 'x': value .* at {index}"):
            udfkit.torch.apply(Looks([variable]), (tensor, extents), copy=copy)


def test_what_numpy_cannot_read_is_told_another_way():
    variable = udfkit.sequence.input_variable((), name="x")
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged)
    for batch in (nested, torch.ones(2, 3, dtype=torch.bfloat16)):
        with pytest.raises(TypeError, match=r"udfkit\.Ragged\.from_torch.*udfkit\.torch\.apply"):
            udfkit.sanitize_batch(variable, batch)
