"""A progress bar where there is a terminal and tqdm, else a line now and then."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self, TextIO

__all__ = ["Progress"]


class Progress:
    r"""Shows how far the training is.

    Parameters
    ----------
    epochs : int
    stream : text stream, default stderr
        A terminal gets a bar, if tqdm is installed; anything else about ten lines.

    Examples
    --------
    >>> import io
    >>> stream = io.StringIO()
    >>> with Progress(1, stream) as progress:
    ...     progress(0, 0.5, 0.9)
    >>> stream.getvalue()
    'epoch  1 of 1: loss 0.500, test accuracy 90.0 %\n'
    """

    def __init__(self, epochs: int, stream: TextIO | None = None) -> None:
        self._epochs = epochs
        self._stream = sys.stderr if stream is None else stream
        self._every = max(1, round(epochs / 10))
        self._bar = _bar(epochs, self._stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, epoch: int, loss: float, accuracy: float) -> None:
        """Show that an epoch is over; epochs count from 0."""
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.3f}, test {accuracy:.1%}", refresh=False)
            self._bar.update()
        elif (epoch + 1) % self._every == 0 or epoch + 1 == self._epochs:
            print(
                f"epoch {epoch + 1:>2} of {self._epochs}: loss {loss:.3f}, "
                f"test accuracy {100 * accuracy:.1f} %",
                file=self._stream,
                flush=True,
            )


def _bar(epochs: int, stream: TextIO) -> Any:
    if not stream.isatty():
        return None
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return None
    return tqdm(
        total=epochs,
        desc="training",
        unit="epoch",
        file=stream,
        dynamic_ncols=True,
        bar_format="{desc} {bar} {n_fmt}/{total_fmt} epochs, {elapsed}{postfix}",
    )
