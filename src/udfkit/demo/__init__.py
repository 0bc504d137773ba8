"""``python -m udfkit demo``: a model with a user function in it learns who is speaking.

The user function is `udfkit.demo.attention.AttentionPooling`: read that file to see how one is
written, and `udfkit.demo.model` to see how one is called. With ``--compiled`` the model is trained
once more with `udfkit.demo.compiled.CompiledPooling`, a sequence function.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """Check the gradients, train, and draw; return the exit status.

    Parameters
    ----------
    argv : list of str
        The arguments behind ``python -m udfkit demo``.

    Raises
    ------
    ModuleNotFoundError
        Before anything else, when matplotlib is missing; the command line says what to install.
    SystemExit
        With status 2 for arguments that make no sense, and 0 after ``--help``.

    Examples
    --------
    >>> from udfkit.demo import main
    >>> main(["--help"])
    Traceback (most recent call last):
    SystemExit: 0
    """
    arguments = _parser().parse_args(argv)
    began = time.perf_counter()
    _one_blas_thread()

    from udfkit.demo import checking, figure, report
    from udfkit.demo.data import load
    from udfkit.demo.progress import Progress
    from udfkit.demo.training import Settings, sample_batch, train

    training, test = load()
    print(report.task(training, test), flush=True)

    checks = checking.check_all(training, arguments.seed)
    print(report.gradients(checks), flush=True)
    if not all(check.passed for check in checks.values()):
        return 1

    with Progress(arguments.epochs) as progress:
        classifier, history = train(
            training, test, Settings(epochs=arguments.epochs), arguments.seed, progress
        )
    figure.draw(
        arguments.output,
        sample_batch(classifier, training, Settings(), arguments.seed),
        history,
        classifier,
        figure.varied_lengths(test, 5),
    )
    print(report.summary(history, len(test), arguments.output, time.perf_counter() - began))
    if arguments.compiled:
        from udfkit.demo.compiled import CompiledPooling, compare

        other, history = train(
            training,
            test,
            Settings(epochs=arguments.epochs),
            arguments.seed,
            pooling=CompiledPooling,
        )
        batch = classifier.batch(training.frames[:: len(training) // Settings.batch])
        compared = compare(classifier.model, other.model, batch)
        print(report.compiled(history, len(test), compared))
    return 0


def _one_blas_thread() -> None:
    """Keep NumPy from starting threads, unless the environment says how many.

    The matrices are so small that threads cost more than they bring, and on a busy machine they
    wait for each other most of the time. Once NumPy is loaded the number is settled.
    """
    if "numpy" not in sys.modules:
        for library in ("OPENBLAS", "MKL", "OMP"):
            os.environ.setdefault(f"{library}_NUM_THREADS", "1")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m udfkit demo",
        description="Train a speaker identifier that has a user function in its middle, on the "
        "Japanese Vowels utterances, and draw what it learned.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--epochs", type=_positive, default=40, help="rounds over the utterances")
    parser.add_argument("--seed", type=_natural, default=1, help="of everything that is random")
    parser.add_argument(
        "--output", type=_png, default="udfkit-demo.png", help="where the picture goes"
    )
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="train once more with a compiled sequence function, and say how much faster it is",
    )
    return parser


def _natural(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return number


def _positive(text: str) -> int:
    number = _natural(text)
    if number == 0:
        raise argparse.ArgumentTypeError("0 epochs train nothing: give at least 1")
    return number


def _png(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() != ".png" or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no name for a picture: let it end in .png")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"the folder {str(path.parent)!r} of {text!r} is not there: create it first"
        )
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: choose another --output")
    return path
