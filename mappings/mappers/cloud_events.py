"""CloudEvents: messages of the Ditto protocol inside CloudEvents 1.0.

In binary mode the payload is the message and the attributes are transport headers (`ce-id` etc.); in structured mode the
payload is a JSON object with the attributes, and the message is in `data`, or in Base64 in `data_base64`. The content type
decides the mode; other content types are ignored. Only structured mode is written. CloudEvents 1.0, HTTP binding and JSON
format; Ditto connections, payload mapping.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from mappings.ditto import errors
from mappings.ditto.document import NOT_JSON
from mappings.ditto.messages import MESSAGE, json_bytes
from mappings.errors import DecodeError, mapping_failed
from mappings.ids import new_correlation_id
from mappings.json_values import finite_float
from mappings.mappers.base import Codec, PayloadMapper
from mappings.mappers.ditto import CODEC as DITTO
from mappings.model.envelope import Envelope
from mappings.model.signals import Inbound, Outbound, TwinEvent
from mappings.model.topic_path import topic_of
from mappings.placeholders.values import PlaceholderContext
from mappings.timestamps import utc_text

STRUCTURED = "application/cloudevents+json"
REQUIRED = ("specversion", "type", "source", "id")
SOURCE = "https://github.com/eclipse-ditto/ditto"
TYPE = "org.eclipse.ditto.outbound:"


class _Structured(msgspec.Struct):
    """A CloudEvent in JSON; other attributes are of no interest here."""

    specversion: Any = None
    type: Any = None
    source: Any = None
    id: Any = None
    data: msgspec.Raw = msgspec.Raw()
    data_base64: Any = None


_read = msgspec.json.Decoder(_Structured, float_hook=finite_float).decode


class CloudEventsCodec(PayloadMapper):
    """Messages of the Ditto protocol inside CloudEvents 1.0.

    The mapper reads both modes. Binary mode has the content type `application/vnd.eclipse.ditto+json` and the headers
    `ce-specversion`, `ce-type`, `ce-source` and `ce-id`. Structured mode has the content type
    `application/cloudevents+json` and the message in `data` or `data_base64`. The attributes `specversion`, `type`,
    `source` and `id` are required, and the event's ID becomes the correlation ID. The mapper ignores deliveries of other
    content types, and writes messages in structured mode.
    """

    reads_context = True
    reads_empty = True
    reads_headers = frozenset(f"ce-{name}" for name in REQUIRED)

    def decode(self, envelope: Envelope, session: Any) -> Sequence[Inbound]:  # noqa: ARG002
        match envelope.header("content-type"):
            case str(found) if found == MESSAGE:
                attributes = {name: envelope.header(f"ce-{name}") for name in REQUIRED}
                return _signals(_id(attributes, "the header 'ce-{}'"), envelope.payload)
            case str(found) if found == STRUCTURED:
                return _decode_structured(envelope.payload)
            case _:
                return ()

    def encode(self, signal: Outbound, session: Any) -> Sequence[Envelope]:
        return self.encode_with(signal, session, PlaceholderContext())

    def encode_with(self, signal: Outbound, session: Any, context: PlaceholderContext) -> Sequence[Envelope]:  # noqa: ARG002
        topic = topic_of(signal)
        time = signal.timestamp if isinstance(signal, TwinEvent) else utc_text(context.now(), "milliseconds")
        attributes = {
            "specversion": "1.0",
            "id": "",
            "source": SOURCE,
            "type": TYPE + str(topic).split("/", 2)[2],
            "time": time,
            "datacontenttype": MESSAGE,
        }
        if signal.entity is not None:
            attributes["subject"] = str(signal.entity)
        headers = {"content-type": STRUCTURED}
        envelopes = []
        for envelope in DITTO.encode(signal, None):
            attributes["id"] = envelope.headers.get("correlation-id") or _new_id(signal)
            payload = b'%b,"data":%b}' % (json_bytes(attributes)[:-1], envelope.payload)
            envelopes.append(Envelope(payload, headers))
        return envelopes


def _decode_structured(payload: bytes) -> Sequence[Inbound]:
    try:
        event = _read(payload)
    except NOT_JSON:
        raise DecodeError(errors.not_json(payload)) from None
    id = _id({name: getattr(event, name) for name in REQUIRED}, "the attribute '{}'")
    if event.data:
        return _signals(id, bytes(event.data))
    if not isinstance(event.data_base64, str):
        raise DecodeError(
            mapping_failed("A CloudEvent needs 'data' or 'data_base64', found neither."), headers=_headers(id)
        )
    try:
        data = base64.b64decode(event.data_base64, validate=True)
    except (binascii.Error, ValueError) as error:
        fault = mapping_failed("The 'data_base64' of a CloudEvent is not Base64.")
        raise DecodeError(fault, headers=_headers(id)) from error
    return _signals(id, data)


def _id(attributes: Mapping[str, object], called: str) -> str:
    """The id of an event with its needed attributes. Raises DecodeError where one is missing."""
    for name, value in attributes.items():
        if not isinstance(value, str) or not value:
            id = attributes["id"]
            headers = _headers(id) if isinstance(id, str) and id else {}
            raise DecodeError(mapping_failed(f"A CloudEvent needs {called.format(name)}, found none."), headers=headers)
    return str(attributes["id"])


def _headers(id: str) -> dict[str, object]:
    return {"correlation-id": id}


def _signals(id: str, payload: bytes) -> Sequence[Inbound]:
    """The signals of the message inside an event with this id."""
    if not payload:
        raise DecodeError(mapping_failed("The CloudEvent has no data."), headers=_headers(id))
    try:
        signals = DITTO.decode(Envelope(payload), None)
    except DecodeError as error:
        error.headers = {**error.headers, **_headers(id)}
        raise
    return [replace(signal, headers={**signal.headers, **_headers(id)}) for signal in signals]


def _new_id(signal: Outbound) -> str:
    """Return an ID for an event without correlation ID."""
    return f"{signal.entity}/{signal.revision}" if isinstance(signal, TwinEvent) else new_correlation_id()


CODEC: Codec = CloudEventsCodec()
