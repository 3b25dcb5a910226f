"""Connections over HTTP with a running service: operators create, change, close and restrict them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.brokers.mosquitto import Mosquitto
from tests.support.connection_documents import client, connection, policy_for, source, topic
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.broker("mosquitto")

READER, WRITER, ADMIN = "reader-0123456789", "writer-0123456789", "admin-0123456789"
TOKENS = [
    {"name": "rita", "token": READER, "role": "read"},
    {"name": "wim", "token": WRITER, "role": "write"},
    {"name": "anna", "token": ADMIN, "role": "admin"},
]
ALL = "/api/2/connections"
OWNER = "acme:owner"
PASSWORD = "pass-word-of-ours"


def as_(service: ServiceProcess, token: str) -> httpx.Client:
    """A client with this token; close it."""
    return httpx.Client(
        base_url=f"http://127.0.0.1:{service.port}", headers={"authorization": f"Bearer {token}"}, timeout=60
    )


@pytest.fixture(scope="module")
def service(mosquitto: Mosquitto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """One service with a connection of a file and none of the API; each test uses its own IDs."""
    folder = tmp_path_factory.mktemp("operating")
    with ServiceProcess.start(folder, [connection(mosquitto, source("filed", OWNER))], api={"tokens": TOKENS}) as it:
        yield it


@pytest.fixture(scope="module")
def wim(service: ServiceProcess) -> Iterator[httpx.Client]:
    with as_(service, WRITER) as it:
        yield it


def label(connection_id: str, *names: str) -> dict[str, Any]:
    """Return targets that issue acknowledgements with these labels."""
    return {
        "targets": [
            {
                "address": f"events/{number}",
                "topics": ["_/_/things/twin/events"],
                "authorizationContext": [OWNER],
                "issuedAcknowledgementLabel": name,
            }
            for number, name in enumerate(names)
        ]
    }


def test_cases_44_45_47_a_connection_that_cannot_be_is_refused_with_its_code(
    wim: httpx.Client, mosquitto: Mosquitto
) -> None:
    announcing = {"address": "out", "topics": ["_/_/connections/announcements"], "authorizationContext": [OWNER]}
    for more, status, code in (
        (label("c", "c:seen", "c:seen"), 409, "acknowledgement:label.not.unique"),
        (label("c", "other:seen"), 400, "acknowledgement:label.invalid"),
        ({"clientCount": 2, "targets": [announcing]}, 400, "connectivity:connection.configuration.invalid"),
    ):
        for method, path in (("PUT", f"{ALL}/c"), ("POST", ALL)):
            answer = wim.request(method, path, json={**connection(mosquitto, source("c", OWNER), id="c"), **more})
            assert (answer.status_code, answer.json()["error"]) == (status, code)
            assert answer.json()["problems"]
    assert wim.get(f"{ALL}/c").status_code == 404


def test_case_46_a_connection_is_made_by_put_serves_and_is_changed_commanded_and_deleted(
    service: ServiceProcess, wim: httpx.Client, mosquitto: Mosquitto
) -> None:
    document = connection(mosquitto, source("made", OWNER), id="made")
    document["uri"] = document["uri"].replace("tcp://", f"tcp://fleet:{PASSWORD}@")
    made = wim.put(f"{ALL}/made", json=document)
    assert (made.status_code, made.headers["etag"], made.headers["location"]) == (201, '"rev:1"', f"{ALL}/made")
    assert PASSWORD not in made.text
    wait_until_sync(lambda: wim.get(f"{ALL}/made/status").json()["liveStatus"] == "open", 60)
    with client(mosquitto, "made") as requester:
        answer = requester.ask_for(topic("made-lamp", "commands/create"), value={"_policy": policy_for(OWNER)})
        assert answer["status"] == 201
    shown = made.json()
    changed = wim.put(f"{ALL}/made", json={**shown, "name": "Made"}, headers={"if-match": '"rev:1"'})
    assert (changed.status_code, changed.headers["etag"]) == (204, '"rev:2"')
    assert wim.get(f"{ALL}/made").json()["name"] == "Made"
    assert "name" not in wim.get(f"{ALL}/made", headers={"at-historical-revision": "1"}).json()
    assert [it["by"] for it in wim.get(f"{ALL}/made/revisions").json()] == ["wim", "wim"]
    assert wim.get(f"{ALL}/made", headers={"if-none-match": '"rev:2"'}).status_code == 304
    for name in ("closeConnection", "openConnection", "resetConnectionMetrics", "enableConnectionLogs"):
        done = wim.post(
            f"{ALL}/made/command", content=f"connectivity.commands:{name}", headers={"content-type": "text/plain"}
        )
        assert done.status_code == 200, done.text
    for below in ("status", "metrics", "logs"):
        assert wim.get(f"{ALL}/made/{below}").json()["connectionId"] == "made"
    assert wim.delete(f"{ALL}/made").status_code == 204
    assert wim.get(f"{ALL}/made").status_code == 404
    with as_(service, ADMIN) as anna:
        lines = [it for it in anna.get("/api/2/audit").json() if it["connection"] == "made"]
    assert {it["by"] for it in lines} == {"wim"}
    assert lines[-1]["revision"] == 1
    assert PASSWORD not in service.log()


def test_the_api_refuses_to_change_a_connection_of_a_file_and_names_the_file(
    wim: httpx.Client, mosquitto: Mosquitto
) -> None:
    shown = wim.get(f"{ALL}/site?fields=_owner,_file").json()
    assert (shown["_owner"], Path(shown["_file"]).name) == ("file", "site.json")
    for answer in (wim.put(f"{ALL}/site", json=connection(mosquitto)), wim.delete(f"{ALL}/site")):
        assert (answer.status_code, answer.json()["error"]) == (409, "connectivity:connection.conflict")
        assert "site.json" in answer.json()["message"]


def test_only_one_of_many_concurrent_changes_to_a_revision_succeeds(wim: httpx.Client, mosquitto: Mosquitto) -> None:
    document = connection(mosquitto, source("contested", OWNER), id="contested", connectionStatus="closed")
    assert wim.put(f"{ALL}/contested", json=document).status_code == 201

    def change(number: int) -> int:
        given = {**document, "name": f"by {number}"}
        return wim.put(f"{ALL}/contested", json=given, headers={"if-match": '"rev:1"'}).status_code

    with ThreadPoolExecutor(8) as operators:
        assert sorted(operators.map(change, range(8))) == [204, *[412] * 7]
    assert wim.get(f"{ALL}/contested").headers["etag"] == '"rev:2"'


def test_a_request_without_permission_is_refused_and_changes_nothing(
    service: ServiceProcess, mosquitto: Mosquitto
) -> None:
    document = connection(mosquitto, source("refused", OWNER), id="refused")
    with as_(service, READER) as rita:
        assert rita.get(ALL).status_code == 200
        assert rita.put(f"{ALL}/refused", json=document).status_code == 403
        assert rita.get("/api/2/audit").status_code == 403
        assert rita.get(f"{ALL}/refused").status_code == 404
        assert rita.get(f"{ALL}?token={READER}").status_code == 400
    with as_(service, "wrong-0123456789") as stranger:
        answer = stranger.get(ALL)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert {READER, WRITER, ADMIN} & set(service.log().split('"')) == set()


def test_confirmed_changes_survive_a_kill(service: ServiceProcess, wim: httpx.Client, mosquitto: Mosquitto) -> None:
    ids = [f"kept-{number}" for number in range(5)]
    made = [wim.post(ALL, json=connection(mosquitto, source(it, OWNER), id=it)).status_code for it in ids]
    assert made == [201] * 5
    assert wim.delete(f"{ALL}/kept-0").status_code == 204
    service.kill()
    service.start_again()
    with as_(service, WRITER) as again:
        kept = [it for it in again.get(f"{ALL}?ids-only=true").json() if it.startswith("kept-")]
        assert kept == ids[1:]
        assert again.get(f"{ALL}/kept-0").status_code == 404
