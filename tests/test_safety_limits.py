"""Padded sizes over the limit or over int64: one MemoryError, and nothing was allocated."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hot_paths
import udfkit
from processes import run_python

LIMIT = 1 << 20


@pytest.fixture(autouse=True)
def one_mebibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is imported, compiled or warned of at the first call is not what a refused call costs.
    hot_paths.small().run()
    monkeypatch.setenv("UDFKIT_MAX_BYTES", str(LIMIT))


def wide(*sizes: int, dtype: Any = np.float32) -> np.ndarray:
    """One number that looks like so many."""
    return np.broadcast_to(np.array(1, dtype), sizes)


def sequence() -> Any:
    return udfkit.sequence.input_variable((), name="x")


LONG = np.zeros(1 << 16, np.float32)
MANY = udfkit.Ragged(LONG, [*([0] * 100), 1 << 16])
WINDOWS = np.lib.stride_tricks.sliding_window_view(LONG, 4096)[:160]
NOTHING = np.empty((1 << 61, 0), np.int8)

REFUSED: dict[str, Callable[[], Any]] = {
    "list": lambda: udfkit.sanitize_batch(sequence(), [LONG] * 100),
    "list, pad": lambda: udfkit.pad([LONG] * 100),
    "one long": lambda: udfkit.sanitize_batch(sequence(), [LONG] + [LONG[:0]] * 100),
    "one long, pad": lambda: udfkit.pad([LONG] + [LONG[:0]] * 100),
    "doubles": lambda: udfkit.sanitize_batch(sequence(), [LONG.astype(float)] * 100),
    "doubles, pad": lambda: udfkit.pad([LONG.astype(float)] * 100, dtype=np.float32),
    "stride 0": lambda: udfkit.sanitize_batch(sequence(), [wide(1 << 24)] * 9),
    "stride 0, pad": lambda: udfkit.pad([wide(1 << 24)] * 9),
    "stride 0, doubles": lambda: udfkit.sanitize_batch(sequence(), [wide(1 << 24, dtype=float)]),
    "stride 0, mixed": lambda: udfkit.sanitize_batch(sequence(), [LONG[:9], wide(1 << 24)]),
    "stride 0, over memory": lambda: udfkit.sanitize_batch(sequence(), [wide(1 << 60)] * 9),
    "stride 0, over memory, pad": lambda: udfkit.pad([wide(1 << 60)] * 9),
    "stride 0, over int64": lambda: udfkit.pad([wide(1 << 60)] * 4 + [wide(3)]),
    "rectangle": lambda: udfkit.sanitize_batch(sequence(), WINDOWS),
    "rectangle, stride 0": lambda: udfkit.sanitize_batch(sequence(), wide(64, 1 << 18)),
    "rectangle, doubles": lambda: udfkit.sanitize_batch(sequence(), wide(64, 1 << 18, dtype=float)),
    "rectangle, over memory": lambda: udfkit.sanitize_batch(sequence(), wide(1 << 20, 1 << 30)),
    "rectangle, stride 0, pad": lambda: udfkit.pad(wide(64, 1 << 18)),
    "rectangle, over memory, pad": lambda: udfkit.pad(wide(1 << 20, 1 << 30)),
    "Ragged": lambda: udfkit.sanitize_batch(sequence(), MANY).data,
    "Ragged, mask": lambda: udfkit.sanitize_batch(sequence(), MANY).mask,
    "Ragged, pad": lambda: udfkit.pad(MANY),
    "samples of size 0": lambda: udfkit.pad([NOTHING] * 3),
    "samples of size 0, over int64": lambda: udfkit.pad([NOTHING] * 8),
    "steps": lambda: udfkit.pad([LONG[:3]], steps=1 << 30),
    "steps over int64": lambda: udfkit.pad([LONG[:3]] * 3, steps=1 << 62),
    "multiple": lambda: udfkit.pad([LONG[:3]] * 3, multiple_of=1 << 40),
    "bucket": lambda: udfkit.pad([LONG[:3]] * 3, buckets=[1 << 40]),
    "one-hot": lambda: udfkit.Value.one_hot([[1] * 100] * 10, 1 << 20).data,
}


@pytest.mark.filterwarnings("ignore::udfkit.CastWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_is_allocated(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MemoryError) as caught:
            REFUSED[name]()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(caught.value, udfkit.PaddedSizeError), caught.value
    for part in "B=", "T=", "% is padding", f"{LIMIT:,}", "UDFKIT_MAX_BYTES", "ragged":
        assert part in str(caught.value)
    # What a test made on its way, such as an array of doubles, is less than this.
    assert peak < 700_000, f"{peak:,} bytes were taken for a batch that was refused"


def test_no_rows_take_no_memory_however_many_steps_they_have() -> None:
    tracemalloc.start()
    try:
        data, mask = udfkit.pad([], steps=1 << 24, dtype=np.float32, sample_shape=())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert data.shape == mask.shape == (0, 1 << 24)
    assert peak < 700_000, f"{peak:,} bytes were taken for nothing"


def test_the_shown_waste_is_that_of_the_batch() -> None:
    with pytest.raises(
        udfkit.PaddedSizeError, match=r"B=101 rows x T=65,536 .* 99\.0 % is padding"
    ):
        REFUSED["one long"]()
    with pytest.raises(udfkit.PaddedSizeError, match=r"B=8 rows .* 0\.0 % is padding"):
        REFUSED["samples of size 0, over int64"]()


def test_what_just_fits_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    long = LONG[:2000]
    monkeypatch.setenv("UDFKIT_MAX_BYTES", str(3 * 2000 * 5))
    for make in (
        lambda: udfkit.sanitize_batch(sequence(), [long] * 3).mask,
        lambda: udfkit.sanitize_batch(sequence(), np.stack([long] * 3)).mask,
        lambda: udfkit.pad([long] * 3),
    ):
        make()
        monkeypatch.setenv("UDFKIT_MAX_BYTES", str(3 * 2000 * 5 - 1))
        with pytest.raises(udfkit.PaddedSizeError):
            make()
        monkeypatch.setenv("UDFKIT_MAX_BYTES", str(3 * 2000 * 5))


def test_flat_forms_have_no_padding_and_are_not_refused() -> None:
    hot = hot_paths.small()
    assert len(udfkit.Ragged.from_list([LONG] * 9)) == 9
    identity = hot_paths.Identity([sequence()])
    assert [len(found) for found in identity.eval(list(MANY))] == MANY.lengths.tolist()
    hot.run()


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process as Linux does")
def test_the_process_lives_on_where_the_system_would_promise_the_memory() -> None:
    # Each copy alone would be granted; touching them all would end the process.
    run_python(
        """
        import resource
        import numpy as np
        import hot_paths, udfkit
        hot = hot_paths.small()
        hot.run()
        with open("/proc/self/statm") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 30),) * 2)
        x = udfkit.sequence.input_variable(())
        length, count = 1 << 26, 1 << 20
        item = np.broadcast_to(np.float32(1), (length,))
        for refuse in (
            lambda: udfkit.sanitize_batch(x, [item] * count),
            lambda: udfkit.pad([item] * count),
            lambda: udfkit.sanitize_batch(x, np.broadcast_to(item, (count, length))),
        ):
            try:
                refuse()
            except udfkit.PaddedSizeError:
                hot.run()
            else:
                raise AssertionError("not refused")
        """,
        timeout=60,
        UDFKIT_MAX_BYTES=None,
    )
