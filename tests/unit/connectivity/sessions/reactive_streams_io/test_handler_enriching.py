"""Live events with fields of their thing beside them, as targets are sent them."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from connectivity.sessions.reactive_streams_io.publishers import enriched_encoder
from connectivity.subscriptions.limits import SubscriptionLimits
from connectivity.subscriptions.read_ahead import MOST
from mappings.model.signals import Event
from mappings.reactive_streams_io.frames import OnError, OnNext
from tests.support.in_process.reactive_streams_io import HISTORY, H, RsioHarness, source, subscribe
from tests.support.in_process.service import LAMP, NOW, OWNER, command, document, pause, turn, until

pytestmark = pytest.mark.usefixtures("harnesses")

EVENTS = f"things/{LAMP}/events"
READER = "acme:reader"


async def following(publisher: str, *sources: dict[str, Any]) -> RsioHarness:
    """A quay with a lamp in hall N, and a client that follows it."""
    rsio_harness = await RsioHarness.filled(*sources, revisions=1)
    await rsio_harness.dispatch(command("modify", "/attributes", {"hall": "N", "serial": 7}))
    rsio_harness.forget()
    rsio_harness.send("a", H, subscribe(publisher, 1, 100))
    await rsio_harness.framed("a", 2)
    return rsio_harness


async def elements(rsio_harness: RsioHarness, number: int) -> list[dict[str, Any]]:
    """Return exactly `number` received elements."""
    frames = await rsio_harness.framed("a", 2 + number)
    return [json.loads(frame.element) for frame in frames if isinstance(frame, OnNext)]


async def test_the_fields_that_were_asked_for_stand_beside_the_event_as_they_are_after_it() -> None:
    rsio_harness = await following(f"{EVENTS}?extra-fields=attributes(hall,serial,nothing),_policy/policyId")
    await rsio_harness.dispatch(turn(4))
    await pause()
    await rsio_harness.dispatch(command("modify", "/attributes/serial", 8))
    found = await elements(rsio_harness, 2)
    assert list(found[0]) == ["topic", "path", "value", "extra", "revision", "timestamp"]
    extra = {"attributes": {"hall": "N", "serial": 7}, "_policy": {"policyId": "acme.site:lamp-7"}}
    assert (found[0]["value"], found[0]["extra"]) == (4, extra)
    assert found[1]["extra"]["attributes"] == {"hall": "N", "serial": 8}


async def test_extra_fields_can_depend_on_the_content_of_the_event() -> None:
    rsio_harness = await following(f"{EVENTS}?extra-fields={quote('features/{{ feature:id }}/properties/unit')}")
    features = {name: {"properties": {"unit": name * 2, "n": 1}} for name in "ab"}
    await rsio_harness.dispatch(command("modify", "/features", features))
    await rsio_harness.dispatch(command("modify", "/features/b/properties/n", 2))
    await rsio_harness.dispatch(turn(1))
    _, one, none = await elements(rsio_harness, 3)
    assert one["extra"] == {"features": {"b": {"properties": {"unit": "bb"}}}}
    assert "extra" not in none


async def test_a_filter_sees_the_fields_too() -> None:
    text = quote("and(eq(attributes/hall,'S'),gt(attributes/on,3))", safe="(),/")
    rsio_harness = await following(f"{EVENTS}?extra-fields=attributes/hall&filter={text}")
    await rsio_harness.dispatch(turn(4))
    # The fields are those of now when the event is sent.
    await pause()
    await rsio_harness.dispatch(command("modify", "/attributes/hall", "S"))
    await rsio_harness.dispatch(turn(3))
    await rsio_harness.dispatch(turn(5))
    (found,) = await elements(rsio_harness, 1)
    assert (found["value"], found["extra"]) == (5, {"attributes": {"hall": "S"}})


async def test_extra_fields_without_read_permission_are_left_out() -> None:
    rsio_harness = await following(f"{EVENTS}?extra-fields=attributes/hall,_policy", source())
    entry = {"subjects": {READER: {"type": "test"}}, "resources": {"thing:/": {"grant": ["READ"], "revoke": []}}}
    changed = await rsio_harness.dispatch(
        document("acme.site/lamp-7/policies/commands/modify", "/entries/reader", entry)
    )
    assert changed["status"] == 201
    rsio_harness = await following_beside(rsio_harness)
    await rsio_harness.dispatch(turn(9))
    found = await elements(rsio_harness, 1)
    assert found[0]["extra"] == {"attributes": {"hall": "N"}}


async def following_beside(rsio_harness: RsioHarness) -> RsioHarness:
    """Subscribe by another connection, whose subject cannot read the policy."""
    other = RsioHarness(source("in", READER), beside=rsio_harness, id="other")
    other.send("a", H, subscribe(f"{EVENTS}?extra-fields=attributes/hall,_policy", 1, 100))
    await other.framed("a", 2)
    return other


async def test_the_end_of_a_thing_has_no_fields() -> None:
    rsio_harness = await following(f"{EVENTS}?extra-fields=attributes")
    await rsio_harness.dispatch(command("delete"))
    await pause()
    last = rsio_harness.frames("a")[2]
    assert isinstance(last, OnNext)
    assert json.loads(last.element)["topic"].endswith("/deleted")
    assert "extra" not in json.loads(last.element)


async def test_events_with_large_fields_are_read_within_the_budget_of_the_session() -> None:
    """However small the events are."""
    count = 300
    rsio_harness = await RsioHarness.filled(revisions=1)
    await rsio_harness.dispatch(command("modify", "/attributes", {"hall": "x" * 60_000}))
    rsio_harness.forget()
    rsio_harness.send("a", H, subscribe(f"{EVENTS}?extra-fields=attributes/hall", 1, 1000))
    await rsio_harness.framed("a", 2)
    rsio_harness.link.confirms = False
    rsio_harness.deliver(*(turn(number) for number in range(count)), source=len(rsio_harness.readers) - 1)
    budget = rsio_harness.streams.budgets[rsio_harness.connection.id]
    await until(lambda: budget.used_bytes)
    await pause(1000)
    assert budget.used_bytes <= MOST + SubscriptionLimits().page_bytes
    rsio_harness.link.confirms = True
    rsio_harness.link.confirm()
    await until(lambda: not budget.used_bytes)
    assert [element["value"] for element in await elements(rsio_harness, count)] == list(range(count))


async def test_a_followed_history_has_them_where_it_is_live_and_fields_may_select_them() -> None:
    rsio_harness = await RsioHarness.filled(revisions=1)
    await rsio_harness.dispatch(command("modify", "/attributes", {"hall": "N", "on": 0}))
    rsio_harness.forget()
    name = f"{HISTORY}?from=2&follow=true&extra-fields=attributes/hall&fields=value,extra/attributes/hall"
    rsio_harness.send("a", H, subscribe(name, 1, 100))
    await rsio_harness.framed("a", 3)
    await rsio_harness.dispatch(turn(1))
    assert await elements(rsio_harness, 2) == [
        {"value": {"hall": "N", "on": 0}},
        {"value": 1, "extra": {"attributes": {"hall": "N"}}},
    ]


@pytest.mark.parametrize(
    ("publisher", "message"),
    [
        (f"{EVENTS}?extra-fields=height", "found 'height' at the start of a path in extra-fields"),
        (f"{EVENTS}?extra-fields=attributes(", "found '(', expected ')' after it"),
        (f"{EVENTS}?extra-fields=", "found the end"),
        (f"{EVENTS}?extra-fields={quote('features/{{ nose:id }}')}", "nose:id"),
        (f"{EVENTS}?extra-fields=attributes&project=/attributes/on&pack=i32", "expected only one"),
        (f"{EVENTS}?extra-fields=attributes&filter=eq(", "422"),
        (f"{HISTORY}?extra-fields=attributes", "found extra-fields without follow"),
        (f"policies/{LAMP}/history?extra-fields=attributes", "unknown parameter"),
    ],
)
async def test_fields_that_cannot_be_had_are_refused(publisher: str, message: str) -> None:
    rsio_harness = await RsioHarness.filled(revisions=1)
    rsio_harness.send("a", H, subscribe(publisher, 1, 1))
    *_, error = await rsio_harness.framed("a", 3)
    assert isinstance(error, OnError)
    assert error.error.startswith("422 " if message == "422" else "400 rsio:publisher.invalid ")
    assert message.casefold() in error.error.casefold()


async def test_an_event_is_left_out_when_the_state_after_it_is_not_available() -> None:
    rsio_harness = await RsioHarness.filled(revisions=2)
    write = enriched_encoder(LAMP, "attributes", None, (OWNER,), rsio_harness.decider.world, lambda: NOW)
    event = Event(LAMP, 2, "2030-01-15T07:30:00.000000Z", "modified", "/attributes/on", b"2", b"{}")
    assert json.loads(write(event) or b"")["extra"] == {"attributes": {"on": 2}}
    assert write(event._replace(revision=3)) is None
