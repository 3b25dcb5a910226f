"""The script process of a connection: its start, its end, and calls while it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from connectivity.errors import ScriptFailed
from connectivity.mapping import script_host as hosts
from connectivity.mapping.script_calls import Calls
from connectivity.mapping.script_host import MAX_CALLS, ScriptHost
from connectivity.mapping.script_protocol import CallResult, Load, ScriptAnswer, ScriptLimits
from connectivity.mapping.worker import NICE
from tests.support.paths import ROOT
from tests.support.wait import PATIENCE, wait_until

SOURCE = "mapFromDittoProtocolMsgWrapper = (message) => ({textPayload: message})"
SLEEPS = "import time; time.sleep(600)"
TALKS = "import sys, os; sys.stdin.buffer.read(4); os.write(1, b'nonsense' * 10)"
ENDS = "raise SystemExit(7)"

pytestmark = pytest.mark.extra("javascript")

TAKEN_OVER = f"""
import os, sys
sys.path.append({str(ROOT)!r})
from connectivity.mapping import sandbox, worker
run = sandbox.Sandbox.run

def attack(self, sources, libraries, direction, argument):
    if "attack" in argument:
        os.kill(os.getppid(), 9)
    return run(self, sources, libraries, direction, argument)

sandbox.Sandbox.run = attack
worker.main()
"""
"""A script process whose engine runs native code for a message that contains `attack`."""

OTHER_SYSTEM = f"""
import os, sys
sys.path.append({str(ROOT)!r})
from connectivity.mapping import worker
os.uname = lambda: os.uname_result(("Linux", "host", "4", "1", "riscv64"))
worker.main()
"""


@pytest.fixture
async def host() -> AsyncIterator[ScriptHost]:
    made = ScriptHost(ScriptLimits(seconds=5.0))
    yield made
    await made.close()


def other_program(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Run this code in processes instead."""
    monkeypatch.setattr(hosts, "command", lambda: [sys.executable, "-I", "-c", code])


async def result_of(host: ScriptHost, scripts: Load, text: str = "a") -> str:
    async with asyncio.timeout(60):
        return await host.call(scripts, "outgoing", lambda: f'"{text}"')


def script_returning(text: str) -> str:
    return f'[{{"headers":{{}},"contentType":null,"text":"{text}","binary":null}}]'


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


async def test_the_process_is_started_by_the_first_call_and_serves_the_next_ones(host: ScriptHost) -> None:
    assert host.pid is None
    scripts = host.scripts((SOURCE,))
    assert await result_of(host, scripts) == script_returning("a")
    pid = host.pid
    assert pid is not None
    assert await result_of(host, scripts, "b") == script_returning("b")
    assert host.pid == pid


async def test_the_process_has_a_lower_priority_than_the_service(host: ScriptHost) -> None:
    await result_of(host, host.scripts((SOURCE,)))
    assert host.pid is not None
    assert os.getpriority(os.PRIO_PROCESS, host.pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE)


async def test_a_killed_process_fails_no_call(host: ScriptHost) -> None:
    scripts = host.scripts((SOURCE,))
    await result_of(host, scripts)
    assert host.pid is not None
    calls = [asyncio.create_task(result_of(host, scripts, str(number))) for number in range(50)]
    await asyncio.sleep(0)
    os.kill(host.pid, signal.SIGKILL)
    assert await asyncio.gather(*calls) == [script_returning(str(number)) for number in range(50)]


async def test_a_process_that_ends_while_idle_is_replaced_at_the_next_call(host: ScriptHost) -> None:
    scripts = host.scripts((SOURCE,))
    await result_of(host, scripts)
    assert host.pid is not None
    pid = host.pid
    os.kill(pid, signal.SIGKILL)
    await wait_until(lambda: is_gone(pid), 60)
    assert await result_of(host, scripts) == script_returning("a")
    assert host.pid != pid


async def test_closing_ends_the_process_and_fails_pending_calls(host: ScriptHost) -> None:
    slow = host.scripts(("mapFromDittoProtocolMsg = () => { for (;;); }",))
    calls = [asyncio.create_task(host.call(slow, "outgoing", lambda: '{"topic":""}')) for _ in range(MAX_CALLS + 3)]
    await wait_until(lambda: host.pid, 60)
    pid = host.pid
    assert pid is not None
    await host.close()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {str(outcome) for outcome in outcomes} == {"the connection is closed"}
    assert host.pid is None
    await wait_until(lambda: is_gone(pid), 60)


async def test_closing_before_the_process_is_started_fails_the_call(host: ScriptHost) -> None:
    call = asyncio.create_task(result_of(host, host.scripts((SOURCE,))))
    await asyncio.sleep(0)
    await host.close()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ScriptFailed):
            await call


async def test_a_closed_host_starts_no_process(host: ScriptHost) -> None:
    scripts = host.scripts((SOURCE,))
    await host.close()
    with pytest.raises(ScriptFailed):
        await result_of(host, scripts)
    assert host.pid is None


