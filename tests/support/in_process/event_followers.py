"""A site whose commands lead to events, and another connection beside it that is sent them."""

from __future__ import annotations

from typing import Any

from connectivity.targets.event_cursor import EventCursor
from tests.support.in_process.service import ConnectionHarness, source, target, turn, until
from tests.support.in_process.two_connections import NACKS

EVENTS = "_/_/things/twin/events"
SENT, SEEN = "other:sent", "other:seen"


async def followed(*targets: dict[str, Any], **more: Any) -> tuple[ConnectionHarness, ConnectionHarness]:
    """The site, and the connection `other` with these targets; by default it has one for all events."""
    site = ConnectionHarness(source(**NACKS))
    await site.has_lamp()
    return site, await beside(site, *targets, **more)


async def beside(
    site: ConnectionHarness, *targets: dict[str, Any], id: str = "other", **more: Any
) -> ConnectionHarness:
    made = ConnectionHarness(
        source("in", declaredAcks=["{{ connection:id }}:seen"]),
        beside=site,
        id=id,
        targets=list(targets or (target(EVENTS),)),
        **more,
    )
    return await made.follow()


def cursor(site: ConnectionHarness, target: int = 0) -> EventCursor:
    found: EventCursor = site.dispatcher.event_publisher.of(site.connection.id)[target]
    return found


async def turned(site: ConnectionHarness, *values: Any, **headers: Any) -> None:
    """Write these values one after the other, and wait until they are durable."""
    before = len(site.history())
    site.deliver(*(turn(value, **headers) for value in values))
    await until(lambda: len(site.history()) == before + len(values))


def revisions(site: ConnectionHarness) -> list[int]:
    """Of the events that a connection was sent."""
    return [event["revision"] for event in events(site)]


def events(site: ConnectionHarness) -> list[dict[str, Any]]:
    """What a connection was sent that is no answer."""
    return [said for said in site.answers() if "/events/" in said["topic"]]


async def sent(site: ConnectionHarness, number: int) -> list[int]:
    """Wait for so many events; their revisions."""
    await until(lambda: len(site.link.published) >= number)
    return revisions(site)
