"""Exception and warning classes, and the texts that several rooms share."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["CastWarning", "DeviceError", "PaddedSizeError"]


class CastWarning(UserWarning):
    """Values of one dtype were cast to the dtype of the variable they were given for.

    Issued once for each (variable, dtype) in a process.
    """


class DeviceError(RuntimeError):
    """A device was asked for that this machine does not have, or an array is on another one."""


class PaddedSizeError(MemoryError):
    """A padded batch would not fit in memory; nothing was allocated."""


WHAT_A_BATCH_CAN_BE = (
    "pass a batch: a list or tuple with one array a sequence, a NumPy array, a udfkit Ragged or "
    "Value, a SciPy CSR matrix, or an array that speaks DLPack, the buffer protocol or the CUDA "
    "Array Interface"
)


def shape_text(shape: Sequence[int | str]) -> str:
    """Write a shape as a tuple, with a FreeDimension as ``?``.

    Examples
    --------
    >>> shape_text((2, -3))
    '(2, ?)'
    >>> shape_text((4,))
    '(4,)'
    """
    inner = ", ".join("?" if n == -3 else str(n) for n in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def padded_size_error(
    rows: int, steps: int, sample_bytes: int, total: int, limit: int
) -> PaddedSizeError:
    """Build the error for a padded batch of ``rows * steps`` cells that is over the limit."""
    cells = rows * steps
    needed = cells * (sample_bytes or 1)
    what = "padded batch" if sample_bytes else "mask of the padded batch"
    waste = 100.0 * (1.0 - total / cells) if cells else 0.0
    return PaddedSizeError(
        f"the {what} would take {needed:,} bytes (B={rows:,} rows x T={steps:,} steps x "
        f"{sample_bytes:,} bytes a sample), of which {waste:.1f} % is padding; the limit is "
        f"{limit:,} bytes (UDFKIT_MAX_BYTES, by default the memory of this machine). Use the "
        f"ragged form (udfkit.Ragged.from_list, layout='ragged'), smaller batches, or sequences "
        f"grouped by length"
    )
