"""The commands `connectivity history …`, with and without a service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from connectivity.cli.main import app
from mappings.ids import EntityType
from spark_store.journal.journal import Journal
from tests.support.api.canned_server import Reply, canned, fault
from tests.support.journal_entries import LAMP, change, history
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

ODD = LAMP._replace(name="it's $one")
MARK = b"a-secret-nobody-else-has"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["history", *map(str, arguments)], catch_exceptions=False)


def fill(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    journal = Journal.open(folder / "journal.db")
    journal.append([change(LAMP, 1, b'"' + MARK + b'"')])
    journal.append(history(LAMP._replace(name="lamp-8"), 2))
    journal.close()


def holds_mark(folder: Path) -> bool:
    return any(MARK in file.read_bytes() for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    file = tmp_path / "settings.yaml"
    file.write_text(f"data_dir: {tmp_path / 'data'}\n")
    fill(tmp_path / "data")
    return file


def test_an_entity_is_erased_and_listed_without_a_service(settings: Path) -> None:
    assert run("erasures", "--settings", settings).stdout == "no erasures\n"
    refused = run("erase", LAMP, "--settings", settings)
    assert (refused.exit_code, "--yes" in refused.stderr) == (2, True)
    assert holds_mark(settings.parent / "data")
    done = run("erase", LAMP, "--yes", "--settings", settings)
    assert done.exit_code == 0
    assert "entity        acme.site:lamp-7\n" in done.stdout
    assert not holds_mark(settings.parent / "data")
    (record,) = json.loads(run("erasures", "--json", "--settings", settings).stdout)
    assert (record["entity"], record["seq"], record["lake_done"]) == (LAMP.id, 3, None)
    assert record["requested_at"] <= record["journal_done"]
    assert LAMP.id in run("erasures", "--settings", settings).stdout


def test_an_erased_thing_is_erased_again_with_a_note_about_the_earlier_erasure(settings: Path) -> None:
    """A repeated erasure also removes later data, and data restored from a backup."""
    first = run("erase", LAMP, "--yes", "--settings", settings)
    assert (first.exit_code, "before" in first.stdout) == (0, False)
    run("erase", "acme.site:lamp-8", "--yes", "--settings", settings)
    at = json.loads(run("erasures", "--json", "--settings", settings).stdout)[0]["requested_at"]
    again = run("erase", LAMP, "--yes", "--settings", settings)
    message = (
        f"acme.site:lamp-7 was erased before, as number 1 at {at}: the erasure is repeated and covers later data\n"
    )
    assert (again.exit_code, again.stdout.endswith(message), again.stderr) == (0, True, "")
    assert [it["id"] for it in json.loads(run("erasures", "--json", "--settings", settings).stdout)] == [1, 2, 3]
    machine = run("erase", LAMP, "--yes", "--json", "--settings", settings)
    assert json.loads(machine.stdout)["id"] == 4
    assert "was erased before, as number 3 at" in machine.stderr


def test_the_policy_of_the_same_id_is_kept_and_reported(settings: Path) -> None:
    journal = Journal.open(settings.parent / "data" / "journal.db")
    journal.append([*history(LAMP._replace(type=EntityType.POLICY), 2), *history(ODD, 1)])
    journal.append(history(ODD._replace(type=EntityType.POLICY), 1))
    journal.close()
    message = (
        "its policy with the same ID remains, with the subjects that it names; unless other things need it, erase it, too: "
        "connectivity history erase acme.site:lamp-7 --type policy\n"
    )
    assert run("erase", LAMP, "--yes", "--settings", settings).stdout.endswith(message)
    assert run("erase", LAMP, "--yes", "--json", "--settings", settings).stderr.endswith(message)
    odd = run("erase", ODD, "--yes", "--settings", settings)
    assert odd.stdout.endswith("connectivity history erase 'acme.site:it'\"'\"'s $one' --type policy\n")
    policy = run("erase", LAMP, "--type", "policy", "--yes", "--settings", settings)
    assert (policy.exit_code, "is left" in policy.stdout) == (0, False)
    assert "is left" not in run("erase", LAMP, "--yes", "--settings", settings).stdout, "it is gone by now"


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["acme:never-was", "--yes"], 1, "found no thing acme:never-was"),
        ([LAMP, "--type", "policy", "--yes"], 1, "found no policy"),
        (["tank-9/7", "--type", "stream", "--yes"], 1, "found no stream tank-9/7"),
        (["lamp", "--yes"], 2, "expected the id of a thing, such as acme.site:lamp-7, found 'lamp'\n"),
        (["", "--yes"], 2, "expected the id of a thing, such as acme.site:lamp-7, found nothing\n"),
        (["acme:" + "a" * 3000, "--yes"], 2, "expected an id of at most 256 characters, found 3005 characters\n"),
        (["tank-9", "--type", "stream", "--yes"], 2, "expected the id of a stream, such as tank-9/0, found 'tank-9'\n"),
        ([LAMP, "--type", "lamp", "--yes"], 2, "expected the type thing, policy or stream, found 'lamp'\n"),
        ([LAMP, "--type", "", "--yes"], 2, "expected the type thing, policy or stream, found nothing\n"),
    ],
)
def test_erasing_an_unknown_entity_ends_with_1_and_an_invalid_id_ends_with_2(
    arguments: list[object], code: int, reason: str, settings: Path
) -> None:
    result = run("erase", *arguments, "--settings", settings)
    assert (result.exit_code, reason in result.stderr) == (code, True), result.stderr


def test_erasing_in_a_data_folder_that_cannot_be_locked_ends_with_2(settings: Path) -> None:
    lock = settings.parent / "data" / "lock"
    lock.unlink(missing_ok=True)
    lock.mkdir()
    result = run("erase", LAMP, "--yes", "--settings", settings)
    assert (result.exit_code, "expected a folder that can be written" in result.stderr) == (2, True), result.stderr


RECORD: dict[str, object] = {"id": 2, "entity_type": "thing", "entity": LAMP.id, "requested_at": "T2"}
ERASED = {"GET /api/2/erasures": Reply([RECORD | {"id": 1, "requested_at": "T1"}, RECORD])}


@pytest.mark.parametrize("by_variable", [False, True], ids=["option", "variable"])
def test_a_named_service_erases_and_no_local_file_is_used(
    by_variable: bool, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with canned({"POST /api/2/erasures": Reply(RECORD, 202), **ERASED}) as server:
        if by_variable:
            monkeypatch.setenv("CONNECTIVITY_URL", server.url)
        way = [] if by_variable else ["--url", server.url]
        done = run("erase", LAMP, "--yes", "--settings", settings, *way)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "was erased before, as number 1 at T1" in done.stdout
    assert "its policy with the same ID, if there is one, remains" in done.stdout
    assert server.lines == ["POST /api/2/erasures", "GET /api/2/erasures"]
    assert holds_mark(settings.parent / "data"), "the local journal is left alone"


def test_a_refusal_of_a_named_service_is_printed_and_nothing_local_is_erased(settings: Path) -> None:
    refusal = fault(404, "connectivity:entity.notfound", "found no thing acme.site:lamp-7")
    with canned({"POST /api/2/erasures": refusal}) as server:
        refused = run("erase", LAMP, "--yes", "--settings", settings, "--url", server.url)
    assert (refused.exit_code, refused.stderr.count("found no thing")) == (1, 1)
    away = run("erase", LAMP, "--yes", "--settings", settings, "--url", server.url)
    assert (away.exit_code, "fix --url" in away.stderr, "data folder" in away.stderr) == (5, True, False)
    assert holds_mark(settings.parent / "data")


def test_the_erasures_of_a_named_service_are_listed(settings: Path) -> None:
    with canned(ERASED) as server:
        listed = run("erasures", "--settings", settings, "--url", server.url)
        (earlier, _) = json.loads(run("erasures", "--json", "--url", server.url).stdout)
    assert (listed.exit_code, LAMP.id in listed.stdout, earlier["requested_at"]) == (0, True, "T1")
    assert run("erasures", "--url", server.url).exit_code == 5
    assert run("erasures", "--settings", settings).stdout == "no erasures\n"


def test_a_running_service_erases_and_continues(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    with ServiceProcess.start(tmp_path, [], api={"token": "secret"}) as service:
        file = tmp_path / "settings.json"
        assert run("erase", "acme:never-was", "--yes", "--settings", file).exit_code == 1
        assert run("erase", LAMP, "--type", "lamp", "--yes", "--settings", file).exit_code == 2
        asked = run("erase", LAMP, "--yes", "--json", "--settings", file)
        assert asked.exit_code == 0, asked.stderr
        assert json.loads(asked.stdout)["entity"] == LAMP.id
        wait_until_sync(
            lambda: json.loads(run("erasures", "--json", "--settings", file).stdout)[0]["journal_done"], 60.0
        )
        assert not holds_mark(tmp_path / "data")
        elsewhere = run("erase", LAMP, "--yes", "--settings", file, "--url", "http://127.0.0.1:9")
        assert (elsewhere.exit_code, "fix --url" in elsewhere.stderr) == (5, True)
        service.kill()
        service.start_again()
        again = run("erase", LAMP, "--yes", "--settings", file)
        assert (again.exit_code, "was erased before, as number 1 at" in again.stdout) == (0, True), again.stderr
