"""One run of a script in an engine of its own, with bounds for time, memory, stack and output.

Every message gets a fresh context (about 0.2 ms): what one message does to prototypes, globals or the script's own
variables, the next one does not meet. (The reference keeps one scope for each mapper; scripts that count or cache across
messages find nothing there.) The engine polls its time limit between its own steps, not within native functions such as
`Array.prototype.join` of a sparse array; those are the business of the process around it (`worker.py`).

The only file that knows the engine, `quickjs-ng`. Its binding hands texts over as UTF-8 that ends at a NUL, so what goes
in and out is JSON, which escapes both NUL and lone surrogates.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import _quickjs

from connectivity.mapping.script_protocol import MOST_MESSAGES, Direction, ScriptLimits

_FOLDER = Path(__file__).with_name("library")
_DITTO = (_FOLDER / "ditto.js").read_text(encoding="utf-8")
LIBRARIES = {
    name: (_FOLDER / f"{name}.js").read_text(encoding="utf-8")
    # A buffer makes use of long numbers where they are loaded.
    for name in ("long", "bytebuffer")
}

_LONGEST_REASON = 300
_PLACE = re.compile(r"\s*at (?:(?P<name>[^\s()]+) \()?<input>:(?P<line>\d+):(?P<column>\d+)")


class ScriptError(Exception):
    """A run that gave no results; the text says why."""


class Sandbox:
    """Runs scripts, each message by itself."""

    def __init__(self, limits: ScriptLimits) -> None:
        self._limits = limits
        self._spare: tuple[_quickjs.Context, _quickjs.Object] | None = None

    def prepare(self) -> None:
        """Make the context of the next run while nobody waits. Only code of our own runs here."""
        if self._spare is None:
            self._spare = self._context()

    def run(self, sources: tuple[str, ...], libraries: tuple[str, ...], direction: Direction, argument: str) -> str:
        """The results as a JSON array. Raises ScriptError."""
        context, call = self._spare or self._context()
        self._spare = None
        try:
            for name in libraries:
                context.eval(LIBRARIES[name])
            ends = time.process_time() + self._limits.seconds
            for source in sources:
                context.set_time_limit(self._left(ends))
                context.eval(source)
            context.set_time_limit(self._left(ends))
            results = call(direction, argument, MOST_MESSAGES)
        except ScriptError:
            raise
        except _quickjs.StackOverflow:
            raise ScriptError(f"calls nest deeper than the stack of {self._limits.stack >> 10} KiB") from None
        except _quickjs.JSException as error:
            raise ScriptError(self._reason(str(error))) from None
        except MemoryError:
            raise ScriptError(self._too_much_memory()) from None
        except Exception:
            # The binding has words of its own for what it cannot hand over, such as a text that is none.
            raise ScriptError("the result cannot be read") from None
        if not isinstance(results, str):
            raise ScriptError("the result is no text")
        if len(results) > self._limits.output or len(results.encode()) > self._limits.output:
            raise ScriptError(f"the results have more than {self._limits.output} bytes")
        return results

    def _context(self) -> tuple[_quickjs.Context, _quickjs.Object]:
        context = _quickjs.Context()
        context.set_memory_limit(self._limits.memory)
        context.set_max_stack_size(self._limits.stack)
        return context, context.eval(_DITTO)

    def _left(self, ends: float) -> float:
        """Seconds until the end of this run. Raises ScriptError where there are none."""
        left = ends - time.process_time()
        if left <= 0:
            raise ScriptError(self._too_long())
        return left

    def _too_long(self) -> str:
        return f"ran longer than {round(self._limits.seconds * 1000)} ms"

    def _too_much_memory(self) -> str:
        return f"needed more than {self._limits.memory >> 20} MiB of memory"

    def _reason(self, told: str) -> str:
        """What the engine tells, in one line: the error, and the place in the script."""
        first, _, stack = told.partition("\n")
        if first == "InternalError: interrupted":
            return self._too_long()
        if first == "InternalError: out of memory":
            return self._too_much_memory()
        reason = "".join(character if character.isprintable() else " " for character in first)[:_LONGEST_REASON]
        if (place := _PLACE.match(stack)) is not None:
            function = f" in {place['name']}" if place["name"] not in (None, "<eval>", "<anonymous>") else ""
            reason += f"{function[:60]} at line {place['line']}, column {place['column']}"
        return reason or "an error without words"
