"""The script process of a connection: starts it for the first call, exchanges frames, ends it.

The process inherits standard input and output, no other file descriptor and no environment. It limits itself (`worker.py`);
this side kills a process that has not answered for `patience` seconds, which is much longer than a script may run, because
the machine may be busy. `script_calls.py` decides which call fails when a process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import count
from pathlib import Path

import structlog

from connectivity.errors import ScriptFailed
from connectivity.mapping.script_calls import Calls, PendingCall
from connectivity.mapping.script_protocol import (
    BadFrame,
    Call,
    CallFailure,
    CallResult,
    Direction,
    Frames,
    Load,
    ScriptLimits,
    WorkerReady,
    frame,
)
from mappings.errors import DecodeError, EncodeError
from mappings.mappers.scripts import (
    Scripts,
    incoming_argument,
    incoming_envelopes,
    outgoing_argument,
    outgoing_envelopes,
    script_failed,
)
from mappings.model.envelope import Envelope

log = structlog.get_logger(__name__)

PATIENCE = 20.0
START_TIMEOUT_SECONDS = 60.0
MAX_CALLS = 32
"""The most calls that wait or are sent; others wait before their arguments are built."""

FORBIDDEN_CALL = "the script process was ended because it made a forbidden system call"

_ROOT = Path(__file__).parents[2]
_CHUNK = 1 << 16
_FRAME_OVERHEAD = 1 << 10
_EXIT_SECONDS = 5.0
_CLOSED = "the connection is closed"


def command() -> list[str]:
    """Return the command of a script process: isolated Python that finds this package at any path."""
    code = f"import sys; sys.path.append({str(_ROOT)!r}); from connectivity.mapping.worker import main; main()"
    return [sys.executable, "-I", "-X", "utf8", "-c", code]


def environment() -> dict[str, str]:
    """Return the environment of a script process: only the search path of the interpreter's libraries."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}


@cache
def _log_missing(missing: tuple[str, ...]) -> None:
    """Log once for all connections what does not protect the service from its script processes."""
    for reason in missing:
        log.warning("script processes are not fully isolated", reason=reason)


