"""A connection whose sources map with scripts: messages keep their order, hostile ones delay little."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.in_process.running_connection import Running
from tests.support.in_process.service import command, source, streaming, turn
from tests.support.wait import wait_until

pytestmark = pytest.mark.extra("javascript")

DEVICE = """
function mapToDittoProtocolMsg(headers, textPayload) {
    const [kind, ...values] = textPayload.split(' ');
    if (kind === 'drop') return null;
    if (kind === 'loop') for (;;);
    return values.map((value) => Ditto.buildDittoProtocolMsg(
        'acme.site', 'lamp-7', 'things', 'twin', 'commands', 'modify', '/attributes/on',
        {'correlation-id': `${kind}-${value}`}, JSON.parse(value)));
}
"""

SHORT = """
function mapFromDittoProtocolMsg(namespace, name, group, channel, criterion, action, path, headers, value, status) {
    const id = headers['correlation-id'];
    if (id === 'quiet') return null;
    if (id === 'loop') for (;;);
    return Ditto.buildExternalMsg({}, JSON.stringify({id, criterion, action, status, value}), null, 'application/json');
}
"""

DEFINITIONS = {
    "device": {"mappingEngine": "JavaScript", "options": {"incomingScript": DEVICE}},
    "short": {"mappingEngine": "JavaScript", "options": {"outgoingScript": SHORT}},
}


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    """A connection with sources 0 plain, 1 with an incoming and 2 with an outgoing script."""
    made = await Running.opened(
        source(),
        source("in/1", payloadMapping=["device"], replyTarget={"address": "out/1"}),
        source("in/2", payloadMapping=["short"], replyTarget={"address": "out/2"}),
        mappingDefinitions=DEFINITIONS,
    )
    yield made
    await made.end()


async def answered(running: Running, number: int, address: str) -> list[dict[str, Any]]:
    await wait_until(lambda: len(running.answers(address)) >= number)
    return running.answers(address)


async def test_a_message_becomes_several_commands_which_are_answered_in_order(running: Running) -> None:
    running.send(b"a 1 2", b"drop 9", b"b true", to="in/1")
    answers = await answered(running, 3, "out/1")
    assert [answer["headers"]["correlation-id"] for answer in answers] == ["a-1", "a-2", "b-true"]
    assert [answer["status"] for answer in answers] == [201, 204, 204]
    assert running.harness.values()[-3:] == [1, 2, True]
    await wait_until(lambda: running.unsettled(1) == 0)


async def test_a_message_that_is_not_mapped_is_answered_with_an_error_and_acknowledged(running: Running) -> None:
    running.send(b"loop", b"a nonsense", b"a 1", to="in/1", device_id="acme.site:lamp-7")
    loop, nonsense, fine = await answered(running, 3, "out/1")
    for answer, reason in ((loop, "ran longer than 500 ms"), (nonsense, "SyntaxError")):
        assert answer["value"]["error"] == "connectivity:message.mapping.failed"
        assert answer["status"] == 400
        assert reason in answer["value"]["message"]
    assert fine["status"] in (201, 204)
    await wait_until(lambda: running.unsettled(1) == 0)


async def test_a_payload_beyond_the_limit_is_refused_and_no_script_sees_it(running: Running) -> None:
    running.send(b"loop " + b"x" * (1 << 20), b"", to="in/1", device_id="acme.site:lamp-7")
    large, empty = await answered(running, 2, "out/1")
    assert (large["status"], empty["status"]) == (413, 400)
    assert running.supervisor._script_host.pid is None


async def test_other_sources_are_answered_while_a_script_runs(running: Running) -> None:
    running.send(*[b"loop"] * 4, to="in/1", device_id="acme.site:lamp-7")
    running.send(turn(1, correlation_id="quick"))
    await answered(running, 1, "out")
    assert len(running.answers("out/1")) < 4
    await answered(running, 4, "out/1")


async def test_answers_through_a_script_keep_their_order_and_one_that_fails_is_left_out(running: Running) -> None:
    ids = ["a", "quiet", "b", "loop", *map(str, range(30))]
    running.send(*(turn(number, correlation_id=each) for number, each in enumerate(ids)), to="in/2")
    answers = await answered(running, 32, "out/2")
    assert [answer["id"] for answer in answers] == [each for each in ids if each not in ("quiet", "loop")]
    await wait_until(lambda: running.unsettled(2) == 0)


async def test_answers_of_other_sources_go_by_those_that_a_script_still_makes(running: Running) -> None:
    running.send(turn(1, correlation_id="loop"), turn(2, correlation_id="after"), to="in/2")
    running.send(turn(3, correlation_id="plain"))
    await answered(running, 1, "out")
    assert running.answers("out/2") == []
    (after,) = await answered(running, 1, "out/2")
    assert after["id"] == "after"


async def test_a_subscription_is_served_through_a_script_with_demand(running: Running) -> None:
    for number in range(5):
        running.send(turn(number))
    await answered(running, 5, "out")
    running.send(streaming("subscribeForPersistedEvents", {}, correlation_id="s"), to="in/2")
    (created,) = await answered(running, 1, "out/2")
    assert (created["criterion"], created["action"]) == ("streaming", "created")
    subscription = created["value"]["subscriptionId"]
    demand = {"subscriptionId": subscription, "demand": 100}
    running.send(streaming("request", demand, correlation_id="s"), to="in/2")
    answers = await answered(running, 8, "out/2")
    assert [answer["action"] for answer in answers] == ["created", *["next"] * 6, "complete"]


async def test_closing_lets_answers_through_a_script_arrive(running: Running) -> None:
    running.send(*(command("retrieve", correlation_id=str(number)) for number in range(20)), to="in/2")
    await answered(running, 1, "out/2")
    await running.supervisor.close(30.0)
    texts = [json.loads(envelope.payload)["id"] for envelope in running.broker.sent_to("out/2")]
    assert texts == [str(number) for number in range(len(texts))]
    assert running.unsettled(2) == 20 - len(texts)
    assert running.supervisor._script_host.pid is None


async def test_a_source_without_scripts_starts_no_process(running: Running) -> None:
    running.send(turn(1))
    await answered(running, 1, "out")
    assert running.supervisor._script_host.pid is None


async def test_a_condition_leaves_a_signal_out_before_a_script_sees_it() -> None:
    quiet = {**DEFINITIONS["short"], "outgoingConditions": {"loud": "fn:filter(header:correlation-id,'ne','loop')"}}
    running = await Running.opened(source("in", payloadMapping=["short"]), mappingDefinitions={"short": quiet})
    running.send(turn(1, correlation_id="loop"), turn(2, correlation_id="b"))
    (answer,) = await answered(running, 1, "out")
    assert answer["id"] == "b"
    await wait_until(lambda: running.unsettled(0) == 0)
    await running.end()
