"""`udfkit.Collate` over plain arrays and lists, without torch."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

import reference
from checks import raises
from udfkit.collate import Collate, PaddedBatch


def ids(*lengths: int) -> list[np.ndarray]:
    return [np.arange(n, dtype=np.int64) + 1 for n in lengths]


def test_bare_sequences():
    batch = Collate(multiple_of=4, padding_value=-1)(ids(3, 5))
    assert isinstance(batch, PaddedBatch)
    assert batch.data.tolist() == [[1, 2, 3, -1, -1, -1, -1, -1], [1, 2, 3, 4, 5, -1, -1, -1]]
    assert batch.mask.tolist() == [[2, 1, 1, 0, 0, 0, 0, 0], [2, 1, 1, 1, 1, 0, 0, 0]]
    assert batch.lengths.tolist() == [3, 5]
    nested = Collate()([[[0.5, 1.0]], [[1.0, 2.0], [3.0, 4.0]]])
    assert nested.data.shape == (2, 2, 2)


def test_a_dict_of_fields():
    samples = [
        {"ids": x, "labels": x * 2, "weight": 0.5, "done": True, "name": f"s{k}", "box": np.ones(4)}
        for k, x in enumerate(ids(3, 1))
    ]
    collate = Collate(
        stack=["box"], padding_value={"labels": -100}, side="left", dtype={"ids": np.float32}
    )
    batch = collate(samples)
    assert batch["ids"].data.dtype == np.float32
    assert batch["ids"].data.tolist() == [[1, 2, 3], [0, 0, 1]]
    assert batch["labels"].data.tolist() == [[2, 4, 6], [-100, -100, 2]]
    assert batch["labels"].data.shape == batch["ids"].data.shape
    reference.assert_same(batch["weight"], np.array([0.5, 0.5]))
    reference.assert_same(batch["done"], np.array([True, True]))
    assert batch["name"] == ["s0", "s1"]
    assert batch["box"].shape == (2, 4)


class Pair(NamedTuple):
    x: np.ndarray
    y: int


def test_tuples_of_fields():
    samples = [(x, len(x)) for x in ids(2, 3)]
    sequences, labels = Collate()(samples)
    assert sequences.lengths.tolist() == labels.tolist() == [2, 3]
    named = Collate()([Pair(*sample) for sample in samples])
    assert isinstance(named, Pair)
    assert named.x.data.shape == (2, 3)
    stacked = Collate(stack=[0])([(np.ones(2), 1), (np.ones(2), 2)])
    assert stacked[0].shape == (2, 2)


def test_zero_lengths_and_lists_of_numbers():
    batch = Collate()([{"a": [1, 2]}, {"a": []}])
    assert batch["a"].data.tolist() == [[1, 2], [0, 0]]
    assert batch["a"].lengths.tolist() == [2, 0]


def test_it_pickles():
    collate = pickle.loads(pickle.dumps(Collate(multiple_of=8, stack=["x"])))
    made = collate([{"x": np.ones(2), "ids": ids(3)[0]}])
    assert made["ids"].data.shape == (1, 8)
    assert made["x"].shape == (1, 2)


def test_torch_is_not_imported():
    code = (
        "import sys, numpy as np; from udfkit.collate import Collate;"
        "Collate()([np.ones(3), np.ones(2)]);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_bad_samples_are_named():
    with raises(ValueError, "no samples"):
        Collate()([])
    with raises(ValueError, "sample 1", "b"):
        Collate()([{"a": 1}, {"b": 1}])
    with raises(ValueError, "sample 1", "2 in a tuple"):
        Collate()([(1,), (1, 2)])
    with raises(ValueError, "sample 1", "(3,)", "(2,)"):
        Collate(stack=["a"])([{"a": np.ones(2)}, {"a": np.ones(3)}])
    with raises(ValueError, "sequence 1", "float32") as caught:
        Collate()([{"a": np.ones(2)}, {"a": np.ones(2, np.float32)}])
    assert caught.value.__notes__ == ["in field 'a'"]
    with raises(ValueError, "0.5", "int32"):
        Collate(dtype={"a": np.int32})([{"a": 0.5}, {"a": 1.0}])


def test_bad_options():
    with raises(TypeError, "padding"):
        Collate(padding=True)
    with raises(TypeError, "stack"):
        Collate(stack="ids")
    with raises(ValueError, "arrays", "jax"):
        Collate(arrays="jax")


@pytest.mark.parametrize("overflow", ["truncate_left", "truncate_right"])
def test_options_go_to_pad(overflow):
    batch = Collate(max_length=2, overflow=overflow)(ids(3, 1))
    assert batch.data.tolist() == [[2, 3] if overflow == "truncate_left" else [1, 2], [1, 0]]


def test_numbers_that_are_stacked_round_no_integer():
    for big, other in [(2**63 + 1, 1), (2**53 + 1, np.uint64(7)), (-(2**53) - 1, np.uint8(1))]:
        made = Collate()([{"a": big}, {"a": other}])["a"]
        assert made.tolist() == [big, int(other)]
    for big, other in [(2**53 + 1, 1.5), (2**63 + 1, -1)]:
        with raises(ValueError, big):
            Collate()([{"a": big}, {"a": other}])
    assert Collate(dtype=np.uint64)([2**63 + 1, 1.0]).tolist() == [2**63 + 1, 1]


@pytest.mark.parametrize("option", [{"padding_value": {"b": 1}}, {"dtype": {"b": "f4"}}])
def test_options_of_no_field(option):
    name = next(iter(option))
    with raises(ValueError, name, "'b'", "['a']"):
        Collate(**option)([{"a": [1, 2]}])
    with raises(ValueError, name, "'b'"):
        Collate(**option)([([1, 2],)])
    with raises(ValueError, name, "'b'"):
        Collate(**option)([[1, 2]])
    with raises(ValueError, "stack", "'b'", "['a']"):
        Collate(stack=["b"])([{"a": [1, 2]}])


@pytest.mark.parametrize(
    "option",
    [
        {"side": "x"},
        {"overflow": "x"},
        {"steps": -1},
        {"max_length": 1.5},
        {"multiple_of": 0},
        {"buckets": 4},
        {"buckets": []},
        {"steps": 1, "multiple_of": 2},
    ],
    ids=str,
)
def test_options_are_checked_when_it_is_made(option):
    with raises(ValueError, next(iter(option))):
        Collate(**option)


@pytest.mark.parametrize("samples", [None, 3, {"a": 1}])
def test_samples_that_are_no_list(samples):
    with raises(TypeError, "samples", type(samples).__name__):
        Collate()(samples)
