"""A secret must not leak: it is given to the service in every way, and searched for in all its output.

The service runs with a real broker and its most talkative log. Passwords are right, wrong, refused, not reached, in
documents that cannot be used, in exceptions of our own at the worst places; in the end the process is aborted.
"""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.brokers import free_port
from tests.support.brokers.mosquitto import Certificates, Mosquitto
from tests.support.service_process import ServiceProcess
from tests.support.wait import PATIENCE, TimedOut, wait_until_sync

CANARY = "Kanarien%Vogel/8+"
"""A part of every secret here, with a different encoding in each format."""


_MISTAKES = """
import sys, threading
from connectivity.management import client
serve = client.ConnectionClient._serve

async def failing(self, link):
    if self._connection.id == "mistaken":
        secret = self._connection.broker_uri.password.get_secret_value()
        threading.Thread(target=lambda: int(secret)).start()
        raise RuntimeError(f"no use for {secret} nor for {self._connection.uri.get_secret_value()}")
    return await serve(self, link)

client.ConnectionClient._serve = failing
from connectivity.cli.main import main
main()
"""


class FaultyService(ServiceProcess):
    """The service, with mistakes in it that show a password."""

    program = (sys.executable, "-X", "faulthandler", "-c", _MISTAKES)


def secret(name: str) -> str:
    return f"{CANARY}-{name}"


def source(**more: Any) -> dict[str, Any]:
    return {"addresses": ["canary/in"], "qos": 1, "authorizationContext": ["canary:all"], **more}


def document(name: str, uri: str, kind: str = "mqtt-5", **more: Any) -> dict[str, Any]:
    made = {"id": name, "connectionType": kind, "connectionStatus": "open", "sources": [source()], **more}
    return {**made, "uri": uri.replace("SECRET", quote(secret(name), safe=""))}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("canary"))


@pytest.fixture(scope="module")
def broker(certificates: Certificates) -> Iterator[Mosquitto]:
    users = {name: secret(name) for name in ("right", "mistaken", "by-file", "by-variable", "by-api")}
    with Mosquitto.start(users=users, tls=certificates) as started:
        yield started


def documents(broker: Mosquitto, certificates: Certificates, folder: Path) -> list[dict[str, Any]]:
    """Connections of every fate."""
    plain, tls = f"{broker.host}:{broker.port}", f"{broker.host}:{broker.tls_port}"
    (folder / "secret.txt").write_text(secret("by-file"), encoding="utf-8")
    pair = {
        "type": "client-cert",
        "cert": certificates.client_certificate.read_text(),
        "key": certificates.client_key_pkcs8(),
    }
    bootstrap = {"specificConfig": {"bootstrapServers": plain}}
    return [
        document("right", f"tcp://right:SECRET@{plain}"),
        document("mistaken", f"tcp://mistaken:SECRET@{plain}"),
        document("by-file", f"tcp://by-file:${{file:{folder / 'secret.txt'}}}@{plain}"),
        document("by-variable", f"tcp://by-variable:${{env:CANARY}}@{plain}"),
        document("wrong", f"tcp://right:SECRET@{plain}", "mqtt"),
        document("untrusted", f"ssl://right:SECRET@{tls}", credentials=pair),
        document("no-tls", f"ssl://right:SECRET@{plain}"),
        document("unreached", f"tcp://u:SECRET@127.0.0.1:{free_port()}"),
        document("unknown", "tcp://u:SECRET@no-such-host.invalid:1883"),
        document("not-amqp", f"amqp://u:SECRET@{plain}", "amqp-091"),
        document("not-kafka", f"tcp://u:SECRET@{plain}", "kafka", sources=[source(addresses=["in"])], **bootstrap),
        document("no-kafka", f"ssl://u:SECRET@{plain}", "kafka", sources=[source(addresses=["in"])], **bootstrap),
        # These cannot be used at all.
        document("bad-uri", "tcp://u:SECRET@h:1?password=SECRET"),
        document("bad-port", "tcp://u:SECRET@h:SECRET"),
        document(
            "bad-option", f"tcp://u:SECRET@{plain}", specificConfig={"clientId": secret("bad-option"), "passwrd": "x"}
        ),
        document("bad-key", f"tcp://{plain}", credentials={"type": "client-cert", "key": secret("bad-key")}),
        document("bad-source", f"tcp://u:SECRET@{plain}", sources=[source(qos=secret("bad-source")[:3])]),
    ]


EXPECTED = {
    **dict.fromkeys(("right", "by-file", "by-variable"), "open"),
    **dict.fromkeys(("wrong", "untrusted", "unreached", "unknown"), "misconfigured"),
    **dict.fromkeys(("no-tls", "not-amqp", "not-kafka", "no-kafka"), "failed"),
}


def statuses(service: ServiceProcess) -> dict[str, str]:
    """Return the statuses of the connections with an expected one."""
    return {name: service.status(name).get("status", "none") for name in EXPECTED}


