"""reactive-streams-io through a TCP listener: hellos, frames, streams and goodbyes over real sockets.

Case numbers are those of the cases for reactive-streams-io. Hexadecimal digits are bytes on the wire. Each input is sent in
one piece and one byte at a time, with the same output.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import trustme

from mappings.reactive_streams_io.frames import (
    OnComplete,
    OnNextPacked,
    OnSubscribe,
    Ping,
    Resume,
    ResumeFail,
    ResumeGrant,
    ResumeOk,
    ServerHello,
    SubscribeFrame,
)
from tests.support.brokers import free_port
from tests.support.in_process.reactive_streams_io import H
from tests.support.in_process.tcp_service import SERVER_HELLO, Caller, TcpService, open_tcp_service
from tests.support.in_process.websocket_listener import own, trusting
from tests.support.wait import PATIENCE, wait_until

RANGE = "11 0d 74 63 6b 2f 72 61 6e 67 65 3f 6e 3d"
"""A subscribe to tck/range; the last digit of its name, an id and a demand follow."""
NEVER = "11 09 74 63 6b 2f 6e 65 76 65 72"
MOST = "ff ff ff ff ff ff ff ff 7f"


class Case(NamedTuple):
    """The messages of a client, and exactly the bytes that it then receives.

    They end with the answer to a mark or with a goodbye. `hello` is sent before and answered by the server's; None:
    nothing was sent.
    """

    messages: str
    received: str = ""
    goodbye: str | None = None
    hello: str | None = H


CASES = {
    "h01": Case(H, SERVER_HELLO, hello=None),
    "h03": Case("01 00 02 03 a8 46", SERVER_HELLO, hello=None),
    "h03 only what is known": Case("a8 00", goodbye="protocol error", hello="01 00 02 03 a8 46"),
    "h04": Case("01 00 02 03 03", SERVER_HELLO, hello=None),
    "h04 once is enough": Case("a8 00", goodbye="protocol error", hello="01 00 02 03 03"),
    "h05": Case("01 01 00", SERVER_HELLO, "unsupported version 1", hello=None),
    "h07 and h08": Case(f"{H} {RANGE} 31 01 01", f"{SERVER_HELLO} 81 01 00 82 01 01 31 86 01", hello=None),
    "h09": Case("12 05 0a", SERVER_HELLO, "protocol error", hello=None),
    "h10": Case(H, goodbye="protocol error"),
    "h11": Case("02 00 00", SERVER_HELLO, "protocol error", hello=None),
    "h12": Case("01 00 41" + " 09" * 65, SERVER_HELLO, "protocol error", hello=None),
    "h12 before the ids are read": Case("01 00 41", SERVER_HELLO, "protocol error", hello=None),
    "v01": Case(f"{NEVER} ac 02 00 12 ac 02 80 01", "81 ac 02 00"),
    "v02": Case("12 05 8a 00", goodbye="protocol error"),
    "v03": Case("12 05 80 80 80 80 80 80 80 80 80 01", goodbye="protocol error"),
    "v04": Case(f"{RANGE} 32 01 {MOST}", "81 01 00 82 01 01 31 82 01 01 32 86 01"),
    "v05": Case("13 80 80 80 80 10", goodbye="protocol error"),
    "v07": Case("55", goodbye="protocol error"),
    "v08": Case("00", goodbye="protocol error"),
    "v09": Case("a8 00", goodbye="protocol error"),
    "v10": Case("7b 22 74 79 70 65 22", goodbye="protocol error"),
    "v11": Case("11 ff ff ff ff 07", goodbye="protocol error"),
    "v12": Case("11 02 c3 28 01 00", goodbye="protocol error"),
    "v13": Case(f"{NEVER} 01 00 12 01 01 13 01", "81 01 00"),
    "d01": Case(f"{RANGE} 33 01 02", "81 01 00 82 01 01 31 82 01 01 32"),
    "d02": Case(f"{RANGE} 33 01 02 12 01 05", "81 01 00 82 01 01 31 82 01 01 32 82 01 01 33 86 01"),
    "d03": Case(f"{RANGE} 33 01 00", "81 01 00"),
    "d04": Case(f"{RANGE} 33 01 00 12 01 01 12 01 01", "81 01 00 82 01 01 31 82 01 01 32"),
    "d05": Case(f"{RANGE} 30 01 00", "81 01 00 86 01"),
    "d11": Case(f"{RANGE} 33 01 00 13 01 12 01 03", "81 01 00"),
    "d12": Case("13 09 12 09 01"),
    "d13": Case(f"{RANGE} 33 01 00 {RANGE} 33 01 00", "81 01 00"),
    "d16": Case(f"{RANGE} 33 01 00 12 01 {MOST} 12 01 {MOST}", "81 01 00 82 01 01 31 82 01 01 32 82 01 01 33 86 01"),
    "i02": Case(f"{NEVER} 01 00 13 01 {RANGE} 31 01 01", "81 01 00 81 01 00 82 01 01 31 86 01"),
    "g06": Case("03 02 c3 28", goodbye="protocol error"),
    "k01": Case("a8 02 ab cd", "a9 02 ab cd", hello="01 00 01 02"),
    "k02": Case("a8 41" + " 07" * 65, goodbye="protocol error", hello="01 00 01 02"),
}


@pytest.fixture
async def there() -> AsyncIterator[TcpService]:
    async with open_tcp_service() as made:
        yield made


async def began(there: TcpService, case: Case, **options: Any) -> Caller:
    return await (there.caller(**options) if case.hello is None else there.greeted(case.hello, **options))


async def ends_as_specified(caller: Caller, case: Case) -> None:
    await caller.expect(case.received)
    if case.goodbye is None:
        await caller.receives_nothing_more()
    else:
        await caller.goodbye(case.goodbye)


@pytest.mark.parametrize("number", CASES)
async def test_cases_h_v_d_i_g_and_k_are_answered_as_specified(there: TcpService, number: str) -> None:
    """In one piece, and one byte at a time."""
    case = CASES[number]
    whole, slow = await began(there, case), await began(there, case)
    whole.send(case.messages)
    await ends_as_specified(whole, case)
    await slow.send_slowly(case.messages)
    await ends_as_specified(slow, case)


async def test_the_same_cases_are_answered_as_specified_over_tls() -> None:
    authority = trustme.CA()
    secret: dict[str, Any] = {
        "uri": f"ssl://localhost:{free_port()}",
        "credentials": own(authority.issue_cert("localhost")),
    }
    context = trusting(authority)
    context.set_alpn_protocols(["rsio/0"])
    async with open_tcp_service(**secret) as there:
        for case in CASES.values():
            caller = await began(there, case, ssl=context, server_hostname="localhost")
            caller.send(case.messages)
            await ends_as_specified(caller, case)
            await caller.leave()
        await there.keeps_only(0)


async def test_case_d14_another_subscribe_with_an_id_in_use_is_the_end(there: TcpService) -> None:
    caller = await there.greeted()
    caller.send(f"{RANGE} 33 01 00")
    await caller.expect("81 01 00")
    caller.send(f"{RANGE} 34 01 00")
    await caller.goodbye("protocol error")


async def test_case_i01_the_complete_exchange_of_the_specification_and_the_same_id_again(there: TcpService) -> None:
    caller = await there.caller()
    caller.send(H, f"{RANGE} 33 01 02")
    await caller.expect(f"{SERVER_HELLO} 81 01 00 82 01 01 31 82 01 01 32")
    caller.send("12 01 05")
    await caller.expect("82 01 01 33 86 01")
    caller.send(f"{RANGE} 31 01 01")
    await caller.expect("81 01 00 82 01 01 31 86 01")
    caller.send("03 00")
    assert await caller.goodbye() == "ok"
    await wait_until(lambda: list(there.rsio_harness.streams) == [])


async def test_case_h02_the_service_sends_first_and_does_not_wait_forever(there: TcpService) -> None:
    silent = await there.caller()
    await silent.expect(SERVER_HELLO)
    there.pass_time(9)
    await there.greeted()
    there.pass_time(2)
    await silent.goodbye("protocol error: no hello in time")


async def test_case_v06_a_frame_that_its_connection_cuts_never_was(there: TcpService) -> None:
    caller = await there.greeted()
    caller.send(f"{RANGE} 33 01 00 12 01")
    await caller.expect("81 01 00")
    await caller.leave()
    await there.keeps_only(0)
    await wait_until(lambda: list(there.rsio_harness.streams) == [])


async def test_case_g01_a_goodbye_is_answered_once_and_ends_all_streams(there: TcpService) -> None:
    caller = await there.greeted()
    caller.send(f"{RANGE} 33 01 00")
    await caller.expect("81 01 00")
    caller.send("03 04 64 6f 6e 65")
    await caller.goodbye("ok")
    await wait_until(lambda: list(there.rsio_harness.streams) == [])
    await there.keeps_only(0)
    await wait_until(lambda: list(there.rsio_harness.streams) == [])


async def test_case_g03_goodbyes_that_cross_answer_each_other(there: TcpService) -> None:
    caller = await there.greeted()
    there.clients[0].part("ok")
    caller.send("03 00")
    assert await caller.goodbye() == "ok"


async def test_case_g04_frames_after_a_goodbye_are_ignored(there: TcpService) -> None:
    caller = await there.greeted()
    caller.send(f"03 01 78 {NEVER} 01 00")
    assert await caller.goodbye() == "ok"
    await wait_until(lambda: list(there.rsio_harness.streams) == [])


async def test_case_g05_after_the_goodbye_of_the_service_only_the_reply_is_read(there: TcpService) -> None:
    caller = await there.greeted()
    caller.send(f"{RANGE} 33 01 00")
    await caller.expect("81 01 00")
    there.clients[0].part("ok")
    await caller.expect("03 02 6f 6b")
    caller.send("12 01 01 03 00")
    assert await caller.rest() == b""
    await there.keeps_only(0)
    await wait_until(lambda: list(there.rsio_harness.streams) == [])


async def test_an_unanswered_goodbye_of_the_service_ends_the_connection_after_five_seconds(there: TcpService) -> None:
    caller = await there.greeted()
    there.clients[0].part("ok")
    await caller.expect("03 02 6f 6b")
    there.pass_time(4)
    assert len(there.link.peers) == 1
    there.pass_time(2)
    assert await caller.rest() == b""


async def test_case_d22_with_its_connection_all_streams_of_a_client_end(there: TcpService) -> None:
    caller = await there.greeted()
    caller.send(*(SubscribeFrame("tck/never", number, 1) for number in (1, 2, 3)))
    await caller.expect("81 01 00 81 02 00 81 03 00")
    assert len(list(there.rsio_harness.streams)) == 3
    await caller.leave()
    await wait_until(lambda: not list(there.rsio_harness.streams))
    await there.keeps_only(0)
    await wait_until(lambda: list(there.rsio_harness.streams) == [])


async def test_with_keepalive_a_silent_client_is_pinged_and_then_disconnected(there: TcpService) -> None:
    caller = await there.greeted("01 00 01 02")
    there.pass_time(31)
    await caller.expect("a8 00")
    caller.send("a9 00")
    await caller.receives_nothing_more()
    there.pass_time(91)
    assert (await caller.goodbye("idle")) == "idle"
    await there.keeps_only(0)
    await wait_until(lambda: list(there.rsio_harness.streams) == [])


async def test_with_resume_a_silent_client_is_disconnected_without_a_goodbye(there: TcpService) -> None:
    """Its session waits for it: a goodbye would be its end."""
    caller = await there.greeted("01 00 02 01 02")
    grant = await caller.take(2 + 16 + 5)
    assert grant[0] == 0xA0
    there.pass_time(91)
    assert await caller.rest() == b""


async def test_a_large_frame_in_many_pieces_is_read_whole(there: TcpService) -> None:
    caller = await there.greeted("01 00 01 02")
    caller.send(SubscribeFrame("x" * 500_000, 1, 0), Ping(b"on"))
    await caller.expect("a9 02 6f 6e 81 01 00 87 01")
    assert b"400 rsio:publisher.invalid" in await caller.take(60)


async def test_a_long_stream_comes_whole_and_in_order(there: TcpService) -> None:
    caller = await there.greeted()
    caller.send(SubscribeFrame("tck/fixed?n=200000&size=4", 1, 2**63 - 1))
    frames = await caller.framed(lambda found: OnComplete(1) in found[-1:])
    elements = [each for frame in frames if isinstance(frame, OnNextPacked) for each in frame.elements]
    assert elements == [number.to_bytes(4, "big") for number in range(1, 200_001)]


async def test_case_g02_clients_are_notified_when_the_service_stops_and_waited_for(there: TcpService) -> None:
    answering, silent = await there.greeted(), await there.greeted()
    parting = asyncio.create_task(there.rsio_harness.handlers["reactive_streams_io"].part("landing"))
    await answering.expect("03 08 73 68 75 74 64 6f 77 6e")
    answering.send("12 01 01 03 00")
    assert await answering.rest() == b""
    late = await there.caller()
    assert await late.goodbye() == "shutdown"
    assert not parting.done()
    there.pass_time(6)
    assert await silent.goodbye() == "shutdown"
    await asyncio.wait_for(parting, PATIENCE)
    await there.keeps_only(0)


@pytest.mark.parametrize("is_reading", [True, False])
async def test_case_r02_a_session_continues_over_another_connection(there: TcpService, is_reading: bool) -> None:
    """Also where the service had more to say than the first connection took."""
    lost = await there.caller()
    lost.keeps_little()
    await wait_until(lambda: there.link.peers)
    there.keeps_little()
    lost.send("01 00 01 01", SubscribeFrame("tck/fixed?n=2000000&size=8", 1, 2**63 - 1))
    grant, *_ = await lost.framed(lambda found: any(isinstance(frame, OnNextPacked) for frame in found))
    assert isinstance(grant, ServerHello)
    token = next(frame.token for frame in lost.received if isinstance(frame, ResumeGrant))
    if not is_reading:
        lost.pause_reading()
        await wait_until(lambda: any(peer.times.stuck for peer in there.link.peers.values()))
    tracked = sum(isinstance(frame, OnSubscribe | OnNextPacked) for frame in lost.received)
    await lost.leave()
    await wait_until(lambda: not there.link.peers)
    back = await there.greeted("01 00 01 01", sizes={1: 8})
    back.send(Resume(token, tracked, 2))
    frames = await back.framed(lambda found: any(isinstance(frame, OnNextPacked | ResumeFail) for frame in found))
    answer = next(frame for frame in frames if isinstance(frame, ResumeOk | ResumeFail))
    assert answer == ResumeOk(1)
    first = next(frame for frame in frames if isinstance(frame, OnNextPacked))
    elements = [each for frame in lost.received if isinstance(frame, OnNextPacked) for each in frame.elements]
    assert int.from_bytes(first.elements[0]) == len(elements) + 1
