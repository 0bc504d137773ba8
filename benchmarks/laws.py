"""The batches that every benchmark is run on."""

import os

import numpy as np

# `make bench` only wants to see that everything runs; measuring takes the whole grid.
SMALL = os.environ.get("UDFKIT_BENCH_GRID") == "small"
MOST_BYTES = 1_500_000_000
LAWS = ("uniform_1_100", "long_tailed", "equal_64")
BATCH_SIZES = (8, 64) if SMALL else (8, 64, 1024, 16384)
SAMPLE_SIZES = (1, 16) if SMALL else (1, 16, 128)


def lengths(law: str, batch_size: int) -> np.ndarray:
    """Lengths of `batch_size` sequences; the same ones in every process.

    `long_tailed` is log-normal with mean 50 and sigma 1, clipped to 1..2000, as lengths of texts
    and utterances are.
    """
    rng = np.random.default_rng(20_240_229)
    if law == "uniform_1_100":
        return rng.integers(1, 101, batch_size)
    if law == "long_tailed":
        drawn = rng.lognormal(mean=np.log(50.0) - 0.5, sigma=1.0, size=batch_size)
        return np.clip(np.rint(drawn), 1, 2000).astype(np.int64)
    if law == "equal_64":
        return np.full(batch_size, 64, np.int64)
    raise ValueError(f"law {law!r} is none of {LAWS}")


def skip_large(law: str, batch_size: int, sample_size: int) -> None:
    """Tell asv to leave out a cell whose padded float32 output is over the limit."""
    if 4 * batch_size * sample_size * int(lengths(law, batch_size).max()) > MOST_BYTES:
        raise NotImplementedError


def sequences(law: str, batch_size: int, sample_size: int) -> list[np.ndarray]:
    """A list of float32 arrays of shape (length, sample_size), each with memory of its own."""
    rng = np.random.default_rng(7)
    return [
        rng.standard_normal((length, sample_size), dtype=np.float32)
        for length in lengths(law, batch_size)
    ]
