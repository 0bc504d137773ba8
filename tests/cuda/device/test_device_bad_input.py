"""Sections 5 and 6 of the contract with a GPU as the default device: the tests of the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from device_checks import read_where_needed

import test_empty
import udfkit
from checks import raises, sequence_variable
from test_bad_input import *  # noqa: F403
from test_bad_input_late import *  # noqa: F403
from test_empty import *  # noqa: F403
from udfkit import sanitize_batch

# Runs in a process of its own, which would be one without the simulator; and an array that says
# that it is on a GPU is a batch here.
del test_a_padded_size_over_the_limit, test_arrays_that_cannot_be_read_here  # noqa: F821


@pytest.fixture(autouse=True)
def _on_the_device(needs_device: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with read_where_needed(monkeypatch, test_empty):
        yield


def test_a_padded_size_over_the_limit_is_refused_before_a_launch(
    monkeypatch: pytest.MonkeyPatch, launched: Any
) -> None:
    monkeypatch.setenv("UDFKIT_MAX_BYTES", "1000000")
    batch = [np.zeros((50, 100), np.float32)] + [np.zeros((1, 100), np.float32)] * 199
    variable = sequence_variable(100)
    parts = (200, 50, "4,000,000", "1,000,000", "UDFKIT_MAX_BYTES")
    with raises(MemoryError, *parts):
        sanitize_batch(variable, batch)
    # The ragged form, to which the text points, works until it is to be padded.
    value = sanitize_batch(variable, udfkit.Ragged.from_list(batch))
    assert value.values.shape == (249, 100)
    with raises(MemoryError, *parts):
        _ = value.data
    assert launched.names == []
    sparse = udfkit.Value.one_hot([[0, 5], [7]], 10**6)
    with raises(MemoryError, "UDFKIT_MAX_BYTES"):
        _ = sparse.data
