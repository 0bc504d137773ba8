"""`udfkit.Collate` in PyTorch data loaders: in the main process, in forked and spawned workers."""

from __future__ import annotations

import numpy as np
import pytest

import reference
from checks import raises
from udfkit.collate import Collate, PaddedBatch

torch = pytest.importorskip("torch")


class Sentences(torch.utils.data.Dataset):
    """Sequence k is ``k % 5`` steps long and holds k."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, k: int) -> dict[str, object]:
        return {
            "x": torch.full((k % 5, 2), float(k)),
            "ids": np.full(k % 5, k),
            "label": k,
            "name": f"s{k}",
        }


def check_all(loader: torch.utils.data.DataLoader) -> None:
    seen = []
    for batch in loader:
        names, labels = batch["name"], batch["label"].tolist()
        assert names == [f"s{k}" for k in labels]
        steps = max(4, *(k % 5 for k in labels))
        x, ids = batch["x"], batch["ids"]
        assert isinstance(x.data, torch.Tensor)
        assert x.data.dtype == torch.float32
        assert x.data.shape == (len(labels), -(-steps // 4) * 4, 2)
        assert x.mask.dtype == torch.int8
        assert torch.equal(x.lengths, torch.tensor([k % 5 for k in labels]))
        for row, k in enumerate(labels):
            length = k % 5
            assert (x.data[row, :length] == k).all()
            assert not x.data[row, length:].any()
            assert (ids.data[row, :length] == k).all()
            assert (ids.data[row, length:] == -100).all()
            assert x.mask[row].tolist() == [2, 1, 1, 1, 1][:length] + [0] * (
                x.data.shape[1] - length
            )
        seen += labels
    assert sorted(seen) == list(range(23))


@pytest.mark.parametrize("context", [None, "fork", "spawn", "forkserver"])
def test_loaders(context):
    workers = {} if context is None else {"num_workers": 2, "multiprocessing_context": context}
    collate = Collate(arrays="torch", multiple_of=4, padding_value={"ids": -100}, overflow="error")
    # The parent has used the library before it forks.
    collate([Sentences()[1], Sentences()[2]])
    loader = torch.utils.data.DataLoader(
        Sentences(), batch_size=5, shuffle=True, collate_fn=collate, **workers
    )
    check_all(loader)


def test_large_batches_from_forked_workers():
    class Long(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, k: int) -> torch.Tensor:
            return torch.full((4000 * (k + 1), 32), float(k))

    Collate()([Long()[7], Long()[6]])
    loader = torch.utils.data.DataLoader(
        Long(), batch_size=4, collate_fn=Collate(), num_workers=2, multiprocessing_context="fork"
    )
    for number, (data, mask, lengths) in enumerate(loader):
        assert data.nbytes > 4 << 20
        for row, length in enumerate(lengths.tolist()):
            assert (data[row, :length] == number * 4 + row).all()
            assert not data[row, length:].any()
            assert int((mask[row] != 0).sum()) == length


def test_auto_gives_tensors_for_tensors_only():
    batch = Collate()([{"a": torch.ones(2), "b": np.ones(2), "c": torch.tensor(1.5)}] * 2)
    assert isinstance(batch["a"], PaddedBatch)
    assert isinstance(batch["a"].data, torch.Tensor)
    assert isinstance(batch["b"].data, np.ndarray)
    assert torch.equal(batch["c"], torch.tensor([1.5, 1.5]))
    arrays = Collate(arrays="numpy")([torch.ones(2), torch.ones(1)])
    reference.assert_same(arrays.data, np.array([[1, 1], [1, 0]], np.float32))


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float64],
    ids=str,
)
def test_dtypes_agree_with_pad_sequence(dtype):
    sequences = [torch.randint(0, 2, (n, 3)).to(dtype) for n in (3, 0, 2)]
    expected = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    batch = Collate()(sequences)
    assert batch.data.dtype == dtype
    assert torch.equal(batch.data, expected)


def test_bfloat16_is_moved_as_bits():
    sequences = [torch.randn(n, 3).to(torch.bfloat16) for n in (3, 0, 2)]
    expected = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=-1.5)
    batch = Collate(padding_value=-1.5)(sequences)
    assert batch.data.dtype == torch.bfloat16
    assert torch.equal(batch.data.view(torch.int16), expected.view(torch.int16))
    with raises(ValueError, "1e+39", "torch.bfloat16"):
        Collate(padding_value=1e39)(sequences)
    with raises(ValueError, "257", "torch.bfloat16"):
        Collate(padding_value=257)(sequences)
    with raises(TypeError, "torch.bfloat16"):
        Collate(dtype=np.float32)(sequences)
    with raises(TypeError, "torch.bfloat16"):
        Collate(arrays="numpy")(sequences)
    with raises(ValueError, "bfloat16", "one dtype"):
        Collate()([*sequences, torch.ones(1, 3)])


def test_views_and_transposed_tensors():
    wide = torch.arange(24.0).reshape(4, 6)
    sequences = [wide.t(), wide[:, ::2].t(), wide[:, 1:3].t()]
    expected = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    assert torch.equal(Collate()(sequences).data, expected)


def test_the_batch_is_writable_and_alone():
    sequences = [torch.ones(2), torch.ones(1)]
    batch = Collate()(sequences)
    batch.data.fill_(7)
    batch.lengths.fill_(0)
    assert all((x == 1).all() for x in sequences)


def test_tensors_that_are_refused():
    with raises(ValueError, "sample 1", "x.detach()"):
        Collate()([torch.ones(2), torch.ones(2, requires_grad=True)])
    with raises(TypeError, "sample 0", "dense"):
        Collate()([torch.eye(2).to_sparse()])
    with raises(RuntimeError, "sample 0", "meta"):
        Collate()([torch.ones(2, device="meta")])
