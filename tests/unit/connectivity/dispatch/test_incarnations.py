"""The new owner of an ID does not see its earlier history, in any protocol.

Alice's lamp has revisions 1 to 4 and is then deleted, with its policy. Bob creates both again: revision 5 and later are his.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from mappings.ids import EntityId, EntityType
from mappings.reactive_streams_io.frames import Frame, OnComplete, OnError, OnNext
from tests.support.in_process import reactive_streams_io as rsio
from tests.support.in_process import streamr
from tests.support.in_process.reactive_streams_io import H, RsioHarness
from tests.support.in_process.service import (
    LAMP,
    ConnectionHarness,
    command,
    creation,
    document,
    policy,
    source,
    streaming,
    turn,
    until,
)
from tests.support.in_process.streamr import StreamrHarness

pytestmark = pytest.mark.usefixtures("harnesses")

ALICE, BOB, BOTH = "acme:alice", "acme:bob", 2
POLICY = EntityId(EntityType.POLICY, "acme.site", "lamp-7")
DELETED = [1, 2, 3, 4]


def on_policy(action: str, path: str = "/", value: Any = ..., **headers: Any) -> bytes:
    return document(f"acme.site/lamp-7/policies/commands/{action}", path, value, **headers)


async def alices_lamp(harness: ConnectionHarness) -> None:
    """Create, change and delete Alice's lamp and its policy."""
    for payload in (creation("lamp-7", ALICE), turn(1), turn(2), command("delete"), on_policy("delete")):
        assert (await harness.ask(payload))["status"] in (201, 204), payload


async def bobs_lamp(harness: ConnectionHarness) -> None:
    """Create it again as Bob's."""
    for payload in (creation("lamp-7", BOB), turn(3)):
        assert (await harness.ask(payload, source=1))["status"] in (201, 204), payload


async def a_site(*, again: bool = True) -> ConnectionHarness:
    harness = ConnectionHarness(source("alice", ALICE), source("bob", BOB), source("both", ALICE, BOB))
    await alices_lamp(harness)
    if again:
        await bobs_lamp(harness)
    harness.forget()
    return harness


async def replay(harness: ConnectionHarness, by: int, *, on: str = "things/twin", **value: Any) -> list[int] | str:
    """The revisions that a subscription to a history replays, or the error that ends it."""
    harness.forget()
    topic = f"acme.site/lamp-7/{on}/streaming/"
    answer = await harness.ask(document(f"{topic}subscribeForPersistedEvents", value=value), source=by)
    asked = {"subscriptionId": answer["value"]["subscriptionId"], "demand": 50}
    harness.deliver(document(f"{topic}request", value=asked), source=by)
    await until(lambda: harness.answers()[-1]["topic"].rpartition("/")[2] in ("complete", "failed"))
    *messages, end = harness.answers()[1:]
    if end["topic"].endswith("failed"):
        return str(end["value"]["error"]["error"])
    return [message["value"]["item"]["revision"] for message in messages]


async def test_a_policy_of_a_deleted_things_id_does_not_open_its_history() -> None:
    harness = await a_site(again=False)
    assert (await harness.ask(on_policy("create", value={"policyId": "acme.site:lamp-7", **policy(BOB)}), source=1))[
        "status"
    ] == 201
    assert await replay(harness, 1) == "things:thing.notfound"
    assert await replay(harness, 0) == DELETED
    assert await replay(harness, 1, on="policies") == [3]
    assert await replay(harness, 0, on="policies") == [1, 2]


async def test_a_thing_that_is_created_again_begins_with_its_creation() -> None:
    harness = await a_site()
    assert await replay(harness, 1) == [5, 6]
    assert await replay(harness, 1, fromHistoricalRevision=1) == [5, 6]
    assert await replay(harness, 1, fromHistoricalRevision=2, toHistoricalRevision=3) == []
    assert await replay(harness, 1, toHistoricalTimestamp="2029-01-01T00:00:00Z") == []
    assert await replay(harness, 1, fromHistoricalRevision=-4) == [5, 6]


async def test_earlier_owners_keep_their_part_of_the_history() -> None:
    harness = await a_site()
    assert await replay(harness, 0) == DELETED
    assert await replay(harness, 0, fromHistoricalRevision=-2) == [3, 4]
    assert await replay(harness, 0, fromHistoricalRevision=5) == []
    assert await replay(harness, BOTH) == [1, 2, 3, 4, 5, 6]
    assert await replay(harness, BOTH, toHistoricalRevision=4) == DELETED


async def test_a_retrieve_of_the_past_ends_at_the_creation() -> None:
    harness = await a_site()
    never = await harness.ask(command("retrieve", at_historical_revision=0), source=1)
    for revision in (2, 4):
        answer = await harness.ask(command("retrieve", at_historical_revision=revision), source=1)
        assert answer["status"] == never["status"] == 404
        expected = never["value"]["message"].replace("revision '0'", f"revision '{revision}'")
        assert answer["value"] == {**never["value"], "message": expected}
    answer = await harness.ask(command("retrieve", at_historical_revision=5), source=1)
    assert (answer["status"], "attributes" in answer["value"]) == (200, False)
    answer = await harness.ask(command("retrieve", at_historical_revision=2), source=BOTH)
    assert answer["value"]["attributes"] == {"on": 1}
    answer = await harness.ask(command("retrieve", at_historical_revision=2), source=0)
    assert (answer["status"], answer["value"]["error"]) == (404, "things:thing.notfound")
    answer = await harness.ask(on_policy("retrieve", at_historical_revision=1), source=1)
    assert (answer["status"], answer["value"]["error"]) == (404, "policies:policy.history.notfound")


