"""The parsers of messages: the Ditto protocol, Streamr, and the payload mappers.

A message is decoded or refused with a DecodeError. A refusal has a response that can be sent, and a live signal is the
same after it was encoded and decoded again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from mappings.ditto.document import NOT_JSON, is_storable
from mappings.errors import DecodeError, Unresolved
from mappings.json_values import MAX_NESTING
from mappings.mappers import codec_names, load_codec
from mappings.mappers.base import Codec
from mappings.mappers.ditto import CODEC as DITTO
from mappings.mappers.streamr import CODEC as STREAMR
from mappings.model.envelope import Envelope
from mappings.model.headers import FIELDS, normalize
from mappings.model.signals import (
    Acknowledgement,
    Command,
    ErrorResponse,
    Inbound,
    LiveCommand,
    LiveEvent,
    LiveResponse,
    Message,
    MessageResponse,
)
from mappings.model.topic_path import parse_topic, topic_of
from mappings.placeholders.values import PlaceholderContext
from mappings.streamr.errors import UnknownVersion
from mappings.streamr.frames import Error, message_version, version_in
from mappings.streams.stream_id import parse_partition_name, partition_name
from tests.fuzzing.byte_reader import ByteReader
from tests.fuzzing.target import check_fault, target
from tests.support.odd_messages import BAD, ODD
from tests.support.streamr_frames import read_frame
from tests.support.vectors import ditto as ditto_vectors
from tests.support.vectors import streamr as streamr_vectors

_LIVE = Message | MessageResponse | LiveCommand | LiveResponse | LiveEvent | Acknowledgement
_LONG = 1 << 63


# ── the Ditto protocol ────────────────────────────────────────────────────────────────────────────────────────────────


DRAWN = b"\x01"
"""The first byte of an input from which a message is drawn; other inputs are messages."""


def read_ditto(data: bytes) -> None:
    if data.startswith(DRAWN):
        data = _drawn_ditto(ByteReader(data[1:]))
    check_storable(data)
    signals = decode_or_respond(DITTO, Envelope(data, {}))
    for signal in signals:
        assert parse_topic(str(topic_of(signal))) == topic_of(signal)
        if isinstance(signal, Command) and signal.value is not None:
            assert is_storable(signal.value)
        if isinstance(signal, _LIVE):
            check_round_trip(signal)


def _drawn_ditto(reader: ByteReader) -> bytes:
    message: dict[str, Any] = {"topic": reader.text(_TOPICS), "path": reader.text(_PATHS)}
    if reader.flag():
        message["headers"] = {reader.text(_NAMES): reader.json(_VALUES, 2) for _ in range(reader.below(5))}
    if reader.flag():
        drawn = {reader.text(_MEMBERS): reader.json((*_MEMBERS, *_VALUES), 3) for _ in range(reader.below(4))}
        message["value"] = drawn if reader.flag() else reader.json((*_MEMBERS, *_VALUES))
    for _ in range(reader.below(3)):
        message[reader.choice(("status", "fields", "extra", "revision", "topic", "value"))] = reader.json(_VALUES, 1)
    return msgspec.json.encode(message)


def decode_or_respond(codec: Codec, envelope: Envelope, context: PlaceholderContext | None = None) -> Sequence[Inbound]:
    """Return the signals of an envelope; none if it is refused, after encoding the error response."""
    try:
        if context is not None:
            return codec.decode_with(envelope, codec.session(), context)
        return codec.decode(envelope, codec.session())
    except DecodeError as error:
        check_fault(error.fault)
        response = ErrorResponse(error.entity, error.group, error.fault, error.headers, error.channel)
        for written in DITTO.encode(response, None):
            # Responses repeat headers, and quote little else.
            assert len(written.payload) <= 8 * len(envelope.payload) + 4000
            assert msgspec.json.decode(written.payload)["status"] == response.fault.status
    return ()


def check_round_trip(signal: Any) -> None:
    (written,) = DITTO.encode(signal, None)
    (again,) = DITTO.decode(written, None)
    assert type(again) is type(signal)
    for name in signal.__struct_fields__:
        if name not in ("headers", "extra"):
            assert getattr(again, name) == getattr(signal, name), name


def check_storable(data: bytes) -> None:
    """For valid JSON, the fast check of storability equals a slow one."""
    try:
        msgspec.json.decode(data)
    except NOT_JSON:
        return
    assert is_storable(data) == is_slowly_storable(data)


def is_slowly_storable(data: bytes) -> bool:
    try:
        text = data.decode()
        whole = json.loads(text, parse_int=_parse_long, parse_float=_parse_double)
    except (ValueError, RecursionError):
        return False
    return _depth(whole) <= MAX_NESTING + 1


def _parse_long(digits: str) -> int:
    if len(digits) > 20 or not -_LONG <= int(digits) < _LONG:
        raise ValueError(digits)
    return int(digits)


def _parse_double(digits: str) -> float:
    if abs(number := float(digits)) == float("inf"):
        raise ValueError(digits)
    return number


def _depth(value: Any) -> int:
    level, depth = [value], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return depth


_ROWS = [row for name in ("commands", "streaming", "search", "live", "refused") for row in ditto_vectors.load(name)]
_MESSAGES = [row["message"] for row in _ROWS if isinstance(row.get("message"), dict)]


def _sorted_texts(name: str) -> list[str]:
    return sorted({message[name] for message in _MESSAGES if isinstance(message.get(name), str)})


_TOPICS, _PATHS = _sorted_texts("topic"), _sorted_texts("path")
_NAMES = sorted(
    {
        *FIELDS,
        *(name for message in _MESSAGES if isinstance(message.get("headers"), dict) for name in message["headers"]),
    }
)
_MEMBERS = sorted(
    {name for message in _MESSAGES if isinstance(message.get("value"), dict) for name in message["value"]}
)
_VALUES = (
    *(
        "",
        "a:b",
        "acme.site:lamp-7",
        "2030-01-15T07:30:00Z",
        "5s",
        "-1",
        "true",
        "*",
        '"rev:1"',
        "skip",
        "twin",
        "live",
    ),
    *("twin-persisted", "eq(attributes/a,1)", "size(2)", "attributes(a,b)", "application/json", "fail", "x" * 300),
)

_DITTO_SEEDS = [
    *(
        ditto_vectors.payload(row)
        for name in ("commands", "streaming", "search", "live", "refused", "ignored")
        for row in ditto_vectors.load(name)
    ),
    *(row[0] for row in BAD.values()),
    *(row[0] for row in ODD.values()),
    *(DRAWN + bytes(range(number, number + 60)) for number in range(0, 190, 10)),
]
_DITTO_WORDS = (
    *(
        '"topic":"',
        '"path":"/',
        '"headers":{',
        '"value":{',
        '"fields":"',
        '"status":',
        '"revision":',
        "acme.site/lamp-7",
    ),
    *("/things/", "/policies/", "twin/", "live/", "commands/", "events/", "messages/", "acks/", "errors", "search/"),
    *("streaming/", "create", "modify", "merge", "retrieve", "delete", "subscribe", "request", "cancel", "_/_/"),
    *("subscribeForPersistedEvents", '"subscriptionId":"', '"demand":', '"fromHistoricalRevision":', '"filter":"'),
    *("/attributes/", "/features/", "/properties", "/desiredProperties", "/definition", "/policyId", "/entries/"),
    *(
        "/subjects/",
        "/resources/",
        "/imports/",
        "inbox/messages/",
        "outbox/messages/",
        "twin-persisted",
        "live-response",
    ),
    *('"correlation-id":"', '"timeout":', '"if-match":"', '"requested-acks":[', '"response-required":', '"version":2'),
    *("\\u0000", "\\ud83d\\ude00", "~0", "9223372036854775808", "1e999", "null", "true", "[[[[", '{"a":'),
)

# ── Streamr ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_streamr(data: bytes) -> None:
    """A request is read or refused, and clients can read the frame of a refusal."""
    if data.startswith(DRAWN):
        data = _drawn_streamr(ByteReader(data[1:]))
    try:
        STREAMR.decode(Envelope(data, {}), None)
    except DecodeError as error:
        check_fault(error.fault)
        response = ErrorResponse(None, "things", error.fault, {"correlation-id": "c-1"})
        (written,) = STREAMR.encode(response, None)
        frame = read_frame(written.payload)
        assert isinstance(frame, Error)
        assert frame.text == response.fault.message
    _read_query(data.decode("utf-8", "replace"))


def _drawn_streamr(reader: ByteReader) -> bytes:
    request: dict[str, Any] = {"type": reader.choice(_REQUEST_TYPES), "stream": reader.text(_STREAMS)}
    for _ in range(reader.below(7)):
        request[reader.text(_REQUEST_MEMBERS)] = reader.json(_REQUEST_VALUES, 1)
    return msgspec.json.encode(request)


_REQUEST_TYPES = ("publish", "subscribe", "unsubscribe", "resend", "resend", "disconnect")
_REQUEST_MEMBERS = (
    *(
        "stream",
        "partition",
        "authKey",
        "msg",
        "ts",
        "pkey",
        "sub",
        "version",
        "resend_all",
        "resend_from",
        "resend_to",
    ),
    *("resend_last", "resend_from_time"),
)
_STREAMS = ("tank-9", "things/acme:lamp-7", "policies/acme:lamps", "things/x", "", "ä" * 127, "ä" * 128, "tank/0")
_REQUEST_VALUES = (
    *(
        "{}",
        "1",
        "{nope",
        "2030-01-15T07:30:00Z",
        "1894690200000",
        " -7.5 ",
        "9999999999999999",
        "2030-01-15",
        "k",
        "\ud7ff",
    ),
    *("0001-01-01T00:00:00+14:00", "s" * 255, "s" * 256),
)


def _read_query(text: str) -> None:
    control, _, message = text.partition(" ")
    with contextlib.suppress(UnknownVersion):
        version = message_version({"controlLayerVersion": control, "messageLayerVersion": message})
        assert version_in({"streamr-version": message}) == version
    if (found := parse_partition_name(text)) is not None:
        assert partition_name(*found) == text


_STREAMR_SEEDS = [
    *(DRAWN + bytes(range(number, number + 30)) for number in range(0, 200, 20)),
    *(streamr_vectors.payload(row) for name in ("requests", "refused") for row in streamr_vectors.rows(name)),
    b"0 28",
    b"0 29",
    b"tank-9/12",
]
_STREAMR_WORDS = (
    *(
        '"type":"',
        "publish",
        "subscribe",
        "unsubscribe",
        "resend",
        "disconnect",
        '"stream":"',
        '"partition":',
        '"msg":"',
    ),
    *('"ts":', '"pkey":"', '"authKey":"', '"sub":"', '"version":0', '"resend_all":true', '"resend_from":', "things/"),
    *('"resend_to":', '"resend_last":', '"resend_from_time":', "policies/", "2030-01-15T07:30:00Z", "null", '"{}"'),
)

# ── the payload mappers ───────────────────────────────────────────────────────────────────────────────────────────────

_CONTENT_TYPES = (
    *(
        "application/json",
        "application/vnd.eclipse.ditto+json",
        "application/cloudevents+json",
        "text/plain;charset=utf-16",
    ),
    *(
        "application/octet-stream",
        "application/vnd.eclipse-hono-empty-notification",
        "text/plain",
        "application/x+json; a",
    ),
)
_HEADERS: tuple[dict[str, str], ...] = (
    {},
    {"device_id": "acme:lamp", "ttd": "-1", "creation-time": "7", "subject": "on"},
    {"ce-specversion": "1.0", "ce-type": "t", "ce-source": "s", "ce-id": "7"},
    {
        "ditto-message-subject": "on",
        "ditto-message-direction": "TO",
        "ditto-message-thing-id": "acme:lamp",
        "status": "2",
    },
)


@cache
def _mappers() -> list[Codec]:
    options: dict[str, dict[str, Any]] = {
        "java_script": {"incomingScript": "x", "outgoingScript": "y"},
        "implicit_thing_creation": {
            "thing": {"thingId": "acme:{{ header:device_id }}", "attributes": {"a": "{{ header:b }}"}}
        },
        "connection_status": {"thingId": "acme:{{ header:device_id }}"},
    }
    return [load_codec(name).configure(options.get(name, {})) for name in codec_names()]


def map_payload(data: bytes) -> None:
    """A payload mapper decodes a payload or refuses it.

    The first three bytes select mapper, content type and headers; lines up to an empty one are further headers.
    """
    how, rest = data[:3].ljust(3, b"\0"), data[3:]
    mapper = _mappers()[how[0] % len(_mappers())]
    head, _, payload = rest.partition(b"\n\n")
    given = dict(line.partition(":")[::2] for line in head.decode("utf-8", "replace").split("\n"))
    headers = {
        **_HEADERS[how[2] % len(_HEADERS)],
        **given,
        "content-type": _CONTENT_TYPES[how[1] % len(_CONTENT_TYPES)],
    }
    context = PlaceholderContext(headers=headers, connection_id="site", subjects=("acme:site",))
    envelope = Envelope(payload, headers)
    try:
        decode_or_respond(mapper, envelope, context)
    except Unresolved:
        assert mapper.reads_context
    try:
        normalize(headers, mapped=True)
    except DecodeError as error:
        check_fault(error.fault)


_EVENT = (
    b'{"specversion":"1.0","type":"t","source":"s","id":"7","data":'
    b'{"topic":"acme/lamp/things/twin/commands/modify","path":"/attributes/a","value":1}}'
)
_MAPPER_SEEDS = [
    bytes([mapper, kind, headers]) + b"correlation-id:c-1\n\n" + payload
    for mapper in range(len(codec_names()))
    for kind, headers, payload in (
        (0, 1, _DITTO_SEEDS[0]),
        (2, 0, _EVENT),
        (1, 2, _DITTO_SEEDS[0]),
        (3, 3, b"\xff\xfea\0"),
        (6, 0, b"on"),
    )
]

TARGETS = {
    "ditto": target(read_ditto, [seed for seed in _DITTO_SEEDS if len(seed) < 4096], _DITTO_WORDS),
    "streamr": target(read_streamr, [seed for seed in _STREAMR_SEEDS if len(seed) < 4096], _STREAMR_WORDS),
    "mappers": target(
        map_payload, _MAPPER_SEEDS, (*_DITTO_WORDS[:30], *("data_base64", "ttd:", "timeout:", "if-match:"))
    ),
}
