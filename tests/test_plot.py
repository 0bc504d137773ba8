"""The picture of a batch, read back from what matplotlib was given."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import udfkit

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")

from matplotlib import pyplot as plt  # noqa: E402

VARIABLE = udfkit.sequence.input_variable((), name="x")


@pytest.fixture
def ax():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def grid(ax):
    (image,) = ax.get_images()
    return np.asarray(image.get_array())


def marks(ax):
    """Cells with a filled mark, and cells with an open one."""
    new, continued = ax.collections
    return [{tuple(cell) for cell in kind.get_offsets().astype(int)} for kind in (new, continued)]


def test_a_value_is_drawn_into_the_axes_given(ax):
    batch = [np.float32([1, 2, 3]), np.float32([]), np.float32([4, 5])]
    value = udfkit.sanitize_batch(VARIABLE, batch, [True, True, False])
    assert udfkit.plot.occupancy(value, ax) is ax
    assert grid(ax).tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 0]]
    assert marks(ax) == [{(0, 0)}, {(0, 2)}]
    assert ax.get_title() == "3 sequences, 5 of 9 cells valid, 44.4 % padding"


def test_several_sequences_a_row(ax):
    mask = np.int8([[0, 1, 1, 2, 1], [2, 1, 2, 0, 0], [0, 0, 0, 0, 0]])
    udfkit.plot.occupancy(udfkit.Value(np.ones((3, 5)), mask), ax)
    assert grid(ax).tolist() == (mask != 0).tolist()
    assert marks(ax) == [{(3, 0), (0, 1), (2, 1)}, {(1, 0)}]


def test_a_ragged_gets_axes_of_its_own():
    drawn = udfkit.plot.occupancy(udfkit.Ragged.from_list([[1], [2, 3]]))
    try:
        assert grid(drawn).tolist() == [[1, 0], [1, 1]]
    finally:
        plt.close(drawn.figure)


@pytest.mark.parametrize("offsets", [[0], [0, 0, 0]])
def test_nothing_to_draw(ax, offsets):
    udfkit.plot.occupancy(udfkit.Ragged(np.zeros(0), offsets), ax)
    assert grid(ax).sum() == 0
    ax.figure.canvas.draw()


def test_a_large_batch_is_averaged(ax):
    lengths = np.arange(5000)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    batch = udfkit.Ragged(np.broadcast_to(np.int8(1), (int(offsets[-1]),)), offsets)
    udfkit.plot.occupancy(batch, ax)
    assert grid(ax).shape == (udfkit.plot.GRID, udfkit.plot.GRID)
    assert grid(ax).mean() == pytest.approx(0.5, abs=0.01)
    assert len(ax.collections) == 0


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ([[1, 2]], "value is a list, expected a Value or a Ragged"),
        (udfkit.Value(np.float32(1)), "no sequence axis"),
    ],
)
def test_what_cannot_be_drawn(wrong, text):
    with pytest.raises(TypeError, match=text):
        udfkit.plot.occupancy(wrong)


def test_matplotlib_is_imported_when_something_is_drawn_and_missed_by_name():
    code = """
import sys
sys.modules["matplotlib"] = None
import udfkit
try:
    udfkit.plot.occupancy(udfkit.Ragged.from_list([[1]]))
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "a picture needs matplotlib" in done.stdout, done.stderr
