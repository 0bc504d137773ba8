"""What a notebook shows: well-formed, escaped, bounded, and true."""

from __future__ import annotations

import re
import tracemalloc
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import udfkit
from udfkit import html
from udfkit.layout import Layout
from udfkit.occupancy import coverage

SEQUENCE = udfkit.sequence.input_variable(2, name="x")
PATH = re.compile(r"M(\d+) (\d+)h(\d+)v(\d+)h-(\d+)z")


def tree_of(batch):
    return ET.fromstring(batch._repr_html_())


def facts(batch):
    return {
        row.find("th").text: "".join(row.find("td").itertext()) for row in tree_of(batch).iter("tr")
    }


def drawn_cells(batch):
    """Cells with any shade, read back from the paths of the picture."""
    svg = tree_of(batch).find("svg")
    found = set()
    for path in svg.findall("path"):
        outline = path.get("d")
        assert PATH.sub("", outline) == ""
        for x, y, width, height, back in PATH.findall(outline):
            assert (width, int(height)) == (back, html.CELL_HEIGHT)
            first = int(x) // html.CELL_WIDTH
            for column in range(first, first + int(width) // html.CELL_WIDTH):
                found.add((int(y) // html.CELL_HEIGHT, column))
    return found


def test_a_value_says_what_it_is():
    value = udfkit.sanitize_batch(
        SEQUENCE, [np.float32([[1, 2], [3, 4], [5, 6]]), np.float32([[7, 8]])], [True, False]
    )
    shown = facts(value)
    assert shown["shape"] == "(2, 3, 2)"
    assert (shown["dtype"], shown["device"]) == ("float32", "CPU")
    assert (shown["sequences"], shown["continued"]) == ("2", "1")
    assert shown["lengths"] == "1 to 3, mean 2.0"
    assert shown["waste"] == "33.3 % of the cells are padding"
    assert shown["0"] == "(3, 2)  1 2 3 4 5 6"
    assert shown["1"] == "(1, 2)  7 8"


def test_a_ragged_says_what_it_is():
    batch = udfkit.Ragged.from_list([[1, 2, 3, 4, 5, 6, 7], [], [8]])
    shown = facts(batch)
    assert shown["samples"] == "8 of shape ()"
    assert shown["padded"] == "61.9 % would be padding"
    assert shown["0"] == "(7,)  1 2 3 4 5 6 …"
    assert shown["1"].strip() == "(0,)"
    assert "continued" not in shown
    started = udfkit.Ragged(batch.values, batch.offsets, [True, False, False])
    assert facts(started)["continued"] == "2"


@pytest.mark.parametrize("as_value", [True, False])
def test_the_picture_is_the_mask(as_value):
    lengths = [3, 0, 5, 1]
    batch = udfkit.Ragged.from_list([np.ones((n, 2), np.float32) for n in lengths])
    expected = {(row, step) for row, n in enumerate(lengths) for step in range(n)}
    assert drawn_cells(udfkit.sanitize_batch(SEQUENCE, batch) if as_value else batch) == expected


def test_the_picture_of_a_mask_with_gaps():
    mask = np.int8([[0, 2, 1, 0, 2], [0, 0, 0, 0, 0], [2, 0, 1, 1, 0]])
    value = udfkit.Value(np.arange(15.0).reshape(3, 5), mask)
    assert drawn_cells(value) == set(zip(*np.nonzero(mask), strict=True))
    shown = [facts(value)[str(k)].strip() for k in range(4)]
    assert shown == ["(2,)  1 2", "(1,)  4", "(0,)", "(3,)  10 12 13"]


@pytest.mark.parametrize(
    "batch",
    [
        udfkit.Ragged(np.zeros((0, 2)), [0]),
        udfkit.Ragged(np.zeros((0, 2)), [0, 0, 0]),
        udfkit.sanitize_batch(SEQUENCE, []),
        udfkit.sanitize_batch(SEQUENCE, [np.zeros((0, 2), np.float32)]),
        udfkit.Value(np.float32(3)),
        udfkit.sanitize_batch(udfkit.input_variable(2), [[1.0, 2.0]]),
        udfkit.sanitize_batch(udfkit.input_variable(2), np.zeros((0, 2), np.float32)),
        udfkit.Value.one_hot([[1, 0], [2]], 3),
        udfkit.fill_rows([[1], [2, 3, 4], []], row_length=4).value,
        udfkit.Ragged(np.array([True, False]), [0, 2]),
        udfkit.Ragged(np.array([np.nan, np.inf, -0.0]), [0, 3]),
        udfkit.Ragged(np.zeros((3, 0)), [0, 3]),
        udfkit.Ragged(np.float16([1, 2]), [0, 2]),
    ],
    ids=repr,
)
def test_every_kind_of_batch_has_a_view(batch):
    tree = tree_of(batch)
    assert tree.find("strong").text == f"udfkit.{type(batch).__name__}"
    assert (tree.find("svg") is None) == (not drawn_or_none(batch))


def drawn_or_none(batch):
    """Whether there is a cell to draw."""
    if isinstance(batch, udfkit.Ragged):
        return len(batch) and batch.lengths.max() > 0
    return len(batch.mask.shape) == 2 and batch.mask.size


def test_texts_are_escaped():
    shown = html._view("a<b", [("<th>", "<script>&")], "", [("0", '"<')])
    assert "<script>" not in shown
    tree = ET.fromstring(shown)
    assert [row.find("th").text for row in tree.iter("tr")] == ["<th>", "0"]
    assert [row.find("td/code").text for row in tree.iter("tr")] == ["<script>&", '"<']


@pytest.mark.parametrize("gaps", [False, True])
def test_a_huge_batch_has_a_short_view(gaps):
    rng = np.random.default_rng(0)
    if gaps:
        mask = (rng.random((3000, 700)) < 0.5).astype(np.int8) * 2
        batch = udfkit.Value(np.zeros(mask.shape, np.float32), mask)
    else:
        lengths = rng.integers(0, 900, 200_000)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        batch = udfkit.Ragged(np.broadcast_to(np.float32(1), (int(offsets[-1]),)), offsets)
    assert len(batch._repr_html_()) < 24_000
    if gaps:
        assert facts(batch)["items"] == "not copied to be shown"
    else:
        assert facts(batch)["…"] == f"{len(batch) - html.ITEMS:,} more"


def test_a_large_value_is_not_copied_to_be_shown():
    value = udfkit.Value(np.ones((2, 1000, 3000), np.float32), lengths=[1000, 10])
    tracemalloc.start()
    try:
        value._repr_html_()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    assert facts(value)["1"].startswith("(10, 3000)  1 1 1 1 1 1 …")
    gaps = np.full((2, 1000), 2, np.int8)
    gaps[0, 0] = 0
    assert facts(udfkit.Value(value.data, gaps))["items"] == "not copied to be shown"


@pytest.mark.parametrize(("rows", "steps"), [(1, 1), (7, 5), (16, 48), (17, 49), (100, 333)])
def test_coverage_is_the_mean_of_the_mask(rows, steps):
    rng = np.random.default_rng(rows)
    lengths = rng.integers(0, steps + 1, rows)
    padded = np.arange(steps) < lengths[:, np.newaxis]
    mask = rng.integers(0, 2, (rows, steps)).astype(np.int8) * 2
    by_lengths = coverage(Layout("sequence", lengths, None, rows, steps), 16, 48)
    by_mask = coverage(Layout.of_mask(mask), 16, 48)
    bands, columns = min(rows, 16), min(steps, 48)
    assert by_lengths.shape == by_mask.shape == (bands, columns)
    for band in range(bands):
        for column in range(columns):
            part = np.s_[
                band * rows // bands : (band + 1) * rows // bands,
                column * steps // columns : (column + 1) * steps // columns,
            ]
            assert by_lengths[band, column] == pytest.approx(padded[part].mean())
            assert by_mask[band, column] == pytest.approx((mask[part] != 0).mean())


def test_repr_is_one_line():
    batch = udfkit.Ragged.from_list([[1.0], [2.0, 3.0]])
    assert repr(batch) == "Ragged(2 sequences, 3 samples of float64 ())"
    value = udfkit.sanitize_batch(SEQUENCE, [np.zeros((3, 2), np.float32)] * 2)
    assert repr(value) == "Value(float32 (2, 3, 2) on CPU)"
