"""One target on its way through all events. Case numbers are those of the cases for twins."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from connectivity.errors import ConnectivityError, Detail, NotConnected, PublishFailed, RetriesExhausted
from connectivity.targets import event_cursor as module
from connectivity.targets.publisher import is_final
from tests.support.in_process.event_followers import (
    EVENTS,
    add_follower,
    cursor,
    revisions,
    sent,
    site_and_follower,
    write_values,
)
from tests.support.in_process.service import command, creation, pause, target, until

pytestmark = pytest.mark.usefixtures("harnesses")

BUSY, TOO_LARGE = PublishFailed("busy"), PublishFailed("too large", status=413)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHORTEST_PAUSE", 0.001)


async def test_cases_114_and_115_a_target_gets_all_events_in_order_except_those_of_its_own_connection() -> None:
    harness, other = await site_and_follower()
    own = await add_follower(other, id="third")
    await write_values(harness, *range(20))
    assert await sent(other, 20) == await sent(own, 20) == list(range(2, 22))
    other.deliver(command("modify", "/attributes/on", True))
    assert await sent(own, 21) == list(range(2, 23))
    await pause()
    assert len(revisions(other)) == 20
    assert cursor(other).seq == cursor(own).seq == harness.store.tail.newest


async def test_an_event_of_which_the_filter_compares_very_much_is_skipped_and_logged() -> None:
    comparisons = ",".join(f"eq(attributes/on,'x{number}')" for number in range(3))
    harness, other = await site_and_follower(target(f"{EVENTS}?filter=not(or({comparisons}))"))
    with capture_logs() as lines:
        await write_values(harness, [1] * 45_000, [1])
        assert await sent(other, 1) == [3]
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == ["event skipped"]
    assert (cursor(other).skipped, other.count("out", "failed")) == (1, 1)


async def test_case_116_an_event_carries_the_headers_of_its_command() -> None:
    harness, other = await site_and_follower()
    await write_values(harness, True, correlation_id="c-7", my_own="x", condition="exists(thingId)")
    await sent(other, 1)
    (event,) = other.answers()
    assert (event["topic"], event["path"]) == ("acme.site/lamp-7/things/twin/events/created", "/attributes/on")
    assert event["headers"].items() >= {"correlation-id": "c-7", "my-own": "x", "response-required": False}.items()
    assert not {"condition", "etag"} & set(event["headers"])


async def test_a_blocked_target_delays_no_other_target_and_gets_all_events_later() -> None:
    """Its own window is all that waits in memory."""
    harness, other = await site_and_follower()
    other.link.confirms = False
    other.link.window = 10
    await write_values(harness, *range(module.WINDOW + 50))
    await until(lambda: len(harness.link.published) == module.WINDOW + 50)
    await until(lambda: len(other.outbox) == module.WINDOW)
    assert cursor(other).judged - cursor(other).seq == module.WINDOW
    assert "targets[0]" not in generate_latest(other.monitor.registry).decode()
    other.link.confirms = True
    other.link.confirm()
    assert await sent(other, module.WINDOW + 50) == list(range(2, module.WINDOW + 52))


async def test_the_waiting_events_of_a_target_are_limited_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event of any size goes through."""
    monkeypatch.setattr(module, "WINDOW_BYTES", 100)
    harness, other = await site_and_follower()
    other.link.confirms = False
    await write_values(harness, "x" * 60, "y" * 60, "z" * 200, 4)
    await sent(other, 2)
    await pause()
    assert len(other.link.published) == 2
    for number in (3, 3, 4):
        other.link.confirm(1)
        await sent(other, number)
        await pause()
        assert len(other.link.published) == number
    other.link.confirm()
    assert cursor(other).seq == harness.store.tail.newest


async def test_nothing_is_posted_while_the_broker_is_down_and_everything_afterwards() -> None:
    harness, other = await site_and_follower()
    other.outbox.detach()
    await write_values(harness, 1, 2, 3)
    await pause()
    assert len(other.outbox) == 0
    other.outbox.attach(other.link)
    harness.event_publisher.wake()
    assert await sent(other, 3) == [2, 3, 4]


async def test_the_policy_at_the_time_of_sending_applies() -> None:
    harness, other = await site_and_follower()
    other.outbox.detach()
    await write_values(harness, 1)
    entry = {
        "subjects": {"acme:somebody": {"type": "t"}},
        "resources": {"policy:/": {"grant": ["READ", "WRITE"], "revoke": []}},
    }
    policy = {"entries": {"ELSE": entry}}
    harness.deliver(
        command("modify", value=policy).replace(b"/things/twin/", b"/policies/").replace(b'"path": ""', b'"path": "/"')
    )
    await until(lambda: len(harness.link.published) == 2)
    assert harness.answers()[1]["status"] == 204, harness.answers()[1]
    other.outbox.attach(other.link)
    harness.event_publisher.wake()
    await until(lambda: cursor(other).seq == harness.store.tail.newest)
    assert other.link.published == []


