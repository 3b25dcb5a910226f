"""Sessions of reactive-streams-io that are cut and resumed, in the session handler.

Case numbers are those of the cases for reactive-streams-io. The tests of the endpoint cover the frames of the resume
extension on one connection; here the session is one of many, with streams on the engine.
"""

from __future__ import annotations

import pytest

from connectivity.transports.base import ReaderStatus
from mappings.reactive_streams_io.frames import (
    OnComplete,
    OnNext,
    OnNextLastPart,
    OnNextPart,
    OnSubscribe,
    RequestFrame,
    Resume,
    ResumeAck,
    ResumeFail,
    ResumeGrant,
    ResumeOk,
    ServerHello,
)
from tests.support.in_process.reactive_streams_io import (
    HISTORY,
    RsioHarness,
    elements,
    goodbye,
    granted,
    raw,
    source,
    subscribe,
    subscribe_synthetic,
)
from tests.support.in_process.service import pause, until

pytestmark = pytest.mark.usefixtures("harnesses")

HELLO = "01 00 01 01"
"""The hello of a client that resumes."""

PARTS = (OnNextPart, OnNextLastPart)


async def test_case_r02_a_session_continues_at_another_address_without_a_gap() -> None:
    rsio_harness = await RsioHarness.filled(revisions=3)
    rsio_harness.send("a", HELLO, subscribe(HISTORY, 1, 1))
    await rsio_harness.framed("a", 4)
    token = granted(rsio_harness.frames("a"))
    rsio_harness.send("a", RequestFrame(1, 2))
    await rsio_harness.framed("a", 7)
    rsio_harness.send("b", HELLO)
    rsio_harness.send("b", Resume(token, 2, 3))
    frames = await rsio_harness.framed("b", 7)
    assert frames[2] == ResumeOk(2)
    assert len(elements(frames)) == 2
    assert isinstance(frames[-1], ResumeGrant)
    assert frames[-1].token != token
    assert goodbye(await rsio_harness.framed("a", 8)) == "resumed elsewhere"


async def test_a_disconnected_client_resumes_at_another_address() -> None:
    rsio_harness = await RsioHarness.filled(revisions=3)
    rsio_harness.send("a", HELLO, subscribe(HISTORY, 1, 1))
    token = granted(await rsio_harness.framed("a", 4))
    rsio_harness.reader("a", ReaderStatus.GONE)
    rsio_harness.send("b", HELLO)
    rsio_harness.send("b", Resume(token, 2, 2))
    rsio_harness.send("b", RequestFrame(1, 2))
    await until(lambda: len(elements(rsio_harness.frames("b"))) == 2)
    await rsio_harness.framed("a", 4)


async def test_a_stream_continues_with_the_session_that_took_it_over() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", HELLO, subscribe_synthetic("range?n=3"))
    await rsio_harness.framed("a", 3)
    rsio_harness.send("b", HELLO)
    rsio_harness.send("b", Resume(granted(rsio_harness.frames("a")), 1, 2))
    await until(lambda: ResumeOk(1) in rsio_harness.frames("b"))
    rsio_harness.send("b", RequestFrame(1, 3))
    await until(lambda: elements(rsio_harness.frames("b")) == [b"1", b"2", b"3"])
    assert elements(rsio_harness.frames("a")) == []
    await until(lambda: list(rsio_harness.streams) == [])


@pytest.mark.parametrize("how", ["unknown", "used", "another subject", "after a goodbye", "too late"])
async def test_cases_r04_to_r06_and_r09_a_token_is_valid_once_for_one_subject_and_a_limited_time(how: str) -> None:
    rsio_harness = await RsioHarness.filled(source("in", "acme:x"), source("in2", "acme:y"))
    rsio_harness.send("a", HELLO, subscribe_synthetic("range?n=3"))
    token = granted(await rsio_harness.framed("a", 3))
    match how:
        case "unknown":
            token = bytes(16)
        case "used":
            rsio_harness.send("b", HELLO)
            rsio_harness.send("b", Resume(token, 1, 2))
            rsio_harness.send("b", RequestFrame(1, 1))
        case "after a goodbye":
            rsio_harness.send("a", "03 00")
        case "too late":
            rsio_harness.clock.advance(61)
    by = 1 if how == "another subject" else 0
    rsio_harness.send("c", HELLO, source=by)
    rsio_harness.send("c", Resume(token, 1, 2), source=by)
    await until(lambda: any(isinstance(frame, ResumeFail) for frame in rsio_harness.frames("c")))
    rsio_harness.send("c", subscribe_synthetic("range?n=1", 1, 1), source=by)
    await until(lambda: elements(rsio_harness.frames("c")) == [b"1"])