class ScriptHost:
    """The script process of one connection."""

    def __init__(self, limits: ScriptLimits | None = None, *, patience: float = PATIENCE) -> None:
        self.limits = limits or ScriptLimits()
        self._patience = patience
        self._calls = Calls()
        self._slots = asyncio.Semaphore(MAX_CALLS)
        self._keys = count()
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_activity = 0.0
        """When the process last answered or was sent a call, on the event loop's clock."""
        self._is_overdue = False
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The ID of the running process, if any."""
        return self._process.pid if self._process is not None else None

    def scripts(self, sources: tuple[str, ...], libraries: tuple[str, ...] = ()) -> Load:
        """Register scripts for calls."""
        return Load(next(self._keys), sources, libraries)

    async def call(self, scripts: Load, direction: Direction, argument: Callable[[], str]) -> str:
        """Return the results of a direction's function as a JSON array. Raises ScriptFailed.

        `argument` is called when the call's turn has come, so that at most `MAX_CALLS` arguments are in memory.
        """
        async with self._slots:
            if self._is_closed:
                raise ScriptFailed(_CLOSED)
            future: asyncio.Future[CallResult | CallFailure] = asyncio.get_running_loop().create_future()
            self._calls.add(PendingCall(scripts, Call(scripts.key, direction, argument()), future))
            if self._task is None or self._task.done():
                self._task = asyncio.get_running_loop().create_task(self._run(), name="script process")
            self._send_calls()
            answer = await future
        if isinstance(answer, CallFailure):
            raise ScriptFailed(answer.reason)
        return answer.results

    async def close(self) -> None:
        """End the process. Pending calls fail, and so do later ones."""
        self._is_closed = True
        # The task that does the same may not have begun yet.
        self._calls.fail(_CLOSED)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        """Run one process after the other while there are calls."""
        try:
            while self._calls:
                await self._run_process()
        finally:
            self._calls.fail("the script process has ended")

    async def _run_process(self) -> None:
        """Run one process from its start to its end."""
        self._is_overdue = False
        try:
            process = await asyncio.create_subprocess_exec(
                *command(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=environment(),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            log.error("script process not started", reason=str(error))
            self._calls.process_ended(f"the script process cannot be started: {error.strerror}", is_to_blame=False)
            return
        self._process = process
        protocol_error: str | None = None
        try:
            self._write(frame(self.limits), START_TIMEOUT_SECONDS)
            protocol_error = await self._read_answers(process)
        finally:
            self._process = None
            self._stop_watching()
            await _end(process)
        reason, is_to_blame = self._cause(process.returncode, protocol_error)
        if reason == FORBIDDEN_CALL:
            # No script can do this, unless the engine has a bug.
            log.error("script process made a forbidden system call")
        else:
            log.info("script process ended", reason=reason)
        self._calls.process_ended(reason, is_to_blame=is_to_blame)

    async def _read_answers(self, process: asyncio.subprocess.Process) -> str | None:
        """Read answers until the process closes its output; return what was wrong with them, if anything."""
        assert process.stdout is not None
        frames = Frames(self.limits.output + _FRAME_OVERHEAD)
        while received := await process.stdout.read(_CHUNK):
            try:
                for answer in frames.feed(received):
                    self._calls.handle_answer(answer)
                    if isinstance(answer, WorkerReady):
                        _log_missing(answer.missing)
            except BadFrame as error:
                return str(error)
            self._last_activity = asyncio.get_running_loop().time()
            self._send_calls()
        return None

    def _cause(self, code: int | None, protocol_error: str | None) -> tuple[str, bool]:
        """Return why a process has ended, and whether the call that it executed is to blame."""
        if protocol_error is not None:
            return f"the script process sent an invalid response: {protocol_error}", True
        if self._is_overdue:
            return "the script process did not respond", True
        if code == -signal.SIGPROF:
            return f"ran longer than {round(self.limits.seconds * 1000)} ms", True
        if code == -signal.SIGSYS:
            return FORBIDDEN_CALL, True
        return f"the script process ended with code {code}", False

    def _send_calls(self) -> None:
        was_working = self._calls.is_working
        if self._process is not None and (data := self._calls.send()):
            if not was_working:
                self._stop_watching()
            self._write(data, self._patience)

    def _write(self, data: bytes, patience: float) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._last_activity = loop.time()
            self._timer = loop.call_later(patience, self._check_overdue)

    def _check_overdue(self) -> None:
        """Kill the process if it owes an answer and its time is over."""
        self._timer = None
        if self._process is None or not self._calls.is_working:
            return
        loop = asyncio.get_running_loop()
        ends = self._last_activity + self._patience
        if loop.time() < ends:
            self._timer = loop.call_at(ends, self._check_overdue)
            return
        self._is_overdue = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _end(process: asyncio.subprocess.Process) -> None:
    """Wait for the end of a process and close its pipes."""
    if process.stdout is not None and process.stdout.at_eof():
        # It is exiting by itself; its exit code is the reason.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_SECONDS):
                await process.wait()
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    if process.stdin is not None:
        process.stdin.close()
        with contextlib.suppress(OSError):
            await process.stdin.wait_closed()
    await process.wait()


class HostedScripts:
    """The scripts of one mapping definition on one connection."""

    def __init__(self, scripts: Scripts, host: ScriptHost) -> None:
        self._host = host
        self._scripts = host.scripts(scripts.sources, scripts.libraries)

    async def incoming(self, envelope: Envelope) -> Sequence[Envelope]:
        """Return the messages of the Ditto protocol that scripts make of a delivery; empty to drop it.

        Raises DecodeError (`connectivity:message.mapping.failed`).
        """
        try:
            results = await self._host.call(self._scripts, "incoming", partial(incoming_argument, envelope))
        except ScriptFailed as error:
            raise DecodeError(script_failed(str(error))) from error
        return incoming_envelopes(results, envelope)

    async def outgoing(self, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        """Return the envelopes that scripts make of Ditto protocol messages, in order. Raises EncodeError."""
        converted: list[Envelope] = []
        try:
            for envelope in envelopes:
                results = await self._host.call(self._scripts, "outgoing", partial(outgoing_argument, envelope))
                converted += outgoing_envelopes(results)
        except ScriptFailed as error:
            raise EncodeError(script_failed(str(error))) from error
        return converted
