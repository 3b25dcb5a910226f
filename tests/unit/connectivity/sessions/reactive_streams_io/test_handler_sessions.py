"""Sessions of reactive-streams-io in the session handler: their owners, starts and ends.

Case numbers are those of the cases for reactive-streams-io.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from structlog.testing import capture_logs

from connectivity.authorization.revalidation import ROUND
from connectivity.errors import PublishFailed
from connectivity.sessions.reactive_streams_io import sessions
from connectivity.sources.reader import MAX_PAYLOAD
from connectivity.transports.base import ReaderStatus
from mappings.reactive_streams_io.frames import (
    CancelFrame,
    ClientHello,
    Goodbye,
    OnError,
    RequestFrame,
    Seq,
    ServerHello,
)
from spark_store.errors import StoreUnavailable
from tests.support.dice import dice
from tests.support.in_process.reactive_streams_io import (
    HELLO,
    HISTORY,
    H,
    RsioHarness,
    elements,
    goodbye,
    raw,
    source,
    subscribe,
    subscribe_synthetic,
)
from tests.support.in_process.service import pause, until
from tests.support.wait import PATIENCE

pytestmark = pytest.mark.usefixtures("harnesses")

SERVER = "02 00 03 01 02 03"
TOKEN = "5ab1e0c47f2d9913a6c8004e71b3d52f"


async def test_case_b01_hello_and_answers_come_in_order_on_the_reply_address() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("r/a", H, subscribe_synthetic("range?n=1", 1, 1))
    await rsio_harness.received("r/a", f"{SERVER} 81 01 00 82 01 01 31 86 01")
    assert await rsio_harness.settled(1)
    assert dict(rsio_harness.link.published[0].envelope.headers) == {"content-type": "application/vnd.rsio.v0"}


async def test_case_b02_two_addresses_are_two_sessions() -> None:
    rsio_harness = await RsioHarness.filled()
    for address in ("r/a", "r/b"):
        rsio_harness.send(address, H, subscribe_synthetic("range?n=1", 1, 1))
    for address in ("r/a", "r/b"):
        await rsio_harness.received(address, f"{SERVER} 81 01 00 82 01 01 31 86 01")


async def test_clients_that_share_an_address_have_sessions_by_name() -> None:
    rsio_harness = await RsioHarness.filled()
    for name in (TOKEN, TOKEN[::-1]):
        rsio_harness.send("r", H, subscribe_synthetic("range?n=1", 1, 1), rsio_session=name)
    await until(lambda: len(b"".join(rsio_harness.messages("r"))) == 2 * 15)
    found = {each.envelope.headers["rsio-session"] for each in rsio_harness.link.published}
    assert found == {TOKEN, TOKEN[::-1]}
    assert {each.order for each in rsio_harness.link.published} == {f"r#{TOKEN}", f"r#{TOKEN[::-1]}"}
    rsio_harness.send("r", H, rsio_session="none")
    assert await rsio_harness.settled(3)
    assert len(rsio_harness.messages("r")) == len(rsio_harness.link.published)


async def test_case_b03_a_message_without_a_session_is_refused() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("r/a", "12 01 01")
    assert goodbye(await rsio_harness.framed("r/a", 1)) == "protocol error: no session"
    rsio_harness.send("r/b", "03 00")
    rsio_harness.send("r/b", "b0 07 03 00")
    await rsio_harness.settled(3)
    assert rsio_harness.messages("r/b") == []


async def test_case_b04_a_message_that_ends_inside_a_frame_ends_the_session() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H, subscribe_synthetic("never"))
    rsio_harness.send("a", "12 01")
    assert goodbye(await rsio_harness.framed("a", 3)).startswith("protocol error: a message that ends inside a frame")
    await until(lambda: list(rsio_harness.streams) == [])
    rsio_harness.send("a", "12 01 01")
    assert goodbye(await rsio_harness.framed("a", 4)) == "protocol error: no session"


async def test_case_b05_a_second_hello_starts_again_without_a_goodbye() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H, subscribe_synthetic("never"))
    rsio_harness.send("a", H, subscribe_synthetic("range?n=1", 1, 1))
    await rsio_harness.received("a", f"{SERVER} 81 01 00 {SERVER} 81 01 00 82 01 01 31 86 01")
    await until(lambda: list(rsio_harness.streams) == [])


@pytest.mark.parametrize("extensions", [(), (3,)], ids=["without numbers", "B06, numbered"])
async def test_case_b06_a_redelivered_message_is_processed_once(extensions: tuple[int, ...]) -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", ClientHello(0, extensions), subscribe_synthetic("range?n=9"))
    number = raw(Seq(1)) if extensions else b""
    request = number + raw(RequestFrame(1, 1))
    for redelivered in (False, True):
        rsio_harness.handle(rsio_harness.delivery(request, "d-1", redelivered=redelivered, reply_to="a"))
    await pause()
    assert elements(await rsio_harness.framed("a", 3 + len(rsio_harness.messages("a")[1:]) * bool(extensions))) == [
        b"1"
    ]


async def test_a_hello_that_the_broker_brings_again_starts_nothing() -> None:
    rsio_harness = await RsioHarness.filled()
    hello = raw(H, subscribe_synthetic("range?n=3", 1, 1))
    rsio_harness.handle(rsio_harness.delivery(hello, "d-1", reply_to="a"))
    rsio_harness.send("a", "12 01 01")
    await until(lambda: len(elements(rsio_harness.frames("a"))) == 2)
    rsio_harness.handle(rsio_harness.delivery(hello, "d-1", redelivered=True, reply_to="a"))
    await rsio_harness.framed("a", 4)
    assert len(list(rsio_harness.streams)) == 1


async def test_cases_b07_and_b08_messages_that_are_missing_or_not_numbered_end_the_session() -> None:
    rsio_harness = await RsioHarness.filled()
    for address, second in (("a", "b0 03 12 01 01"), ("b", "12 01 01")):
        rsio_harness.send(address, "01 00 01 03", subscribe_synthetic("never"))
        rsio_harness.send(address, "b0 01 12 01 01")
        rsio_harness.send(address, second)
    await until(lambda: list(rsio_harness.streams) == [])
    await pause()
    assert goodbye(rsio_harness.frames("a")).startswith("protocol error: sequence gap")
    assert goodbye(rsio_harness.frames("b")).startswith("protocol error: a message without its sequence number")


async def test_case_b09_nothing_is_sent_where_nothing_is_meant_to_go() -> None:
    rsio_harness = await RsioHarness.filled(options={"replyAddressPattern": "rsio/*/down"})
    rsio_harness.send("elsewhere", H)
    rsio_harness.send(None, H)
    rsio_harness.send("rsio/+/down", H)
    rsio_harness.send("rsio/a/down", H)
    await rsio_harness.received("rsio/a/down", SERVER)
    assert len(rsio_harness.link.published) == 1
    assert await rsio_harness.settled(4)


@pytest.mark.parametrize("allowed", [False, True])
async def test_case_b10_where_messages_can_be_lost_there_are_no_sessions(allowed: bool) -> None:
    rsio_harness = await RsioHarness.filled(source(qos=0), options={"allowUnreliable": allowed})
    rsio_harness.send("a", H)
    (frame,) = await rsio_harness.framed("a", 1)
    assert frame == (HELLO if allowed else Goodbye("400 transport not reliable"))


async def test_case_b11_elements_available_at_the_same_time_are_sent_together() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H, subscribe_synthetic("range?n=100", 1, 100))
    await until(lambda: len(elements(rsio_harness.frames("a"))) == 100)
    assert elements(rsio_harness.frames("a")) == [str(number).encode() for number in range(1, 101)]
    assert len(rsio_harness.messages("a")) < 10
    assert rsio_harness.readers[0].route.meter.events == 100
    rsio_harness.send("b", H, subscribe_synthetic("fixed?n=20000&size=16", 1, 20_000))
    await until(lambda: rsio_harness.messages("b")[-1:] and rsio_harness.messages("b")[-1].endswith(raw("86 01")))
    assert max(map(len, rsio_harness.messages("b"))) <= 64 << 10


async def test_case_b12_a_session_that_has_fallen_silent_is_over() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", "01 00 01 02", subscribe_synthetic("never"))
    rsio_harness.send("b", H, subscribe_synthetic("never"))
    await pause()
    rsio_harness.clock.advance(91)
    rsio_harness.sweep_sessions()
    await until(lambda: len(list(rsio_harness.streams)) == 1)
    await pause()
    assert goodbye(rsio_harness.frames("a")) == "idle"
    rsio_harness.clock.advance(601)
    rsio_harness.sweep_sessions()
    await until(lambda: list(rsio_harness.streams) == [])


async def test_a_session_is_not_for_others_to_use() -> None:
    rsio_harness = await RsioHarness.filled(source("in", "acme:x"), source("in2", "acme:y"))
    rsio_harness.send("a", H, subscribe_synthetic("range?n=3"))
    await rsio_harness.received("a", f"{SERVER} 81 01 00")
    rsio_harness.send("a", "12 01 01", source=1)
    rsio_harness.send("a", H, source=1)
    await rsio_harness.received("a", f"{SERVER} 81 01 00")
    assert len(list(rsio_harness.streams)) == 1


@pytest.mark.parametrize("payload", [raw(CancelFrame(1)), raw(H), b"?"], ids=["cancel", "hello", "malformed"])
async def test_a_client_that_shares_only_some_subjects_cannot_use_a_session(payload: bytes) -> None:
    rsio_harness = await RsioHarness.filled(
        source("in", "acme:x", "acme:staff"), source("in2", "acme:y", "acme:staff"), revisions=1
    )
    rsio_harness.send("a", H, subscribe_synthetic("range?n=2", 1, 1))
    await until(lambda: len(elements(rsio_harness.frames("a"))) == 1)
    rsio_harness.send("a", payload, source=1)
    await rsio_harness.settled(2)
    rsio_harness.send("a", RequestFrame(1, 1))
    await rsio_harness.framed("a", 5)
    assert elements(rsio_harness.frames("a")) == [b"1", b"2"]


async def test_a_stream_that_cannot_be_checked_now_fails_alone() -> None:
    rsio_harness = await RsioHarness.filled(revisions=3)
    rsio_harness.disk.unreadable = True
    rsio_harness.store._cache.clear()
    rsio_harness.send("a", H, subscribe(HISTORY, 1, 1), subscribe_synthetic("range?n=1", 2, 1))
    await until(lambda: elements(rsio_harness.frames("a")) == [b"1"])
    (failed,) = [frame for frame in rsio_harness.frames("a") if isinstance(frame, OnError)]
    assert (failed.subscriber, failed.error[:3]) == (1, "500")
    assert await rsio_harness.settled(1)


@pytest.mark.parametrize("seconds", [50, 400])
async def test_a_client_is_not_considered_idle_while_the_store_is_unavailable(seconds: float) -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", "01 00 01 02", subscribe_synthetic("never"))
    await rsio_harness.framed("a", 2)
    rsio_harness.disk.full = True
    with pytest.raises(StoreUnavailable):
        await rsio_harness.store.commits.submit([])
    for _ in range(4):
        rsio_harness.clock.advance(seconds)
        rsio_harness.sweep_sessions()
    rsio_harness.disk.full = False
    await rsio_harness.store.commits.wait_available()
    rsio_harness.clock.advance(80)
    rsio_harness.sweep_sessions()
    assert len(list(rsio_harness.streams)) == 1
    rsio_harness.clock.advance(20)
    rsio_harness.sweep_sessions()
    assert goodbye(rsio_harness.frames("a")).startswith("idle")


async def test_an_idle_session_ends_even_while_the_store_cannot_be_read() -> None:
    rsio_harness = await RsioHarness.filled(revisions=3)
    rsio_harness.send("a", H, subscribe(f"{HISTORY}?follow=true", 1, 1))
    await rsio_harness.framed("a", 3)
    rsio_harness.disk.unreadable = True
    rsio_harness.store._cache.clear()
    rsio_harness.clock.advance(599)
    for _ in range(ROUND):
        rsio_harness.sweep_sessions()
    rsio_harness.clock.advance(2)
    rsio_harness.sweep_sessions()
    assert goodbye(await rsio_harness.framed("a", 4)).startswith("idle")
    await until(lambda: list(rsio_harness.streams) == [])


async def test_a_message_that_is_too_large_ends_the_session() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H, subscribe_synthetic("never"))
    rsio_harness.send("a", bytes(1 << 20) + b"1")
    assert goodbye(await rsio_harness.framed("a", 3)).startswith("413 ")
    await until(lambda: list(rsio_harness.streams) == [])


async def test_case_g01_a_goodbye_is_answered_by_one_and_ends_everything() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H, subscribe_synthetic("never"))
    rsio_harness.send("a", "03 04 64 6f 6e 65")
    assert goodbye(await rsio_harness.framed("a", 3)) == "ok"
    await until(lambda: list(rsio_harness.streams) == [])


@pytest.mark.parametrize("answer", ["03 00", "12 01 01 03 02 6f 6b", "gone", H])
async def test_case_g02_a_stopping_service_sends_a_goodbye_to_its_clients_and_waits_for_them(answer: str) -> None:
    rsio_harness = await RsioHarness.filled()
    for address in ("a", "b"):
        rsio_harness.send(address, H, subscribe_synthetic("never"))
        await rsio_harness.framed(address, 2)
    parting = asyncio.create_task(rsio_harness.handlers["reactive_streams_io"].part("site"))
    for address in ("a", "b"):
        assert goodbye(await rsio_harness.framed(address, 3)) == "shutdown"
    await until(lambda: list(rsio_harness.streams) == [])
    rsio_harness.send("a", "03 00")
    rsio_harness.send("c", H, subscribe_synthetic("never"))
    assert goodbye(await rsio_harness.framed("c", 1)) == "shutdown"
    assert not parting.done()
    if answer == "gone":
        rsio_harness.reader("b", ReaderStatus.GONE)
    else:
        rsio_harness.send("b", answer)
    await asyncio.wait_for(parting, PATIENCE)
    await rsio_harness.framed("a", 3)
    await rsio_harness.framed("b", 4 if answer == H else 3)
    await asyncio.wait_for(rsio_harness.handlers["reactive_streams_io"].part("elsewhere"), PATIENCE)


async def test_a_closed_connection_has_no_sessions() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H, subscribe_synthetic("never"))
    await rsio_harness.framed("a", 2)
    rsio_harness.close_connection()
    await until(lambda: list(rsio_harness.streams) == [])
    await rsio_harness.framed("a", 2)


async def test_a_client_that_is_gone_has_no_session_and_is_sent_nothing() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H, subscribe_synthetic("never"))
    rsio_harness.send("a", H, subscribe_synthetic("never"), rsio_session=TOKEN)
    rsio_harness.send("b", H, subscribe_synthetic("never"))
    await rsio_harness.framed("b", 2)
    published = len(rsio_harness.link.published)
    rsio_harness.reader("a", ReaderStatus.HEARD)
    rsio_harness.handlers["reactive_streams_io"].reader("elsewhere", "a", ReaderStatus.GONE)
    assert len(list(rsio_harness.streams)) == 3
    rsio_harness.reader("a", ReaderStatus.GONE)
    assert len(list(rsio_harness.streams)) == 1
    await pause()
    assert len(rsio_harness.link.published) == published
    rsio_harness.send("a", "12 01 01")
    await until(lambda: len(rsio_harness.link.published) > published)
    assert raw(Goodbye("protocol error: no session")) in rsio_harness.messages("a")[-1]
    assert repr(rsio_harness.handlers).count("1 clients") == 1


FINDS_GAPS = "01 00 02 01 03"
"""The hello of a client that numbers messages, and resumes."""


@pytest.mark.parametrize(
    ("signs", "goes_on"),
    [
        pytest.param((ReaderStatus.UNDELIVERED, ReaderStatus.UNDELIVERED), True, id="twice"),
        pytest.param(
            (ReaderStatus.UNDELIVERED, ReaderStatus.HEARD, ReaderStatus.UNDELIVERED, ReaderStatus.UNDELIVERED),
            True,
            id="received in between",
        ),
        pytest.param(
            (ReaderStatus.UNDELIVERED, ReaderStatus.UNDELIVERED, ReaderStatus.UNDELIVERED), False, id="three times"
        ),
        pytest.param((ReaderStatus.REFUSED,), False, id="refused"),
        pytest.param((ReaderStatus.GONE,), False, id="gone"),
    ],
)
async def test_a_session_waits_for_its_client_when_its_reader_is_gone(
    signs: tuple[ReaderStatus, ...], goes_on: bool
) -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", FINDS_GAPS, subscribe_synthetic("range?n=1"))
    await until(lambda: list(rsio_harness.streams) != [])
    for sign in signs:
        rsio_harness.reader("a", sign)
        rsio_harness.clock.advance(16)
    rsio_harness.send("a", Seq(1), RequestFrame(1, 1))
    if goes_on:
        await until(lambda: elements(rsio_harness.frames("a")) == [b"1"])
    else:
        await until(lambda: rsio_harness.frames("a")[-1] == Goodbye("protocol error: no session"))
        assert len(list(rsio_harness.streams)) == 1
        rsio_harness.clock.advance(61)
        rsio_harness.sweep_sessions()
        await until(lambda: list(rsio_harness.streams) == [])


@pytest.mark.parametrize("hello", [H, "01 00 01 01", "01 00 01 03"], ids=["", "resume", "sequence"])
async def test_an_undelivered_message_ends_a_session_that_cannot_detect_its_loss(hello: str) -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", hello, subscribe_synthetic("never"))
    await until(lambda: list(rsio_harness.streams) != [])
    rsio_harness.reader("a", ReaderStatus.UNDELIVERED)
    await until(lambda: isinstance(rsio_harness.frames("a")[-1], Goodbye))
    assert goodbye(rsio_harness.frames("a")).startswith("503 rsio:message.lost")
    await until(lambda: list(rsio_harness.streams) == [])
    rsio_harness.reader("a", ReaderStatus.UNDELIVERED)
    assert repr(rsio_harness.handlers).count(" 0 clients") == 1


async def test_a_client_that_is_not_read_holds_up_its_own_streams_alone() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.link.confirms = False
    rsio_harness.send(
        "a", H, subscribe_synthetic("big?bytes=16777216", 1, 1), subscribe_synthetic("range?n=1000000", 2, 1_000_000)
    )
    await until(lambda: len(rsio_harness.messages("a")) == 64)
    await pause()
    assert len(rsio_harness.messages("a")) == 64
    rsio_harness.send("b", H, subscribe_synthetic("range?n=1", 1, 1))
    await until(lambda: elements(rsio_harness.frames("b")) == [b"1"])
    (endless,) = (live for live in rsio_harness.streams if live.key != "1")
    sent = endless.sent
    for _ in range(20):
        await pause()
    assert endless.sent == sent


async def test_a_message_that_the_broker_refuses_leaves_no_silent_gap() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", H, subscribe_synthetic("range?n=3"))
    await rsio_harness.received("a", f"{SERVER} 81 01 00")
    rsio_harness.link.refuses = PublishFailed("too large", status=413)
    rsio_harness.send("a", "12 01 01")
    await until(lambda: list(rsio_harness.streams) == [])
    rsio_harness.link.refuses = None
    await until(lambda: isinstance(rsio_harness.frames("a")[-1], Goodbye))
    assert goodbye(rsio_harness.frames("a")).startswith("503 ")


# any input


@pytest.mark.parametrize("seed", range(2))
async def test_a_mutated_message_ends_at_most_its_own_session(seed: int) -> None:
    """Messages of a conversation, bytes of which were changed, left out, doubled or put in."""
    random = dice("changed messages", seed)
    rsio_harness = await RsioHarness.filled(revisions=3)
    rsio_harness.send("other", H, subscribe_synthetic("range?n=100"))
    conversation = [
        raw("01 00 03 01 02 03", subscribe_synthetic("range?n=50", 1, 3), subscribe(HISTORY, 2, 9)),
        raw(Seq(1), RequestFrame(1, 5), "a8 01 07", subscribe("things/search?unit=thing", 3, 9)),
        raw(Seq(2), "13 01", subscribe_synthetic("fixed?n=9&size=3", 1, 9), subscribe_synthetic("fail?after=2", 4, 9)),
        raw(Seq(3), RequestFrame(2, 2**62), RequestFrame(2, 2**62), "a4 02"),
        raw(Seq(4), subscribe_synthetic("big?bytes=70000", 9, 1), "03 00"),
    ]
    with capture_logs() as logs:
        for number in range(80):
            for message in conversation:
                rsio_harness.send(f"a{number % 7}", _mutated(message, random) if random.random() < 0.3 else message)
            if number % 25 == 0:
                rsio_harness.clock.advance(40)
                rsio_harness.sweep_sessions()
                await pause()
        await pause()
    assert {log["log_level"] for log in logs} <= {"info", "warning"}, [
        log for log in logs if log["log_level"] == "error"
    ]
    before = len(rsio_harness.frames("other"))
    rsio_harness.send("other", RequestFrame(1, 100))
    await until(lambda: len(elements(rsio_harness.frames("other"))) == 100)
    assert before == 2
    rsio_harness.clock.advance(1000)
    for _ in range(3):
        rsio_harness.clock.advance(100)
        rsio_harness.sweep_sessions()
    await until(lambda: list(rsio_harness.streams) == [])


def _mutated(message: bytes, random: Random) -> bytes:
    made = bytearray(message)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(made) + 1)
        match random.randrange(4):
            case 0:
                made[at : at + 1] = bytes([random.randrange(256)])
            case 1:
                del made[at : at + random.randint(1, 4)]
            case 2:
                made[at:at] = made[at : at + random.randint(1, 9)]
            case _:
                made[at:at] = random.randbytes(random.randint(1, 4))
    return bytes(made)


async def test_one_address_does_not_take_all_the_sessions_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_AT_AN_ADDRESS", 3)
    rsio_harness = await RsioHarness.filled()
    for number in range(4):
        rsio_harness.send("r", H, rsio_session=f"{number:032x}")
    *_, refused = await rsio_harness.framed("r", 4)
    assert isinstance(refused, Goodbye)
    assert refused.reason.startswith("429 rsio:sessions.limit")
    # A client with a session may start again, others start elsewhere, and a goodbye frees a session.
    rsio_harness.send("r", H, rsio_session=f"{0:032x}")
    rsio_harness.send("s", H)
    rsio_harness.send("r", "03 00", rsio_session=f"{1:032x}")
    rsio_harness.send("r", H, rsio_session=f"{5:032x}")
    assert [type(frame) for frame in (await rsio_harness.framed("r", 7))[4:]] == [ServerHello, Goodbye, ServerHello]
    assert [type(frame) for frame in await rsio_harness.framed("s", 1)] == [ServerHello]


async def test_a_message_that_is_refused_unread_ends_the_session_of_its_sender_only() -> None:
    rsio_harness = await RsioHarness.filled(source("in", "acme:all", "{{ header:device }}"))
    rsio_harness.send("r/a", H, subscribe_synthetic("never"), device="a")
    await rsio_harness.framed("r/a", 2)
    rsio_harness.send("r/a", bytes(MAX_PAYLOAD + 1), device="b")
    await rsio_harness.settled(2)
    assert len(list(rsio_harness.streams)) == 1
    rsio_harness.send("r/a", bytes(MAX_PAYLOAD + 1), device="a")
    assert goodbye(await rsio_harness.framed("r/a", 3)).startswith("413 ")
    await until(lambda: list(rsio_harness.streams) == [])
