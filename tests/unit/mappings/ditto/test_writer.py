"""Signals as messages, where the vector files do not say it all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import get_args

import pytest

from mappings.ditto.writer import WRITERS
from mappings.errors import Fault
from mappings.ids import EntityId, EntityType
from mappings.model.envelope import Envelope
from mappings.model.signals import (
    Acknowledgement,
    Acknowledgements,
    Complete,
    EndReason,
    ErrorResponse,
    Failed,
    LiveCommand,
    LiveResponse,
    Message,
    MessageResponse,
    Outbound,
    Response,
    SubscriptionKind,
    TwinEvent,
)
from tests.support.table import each_row

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")


def write(signal: Outbound) -> Sequence[Envelope]:
    return WRITERS[type(signal)](signal)


ENDINGS = [
    *((SubscriptionKind.SEARCH, "thing-search:subscription.", reason) for reason in EndReason),
    *(
        (SubscriptionKind.HISTORY, "streaming.subscription.", reason)
        for reason in EndReason
        if reason is not EndReason.ABORTED
    ),
]


@each_row(("kind", "prefix", "reason"), ENDINGS)
def test_every_ending_has_its_message(kind: SubscriptionKind, prefix: str, reason: EndReason) -> None:
    (envelope,) = write(Failed(kind, "key-{1}", LAMP, {}, reason))
    error = json.loads(envelope.payload)["value"]["error"]
    assert error["error"].startswith(prefix)
    assert set(error) == {"status", "error", "message"} | ({"description"} if reason is EndReason.ABORTED else set())


ASKING = {"response-required": True}
ACK = Acknowledgement(LAMP, "a:b", 204, None, ASKING, "twin")


@each_row(
    "signal",
    [
        Response(LAMP, "delete", "/", 204, None, ASKING),
        ErrorResponse(LAMP, "things", Fault(404, "things:thing.notfound", "Gone."), ASKING),
        TwinEvent(LAMP, 7, "2030-01-15T07:30:00Z", "deleted", "/", None, ASKING),
        LiveResponse(LAMP, "delete", "/", 204, None, ASKING),
        MessageResponse(LAMP, "to", "turn", "/inbox/messages/turn", 200, None, ASKING),
        ACK,
        Acknowledgements(LAMP, (ACK,), 200, ASKING),
    ],
)
def test_responses_and_events_never_ask_for_a_response(signal: Outbound) -> None:
    (envelope,) = write(signal)
    assert json.loads(envelope.payload)["headers"]["response-required"] is False


def test_a_response_omits_headers_that_only_the_service_reads() -> None:
    headers = {"correlation-id": "c-1", "if-match": "*", "condition": "exists(a)", "authorization": "secret"}
    for signal in (
        Response(LAMP, "delete", "/", 204, None, headers),
        ErrorResponse(LAMP, "things", Fault(404, "things:thing.notfound", "Gone."), headers),
        Complete(SubscriptionKind.HISTORY, "k", LAMP, headers),
    ):
        (envelope,) = write(signal)
        assert not {"if-match", "condition", "authorization"} & set(json.loads(envelope.payload)["headers"])


def test_a_fault_has_its_own_members_beside_its_message() -> None:
    fault = Fault(400, "header.invalid", "No.", None, {"invalidHeaderKey": "version"})
    (envelope,) = write(ErrorResponse(None, "things", fault, {}))
    assert json.loads(envelope.payload)["value"] == {
        "status": 400,
        "error": "header.invalid",
        "message": "No.",
        "invalidHeaderKey": "version",
    }


def test_a_failed_envelope_has_no_status_of_its_own() -> None:
    (envelope,) = write(Failed(SubscriptionKind.HISTORY, "k", LAMP, {}, EndReason.IDLE))
    assert "status" not in json.loads(envelope.payload)


def test_every_signal_that_the_service_sends_has_a_writer() -> None:
    assert set(WRITERS) == set(get_args(Outbound))


def test_a_live_message_and_its_response_keep_their_headers() -> None:
    headers = {"correlation-id": "c-1", "response-required": True, "site": "hall"}
    path = "/features/bulb/inbox/messages/turn"
    (question,) = write(Message(LAMP, "to", "turn", path, b'"on"', headers))
    assert json.loads(question.payload) == {
        "topic": "acme.site/lamp-7/things/live/messages/turn",
        "headers": {**headers, "version": 2},
        "path": path,
        "value": "on",
    }
    (answer,) = write(MessageResponse(LAMP, "to", "turn", path, 200, None, headers))
    assert json.loads(answer.payload)["status"] == 200
    assert dict(answer.headers)["correlation-id"] == "c-1"


@pytest.mark.parametrize(("channel", "topic"), [("live", "live/acks/a:b"), ("twin", "twin/acks/a:b")])
def test_an_acknowledgement_is_about_the_whole_entity(channel: str, topic: str) -> None:
    (envelope,) = write(Acknowledgement(LAMP, "a:b", 204, None, {}, channel))
    written = json.loads(envelope.payload)
    assert (written["topic"], written["path"], written["status"]) == (f"acme.site/lamp-7/things/{topic}", "/", 204)


def test_live_commands_and_their_answers_have_the_live_topic() -> None:
    topic = "acme.site/lamp-7/things/live/commands/retrieve"
    for signal in (
        LiveCommand(LAMP, "retrieve", "/attributes/on", None, {}),
        LiveResponse(LAMP, "retrieve", "/attributes/on", 200, b"true", {}),
    ):
        (envelope,) = write(signal)
        assert json.loads(envelope.payload)["topic"] == topic
