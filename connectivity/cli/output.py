"""The same answer as text for people or as JSON for machines.

Answers go to standard output, complaints to standard error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import typer

from connectivity.files import FileProblem


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


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
