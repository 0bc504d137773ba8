"""`udfkit.torch` and devices: what is said without one, and calls on the simulator."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

import adapted_functions as adapted
import udfkit
import udfkit.torch
from udfkit.adapters import torch_device

FOLDER = Path(__file__).parent


def test_calls_on_a_device_pass_on_the_simulator():
    chosen = {"NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "0"}
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(FOLDER / "simulated")],
        env={**os.environ, **chosen},
        cwd=FOLDER.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " skipped" not in done.stdout, done.stdout[-2000:]
    assert " passed" in done.stdout


META = torch.zeros(2, 3, device="meta")


@pytest.mark.parametrize(
    "given",
    [
        (META, torch.tensor([1, 3])),
        (torch.zeros(2, 3), torch.tensor([1, 3], device="meta")),
        torch.nested.nested_tensor_from_jagged(META[0], torch.tensor([0, 3], device="meta")),
    ],
)
def test_meta_has_no_data(given):
    function = adapted.Square([adapted.sequences((), np.float32, name="x")])
    text = r"(input 'x' is|mask of input 'x' are) on meta, where tensors have no data"
    with pytest.raises(udfkit.DeviceError, match=text):
        udfkit.torch.apply(function, given)


def on_cuda(*shape: int) -> torch.Tensor:
    """A tensor that says it is on a GPU and has no memory: enough for what comes before a read."""
    with FakeTensorMode():
        return torch.zeros(*shape, device="cuda")


def test_inputs_on_two_devices_are_refused():
    x, y = adapted.sequences((), np.float32, name="x"), adapted.sequences(name="y")
    function = adapted.Scale([x, y, udfkit.Constant(1.0)])
    given = (on_cuda(3), torch.tensor([0, 3]))
    on_host = (torch.zeros(3, dtype=torch.float64), torch.tensor([0, 3]))
    text = r"input 'y' of .* is on cpu, but input 'x' is on cuda:0: put all on one device"
    with pytest.raises(udfkit.DeviceError, match=text):
        udfkit.torch.apply(function, given, on_host, torch.tensor(1.0))


def test_another_dtype_is_refused_on_a_device():
    function = adapted.Square([adapted.sequences(name="x")])
    text = r"'x' is torch.float32 on cuda:0, its variable float64, .* convert it with \.to\(torch.f"
    with pytest.raises(TypeError, match=text):
        udfkit.torch.apply(function, (on_cuda(3), torch.tensor([0, 3])))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "given",
    [
        (on_cuda(3), torch.tensor([0, 3])),
        (on_cuda(1, 3), torch.tensor([3])),
        (on_cuda(1, 3), torch.ones(1, 3, dtype=torch.bool)),
    ],
)
def test_a_device_that_is_not_there(given):
    function = adapted.Square([adapted.sequences((), np.float32, name="x")])
    with pytest.raises(udfkit.DeviceError, match=r"gpu\(0\) was asked for"):
        udfkit.torch.apply(function, given)


class Stream:
    def __init__(self, name: str, log: list[str]):
        self.name = name
        self.log = log

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


@pytest.mark.parametrize("fails", [False, True])
def test_the_two_streams_wait_for_each_other(monkeypatch, fails):
    log: list[str] = []
    default, side = Stream("default", log), Stream("side", log)

    @contextmanager
    def chosen(stream):
        log.append(f"on {stream.name}")
        yield
        log.append(f"off {stream.name}")

    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: default)
    monkeypatch.setattr(torch.cuda, "stream", chosen)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: default)
    with torch_device.Link().ordered(torch.device("cuda:0")) as other:
        assert other is None
    assert log == []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: side)
    with suppress(ZeroDivisionError), torch_device.Link().ordered(torch.device("cuda:0")) as other:
        assert other is side
        log.append("work")
        if fails:
            raise ZeroDivisionError
    end = [] if fails else ["off default"]
    assert log == ["default waits for side", "on default", "work", *end, "side waits for default"]
