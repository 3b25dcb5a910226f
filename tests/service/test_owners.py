"""Connections of files and of the API in one service: their owners, and what a kill preserves."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.service_process import ServiceProcess
from tests.support.wait import PATIENCE, wait_until_sync

API = "/api/2/connections"


def document(topic: str = "in", **more: Any) -> dict[str, Any]:
    """Return a connection document with an unreachable broker; it can be stored."""
    return {
        "connectionType": "mqtt",
        "connectionStatus": "open",
        "uri": "tcp://ada:tulip-37@127.0.0.1:1",
        "sources": [{"addresses": [topic], "qos": 1, "authorizationContext": ["acme:x"]}],
        **more,
    }


def ask(service: ServiceProcess, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Send a request to the API; return status and body."""
    data = None if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    sent = {"content-type": "text/plain" if isinstance(body, str) else "application/json"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://127.0.0.1:{service.port}{API}{path}", data, sent, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            text = response.read()
            return response.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def addresses(shown: Any) -> list[str]:
    found: list[str] = shown["sources"][0]["addresses"]
    return found


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """The files `yard.json` and `lane.json` own a connection each."""
    documents = [{"id": name, **document()} for name in ("yard", "lane")]
    with ServiceProcess.start(tmp_path_factory.mktemp("owners"), documents) as started:
        yield started


def test_a_file_that_is_written_all_the_time_is_applied_seldom_and_its_last_state_wins(service: ServiceProcess) -> None:
    """Ten times a second, and in place, so that half of it is there at times."""
    file = service.folder / "connections" / "lane.json"
    enough = threading.Event()
    for number in range(30):
        file.write_text(json.dumps({"id": "lane", **document(f"t{number}")}), encoding="utf-8")
        enough.wait(0.1)
    wait_until_sync(lambda: addresses(ask(service, "GET", "/lane")[1]) == ["t29"])
    reasons = [line["reason"] for line in service.records() if line["event"] == "connection closed"]
    assert reasons.count("document or secret changed") <= 5
    assert "document deleted" not in reasons


def test_two_owners_of_connections_in_one_service_that_is_killed(service: ServiceProcess) -> None:
    """The last test here, since the service is stopped at its end."""
    assert ask(service, "PUT", "/depot", document())[0] == 201
    status, error = ask(service, "PUT", "/depot", document("other"))
    assert (status, error["error"]) == (504, "connectivity:connection.failed")
    assert error["description"].startswith("connection refused")
    assert ask(service, "PUT", "/depot", document(), if_match='"rev:1"')[0] == 412
    status, error = ask(service, "PUT", "/yard", document())
    assert (status, error["error"]) == (409, "connectivity:connection.conflict")
    assert str(service.folder / "connections" / "yard.json") in error["message"]
    assert ask(service, "POST", "/yard/command", "connectivity.commands:closeConnection")[0] == 200
    service.kill()
    service.start_again()
    status, shown = ask(service, "GET", "/depot")
    assert (status, addresses(shown), shown["uri"]) == (200, ["other"], "tcp://ada:*****@127.0.0.1:1")
    status, shown = ask(service, "GET", "/yard/status")
    assert (status, shown["connectionStatus"], shown["override"]) == (200, "closed", "closed")
    assert service.stop()[0] == 0
    kept = b"".join(file.read_bytes() for file in service.data.glob("journal.db*"))
    assert b"tulip-37" not in kept + service.log_file.read_bytes()