async def test_a_cancelled_call_keeps_the_order_of_the_others(host: ScriptHost) -> None:
    scripts = host.scripts((SOURCE,))
    calls = [asyncio.create_task(result_of(host, scripts, str(number))) for number in range(20)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert outcomes[1::2] == [script_returning(str(number)) for number in range(1, 20, 2)]
    assert await result_of(host, scripts) == script_returning("a")


async def test_a_call_that_is_cancelled_while_its_answer_arrives_fails_no_other_call(
    host: ScriptHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = host.scripts((SOURCE,))
    cancelled, other = (asyncio.create_task(result_of(host, scripts, text)) for text in "bc")
    handle_answer = Calls.handle_answer

    def handle_after_cancelling(calls: Calls, answer: ScriptAnswer) -> None:
        if isinstance(answer, CallResult):
            cancelled.cancel()
        handle_answer(calls, answer)

    monkeypatch.setattr(Calls, "handle_answer", handle_after_cancelling)
    assert await other == script_returning("c")
    assert cancelled.cancelled()


async def test_the_number_of_pending_calls_is_limited(host: ScriptHost) -> None:
    scripts = host.scripts((SOURCE,))
    asked, ended, most = 0, 0, 0

    def argument() -> str:
        nonlocal asked, most
        asked += 1
        most = max(most, asked - ended)
        return '"a"'

    async def one() -> None:
        nonlocal ended
        await host.call(scripts, "outgoing", argument)
        ended += 1

    await asyncio.gather(*(one() for _ in range(4 * MAX_CALLS)))
    assert asked == 4 * MAX_CALLS
    # An ended call is counted shortly after its slot is free.
    assert most <= 2 * MAX_CALLS


async def test_a_process_that_cannot_be_started_is_an_error_of_every_call(
    host: ScriptHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "command", lambda: ["/no/such/program"])
    scripts = host.scripts((SOURCE,))
    with pytest.raises(ScriptFailed, match="cannot be started: No such file"):
        await result_of(host, scripts)
    other_program(monkeypatch, ENDS)
    with pytest.raises(ScriptFailed, match="ended with code 7"):
        await result_of(host, scripts)
    monkeypatch.undo()
    assert await result_of(host, scripts) == script_returning("a")


async def test_a_process_that_does_not_answer_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "START_TIMEOUT_SECONDS", 0.2)
    other_program(monkeypatch, SLEEPS)
    host = ScriptHost(patience=0.2)
    with pytest.raises(ScriptFailed, match="did not respond"):
        await result_of(host, host.scripts((SOURCE,)))
    await host.close()


async def test_a_process_that_hangs_in_a_call_is_killed_and_the_call_fails() -> None:
    host = ScriptHost(ScriptLimits(seconds=5.0), patience=2.0)
    scripts = host.scripts((SOURCE,))
    while True:
        # On a busy machine the first answer may take longer than this patience.
        try:
            await result_of(host, scripts)
            break
        except ScriptFailed:
            continue
    assert host.pid is not None
    os.kill(host.pid, signal.SIGSTOP)
    with pytest.raises(ScriptFailed, match="did not respond"):
        await result_of(host, scripts)
    await host.close()


async def test_a_process_that_sends_invalid_answers_is_ended(host: ScriptHost, monkeypatch: pytest.MonkeyPatch) -> None:
    other_program(monkeypatch, TALKS)
    with pytest.raises(ScriptFailed, match="sent an invalid response"):
        await result_of(host, host.scripts((SOURCE,)))


async def test_a_forbidden_system_call_fails_its_message_alone_and_the_process_is_replaced(
    host: ScriptHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_program(monkeypatch, TAKEN_OVER)
    scripts = host.scripts((SOURCE,))
    assert await result_of(host, scripts) == script_returning("a")
    pid = host.pid
    with capture_logs() as logged:
        outcomes = await asyncio.gather(
            *(result_of(host, scripts, text) for text in ("b", "attack", "c", "d")), return_exceptions=True
        )
    assert str(outcomes.pop(1)) == "the script process was ended because it made a forbidden system call"
    assert outcomes == [script_returning(text) for text in ("b", "c", "d")]
    assert host.pid != pid
    (ended,) = [line for line in logged if line["log_level"] == "error"]
    assert ended["event"] == "script process made a forbidden system call"


async def test_a_system_without_protection_is_logged_once_and_scripts_work(monkeypatch: pytest.MonkeyPatch) -> None:
    other_program(monkeypatch, OTHER_SYSTEM)
    with capture_logs() as logged:
        for _ in range(2):
            host = ScriptHost(ScriptLimits(seconds=5.0))
            assert await result_of(host, host.scripts((SOURCE,))) == script_returning("a")
            await host.close()
    assert [(line["event"], line["reason"]) for line in logged if line["log_level"] == "warning"] == [
        (
            "script processes are not fully isolated",
            "their system calls are not limited: the filter of system calls does not support linux on riscv64",
        )
    ]


async def test_scripts_have_the_time_randomness_and_memory(host: ScriptHost) -> None:
    source = """
        mapFromDittoProtocolMsgWrapper = () => {
            const texts = [];
            for (let index = 0; index < 3000; index++) texts.push(`${index}`.repeat(1000));
            const now = new Date();
            return {textPayload: [
                now.getTimezoneOffset() === new Date(now.getTime()).getTimezoneOffset(),
                now.toString().includes(String(now.getFullYear())),
                now.toLocaleString().length > 0,
                Date.now() > 1e12,
                Math.random() < 1,
                texts.sort().length,
            ].join()};
        }"""
    assert await result_of(host, host.scripts((source,))) == script_returning("true,true,true,true,true,3000")
