"""Everything that needs a GPU, in one run of under five minutes.

    python benchmarks/gpu_check.py [--out FOLDER] [--seconds 280] [--smoke] [--only NAME ...]

Needs Python 3.11 or newer with numpy, numba and numba-cuda; uses PyTorch and pytest where they are
installed. Fetches nothing and needs no installation: it runs from a checkout. Each section runs in
a process of its own; ``gpu_check.json`` and ``gpu_check.txt`` are written after each. Without a GPU
it says what is missing and ends with 2; with one it ends with 1 when a section failed, and with 0
otherwise, whatever the speed. ``--smoke`` tries all of it on tiny sizes, also on numba's simulator.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
GOAL_OF_COPY = 0.85
LARGE = 256 << 20

SECTIONS = {
    "versions": 40,
    "first_use": 40,
    "kernels": 60,
    "values": 90,
    "launch_cost": 40,
    "speed": 110,
    "two_streams": 40,
    "no_host_wait": 50,
    "torch_tests": 50,
    "device_tests": 120,
}
"""The most seconds of each section. Together they are more than the whole run may take: a section
that takes all of its time takes it from the last ones."""


def say(line: str) -> None:
    """Write one line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def what_is_missing() -> str:
    """Return why there is nothing to check, or an empty string."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n"
        "from udfkit.kernels import cuda_target\n"
        "found = cuda_target.status()\n"
        "print('' if found.available else f'{found.reason}. {found.advice}')"
    )
    done = run_python(["-c", code], 60)
    if done[0] == 0:
        return done[1].strip()
    return f"udfkit cannot be imported: {done[1][-1500:]}"


def run_python(arguments: list[str], seconds: float) -> tuple[int | None, str]:
    """Run this Python; return its status, None where the time was over, and what it wrote."""
    command = [sys.executable, *arguments]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        written = error.stderr or error.stdout or b""
        return None, written if isinstance(written, str) else written.decode(errors="replace")
    return done.returncode, done.stdout + done.stderr


def run_section(name: str, seconds: float, smoke: bool) -> tuple[Any, str]:
    """Run one section; return what it found, and what went wrong or an empty string."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / f"{name}.json"
        script = str(ROOT / "benchmarks" / "gpu_sections.py")
        options = ["--smoke"] if smoke else []
        # The section itself stops a little before it is stopped.
        soft = max(seconds - 5, 1)
        arguments = [script, name, str(result), str(soft), *options]
        status, written = run_python(arguments, seconds)
        found = json.loads(result.read_text()) if result.exists() else None
    if status is None:
        return found, f"not over after {seconds:.0f} s: {written[-1500:]}"
    if status != 0:
        return found, written[-3000:] or f"ended with {status}"
    bad = found.get("failed") if isinstance(found, dict) else None
    return found, f"failed: {', '.join(bad)}" if isinstance(bad, dict) and bad else ""


def goals(report: dict[str, Any]) -> dict[str, Any]:
    """Compare the speeds with what they should be; nothing is judged that was not measured."""
    rows = [row for row in report.get("speed") or [] if "seconds" in row]
    moves = ("ragged_to_padded", "padded_to_ragged", "rows_to_padded")
    large = [
        row for row in rows
        if row["operation"] in moves and row["output_bytes"] > LARGE and row["floats"] >= 16
    ]  # fmt: skip
    faced = [row for row in rows if row["times_torch"] is not None]
    slowest = min((row["of_copy"] for row in large), default=None)
    behind = [f"{r['operation']}, {r['law']}, {r['floats']}" for r in faced if r["times_torch"] < 1]
    waits = report.get("no_host_wait") or {}
    simulated = bool((report.get("versions") or {}).get("simulated"))
    return {
        "least_of_copy_over_256_mb": slowest,
        "copy_goal_met": None if slowest is None else slowest >= GOAL_OF_COPY,
        "cells_against_torch": len(faced),
        "slower_than_torch": behind,
        "torch_goal_met": not behind if faced else None,
        "no_host_wait": None if simulated else waits.get("returned_while_busy"),
    }


def table(report: dict[str, Any]) -> str:
    """Write the report for people."""
    lines = [f"{name}: {value}" for name, value in (report.get("versions") or {}).items()]
    lines += [
        f"{name}: {json.dumps(value)}"
        for name, value in report.items()
        if name not in ("versions", "speed", "errors")
    ]
    lines += [f"\n{name} FAILED:\n{text}" for name, text in report["errors"].items()]
    lines.append(
        f"\n{'operation':18}{'law':26}{'floats':>7}{'out MB':>9}{'us':>11}{'GB/s':>9}"
        f"{'of copy':>9}{'x torch':>9}"
    )
    for row in report.get("speed") or []:
        start = f"{row.get('operation', ''):18}{row['law']:26}{row['floats']:>7}"
        if "seconds" not in row:
            lines.append(f"{start}  {row['skipped']}")
            continue
        times = "" if row["times_torch"] is None else f"{row['times_torch']:.2f}"
        lines.append(
            f"{start}{row['output_bytes'] / 2**20:>9.1f}{row['seconds'] * 1e6:>11.1f}"
            f"{row['gb_per_second']:>9.1f}{row['of_copy']:>9.2f}{times:>9}"
        )
    return "\n".join(lines) + "\n"


def write(report: dict[str, Any], folder: Path) -> str:
    """Write both files; return the table."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu_check.json").write_text(json.dumps(report, indent=1) + "\n")
    report = {**report, "goals": goals(report)}
    (folder / "gpu_check.json").write_text(json.dumps(report, indent=1) + "\n")
    text = table(report)
    (folder / "gpu_check.txt").write_text(text)
    return text


def main() -> int:
    """Run all sections; a section that fails does not stop the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--seconds", type=float, default=280.0)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    missing = what_is_missing()
    if missing:
        say(f"No GPU to check: {missing}")
        say("NUMBA_ENABLE_CUDASIM=1 python benchmarks/gpu_check.py --smoke tries the rest of it.")
        return 2
    report: dict[str, Any] = {"failed": [], "errors": {}, "section_seconds": {}}
    text = ""
    for name in options.only:
        begin = time.monotonic()
        seconds = min(SECTIONS[name], end - begin)
        if seconds < 15:
            found, wrong = None, "left out: the time was over"
        else:
            found, wrong = run_section(name, seconds, options.smoke)
        report[name] = found
        if wrong:
            report["failed"].append(name)
            report["errors"][name] = wrong
        report["section_seconds"][name] = round(time.monotonic() - begin, 1)
        say(f"{name}: {report['section_seconds'][name]} s{' FAILED' if wrong else ''}")
        text = write(report, options.out)
    say(text)
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
