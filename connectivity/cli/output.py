"""The same answer as text for people or as JSON for machines.

Answers go to standard output, complaints to standard error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import typer

from connectivity.carried import notes
from connectivity.files import FileProblem, LoadedFolder


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_fields(fields: Mapping[str, object]) -> None:
    """One line for each field that has a value; what is nested, as JSON."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        typer.echo(f"{name.replace('_', ' '):{width}}  {'–' if value is None else text}")


def print_table(rows: Sequence[Mapping[str, object]]) -> None:
    """A line of headings and one for each row; every row has the same names, and there is one at least."""
    table = [[name.replace("_", " ") for name in rows[0]]]
    table += [["–" if value is None else str(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        typer.echo("  ".join(f"{text:{width}}" for text, width in zip(line, widths, strict=True)).rstrip())


def complain(text: str) -> None:
    """Say why a command cannot be carried out."""
    typer.echo(text, err=True)


def print_problems(problems: Iterable[FileProblem], *, as_json: bool) -> None:
    """One line, or one object `{file, path, found, expected, hint}`, for each problem."""
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
        typer.echo(str(problem))


def print_notes(loaded: LoadedFolder) -> None:
    """One line for each thing that a usable document asks for and this version does not do."""
    for connection_id, connection in loaded.connections.items():
        for note in notes(connection):
            typer.echo(f"{loaded.files[connection_id]}: {note}")


def counted(number: int, what: str) -> str:
    """`1 file`, `2 files`, `2 entities`."""
    several = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{number} {what if number == 1 else several}"
