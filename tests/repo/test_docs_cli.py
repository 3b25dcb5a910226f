"""The reference page of the command line."""

from __future__ import annotations

import re

import typer.main
from typer.testing import CliRunner

from connectivity.cli.command_group import EXIT_CODES
from connectivity.cli.main import app
from tests.support.paths import ROOT
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


GROUPS = sorted({words[0] for words in commands().values() if len(words) > 1})


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


def shown(*words: str) -> str:
    """The help of a command, on one line."""
    return " ".join(CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "400"}).output.split())


def test_the_exit_codes_are_documented_once() -> None:
    for code, meaning in EXIT_CODES.items():
        assert PAGE.count(f"| {code} | {meaning} |") == 1
        assert f"{code}: {meaning}" in shown()
    assert [command for command in commands() if "xit code" in shown(*commands()[command])] == []


def test_every_exit_code_is_documented() -> None:
    text = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "connectivity" / "cli").glob("*.py"))
    used = {int(code) for codes in re.findall(r"typer\.Exit\((\d+)|exit_code = (\d+)", text) for code in codes if code}
    assert used
    assert used <= set(EXIT_CODES)


@each_row("command", [*commands(), ""])
def test_a_flag_takes_no_value_in_the_help(command: str) -> None:
    assert "bool" not in shown(*commands().get(command, []))


def test_an_argument_that_can_be_repeated_has_one_ellipsis_in_the_help() -> None:
    for command, name in (("validate", "PATH"), ("connections open", "ID")):
        assert f"[OPTIONS] {{{name}}}... " in shown(*commands()[command])
        assert f"$ connectivity {command} {name}… [OPTIONS]\n" in PAGE


def test_an_argument_that_can_be_left_out_is_in_brackets() -> None:
    assert "$ connectivity connections status [ID] [OPTIONS]\n" in PAGE


def test_the_help_of_a_group_describes_its_commands() -> None:
    """With verbs, like the help of commands."""
    assert len(GROUPS) > 5
    assert [name for name in GROUPS if re.search(r"\[ARGS\]\.\.\. (?:The|A|An) ", shown(name))] == []


def test_every_command_that_prints_a_result_has_json() -> None:
    """The others run until they are stopped, or print one key or nothing but JSON."""
    without = {name for name, words in commands().items() if "--json" not in shown(*words)} - set(GROUPS)
    assert without == {
        "pipeline run",
        "schema asyncapi",
        "schema connection",
        "schema settings",
        "secrets new-key",
        "serve",
    }


def test_cells_do_not_break_the_table() -> None:
    rows = re.findall(r"^\| .*\|$", PAGE, re.MULTILINE)
    assert len(rows) > len(commands())
    codes = len(EXIT_CODES) + 1
    for number, row in enumerate(rows):
        assert len(re.findall(r"(?<!\\)\|", row)) == (3 if number < codes else 4), row