async def test_a_session_that_is_never_resumed_is_released() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", "01 00 02 01 02", subscribe_synthetic("never"))
    await rsio_harness.framed("a", 3)
    for _ in range(3):
        rsio_harness.clock.advance(91)
        rsio_harness.sweep_sessions()
    await until(lambda: list(rsio_harness.streams) == [])


async def test_case_r06_a_token_can_be_used_again_when_its_answer_was_lost() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", HELLO, subscribe_synthetic("range?n=9", 1, 4))
    token = granted(await rsio_harness.framed("a", 7))
    for address in ("b", "c", "d"):
        rsio_harness.send(address, HELLO)
        rsio_harness.send(address, Resume(token, 3, 2))
        frames = await rsio_harness.framed(address, 6)
        assert frames[2] == ResumeOk(1)
        assert elements(frames) == [b"3", b"4"]
    assert goodbye(await rsio_harness.framed("c", 7)) == "resumed elsewhere"
    rsio_harness.send("d", RequestFrame(1, 9))
    await until(lambda: elements(rsio_harness.frames("d")) == [str(number).encode() for number in range(3, 10)])
    rsio_harness.send("e", HELLO)
    rsio_harness.send("e", Resume(token, 3, 2))
    await until(lambda: any(isinstance(frame, ResumeFail) for frame in rsio_harness.frames("e")))
    await until(lambda: list(rsio_harness.streams) == [])


@pytest.mark.parametrize(
    ("hello", "lifetime"), [("01 00 01 01", 60), ("01 00 02 01 02", 150)], ids=["without keepalive", "with keepalive"]
)
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_session_can_be_gone_on_with_for_its_lifetime(hello: str, lifetime: int, is_late: bool) -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", hello, subscribe_synthetic("range?n=1"))
    frames = await rsio_harness.framed("a", 3)
    assert [frame.lifetime for frame in frames if isinstance(frame, ResumeGrant)] == [lifetime * 1000]
    for _ in range(lifetime + 1 if is_late else lifetime - 1):
        rsio_harness.clock.advance(1)
        rsio_harness.sweep_sessions()
    rsio_harness.send("b", hello)
    rsio_harness.send("b", Resume(granted(frames), 1, 2))
    if is_late:
        await until(lambda: any(isinstance(frame, ResumeFail) for frame in rsio_harness.frames("b")))
    else:
        rsio_harness.send("b", RequestFrame(1, 1))
        await until(lambda: elements(rsio_harness.frames("b")) == [b"1"])


async def refused(rsio_harness: RsioHarness, address: str) -> None:
    """Wait for a refused resume, and check that it carries another token."""
    await until(lambda: any(isinstance(frame, ResumeFail) for frame in rsio_harness.frames(address)))
    kinds = [type(frame) for frame in rsio_harness.frames(address)]
    assert kinds == [ServerHello, ResumeGrant, ResumeFail, ResumeGrant]


async def test_case_r01_a_client_that_resumes_is_granted_a_token() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", HELLO)
    _, grant = await rsio_harness.framed("a", 2)
    assert grant == ResumeGrant(granted([grant]), 60_000, 1024)
    assert len(granted([grant])) == 16


async def test_case_r03_a_client_resends_frames_the_service_never_received() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", HELLO)
    token = granted(await rsio_harness.framed("a", 2))
    rsio_harness.send("b", HELLO)
    rsio_harness.send("b", Resume(token, 0, 1))
    assert (await rsio_harness.framed("b", 4))[2] == ResumeOk(0)
    rsio_harness.send("b", subscribe_synthetic("range?n=1", 1, 1))
    assert (await rsio_harness.framed("b", 7))[4:] == [OnSubscribe(1, 0), OnNext(1, b"1"), OnComplete(1)]


async def test_case_r07_hello_and_resume_may_come_in_one_message() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", HELLO, subscribe_synthetic("range?n=2"))
    token = granted(await rsio_harness.framed("a", 3))
    rsio_harness.send("b", HELLO, Resume(token, 1, 2))
    rsio_harness.send("b", RequestFrame(1, 2))
    await until(lambda: elements(rsio_harness.frames("b")) == [b"1", b"2"])


