"""Output of commands: text for people, or JSON.

Results go to standard output, errors to standard error. On a terminal, tables are fitted to its width, and states are
colored, unless NO_COLOR is set. Elsewhere lines are as long as necessary, so that no ID is cut. Control characters, which a
device may have sent, are shown as escapes.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import typer

from mappings.texts import CONTROL_CHARACTERS, escape_control_characters

if TYPE_CHECKING:
    from connectivity.management.files import FileProblem, LoadedFolder


GOOD, BAD, UNSURE = "green", "red", "yellow"
COLORS = {
    **dict.fromkeys(("open", "success", "succeeded", "new"), GOOD),
    **dict.fromkeys(("failed", "misconfigured", "failure", "backOffLimitReached", "refused", "gone"), BAD),
    **dict.fromkeys(("unknown", "ongoing", "changed"), UNSURE),
}
"""The colors of states."""

_NARROW, _GAP = 8, 2
"""The least width of a column if it has enough text, and the space between two."""


def json_text(value: object, indent: int | None = None) -> str:
    """JSON in which no character does anything to a terminal; it says the same."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return CONTROL_CHARACTERS.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)


def print_json(value: object) -> None:
    typer.echo(json_text(value, indent=2))


def print_json_line(value: object) -> None:
    """Print one object of many on a line of its own, at once."""
    typer.echo(json_text(value))
    sys.stdout.flush()


def print_fields(fields: Mapping[str, object]) -> None:
    """Print one line for each field that has a value; nested values as JSON."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        typer.echo(f"{name.replace('_', ' '):{width}}  {colorize(_format_value(value))}")


def print_table(rows: Sequence[Mapping[str, object]]) -> None:
    """A line of headings and one for each row; every row has the same names, and there is one at least."""
    headings = [name.replace("_", " ") for name in rows[0]]
    table = [[_format_value(value) for value in row.values()] for row in rows]
    if sys.stdout.isatty() and _print_to_width(headings, table):
        return
    lines = [headings, *table]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        typer.echo("  ".join(f"{text:{width}}" for text, width in zip(line, widths, strict=True)).rstrip())


def print_list(
    found: object, rows_of: Callable[[], Sequence[Mapping[str, object]]], empty: str, *, as_json: bool
) -> None:
    """Print what was found as JSON, or its rows as a table; `empty` if there are none."""
    if as_json:
        print_json(found)
    elif rows := rows_of():
        print_table(rows)
    else:
        typer.echo(empty)


def _print_to_width(headings: Sequence[str], table: Sequence[Sequence[str]]) -> bool:
    """As wide as the terminal: long texts are folded, never cut.

    Return False and print nothing if there is no space.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(no_color=not has_colors(), highlight=False)
    fitted = Table(box=None, pad_edge=False, header_style="bold" if has_colors() else "")
    # The first column gets half of the width, before the details.
    widths = [max(map(len, column)) for column in zip(headings, *table, strict=True)]
    least = [min(widths[0], console.width // 2), *(min(width, _NARROW) for width in widths[1:])]
    if sum(least) + _GAP * (len(least) - 1) > console.width:
        # The library would leave whole columns out.
        return False
    for heading, width in zip(headings, least, strict=True):
        fitted.add_column(heading, overflow="fold", min_width=width)
    for line in table:
        fitted.add_row(*(Text(text, style=COLORS.get(text, "") if has_colors() else "") for text in line))
    console.print(fitted)
    return True


def has_colors() -> bool:
    """Whether there is a terminal that may show colors."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def colorize(text: str) -> str:
    """The text in the color of its meaning, if it has any."""
    color = COLORS.get(text)
    return typer.style(text, fg=color) if color and has_colors() else text


def _format_value(value: object) -> str:
    """A value in one line."""
    if value is None:
        return "–"
    return escape_control_characters(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def print_error(text: str) -> None:
    """Say why a command cannot be carried out."""
    typer.echo(escape_control_characters(text, keep="\n\t"), err=True)


@contextlib.contextmanager
def exit_on(*failures: type[Exception], code: int | None = None) -> Iterator[None]:
    """Print an error of these types, and end the command with `code`, or with the error's own exit code."""
    try:
        yield
    except failures as error:
        print_error(str(error))
        raise typer.Exit(getattr(error, "exit_code", 1) if code is None else code) from None


def print_problems(problems: Iterable[FileProblem], *, as_json: bool) -> None:
    """Print one line, or one object `{file, path, found, expected, hint}`, for each problem."""
    if as_json:
        print_json(
            [
                {
                    "file": str(file),
                    "path": problem.path,
                    "found": problem.found,
                    "expected": problem.expected,
                    "hint": problem.hint,
                }
                for file, problem in problems
            ]
        )
        return
    for problem in problems:
        typer.echo(escape_control_characters(str(problem)))


def print_notes(loaded: LoadedFolder, *, as_errors: bool = False) -> None:
    """Print one line for each part of a valid document without effect, and for each security note.

    `as_errors`: to standard error, beside other results.
    """
    from connectivity.validation.limitations import notes

    for connection_id, connection in loaded.connections.items():
        for note in notes(connection):
            typer.echo(escape_control_characters(f"{loaded.files[connection_id]}: {note}"), err=as_errors)


def pluralize(number: int, what: str) -> str:
    """`1 file`, `2 files`, `2 entities`."""
    several = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{number} {what if number == 1 else several}"
