"""Checks the addresses of a Kafka connection without reading or writing records.

Connecting, login and the producer are those of a link; then topics and their permitted operations are described, which
creates none. No group is joined, since that would take partitions from its members, and no offset is committed.
Describing the group shows whether it may be joined.
"""

from __future__ import annotations

import asyncio

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

from connectivity.connections.model import Connection
from connectivity.connections.templates import has_expression
from connectivity.errors import ConnectionRefused, Detail, LinkError, NotConnected
from connectivity.transports.base import RESOLVED_PER_MESSAGE, AddressCheck, ProbeReport
from connectivity.transports.kafka.client_config import consumer_group
from connectivity.transports.kafka.connector import PATIENCE, answer_of, connect
from connectivity.transports.kafka.link import KafkaLink
from connectivity.transports.kafka.options import Options
from connectivity.transports.kafka.records import split_address

PERMISSIONS_UNKNOWN = "it exists; the cluster does not report the permitted operations"
_VERBS = {AclOperation.READ: "read", AclOperation.WRITE: "write"}


async def examine(connection: Connection, name: str) -> ProbeReport:
    """Check the addresses of a connection (see `connectivity.transports.base.Probe`)."""
    # Without sources a link joins no group.
    link = await connect(connection.model_copy(update={"id": name, "sources": ()}))
    try:
        look = _AddressProbe(link)
        group = await look.check_group(connection) if connection.sources else None
        return ProbeReport(
            [[await look.check_source(topic, group) for topic in source.addresses] for source in connection.sources],
            [await look.check_publish(source.reply_target.address) for source in connection.sources],
            [await look.check_publish(target.address) for target in connection.targets],
        )
    finally:
        await link.close()


class _AddressProbe:
    """Describes topics, each once."""

    def __init__(self, link: KafkaLink) -> None:
        self._link = link
        self._known: dict[str, frozenset[AclOperation] | LinkError | None] = {}

    async def check_group(self, connection: Connection) -> LinkError | None:
        """Return why the group may not be joined, or None if permitted or unknown."""
        group = consumer_group(connection, Options.model_validate(connection.own_options))
        admin = self._link.admin
        asked = admin.describe_consumer_groups([group], include_authorized_operations=True, request_timeout=PATIENCE)
        try:
            described = await answer_of(self._link, asyncio.wrap_future(asked[group]), PATIENCE, f"group {group}")
        except ConnectionRefused as error:
            return error
        except NotConnected:
            # A cluster that has never had a group has no coordinator yet.
            return None
        return _permission_error(described.authorized_operations, AclOperation.READ, f"the group {group}")

    async def check_source(self, topic: str, group: LinkError | None) -> AddressCheck:
        return await self._check_topic(topic, topic, AclOperation.READ) if group is None else AddressCheck(topic, group)

    async def check_publish(self, address: str) -> AddressCheck:
        topic = split_address(address).topic
        if has_expression(topic):
            return AddressCheck(address, note=RESOLVED_PER_MESSAGE, is_known=False)
        return await self._check_topic(address, topic, AclOperation.WRITE)

    async def _check_topic(self, address: str, topic: str, operation: AclOperation) -> AddressCheck:
        if topic not in self._known:
            self._known[topic] = await self._describe(topic)
        found = self._known[topic]
        if isinstance(found, LinkError):
            return AddressCheck(address, found)
        return AddressCheck(
            address, _permission_error(found, operation, topic), PERMISSIONS_UNKNOWN if found is None else ""
        )

    async def _describe(self, topic: str) -> frozenset[AclOperation] | LinkError | None:
        """Return the permitted operations on a topic (None: unknown), or an error."""
        asked = self._link.admin.describe_topics(
            TopicCollection([topic]), include_authorized_operations=True, request_timeout=PATIENCE
        )
        try:
            described = await answer_of(self._link, asyncio.wrap_future(asked[topic]), PATIENCE, topic)
        except ConnectionRefused as error:
            return error
        operations = described.authorized_operations
        return None if operations is None else frozenset(operations)


def _permission_error(operations: object, operation: AclOperation, subject: str) -> LinkError | None:
    """Return the error if the operation is not permitted, else None; `operations` is None if unknown."""
    if not isinstance(operations, list | frozenset) or operation in operations or AclOperation.ALL in operations:
        return None
    return ConnectionRefused(Detail.NOT_AUTHORIZED, f"{subject}: no permission to {_VERBS[operation]}")
