"""Which Kafka clusters can be reached: logins, TLS, hosts and several brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from connectivity.connections.model import Connection
from connectivity.errors import ConnectionRefused, Detail, LinkError
from connectivity.security.egress import EgressRules, enforce
from connectivity.transports.base import OutboundMessage
from connectivity.transports.kafka.connector import connect
from mappings.model.envelope import Envelope
from tests.contract.link import DeliveryCollector, Publishing
from tests.support.brokers import free_port
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Certificates


@pytest.mark.broker("kafka")
class TestReaching:
    """Connecting a link, and the faults that prevent it."""

    @staticmethod
    def document(kafka: Kafka, uri: str, topic: str, **more: Any) -> dict[str, Any]:
        options = more.pop("specificConfig", {})
        return {
            "id": f"lab-{uuid4().hex}",
            "connectionType": "kafka",
            "connectionStatus": "open",
            "uri": uri,
            "specificConfig": {"bootstrapServers": uri.rpartition("@")[2].rpartition("/")[2], **options},
            "sources": [{"addresses": [topic], "qos": 1, "authorizationContext": ["lab:all"]}],
            **more,
        }

    @pytest.fixture(scope="class")
    @classmethod
    def topic(cls, kafka: Kafka) -> str:
        name = uuid4().hex
        kafka.create(name)
        return name

    @staticmethod
    async def passes(document: dict[str, Any], topic: str) -> None:
        """A message goes round: out through the link and in again."""
        link = await connect(Connection.model_validate(document))
        taker, publishing = DeliveryCollector(link), Publishing(link)
        publishing.give(OutboundMessage(topic, Envelope(b"round")))
        assert await publishing.all_done() == [None]
        assert await taker.payloads(1) == [b"round"]
        await link.close()

    @staticmethod
    async def refused(document: dict[str, Any]) -> LinkError:
        with pytest.raises(LinkError) as caught:
            await connect(Connection.model_validate(document))
        return caught.value

    @pytest.mark.parametrize("mechanism", ["plain", "SCRAM-SHA-256", "SCRAM-SHA-512"])
    async def test_2_5_users_log_in(self, kafka: Kafka, topic: str, mechanism: str) -> None:
        options = {"saslMechanism": mechanism}
        await self.passes(self.document(kafka, kafka.uri("ada"), topic, specificConfig=options), topic)

    @pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
    async def test_a_wrong_password_is_refused(self, kafka: Kafka, topic: str, mechanism: str) -> None:
        options = {"saslMechanism": mechanism}
        error = await self.refused(self.document(kafka, kafka.uri("ada", "wrong"), topic, specificConfig=options))
        assert isinstance(error, ConnectionRefused)
        assert error.detail is Detail.BAD_CREDENTIALS
        assert "wrong" not in str(error)

    async def test_tls_trusts_the_ca_of_the_connection_document(self, kafka: Kafka, topic: str) -> None:
        ca = kafka.certificates.ca.read_text()
        await self.passes(self.document(kafka, kafka.uri(tls=True), topic, ca=ca), topic)
        await self.passes(self.document(kafka, kafka.uri("ada", tls=True), topic, ca=ca), topic)

    async def test_an_untrusted_certificate_is_refused_unless_validation_is_off(self, kafka: Kafka, topic: str) -> None:
        error = await self.refused(self.document(kafka, kafka.uri(tls=True), topic))
        assert isinstance(error, ConnectionRefused)
        assert error.detail is Detail.CERTIFICATE
        await self.passes(self.document(kafka, kafka.uri(tls=True), topic, validateCertificates=False), topic)

    @pytest.mark.soak(shard="brokers")
    async def test_8_24_a_ca_leaves_the_host_name_check_on(self, topic: str, tmp_path: Path) -> None:
        certificates = Certificates.make(tmp_path, "elsewhere.test")
        with Kafka.start(tls=certificates) as other:
            other.create(topic)
            document = self.document(other, other.uri(tls=True), topic, ca=certificates.ca.read_text())
            assert (await self.refused(document)).detail is Detail.CERTIFICATE
            await self.passes({**document, "validateCertificates": False}, topic)

    async def test_a_port_without_a_listener_refuses_the_connection_immediately(self, kafka: Kafka, topic: str) -> None:
        begun = asyncio.get_running_loop().time()
        error = await self.refused(self.document(kafka, f"tcp://127.0.0.1:{free_port()}", topic))
        assert (error.retry, error.detail) == (True, Detail.REFUSED)
        assert asyncio.get_running_loop().time() - begun < 20

    async def test_a_name_that_leads_nowhere_is_an_unknown_host(self, kafka: Kafka, topic: str) -> None:
        error = await self.refused(self.document(kafka, "tcp://broker.invalid:9092", topic))
        assert (error.retry, error.detail) == (True, Detail.UNKNOWN_HOST)

    async def test_a_broker_that_names_a_refused_address_as_its_own_is_not_followed(
        self, kafka: Kafka, topic: str
    ) -> None:
        """The first connection goes to an allowed name; the advertised names are checked like the document."""
        document = self.document(kafka, f"tcp://localhost:{kafka.bootstrap.rpartition(':')[2]}", topic)
        with enforce(EgressRules(blocked=["127.0.0.0/8", "::1"], allowed=["localhost"])):
            error = await self.refused(document)
        assert (type(error), error.detail) == (ConnectionRefused, Detail.NOT_AUTHORIZED)
        assert error.text.startswith("127.0.0.1: found a host that matches 127.0.0.0/8 in hosts.blocked")

    async def test_one_of_several_brokers_is_enough(self, kafka: Kafka, topic: str) -> None:
        options = {"bootstrapServers": f"127.0.0.1:{free_port()},{kafka.bootstrap}"}
        document = self.document(kafka, "tcp://broker.invalid:9092", topic, specificConfig=options)
        await self.passes(document, topic)
