"""The broker in memory keeps all promises of a broker, and its faults are the ones that were ordered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

import pytest

from connectivity.connections.model import Connection, Target
from connectivity.errors import ConnectionRefused, Detail, PublishFailed
from connectivity.transports import load_connection_type
from connectivity.transports.base import Link, OutboundMessage, ReaderStatus
from mappings.model.envelope import Envelope
from tests.contract.link import BrokerBehavior, LinkSetup, Publishing, examined, signs_of
from tests.support.memory_transport import IN_FLIGHT, MemoryBroker

names = count(1)


class MemoryLinkHarness:
    out = "out"
    most_unsettled = IN_FLIGHT
    is_renewed_for_redelivery = False
    absent = None
    marks_what_has_waited = False

    def __init__(self) -> None:
        name = f"harness-{next(names)}"
        self.broker = MemoryBroker.named(name)
        self.definition = Connection.model_validate(
            {
                "id": name,
                "connectionType": "memory",
                "connectionStatus": "open",
                "uri": f"memory://{name}:1",
                "sources": [{"addresses": ["in"], "authorizationContext": ["lab:all"]}],
            }
        )

    async def connect(self) -> Link:
        connect = load_connection_type("memory").connect
        return await connect(self.definition)

    async def connect_client(self, client: int, clients: int) -> Link:
        connect = load_connection_type("memory").connect
        return await connect(self.definition.model_copy(update={"client_count": clients}), client)

    async def send(self, payloads: Sequence[bytes], headers: Mapping[str, str] | None = None) -> None:
        for payload in payloads:
            self.broker.send("in", payload, headers)

    def received(self) -> list[Envelope]:
        return self.broker.sent_to("out")

    async def cut(self) -> None:
        self.broker.cut()

    async def withhold_confirms(self) -> None:
        self.broker.withheld_confirms = 1


class TestMemory(BrokerBehavior):
    @pytest.fixture
    def harness(self) -> MemoryLinkHarness:
        return MemoryLinkHarness()

    async def test_a_connection_test_reports_missing_addresses_and_continues(self, harness: LinkSetup) -> None:
        """No address is missing here; the refused one is named."""
        assert isinstance(harness, MemoryLinkHarness)
        harness.broker.refused_addresses.add("out")
        target = Target.model_validate({"address": "out", "topics": [], "authorizationContext": ["lab:all"]})
        found = await examined(harness.definition.model_copy(update={"targets": (target,)}))
        assert [each.error and each.error.detail for each in found.targets] == [Detail.NOT_AUTHORIZED]

    async def test_a_connect_raises_the_configured_refusal(self, harness: MemoryLinkHarness) -> None:
        harness.broker.refusal = ConnectionRefused(Detail.BAD_CREDENTIALS, "no")
        with pytest.raises(ConnectionRefused):
            await harness.connect()

    async def test_a_refused_message_is_a_failure_that_is_seen(self, harness: MemoryLinkHarness, link: Link) -> None:
        harness.broker.refused_addresses.add("out")
        publishing = Publishing(link)
        publishing.give(OutboundMessage("out", Envelope(b"no")))
        [error] = await publishing.all_done()
        assert isinstance(error, PublishFailed)
        assert harness.received() == []

    async def test_each_confirm_reports_whether_a_reader_received_the_message(
        self, harness: MemoryLinkHarness, link: Link
    ) -> None:
        harness.broker.unread_addresses.add("nobody")
        harness.broker.refused_addresses.add("closed")
        signs, publishing = signs_of(link), Publishing(link)
        for address in ("somebody", "nobody", "closed"):
            publishing.give(OutboundMessage(address, Envelope(b"{}")))
        assert [error is None for error in await publishing.all_done()] == [True, True, False]
        assert signs == [
            ("somebody", ReaderStatus.HEARD),
            ("nobody", ReaderStatus.UNDELIVERED),
            ("closed", ReaderStatus.REFUSED),
        ]


def test_documents_of_users_cannot_name_it() -> None:
    [problem] = load_connection_type("memory").check(MemoryLinkHarness().definition)
    assert problem.path == "connectionType"
