"""Connection files compared with the known connections; pure, so in tables."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from connectivity.connections.model import Connection
from connectivity.errors import Problem
from connectivity.management.definition import Owner
from connectivity.management.files import FileProblem, LoadedFolder
from connectivity.management.reconciler import (
    DesiredConnection,
    FolderReading,
    ReconcileStep,
    compare_folder,
    digest_of,
    steps,
)
from connectivity.validation.validator import parse
from spark_store.records import FileNote
from tests.support.table import each_row

NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)
EARLIER = datetime(2029, 1, 1, tzinfo=UTC)
FILE = Path("depot.json")
BROKEN = FileProblem(FILE, Problem("line 1", "{", "JSON"))


def document(topic: str = "in", **more: Any) -> dict[str, Any]:
    return {
        "id": "depot",
        "connectionType": "mqtt",
        "connectionStatus": "open",
        "uri": "tcp://127.0.0.1:1883",
        "sources": [{"addresses": [topic], "qos": 1, "authorizationContext": ["acme:x"]}],
        **more,
    }


def connection(topic: str = "in", **more: Any) -> Connection:
    return parse(document(topic, **more))


def loaded(topic: str = "in", *problems: FileProblem, **more: Any) -> LoadedFolder:
    return LoadedFolder(
        {"depot": connection(topic, **more)}, {"depot": document(topic, **more)}, {"depot": FILE}, list(problems)
    )


def note(topic: str = "in", revision: int = 1, override: str | None = None) -> FileNote:
    return FileNote("depot", revision, digest_of(document(topic)), EARLIER.isoformat(), override)


def look(reading: LoadedFolder, known: FileNote | None = None, taken: frozenset[str] = frozenset()) -> FolderReading:
    """A look after `known` was noted of the former one."""
    before = {}
    if known is not None:
        former = loaded("in" if known.digest == note().digest else "other")
        before = compare_folder(former, {}, {"depot": known}, (), digests(former), NOW).desired
    return compare_folder(reading, before, {} if known is None else {"depot": known}, taken, digests(reading), NOW)


def digests(reading: LoadedFolder) -> dict[str, str]:
    return {connection_id: digest_of(document) for connection_id, document in reading.documents.items()}


def shown(found: FolderReading) -> tuple[int, str | None, str, datetime] | None:
    wanted = found.desired.get("depot")
    return wanted if wanted is None else (wanted.revision, wanted.override, wanted.status, wanted.modified)


@each_row(
    ("reading", "known", "expected"),
    [
        (loaded(), None, (1, None, "open", NOW)),
        (loaded(), note(), (1, None, "open", EARLIER)),
        (loaded(), note(revision=4, override="closed"), (4, "closed", "closed", EARLIER)),
        (loaded("other"), note(revision=4, override="closed"), (5, None, "open", NOW)),
        (loaded(connectionStatus="closed"), note(revision=4), (5, None, "closed", NOW)),
        (LoadedFolder(), note(), None),
        (LoadedFolder(problems=[BROKEN]), note(revision=4, override="closed"), (4, "closed", "closed", EARLIER)),
        (LoadedFolder(problems=[FileProblem(Path("b"), BROKEN.problem)]), note(), None),
    ],
    ids=[
        "a new file",
        "one that is known",
        "one that an operator has closed",
        "one that changed ends what the operator wanted",
        "one that says closed itself",
        "one that is gone",
        "an invalid file keeps the last valid connection",
        "one that is gone beside another that is broken",
    ],
)
def test_a_file_and_its_note_determine_the_desired_connection(
    reading: LoadedFolder, known: FileNote | None, expected: object
) -> None:
    assert shown(look(reading, known)) == expected


@pytest.mark.parametrize(
    ("reading", "known", "expected"),
    [
        (loaded(), None, [FileNote("depot", 1, digest_of(document()), NOW.isoformat(), None)]),
        (loaded(), note(), []),
        (loaded("other"), note(), [FileNote("depot", 2, digest_of(document("other")), NOW.isoformat(), None)]),
        (LoadedFolder(), note(override="closed"), [FileNote("depot", 1, "", EARLIER.isoformat(), None)]),
        (LoadedFolder(problems=[BROKEN]), note(), []),
    ],
    ids=["new", "known", "changed", "gone", "broken"],
)
def test_a_new_changed_or_removed_file_is_noted(
    reading: LoadedFolder, known: FileNote | None, expected: list[FileNote]
) -> None:
    assert look(reading, known).notes == expected


def test_a_broken_file_is_reported_with_the_connection_that_continues() -> None:
    assert look(LoadedFolder(problems=[BROKEN]), note()).desired["depot"].problems == (str(BROKEN),)


def test_an_id_of_the_api_stays_the_apis() -> None:
    found = look(loaded(), taken=frozenset({"depot"}))
    assert (found.desired, found.notes) == ({}, [])
    (problem,) = found.problems
    assert (problem.file, problem.problem.path) == (FILE, "id")


@pytest.mark.parametrize(
    ("wanted", "running", "expected"),
    [
        (None, None, ()),
        (None, connection(), (ReconcileStep.CLOSE,)),
        (connection(), None, (ReconcileStep.OPEN,)),
        (connection(), connection(), ()),
        (connection("other"), connection(), (ReconcileStep.CLOSE, ReconcileStep.OPEN)),
        (connection(name="Depot", tags=["site"]), connection(), (ReconcileStep.ADOPT,)),
        (connection("other", name="Depot"), connection(), (ReconcileStep.CLOSE, ReconcileStep.OPEN)),
    ],
    ids=["nothing", "gone", "new", "the same", "another", "another name", "another, with another name"],
)
def test_reconciliation_steps_turn_the_running_connection_into_the_desired_one(
    wanted: Connection | None, running: Connection | None, expected: tuple[ReconcileStep, ...]
) -> None:
    assert steps(wanted, running) == expected


@pytest.mark.parametrize(
    ("status", "override", "is_running"),
    [
        ("open", None, True),
        ("closed", None, False),
        ("unknown", None, False),
        ("closed", "open", True),
        ("open", "closed", False),
    ],
)
def test_a_connection_runs_when_its_status_or_override_is_open(
    status: str, override: str | None, is_running: bool
) -> None:
    made = document(connectionStatus=status)
    wanted = DesiredConnection("depot", Owner.FILE, made, parse(made), 1, NOW, FILE, override)
    assert (wanted.running is not None) is is_running
    if wanted.running is not None:
        assert wanted.running.connection_status == "open"


def test_a_connection_with_an_unusable_document_does_not_run() -> None:
    assert DesiredConnection("depot", Owner.API, document(), None, 1, NOW).running is None
