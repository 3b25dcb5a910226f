"""Whether the scripts of a document can be loaded: they compile, they run to their end, the functions are there.

Asked of a script process of its own, which is gone afterwards: a document may come from anybody. That takes about a tenth
of a second, once for the same scripts.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import lru_cache

from connectivity.mapping.script_host import command, environment
from connectivity.mapping.script_protocol import (
    Answer,
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
from mappings.mappers.scripts import INCOMING, OUTGOING, Scripts

_SECONDS = 60.0


def script_problems(scripts: Scripts) -> Iterator[tuple[str, str]]:
    """The options that hold scripts which cannot map messages, each with the reason."""
    checks: tuple[tuple[str, str, Direction], ...] = (
        (INCOMING, scripts.incoming, "incoming"),
        (OUTGOING, scripts.outgoing, "outgoing"),
    )
    for option, source, direction in checks:
        wrong = script_problem(scripts.sources, scripts.libraries, direction) if source else None
        if wrong is not None:
            yield option, wrong


@lru_cache(maxsize=256)
def script_problem(sources: tuple[str, ...], libraries: tuple[str, ...], direction: Direction) -> str | None:
    """Why these scripts cannot map messages of this direction; None if they can."""
    limits = ScriptLimits()
    orders = frame(limits), frame(Load(0, sources, libraries)), frame(Call(0, "check", direction))
    try:
        told = subprocess.run(
            command(),
            input=b"".join(orders),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            cwd="/",
            timeout=_SECONDS,
            check=False,
        )
        answers = list(Frames(limits.output).feed(told.stdout))
    except (OSError, subprocess.SubprocessError, BadFrame) as error:
        return f"a script that could not be checked: {type(error).__name__}"
    return _problem(answers, direction, limits)


def _problem(answers: list[Answer], direction: Direction, limits: ScriptLimits) -> str | None:
    if not answers:
        return "a script that could not be checked: no script process can be started"
    match answers[-1]:
        case CallResult(results) if results:
            return None
        case CallResult():
            way = "To" if direction == "incoming" else "From"
            return f"a script without the function map{way}DittoProtocolMsg"
        case CallFailure(reason):
            return f"a script that cannot be loaded: {reason}"
    return f"a script that cannot be loaded: ran longer than {round(limits.seconds * 1000)} ms"
