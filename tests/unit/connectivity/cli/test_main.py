"""The commands `validate`, `schema` and `serve`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from connectivity import __version__
from connectivity.cli.command_group import EXIT_CODES
from connectivity.cli.main import app, main
from connectivity.config.settings import Settings
from connectivity.config.settings_schema import settings_schema
from connectivity.validation.file_schema import file_schema
from tests.support.vectors.connections import base_document

SECRET = "s3cr3t-word"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def written(folder: Path, name: str = "depot.json", **more: Any) -> Path:
    file = folder / name
    document = base_document("shared")
    document["sources"][0]["replyTarget"] = {"address": "answers/{{ thing:name }}"}
    file.write_text(json.dumps(document | more))
    return file


def announced() -> list[dict[str, Any]]:
    """A target with a parameter that its topic does not know."""
    return [{**base_document("shared")["targets"][0], "topics": ["_/_/policies/announcements?filter=exists(a)"]}]


def test_design_8_08_good_files_end_with_0(tmp_path: Path) -> None:
    result = run("validate", written(tmp_path), "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, [])
    written(tmp_path, targets=[])
    result = run("validate", tmp_path)
    assert (result.exit_code, result.stdout) == (0, "1 connection in 1 file, no problems\n")
    written(tmp_path, "site.json", id="site", targets=[])
    assert run("validate", tmp_path).stdout == "2 connections in 2 files, no problems\n"


def test_a_reply_address_that_senders_choose_is_reported_but_is_not_a_problem(tmp_path: Path) -> None:
    file = written(tmp_path, sources=base_document("shared")["sources"])
    result = run("validate", tmp_path)
    assert (result.exit_code, result.stderr) == (0, "")
    note, total = result.stdout.splitlines()
    assert note.startswith(f"{file}: depot-7_rabbit: sources[0].replyTarget.address: senders choose where")
    assert total == "1 connection in 1 file, no problems"


def test_a_setting_without_effect_is_reported_but_is_not_a_problem(tmp_path: Path) -> None:
    tunnel = {
        "enabled": True,
        "credentials": {"type": "plain", "username": "tunnel", "password": SECRET},
        "validateHost": False,
        "uri": "ssh://bastion.acme.example:22",
    }
    file = written(tmp_path, sshTunnel=tunnel, targets=announced())
    result = run("validate", tmp_path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        f"{file}: depot-7_rabbit will not be opened: this version of the service does not support sshTunnel",
        f"{file}: depot-7_rabbit: without effect: targets[0].topics: the parameter filter is unknown and ignored",
        "1 connection in 1 file, no problems",
    ]
    result = run("validate", tmp_path, "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, [])


def test_a_setting_without_effect_is_reported_beside_problems_of_other_files(tmp_path: Path) -> None:
    written(tmp_path, targets=announced())
    written(tmp_path, "site.json", id="site", clientCount=0)
    result = run("validate", tmp_path)
    assert result.exit_code == 1
    problem, note = result.stdout.splitlines()
    assert "clientCount: found 0, expected at least 1" in problem
    assert "depot-7_rabbit: without effect" in note


def test_design_8_08_problems_go_to_standard_output_and_end_with_1(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        sources=[{"addresses": ["a"], "authorizationContext": ["x"], "replyTarget": {"adress": "a"}}],
    )
    result = run("validate", tmp_path)
    assert result.exit_code == 1
    assert result.stderr == ""
    assert result.stdout == (
        f'{file}: sources[0].replyTarget.adress: found unknown field "adress", '
        "expected one of: enabled, address, addressPattern, headerMapping, expectedResponseTypes (did you mean address?)\n"
    )


def test_design_8_08_problems_as_json(tmp_path: Path) -> None:
    file = written(tmp_path, connectionStatus="opne", clientCount=0)
    result = run("validate", "--json", file)
    assert result.exit_code == 1
    assert json.loads(result.stdout) == [
        {
            "file": str(file),
            "path": "connectionStatus",
            "found": '"opne"',
            "expected": "one of: open, closed, failed, misconfigured, unknown",
            "hint": "did you mean open?",
        },
        {"file": str(file), "path": "clientCount", "found": "0", "expected": "at least 1", "hint": None},
    ]


def test_design_8_08_a_path_that_does_not_exist_ends_with_2(tmp_path: Path) -> None:
    result = run("validate", written(tmp_path), tmp_path / "nope")
    assert (result.exit_code, result.stdout) == (2, "")
    assert str(tmp_path / "nope") in result.stderr


def test_a_name_too_long_for_the_system_does_not_exist(tmp_path: Path) -> None:
    result = run("validate", tmp_path / ("x" * 300))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "found nothing, expected a file or a folder" in result.stderr


def test_validate_shows_no_secret(tmp_path: Path) -> None:
    written(tmp_path, uri=f"amqp://u:{SECRET}@h", credentials={"type": "client-cert", "key": SECRET})
    for arguments in (["validate"], ["validate", "--json"]):
        result = run(*arguments, tmp_path)
        assert result.exit_code == 1
        assert SECRET not in result.output


@pytest.mark.parametrize(("of", "schema"), [("connection", file_schema), ("settings", settings_schema)])
def test_schema_prints_a_json_schema(of: str, schema: Callable[[], dict[str, Any]]) -> None:
    result = run("schema", of)
    assert (result.exit_code, json.loads(result.stdout)) == (0, schema())


def test_the_version_can_be_asked_for() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"connectivity {__version__}\n")


def test_schema_asyncapi_prints_the_messages_of_a_file(tmp_path: Path) -> None:
    result = run("schema", "asyncapi", written(tmp_path))
    document = json.loads(result.stdout)
    assert (result.exit_code, list(document["servers"])) == (0, ["depot-7-rabbit"])
    assert SECRET not in result.stdout


def test_schema_asyncapi_reports_the_problems_of_a_file_as_errors(tmp_path: Path) -> None:
    """Standard output is usually redirected to the file of the document."""
    result = run("schema", "asyncapi", written(tmp_path, clientCount=0))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "clientCount: found 0" in result.stderr
    assert run("schema", "asyncapi", tmp_path / "nope.yaml").exit_code == 2
    empty = tmp_path / "empty.json"
    empty.write_text("[]")
    result = CliRunner().invoke(app, ["schema", "asyncapi", str(empty)])
    assert (result.exit_code, "found no connection" in result.stderr) == (1, True)


def test_odd_characters_can_be_printed_anywhere(tmp_path: Path) -> None:
    odd: dict[str, Any] = {"na\ud800me": 1, "nämé": 2}
    written(tmp_path, **odd)
    result = subprocess.run(
        [sys.executable, "-m", "connectivity", "validate", str(tmp_path)],
        env={"PYTHONIOENCODING": "ascii", "PATH": ""},
        capture_output=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (1, b"")
    assert b"na\\ud800me" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["connections", "show", "a\udcff"], "connection"),
        (["connections", "show", "a", "--url", "http://\udcff"], "--url"),
        (["history", "erase", "acme:\udcff"], "ENTITY"),
    ],
)
def test_an_argument_that_is_not_utf_8_is_refused_by_its_name(arguments: list[str], where: str) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert (result.exit_code, where in result.stderr, r"found '\udcff', expected UTF-8" in result.stderr) == (
        2,
        True,
        True,
    )


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Settings]]:
    """Record the settings that the service would start with; it ends with exit code 3."""
    found: list[Settings] = []

    def main(settings: Settings, file: Path) -> int:
        found.append(settings)
        assert file.is_file()
        return 3

    service = ModuleType("connectivity.service")
    service.main = main  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "connectivity.service", service)
    monkeypatch.setattr("connectivity.service", service, raising=False)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


def test_serve_ends_with_the_exit_code_of_the_service(tmp_path: Path, served: list[Settings]) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("api: {port: 7}\n")
    assert run("serve", "--settings", file).exit_code == 3
    assert served[0].api.port == 7


def test_serve_ends_with_2_for_bad_settings(tmp_path: Path, served: list[Settings]) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"api: {{port: x, token: [{SECRET}]}}\n")
    for settings in (file, tmp_path / "nope.yaml"):
        result = run("serve", "--settings", settings)
        assert (result.exit_code, result.stdout, served) == (2, "", [])
        assert str(settings) in result.stderr
        assert SECRET not in result.stderr


HEAVY = (
    "paho",
    "aio_pika",
    "aiormq",
    "confluent_kafka",
    "sqlite3",
    "pyarrow",
    "pyspark",
    "uvicorn",
    "starlette",
    "spark_store.journal.journal",
)
"""Modules that a command must not import to query or check: brokers, store, lake, web server."""


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (
            ["connections", "list", "--url", "http://127.0.0.1:9"],
            ("connectivity.config.settings", "connectivity.connections.model", "yaml", "structlog", "rich.table"),
        ),
        (["connections", "list"], ("structlog",)),
        (["validate", "."], ()),
    ],
    ids=" ".join,
)
def test_a_command_imports_only_the_modules_it_needs(
    arguments: list[str], more: tuple[str, ...], tmp_path: Path
) -> None:
    script = (
        "import sys\nearlier = set(sys.modules)\nfrom connectivity.cli.main import app\n"
        f"try:\n    app({arguments})\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {(*HEAVY, *more)} if name in sys.modules and name not in earlier])"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, check=True, text=True)
    assert ended.stdout.splitlines()[-1] == "[]", ended.stderr


def test_a_command_without_its_extra_names_it_and_ends_with_4(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ModuleNotFoundError(name="pyarrow.compute")

    monkeypatch.setattr("connectivity.cli.main.app", fail)
    with pytest.raises(SystemExit, match="4"):
        main()
    expected = "this command needs the extra 'lake'; install it with: pip install 'broker-connectivity[lake]'\n"
    assert capsys.readouterr().err == expected


def test_without_a_command_the_commands_are_shown() -> None:
    result = run()
    assert all(
        command in result.output for command in ("validate", "schema", "serve", "connections", "subscriptions", "audit")
    )


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["validate", "nope.yaml"], "check the path"),
        (["validate", "."], "name other paths"),
        (["serve", "--settings", "bad.yaml"], "`connectivity schema settings` prints the allowed values"),
        (["schema", "asyncapi", "empty.json"], "add one"),
        (["connections", "list", "--url", "tcp://h"], "fix --url"),
        (["connections", "list", "--url", "http://127.0.0.1:9"], "start the service, or fix --url"),
        (["connections", "list", "--token-file", "nope"], "fix --token-file"),
        (["connections", "apply", "empty.json", "--url", "http://127.0.0.1:9"], "name other files"),
        (["connections", "test", "empty.json", "--source", "1", "--url", "http://127.0.0.1:9"], "add --sample"),
        (["history", "erase", "a:b"], "add --yes to confirm"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_an_error_ends_with_what_to_do_next(
    arguments: list[str], remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.yaml").write_text("api: {port: x}\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "empty.json").write_text("[]")
    monkeypatch.chdir(tmp_path / "folder" if "empty.json" in arguments else tmp_path)
    if "." in arguments:
        (tmp_path / "bad.yaml").unlink()
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code in EXIT_CODES
    assert ended.exit_code
    assert ended.stderr.strip().splitlines()[-1].endswith(remedy), ended.stderr


def test_a_folder_without_connection_files_is_an_error(tmp_path: Path) -> None:
    """A wrong folder must fail, also where the output is not read."""
    ended = CliRunner().invoke(app, ["validate", str(tmp_path)])
    assert ended.exit_code == 1
    assert f"{tmp_path}: found no connection files, expected *.json, *.yaml or *.yml" in ended.stderr


def test_results_that_do_not_fit_on_the_disk_end_with_the_reason() -> None:
    program = [sys.executable, "-c", "from connectivity.cli.main import main; main()", "schema", "settings"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    message = "standard output cannot be written: No space left on device; free space, or write to another disk\n"
    assert (ended.returncode, ended.stderr) == (1, message)


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "2>&-", ">&-"])
def test_a_command_works_with_closed_standard_streams(tmp_path: Path, closed: str) -> None:
    """What it prints is lost, but no other file takes their place, and the exit code is that of the command."""
    program = [sys.executable, "-c", "from connectivity.cli.main import main; main()", "serve"]
    settings = {"CONNECTIVITY_DATA_DIR": "/dev/null/data", "CONNECTIVITY_SPARK__MODE": "off"}
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *program],
        env={**os.environ, **settings},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 2, ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_serve_with_exit_code_0_while_its_modules_are_imported(number: signal.Signals) -> None:
    program = f"""
import os, sys, types

class CommandsImported(types.ModuleType):
    def __getattr__(self, name):
        os.kill(os.getpid(), {number.value})

sys.modules["connectivity.cli.main"] = CommandsImported("main")
sys.argv = ["connectivity", "serve"]
from connectivity.__main__ import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
