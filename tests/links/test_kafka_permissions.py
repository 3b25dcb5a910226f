"""Connection tests of a Kafka cluster with restricted permissions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from connectivity.connections.model import Connection
from connectivity.errors import Detail
from connectivity.transports.base import AddressCheck
from tests.contract.link import examined
from tests.support.brokers.kafka import Kafka

pytestmark = pytest.mark.broker("kafka")

ANYBODY = "User:*"


class Rights:
    """Permissions at a broker, as long as this exists. A resource with rules is closed to all others."""

    def __init__(self, kafka: Kafka) -> None:
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        self._given: list[tuple[Any, str]] = []

    def give(self, kind: Any, name: str, *operations: Any) -> None:
        literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        rules = [AclBinding(kind, name, literal, ANYBODY, "*", each, allow) for each in operations]
        for done in self._admin.create_acls(rules).values():
            done.result(30)
        self._given.append((kind, name))

    def take_back(self) -> None:
        literal, any_type = ResourcePatternType.LITERAL, AclPermissionType.ANY
        filters = [
            AclBindingFilter(kind, name, literal, None, None, AclOperation.ANY, any_type)  # type: ignore[arg-type]
            for kind, name in self._given
        ]
        self._given.clear()
        for done in self._admin.delete_acls(filters).values() if filters else ():
            done.result(30)


@pytest.fixture
async def rights(kafka: Kafka) -> AsyncIterator[Rights]:
    made = Rights(kafka)
    yield made
    made.take_back()


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = uuid4().hex
    kafka.create(name)
    return name


def connection(kafka: Kafka, topic: str) -> Connection:
    uri = kafka.uri("ada")
    return Connection.model_validate(
        {
            "id": f"lab-{topic}",
            "connectionType": "kafka",
            "connectionStatus": "open",
            "uri": uri,
            "specificConfig": {"bootstrapServers": uri.rpartition("@")[2]},
            "sources": [{"addresses": [topic], "qos": 1, "authorizationContext": ["lab:all"]}],
            "targets": [
                {"address": address, "topics": [], "authorizationContext": ["lab:all"]}
                for address in (topic, f"{topic}/key", f"{topic}#0", "{{ thing:name }}/key", "gone/{{ thing:id }}")
            ],
        }
    )


def detail_and_text(finding: AddressCheck) -> tuple[str, str] | None:
    return None if finding.error is None else (finding.error.detail.value, finding.error.text)


async def test_with_all_permissions_a_connection_test_reports_only_missing_topics(kafka: Kafka, topic: str) -> None:
    found = await examined(connection(kafka, topic))
    assert [detail_and_text(each) for each in found.sources[0]] == [None]
    by_topic, by_key, by_partition, filled_later, gone = found.targets
    assert [detail_and_text(each) for each in (by_topic, by_key, by_partition, filled_later)] == [None] * 4
    assert [each.is_known for each in found.targets] == [True, True, True, False, True]
    assert gone.error is not None
    assert gone.error.detail is Detail.MISSING_ADDRESS
    # Looking for it has not made it.
    assert (await examined(connection(kafka, topic))).targets[-1].error is not None


async def test_a_topic_that_may_only_be_written_to_or_only_be_read(kafka: Kafka, topic: str, rights: Rights) -> None:
    rights.give(ResourceType.TOPIC, topic, AclOperation.WRITE)
    found = await examined(connection(kafka, topic))
    assert detail_and_text(found.sources[0][0]) == ("not authorized", f"{topic}: no permission to read")
    assert detail_and_text(found.targets[0]) is None
    rights.take_back()
    rights.give(ResourceType.TOPIC, topic, AclOperation.READ)
    found = await examined(connection(kafka, topic))
    assert detail_and_text(found.sources[0][0]) is None
    assert detail_and_text(found.targets[0]) == ("not authorized", f"{topic}: no permission to write")


async def test_a_group_that_may_not_be_joined(kafka: Kafka, topic: str, rights: Rights) -> None:
    group = connection(kafka, topic).id
    rights.give(ResourceType.GROUP, group, AclOperation.DESCRIBE)
    [[source]] = (await examined(connection(kafka, topic))).sources
    assert detail_and_text(source) == ("not authorized", f"the group {group}: no permission to read")


async def test_a_topic_that_may_not_even_be_seen(kafka: Kafka, topic: str, rights: Rights) -> None:
    rights.give(ResourceType.TOPIC, topic, AclOperation.ALTER_CONFIGS)
    [[source]] = (await examined(connection(kafka, topic))).sources
    assert source.error is not None
    assert source.error.detail is Detail.NOT_AUTHORIZED
    assert topic in source.error.text
