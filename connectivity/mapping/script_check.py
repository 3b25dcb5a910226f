"""Checks that the scripts of a document compile, run to their end and define the mapping functions.

Runs them in a script process of its own, because documents are not trusted. That takes about 0.1 s, and results are cached.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import lru_cache

from connectivity.mapping.script_host import command, environment
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
    frame,
)
from mappings.mappers.scripts import INCOMING, OUTGOING, Scripts

_SECONDS = 60.0


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
    limits = ScriptLimits()
    requests = frame(limits), frame(Load(0, sources, libraries)), frame(Call(0, "check", direction))
    try:
        result = subprocess.run(
            command(),
            input=b"".join(requests),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            cwd="/",
            timeout=_SECONDS,
            check=False,
        )
        answers = list(Frames(limits.output).feed(result.stdout))
    except (OSError, subprocess.SubprocessError, BadFrame) as error:
        return f"a script that could not be checked: {type(error).__name__}"
    return _problem(answers, direction, limits)


def _problem(answers: list[ScriptAnswer], direction: Direction, limits: ScriptLimits) -> str | None:
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
    return f"a script that cannot be loaded: ran longer than {round(limits.seconds * 1000)} ms"
