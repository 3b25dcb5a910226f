"""Checks that the scripts of a document compile, run to their end and define the mapping functions.

Runs them in a script process of its own, because documents are not trusted. That takes about 0.1 s, and results are cached.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from functools import cache, lru_cache

from connectivity.mapping.script_host import FORBIDDEN_CALL, command, environment
from connectivity.mapping.script_protocol import (
    BadFrame,
    Call,
    CallFailure,
    CallResult,
    Direction,
    Frames,
    Load,
    ScriptAnswer,
    ScriptLimits,
    WorkerReady,
    frame,
)
from mappings.mappers.scripts import INCOMING, OUTGOING, Scripts

_SECONDS = 60.0
_LIMITS = ScriptLimits()


def script_problems(scripts: Scripts) -> Iterator[tuple[str, str]]:
    """Yield the options with scripts that cannot map messages, each with the reason."""
    checks: tuple[tuple[str, str, Direction], ...] = (
        (INCOMING, scripts.incoming, "incoming"),
        (OUTGOING, scripts.outgoing, "outgoing"),
    )
    for option, source, direction in checks:
        problem = script_problem(scripts.sources, scripts.libraries, direction) if source else None
        if problem is not None:
            yield option, problem


@lru_cache(maxsize=256)
def script_problem(sources: tuple[str, ...], libraries: tuple[str, ...], direction: Direction) -> str | None:
    """Return why these scripts cannot map messages of this direction; None if they can."""
    try:
        code, answers = _run_process(Load(0, sources, libraries), Call(0, "check", direction))
    except (OSError, subprocess.SubprocessError, BadFrame) as error:
        return f"a script that could not be checked: {type(error).__name__}"
    if code == -signal.SIGSYS:
        return f"a script that cannot be loaded: {FORBIDDEN_CALL}"
    return _problem(answers, direction)


@cache
def missing_protection() -> tuple[str, ...]:
    """Return what does not protect this machine from code that takes over a script process."""
    with contextlib.suppress(OSError, subprocess.SubprocessError, BadFrame):
        match _run_process()[1]:
            case [WorkerReady(missing)]:
                return missing
    return ("no script process can be started",)


def _run_process(*orders: Load | Call) -> tuple[int, list[ScriptAnswer]]:
    """Return the exit code and the answers of a script process to these orders.

    Raises OSError, SubprocessError and BadFrame.
    """
    result = subprocess.run(
        command(),
        input=b"".join(frame(order) for order in (_LIMITS, *orders)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
        cwd="/",
        timeout=_SECONDS,
        check=False,
    )
    return result.returncode, list(Frames(_LIMITS.output).feed(result.stdout))


def _problem(answers: list[ScriptAnswer], direction: Direction) -> str | None:
    if not answers:
        return "a script that could not be checked: no script process can be started"
    match answers[-1]:
        case CallResult(results) if results:
            return None
        case CallResult():
            preposition = "To" if direction == "incoming" else "From"
            return f"a script without the function map{preposition}DittoProtocolMsg"
        case CallFailure(reason):
            return f"a script that cannot be loaded: {reason}"
    return f"a script that cannot be loaded: ran longer than {round(_LIMITS.seconds * 1000)} ms"
