"""The error messages of the protocol, whose length is bounded whatever they quote."""

from __future__ import annotations

from mappings.errors import Fault
from mappings.streamr import errors
from mappings.streams.stream_id import LONGEST_STREAM_ID
from tests.support.table import each_row

TEXTS = {
    "E-JSON": (errors.not_an_object(), 400, "Request is not a JSON object"),
    "E-SIZE": (errors.too_large(), 413, "Request too large"),
    "E-TYPE": (errors.unknown_type("dance"), 400, "Unknown request type: dance"),
    "E-VERSION": (errors.unknown_version(1), 400, "Unsupported version: 1"),
    "E-PUB-NOSTREAM": (errors.publish_without_stream(), 400, "Publish request is missing the stream id!"),
    "E-PUB-TS": (errors.invalid_timestamp("soon"), 400, "Invalid timestamp: soon"),
    "E-PUB-NOTSTRING": (errors.message_not_a_string(), 400, "Message must be stringified JSON!"),
    "E-PUB-EMPTY": (errors.message_empty(), 400, "Publish request failed: empty content"),
    "E-PUB-JSON": (errors.message_not_json(), 400, "Publish request failed: content is not JSON"),
    "E-PUB-PKEY": (errors.key_not_a_string(), 400, "Publish request failed: pkey must be a string"),
    "E-PUB-MSG": (
        errors.message_not_ditto("things/acme:lamp-7"),
        400,
        "Publish request failed: content is not a Ditto command for things/acme:lamp-7",
    ),
    "E-PUB-401": (
        errors.publish_unauthenticated("tank"),
        401,
        "Authentication failed while trying to publish to stream tank",
    ),
    "E-PUB-403": (errors.publish_forbidden("tank"), 403, "You are not allowed to write to stream tank"),
    "E-PUB-404": (errors.stream_not_found("tank"), 404, "Stream tank not found."),
    "E-PUB-503": (errors.publish_failed("disk full"), 503, "Publish request failed: disk full"),
    "E-SUB-NOSTREAM": (
        errors.without_stream(),
        400,
        "Error: stream id not defined. Are you using an outdated client?",
    ),
    "E-SUB-AUTH": (
        errors.not_authorized("tank", 2),
        403,
        "Not authorized to subscribe to stream tank and partition 2",
    ),
    "E-SUB-PARTITION": (errors.invalid_partition("tank", 9), 400, "Invalid partition 9 for stream tank"),
    "E-UNSUB": (errors.not_subscribed("tank", 2), 404, "Not subscribed to stream tank partition 2!"),
    "E-RESEND": (
        errors.resend_failed("tank", 2, "cut"),
        503,
        "Failed to request resend from stream tank and partition 2: cut",
    ),
    "E-RESEND forbidden": (
        errors.resend_forbidden("tank", 2),
        403,
        "Failed to request resend from stream tank and partition 2: not authorized",
    ),
    "E-RESEND-OPT": (errors.unknown_resend_options({}), 400, "Unknown resend options: {}"),
    "E-RESEND-SUB": (errors.resend_without_sub(), 400, "Subscription ID not given!"),
    "E-LIMIT": (errors.limit_exceeded("subscriptions"), 429, "Limit exceeded: subscriptions"),
}


@each_row("name", TEXTS)
def test_every_cause_has_its_text_and_status(name: str) -> None:
    fault, status, text = TEXTS[name]
    assert (fault.status, fault.message) == (status, text)
    assert fault.error.startswith("streamr:")


def test_a_valid_stream_id_is_quoted_whole_and_a_longer_one_is_cut() -> None:
    def text_length(fault: Fault) -> int:
        return len(fault.message)

    lawful = "s" * LONGEST_STREAM_ID
    assert lawful in errors.stream_not_found(lawful).message
    assert text_length(errors.stream_not_found("s" * 100_000)) == text_length(errors.stream_not_found(lawful)) + 1
    assert text_length(errors.unknown_resend_options({"resend_from": ["x"] * 100_000})) < 300
