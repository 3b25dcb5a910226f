"""Starts the script process of a connection when a call needs one, talks to it on the event loop, ends it.

The process inherits standard input and output, no other descriptor and no environment. It bounds itself (`worker.py`);
what is left for this end is patience: a process that gives no answer for `patience` seconds is killed. That is much longer
than a script may run, since a machine may be busy. Who is to blame for a death is decided in `calls.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
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
START_PATIENCE = 60.0
MOST_CALLS = 32
"""Calls that wait or are under way at the same time; more of them wait before they are made."""

_ROOT = Path(__file__).parents[2]
_CHUNK = 1 << 16
_FRAME_ROOM = 1 << 10
_LAST_WORDS = 5.0


def command() -> list[str]:
    """What starts a script process: isolated Python, which finds this package wherever it lies."""
    code = f"import sys; sys.path.append({str(_ROOT)!r}); from connectivity.mapping.worker import main; main()"
    return [sys.executable, "-I", "-X", "utf8", "-c", code]


def environment() -> dict[str, str]:
    """Nothing of the service's, but for where the interpreter's own libraries lie."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}


class ScriptHost:
    """The script process of one connection."""

    def __init__(self, limits: ScriptLimits | None = None, *, patience: float = PATIENCE) -> None:
        self.limits = limits or ScriptLimits()
        self._patience = patience
        self._calls = Calls()
        self._room = asyncio.Semaphore(MOST_CALLS)
        self._keys = count()
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard = 0.0
        """When the process answered last, or was given something to do."""
        self._is_overdue = False

    def __repr__(self) -> str:
        return f"<ScriptHost {self._calls!r}, process {self.pid}>"

    @property
    def pid(self) -> int | None:
        """The process that runs now."""
        return self._process.pid if self._process is not None else None

    def scripts(self, sources: tuple[str, ...], libraries: tuple[str, ...] = ()) -> Load:
        """Scripts that calls can run from now on."""
        return Load(next(self._keys), sources, libraries)

    async def call(self, scripts: Load, direction: Direction, argument: Callable[[], str]) -> str:
        """The results of a direction's function as a JSON array. Raises ScriptFailed.

        `argument` is asked for when its turn has come, so that no more than `MOST_CALLS` of them are held.
        """
        async with self._room:
            future: asyncio.Future[CallResult | CallFailure] = asyncio.get_running_loop().create_future()
            ticket = PendingCall(scripts, Call(scripts.key, direction, argument()), future.set_result)
            self._calls.add(ticket)
            if self._task is None or self._task.done():
                self._task = asyncio.get_running_loop().create_task(self._run(), name="script process")
            self._pump()
            try:
                answer = await future
            finally:
                ticket.is_over = True
        if isinstance(answer, CallFailure):
            raise ScriptFailed(answer.reason)
        return answer.results

    async def close(self) -> None:
        """End the process. Calls under way fail."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        """One process after the other, as long as there are calls."""
        try:
            while self._calls:
                await self._live()
        finally:
            self._calls.fail("the script process is gone")

    async def _live(self) -> None:
        """One process, from its start until its end."""
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
            log.error("a script process cannot be started", reason=str(error))
            self._calls.died(f"the script process cannot be started: {error.strerror}", is_to_blame=False)
            return
        self._process = process
        broken: str | None = None
        try:
            self._write(frame(self.limits), START_PATIENCE)
            broken = await self._converse(process)
        finally:
            self._process = None
            self._stop_watching()
            await _end(process)
        reason, is_to_blame = self._cause(process.returncode, broken)
        log.info("a script process has ended", reason=reason)
        self._calls.died(reason, is_to_blame=is_to_blame)

    async def _converse(self, process: asyncio.subprocess.Process) -> str | None:
        """Read answers until the process says no more; what was wrong with them, if anything was."""
        assert process.stdout is not None
        frames = Frames(self.limits.output + _FRAME_ROOM)
        while received := await process.stdout.read(_CHUNK):
            try:
                for answer in frames.feed(received):
                    self._calls.answered(answer)
            except BadFrame as error:
                return str(error)
            self._heard = asyncio.get_running_loop().time()
            self._pump()
        return None

    def _cause(self, code: int | None, broken: str | None) -> tuple[str, bool]:
        """Why a process has ended, and whether the call that it worked on is to blame."""
        if broken is not None:
            return f"the script process said what nobody understands: {broken}", True
        if self._is_overdue:
            return "the script process gave no answer", True
        if code == -signal.SIGPROF:
            return f"ran longer than {round(self.limits.seconds * 1000)} ms", True
        return f"the script process ended with code {code}", False

    def _pump(self) -> None:
        was_working = self._calls.is_working
        if self._process is not None and (due := self._calls.send()):
            if not was_working:
                self._stop_watching()
            self._write(due, self._patience)

    def _write(self, due: bytes, patience: float) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(due)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._heard = loop.time()
            self._timer = loop.call_later(patience, self._look)

    def _look(self) -> None:
        """The process has had its time, unless it has answered since, or has nothing to answer."""
        self._timer = None
        if self._process is None or not self._calls.is_working:
            return
        loop = asyncio.get_running_loop()
        ends = self._heard + self._patience
        if loop.time() < ends:
            self._timer = loop.call_at(ends, self._look)
            return
        self._is_overdue = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _end(process: asyncio.subprocess.Process) -> None:
    """See a process off: it is gone, and so are its pipes."""
    if process.stdout is not None and process.stdout.at_eof():
        # It is ending by itself, and its code says why.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                await process.wait()
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    if process.stdin is not None:
        process.stdin.close()
        with contextlib.suppress(OSError):
            await process.stdin.wait_closed()
    await process.wait()


class HostedScripts:
    """The scripts of one definition on one connection."""

    def __init__(self, scripts: Scripts, host: ScriptHost) -> None:
        self._has_incoming, self._has_outgoing = bool(scripts.incoming), bool(scripts.outgoing)
        self._host = host
        self._scripts = host.scripts(scripts.sources, scripts.libraries)

    def __repr__(self) -> str:
        return f"<HostedScripts at {self._host!r}>"

    async def incoming(self, envelope: Envelope) -> Sequence[Envelope]:
        """The messages of the Ditto protocol that a delivery's envelope means; none where it is dropped.

        Raises DecodeError (`connectivity:message.mapping.failed`).
        """
        if not self._has_incoming:
            return (envelope,)
        try:
            results = await self._host.call(self._scripts, "incoming", partial(incoming_argument, envelope))
        except ScriptFailed as error:
            raise DecodeError(script_failed(str(error))) from error
        return incoming_envelopes(results, envelope)

    async def outgoing(self, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        """What is published for messages of the Ditto protocol, in their order. Raises EncodeError, likewise."""
        if not self._has_outgoing:
            return envelopes
        made: list[Envelope] = []
        try:
            for envelope in envelopes:
                results = await self._host.call(self._scripts, "outgoing", partial(outgoing_argument, envelope))
                made += outgoing_envelopes(results)
        except ScriptFailed as error:
            raise EncodeError(script_failed(str(error))) from error
        return made
