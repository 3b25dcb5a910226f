"""Connection tests with a fake broker, whose findings are preset. Others use real brokers.

Case numbers are those of the cases for connections.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from connectivity.connections.model import Connection
from connectivity.errors import (
    ClientCertificateRequired,
    ConnectionRefused,
    Detail,
    LinkError,
    NotConnected,
    OperationRefused,
)
from connectivity.management import connection_test
from connectivity.management.connection_test import run_connection_test
from connectivity.management.definition import SampleMessage
from connectivity.transports import ConnectionType, load_connection_type
from connectivity.transports.base import AddressCheck, ProbeReport
from connectivity.validation.validator import parse
from tests.support.in_process.service import command
from tests.support.wait import wait_until

SOURCE = {"addresses": ["site/up"], "qos": 1, "authorizationContext": ["acme:x"]}
TARGET = {"address": "out", "topics": ["_/_/things/twin/events"], "qos": 1, "authorizationContext": ["acme:x"]}
DOCUMENT: dict[str, Any] = {
    "id": "site",
    "connectionType": "mqtt-5",
    "connectionStatus": "closed",
    "uri": "tcp://127.0.0.1:1883",
    "sources": [SOURCE],
    "targets": [TARGET],
}


class Broker:
    """A fake broker with preset findings, which records the connections it was asked about."""

    def __init__(self) -> None:
        self.messages: ProbeReport | Exception = ProbeReport(
            [[AddressCheck("site/up")]],
            [AddressCheck("{{ header:reply-to }}", note="later", is_known=False)],
            [AddressCheck("out")],
        )
        self.requests: list[tuple[Connection, str]] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.is_left = False

    async def examine(self, connection: Connection, name: str) -> ProbeReport:
        self.requests.append((connection, name))
        try:
            await self.answers.wait()
        finally:
            self.is_left = True
        if isinstance(self.messages, Exception):
            raise self.messages
        return self.messages

    def load(self, name: str) -> ConnectionType:
        return replace(load_connection_type(name), examine=self.examine)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    monkeypatch.setattr(connection_test, "load_connection_type", made.load)
    return made


async def report_of(document: Any = DOCUMENT, sample: SampleMessage | None = None, **more: Any) -> dict[str, Any]:
    return await run_connection_test(parse(document), sample, **more)


async def refusal(document: Any, sample: SampleMessage | None = None, **more: Any) -> OperationRefused:
    with pytest.raises(OperationRefused) as refused:
        await report_of(document, sample, **more)
    return refused.value


async def test_the_report_shows_the_status_of_each_address(broker: Broker) -> None:
    report = await report_of()
    assert report == {
        "connection": "open",
        "clients": [{"status": "open", "details": "connected"}],
        "sources": [{"index": 0, "address": "site/up", "status": "open", "details": "connected"}],
        "replyTargets": [
            {"index": 0, "address": "{{ header:reply-to }}", "status": "unknown", "details": "later"},
        ],
        "targets": [{"index": 0, "address": "out", "status": "open", "details": "connected"}],
        "withoutEffect": [],
    }
    assert json.loads(json.dumps(report)) == report


async def test_7_1_the_connection_test_has_a_name_of_its_own_each_time(broker: Broker) -> None:
    """The connection's own ID is used only if its broker and its templates require it."""
    await report_of()
    await report_of()
    (known, first), (again, second) = broker.requests
    assert (known.id, again.id) == ("site", "site")
    assert first != second
    assert all(name.endswith("-dry-run") and len(name) == 44 for name in (first, second))


@pytest.mark.parametrize(
    ("error", "status", "code", "status_text"),
    [
        (NotConnected(Detail.REFUSED, "nobody"), 504, "connectivity:connection.failed", "misconfigured"),
        (NotConnected(Detail.UNKNOWN_HOST, "nowhere"), 504, "connectivity:connection.failed", "misconfigured"),
        (NotConnected(Detail.TIMEOUT, "silence"), 504, "connectivity:connection.failed", "failed"),
        (ConnectionRefused(Detail.BAD_CREDENTIALS, "no"), 504, "connectivity:connection.failed", "misconfigured"),
        (ConnectionRefused(Detail.CERTIFICATE, "expired"), 504, "connectivity:connection.failed", "misconfigured"),
        (
            ClientCertificateRequired(Detail.CERTIFICATE, "yours"),
            503,
            "connectivity:connection.unavailable",
            "misconfigured",
        ),
        (RuntimeError("oh"), 504, "connectivity:connection.failed", "failed"),
    ],
    ids=str,
)
async def test_case_48_a_broker_that_does_not_let_us_in(
    broker: Broker, error: Exception, status: int, code: str, status_text: str
) -> None:
    broker.messages = error
    refused = await refusal(DOCUMENT)
    assert (refused.fault.status, refused.fault.error) == (status, code)
    assert refused.report is not None
    details = str(error) if isinstance(error, LinkError) else "connecting: failed: RuntimeError"
    assert refused.report["clients"] == [{"status": status_text, "details": details}]
    assert refused.report["connection"] == status_text
    assert details in refused.fault.message
    assert refused.report["sources"] == []


async def test_7_6_a_silent_broker_has_ten_seconds(broker: Broker) -> None:
    broker.answers.clear()
    refused = await refusal(DOCUMENT, patience=0.05)
    assert (refused.fault.status, refused.fault.error) == (504, "connectivity:connection.failed")
    assert refused.fault.message == "Failed to open requested connection within <0.05> seconds!"
    assert connection_test.PATIENCE == 10
    assert refused.report is not None
    assert refused.report["clients"][0]["details"].startswith("timeout: ")
    assert broker.is_left


