"""Every recorded user function with a GPU as its device: the tests of the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from device_checks import on_gpu, read, read_where_needed

import golden_cases as golden
import test_empty
import test_golden_user_functions as host
import udfkit
from golden_differences import Skipped
from udfkit import DeviceDescriptor, Value

CONTRACTS = ["cntk-2.7", "auto"]


def runs(case: dict[str, Any], contract: str) -> bool:
    """Whether the case is one that is run at all."""
    row = host.row_of(case["name"], contract)
    return not (row and isinstance(row.outcome, Skipped))


RUN = [(case, contract) for case in host.SINGLE for contract in CONTRACTS if runs(case, contract)]


@pytest.fixture(autouse=True)
def _on_the_device(needs_device: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The device stands where the recorded calls say CPU."""
    gpu, inner = on_gpu(), host.assert_value

    def assert_value(got: Any, node: dict[str, Any], where: str) -> None:
        assert type(got) is Value
        assert got.device == gpu
        inner(got.to(DeviceDescriptor.cpu()), node, where)

    compare = golden.assert_bits

    def assert_bits(got: Any, want: Any, where: str) -> None:
        compare(read(got) if hasattr(got, "copy_to_host") else got, want, where)

    with read_where_needed(monkeypatch, test_empty):
        monkeypatch.setattr(udfkit, "cpu", lambda: gpu)
        monkeypatch.setattr(DeviceDescriptor, "__str__", lambda self: "CPU")
        monkeypatch.setattr(host, "assert_value", assert_value)
        monkeypatch.setattr(golden, "assert_bits", assert_bits)
        yield


@pytest.mark.parametrize(
    ("case", "contract"), RUN, ids=[f"{case['id']}-{contract}" for case, contract in RUN]
)
def test_case(case: dict[str, Any], contract: str) -> None:
    host.test_case(case, contract)


@pytest.mark.parametrize("contract", CONTRACTS)
def test_free_dimension(contract: str) -> None:
    host.test_free_dimension(contract)


@pytest.mark.parametrize("contract", CONTRACTS)
def test_call_counts(contract: str) -> None:
    host.test_call_counts(contract)
