"""`udfkit.bucket_batches`: every index once, no batch over its budget, the same by seed."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies as own
from checks import raises
from udfkit.buckets import bucket_batches


@own.SETTINGS
@given(
    lengths=st.lists(st.integers(0, 12), max_size=30),
    spare=st.integers(0, 40),
    factor=st.integers(1, 5),
    most=st.one_of(st.none(), st.integers(1, 6)),
    seed=st.one_of(st.none(), st.integers(0, 9)),
)
def test_every_index_is_in_one_batch_within_its_budget(lengths, spare, factor, most, seed):
    rounded = [-(-length // factor) * factor for length in lengths]
    budget = max(rounded, default=0) + spare
    batches = bucket_batches(lengths, budget, seed=seed, multiple_of=factor, max_sequences=most)
    assert sorted(k for batch in batches for k in batch.tolist()) == list(range(len(lengths)))
    for batch in batches:
        assert batch.dtype == np.int64
        assert 0 < len(batch) <= (most or len(lengths))
        assert len(batch) * max(rounded[k] for k in batch) <= budget
    # Batches hold neighbours by length: they do not interleave.
    spans = sorted((min(rounded[k] for k in b), max(rounded[k] for k in b)) for b in batches)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_no_batch_could_take_the_next_sequence():
    lengths = np.random.default_rng(0).integers(1, 100, 500)
    batches = bucket_batches(lengths, 1000)
    for batch, following in pairwise(batches):
        assert (len(batch) + 1) * lengths[batch].max() > 1000
        assert lengths[batch].min() >= lengths[following].max()


def test_little_is_padding():
    lengths = np.random.default_rng(0).integers(1, 101, 10_000)
    cells = sum(len(b) * lengths[b].max() for b in bucket_batches(lengths, 4096, seed=1))
    assert lengths.sum() / cells > 0.97


def test_a_seed_gives_the_same_batches_in_another_process():
    code = (
        "from udfkit.buckets import bucket_batches as f;"
        "print([b.tolist() for b in f([3, 1, 3, 2, 3, 1], 6, seed=(7, 1))])"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    batches = [b.tolist() for b in bucket_batches([3, 1, 3, 2, 3, 1], 6, seed=(7, 1))]
    assert made.stdout.strip() == str(batches)


def test_seeds_and_epochs_differ_and_none_is_sorted():
    lengths = np.random.default_rng(0).integers(1, 20, 200)
    made = [
        [b.tolist() for b in bucket_batches(lengths, 64, seed=seed)]
        for seed in (None, 1, 2, (1, 1), (1, 2))
    ]
    assert all(a != b for k, a in enumerate(made) for b in made[:k])
    longest = [lengths[b].max() for b in made[0]]
    assert longest == sorted(longest, reverse=True)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64, list])
def test_any_integers(dtype):
    lengths = [5, 1, 4, 2, 1]
    given_lengths = lengths if dtype is list else np.array(lengths, dtype)
    batches = bucket_batches(given_lengths, 8)
    assert [b.tolist() for b in batches] == [[0], [2, 3], [1, 4]]


def test_empty():
    assert bucket_batches([], 8) == []
    assert [b.tolist() for b in bucket_batches([0, 0], 0)] == [[0, 1]]


@pytest.mark.parametrize(
    ("arguments", "options", "parts"),
    [
        (([1, 9], 8), {}, ["position 1", "9", "8"]),
        (([1, 7], 8), {"multiple_of": 3}, ["position 1", "7", "6"]),
        (([1, -1], 8), {}, ["position 1", "-1"]),
        ((np.array([2**64 - 1], np.uint64), 8), {}, ["position 0"]),
        (([1.0], 8), {}, ["float64"]),
        (([[1]], 8), {}, ["(1, 1)"]),
        (([1], -1), {}, ["max_cells", "-1"]),
        (([1], 2.5), {}, ["max_cells", "2.5"]),
        (([1], 8), {"multiple_of": 0}, ["multiple_of", "0"]),
        (([1], 8), {"max_sequences": 0}, ["max_sequences", "0"]),
    ],
    ids=str,
)
def test_bad_input(arguments, options, parts):
    with raises(ValueError, *parts):
        bucket_batches(*arguments, **options)
