"""Live signals and their responses as sent; `test_request_reply_live.py` tests who gets them."""

from __future__ import annotations

import pytest

from connectivity.dispatch.live_channel import fits, forwarded_response, issued_response, outgoing
from connectivity.sources.acknowledgements import RequestedAcks
from mappings.model.signals import Command, LiveCommand, LiveResponse, Message, MessageResponse
from tests.support.in_process.service import LAMP
from tests.support.table import each_row

BLINK = Message(LAMP, "to", "blink", "/inbox/messages/blink", b"1", {"correlation-id": "c-1", "reply-to": "desk/4"})
TURN = LiveCommand(LAMP, "modify", "/attributes/on", b"true", {"correlation-id": "c-2"})


@pytest.mark.parametrize("is_of_peer", [False, True])
def test_a_sent_signal_shows_the_reply_address_of_its_sender_unless_that_is_a_peer(is_of_peer: bool) -> None:
    sent = outgoing(BLINK, RequestedAcks(("live-response",), True, 60), is_of_peer=is_of_peer)
    assert (sent.headers["correlation-id"], "reply-to" in sent.headers) == ("c-1", not is_of_peer)


def test_a_sent_signal_has_explicit_headers_about_its_acknowledgements() -> None:
    headers = outgoing(BLINK, RequestedAcks(("live-response",), True, 60), is_of_peer=False).headers
    assert (headers["response-required"], headers["requested-acks"]) == (True, ["live-response"])
    assert BLINK.headers.get("response-required") is None


def test_a_response_is_routed_by_the_headers_of_its_request() -> None:
    """A responder can neither redirect nor suppress the response."""
    headers = {
        "correlation-id": "c-1",
        "reply-to": "theirs",
        "response-required": False,
        "divert-response-to-connection": "theirs",
        "requested-acks": ["theirs:x"],
        "content-type": "text/plain",
        "more": "x",
    }
    answer = forwarded_response(
        MessageResponse(LAMP, "to", "blink", "/inbox/messages/blink", 200, b'"ok"', headers), BLINK, frozenset()
    )
    assert answer.headers == {**BLINK.headers, "content-type": "text/plain", "more": "x"}


@each_row(
    ("answer", "request_", "is_one"),
    [
        (MessageResponse(LAMP, "to", "blink", "/inbox/messages/blink", 200, None, {}), BLINK, True),
        (MessageResponse(LAMP, "to", "bleep", "/inbox/messages/bleep", 200, None, {}), BLINK, False),
        (MessageResponse(LAMP, "from", "blink", "/outbox/messages/blink", 200, None, {}), BLINK, False),
        (MessageResponse(LAMP, "to", "blink", "/inbox/messages/blink", 200, None, {}), TURN, False),
        (LiveResponse(LAMP, "modify", "/attributes/on", 204, None, {}), TURN, True),
        (LiveResponse(LAMP, "delete", "/attributes/on", 204, None, {}), TURN, False),
        (LiveResponse(LAMP, "modify", "/attributes/on", 204, None, {}), BLINK, False),
        (LiveResponse(LAMP, "modify", "/", 204, None, {}), Command(LAMP, "modify", "/", b"1", {}), False),
    ],
)
def test_3_10_an_answer_is_of_the_kind_of_its_request(
    answer: MessageResponse | LiveResponse, request_: object, is_one: bool
) -> None:
    assert fits(answer, request_) is is_one


def test_an_issued_answer_is_of_the_kind_of_its_request() -> None:
    for request in (BLINK, TURN):
        assert fits(issued_response(request, 200), request)
        assert issued_response(request, 503).status == 503
