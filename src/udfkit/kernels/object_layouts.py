"""Where CPython and NumPy keep what compiled code reads: offsets, and a check of them.

Offsets are in bytes into PyObject, PyTupleObject, PyArrayObject and PyArray_Descr of 64-bit builds.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

import numpy as np

TYPE = 8
ITEMS = tuple.__basicsize__
DATA, NDIM, DIMENSIONS, DESCR, FLAGS = 16, 24, 32, 56, 64
BYTE_ORDER, TYPE_NUMBER = 26, 28
ITEM_SIZE, ITEM_SIZE_BYTES = (40, 8) if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else (32, 4)

READABLE = 0x101
"""The flags C-contiguous and aligned."""
WRITEABLE_FLAG = 0x400
WRITABLE = READABLE | WRITEABLE_FLAG

NATIVE, NO_ORDER = ord("="), ord("|")
LAST_NUMBER, HALF = 13, 23
"""Numbers of the types whose number says all: bool to long double, and half precision.

Arrays out of a pickle have a dtype object of their own, so identity is not enough.
"""


def _build_problem() -> str | None:
    if sys.implementation.name != "cpython":
        return f"{sys.implementation.name} is not CPython"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this build of Python has no global interpreter lock"
    if struct.calcsize("P") != 8:
        return "addresses are not 64 bits wide"
    return None


def _facts() -> Iterator[tuple[Any, str, str, str, int]]:
    """Yield object, what it is, name of an offset, kind of the number there, the number."""
    batch = (np.zeros(1),)
    yield batch, "a tuple", "TYPE", "q", id(tuple)
    yield batch, "a tuple", "ITEMS", "q", id(batch[0])
    for code in "?", "b", "H", "l", "e", "f", "d", ">f", "D":
        dtype = np.dtype(code)
        what = f"the dtype {dtype.str}"
        order = NATIVE if dtype.isnative and dtype.itemsize > 1 else ord(dtype.byteorder)
        yield dtype, what, "TYPE", "q", id(type(dtype))
        yield dtype, what, "BYTE_ORDER", "B", order
        yield dtype, what, "TYPE_NUMBER", "i", dtype.num
        yield dtype, what, "ITEM_SIZE", "q" if ITEM_SIZE_BYTES == 8 else "i", dtype.itemsize
        for shape in (), (3,), (2, 3), (2, 0, 4):
            array = np.zeros(shape, dtype)
            what = f"a {shape} array of {dtype.str}"
            yield array, what, "TYPE", "q", id(np.ndarray)
            yield array, what, "DATA", "q", array.__array_interface__["data"][0]
            yield array, what, "NDIM", "i", len(shape)
            yield array, what, "DESCR", "q", id(array.dtype)
            yield array, what, "FLAGS", "i", array.flags.num


def layout_problem(**changed: int) -> str | None:
    """Compare the offsets with objects made for the purpose.

    Parameters
    ----------
    **changed
        Offsets to try in place of the module's, by name.

    Returns
    -------
    str or None
        What does not fit, or None.

    Examples
    --------
    >>> from udfkit.kernels.object_layouts import layout_problem
    >>> layout_problem(NDIM=28)
    'NDIM of a (3,) array of |b1 is not at offset 28'
    """
    problem = _build_problem()
    if problem is not None:
        return problem
    for value, what, name, kind, expected in _facts():
        offset, size = changed.get(name, globals()[name]), struct.calcsize(f"={kind}")
        room = type(value).__basicsize__ + (8 if isinstance(value, tuple) else 0)
        found = None
        if offset + size <= room:
            found = struct.unpack(f"={kind}", ctypes.string_at(id(value) + offset, size))[0]
        if found != expected:
            return f"{name} of {what} is not at offset {offset}"
    return None
