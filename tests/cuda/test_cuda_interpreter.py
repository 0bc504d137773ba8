"""The PTX interpreter finds the faults that it is there to find."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptx_interpreter import parse, run
from ptx_memory import Fault, Memory

HEAD = """
.visible .entry kernel(
    .param .u64 kernel_param_0,
    .param .u64 kernel_param_1
)
{
    .reg .pred %p<9>;
    .reg .b32 %r<9>;
    .reg .b64 %rd<9>;
    .shared .align 8 .b8 cells[64];
    ld.param.u64 %rd1, [kernel_param_0];
    ld.param.u64 %rd2, [kernel_param_1];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    mov.u64 %rd6, cells;
    add.s64 %rd7, %rd6, %rd3;
"""
COPY = "ld.global.u32 %r2, [%rd4]; st.global.u32 [%rd5], %r2; ret;"


def execute(
    body: str, *, threads: int = 4, skew: int = 0, words: int = 4, blocks: int = 1
) -> tuple[Any, Any]:
    source = np.arange(10, 10 + words, dtype=np.uint32)
    target = np.zeros(words, np.uint32)
    memory = Memory()
    addresses = [memory.place(source, skew=skew), memory.place(target, writable=True)]
    statistics = run(HEAD + body + "}", (blocks, 1), (threads, 1), addresses, memory)
    return target, statistics


def test_a_copy_is_run_and_counted() -> None:
    target, statistics = execute(COPY, threads=40, words=40)
    assert target.tolist() == list(range(10, 50))
    # Two warps: 128 bytes in four sectors, and 32 bytes in one.
    assert statistics.sectors["load", 0] == statistics.sectors["store", 1] == 5
    assert statistics.moved["load", 0] == 160
    assert statistics.requests["store", 4] == 2


def test_unaligned_rows_cost_more_sectors() -> None:
    _, statistics = execute(COPY, threads=8, words=8, skew=4)
    assert statistics.sectors["load", 0] == 2
    assert statistics.sectors["store", 1] == 1


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("ld.global.u32 %r2, [%rd4+16]; ret;", "load of 4 bytes outside all buffers"),
        ("ld.global.u32 %r2, [%rd4+-4]; ret;", "load of 4 bytes outside all buffers"),
        ("ld.global.u32 %r2, [%rd4+2]; ret;", "misaligned load of 4 bytes"),
        ("ld.global.v4.u32 {%r2,%r3,%r4,%r5}, [%rd4]; ret;", "misaligned load of 16 bytes"),
        ("st.global.u32 [%rd4], %r1; ret;", "store into an input"),
        ("st.global.u32 [%rd2], %r1; ret;", "two threads store to the same address"),
        ("st.global.u32 [%rd5], %r7; ret;", "register %r7 is read before it is written"),
        ("add.f32 %r2, %r1, %r1; shf.l.wrap.b32 %r2, %r1, %r1, 3; ret;", "cannot read|unknown"),
        ("ld.shared.u32 %r2, [%rd7]; ret;", "nothing was stored to"),
        ("st.shared.u32 [%rd7+64], %r1; ret;", "outside shared memory"),
        ("st.shared.u32 [%rd6], %r1; ret;", "store to the same shared memory at once"),
    ],
)
def test_faults_are_found(body: str, text: str) -> None:
    with pytest.raises((Fault, KeyError, ValueError), match=text):
        execute(body)


NEIGHBOUR = """
    st.shared.u32 [%rd7], %r1;
    {barrier}
    xor.b32 %r3, %r1, 1;
    mul.wide.u32 %rd8, %r3, 4;
    add.s64 %rd8, %rd6, %rd8;
    ld.shared.u32 %r2, [%rd8];
    {second}
    st.shared.u32 [%rd7], %r2;
    st.global.u32 [%rd5], %r2;
    ret;
"""


def test_shared_memory_across_barriers() -> None:
    target, _ = execute(NEIGHBOUR.format(barrier="bar.sync 0;", second="bar.sync 0;"))
    assert target.tolist() == [1, 0, 3, 2]


@pytest.mark.parametrize(
    ("barrier", "second", "text"),
    [
        ("", "bar.sync 0;", "read before a barrier"),
        ("bar.sync 0;", "", "written while another thread uses it"),
    ],
)
def test_races_are_found(barrier: str, second: str, text: str) -> None:
    with pytest.raises(Fault, match=text):
        execute(NEIGHBOUR.format(barrier=barrier, second=second))


def test_global_memory_written_by_two_threads_is_a_fault() -> None:
    body = """
        st.global.u32 [%rd5], %r1;
        {barrier}
        setp.eq.s32 %p1, %r1, 0;
        @%p1 st.global.u32 [%rd2+8], %r1;
        ret;
    """
    with pytest.raises(Fault, match="store of a byte that another thread wrote"):
        execute(body.format(barrier=""))
    target, _ = execute(body.format(barrier="bar.sync 0;"))
    assert target.tolist() == [0, 1, 0, 3]
    with pytest.raises(Fault, match="store"):
        execute(body.format(barrier="bar.sync 0;"), blocks=2)


def test_barriers_that_not_all_threads_meet_are_a_fault() -> None:
    body = "setp.eq.s32 %p1, %r1, 0; @%p1 bra $L1; bar.sync 0; $L1: ret;"
    with pytest.raises(Fault, match="ended before a barrier"):
        execute(body)
    apart = "setp.eq.s32 %p1, %r1, 0; @%p1 bra $L1; bar.sync 0; ret; $L1: bar.sync 0; ret;"
    with pytest.raises(Fault, match="different barriers"):
        execute(apart)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("add.s32 %r2, %r1, -1; shr.u32 %r2, %r2, 28;", [15, 0, 0, 0]),
        ("add.s32 %r2, %r1, -2; shr.s32 %r2, %r2, 31;", [2**32 - 1, 2**32 - 1, 0, 0]),
        ("mov.u32 %r3, 40; shl.b32 %r2, %r1, %r3;", [0, 0, 0, 0]),
        ("mul.lo.s32 %r2, %r1, 2147483647;", [0, 2**31 - 1, 2**32 - 2, 2**31 - 3]),
        ("mad.lo.s32 %r2, %r1, 3, %r1;", [0, 4, 8, 12]),
        ("neg.s32 %r3, %r1; min.s32 %r2, %r3, -2;", [2**32 - 2, 2**32 - 2, 2**32 - 2, 2**32 - 3]),
        ("setp.gt.u32 %p1, %r1, 1; selp.b32 %r2, 7, 9, %p1;", [9, 9, 7, 7]),
        ("setp.gt.u32 %p1, %r1, 1; not.pred %p2, %p1; selp.b32 %r2, 7, 9, %p2;", [7, 7, 9, 9]),
        ("neg.s32 %r3, %r1; cvt.s64.s32 %rd8, %r3; shr.s64 %rd8, %rd8, 32; cvt.u32.u64 %r2, %rd8;",
         [0, 2**32 - 1, 2**32 - 1, 2**32 - 1]),
        ("neg.s32 %r3, %r1; cvt.u64.u32 %rd8, %r3; shr.u64 %rd8, %rd8, 31; cvt.u32.u64 %r2, %rd8;",
         [0, 1, 1, 1]),
        ("cvt.u64.u32 %rd8, %r1; bfi.b64 %rd8, %rd8, 0, 4, 8; cvt.u32.u64 %r2, %rd8;",
         [0, 16, 32, 48]),
    ],
)  # fmt: skip
def test_arithmetic(body: str, expected: list[int]) -> None:
    target, _ = execute(body + "st.global.u32 [%rd5], %r2; ret;")
    assert target.tolist() == expected


def test_loops_end_when_each_thread_is_done() -> None:
    body = """
        mov.u32 %r2, 0;
        mov.u32 %r3, 0;
    $L1:
        setp.ge.s32 %p1, %r3, %r1;
        @%p1 bra $L2;
        add.s32 %r2, %r2, %r3;
        add.s32 %r3, %r3, 1;
        bra.uni $L1;
    $L2:
        st.global.u32 [%rd5], %r2;
        ret;
    """
    target, _ = execute(body)
    assert target.tolist() == [0, 0, 1, 3]


def test_parameters_and_labels_are_read() -> None:
    program = parse(HEAD + "$L1: bra $L1; }")
    assert program.parameters == ["kernel_param_0", "kernel_param_1"]
    assert program.labels == {"$L1": len(program.code) - 1}
    assert program.shared == {"cells": 0}
    assert program.shared_bytes == 64
