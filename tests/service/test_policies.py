"""Policies over a real broker: parts, imports, and a subject that expired while nothing ran.

Each rule by itself is tested in tests/unit/connectivity/twins. Case numbers are those of the behavior cases of twins.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.history.replay import evolve_parsed
from spark_store.journal.journal import Journal
from spark_store.records import Change
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import EVERYTHING, READ, Reader, client, connection, source, topic
from tests.support.service_process import ServiceProcess

pytestmark = pytest.mark.broker("mosquitto")

OWNER, GUEST = "acme:owner", "acme:guest"
POL, ROLES = "acme.site:pol-7", "acme.site:roles"
EXPIRED = "2020-01-01T00:00:00Z"
ALL = {"thing:/": EVERYTHING, "policy:/": EVERYTHING, "message:/": EVERYTHING}


def entry(subject: str, resources: dict[str, Any], **about: Any) -> dict[str, Any]:
    return {"subjects": {subject: {"type": "test", **about}}, "resources": resources, "importable": "implicit"}


def written_before(folder: Path) -> None:
    """A journal from a time when the guest had not expired; nothing has run since."""
    notified = {"beforeExpiry": "1h", "whenDeleted": True}
    entries = {
        "OWNER": entry(OWNER, ALL),
        "GUEST": entry(GUEST, {"thing:/": READ}, expiry=EXPIRED, announcement=notified),
    }
    state = {"policyId": POL, "imports": {}, "entries": entries}
    entity = EntityId(EntityType.POLICY, "acme.site", "pol-7")
    event = Event(entity, 1, "2019-12-01T00:00:00.000000Z", "created", "/", b"{}", b"{}")
    folder.mkdir()
    journal = Journal.open(folder / "journal.db")
    journal.append([Change((event,), (evolve_parsed(None, event, state),))])
    journal.close()


def ask(requester: MqttClient, name: str, verb: str, path: str = "/", value: Any = None, **more: Any) -> dict[str, Any]:
    group = more.pop("group", "policies")
    return requester.ask_for(topic(name, f"commands/{verb}", group), path, value, **more)


def refused(answer: dict[str, Any], status: int, error: str) -> None:
    assert (answer["status"], answer["value"]["error"]) == (status, error)
    assert answer["topic"].endswith("/policies/errors") or error.startswith("things:")


def test_case_55_56_57_60_68_a_policy_in_parts_with_imports_and_a_guest_that_expires(
    mosquitto: Mosquitto, tmp_path: Path
) -> None:
    written_before(tmp_path / "data")
    target = {
        "address": "p/notified/answers",
        "topics": ["_/_/policies/announcements"],
        "qos": 1,
        "authorizationContext": [GUEST],
    }
    sources = (source("p/owner", OWNER), source("p/guest", GUEST), source("p/notified", "acme:nobody"))
    harness = connection(mosquitto, *sources, targets=[target])
    with (
        client(mosquitto, "p/notified") as notified,
        client(mosquitto, "p/owner") as owner,
        client(mosquitto, "p/guest") as guest,
        ServiceProcess.start(tmp_path, [harness]) as service,
    ):
        # The service deletes the guest and notifies it.
        announcement = notified.next()
        assert announcement["topic"] == topic("pol-7", "announcements/subjectDeletion", "policies")
        assert announcement["value"] == {"deleteAt": EXPIRED, "subjectIds": [GUEST]}
        assert announcement["headers"]["correlation-id"]
        found = ask(owner, "pol-7", "retrieve", "/entries/GUEST")
        assert (found["value"]["subjects"], found["headers"]["entity-revision"]) == ({}, 2)
        items = Reader(owner, "pol-7", group="policies").all()
        assert [(item["topic"].rpartition("/")[2], item["path"], item["revision"]) for item in items] == [
            ("created", "/", 1),
            ("deleted", f"/entries/GUEST/subjects/{GUEST}", 2),
        ]
        # A changed part of a policy applies to the next command.
        assert ask(owner, "box-1", "create", value={"policyId": POL}, group="things/twin")["status"] == 201
        refused(ask(guest, "box-1", "retrieve", group="things/twin"), 404, "things:thing.notfound")
        part = f"/entries/GUEST/subjects/{GUEST}"
        answer = ask(owner, "pol-7", "modify", part, {"type": "back"})
        assert (answer["status"], answer["path"], answer["value"]) == (201, part, {"type": "back"})
        assert ask(owner, "pol-7", "modify", part, {"type": "again"})["status"] == 204
        assert ask(guest, "box-1", "retrieve", group="things/twin")["status"] == 200
        key = "/entries/GUEST/resources/thing:/features/burner"
        assert ask(owner, "pol-7", "modify", key, READ)["status"] == 201
        refused(ask(owner, "pol-7", "modify", key.replace("GUEST", "NONE"), READ), 404, "policies:entry.notfound")
        refused(ask(owner, "pol-7", "delete", "/entries/OWNER"), 403, "policies:entry.modificationinvalid")
        refused(ask(guest, "pol-7", "delete", part), 404, "policies:policy.notfound")
        assert ask(owner, "pol-7", "delete", part)["status"] == 204
        refused(ask(owner, "pol-7", "delete", part), 404, "policies:subject.notfound")
        # Imported entries apply too, and so do their changes.
        shared = {"policyId": ROLES, "entries": {"OWNER": entry(OWNER, ALL), "READ": entry(GUEST, {"thing:/": READ})}}
        assert ask(owner, "roles", "create", value=shared)["status"] == 201
        refused(ask(guest, "box-1", "retrieve", group="things/twin"), 404, "things:thing.notfound")
        refused(ask(owner, "pol-7", "modify", f"/imports/{POL}", {}), 400, "policies:import.invalid")
        assert ask(owner, "pol-7", "modify", f"/imports/{ROLES}", {})["status"] == 201
        assert ask(guest, "box-1", "retrieve", group="things/twin")["status"] == 200
        assert ask(owner, "roles", "delete", f"/entries/READ/subjects/{GUEST}")["status"] == 204
        refused(ask(guest, "box-1", "retrieve", group="things/twin"), 404, "things:thing.notfound")
        present = ask(owner, "pol-7", "retrieve")
        service.kill()
        service.start_again()
        again = ask(owner, "pol-7", "retrieve")
        assert (again["value"], again["headers"]["etag"]) == (present["value"], present["headers"]["etag"])
        notified.assert_nothing_came()
