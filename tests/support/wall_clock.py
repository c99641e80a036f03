"""Sets the wall clock of one process, which may be written in any language.

Go asks the kernel's page of code for the time (the vDSO), so that a preloaded library changes
nothing. Here that page itself is changed, in the one process: its ``clock_gettime`` asks the kernel
and adds a number of seconds to the time of day. Monotonic clocks go on as they were, as when
somebody sets the clock of a machine.
"""

import contextlib
import os
import platform
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_ENTRY = b"__vdso_clock_gettime"
_STUB = bytes.fromhex(
    "b8e4000000"  # mov eax, 228 (clock_gettime)
    "0f05"  # syscall
    "85ff"  # test edi, edi: CLOCK_REALTIME is 0
    "750a"  # jne to the ret
    "488b1506000000"  # mov rdx, [the seconds]
    "480116"  # add [rsi], rdx
    "c3"  # ret
    "9090"  # up to the next multiple of eight
)
_LIMIT_S = 10.0
_SHT_DYNSYM = 11


class WallClock:
    """The time of day as one process sees it.

    Args:
        pid: Of the process; it is stopped for a moment. It must be ours to trace, for example a
            child of this one.
    """

    def __init__(self, pid: int) -> None:
        if platform.machine() != "x86_64":
            pytest.skip("the code that is put into the process is for x86-64")
        self._memory = Path(f"/proc/{pid}/mem")
        start, end = _vdso(pid)
        entry = start + _offset_of_entry(self._read(start, end - start))
        self._seconds_at = entry + len(_STUB)
        assert self._seconds_at % 8 == 0
        with _stopped_outside(pid, start, end):
            self._write(entry, _STUB + bytes(8))

    def set(self, seconds: int) -> None:
        """From now on the process is ahead by so many seconds (behind, if negative)."""
        self._write(self._seconds_at, struct.pack("<q", seconds))

    @contextlib.contextmanager
    def ahead(self, seconds: int) -> Iterator[None]:
        """For the time of a block the process is ahead by so many seconds."""
        self.set(seconds)
        try:
            yield
        finally:
            self.set(0)

    def _read(self, at: int, size: int) -> bytes:
        with self._memory.open("rb", 0) as memory:
            memory.seek(at)
            return memory.read(size)

    def _write(self, at: int, data: bytes) -> None:
        with self._memory.open("r+b", 0) as memory:
            memory.seek(at)
            memory.write(data)


def _vdso(pid: int) -> tuple[int, int]:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if line.endswith("[vdso]"):
            start, _, end = line.split()[0].partition("-")
            return int(start, 16), int(end, 16)
    pytest.skip("this kernel gives processes no vDSO")


def _offset_of_entry(image: bytes) -> int:
    """Where ``clock_gettime`` begins, from the image's table of dynamic symbols."""
    sections_at = struct.unpack_from("<Q", image, 0x28)[0]
    size, count = struct.unpack_from("<HH", image, 0x3A)
    headers = [
        struct.unpack_from("<IIQQQQIIQQ", image, sections_at + n * size) for n in range(count)
    ]
    for _, kind, _, _, at, length, link, _, _, each in headers:
        if kind != _SHT_DYNSYM:
            continue
        names_at = headers[link][4]
        for symbol in range(at, at + length, each):
            name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", image, symbol)
            if image[names_at + name :].split(b"\0", 1)[0] == _ENTRY:
                return int(value)
    pytest.skip("this kernel's vDSO has no clock_gettime")


@contextlib.contextmanager
def _stopped_outside(pid: int, start: int, end: int) -> Iterator[None]:
    """Stop the process while none of its threads runs inside the code that is to be changed."""
    until = time.monotonic() + _LIMIT_S
    try:
        while True:
            os.kill(pid, signal.SIGSTOP)
            counters = _counters(pid)
            if counters and not any(start <= counter < end for counter in counters):
                break
            os.kill(pid, signal.SIGCONT)
            assert time.monotonic() < until, "the process cannot be caught outside its vDSO"
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _counters(pid: int) -> list[int]:
    """Where each thread stands; empty while one of them still runs."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        state = (task / "stat").read_text().rpartition(")")[2].split()[0]
        words = (task / "syscall").read_text().split()
        if state != "T" or words == ["running"]:
            return []
        found.append(int(words[-1], 16))
    return found
