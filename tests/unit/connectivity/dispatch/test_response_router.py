"""Routes of responses: the reply target or another connection. Case numbers are those for connections."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.errors import PublishFailed
from tests.support.in_process.service import ConnectionHarness, command, pause, source, streaming, target, turn, until

pytestmark = pytest.mark.usefixtures("harnesses")

SOURCE = {"is-diversion-source": "true"}
TARGET = {"is-diversion-target": "true", "authorized-connections-as-sources": "someone, site"}
DIVERTING: dict[str, Any] = {"headerMapping": {"divert-response-to-connection": "desk"}}


async def diverting(options: dict[str, str] | None = None, *sources: dict[str, Any]) -> ConnectionHarness:
    made = ConnectionHarness(
        *(sources or (source(**DIVERTING),)), specificConfig=SOURCE if options is None else options
    )
    plain = ConnectionHarness(beside=made, id="maker")
    await plain.has_lamp()
    return made


def divert_target(harness: ConnectionHarness, *targets: dict[str, Any], **options: str) -> ConnectionHarness:
    config = {**TARGET, **{name.replace("_", "-"): value for name, value in options.items()}}
    return ConnectionHarness(
        beside=harness, id="desk", specificConfig=config, targets=targets or (target(address="desk"),)
    )


async def test_case_57_an_answer_is_diverted_with_its_correlation_id() -> None:
    harness = await diverting()
    other = divert_target(harness)
    harness.deliver(turn(True, correlation_id="c-1"))
    await harness.settled(1)
    assert harness.answers() == []
    assert [message.address for message in other.link.published] == ["desk"]
    (answer,) = other.answers()
    assert (answer["status"], answer["headers"]["correlation-id"]) == (201, "c-1")
    assert answer["headers"]["diverted-response-from-connection"] == "site"
    assert "divert-response-to-connection" not in answer["headers"]


@pytest.mark.parametrize("is_of_peer", [False, True])
async def test_a_diverted_answer_shows_the_reply_address_of_its_requester_unless_that_is_a_peer(
    is_of_peer: bool,
) -> None:
    harness = await diverting({**SOURCE, "preserve-normal-response-via-source": "true"})
    other = divert_target(harness)
    harness.readers[0].route.is_listener = is_of_peer
    harness.deliver(turn(True, reply_to="desk/4"))
    await harness.settled(1)
    assert ["reply-to" in made.answers()[0]["headers"] for made in (harness, other)] == [True, not is_of_peer]


async def test_case_57_the_reply_target_may_be_preserved() -> None:
    harness = await diverting({**SOURCE, "preserve-normal-response-via-source": "true"})
    other = divert_target(harness)
    other.link.confirms = False
    harness.deliver(turn(True))
    await until(lambda: other.answers() and harness.answers())
    await pause()
    assert harness.outcomes == []
    other.link.confirm()
    await harness.settled(1)
    assert harness.statuses() == other.statuses() == [201]


async def test_case_57_a_diverted_answer_that_is_too_large_is_followed_by_an_error() -> None:
    """The error goes where the response was expected, and the delivery ends with it."""
    harness = await diverting()
    other = divert_target(harness)
    other.link.confirms = False
    harness.deliver(turn(True, correlation_id="c-1"))
    await until(lambda: other.answers())
    with capture_logs():
        other.link.confirm(error=PublishFailed("at most 1000 bytes", status=413))
    assert (other.statuses(), other.correlations(), harness.outcomes) == ([201, 413], ["c-1", "c-1"], [])
    assert other.answers()[1]["headers"]["diverted-response-from-connection"] == "site"
    other.link.confirm()
    await harness.settled(1)
    assert harness.answers() == []


@pytest.mark.parametrize("payload", [b"no json", command("retrieve", name="lamp-8")], ids=["unreadable", "refused"])
async def test_case_57_errors_are_diverted_too(payload: bytes) -> None:
    harness = await diverting()
    other = divert_target(harness)
    harness.deliver(payload)
    await harness.settled(1)
    assert (harness.answers(), len(other.answers())) == ([], 1)
    assert other.answers()[0]["topic"].endswith("/errors")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"authorized_connections_as_sources": "someone"}, "authorized"),
        ({"is_diversion_target": "false"}, "not a diversion target"),
    ],
)
async def test_case_57_a_diversion_that_is_not_authorized_sends_nothing(options: dict[str, str], reason: str) -> None:
    harness = await diverting()
    other = divert_target(harness, **options)
    with capture_logs() as lines:
        harness.deliver(turn(True))
        await harness.settled(1)
    assert (harness.answers(), other.answers()) == ([], [])
    (line,) = lines
    assert (line["event"], line["to"]) == ("response not diverted", "desk")
    assert reason in line["error"]
    assert harness.count("out", "not_diverted") == 1


async def test_a_connection_that_is_not_open_gets_nothing() -> None:
    harness = await diverting({**SOURCE, "preserve-normal-response-via-source": "true"})
    with capture_logs() as lines:
        harness.deliver(turn(True))
        await harness.settled(1)
    assert "not open" in lines[0]["error"]
    assert harness.statuses() == [201]


async def test_only_a_diversion_source_diverts() -> None:
    harness = await diverting({})
    other = divert_target(harness)
    harness.deliver(turn(True))
    await harness.settled(1)
    assert (harness.statuses(), other.answers()) == ([201], [])


async def test_a_diverted_response_is_not_diverted_again() -> None:
    harness = await diverting()
    other = divert_target(harness)
    harness.deliver(turn(True, diverted_response_from_connection="elsewhere"))
    await harness.settled(1)
    assert (harness.statuses(), other.answers()) == ([201], [])


@pytest.mark.parametrize(
    ("types", "diverted"), [("response", [201]), ("error", [404]), ("error, Response", [201, 404])]
)
async def test_only_the_named_types_are_diverted(types: str, diverted: list[int]) -> None:
    mapping = {**DIVERTING["headerMapping"], "divert-expected-response-types": types}
    harness = await diverting(None, source(headerMapping=mapping))
    other = divert_target(harness)
    harness.deliver(turn(True), command("retrieve", "/attributes/no"))
    await harness.settled(2)
    assert other.statuses() == diverted
    assert sorted(harness.statuses() + other.statuses()) == [201, 404]


async def test_several_targets_are_assigned_to_sources_by_index() -> None:
    harness = await diverting(None, source("a", **DIVERTING), source("b", **DIVERTING), source("c", **DIVERTING))
    other = divert_target(harness, target(address="first"), target(address="second"))
    with capture_logs() as lines:
        for index in (1, 0, 2):
            harness.deliver(turn(index), source=index)
        await harness.settled(3)
    assert [message.address for message in other.link.published] == ["second", "first"]
    assert "index 2" in next(line["error"] for line in lines if line["event"] == "response not diverted")


async def test_without_a_required_response_nothing_is_diverted() -> None:
    harness = await diverting()
    other = divert_target(harness)
    harness.deliver(turn(True, response_required=False))
    await harness.settled(1)
    assert other.answers() == []


async def test_3_11_events_of_subscriptions_are_never_diverted() -> None:
    harness = await diverting()
    other = divert_target(harness)
    created = await harness.ask(streaming("subscribeForPersistedEvents", {}))
    value = {"subscriptionId": created["value"]["subscriptionId"], "demand": 5}
    harness.deliver(streaming("request", value))
    await until(lambda: len(harness.answers()) == 3)
    assert other.answers() == []


async def test_a_diverted_answer_does_not_wait_for_a_connection_that_is_closed() -> None:
    harness = await diverting()
    other = divert_target(harness)
    other.link.confirms = False
    harness.deliver(turn(True))
    await until(lambda: other.answers())
    assert harness.outcomes == []
    other.close_connection()
    await harness.settled(1)


async def test_the_settle_timeout_runs_once_the_other_broker_has_the_diverted_answer() -> None:
    harness = await diverting({**SOURCE, "preserve-normal-response-via-source": "true"})
    other = divert_target(harness)
    harness.link.confirms = other.link.confirms = False
    (delivery,) = harness.deliver(turn(True))
    await until(lambda: other.answers() and harness.answers())
    assert delivery.waits == 1
    other.link.confirm()
    assert (delivery.waits, delivery.outcome) == (0, None)
