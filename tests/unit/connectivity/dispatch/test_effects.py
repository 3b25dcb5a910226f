"""The effects of deliveries: encoding of responses, and grouping by delivery."""

from __future__ import annotations

from typing import Any, cast

from connectivity.dispatch.effects import (
    RespondEffect,
    decode_response,
    encode_response,
    group_by_arrival,
    internal_error,
)
from mappings.errors import INTERNAL_ERROR
from mappings.model.signals import Command, Response
from tests.support.in_process.service import LAMP

COMMAND = Command(LAMP, "modify", "/attributes/on", b"true", {"correlation-id": "1", "etag": "mine"})
ANSWER = Response(LAMP, "modify", "/attributes/on", 204, None, {"correlation-id": "1", "etag": '"rev:2"'})


def test_a_stored_response_gets_the_headers_of_the_current_requester() -> None:
    again = Command(LAMP, "modify", "/attributes/on", b"true", {"correlation-id": "2"})
    response = decode_response(encode_response(ANSWER, COMMAND), again)
    assert response == Response(LAMP, "modify", "/attributes/on", 204, None, {"correlation-id": "2", "etag": '"rev:2"'})


def test_a_response_that_cannot_be_sent_becomes_an_internal_error() -> None:
    error = internal_error(ANSWER)
    assert (error.entity, error.group, error.fault, error.headers) == (LAMP, "things", INTERNAL_ERROR, ANSWER.headers)


def test_effects_of_one_delivery_stay_together_in_their_order() -> None:
    first, second = cast(Any, object()), cast(Any, object())
    steps = [RespondEffect(arrival, ANSWER, cast(Any, None)) for arrival in (first, second, first)]
    assert group_by_arrival([*steps]) == [(first, [steps[0], steps[2]]), (second, [steps[1]])]