async def test_an_event_that_the_broker_rejects_permanently_is_skipped_and_counted() -> None:
    harness, other = await site_and_follower()
    other.link.confirms = False
    await write_values(harness, 1, 2, 3)
    await sent(other, 3)
    with capture_logs() as lines:
        other.link.confirm(1, TOO_LARGE)
        other.link.confirm()
    assert [line["event"] for line in lines][-1:] == ["event skipped"]
    assert (cursor(other).skipped, cursor(other).seq) == (1, harness.store.tail.newest)


@pytest.mark.usefixtures("hasty")
async def test_events_after_a_temporary_rejection_are_sent_again_one_by_one() -> None:
    """So the last event that a reader receives is the newest."""
    harness, other = await site_and_follower()
    other.link.confirms = False
    await write_values(harness, 1, 2, 3)
    await sent(other, 3)
    other.link.confirm(1)
    other.link.confirm(1, BUSY)
    assert cursor(other).seq == 2 + 1
    await pause()
    assert revisions(other) == [2, 3, 4], "what is on its way ends first"
    other.link.confirm(1)
    assert cursor(other).reason == "busy"
    assert await sent(other, 4) == [2, 3, 4, 3]
    await pause()
    assert len(other.link.published) == 4, "one by one"
    other.link.confirm(1, BUSY)
    assert await sent(other, 5) == [2, 3, 4, 3, 3]
    other.link.confirm()
    assert await sent(other, 6) == [2, 3, 4, 3, 3, 4]
    other.link.confirms = True
    other.link.confirm()
    await write_values(harness, 4)
    assert await sent(other, 7) == [2, 3, 4, 3, 3, 4, 5]
    assert cursor(other).reason is None
    assert cursor(other).seq == harness.store.tail.newest


async def test_an_event_without_an_address_is_passed() -> None:
    harness, other = await site_and_follower(target(EVENTS, address="{{ header:device }}"))
    await write_values(harness, 1)
    await write_values(harness, 2, device="d-1")
    assert await sent(other, 1) == [3]
    await until(lambda: cursor(other).seq == harness.store.tail.newest)


@pytest.mark.parametrize(
    ("error", "is_never"),
    [
        (TOO_LARGE, True),
        (PublishFailed("mistake", status=500), True),
        (RetriesExhausted("links die"), True),
        (BUSY, False),
        (PublishFailed("quota", status=429), False),
        (PublishFailed("late", status=408), False),
        (NotConnected(Detail.TIMEOUT), False),
    ],
)
def test_only_permanent_errors_prevent_a_retry(error: ConnectivityError, is_never: bool) -> None:
    assert is_final(error) is is_never


async def test_a_closed_cursor_reports_nothing() -> None:
    harness, other = await site_and_follower()
    other.link.confirms = False
    await write_values(harness, 1)
    await sent(other, 1)
    received: list[Any] = []
    one = cursor(other)
    one.listen(one.judged, received.append)
    other.close_connection()
    other.link.confirm()
    assert (received, one.seq) == ([], one.judged - 1)


async def test_a_new_link_does_not_get_a_refused_event_before_the_retry_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a broker that disconnects because of it would receive nothing else."""
    pauses = [0.0, 3600.0]
    monkeypatch.setattr(module, "back_off", lambda *_, **__: pauses.pop(0))
    harness, other = await site_and_follower()
    other.link.confirms = False
    await write_values(harness, 1)
    await sent(other, 1)
    other.link.confirm(1, BUSY)
    other.outbox.detach()
    await until(lambda: cursor(other).reason is None)
    assert len(pauses) == 1, "the first pause is over, while there is no link"
    other.outbox.attach(other.link)
    harness.event_publisher.linked("other")
    await pause()
    assert (len(other.link.published), cursor(other).reason) == (1, "busy")
    assert pauses == []


@pytest.mark.usefixtures("hasty")
async def test_an_event_refused_during_the_publish_call_is_retried_and_not_skipped() -> None:
    harness, other = await site_and_follower()
    other.link.refuses = BUSY
    harness.deliver(creation("lamp-8"), creation("lamp-9"))
    await until(lambda: harness.store.tail.newest == 6)
    await until(lambda: len(other.link.published) >= 2)
    other.link.refuses = None
    await until(lambda: cursor(other).seq == 6)
    names = [event["topic"].split("/")[1] for event in other.answers()]
    assert list(dict.fromkeys(names)) == ["lamp-8", "lamp-9"]
    assert names[-2:] == ["lamp-8", "lamp-9"]


async def test_an_event_that_fails_while_it_is_posted_is_missed_and_holds_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness, other = await site_and_follower()
    route = cursor(other).route
    post = route.post

    def posted(signal: Any, *more: Any) -> Any:
        if signal.value == b"1":
            raise ValueError("a mistake")
        return post(signal, *more)

    monkeypatch.setattr(route, "post", posted)
    with capture_logs():
        await write_values(harness, 1, 2)
        await sent(other, 1)
    await until(lambda: cursor(other).seq == harness.store.tail.newest)
    assert (cursor(other).skipped, cursor(other).has_unconfirmed) == (1, False)
