"""What a notebook shows for a Value or a Ragged: a few facts, a picture, the first items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from udfkit.errors import shape_text
from udfkit.layout import Layout
from udfkit.occupancy import coverage, waste_of

if TYPE_CHECKING:
    from udfkit.ragged import Ragged
    from udfkit.value import Value

__all__ = ["ragged_html", "value_html"]

ITEMS, NUMBERS = 4, 6
"""How many sequences are shown, and how many numbers of each."""

BANDS, COLUMNS, LEVELS = 16, 48, 8
"""Size of the picture in cells, and how many shades it has: they bound the length of the text."""

CELL_WIDTH, CELL_HEIGHT = 5, 7

COPIED_BYTES = 1 << 20
"""A batch that would have to be moved or copied to be shown is shown up to this size."""


def ragged_html(batch: Ragged) -> str:
    """Return the HTML view of a Ragged; of bounded length."""
    layout = Layout.of_lengths(batch.lengths)
    facts = [
        ("sequences", _count(len(batch))),
        ("samples", f"{_count(len(batch.values))} of shape {shape_text(batch.sample_shape)}"),
        ("dtype", str(batch.dtype)),
        *_length_facts(layout),
    ]
    if layout.rows * layout.steps:
        facts.append(("padded", f"{_percent(waste_of(layout))} would be padding"))
    if batch.has_starts:
        facts.append(("continued", _count(int((~batch.starts).sum()))))
    heads = (batch[k] for k in range(min(len(batch), ITEMS)))
    return _view("Ragged", facts, _picture(layout), _items(heads, len(batch)))


def value_html(value: Value) -> str:
    """Return the HTML view of a Value; of bounded length."""
    layout = value._layout
    facts = [
        ("shape", shape_text(value.shape)),
        ("dtype", f"{value.dtype}{', sparse' if value.is_sparse else ''}"),
        ("device", str(value.device)),
    ]
    if layout.kind == "none":
        return _view("Value", facts, "", _items(_heads(value), 1))
    facts.append(("sequences", _count(len(value))))
    if layout.kind == "sequence":
        facts += _length_facts(layout)
    if layout.kind == "sequence" and layout.rows * layout.steps:
        facts.append(("waste", f"{_percent(waste_of(layout))} of the cells are padding"))
    if not layout.all_new:
        facts.append(("continued", _count(int((~value.starts).sum()))))
    picture = _picture(layout) if layout.kind == "sequence" else ""
    return _view("Value", facts, picture, _items(_heads(value), len(value)))


def _heads(value: Value) -> Iterable[np.ndarray] | None:
    """Return the first sequences, or None where showing them would copy or move much."""
    layout = value._layout
    on_host = not value.device.is_gpu
    if on_host and value._padded is not None and layout.contiguous:
        if layout.kind == "none":
            return [value.data]
        lengths = layout.lengths[:ITEMS]
        rows = value.data if layout.kind == "sequence" else value.data[:, np.newaxis]
        return [rows[k, :length] for k, length in enumerate(lengths)]
    size = layout.total * int(np.prod(value.shape[layout.axes :])) * value.dtype.itemsize
    if size > COPIED_BYTES and not (on_host and value._flat is not None):
        return None
    flat = value._host_flat() if value.device.is_gpu else value._flat_values()
    if layout.kind == "none":
        return [flat]
    offsets = layout.offsets[: ITEMS + 1].tolist()
    return [flat[a:b] for a, b in pairwise(offsets)]


def _items(heads: Iterable[np.ndarray] | None, count: int) -> list[tuple[str, str]]:
    if heads is None:
        return [("items", "not copied to be shown")]
    shown = [(str(k), _numbers(head)) for k, head in enumerate(heads)]
    if count > len(shown):
        shown.append(("…", f"{_count(count - len(shown))} more"))
    return shown


def _numbers(sequence: np.ndarray) -> str:
    """Write the first numbers of a sequence, with its shape."""
    first = sequence[:NUMBERS].ravel() if sequence.ndim else sequence.reshape(1)
    texts = [_number(number) for number in first[:NUMBERS]]
    more = " …" if sequence.size > len(texts) else ""
    return f"{shape_text(sequence.shape)}  {' '.join(texts)}{more}"


def _number(number: Any) -> str:
    if isinstance(number, np.bool_ | np.integer):
        return str(number)
    return format(float(number), ".4g")


def _length_facts(layout: Layout) -> Iterator[tuple[str, str]]:
    if len(layout.lengths):
        low, high = int(layout.lengths.min()), int(layout.lengths.max())
        mean = layout.total / len(layout.lengths)
        yield "lengths", f"{_count(low)} to {_count(high)}, mean {mean:.1f}"


def _count(number: int) -> str:
    return f"{number:,}"


def _percent(part: float) -> str:
    return f"{100.0 * part:.1f} %"


def _picture(layout: Layout) -> str:
    """Draw which cells are valid: the darker, the more of them."""
    grid = coverage(layout, BANDS, COLUMNS)
    if grid.size == 0:
        return ""
    shades = np.ceil(grid * LEVELS).astype(int)
    height, width = grid.shape[0] * CELL_HEIGHT, grid.shape[1] * CELL_WIDTH
    paths = [
        f'<path fill="#4c78a8" fill-opacity="{level / LEVELS:g}" d="{_runs(shades == level)}"/>'
        for level in np.unique(shades)
        if level
    ]
    return (
        f'<svg role="img" width="{width + 2}" height="{height + 2}" '
        f'viewBox="-1 -1 {width + 2} {height + 2}"><title>valid cells: rows down, steps to the '
        f'right</title>{"".join(paths)}<rect width="{width}" height="{height}" fill="none" '
        f'stroke="currentColor" stroke-opacity="0.4"/></svg>'
    )


def _runs(cells: np.ndarray) -> str:
    """Return the outline of runs of cells, row by row, as the data of an SVG path."""
    parts = []
    for row, line in enumerate(cells):
        borders = np.flatnonzero(np.diff(line, prepend=False, append=False)).tolist()
        for first, last in zip(borders[::2], borders[1::2], strict=True):
            width = (last - first) * CELL_WIDTH
            parts.append(
                f"M{first * CELL_WIDTH} {row * CELL_HEIGHT}h{width}v{CELL_HEIGHT}h-{width}z"
            )
    return "".join(parts)


def _view(
    title: str,
    facts: Iterable[tuple[str, str]],
    picture: str,
    items: Iterable[tuple[str, str]],
) -> str:
    return (
        f"<div><strong>udfkit.{escape(title)}</strong>{_table(facts)}{picture}{_table(items)}</div>"
    )


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(label)}</th>'
        f'<td style="text-align:left"><code>{escape(text)}</code></td></tr>'
        for label, text in rows
    )
    return f"<table><tbody>{cells}</tbody></table>" if cells else ""
