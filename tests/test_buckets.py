"""`udfkit.bucket_batches`: every index once, none over its budget, the same by seed, for ranks."""

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


@own.SETTINGS
@given(
    lengths=st.lists(st.integers(0, 12), max_size=30),
    spare=st.integers(0, 40),
    world=st.integers(1, 9),
    factor=st.integers(1, 3),
    most=st.one_of(st.none(), st.integers(1, 6)),
    seed=st.one_of(st.none(), st.integers(0, 9)),
)
def test_every_process_has_as_many_batches_and_no_sequence_twice(
    lengths, spare, world, factor, most, seed
):
    rounded = [-(-length // factor) * factor for length in lengths]
    budget = max(rounded, default=0) + spare
    options = {"seed": seed, "multiple_of": factor, "max_sequences": most}
    whole = bucket_batches(lengths, budget, **options)
    batches = bucket_batches(lengths, budget, **options, world_size=world)
    assert len(batches) == -(-len(whole) // world) * world
    shares = [batches[rank::world] for rank in range(world)]
    assert len({len(share) for share in shares}) == 1
    indices = [k for share in shares for batch in share for k in batch.tolist()]
    assert sorted(indices) == list(range(len(lengths)))
    for batch in batches:
        assert batch.dtype == np.int64
        assert len(batch) <= (most or len(lengths))
        assert len(batch) * max((rounded[k] for k in batch), default=0) <= budget
    assert sum(len(b) == 0 for b in batches) == max(len(batches) - len(lengths), 0)
    # The batches of a step are neighbours by length: steps do not interleave.
    steps = [batches[k : k + world] for k in range(0, len(batches), world)]
    found = [[rounded[k] for batch in step for k in batch] for step in steps]
    spans = sorted((min(step), max(step)) for step in found)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))


@pytest.mark.parametrize(
    ("lengths", "budget", "expected"),
    [
        # Batches [0, 1], [2, 3] and [4, 5, 6]: the last of them becomes a step.
        ([4, 4, 4, 4, 2, 2, 2], 8, [[0, 1], [2, 3], [4, 5], [6]]),
        # One sequence is left over, and the step before gives the second.
        ([4, 4, 4, 4, 2], 8, [[0], [1], [2, 3], [4]]),
        ([4, 4, 4], 4, [[0], [1], [2], []]),
        ([4], 4, [[0], []]),
    ],
    ids=["cut", "both-steps", "one-each", "alone"],
)
def test_what_is_left_over_becomes_a_step(lengths, budget, expected):
    batches = bucket_batches(lengths, budget, world_size=2)
    assert [batch.tolist() for batch in batches] == expected


def test_the_largest_batches_are_cut_into_even_pieces():
    # Two batches of 12 cells, of 2 and 3 sequences, become a step of five batches.
    batches = bucket_batches([6, 6, 4, 4, 4], 12, world_size=5)
    assert [batch.tolist() for batch in batches] == [[0], [1], [2], [3], [4]]
    batches = bucket_batches([6, 6, *[2] * 6], 12, world_size=4)
    assert [batch.tolist() for batch in batches] == [[0], [1], [2, 3, 4], [5, 6, 7]]


def test_processes_do_as_much_work_as_each_other():
    lengths = np.random.default_rng(0).integers(1, 101, 20_000)
    for seed in (None, 3):
        batches = bucket_batches(lengths, 4096, seed=seed, world_size=8)
        cells = np.array([len(b) * lengths[b].max() for b in batches]).reshape(-1, 8)
        share = cells.mean(axis=1) / cells.max(axis=1)
        assert sorted(share > 0.98) == [False, *[True] * (len(share) - 1)]
        # The one step that was cut holds up nobody for as long as a full one.
        assert cells[share.argmin()].max() < 4096 / 2
        longest = np.array([lengths[b].max() for b in batches]).reshape(-1, 8)
        assert np.ptp(longest, axis=1).max() < 12
        assert cells.sum(axis=0).max() < 1.02 * cells.sum(axis=0).min()
        # With a seed no process has the longest of every step.
        first = np.mean(longest.argmax(axis=1) == 0)
        assert first == 1.0 if seed is None else first < 0.5


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
        "print([b.tolist() for p in (1, 2) for b in f([3, 1, 3, 2, 3, 1], 6, seed=(7, 1), "
        "world_size=p)])"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    batches = [
        b.tolist()
        for p in (1, 2)
        for b in bucket_batches([3, 1, 3, 2, 3, 1], 6, seed=(7, 1), world_size=p)
    ]
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
        (([1], 8), {"world_size": 0}, ["world_size", "0"]),
    ],
    ids=str,
)
def test_bad_input(arguments, options, parts):
    with raises(ValueError, *parts):
        bucket_batches(*arguments, **options)


@pytest.mark.parametrize("seed", ["a", -1, 1.5, (1, -1)])
def test_seeds_that_are_none(seed):
    with raises(ValueError, "seed", repr(seed)):
        bucket_batches([1, 2], 8, seed=seed)


@pytest.mark.parametrize("lengths", [None, 3, "abc"])
def test_lengths_that_are_no_vector(lengths):
    with raises(ValueError, "lengths", "vector of integers"):
        bucket_batches(lengths, 8)
