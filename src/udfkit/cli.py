"""The command line: ``python -m udfkit demo``, ``check``, ``info`` and ``warmup``.

The script ``udfkit-kernels`` runs the same. It still does when another distribution has overwritten
files of this package, so nothing of udfkit is imported before a command needs it.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

__all__ = ["info_lines", "main"]

DISTRIBUTION = "udfkit-kernels"
NAMESAKE = "udfkit"
_OPTIONAL = ("llvmlite", "numba-cuda", "scipy", "torch", "jax", "matplotlib", "tqdm")
_WIDTH = 100


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of the command line and return its exit status.

    Parameters
    ----------
    argv
        The arguments behind the program's name; by default those of this process.

    Raises
    ------
    SystemExit
        With status 2 and a text on stderr if the arguments name no command, and 0 after ``--help``.

    Examples
    --------
    >>> from udfkit.cli import main
    >>> main([]) == 2
    usage: python -m udfkit [-h] [--version] {demo,check,info,warmup} ...
    ...
    True
    """
    parser = _parser()
    # What stands behind `demo` and `check` is theirs to read, their --help too.
    arguments, rest = parser.parse_known_args(argv)
    if arguments.command == "demo":
        return _demo(rest)
    if arguments.command == "check":
        return _check(rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if arguments.command == "info":
        print("\n".join(info_lines()))
        return 0
    if arguments.command == "warmup":
        return _warmup()
    parser.print_help()
    return 2


def info_lines() -> Iterator[str]:
    """Yield the lines of ``python -m udfkit info``; what cannot be found out is said in its line.

    Examples
    --------
    >>> from udfkit.cli import info_lines
    >>> next(iter(info_lines()))
    'versions'
    """
    for title, section in (
        ("versions", _versions),
        ("devices", _devices),
        ("this process", _process),
        ("the name", _name),
    ):
        yield title
        for label, text in section():
            yield from textwrap.wrap(
                text,
                width=_WIDTH,
                initial_indent=f"  {label:<16}",
                subsequent_indent=" " * 18,
                break_long_words=False,
                break_on_hyphens=False,
            )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m udfkit",
        description="User functions over ragged batches of sequences.",
    )
    parser.add_argument(
        "--version", action="version", version=f"{DISTRIBUTION} {_version(DISTRIBUTION)}"
    )
    commands = parser.add_subparsers(dest="command", title="commands")
    commands.add_parser(
        "demo",
        add_help=False,
        help="train a speaker identifier with a user function in the model, and draw what it saw",
    )
    commands.add_parser(
        "check",
        add_help=False,
        help="check a user function, module:name: gradients, neighbours, padding, states",
    )
    commands.add_parser("info", help="versions, devices, threads, caches, and what CUDA lacks")
    commands.add_parser("warmup", help="compile all kernels, so that no later process has to")
    return parser


def _demo(arguments: list[str]) -> int:
    try:
        from udfkit.demo import main as demo_main

        return demo_main(arguments)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in _OPTIONAL:
            raise
        print(
            f"the demo needs the module {error.name!r}, which is not installed; "
            f'run: pip install "{DISTRIBUTION}[demo]"',
            file=sys.stderr,
        )
        return 1


def _check(arguments: list[str]) -> int:
    from udfkit.testing.command import main as check_main

    status, text = check_main(arguments)
    print(text, file=sys.stderr if status == 2 else sys.stdout)
    return status


def _warmup() -> int:
    from udfkit.kernels import cpu, cpu_padding, jit, pyobjects

    modules = (cpu, cpu_padding, pyobjects)  # importing them is what makes their drivers known
    count = jit.compile_drivers()
    folder = jit.cache_folder()
    print(f"{count} kernels of {len(modules)} modules compiled; kept in: {folder or 'no folder'}")
    if folder is None:
        print(_cache_text())
        return 1
    return 0


def _versions() -> Iterator[tuple[str, str]]:
    yield DISTRIBUTION, f"{_version(DISTRIBUTION)} ({Path(__file__).parent})"
    system = f"{platform.system()} {platform.machine()}"
    yield "Python", f"{platform.python_version()} ({platform.python_implementation()}, {system})"
    for name in ("numpy", "numba", *_OPTIONAL):
        yield name, _version(name)


def _devices() -> Iterator[tuple[str, str]]:
    yield "cpu()", f"{platform.machine()}, {os.cpu_count()} cores"
    try:
        from udfkit.kernels import cuda_target

        found = cuda_target.status()
    except Exception as error:  # noqa: BLE001 - a report on a broken installation must be written
        yield "gpu", f"unknown ({type(error).__name__}: {error})"
        return
    for index, device in enumerate(found.devices):
        yield f"gpu({index})", device
    if not found.available:
        yield "gpu", f"none: {found.reason}"
        yield "what to do", found.advice


def _process() -> Iterator[tuple[str, str]]:
    yield "threads", _or_error(_threads_text)
    yield "kernel cache", _or_error(_cache_text)
    yield "memory limit", _or_error(_memory_text)
    yield "buffer pool", _or_error(_pool_text)


def _threads_text() -> str:
    from udfkit import machine, threads

    given = os.environ.get("UDFKIT_NUM_THREADS")
    origin = "UDFKIT_NUM_THREADS" if given else "UDFKIT_NUM_THREADS is not set"
    return f"{threads.thread_count()} ({origin}); {machine.usable_cores()} cores usable"


def _cache_text() -> str:
    from udfkit.kernels import jit

    folder = jit.cache_folder()
    if folder is not None:
        return folder
    if jit.JIT_DISABLED:
        return "none: kernels are not compiled (NUMBA_DISABLE_JIT is set)"
    return (
        "none, so kernels are compiled anew in each process: set NUMBA_CACHE_DIR to a writable "
        "folder, and unset NUMBA_BOUNDSCHECK"
    )


def _memory_text() -> str:
    from udfkit import memory

    origin = "UDFKIT_MAX_BYTES" if os.environ.get("UDFKIT_MAX_BYTES") else "memory of this machine"
    limit = memory.max_bytes()
    return f"{limit:,} bytes for one padded batch ({limit / 2**30:.1f} GiB; {origin})"


def _pool_text() -> str:
    from udfkit import memory

    origin = "UDFKIT_POOL_BYTES" if os.environ.get("UDFKIT_POOL_BYTES") else "default"
    return f"keeps at most {memory.stats().limit:,} bytes ({origin})"


def _name() -> Iterator[tuple[str, str]]:
    yield "install as", f"{DISTRIBUTION}; import as udfkit"
    namesake = _version(NAMESAKE, missing="")
    if not namesake:
        about = f"not installed; the distribution called just {NAMESAKE} is another project"
        yield "namesake", f"{about}, which writes disc images"
        return
    what = f"WARNING: the distribution {NAMESAKE} {namesake}, an unrelated writer of disc images"
    yield "namesake", f"{what}, is installed too; both put their files into one folder, udfkit"
    repair = (
        f"pip uninstall {NAMESAKE}, then pip install --force-reinstall --no-deps {DISTRIBUTION}"
    )
    yield "what to do", f"{repair}; to use both, give each an environment of its own"


def _version(distribution: str, missing: str = "not installed") -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return missing


def _or_error(text: Callable[[], str]) -> str:
    """Return a text, or why there is none: one broken part must not hide the other lines."""
    try:
        return text()
    except Exception as error:  # noqa: BLE001 - a report on a broken installation must be written
        return f"unknown ({type(error).__name__}: {error})"
