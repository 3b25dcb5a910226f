"""The service with a probe on its event loop: `python -m tests.bench.probed_service serve …`.

Each tick of a timer of 1 ms adds a record to the file in the environment variable PROBE: the time (monotonic), the
seconds since the previous tick, and the processor seconds of the event loop's thread since then. If the event loop is
blocked, the next tick is late.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

from connectivity import service
from connectivity.cli.main import main
from connectivity.config.settings import Settings

VARIABLE = "PROBE"
PERIOD = 0.001
_RECORD = struct.Struct("<3d")


class Tick(NamedTuple):
    """A tick: its time, its delay, and the thread's processor time since the previous tick, in seconds."""

    at: float
    late: float
    computing: float


def ticks(file: Path, since: float, until: float) -> list[Tick]:
    """Read the ticks between two times of the monotonic clock."""
    read = _RECORD.iter_unpack(file.read_bytes())
    return [
        Tick(at, max(0.0, gap - PERIOD), computing) for at, gap, computing in read if since < at - gap and at < until
    ]


def start_probe(file: int) -> None:
    loop = asyncio.get_running_loop()
    before, spent = time.monotonic(), time.thread_time()

    def tick() -> None:
        nonlocal before, spent
        now, computed = time.monotonic(), time.thread_time()
        os.write(file, _RECORD.pack(now, now - before, computed - spent))
        before, spent = now, computed
        loop.call_later(PERIOD, tick)

    tick()


async def run(settings: Settings, settings_file: Path | None = None) -> None:
    start_probe(os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    await _run(settings, settings_file)


if __name__ == "__main__":
    _run = service._run
    setattr(service, "_run", run)  # noqa: B010 - a name of another module is replaced
    main()
