"""Watching a folder: changed files are read, and files that are being written are not read yet."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from connectivity.connections.model import Connection
from connectivity.management import watcher as module
from connectivity.management.files import LoadedFolder, ReadFile, read_file
from connectivity.management.watcher import MOST_ROUNDS, RETURN_SECONDS, FolderUnavailable, FolderWatcher
from connectivity.validation.validator import parse
from tests.support.clock import Clock
from tests.support.cpu_budget import at_most
from tests.support.vectors.connections import base_document


def document(**more: Any) -> dict[str, Any]:
    return {name: value for name, value in base_document("shared").items() if name != "id"} | more


class Folder:
    """A folder and its watcher; `meanwhile` is called while the watcher waits for unchanged files."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path / "connections"
        self.path.mkdir()
        self.clock = Clock()
        self.meanwhile: Callable[[], object] = lambda: None
        self.read: list[str] = []
        self.watcher = FolderWatcher(self.path, clock=self.clock.now, pause=lambda _seconds: self.meanwhile())
        monkeypatch.setattr(module, "read_file", self._read_file)

    def _read_file(self, file: Path, **named: Any) -> ReadFile:
        self.read.append(file.name)
        return read_file(file, **named)

    def write(self, name: str, content: Any) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        # As an editor does that means well.
        (self.path / f".{name}.draft").write_text(text, encoding="utf-8")
        (self.path / f".{name}.draft").rename(self.path / name)

    def look(self) -> LoadedFolder | None:
        self.read.clear()
        return self.watcher.look()

    def ids(self) -> list[str]:
        found = self.look()
        assert found is not None
        return sorted(found.connections)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    return Folder(tmp_path, monkeypatch)


def test_a_change_of_one_file_reads_one_file(folder: Folder) -> None:
    for number in range(20):
        folder.write(f"c{number}.json", document())
    assert len(folder.ids()) == 20
    assert (folder.look(), folder.read) == (None, [])
    folder.write("c7.json", document(name="Seven"))
    found = folder.look()
    assert found is not None
    assert (folder.read, found.connections["c7"].name, len(found.connections)) == (["c7.json"], "Seven", 20)


def test_a_file_that_is_gone_takes_its_connections_along_and_reads_nothing(folder: Folder) -> None:
    folder.write("a.json", document())
    folder.write("b.json", document())
    folder.look()
    (folder.path / "b.json").unlink()
    assert (folder.ids(), folder.read) == (["a"], [])


def test_a_secret_that_changes_reads_the_files_that_refer_to_it(folder: Folder) -> None:
    folder.write("password", "first")
    folder.write("a.json", document(uri="amqp://ada:${file:password}@127.0.0.1:5672"))
    folder.write("b.json", document())
    folder.look()
    folder.write("password", "second")
    found = folder.look()
    assert found is not None
    password = found.connections["a"].broker_uri.password
    assert password is not None
    assert (folder.read, password.get_secret_value()) == (["a.json"], "second")
    assert folder.look() is None


def test_a_secret_that_changes_together_with_one_of_its_files_is_read_for_the_others_too(folder: Folder) -> None:
    """It changes when the watcher has already decided which files to read."""
    uri = "amqp://ada:${file:password}@127.0.0.1:5672"
    folder.write("password", "first")
    folder.write("a.json", document(uri=uri))
    folder.write("b.json", document(uri=uri))
    folder.look()
    folder.write("b.json", document(uri=uri, name="B"))
    folder.meanwhile = lambda: folder.write("password", "second")
    assert (folder.ids(), folder.read) == (["a", "b"], ["b.json"])
    folder.meanwhile = lambda: None
    found = folder.look()
    assert found is not None
    assert {connection.broker_uri.password for connection in found.connections.values()} == {SecretStr("second")}


