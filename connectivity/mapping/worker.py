"""The script process: drops its privileges, then answers calls one by one.

It starts without the service's environment and file descriptors. Before the first script it limits its address space and
gives up every system call but those for time, memory and its two pipes, so that code which takes over the engine reaches no
file, process or network; if root started the service, it also becomes another user. A call that exceeds its time in a native
function, where the engine cannot stop it, is ended with the process by the kernel's timer of CPU time. The process ends when
the service closes the pipe.
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
from connectivity.security.system_calls import NotSupported, keep_only_computing

HARD_FACTOR, HARD_PAUSE = 1.2, 0.1
"""The kernel's CPU time limit: a factor and seconds above that of the engine, which ends first."""

_ADDRESS_SPACE_FACTOR = 6
"""Address space as a multiple of the engine's memory, for copies while growing, frames and JSON."""

_DEFAULT_ADDRESS_SPACE = 1 << 30

NICE = 10
"""The niceness of the process: other connections' messages wait for the service, and not for scripts."""

NOBODY = 65534
"""User and group of the process if root starts it."""


def main() -> None:
    """Answer calls until the pipe is closed, then exit."""
    try:
        # uvloop passes on what the service itself has inherited, and copies of the pipes.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        _answer_calls()
    except BaseException:
        # The interpreter's own end makes system calls that have been given up.
        os._exit(1)
    os._exit(0)


def _answer_calls() -> None:
    os.nice(NICE)
    orders, answers = os.fdopen(0, "rb", buffering=1 << 16, closefd=False), 1
    limits = _receive(orders)
    if not isinstance(limits, ScriptLimits):
        return
    sandbox = Sandbox(limits)
    sandbox.prepare()
    loaded: dict[int, Load] = {}
    os.write(answers, frame(WorkerReady(drop_privileges(limits))))
    while (order := _receive(orders)) is not None:
        if isinstance(order, Load):
            loaded[order.key] = order
        elif isinstance(order, Call):
            _send(answers, _answer(sandbox, limits, loaded[order.key], order))
            sandbox.prepare()


def drop_privileges(limits: ScriptLimits) -> tuple[str, ...]:
    """Give up for good what a script process does not need, and return what this system cannot take away."""
    limit = _address_space() + _ADDRESS_SPACE_FACTOR * limits.memory + 4 * limits.output
    nothing = (0, 0)
    for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE):
        resource.setrlimit(kind, nothing)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    missing = []
    if os.geteuid() == 0:
        try:
            _become_nobody()
        except OSError as error:
            missing.append(f"they run as root, which cannot become user {NOBODY}: {error.strerror}")
    try:
        keep_only_computing()
    except NotSupported as error:
        missing.append(f"their system calls are not limited: {error}")
    return tuple(missing)


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _address_space() -> int:
    """Return the mapped bytes of the process, or a guess where the system does not report them."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return _DEFAULT_ADDRESS_SPACE


def _answer(sandbox: Sandbox, limits: ScriptLimits, scripts: Load, call: Call) -> CallResult | CallFailure:
    # Without a handler this signal ends the process.
    signal.setitimer(signal.ITIMER_PROF, limits.seconds * HARD_FACTOR + HARD_PAUSE)
    try:
        return CallResult(sandbox.run(scripts.sources, scripts.libraries, call.direction, call.argument))
    except ScriptError as error:
        return CallFailure(str(error))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


_decode = msgspec.msgpack.Decoder(Order).decode


def _receive(orders: BinaryIO) -> Order | None:
    """Return the next order, or None at the end of the pipe."""
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
