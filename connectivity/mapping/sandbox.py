"""Runs one script in a JavaScript engine of its own, with limits of time, memory, stack and output.

Every message gets a new context (about 0.2 ms), so no state of a script remains for the next message; Ditto itself keeps one
context for each mapper. The engine checks its time limit between its own steps, not in native functions such as
`Array.prototype.join` of a sparse array; the process limits those (`worker.py`).

The only module that uses the engine, `quickjs-ng`. Its binding passes strings as UTF-8 up to the first NUL, so arguments and
results are JSON, which escapes NUL and lone surrogates.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import _quickjs

from connectivity.mapping.script_protocol import MAX_MESSAGES, Direction, ScriptLimits

_FOLDER = Path(__file__).with_name("library")
_DITTO = (_FOLDER / "ditto.js").read_text(encoding="utf-8")
LIBRARIES = {
    name: (_FOLDER / f"{name}.js").read_text(encoding="utf-8")
    # `bytebuffer` uses `long` only if that is loaded before it.
    for name in ("long", "bytebuffer")
}

_MAX_REASON_LENGTH = 300
_POSITION = re.compile(r"\s*at (?:(?P<name>[^\s()]+) \()?<input>:(?P<line>\d+):(?P<column>\d+)")


class ScriptError(Exception):
    """A run without results; the text says why."""


class Sandbox:
    """Runs scripts, each message in a new context."""

    def __init__(self, limits: ScriptLimits) -> None:
        self._limits = limits
        self._next_context: tuple[_quickjs.Context, _quickjs.Object] | None = None

    def prepare(self) -> None:
        """Create the context for the next run in advance. Runs only the service's own code."""
        if self._next_context is None:
            self._next_context = self._context()

    def run(self, sources: tuple[str, ...], libraries: tuple[str, ...], direction: Direction, argument: str) -> str:
        """Return the results as a JSON array. Raises ScriptError."""
        context, call = self._next_context or self._context()
        self._next_context = None
        try:
            for name in libraries:
                context.eval(LIBRARIES[name])
            deadline = time.process_time() + self._limits.seconds
            for source in sources:
                context.set_time_limit(self._seconds_left(deadline))
                context.eval(source)
            context.set_time_limit(self._seconds_left(deadline))
            results = call(direction, argument, MAX_MESSAGES)
        except ScriptError:
            raise
        except _quickjs.StackOverflow:
            raise ScriptError(
                f"the calls of the script need more than the stack of {self._limits.stack >> 10} KiB"
            ) from None
        except _quickjs.JSException as error:
            raise ScriptError(self._reason(str(error))) from None
        except MemoryError:
            raise ScriptError(self._too_much_memory()) from None
        except Exception:
            # The binding raises other errors for values that it cannot convert, such as an invalid string.
            raise ScriptError("the script returned a value that cannot be converted") from None
        if not isinstance(results, str):
            raise ScriptError("the script returned a result that is not a string")
        if len(results) > self._limits.output or len(results.encode()) > self._limits.output:
            raise ScriptError(f"the script returned more than {self._limits.output} bytes")
        return results

    def _context(self) -> tuple[_quickjs.Context, _quickjs.Object]:
        context = _quickjs.Context()
        context.set_memory_limit(self._limits.memory)
        context.set_max_stack_size(self._limits.stack)
        return context, context.eval(_DITTO)

    def _seconds_left(self, deadline: float) -> float:
        """Return the seconds until the end of this run. Raises ScriptError if there are none."""
        seconds = deadline - time.process_time()
        if seconds <= 0:
            raise ScriptError(self._too_long())
        return seconds

    def _too_long(self) -> str:
        return f"ran longer than {round(self._limits.seconds * 1000)} ms"

    def _too_much_memory(self) -> str:
        return f"needed more than {self._limits.memory >> 20} MiB of memory"

    def _reason(self, message: str) -> str:
        """Return the engine's error message with its position in the script, in one line."""
        headline, _, stack = message.partition("\n")
        if headline == "InternalError: interrupted":
            return self._too_long()
        if headline == "InternalError: out of memory":
            return self._too_much_memory()
        if headline == "null":
            # The engine throws null if there is no memory for an error either.
            return f"{self._too_much_memory()}, or threw null"
        reason = "".join(character if character.isprintable() else " " for character in headline)[:_MAX_REASON_LENGTH]
        if (position := _POSITION.match(stack)) is not None:
            function = f" in {position['name']}" if position["name"] not in (None, "<eval>", "<anonymous>") else ""
            reason += f"{function[:60]} at line {position['line']}, column {position['column']}"
        return reason or "an error without a message"
