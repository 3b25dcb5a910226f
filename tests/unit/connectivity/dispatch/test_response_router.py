"""Routes of responses: the reply target or another connection. Case numbers are those for connections."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.errors import PublishFailed
from tests.support.in_process.service import ConnectionHarness, command, pause, source, streaming, target, turn, until

pytestmark = pytest.mark.usefixtures("sites")

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


def divert_target(site: ConnectionHarness, *targets: dict[str, Any], **options: str) -> ConnectionHarness:
    config = {**TARGET, **{name.replace("_", "-"): value for name, value in options.items()}}
    return ConnectionHarness(
        beside=site, id="desk", specificConfig=config, targets=targets or (target(address="desk"),)
    )


async def test_case_57_an_answer_is_diverted_with_its_correlation_id() -> None:
    site = await diverting()
    other = divert_target(site)
    site.deliver(turn(True, correlation_id="c-1"))
    await site.settled(1)
    assert site.answers() == []
    assert [message.address for message in other.link.published] == ["desk"]
    (answer,) = other.answers()
    assert (answer["status"], answer["headers"]["correlation-id"]) == (201, "c-1")
    assert answer["headers"]["diverted-response-from-connection"] == "site"
    assert "divert-response-to-connection" not in answer["headers"]


async def test_case_57_the_reply_target_may_be_preserved() -> None:
    site = await diverting({**SOURCE, "preserve-normal-response-via-source": "true"})
    other = divert_target(site)
    other.link.confirms = False
    site.deliver(turn(True))
    await until(lambda: other.answers() and site.answers())
    await pause()
    assert site.outcomes == []
    other.link.confirm()
    await site.settled(1)
    assert site.statuses() == other.statuses() == [201]


async def test_case_57_a_diverted_answer_that_is_too_large_is_followed_by_an_error() -> None:
    """The error goes where the response was expected, and the delivery ends with it."""
    site = await diverting()
    other = divert_target(site)
    other.link.confirms = False
    site.deliver(turn(True, correlation_id="c-1"))
    await until(lambda: other.answers())
    with capture_logs():
        other.link.confirm(error=PublishFailed("at most 1000 bytes", status=413))
    assert (other.statuses(), other.correlations(), site.outcomes) == ([201, 413], ["c-1", "c-1"], [])
    assert other.answers()[1]["headers"]["diverted-response-from-connection"] == "site"
    other.link.confirm()
    await site.settled(1)
    assert site.answers() == []


@pytest.mark.parametrize("payload", [b"no json", command("retrieve", name="lamp-8")], ids=["unreadable", "refused"])
async def test_case_57_errors_are_diverted_too(payload: bytes) -> None:
    site = await diverting()
    other = divert_target(site)
    site.deliver(payload)
    await site.settled(1)
    assert (site.answers(), len(other.answers())) == ([], 1)
    assert other.answers()[0]["topic"].endswith("/errors")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"authorized_connections_as_sources": "someone"}, "authorized"),
        ({"is_diversion_target": "false"}, "not a diversion target"),
    ],
)
async def test_case_57_a_diversion_that_is_not_authorized_sends_nothing(options: dict[str, str], reason: str) -> None:
    site = await diverting()
    other = divert_target(site, **options)
    with capture_logs() as lines:
        site.deliver(turn(True))
        await site.settled(1)
    assert (site.answers(), other.answers()) == ([], [])
    (line,) = lines
    assert (line["event"], line["to"]) == ("response not diverted", "desk")
    assert reason in line["error"]
    assert site.count("out", "not_diverted") == 1


async def test_a_connection_that_is_not_open_gets_nothing() -> None:
    site = await diverting({**SOURCE, "preserve-normal-response-via-source": "true"})
    with capture_logs() as lines:
        site.deliver(turn(True))
        await site.settled(1)
    assert "not open" in lines[0]["error"]
    assert site.statuses() == [201]


async def test_only_a_diversion_source_diverts() -> None:
    site = await diverting({})
    other = divert_target(site)
    site.deliver(turn(True))
    await site.settled(1)
    assert (site.statuses(), other.answers()) == ([201], [])


async def test_a_diverted_response_is_not_diverted_again() -> None:
    site = await diverting()
    other = divert_target(site)
    site.deliver(turn(True, diverted_response_from_connection="elsewhere"))
    await site.settled(1)
    assert (site.statuses(), other.answers()) == ([201], [])


@pytest.mark.parametrize(
    ("types", "diverted"), [("response", [201]), ("error", [404]), ("error, Response", [201, 404])]
)
async def test_only_the_named_types_are_diverted(types: str, diverted: list[int]) -> None:
    mapping = {**DIVERTING["headerMapping"], "divert-expected-response-types": types}
    site = await diverting(None, source(headerMapping=mapping))
    other = divert_target(site)
    site.deliver(turn(True), command("retrieve", "/attributes/no"))
    await site.settled(2)
    assert other.statuses() == diverted
    assert sorted(site.statuses() + other.statuses()) == [201, 404]


async def test_several_targets_are_assigned_to_sources_by_index() -> None:
    site = await diverting(None, source("a", **DIVERTING), source("b", **DIVERTING), source("c", **DIVERTING))
    other = divert_target(site, target(address="first"), target(address="second"))
    with capture_logs() as lines:
        for index in (1, 0, 2):
            site.deliver(turn(index), source=index)
        await site.settled(3)
    assert [message.address for message in other.link.published] == ["second", "first"]
    assert "index 2" in next(line["error"] for line in lines if line["event"] == "response not diverted")


async def test_without_a_required_response_nothing_is_diverted() -> None:
    site = await diverting()
    other = divert_target(site)
    site.deliver(turn(True, response_required=False))
    await site.settled(1)
    assert other.answers() == []


async def test_3_11_events_of_subscriptions_are_never_diverted() -> None:
    site = await diverting()
    other = divert_target(site)
    created = await site.ask(streaming("subscribeForPersistedEvents", {}))
    value = {"subscriptionId": created["value"]["subscriptionId"], "demand": 5}
    site.deliver(streaming("request", value))
    await until(lambda: len(site.answers()) == 3)
    assert other.answers() == []


async def test_a_diverted_answer_does_not_wait_for_a_connection_that_is_closed() -> None:
    site = await diverting()
    other = divert_target(site)
    other.link.confirms = False
    site.deliver(turn(True))
    await until(lambda: other.answers())
    assert site.outcomes == []
    site.dispatcher.close_connection("desk")
    await site.settled(1)