@pytest.mark.parametrize("words", ["no queue 'site/up'", "There is no queue 'site/up'."])
async def test_the_message_about_a_broker_ends_with_one_full_stop(broker: Broker, words: str) -> None:
    broker.messages = ConnectionRefused(Detail.MISSING_ADDRESS, words)
    message = (await refusal(DOCUMENT)).fault.message
    assert (message.endswith("'site/up'."), message.endswith("..")) == (True, False)


async def test_7_8_a_missing_source_queue_fails_the_connection_test(broker: Broker) -> None:
    missing = ConnectionRefused(Detail.MISSING_ADDRESS, "no queue 'site/up'")
    broker.messages = ProbeReport([[AddressCheck("site/up", missing)]], [], [AddressCheck("out")])
    refused = await refusal(DOCUMENT)
    assert (refused.fault.status, refused.fault.error) == (504, "connectivity:connection.failed")
    assert "missing address: no queue" in refused.fault.message
    assert refused.report is not None
    assert [(each["status"], each["details"]) for each in refused.report["sources"]] == [
        ("misconfigured", "missing address: no queue 'site/up'")
    ]
    assert [each["status"] for each in refused.report["targets"]] == ["open"]


async def test_7_8_a_missing_target_exchange_is_reported_and_does_not_fail_the_connection_test(broker: Broker) -> None:
    missing = ConnectionRefused(Detail.MISSING_ADDRESS, "no exchange 'out'")
    broker.messages = ProbeReport([[AddressCheck("site/up")]], [], [AddressCheck("out", missing)])
    report = await report_of()
    assert report["connection"] == "open"
    assert [(each["status"], each["details"]) for each in report["targets"]] == [
        ("misconfigured", "missing address: no exchange 'out'")
    ]


async def test_an_unsupported_feature_is_refused_without_contacting_the_broker(broker: Broker) -> None:
    tunnel = {
        "enabled": True,
        "credentials": {"type": "plain", "username": "tunnel", "password": "x"},
        "validateHost": False,
        "uri": "ssh://bastion.acme.example:22",
    }
    refused = await refusal({**DOCUMENT, "sshTunnel": tunnel})
    assert (refused.fault.status, "sshTunnel" in refused.fault.message) == (504, True)
    assert broker.requests == []


async def test_the_report_lists_settings_without_effect_and_deviations_from_the_document(broker: Broker) -> None:
    broker.messages = ProbeReport(
        [[AddressCheck("site/up")]], [AddressCheck("a")], [AddressCheck("out")], note="no shared subscriptions"
    )
    document = {
        **DOCUMENT,
        "uri": "ssl://broker.acme.example:8883",
        "validateCertificates": False,
        "sources": [{**SOURCE, "replyTarget": {"enabled": False, "address": "a"}}],
        "targets": [{**TARGET, "topics": ["_/_/things/twin/events?namespace=acme"]}],
    }
    report = await report_of(document)
    assert (
        report["clients"][0]["details"] == "connected: the broker's certificate is not checked; no shared subscriptions"
    )
    assert report["replyTargets"] == []
    assert "namespace is unknown" in report["withoutEffect"][0]


async def test_a_sample_is_mapped_whether_the_broker_answers_or_not(broker: Broker) -> None:
    sample = SampleMessage(command("delete"))
    report = await report_of(DOCUMENT, sample)
    assert report["sample"]["signals"][0]["topic"] == "acme.site/lamp-7/things/twin/commands/delete"
    broker.messages = NotConnected(Detail.REFUSED, "nobody")
    refused = await refusal(DOCUMENT, sample)
    assert refused.report is not None
    assert refused.report["sample"]["signals"][0]["path"] == "/"


@pytest.mark.parametrize("give_up", [asyncio.Task.cancel, None], ids=["cancelled", "sample refused"])
async def test_an_abandoned_connection_test_disconnects_from_the_broker(
    broker: Broker, give_up: Callable[..., Any] | None
) -> None:
    broker.answers.clear()
    sample = None if give_up else SampleMessage(b"", source=7)
    trying = asyncio.create_task(report_of(DOCUMENT, sample))
    if give_up:
        await wait_until(lambda: broker.requests)
        give_up(trying)
    with pytest.raises((asyncio.CancelledError, OperationRefused)):
        await trying
    assert broker.is_left or not broker.requests


@pytest.mark.parametrize("kind", ["mqtt", "mqtt-5", "amqp-091", "kafka"])
async def test_7_6_a_silent_server_ends_the_connection_test_with_a_timeout(kind: str) -> None:
    """The response depends on the files of the brokers only."""
    links: set[asyncio.StreamWriter] = set()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        links.add(writer)
        while await reader.read(1000):
            pass
        links.discard(writer)
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    amqp = kind == "amqp-091"
    document = {
        **DOCUMENT,
        "connectionType": kind,
        "uri": f"{'amqp' if amqp else 'tcp'}://127.0.0.1:{port}",
        "specificConfig": {"bootstrapServers": f"127.0.0.1:{port}"} if kind == "kafka" else {},
        "sources": [{**SOURCE, "addresses": ["asked"]}],
        "targets": [],
    }
    refused = await refusal(document, patience=0.5)
    assert refused.fault.message == "Failed to open requested connection within <0.5> seconds!"
    if kind == "kafka":
        # Its handshake blocks a thread that checks the time every ten seconds, so the server disconnects.
        for link in links:
            link.close()
    await wait_until(lambda: not links)
    server.close()
    await server.wait_closed()
