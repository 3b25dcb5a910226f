"""The script process: gives up what it does not need, then answers calls one by one.

It is started without the service's environment and descriptors. Before the first script comes it gives up opening files
and sockets, writing files, starting processes and dumping core, and bounds its address space. A call that outruns its time
inside a native function, where the engine cannot stop it, ends the process: the kernel's timer of processor time does
that, and needs no help of the interpreter. The process ends when the service closes its end of the pipe.
"""

from __future__ import annotations

import os
import resource
import signal
from typing import BinaryIO

import msgspec

from connectivity.mapping.sandbox import Sandbox, ScriptError
from connectivity.mapping.script_protocol import (
    LENGTH,
    Call,
    CallFailure,
    CallResult,
    Load,
    Order,
    ScriptLimits,
    WorkerReady,
    frame,
)

HARD_FACTOR, HARD_PAUSE = 1.2, 0.1
"""The kernel's limit of processor time: times that of the engine, and seconds on top, so that the engine's comes first."""

_SPACE = 6
"""Address space in multiples of the engine's memory: copies while something grows, the frames, their JSON."""

_SPACE_UNTOLD = 1 << 30


def main() -> None:
    """Answer calls until the pipe is closed."""
    orders, answers = os.fdopen(0, "rb", buffering=1 << 16), 1
    limits = _receive(orders)
    if not isinstance(limits, ScriptLimits):
        return
    sandbox = Sandbox(limits)
    sandbox.prepare()
    loaded: dict[int, Load] = {}
    confine(limits)
    os.write(answers, frame(WorkerReady()))
    while (order := _receive(orders)) is not None:
        if isinstance(order, Load):
            loaded[order.key] = order
        elif isinstance(order, Call):
            _send(answers, _answer(sandbox, limits, loaded[order.key], order))
            sandbox.prepare()


def confine(limits: ScriptLimits) -> None:
    """Give up what a script process does not need, for good."""
    space = _address_space() + _SPACE * limits.memory + 4 * limits.output
    nothing = (0, 0)
    for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE):
        resource.setrlimit(kind, nothing)
    resource.setrlimit(resource.RLIMIT_AS, (space, space))


def _address_space() -> int:
    """Bytes that the process has mapped; a guess where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as told:
            return int(told.read().split()[0]) * resource.getpagesize()
    except OSError:
        return _SPACE_UNTOLD


def _answer(sandbox: Sandbox, limits: ScriptLimits, scripts: Load, call: Call) -> CallResult | CallFailure:
    # Nothing handles this signal, so it ends the process.
    signal.setitimer(signal.ITIMER_PROF, limits.seconds * HARD_FACTOR + HARD_PAUSE)
    try:
        return CallResult(sandbox.run(scripts.sources, scripts.libraries, call.direction, call.argument))
    except ScriptError as error:
        return CallFailure(str(error))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


_decode = msgspec.msgpack.Decoder(Order).decode


def _receive(orders: BinaryIO) -> Order | None:
    """The next order, or None at the end."""
    length = orders.read(LENGTH)
    if len(length) < LENGTH:
        return None
    order: Order = _decode(orders.read(int.from_bytes(length, "big")))
    return order


def _send(answers: int, answer: CallResult | CallFailure) -> None:
    data = memoryview(frame(answer))
    while data:
        data = data[os.write(answers, data) :]


if __name__ == "__main__":
    main()