def ask_api(service: ServiceProcess, token: str, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    """Send a request to the API; return its status and body."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{service.port}{path}",
        None if body is None else json.dumps(body).encode(),
        {"authorization": f"Bearer {token}", "content-type": "application/json"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def through_the_api(service: ServiceProcess, broker: Mosquitto, token: str) -> list[bytes]:
    """Give secrets to the API, good ones and bad ones; everything that it answers."""
    place, answers = "/api/2/connections", []

    def ask(expected: int, method: str, path: str, body: Any = None) -> Any:
        status, answer = ask_api(service, token, method, path, body)
        assert status == expected, f"{method} {path}: {status} {answer.decode()}"
        answers.append(answer)
        return json.loads(answer or b"null")

    plain = f"{broker.host}:{broker.port}"
    made = document("by-api", f"tcp://by-api:SECRET@{plain}")
    shown = ask(201, "POST", place, made)
    assert shown["uri"] == f"tcp://by-api:*****@{plain}"
    # A masked document keeps its password; for another address the password must be given again.
    ask(204, "PUT", f"{place}/by-api", {**made, "uri": shown["uri"], "tags": ["seen"]})
    ask(400, "PUT", f"{place}/by-api", {**made, "uri": f"tcp://by-api:*****@127.0.0.1:{free_port()}"})
    ask(400, "PUT", f"{place}/by-api", {**made, "sources": [source(qos="high")]})
    ask(400, "POST", place, document("bad", "tcp://u:SECRET@h:1?p=SECRET"))
    ask(400, "POST", place, document("own", f"tcp://u:${{file:{service.data / 'journal.db'}}}@{plain}"))
    ask(400, "POST", f"{place}?token={quote(secret('query'), safe='')}", made)
    answers.append(
        ask_api(service, token, "POST", f"{place}?dry-run=true", document("trial", f"tcp://u:SECRET@{plain}"))[1]
    )
    for path in (
        place,
        f"{place}/by-api",
        "/api/2/audit",
        *(f"{place}/by-api/{it}" for it in ("status", "logs", "metrics")),
    ):
        ask(200, "GET", path)
    return answers


def written(text: str) -> set[bytes]:
    """Return all encodings of a secret: plain, percent-encoded, as JSON, and base64 at each offset."""
    raw = text.encode()
    found = {raw, quote(text, safe="").encode(), quote(text).encode(), json.dumps(text)[1:-1].encode()}
    for shift, first in ((0, 0), (1, 2), (2, 3)):
        last = (shift + len(raw)) * 8 // 6
        for alphabet in (b"+/", b"-_"):
            found.add(base64.b64encode(bytes(shift) + raw, alphabet)[first:last])
    return found


@pytest.mark.slow(reason="connections fail in every way before the service is looked through")
def test_nothing_that_the_service_leaves_behind_shows_a_secret(
    broker: Mosquitto, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", secret("by-variable"))
    key = base64.b64encode(b"\xfb" + CANARY.encode().ljust(31, b"-")).decode()
    token = secret("token")
    wanted = documents(broker, certificates, tmp_path)
    settings = {"log": {"format": "json", "level": "debug"}, "secrets": {"key": key}, "api": {"token": token}}
    with FaultyService.start(tmp_path, wanted, **settings) as service:
        with contextlib.suppress(TimedOut):
            wait_until_sync(lambda: statuses(service) == EXPECTED)
        assert statuses(service) == EXPECTED
        wait_until_sync(lambda: "no use for" in service.log_file.read_text(encoding="utf-8"))
        wait_until_sync(lambda: "thread ended" in service.log_file.read_text(encoding="utf-8"))
        answers = through_the_api(service, broker, token)
        wait_until_sync(lambda: service.status("by-api").get("status") == "open")
        answers += [
            service.get(path, given)[1]
            for path in (
                "/health/ready",
                "/health/live",
                "/metrics",
                "/api/2/erasures",
                "/api/2/connections",
                "/nowhere",
            )
            for given in (token, f"{token}-wrong", None)
        ]
        assert service.process is not None
        service.process.send_signal(signal.SIGABRT)
        assert service.process.wait(PATIENCE) == -signal.SIGABRT
    logged = service.log_file.read_bytes()
    for log_text in (
        b"Fatal Python error: Aborted",
        b"bad credentials",
        b"certificate",
        b"connection file has a problem",
    ):
        assert log_text in logged
    places = {"the log": logged, **{f"answer {number}": answer for number, answer in enumerate(answers)}}
    assert b"sealed:v1:" in b"".join(file.read_bytes() for file in service.data.iterdir() if "journal" in file.name)
    places |= {str(file): file.read_bytes() for file in service.data.rglob("*") if file.is_file()}
    body = certificates.client_key_pkcs8().splitlines()[1].encode()
    for place, content in places.items():
        found = {form for text in (CANARY, key) for form in written(text) if form in content}
        assert found == set(), f"{place}: {found}"
        assert body not in content, place


def test_the_search_finds_a_canary_that_flies() -> None:
    """The test above would find a leaked secret."""
    forms = written(CANARY)
    for content in (
        f"it is {CANARY}!".encode(),
        f"tcp://u:{quote(CANARY, safe='')}@h".encode(),
        base64.b64encode(f"\0user\0{CANARY}-x".encode()),
        base64.b64encode(f"u:{CANARY}".encode()),
        json.dumps({"a": CANARY}).encode(),
    ):
        assert any(form in content for form in forms), content