async def test_case_r08_a_resume_after_another_frame_ends_the_session() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", HELLO, subscribe_synthetic("never"))
    token = granted(await rsio_harness.framed("a", 3))
    rsio_harness.send("b", HELLO, subscribe_synthetic("never"))
    rsio_harness.send("b", Resume(token, 1, 2))
    assert goodbye(await rsio_harness.framed("b", 4)).startswith("protocol error: an unexpected resume frame")
    assert len(list(rsio_harness.streams)) == 1


async def test_case_r10_more_than_the_window_is_lost_for_good() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", HELLO, subscribe_synthetic("range?n=2000", 1, 1100))
    await until(lambda: len(elements(rsio_harness.frames("a"))) == 1100)
    token = granted(rsio_harness.frames("a"))
    rsio_harness.send("b", HELLO)
    rsio_harness.send("b", Resume(token, 76, 2))
    await refused(rsio_harness, "b")
    rsio_harness.sweep_sessions()
    await until(lambda: list(rsio_harness.streams) == [])


async def test_case_r11_a_client_cannot_resume_before_its_acknowledged_position() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", HELLO, subscribe_synthetic("range?n=9", 1, 4))
    token = granted(await rsio_harness.framed("a", 7))
    rsio_harness.send("a", ResumeAck(3))
    rsio_harness.send("b", HELLO)
    rsio_harness.send("b", Resume(token, 2, 2))
    await refused(rsio_harness, "b")


async def test_case_r12_a_client_at_the_old_address_gets_a_goodbye() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", HELLO, subscribe_synthetic("range?n=9", 1, 4))
    token = granted(await rsio_harness.framed("a", 7))
    rsio_harness.send("b", HELLO)
    rsio_harness.send("b", Resume(token, 5, 2))
    assert goodbye(await rsio_harness.framed("a", 8)) == "resumed elsewhere"
    rsio_harness.send("b", RequestFrame(1, 9))
    await until(lambda: OnComplete(1) in rsio_harness.frames("b"))
    rsio_harness.sweep_sessions()
    assert repr(rsio_harness.handlers).count(" 1 clients") == 1


async def test_case_r13_elements_of_a_fixed_size_continue_without_a_length() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", HELLO, subscribe_synthetic("fixed?n=5&size=2", 1, 2))
    await until(lambda: b"".join(rsio_harness.messages("a")).endswith(raw("83 01 02 00 01 00 02")))
    token = granted(rsio_harness.frames("a"))
    rsio_harness.send("b", HELLO)
    rsio_harness.send("b", Resume(token, 1, 2))
    rsio_harness.send("b", RequestFrame(1, 3))
    ended = raw("83 01 03 00 03 00 04 00 05 86 01")
    await until(lambda: b"".join(rsio_harness.messages("b")).endswith(ended))
    assert raw("a2 01 83 01 02 00 01 00 02 a0 10") in b"".join(rsio_harness.messages("b"))


async def test_case_r14_a_split_element_continues_with_its_next_part() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", HELLO, subscribe_synthetic("big?bytes=200000", 1, 1))
    await until(lambda: OnComplete(1) in rsio_harness.frames("a"))
    token, sent = (
        granted(rsio_harness.frames("a")),
        [frame for frame in rsio_harness.frames("a") if isinstance(frame, PARTS)],
    )
    rsio_harness.send("b", HELLO)
    rsio_harness.send("b", Resume(token, 2, 2))
    await until(lambda: OnComplete(1) in rsio_harness.frames("b"))
    assert [frame for frame in rsio_harness.frames("b") if isinstance(frame, PARTS)] == sent[1:]
    assert sum(len(frame.data) for frame in sent) == 200_000


async def test_elements_buffered_for_a_client_follow_the_answer_to_its_resume_in_order() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", HELLO)
    token = granted(await rsio_harness.framed("a", 2))
    rsio_harness.send("a", subscribe_synthetic("range?n=3000", 1, 3000))
    rsio_harness.reader("a", ReaderStatus.GONE)
    await until(lambda: any(live.sent for live in rsio_harness.streams))
    await pause()
    assert [live.sent < 3000 for live in rsio_harness.streams] == [True]
    assert elements(rsio_harness.frames("a")) == []
    rsio_harness.send("b", HELLO)
    rsio_harness.send("b", Resume(token, 0, 2))
    await until(lambda: OnComplete(1) in rsio_harness.frames("b"))
    assert elements(rsio_harness.frames("b")) == [str(number).encode() for number in range(1, 3001)]