async def test_a_deletion_hides_a_history_before_it_is_durable() -> None:
    harness = ConnectionHarness(source("alice", ALICE), source("bob", BOB))
    assert (await harness.ask(creation("lamp-7", ALICE)))["status"] == 201
    harness.disk.hold()
    harness.deliver(command("delete"), on_policy("delete"))
    harness.deliver(creation("lamp-7", BOB), streaming("subscribeForPersistedEvents", {}), source=1)
    harness.disk.release()
    await until(lambda: len(harness.answers()) == 5)
    (key,) = [answer["value"]["subscriptionId"] for answer in harness.answers() if answer["topic"].endswith("/created")]
    harness.deliver(streaming("request", {"subscriptionId": key, "demand": 9}), source=1)
    await until(lambda: harness.answers()[-1]["topic"].endswith("complete"))
    assert [answer["value"]["item"]["revision"] for answer in harness.answers()[5:-1]] == [3]


# reactive-streams-io


async def rsio_site() -> RsioHarness:
    sources = (rsio.source("alice", ALICE), rsio.source("bob", BOB), source("a", ALICE), source("b", BOB))
    harness = RsioHarness(*sources)
    for payload in (creation("lamp-7", ALICE), turn(1), turn(2), command("delete"), on_policy("delete")):
        harness.deliver(payload, source=2)
    for payload in (creation("lamp-7", BOB), turn(3)):
        harness.deliver(payload, source=3)
    await until(lambda: len(harness.link.published) == 7)
    assert {answer["status"] for answer in harness.answers()} == {201, 204}
    harness.forget()
    return harness


async def read(harness: RsioHarness, by: int, publisher: str) -> list[Frame]:
    """Subscribe in a new session; return the received frames until the end of the stream."""
    address = f"{publisher}-{by}"
    harness.send(address, H, rsio.subscribe(publisher, 1, 100), source=by)
    await until(lambda: isinstance(harness.frames(address)[-1], OnComplete | OnError))
    return harness.frames(address)[2:]


def read_revisions(frames: list[Frame]) -> list[int]:
    return [json.loads(frame.element)["revision"] for frame in frames if isinstance(frame, OnNext)]


async def test_publishers_of_a_history_begin_with_the_creation() -> None:
    harness = await rsio_site()
    history = f"things/{LAMP}/history"
    assert read_revisions(await read(harness, 1, history)) == [5, 6]
    assert read_revisions(await read(harness, 0, history)) == DELETED
    (gone,) = await read(harness, 1, f"{history}?from=2")
    assert isinstance(gone, OnError)
    assert (
        gone.error
        == f"410 rsio:history.gone The request starts at 2, but the retained history of '{LAMP}' starts at 5."
    )
    (unknown,) = await read(harness, 0, f"things/{LAMP}/history?follow=true")
    assert isinstance(unknown, OnError)
    assert "things:thing.notfound" in unknown.error


async def test_a_policy_change_does_not_end_a_stream_of_the_past() -> None:
    """Bob's policy does not decide about Alice's events, and each stream is checked about once a minute."""
    harness = await rsio_site()
    history = f"things/{LAMP}/history"
    harness.send("slow", H, rsio.subscribe(history, 1, 1), rsio.subscribe(history, 2, 1), source=0)
    await until(lambda: len(read_revisions(harness.frames("slow"))) == 2)
    changed = on_policy("modify", "/entries/OWNER/subjects/acme:carol", {"type": "test"})
    harness.deliver(changed, source=3)
    await until(lambda: harness.answers_of("out") != [])
    assert not any(isinstance(frame, OnError) for frame in harness.frames("slow"))


# Streamr


async def test_a_resend_begins_with_the_creation_which_has_no_predecessor() -> None:
    sources = (streamr.source("alice", ALICE), streamr.source("bob", BOB), source("a", ALICE), source("b", BOB))
    harness = StreamrHarness(*sources)
    for payload in (creation("lamp-7", ALICE), turn(1), turn(2), command("delete"), on_policy("delete")):
        harness.deliver(payload, source=2)
    for payload in (creation("lamp-7", BOB), turn(3)):
        harness.deliver(payload, source=3)
    await until(lambda: len(harness.link.published) == 7)
    harness.forget()
    stream = f"things/{LAMP}"

    async def resent(by: int, number: int, **options: Any) -> list[tuple[int, int | None]]:
        asked = streamr.resend(stream=stream, key=None, **options)
        frames = await harness.exchange(f"{by}-{options}", asked, number + 2 if number else 1, source=by)
        return [(frame[3][5], frame[3][6]) for frame in frames if frame[1] == 1]

    assert await resent(1, 2, resend_all=True) == [(5, None), (6, 5)]
    assert await resent(1, 2, resend_last=9) == [(5, None), (6, 5)]
    assert await resent(1, 0, resend_from=2, resend_to=4) == []
    assert await resent(0, 2, resend_last=2) == [(3, 2), (4, 3)]
    assert await resent(0, 0, resend_from=5) == []
