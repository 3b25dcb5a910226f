"""Requested acknowledgements: the tables of the Ditto connection model as test vectors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectivity.sources.acknowledgements import (
    SEARCH_PERSISTED,
    TWIN_PERSISTED,
    AckAggregator,
    RequestedAcks,
    SourceAckRequests,
    acknowledgement_of,
    aggregate_status,
    channel_of,
    outcome_of_acks,
    outcome_of_error,
    outcome_of_failure,
    outcome_of_live_response,
    refusal,
    requested_acks,
    timed_out,
    weak,
    worse,
)
from connectivity.transports.base import Outcome
from mappings.errors import Fault, PlaceholderError
from mappings.ids import LIVE_RESPONSE, EntityId, EntityType
from mappings.model.signals import (
    Acknowledgement,
    Cancel,
    Command,
    LiveCommand,
    LiveEvent,
    Message,
    Response,
    SubscriptionKind,
)
from mappings.placeholders.template import PlaceholderContext, parse
from tests.support.table import each_row

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
SETTLE, DROP, AGAIN = Outcome.SETTLED, Outcome.DROPPED, Outcome.REDELIVER
P, L, S, X = TWIN_PERSISTED, LIVE_RESPONSE, SEARCH_PERSISTED, "other:seen"
REFUSED = "refused"


def ack(label: str, status: int = 204, **headers: Any) -> Acknowledgement:
    return Acknowledgement(LAMP, label, status, None, headers)


WISHES: list[tuple[str, bool | None, list[str] | None, object, object]] = [
    # channel, response-required, requested-acks, timeout → labels, answered, seconds
    ("twin", None, None, None, ([P], True, 60)),
    ("live", None, None, None, ([L], True, 60)),
    ("twin", True, None, 5, ([P], True, 5)),
    ("twin", False, None, None, ([], False, 60)),
    ("live", False, None, None, ([], False, 60)),
    ("twin", None, [], None, ([], True, 60)),
    ("twin", None, None, 0, ([], False, 60)),
    ("twin", False, [], 0, ([], False, 60)),
    ("twin", False, [P, X], "500ms", ([P, X], False, 0.5)),
    ("twin", False, [P], 0, REFUSED),
    ("twin", None, [X], 0, REFUSED),
    ("twin", True, [], 0, REFUSED),
    ("twin", True, [P], 0, REFUSED),
    ("twin", True, [], 7, ([], True, 7)),
    ("twin", True, [X, P, X], "1m", ([X, P], True, 60)),
    ("twin", None, [P], "10m", ([P], True, 60)),
    ("twin", None, [L], None, ([], True, 60)),
    ("twin", None, [P, L, S], None, ([P, S], True, 60)),
    ("live", None, [P, L, X], None, ([L, X], True, 60)),
]


@each_row(("channel", "required", "requested", "timeout", "expected"), WISHES)
def test_3_8_the_acknowledgements_that_a_command_requests(
    channel: str, required: bool | None, requested: list[str] | None, timeout: object, expected: object
) -> None:
    given = {"response-required": required, "requested-acks": requested, "timeout": timeout, "other": "x"}
    found = requested_acks({name: value for name, value in given.items() if value is not None}, channel)
    if expected == REFUSED:
        assert isinstance(found, Fault)
        assert (found.status, found.error) == (400, "header.invalid")
    else:
        assert isinstance(found, RequestedAcks)
        assert (list(found.labels), found.is_answered, found.timeout) == expected


@pytest.mark.parametrize("label", ["", "ab", "with space", "a" * 101, "ä:b-c"])
def test_a_label_outside_the_grammar_is_refused(label: str) -> None:
    found = requested_acks({"requested-acks": [label]}, "twin")
    assert isinstance(found, Fault)
    assert found.error == "acknowledgement:label.invalid"


@each_row(
    ("signal", "channel"),
    [
        (Command(LAMP, "modify", "/", b"{}", {}), "twin"),
        (Command(LAMP, "retrieve", "/", None, {}), None),
        (Command(LAMP._replace(type=EntityType.POLICY), "modify", "/", b"{}", {}), None),
        (Message(LAMP, "to", "x", "/inbox/messages/x", None, {}), "live"),
        (LiveCommand(LAMP, "retrieve", "/", None, {}), "live"),
        (LiveEvent(LAMP, "modified", "/", b"1", {}), None),
        (Cancel(SubscriptionKind.HISTORY, "k", {}), None),
        (ack(X), None),
    ],
)
def test_changes_of_things_and_live_signals_can_request_acknowledgements(signal: Any, channel: str) -> None:
    assert channel_of(signal) == channel


# requests of a source


@each_row(
    ("includes", "functions", "requested", "qos", "expected"),
    [
        ([X], None, None, "1", [X]),
        ([X], None, [P], "1", [P, X]),
        ([P, X], None, [X], "1", [X, P]),
        ([X], None, [], "1", []),
        ([P], "fn:filter(header:qos,'ne','0')", None, "1", [P]),
        ([P], "fn:filter(header:qos,'ne','0')", None, "0", []),
        ([], "fn:filter(header:qos,'ne','0')", None, "0", []),
        ([], "fn:filter(header:qos,'ne','0')", None, "1", None),
        ([], "fn:filter('like','*seen*')", [X], "1", [X]),
        ([], "fn:filter('like','*seen*')", [P], "1", []),
        ([], "fn:delete()", ["it's no label"], "1", ["it's no label"]),
    ],
)
def test_3_8_a_source_includes_and_filters(
    includes: list[str], functions: str | None, requested: list[str] | None, qos: str, expected: list[str] | None
) -> None:
    headers: dict[str, Any] = {} if requested is None else {"requested-acks": requested}
    SourceAckRequests(includes, functions).apply(headers, "twin", PlaceholderContext(headers={"qos": qos}))
    assert headers.get("requested-acks") == expected


def test_an_invalid_filter_is_reported_at_once() -> None:
    with pytest.raises(PlaceholderError):
        SourceAckRequests([], "fn:nothing()")


# received acknowledgements


def aggregator(*labels: str) -> AckAggregator:
    return AckAggregator(LAMP, labels, "twin")


def test_an_aggregator_is_complete_with_the_last_label() -> None:
    waits = aggregator(P, X)
    assert not waits.is_complete
    assert list(waits.missing) == [P, X]
    assert waits.take(ack(X, 200))
    assert list(waits.missing) == [P]
    assert waits.take(ack(P))
    assert waits.is_complete
    assert list(waits.missing) == []
    assert [each.label for each in waits.acks] == [P, X]


def test_an_acknowledgement_that_was_not_requested_is_ignored() -> None:
    waits = aggregator(P)
    assert not waits.take(ack(X))
    assert (waits.is_complete, waits.acks) == (False, ())


def test_a_label_may_be_answered_several_times() -> None:
    waits = aggregator(X)
    waits.take(ack(X, 200))
    waits.take(ack(X, 400))
    assert (aggregate_status(waits.acks), waits.outcome) == (424, DROP)
    assert len(waits.acks) == 2


def test_a_real_acknowledgement_replaces_a_weak_one() -> None:
    for order in ([200, None], [None, 200]):
        waits = aggregator(X)
        for status in order:
            waits.take(weak(LAMP, X, "twin", "c-1") if status is None else ack(X, 202))
        assert [each.status for each in waits.acks] == [202]


def test_case_36_a_label_missing_at_the_timeout_becomes_408() -> None:
    waits = aggregator(P, X, "nobody:there")
    waits.take(ack(P, 201))
    waits.take(weak(LAMP, X, "twin", "c-1"))
    waits.expire("c-1", 2.0)
    assert [each.status for each in waits.acks] == [201, 200, 408]
    assert waits.acks[1].headers["ditto-weak-ack"] is True
    error = json.loads(waits.acks[2].value or b"")
    assert (error["status"], error["error"]) == (408, "acknowledgement:request.timeout")
    assert waits.acks[2].headers == {"correlation-id": "c-1"}
    assert (aggregate_status(waits.acks), waits.outcome) == (424, AGAIN)


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([204], 204),
        ([409], 409),
        ([408], 408),
        ([201, 200], 200),
        ([201, 404], 424),
        ([500, 408], 424),
        ([304, 200], 424),
    ],
)
def test_3_8_the_status_of_several_acknowledgements(statuses: list[int], expected: int) -> None:
    assert aggregate_status([ack(X, status) for status in statuses]) == expected


def test_a_response_as_an_acknowledgement_has_the_headers_that_the_command_did_not_bring() -> None:
    asked = {"correlation-id": "c-1", "mine": "x", "timeout": 3}
    response = Response(LAMP, "modify", "/", 204, None, {**asked, "etag": '"rev:2"'})
    found = acknowledgement_of(P, response, "twin", asked)
    assert (found.label, found.status, found.headers) == (P, 204, {"correlation-id": "c-1", "etag": '"rev:2"'})


# outcomes of deliveries


@each_row(
    ("statuses", "expected"),
    [
        ({P: 201}, SETTLE),
        ({P: 201, X: 204}, SETTLE),
        ({P: 201, X: 304}, SETTLE),
        ({P: 201, X: 400}, DROP),
        ({P: 201, X: 403}, DROP),
        ({P: 201, X: 412}, DROP),
        ({P: 201, X: 408}, AGAIN),
        ({P: 201, X: 424}, AGAIN),
        ({P: 201, X: 500}, AGAIN),
        ({P: 201, X: 503}, AGAIN),
        ({X: 400, "other:more": 503}, AGAIN),
        ({X: 503, "other:more": 400}, AGAIN),
        ({L: 200}, SETTLE),
        ({L: 400}, SETTLE),
        ({L: 500}, SETTLE),
        ({L: 408}, AGAIN),
        ({L: 500, X: 200}, SETTLE),
        ({L: 200, X: 500}, AGAIN),
    ],
)
def test_3_9_each_acknowledgement_has_its_own_outcome(statuses: dict[str, int], expected: Outcome) -> None:
    assert outcome_of_acks(statuses.items()) is expected


@each_row(
    ("status", "expected"),
    [(304, SETTLE), (400, DROP), (403, DROP), (404, DROP), (408, AGAIN), (412, SETTLE), (413, DROP), (424, AGAIN)]
    + [(status, AGAIN) for status in (500, 501, 503, 599)],
)
def test_3_9_a_command_that_is_refused(status: int, expected: Outcome) -> None:
    assert outcome_of_error(Fault(status, "things:any", "")) is expected


@pytest.mark.parametrize(
    "error", ["json.field.missing", "headers.too.large", "protocoladapter:unknown.path", "mediatype.unsupported"]
)
def test_3_9_an_unreadable_message_is_acknowledged_wherever_it_is_detected(error: str) -> None:
    assert outcome_of_error(Fault(400, error, "")) is SETTLE
    assert outcome_of_error(Fault(400, "header.invalid", "")) is DROP


def test_3_9_a_412_acknowledgement_rejects_the_message_and_a_412_error_acknowledges_it() -> None:
    assert (outcome_of_failure(412), outcome_of_error(Fault(412, "things:any", ""))) == (DROP, SETTLE)


@pytest.mark.parametrize(("status", "expected"), [(200, SETTLE), (404, SETTLE), (500, SETTLE), (408, AGAIN)])
def test_3_9_a_live_answer_fails_only_with_408(status: int, expected: Outcome) -> None:
    assert outcome_of_live_response(status) is expected


def test_the_worst_of_several_outcomes_applies() -> None:
    assert worse(SETTLE, DROP) is worse(DROP, SETTLE) is DROP
    assert worse(AGAIN, DROP) is worse(DROP, AGAIN) is AGAIN
    assert worse(SETTLE, SETTLE) is SETTLE


# incoming acknowledgements


@pytest.mark.parametrize(
    ("label", "error"),
    [
        (X, None),
        ("other:unseen", "acknowledgement:label.not.declared"),
        (P, "acknowledgement:ditto.acklabel.forbidden"),
        (L, "acknowledgement:ditto.acklabel.forbidden"),
    ],
)
def test_case_38_only_declared_labels_are_accepted(label: str, error: str | None) -> None:
    fault = refusal(ack(label), frozenset({X, P}))
    assert (fault.error if fault is not None else None) == error
    assert fault is None or fault.status == 400


def test_substituted_acknowledgements_have_the_channel_and_headers_of_the_signal() -> None:
    assert weak(LAMP, X, "live", None).headers == {"ditto-weak-ack": True}
    assert timed_out(LAMP, X, "live", "c-1", 2.5).channel == "live"
    assert aggregator(P).missing == ("twin-persisted",)


def test_a_list_of_labels_that_is_too_large_is_not_kept() -> None:
    before = parse.cache_info().currsize
    labels = [f"tenant:label-{number}" for number in range(1_000)]
    headers = {"requested-acks": labels}
    SourceAckRequests([], "fn:filter(header:qos,'ne','0')").apply(
        headers, "twin", PlaceholderContext(headers={"qos": "0"})
    )
    assert headers == {"requested-acks": labels}
    assert parse.cache_info().currsize - before <= 1
