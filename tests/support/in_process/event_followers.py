"""A connection that sends commands, and another one with a target for their events."""

from __future__ import annotations

from typing import Any

from connectivity.targets.event_cursor import EventCursor
from tests.support.in_process.service import ConnectionHarness, source, target, turn, until
from tests.support.in_process.two_connections import NACKS

EVENTS = "_/_/things/twin/events"
SENT, SEEN = "other:sent", "other:seen"


async def site_and_follower(*targets: dict[str, Any], **more: Any) -> tuple[ConnectionHarness, ConnectionHarness]:
    """Return the site, and the connection `other` with these targets, by default one for all events."""
    harness = ConnectionHarness(source(**NACKS))
    await harness.has_lamp()
    return harness, await add_follower(harness, *targets, **more)


async def add_follower(
    harness: ConnectionHarness, *targets: dict[str, Any], id: str = "other", **more: Any
) -> ConnectionHarness:
    made = ConnectionHarness(
        source("in", declaredAcks=["{{ connection:id }}:seen"]),
        beside=harness,
        id=id,
        targets=list(targets or (target(EVENTS),)),
        **more,
    )
    return await made.follow()


def cursor(harness: ConnectionHarness, target: int = 0) -> EventCursor:
    found: EventCursor = harness.event_publisher.of(harness.connection.id)[target]
    return found


async def write_values(harness: ConnectionHarness, *values: Any, **headers: Any) -> None:
    """Write these values one after the other, and wait until they are durable."""
    before = len(harness.history())
    harness.deliver(*(turn(value, **headers) for value in values))
    await until(lambda: len(harness.history()) == before + len(values))


def revisions(harness: ConnectionHarness) -> list[int]:
    """Return the revisions of the events that were sent to a connection."""
    return [event["revision"] for event in events(harness)]


def events(harness: ConnectionHarness) -> list[dict[str, Any]]:
    """Return the messages to a connection, without responses."""
    return [message for message in harness.answers() if "/events/" in message["topic"]]


async def sent(harness: ConnectionHarness, number: int) -> list[int]:
    """Wait for `number` events and return their revisions."""
    await until(lambda: len(harness.link.published) >= number)
    return revisions(harness)
