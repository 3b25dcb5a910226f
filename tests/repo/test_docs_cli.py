"""The reference page of the command line."""

from __future__ import annotations

import re

import typer.main
from typer.testing import CliRunner

from connectivity.cli.main import app
from tests.support.table import each_row
from tools.docs.cli import cli_page

PAGE = cli_page()
SECTIONS = {found[0].splitlines()[0]: found[0] for found in re.finditer(r"^(?:##+ )(.+?)(?=^##|\Z)", PAGE, re.M | re.S)}


def commands() -> dict[str, list[str]]:
    """Each command → its words."""
    found: dict[str, list[str]] = {}

    def walk(words: list[str], group: object) -> None:
        for name, command in getattr(group, "commands", {}).items():
            found[" ".join([*words, name])] = [*words, name]
            walk([*words, name], command)

    walk([], typer.main.get_command(app))
    return found


def test_every_command_has_its_heading() -> None:
    headings = re.findall(r"^##+ connectivity (.+)$", PAGE, re.MULTILINE)
    assert sorted(headings) == sorted(commands())


@each_row("command", commands())
def test_every_option_that_the_help_names_is_on_the_page(command: str) -> None:
    text = CliRunner().invoke(app, [*commands()[command], "--help"], env={"COLUMNS": "200"}).output
    section = next(found for name, found in SECTIONS.items() if name.endswith(f"connectivity {command}"))
    named = set(re.findall(r"(?<=[ │])--[a-z][a-z-]+", text))
    assert "--help" in named
    for option in named - {"--help"}:
        assert f"`{option}`" in section or option in section, option


def test_the_exit_codes_that_people_rely_on_are_reported() -> None:
    for text in (
        "0 no problems; 1 problems, or no files; 2 a path",
        "3 another service uses the data folder",
        "3 with --plan",
    ):
        assert text in PAGE
    for command in ("validate", "serve", "connections", "audit"):
        shown = " ".join(CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "400"}).output.split())
        assert "Exit codes: 0" in shown


def test_cells_do_not_break_the_table() -> None:
    rows = re.findall(r"^\| .*\|$", PAGE, re.MULTILINE)
    assert len(rows) > len(commands())
    for row in rows:
        assert len(re.findall(r"(?<!\\)\|", row)) == 4, row
