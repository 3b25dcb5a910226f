"""Ingest streams: commands of clients, of which more are requested once the earlier ones are durable.

Case numbers are those of the cases for reactive-streams-io. Hexadecimal digits are bytes as they travel.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.errors import PublishFailed
from mappings.ids import EntityId, EntityType
from mappings.model.signals import SessionMessage
from mappings.reactive_streams_io.endpoint import Endpoint, EndpointRole
from mappings.reactive_streams_io.events import Closed, NotResumed, SubscribeReceived
from mappings.reactive_streams_io.frames import (
    CancelFrame,
    ClientHello,
    Frame,
    Goodbye,
    OnComplete,
    OnError,
    OnNext,
    OnNextLastPart,
    OnNextPart,
    OnSubscribe,
    RequestFrame,
    Resume,
    ResumeGrant,
    ResumeOk,
    Seq,
    SubscribeFrame,
)
from tests.support.dice import THOROUGH, dice
from tests.support.in_process.reactive_streams_io import RsioHarness, raw, source, subscribe
from tests.support.in_process.service import LAMP, OWNER, command, creation, document, pause, policy, turn, until
from tests.support.wait import PATIENCE

pytestmark = pytest.mark.usefixtures("harnesses")

H = "01 00 00"
SERVER = "02 00 03 01 02 03"
WANTED = "11 10 69 6e 67 65 73 74 2f 74 65 6c 65 6d 65 74 72 79 01 80 02"
"""The subscribe of `ingest/telemetry` as number 1, with a demand of 256."""

W03 = bytes.fromhex(
    "82 01 4c 7b 22 74 6f 70 69 63 22 3a 22 61 2f 62 2f 74 68 69 6e 67 73 2f 74 77 69 6e 2f 63 6f 6d 6d 61 6e 64 73 2f 6d"
    "6f 64 69 66 79 22 2c 22 70 61 74 68 22 3a 22 2f 61 74 74 72 69 62 75 74 65 73 2f 78 22 2c 22 76 61 6c 75 65 22 3a 31"
    "7d"
)


async def taking(*sources: dict[str, Any], **more: Any) -> RsioHarness:
    """A quay with a lamp that ingests `telemetry`, and a client at `a` that has accepted."""
    options = {"ingest": ["telemetry"], **more.pop("options", {})}
    rsio_harness = await RsioHarness.filled(*sources, revisions=1, options=options, **more)
    rsio_harness.send("a", H)
    rsio_harness.send("a", OnSubscribe(1, 0))
    await rsio_harness.received("a", f"{SERVER} {WANTED}")
    assert await rsio_harness.settled(2)
    rsio_harness.forget()
    return rsio_harness


def elements(*messages: bytes, id: int = 1) -> bytes:
    """Return frames with these elements."""
    return raw(*(OnNext(id, message) for message in messages))


def turns(first: int, last: int) -> bytes:
    """Return frames that set the lamp to these numbers, one after the other."""
    return elements(*(turn(number) for number in range(first, last + 1)))


def requests(rsio_harness: RsioHarness, address: str = "a") -> list[Frame]:
    return [frame for frame in rsio_harness.frames(address) if isinstance(frame, RequestFrame)]


async def test_cases_w01_to_w04_ingested_commands_are_executed_while_the_client_reads() -> None:
    rsio_harness = await RsioHarness.filled(options={"ingest": ["telemetry"]})
    assert (await rsio_harness.dispatch(document("a/b/things/twin/commands/create", value={"_policy": policy(OWNER)})))[
        "status"
    ] == 201
    rsio_harness.forget()
    rsio_harness.send("a", H)
    await rsio_harness.received("a", f"{SERVER} {WANTED}")
    rsio_harness.send("a", "81 01 00")
    rsio_harness.send("a", "11 0d 74 63 6b 2f 72 61 6e 67 65 3f 6e 3d 31 01 01")
    await rsio_harness.received("a", f"{SERVER} {WANTED} 81 01 00 82 01 01 31 86 01")
    rsio_harness.send("a", W03)
    thing = EntityId(EntityType.THING, "a", "b")
    await until(lambda: rsio_harness.values(thing) == [1])
    assert await rsio_harness.settled(4)
    rsio_harness.send("a", elements(*[W03[3:]] * 126))
    await until(lambda: len(rsio_harness.history(thing)) == 128)
    await rsio_harness.received("a", f"{SERVER} {WANTED} 81 01 00 82 01 01 31 86 01")
    rsio_harness.send("a", W03)
    await rsio_harness.received("a", f"{SERVER} {WANTED} 81 01 00 82 01 01 31 86 01 12 01 80 01")


async def test_the_commands_of_one_message_are_carried_out_in_order_in_one_commit() -> None:
    rsio_harness = await taking()
    before = rsio_harness.disk.commits
    rsio_harness.send("a", turns(1, 256))
    await until(lambda: requests(rsio_harness))
    assert rsio_harness.values() == list(range(1, 257))
    assert rsio_harness.disk.commits == before + 1
    assert requests(rsio_harness) == [RequestFrame(1, 128), RequestFrame(1, 128)]
    assert await rsio_harness.settled(1)


async def test_nothing_more_is_wanted_and_nothing_acknowledged_before_it_is_durable() -> None:
    rsio_harness = await taking()
    rsio_harness.disk.hold()
    rsio_harness.send("a", turns(1, 128))
    await pause()
    assert (rsio_harness.frames("a"), rsio_harness.outcomes) == ([], [])
    rsio_harness.disk.release()
    assert await rsio_harness.framed("a", 1) == [RequestFrame(1, 128)]
    assert await rsio_harness.settled(1)


async def test_a_store_that_was_unavailable_stores_each_command_once_and_in_order() -> None:
    rsio_harness = await taking()
    rsio_harness.disk.full = True
    rsio_harness.send("a", turns(1, 100))
    rsio_harness.send("a", turns(101, 150))
    await until(lambda: len(rsio_harness.postponed) == 2)
    assert (rsio_harness.frames("a"), rsio_harness.outcomes) == ([], [])
    rsio_harness.disk.full = False
    await rsio_harness.store.commits.wait_available()
    rsio_harness.dispatcher.handle(rsio_harness.postponed, rsio_harness.postponed.extend)
    assert await rsio_harness.framed("a", 1) == [RequestFrame(1, 128)]
    assert rsio_harness.values() == list(range(1, 151))
    assert await rsio_harness.settled(2)


async def test_commands_whose_commit_succeeded_without_a_result_are_stored_once() -> None:
    rsio_harness = await taking()
    rsio_harness.disk.loses_answers = True
    rsio_harness.send("a", turns(1, 128))
    await until(lambda: rsio_harness.postponed)
    await rsio_harness.store.commits.wait_available()
    rsio_harness.dispatcher.handle(rsio_harness.postponed, rsio_harness.postponed.extend)
    assert await rsio_harness.framed("a", 1) == [RequestFrame(1, 128)]
    assert rsio_harness.values() == list(range(1, 129))


async def test_a_store_that_cannot_be_read_in_the_middle_of_a_message_takes_it_up_again_and_stores_each_once() -> None:
    rsio_harness = await taking()
    rsio_harness.deliver(creation("lamp-8"), source=1)
    rsio_harness.store._cache.clear()
    await until(lambda: len(rsio_harness.outcomes) == 1)
    rsio_harness.forget()
    executor: Any = rsio_harness.dispatcher._handlers[SessionMessage]
    executor = executor._executor
    execute, count = executor.execute, iter(range(1000))

    def carried_out(*about: Any) -> Any:
        if next(count) == 2:
            rsio_harness.disk.unreadable = True
            rsio_harness.store._cache.clear()
        return execute(*about)

    executor.execute = carried_out
    rsio_harness.send("a", turns(1, 5))
    await until(lambda: rsio_harness.postponed)
    await pause()
    rsio_harness.disk.unreadable = False
    rsio_harness.dispatcher.handle(rsio_harness.postponed, rsio_harness.postponed.extend)
    assert await rsio_harness.settled(1)
    assert rsio_harness.values() == [1, 2, 3, 4, 5]


async def test_commands_of_an_abandoned_delivery_are_executed_on_redelivery() -> None:
    rsio_harness = await taking()
    rsio_harness.disk.full = True
    message = turns(1, 128)
    rsio_harness.handle(rsio_harness.delivery(message, "m-1", reply_to="a"))
    await until(lambda: rsio_harness.postponed)
    rsio_harness.disk.full = False
    await rsio_harness.store.commits.wait_available()
    # Its link is lost: it is not processed, and the broker delivers it again.
    rsio_harness.handle(rsio_harness.delivery(message, "m-1", redelivered=True, reply_to="a"))
    assert await rsio_harness.framed("a", 1) == [RequestFrame(1, 128)]
    assert rsio_harness.values() == list(range(1, 129))
    assert await rsio_harness.settled(1)


async def test_a_message_redelivered_while_it_is_stored_is_executed_once_and_waits_for_the_disk() -> None:
    rsio_harness = await taking()
    rsio_harness.disk.hold()
    message = turns(1, 128)
    rsio_harness.handle(rsio_harness.delivery(message, "m-1", reply_to="a"))
    await pause()
    rsio_harness.handle(rsio_harness.delivery(message, "m-1", redelivered=True, reply_to="a"))
    await pause()
    assert rsio_harness.outcomes == []
    rsio_harness.disk.release()
    assert await rsio_harness.framed("a", 1) == [RequestFrame(1, 128)]
    assert await rsio_harness.settled(2)
    assert rsio_harness.values() == list(range(1, 129))
    rsio_harness.handle(rsio_harness.delivery(message, "m-1", redelivered=True, reply_to="a"))
    assert await rsio_harness.settled(3)
    assert rsio_harness.values() == list(range(1, 129))


async def test_a_failed_command_is_reported_to_operators_and_the_others_are_carried_out() -> None:
    rsio_harness = await taking()
    meter = rsio_harness.monitor.meter("site")
    meter.log.enable()
    rsio_harness.send(
        "a",
        elements(
            turn(1),
            b"{no json",
            b"",
            command("modify", "/attributes/on", 2, name="nobody"),
            b'{"topic":"acme.site/lamp-7/things/twin/streaming/subscribeForPersistedEvents","path":"/"}',
            command("retrieve", at_historical_revision=1),
            turn(3),
        ),
    )
    assert await rsio_harness.settled(1)
    assert rsio_harness.values() == [1, 3]
    assert (rsio_harness.count("in", "malformed"), rsio_harness.count("in", "refused")) == (4, 1)
    written = [entry["message"] for entry in meter.log.read()["connectionLogs"] if entry["level"] == "failure"]
    codes = [text.partition(": ")[0] for text in written]
    # Once as what came, once as what could be answered.
    assert Counter(codes) == {
        "json.invalid": 2,
        "connectivity:message.mapping.failed": 2,
        "things:thing.notfound": 1,
        "rsio:element.invalid": 4,
    }
    rsio_harness.send("a", turns(4, 124))
    assert await rsio_harness.framed("a", 1) == [RequestFrame(1, 128)]


async def test_an_element_in_parts_is_carried_out_with_its_last_one() -> None:
    rsio_harness = await taking()
    text = turn("x" * 100)
    rsio_harness.send("a", OnNextPart(1, 0, text[:50]))
    assert await rsio_harness.settled(1)
    assert rsio_harness.values() == []
    rsio_harness.send("a", OnNextLastPart(1, 0, text[50:]))
    await until(lambda: rsio_harness.values() == ["x" * 100])


# whose commands they are


async def test_headers_are_mapped_and_enforced_as_for_every_command_of_the_source() -> None:
    enforced = source(
        headerMapping={"site": "{{ header:site }}"},
        enforcement={"input": "{{ header:device }}", "filters": ["{{ thing:name }}"]},
    )
    rsio_harness = await taking_as("lamp-7", enforced)
    seen = []
    decide = rsio_harness.decider.decide

    def decided(found: Any, subjects: Any) -> Any:
        seen.append((dict(found.headers), subjects))
        return decide(found, subjects)

    rsio_harness.decider.decide = decided  # type: ignore[method-assign, assignment]
    message_headers: dict[str, Any] = {"device": "lamp-7", "site": "north"}
    rsio_harness.send("a", elements(turn(1), creation("lamp-8"), turn(2, site="own")), **message_headers)
    assert await rsio_harness.settled(1)
    assert rsio_harness.values() == [1, 2]
    assert (rsio_harness.count("in", "malformed"), rsio_harness.count("in", "refused")) == (0, 1)
    assert [(headers["site"], headers["ditto-originator"], subjects) for headers, subjects in seen] == [
        ("north", OWNER, (OWNER,)),
        ("own", OWNER, (OWNER,)),
    ]
    rsio_harness.send(
        "a", subscribe("things/acme.site:lamp-8/history", 5, 1), subscribe("tck/range?n=1", 6, 1), **message_headers
    )
    rsio_harness.send("a", subscribe("things/acme.site:lamp-7/history", 7, 1), **message_headers)
    await until(lambda: any(isinstance(frame, OnNext) and frame.subscriber == 7 for frame in rsio_harness.frames("a")))
    refused = [frame for frame in rsio_harness.frames("a") if isinstance(frame, OnError)]
    assert [(each.subscriber, each.error[:47]) for each in refused] == [
        (5, "400 connectivity:connection.id.enforcement.fail"),
        (6, "400 connectivity:connection.id.enforcement.fail"),
    ]


async def taking_as(device: str, enforced: dict[str, Any]) -> RsioHarness:
    rsio_harness = await RsioHarness.filled(enforced, revisions=1, options={"ingest": ["telemetry"]})
    rsio_harness.send("a", H, device=device)
    rsio_harness.send("a", OnSubscribe(1, 0), device=device)
    assert await rsio_harness.settled(2)
    rsio_harness.forget()
    return rsio_harness


async def test_a_client_without_write_permission_changes_nothing() -> None:
    rsio_harness = await taking(source("in", "acme:stranger"))
    rsio_harness.send("a", turns(1, 3))
    assert await rsio_harness.settled(1)
    assert rsio_harness.values() == []
    assert rsio_harness.count("in", "refused") == 3


async def test_a_key_that_a_client_has_chosen_holds_for_a_later_session_and_for_the_command_alone() -> None:
    rsio_harness = await taking()
    message = turn(1, idempotency_key="k-1")
    rsio_harness.send("a", elements(message))
    await until(lambda: rsio_harness.values() == [1])
    rsio_harness.send("b", H)
    rsio_harness.send("b", OnSubscribe(1, 0), elements(message, turn(2)))
    await until(lambda: rsio_harness.values() == [1, 2])
    assert rsio_harness.count("in", "answered_again") == 1
    rsio_harness.send("b", elements(command("delete", "/attributes/on", idempotency_key="k-1"), turn(3)))
    await until(lambda: rsio_harness.values() == [1, 2, 3])
    assert [event.action for event in rsio_harness.history()][-2:] == ["deleted", "created"]


# answers


@pytest.mark.parametrize(
    ("options", "places"),
    [
        pytest.param({"ingestReplyAddress": "answers"}, ["answers"] * 3, id="one place"),
        pytest.param(
            {"ingestReplyAddress": "answers/{{ thing:name }}/{{ header:device }}"},
            ["answers/lamp-7/d1", "answers/nobody/d1", "answers/lamp-7/d1"],
            id="by what they say",
        ),
        pytest.param(
            {"ingestReplyAddress": "{{ header:device }}", "replyAddressPattern": "*"},
            ["d1"] * 3,
            id="wholly by a header, as the pattern says",
        ),
        pytest.param(
            {"ingestReplyAddress": "{{ header:device }}", "replyAddressPattern": "a"},
            [],
            id="wholly by a header, unmeant",
        ),
        pytest.param({"ingestReplyAddress": "{{ header:nothing }}"}, [], id="without a value"),
        pytest.param({"ingestReplyAddress": "answers/{{ header:wild }}"}, [], id="with a wildcard"),
        pytest.param({"ingestReplyAddress": "{{ header:own }}"}, [], id="where the session's frames go"),
        pytest.param({}, [], id="nowhere"),
    ],
)
async def test_required_responses_go_to_the_configured_reply_address(
    options: dict[str, Any], places: list[str]
) -> None:
    rsio_harness = await taking(options=options)
    wanted: dict[str, Any] = {"device": "d1", "wild": "#", "own": "a", "response_required": True}
    rsio_harness.send(
        "a",
        elements(
            turn(1),
            turn(2, correlation_id="c-2", **wanted),
            turn(3, correlation_id="c-3", **{**wanted, "response_required": False}),
            command("modify", "/attributes/on", 4, name="nobody", correlation_id="c-4", **wanted),
            command("modify", "/nowhere", 5, correlation_id="c-5", **wanted),
        ),
    )
    assert await rsio_harness.settled(1)
    assert rsio_harness.values() == [1, 2, 3]
    assert [each.address for each in rsio_harness.link.published] == places
    statuses = [(answer["headers"]["correlation-id"], answer["status"]) for answer in rsio_harness.answers()]
    assert statuses == [("c-2", 204), ("c-4", 404), ("c-5", 400)][: len(places)]


async def test_ingested_commands_do_not_wait_for_requested_acknowledgements_or_devices() -> None:
    rsio_harness = await taking(options={"ingestReplyAddress": "answers"})
    wanted = {"response_required": True, "requested_acks": ["twin-persisted", "site:stored"], "timeout": "60s"}
    asked = command("retrieve", live_channel_condition="eq(attributes/on,1)", response_required=True)
    rsio_harness.send("a", elements(turn(1, **wanted), asked))
    assert await rsio_harness.settled(1)
    changed, retrieved = rsio_harness.answers()
    assert (changed["status"], changed["headers"].get("requested-acks", [])) == (201, [])
    assert (retrieved["status"], retrieved["value"]["attributes"]) == (200, {"on": 1})


async def test_a_message_is_done_when_the_broker_has_its_answers_or_has_refused_them() -> None:
    rsio_harness = await taking(options={"ingestReplyAddress": "answers"})
    rsio_harness.link.confirms = False
    rsio_harness.send("a", elements(*(turn(number, response_required=True) for number in range(128))))
    await until(lambda: len(rsio_harness.answers_of("answers")) == 100)
    assert (requests(rsio_harness), rsio_harness.outcomes) == ([], [])
    rsio_harness.link.confirms, rsio_harness.link.refuses = True, PublishFailed("no such address", status=404)
    rsio_harness.link.confirm(error=rsio_harness.link.refuses)
    await until(lambda: len(rsio_harness.outcomes) == 1)
    rsio_harness.link.refuses = None
    assert requests(rsio_harness) in ([], [RequestFrame(1, 128)])


# the streams themselves


async def test_case_w06_a_stream_that_fails_is_asked_for_again_by_another_id_after_a_while() -> None:
    rsio_harness = await taking()
    rsio_harness.send("a", "87 01 08 35 30 30 20 67 6f 6e 65")
    rsio_harness.sweep_sessions()
    await pause()
    assert rsio_harness.frames("a") == []
    rsio_harness.clock.advance(1.1)
    rsio_harness.sweep_sessions()
    await rsio_harness.received("a", "11 10 69 6e 67 65 73 74 2f 74 65 6c 65 6d 65 74 72 79 02 80 02")
    rsio_harness.send("a", OnSubscribe(2, 0), elements(turn(1), id=2))
    assert await rsio_harness.settled(2)
    assert rsio_harness.values() == [1]
    rsio_harness.send("a", OnError(2, "503 busy"))
    rsio_harness.clock.advance(1.1)
    rsio_harness.sweep_sessions()
    await until(lambda: SubscribeFrame("ingest/telemetry", 3, 256) in rsio_harness.frames("a"))


async def test_each_failure_in_a_row_makes_the_pause_longer() -> None:
    rsio_harness = await taking()
    for id, pauses in enumerate([1, 2, 4, 8], 1):
        if id > 1:
            rsio_harness.send("a", OnSubscribe(id, 0))
        rsio_harness.send("a", OnError(id, "500 gone"))
        rsio_harness.clock.advance(pauses - 0.1)
        rsio_harness.sweep_sessions()
        await rsio_harness.framed("a", id - 1)
        rsio_harness.clock.advance(0.2)
        rsio_harness.sweep_sessions()
        await rsio_harness.framed("a", id)


@pytest.mark.parametrize("end", [OnComplete(1), OnError(1, "404 rsio:publisher.notfound There is nothing.")])
async def test_a_stream_that_is_complete_or_refused_is_not_asked_for_again(end: Frame) -> None:
    rsio_harness = await taking()
    rsio_harness.send("a", end)
    rsio_harness.clock.advance(400)
    rsio_harness.sweep_sessions()
    await rsio_harness.framed("a", 0)
    rsio_harness.send("b", H)
    await rsio_harness.received("b", f"{SERVER} {WANTED}")


async def test_commands_sent_with_a_goodbye_are_executed_even_when_the_store_is_unavailable() -> None:
    rsio_harness = await taking()
    rsio_harness.disk.full = True
    rsio_harness.send("a", turns(1, 3), Goodbye("bye"))
    await until(lambda: rsio_harness.postponed)
    assert await rsio_harness.framed("a", 1) == [Goodbye("ok")]
    rsio_harness.disk.full = False
    await rsio_harness.store.commits.wait_available()
    rsio_harness.dispatcher.handle(rsio_harness.postponed, rsio_harness.postponed.extend)
    assert await rsio_harness.settled(1)
    assert rsio_harness.values() == [1, 2, 3]


async def test_when_the_service_stops_a_client_learns_of_all_that_is_done_before_the_goodbye() -> None:
    rsio_harness = await taking()
    rsio_harness.send("a", turns(1, 100))
    rsio_harness.disk.hold()
    rsio_harness.send("a", turns(101, 103))
    parting = asyncio.create_task(rsio_harness.handlers["reactive_streams_io"].part("site"))
    await pause()
    assert rsio_harness.frames("a") == []
    rsio_harness.disk.release()
    assert await rsio_harness.framed("a", 2) == [RequestFrame(1, 103), Goodbye("shutdown")]
    # Elements that arrive now are not carried out or requested again: they come again in another session.
    rsio_harness.send("a", turns(104, 105), Goodbye("ok"))
    await asyncio.wait_for(parting, PATIENCE)
    assert await rsio_harness.settled(3)
    assert rsio_harness.values() == list(range(1, 104))


async def test_excess_elements_end_the_stream_and_requested_elements_are_executed() -> None:
    rsio_harness = await taking()
    rsio_harness.disk.hold()
    rsio_harness.send("a", turns(1, 257))
    await until(lambda: CancelFrame(1) in rsio_harness.frames("a"))
    rsio_harness.disk.release()
    assert await rsio_harness.settled(1)
    assert rsio_harness.values() == list(range(1, 257))
    assert await rsio_harness.framed("a", 1) == [CancelFrame(1)]


async def test_a_session_that_continues_elsewhere_continues_ingesting_and_nothing_is_carried_out_twice() -> None:
    rsio_harness = await RsioHarness.filled(revisions=1, options={"ingest": ["telemetry"]})
    rsio_harness.send("a", "01 00 01 01")
    (token,) = [frame.token for frame in await rsio_harness.framed("a", 3) if isinstance(frame, ResumeGrant)]
    rsio_harness.disk.full = True
    rsio_harness.send("a", OnSubscribe(1, 0), turns(1, 100))
    await until(lambda: rsio_harness.postponed)
    rsio_harness.disk.full = False
    await rsio_harness.store.commits.wait_available()
    # Its transport and link are lost: requeued elements are not processed.
    rsio_harness.send("b", "01 00 01 01")
    rsio_harness.send("b", Resume(token, 1, 1))
    await until(lambda: ResumeOk(101) in rsio_harness.frames("b"))
    await until(lambda: rsio_harness.values() == list(range(1, 101)))
    rsio_harness.send("b", turns(101, 128))
    await until(lambda: RequestFrame(1, 128) in rsio_harness.frames("b"))
    assert rsio_harness.values() == list(range(1, 129))


async def test_several_names_are_streams_of_their_own() -> None:
    rsio_harness = await RsioHarness.filled(revisions=1, options={"ingest": ["a/b ä", "c"]})
    rsio_harness.send("a", H)
    assert (await rsio_harness.framed("a", 3))[1:] == [
        SubscribeFrame("ingest/a%2Fb%20%C3%A4", 1, 256),
        SubscribeFrame("ingest/c", 2, 256),
    ]
    rsio_harness.send("a", OnSubscribe(2, 0), OnSubscribe(1, 0), elements(turn(1), id=2), elements(turn(2), id=1))
    await until(lambda: rsio_harness.values() == [1, 2])
    assert json.loads(rsio_harness.history(LAMP)[-1].value or b"") == 2


@pytest.mark.parametrize("seed", range(3 if THOROUGH else 1))
async def test_mutated_bytes_of_a_client_do_not_affect_other_sessions(seed: int) -> None:
    """Bytes of frames and of the commands in them are changed, left out or put in."""
    random = dice("changed commands", seed)
    rsio_harness = await taking(options={"ingestReplyAddress": "answers"})
    sent = raw(OnSubscribe(1, 0)) + elements(
        turn(1, response_required=True), creation("lamp-8"), command("retrieve"), b"[]", turn({"a": [1, "x"]})
    )
    with capture_logs() as logs:
        for number in range(300):
            address = f"b{number}"
            rsio_harness.send(address, ClientHello(0, (1, 2, 3)[: number % 4]))
            made = bytearray(sent)
            for _ in range(random.randint(0, 4)):
                at = random.randrange(len(made) + 1)
                made[at : at + random.randrange(2)] = random.randbytes(random.randrange(3))
            message = (raw(Seq(1)) if number % 4 == 3 else b"") + made
            rsio_harness.handle(
                *(
                    rsio_harness.delivery(message, f"m{number}", redelivered=again, reply_to=address)
                    for again in (False, True)
                )
            )
        await until(lambda: len(rsio_harness.outcomes) == 900)
    assert {log["log_level"] for log in logs} <= {"info", "warning"}, [
        log for log in logs if log["log_level"] == "error"
    ]
    rsio_harness.send("a", turns(1, 128))
    await until(lambda: RequestFrame(1, 128) in rsio_harness.frames("a"))
    assert rsio_harness.values()[-128:] == list(range(1, 129))


@pytest.mark.parametrize("seed", range(4 if THOROUGH else 1))
async def test_a_session_that_is_cut_anywhere_and_resumed_carries_out_each_command_once(seed: int) -> None:
    """Messages of both directions are lost at every cut; no command has a key."""
    random, count, cuts = dice("cut ingest", seed), 900, 0
    rsio_harness = await RsioHarness.filled(revisions=1, options={"ingest": ["telemetry"]})
    address, read, sent = "c0", 0, 0
    stream: int | None = None
    endpoint = Endpoint(EndpointRole.CLIENT, rsio_harness.clock.now(), has_messages=True)
    for _ in range(2000):
        if len(rsio_harness.values()) == count:
            break
        if (
            stream is not None
            and (wanted := min(endpoint.session.capacity(stream), count - sent, random.randint(0, 20))) > 0
        ):
            endpoint.session.offer(stream, [turn(sent + 1 + each) for each in range(wanted)])
            sent += wanted
        is_cut = endpoint.ticket() is not None and random.random() < 0.2
        while raw := endpoint.take():
            if is_cut and random.random() < 0.5:
                break
            rsio_harness.send(address, raw)
        await pause(random.randint(1, 60))
        received = rsio_harness.messages(address)
        if is_cut:
            received = received[: random.randint(read, len(received))]
        for message in received[read:]:
            for event in endpoint.receive(message, rsio_harness.clock.now()):
                assert not isinstance(event, Closed | NotResumed), event
                if isinstance(event, SubscribeReceived):
                    stream = event.stream if endpoint.session.accept(event.stream) else None
        read = len(received)
        if is_cut:
            cuts += 1
            endpoint.lose(rsio_harness.clock.now())
            address, read = f"c{cuts}", 0
            endpoint = Endpoint(
                EndpointRole.CLIENT, rsio_harness.clock.now(), has_messages=True, ticket=endpoint.ticket()
            )
    assert cuts > 5
    assert rsio_harness.values() == list(range(1, count + 1))
