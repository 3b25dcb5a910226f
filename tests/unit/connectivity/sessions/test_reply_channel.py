"""Lines: where a session is answered, and what leaves by its line."""

from __future__ import annotations

import pytest

from connectivity.errors import PublishFailed
from connectivity.sessions.reply_channel import ReplyChannel, is_meant, resolved_reply
from connectivity.sources.delivery import read
from connectivity.targets.destination import Destination
from connectivity.targets.outbox import Outbox
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.transports.base import OutboundMessage
from mappings.errors import AddressNotAllowed
from mappings.model.envelope import Envelope
from mappings.placeholders.address import AddressPattern
from tests.support.in_process.fakes import Link
from tests.support.in_process.service import ConnectionHarness, source

pytestmark = pytest.mark.usefixtures("harnesses")


def route_to(address: str, **reply: str) -> tuple[ConnectionHarness, ReplyTargetPublisher]:
    harness = ConnectionHarness(source(replyTarget={"address": address, "headerMapping": {}, **reply}))
    return harness, harness.readers[0].route


def test_messages_leave_in_order_with_the_headers_of_both() -> None:
    harness, route = route_to("out")
    line = ReplyChannel(route, Destination("r/a", {"device": "d-1", "kind": "mapped"}), "r/a#1")
    ended: list[object] = []
    line.post([Envelope(b"1", {"kind": "own", "own": "x"})], ended.append)
    line.deliver([Envelope(b"2", {"kind": "own"})], ended.append, elements=2)
    assert [each.envelope.payload for each in harness.link.published] == [b"1", b"2"]
    first, second = harness.link.published
    assert dict(first.envelope.headers) == {"own": "x", "kind": "mapped", "device": "d-1"}
    assert dict(second.envelope.headers) == {"kind": "own"}
    assert (second.address, second.order) == ("r/a", "r/a#1")
    assert ended == [None, None]
    assert route.meter.events == 2


@pytest.mark.parametrize(("is_listener", "expected"), [(True, b"12r"), (False, b"r12")], ids=["listener", "broker"])
def test_messages_to_a_peer_of_a_listener_keep_the_order_in_which_they_were_posted(
    is_listener: bool, expected: bytes
) -> None:
    _, route = route_to("out")
    route.is_listener, route.outbox = is_listener, Outbox()
    channel = ReplyChannel(route, Destination("r/a", {}))
    channel.post([Envelope(b"1")], elements=1)
    channel.post([Envelope(b"2")])
    route.outbox.post([OutboundMessage("r/a", Envelope(b"r"))])
    link = Link()
    route.outbox.attach(link)
    assert b"".join(each.envelope.payload for each in link.published) == expected


def test_a_refusal_is_reported() -> None:
    harness, route = route_to("out")
    harness.link.refuses = PublishFailed("too large", status=413)
    ended: list[object] = []
    ReplyChannel(route, Destination("r/a", {})).deliver([Envelope(b"1")], ended.append, elements=1)
    assert ended == [harness.link.refuses]
    assert route.meter.events == 0


@pytest.mark.parametrize(
    ("target", "pattern", "address", "expected"),
    [
        ("out", None, "out", True),
        ("rsio/{{ header:reply-to }}", None, "rsio/a", True),
        ("rsio/{{ header:reply-to }}", None, "other/a", False),
        ("{{ header:reply-to }}", None, "any", True),
        ("{{ header:reply-to }}", None, "any/+", False),
        ("{{ header:reply-to }}", "rsio/*/down", "rsio/a/down", True),
        ("{{ header:reply-to }}", "rsio/*/down", "rsio/a/b/down", False),
    ],
)
def test_answers_go_to_the_configured_address(target: str, pattern: str | None, address: str, expected: bool) -> None:
    _, route = route_to(target)
    assert is_meant(address, AddressPattern(pattern) if pattern is not None else None, route) is expected


@pytest.mark.parametrize(
    ("target", "pattern", "limit"),
    [
        ("{{ header:reply-to }}", "/amq.rabbitmq.reply-to.*", None),
        ("{{ header:reply-to }}", None, "/amq.rabbitmq.reply-to.*"),
        ("{{ header:reply-to }}", None, None),
        ("/{{ header:reply-to }}", None, None),
    ],
)
def test_answers_go_to_an_address_with_any_text_in_its_key(target: str, pattern: str | None, limit: str | None) -> None:
    _, route = route_to(target, **({"addressPattern": limit} if limit is not None else {}))
    route.key_mark = "/"
    wanted = AddressPattern(pattern) if pattern is not None else None
    assert is_meant("/amq.rabbitmq.reply-to.g1+A==", wanted, route)


@pytest.mark.parametrize(
    ("pattern", "address", "expected"),
    [(None, "rsio/a/down", True), (None, "rsio/a", False), ("**", "rsio/a", False), ("rsio/b/*", "rsio/a/down", False)],
)
def test_the_pattern_of_the_reply_target_limits_sessions_too(pattern: str | None, address: str, expected: bool) -> None:
    harness, route = route_to("{{ header:reply-to }}", addressPattern="rsio/*/down")
    assert is_meant(address, AddressPattern(pattern) if pattern is not None else None, route) is expected
    (arrival,) = read(harness.readers[0], [harness.delivery(b"{}")], harness.ledger)
    with pytest.raises(AddressNotAllowed, match="'other' is not allowed"):
        resolved_reply(route, {"reply-to": "other"}, arrival)


def test_a_reply_target_without_a_value_leads_nowhere() -> None:
    harness, route = route_to("{{ header:reply-to }}")
    (arrival,) = read(harness.readers[0], [harness.delivery(b"{}")], harness.ledger)
    assert resolved_reply(route, {}, arrival) is None
    found = resolved_reply(route, {"reply-to": "a"}, arrival)
    assert found is not None
    assert found.address == "a"