def test_a_secret_that_changes_while_its_file_is_read_is_read_again(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second connection of the file gets the new one, the first connection not yet."""
    one, other = (document(uri="amqp://ada:${file:password}@127.0.0.1:5672", id=name) for name in ("one", "other"))
    folder.write("password", "first")
    folder.write("both.json", [one, other])

    def parse_slowly(written: Any, **named: Any) -> Connection:
        connection = parse(written, **named)
        if connection.id == "one":
            folder.write("password", "second")
        return connection

    monkeypatch.setattr("connectivity.management.files.parse", parse_slowly)
    folder.look()
    monkeypatch.undo()
    found = folder.watcher.look()
    assert found is not None
    assert {connection.broker_uri.password for connection in found.connections.values()} == {SecretStr("second")}


def test_a_reload_reports_unchanged_files_without_reading_them(folder: Folder) -> None:
    folder.write("a.json", document())
    folder.look()
    folder.read.clear()
    found = folder.watcher.look(reload=True)
    assert found is not None
    assert (list(found.connections), folder.read) == (["a"], [])


def test_a_file_that_is_being_written_is_read_when_it_no_longer_changes(folder: Folder) -> None:
    folder.look()
    folder.write("a.json", "[")
    folder.meanwhile = lambda: folder.write("a.json", [document(id="a"), document(id="b")])
    assert (folder.look(), folder.read) == (None, [])
    folder.meanwhile = lambda: None
    assert folder.ids() == ["a", "b"]


def test_a_briefly_missing_file_is_not_deleted(folder: Folder) -> None:
    """So do some editors write."""
    folder.write("a.json", document())
    folder.look()
    (folder.path / "a.json").unlink()
    folder.meanwhile = lambda: folder.write("a.json", document(name="Anew"))
    assert folder.look() is None
    folder.meanwhile = lambda: None
    found = folder.look()
    assert found is not None
    assert found.connections["a"].name == "Anew"


def test_a_file_that_always_changes_is_read_every_few_rounds_without_loss(folder: Folder) -> None:
    """The last state applies when the file no longer changes; until then missing parts may follow."""
    folder.write("a.json", [document(id="a"), document(id="b")])
    folder.look()
    numbers = iter(range(1000))
    folder.write("a.json", [document(id="a")])
    folder.meanwhile = lambda: folder.write("a.json", [document(id="a", name=f"number {next(numbers)}")])
    found = [folder.look() for _ in range(3 * (MOST_ROUNDS + 1))]
    reports = [it for it in found if it is not None]
    assert len(reports) == 3
    assert {problem.file.name for it in reports for problem in it.problems} == {"a.json"}
    folder.meanwhile = lambda: None
    last = folder.look()
    assert last is not None
    assert (last.problems, list(last.connections)) == ([], ["a"])
    assert last.connections["a"].name == f"number {next(numbers) - 1}"
    assert folder.look() is None


def test_a_folder_that_vanishes_is_reported_and_one_that_comes_back_has_time(folder: Folder) -> None:
    folder.write("a.json", document())
    folder.write("b.json", document())
    folder.look()
    away = folder.path.with_name("away")
    folder.path.rename(away)
    for _ in range(2):
        with pytest.raises(FolderUnavailable, match="No such file"):
            folder.look()
    folder.path.mkdir()
    folder.write("a.json", document())
    found = folder.look()
    assert found is not None
    assert [(it.file.name, it.problem.found) for it in found.problems] == [
        ("b.json", "no such file, although its folder exists again")
    ]
    assert sorted(found.connections) == ["a", "b"]
    assert folder.look() is None
    folder.clock.advance(RETURN_SECONDS)
    assert folder.ids() == ["a"]


def test_an_optional_folder_may_be_absent_until_it_has_had_files(tmp_path: Path) -> None:
    path = tmp_path / "connections"
    watcher = FolderWatcher(path, is_optional=True, pause=lambda _seconds: None)
    found = watcher.look()
    assert found is not None
    assert (dict(found.connections), list(found.problems), watcher.look()) == ({}, [], None)
    path.mkdir()
    (path / "a.json").write_text(json.dumps(document()), encoding="utf-8")
    appeared = watcher.look()
    assert appeared is not None
    assert list(appeared.connections) == ["a"]
    path.rename(tmp_path / "away")
    with pytest.raises(FolderUnavailable, match="No such file"):
        watcher.look()


def test_an_optional_folder_that_is_no_folder_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "connections"
    path.write_text("", encoding="utf-8")
    with pytest.raises(FolderUnavailable, match="Not a directory"):
        FolderWatcher(path, is_optional=True).look()


def test_a_folder_that_comes_back_as_it_was_changes_nothing(folder: Folder) -> None:
    folder.write("a.json", document())
    folder.look()
    away = folder.path.with_name("away")
    folder.path.rename(away)
    with pytest.raises(FolderUnavailable):
        folder.look()
    away.rename(folder.path)
    assert (folder.look(), folder.read) == (None, [])


def test_two_names_of_one_file_are_one_connection(folder: Folder) -> None:
    folder.write("b.json", document())
    (folder.path / "a.json").symlink_to("b.json")
    (folder.path.parent / "elsewhere.json").write_text(json.dumps(document()))
    for name in ("c.json", "d.json"):
        (folder.path / name).symlink_to("../elsewhere.json")
    assert folder.ids() == ["b", "c"]


def test_a_link_that_leads_nowhere_is_a_problem_of_its_own(folder: Folder) -> None:
    folder.write("a.json", document())
    (folder.path / "b.json").symlink_to("nowhere.json")
    found = folder.look()
    assert found is not None
    assert (list(found.connections), [it.file.name for it in found.problems]) == (["a"], ["b.json"])
    assert folder.look() is None


def test_thousands_of_files_are_checked_cheaply(folder: Folder) -> None:
    """A round without changes takes some microseconds per file, and reads no file."""
    for number in range(1000):
        (folder.path / f"c{number}.json").write_text(json.dumps(document(connectionStatus="closed")), encoding="utf-8")
    assert len(folder.ids()) == 1000
    with at_most(0.5):
        assert (folder.look(), folder.read) == (None, [])
    os.utime(folder.path / "c7.json", ns=(1, 1))
    assert (len(folder.ids()), folder.read) == (1000, ["c7.json"])
