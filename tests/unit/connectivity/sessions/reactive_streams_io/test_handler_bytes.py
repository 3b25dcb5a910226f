"""Handshake, varints, framing and keepalive of reactive-streams-io in the session handler.

Case numbers are those of the cases for reactive-streams-io. Frames before an invalid one are answered; then the goodbye
follows, and the session ends.
"""

from __future__ import annotations

import pytest

from mappings.reactive_streams_io.frames import Goodbye
from tests.support.in_process.reactive_streams_io import H, RsioHarness, raw
from tests.support.in_process.service import pause, until

pytestmark = pytest.mark.usefixtures("harnesses")

SERVER = "02 00 03 01 02 03"
RANGE = "11 0d 74 63 6b 2f 72 61 6e 67 65 3f 6e 3d"
NEVER = "11 09 74 63 6b 2f 6e 65 76 65 72"
FIXED = "11 14 74 63 6b 2f 66 69 78 65 64 3f 6e 3d 33 26 73 69 7a 65 3d 32 06"
ENDLESS = "ff ff ff ff ff ff ff ff 7f"


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        pytest.param([H], "", id="H01"),
        pytest.param(["01 00 02 03 a8 46", f"b0 01 {NEVER} 01 00"], "b0 01 81 01 00", id="H03"),
        pytest.param(["01 00 02 03 03", f"b0 01 {NEVER} 01 00"], "b0 01 81 01 00", id="H04"),
        pytest.param([f"{H} {RANGE} 31 01 01"], "81 01 00 82 01 01 31 86 01", id="H07"),
        pytest.param([H, f"{NEVER} ac 02 00 12 ac 02 80 01"], "81 ac 02 00", id="V01"),
        pytest.param([H, f"{RANGE} 32 01 {ENDLESS}"], "81 01 00 82 01 01 31 82 01 01 32 86 01", id="V04"),
        pytest.param([H, f"{NEVER} 01 00 12 01 01 13 01"], "81 01 00", id="V13"),
        pytest.param(
            [H, f"{RANGE} 33 01 02", "12 01 05", f"{RANGE} 31 01 01"],
            "81 01 00 82 01 01 31 82 01 01 32 82 01 01 33 86 01 81 01 00 82 01 01 31 86 01",
            id="I01",
        ),
        pytest.param([H, f"{FIXED} 02", "12 06 01"], "81 06 02 83 06 02 00 01 00 02 82 06 00 03 86 06", id="F02"),
        pytest.param([H, f"03 01 78 {NEVER} 01 00"], "03 02 6f 6b", id="G04"),
        pytest.param(["01 00 01 02", "a8 02 ab cd"], "a9 02 ab cd", id="K01"),
    ],
)
async def test_cases_h01_to_k01_valid_bytes_are_answered(sent: list[str], answered: str) -> None:
    rsio_harness = await RsioHarness.filled()
    for number, message in enumerate(sent, 1):
        rsio_harness.send("a", message)
        await until(lambda number=number: len(rsio_harness.outcomes) == number)  # type: ignore[misc]
        await pause()
    await rsio_harness.received("a", f"{SERVER} {answered}")
    assert rsio_harness.all_settled(len(sent))


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        pytest.param(["01 01 00"], "unsupported version 1", id="H05"),
        pytest.param([f"{H} 01 00 00"], "protocol error", id="H10"),
        pytest.param([H, "02 00 00"], "protocol error", id="H11"),
        pytest.param(["01 00 41"], "protocol error", id="H12"),
        pytest.param([H, "12 05 8a 00"], "protocol error", id="V02"),
        pytest.param([H, "12 05 80 80 80 80 80 80 80 80 80 01"], "protocol error", id="V03"),
        pytest.param([H, "13 80 80 80 80 10"], "protocol error", id="V05"),
        pytest.param([H, "12 05"], "protocol error", id="V06"),
        pytest.param([H, "55"], "protocol error", id="V07"),
        pytest.param([H, "00"], "protocol error", id="V08"),
        pytest.param([H, "a8 00"], "protocol error", id="V09"),
        pytest.param([H, "7b 22 74 79 70 65 22"], "protocol error", id="V10"),
        pytest.param([H, "11 ff ff ff ff 07"], "protocol error", id="V11"),
        pytest.param([H, "11 02 c3 28 01 00"], "protocol error", id="V12"),
        pytest.param([H, "03 02 c3 28"], "protocol error", id="G06"),
        pytest.param(["01 00 01 02", f"a8 41 {'00' * 65}"], "protocol error", id="K02"),
    ],
)
async def test_cases_h05_to_k02_invalid_bytes_are_answered_with_a_goodbye(sent: list[str], reason: str) -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("other", H, f"{RANGE} 32 01 00")
    for message in sent:
        rsio_harness.send("a", message)
    await until(lambda: bool(rsio_harness.frames("a")) and isinstance(rsio_harness.frames("a")[-1], Goodbye))
    last = rsio_harness.frames("a")[-1]
    assert isinstance(last, Goodbye)
    assert last.reason.startswith(reason)
    # Over messages the server's hello answers the client's, so an invalid one gets none.
    assert b"".join(rsio_harness.messages("a")).startswith(
        raw(SERVER) if len(sent) > 1 or sent[0].startswith(H) else b"\x03"
    )
    before = len(rsio_harness.messages("a"))
    rsio_harness.send("a", "12 01 01")
    await until(lambda: len(rsio_harness.messages("a")) > before)
    assert rsio_harness.frames("a")[-1] == Goodbye("protocol error: no session")
    rsio_harness.send("other", "12 01 05")
    await rsio_harness.received("other", f"{SERVER} 81 01 00 82 01 01 31 82 01 01 32 86 01")


async def test_case_h09_a_client_without_a_hello_has_no_session() -> None:
    rsio_harness = await RsioHarness.filled()
    rsio_harness.send("a", "12 05 0a")
    await until(lambda: rsio_harness.frames("a"))
    await pause()
    assert rsio_harness.frames("a") == [Goodbye("protocol error: no session")]
