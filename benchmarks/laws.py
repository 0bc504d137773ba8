"""The batches that every benchmark is run on."""

import numpy as np

LAWS = ("uniform_1_100", "long_tailed", "equal_64")
BATCH_SIZES = (64, 1024)
SAMPLE_SIZES = (1, 16)


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


def sequences(law: str, batch_size: int, sample_size: int) -> list[np.ndarray]:
    """A list of float32 arrays of shape (length, sample_size), each with memory of its own."""
    rng = np.random.default_rng(7)
    return [
        rng.standard_normal((length, sample_size), dtype=np.float32)
        for length in lengths(law, batch_size)
    ]
