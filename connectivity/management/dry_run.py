"""A dry run: how a source would decode a message, and where the responses would go.

Nothing is dispatched or sent. The message passes through the same reader as a delivery: header mapping, payload mapping with
scripts, placeholders, enforcement. For each resulting signal, an example of a successful response and of an error are
encoded.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, TypeAlias

from msgspec import structs

from connectivity.connections.model import Connection
from connectivity.connections.templates import DIVERT_TO
from connectivity.errors import OperationRefused, Problem
from connectivity.management import faults
from connectivity.management.definition import SampleMessage
from connectivity.mapping.script_host import ScriptHost
from connectivity.monitoring.prometheus import PrometheusRegistry
from connectivity.sources.reader import ReceivedSignal, SourceReader
from connectivity.targets.outbox import Outbox
from connectivity.targets.reply_target import (
    ADDRESS_UNRESOLVED,
    NO_REPLY_TARGET,
    NOT_ENCODED,
    NOT_EXPECTED,
    ReplyTargetPublisher,
    reply_publishers,
)
from connectivity.transports import load_connection_type
from connectivity.transports.base import Delivery, Outcome
from mappings.errors import Fault, MappingError
from mappings.model.envelope import Envelope
from mappings.model.signals import (
    Cancel,
    Command,
    Created,
    ErrorResponse,
    Failed,
    Inbound,
    LiveCommand,
    LiveResponse,
    Message,
    MessageResponse,
    Outbound,
    Request,
    Response,
    SessionMessage,
    Subscribe,
)
from mappings.model.topic_path import topic_of

Shown: TypeAlias = dict[str, Any]

WHY_NOT: Mapping[str, str] = {
    NO_REPLY_TARGET: "the source's replyTarget is not enabled",
    NOT_EXPECTED: "the message requires no response, or expectedResponseTypes of the replyTarget excludes this kind",
    ADDRESS_UNRESOLVED: "the replyTarget's address cannot be resolved: map the headers that it uses in the headerMapping "
    "of the source",
    NOT_ENCODED: "the payload mapping produces no message for it",
}

REFUSED = Fault(404, "things:thing.notfound", "Example of an error response in a dry run.")
_STATUSES = {"create": 201, "retrieve": 200}
_CHANGED = 204


async def dry_run(
    connection: Connection, sample: SampleMessage, *, max_payload: int, now: Callable[[], datetime]
) -> Shown:
    """Return the result as JSON.

    `signals`: each with `topic`, `path`, `headers`, `value`, its `mapper`, and in `replies` its `response` and `error`
    (`created` and `failed` of a subscription): `messages` with `address`, `headers` and `payload`, or `nothing`, the reason
    why none is sent. `error`: an unreadable or forbidden message, with its `replies`. Raises OperationRefused for an unknown
    source.
    """
    _check_source(connection, sample.source)
    host = ScriptHost()
    try:
        routes = reply_publishers(
            connection, sample.source, Outbox(), PrometheusRegistry().meter(connection.id), now, host
        )
        reader = SourceReader(*routes, max_payload=max_payload)
        address = sample.address or connection.sources[sample.source].addresses[0]
        delivery = Delivery(
            Envelope(sample.payload, _headers_of(connection, address, sample)), address, None, False, _ignore
        )
        prepared = await reader.prepare([delivery])
        received = reader.receive(delivery, *prepared)
        shown: Shown = {
            "source": sample.source,
            "address": address,
            "subjects": list(received.subjects),
            "signals": [await _signal_report(received_signal) for received_signal in received.signals],
        }
        if received.error is not None:
            assert received.route is not None
            hint = "" if sample.address else _hint_of_filter(connection, address)
            shown["error"] = await _error_report(received.error, received.route, hint)
        return shown
    finally:
        await host.close()


def _check_source(connection: Connection, index: int) -> None:
    """Raise OperationRefused for an unknown source."""
    if not 0 <= index < (number := len(connection.sources)):
        expected = f"the index of a source, from 0 to {number - 1}" if number else "a connection with sources"
        problem = Problem("sample.source", str(index), expected)
        raise OperationRefused(faults.invalid([problem]), [problem])


async def _error_report(error: ErrorResponse, route: ReplyTargetPublisher, hint: str) -> Shown:
    fault = error.fault
    return {
        "status": fault.status,
        "error": fault.error,
        "message": fault.message,
        "description": " ".join(text for text in (fault.description, hint) if text) or None,
        "replies": {"error": await _reply_messages(route, error, unasked=True)},
    }


def _headers_of(connection: Connection, address: str, sample: SampleMessage) -> dict[str, str]:
    """Return the headers of the sample, and the one that the transport sets from the address."""
    name = load_connection_type(connection.connection_type).address_header
    return {**({} if name is None else {name: address}), **sample.headers}


def _hint_of_filter(connection: Connection, address: str) -> str:
    """Return what to do about a sample that was received at a filter, where no message arrives."""
    if not load_connection_type(connection.connection_type).is_filter(address):
        return ""
    return (
        f"The sample was received at the source's first address, {address!r}, which is a filter: name the address that the "
        "sender publishes to (`--address`, or `address` of the sample)."
    )


def _ignore(_delivery: Delivery, _outcome: Outcome) -> None:
    """Ignore the outcome: no broker has delivered the message."""


async def _signal_report(received_signal: ReceivedSignal) -> Shown:
    signal, route = received_signal.signal, received_signal.route
    shown: Shown = {
        "mapper": route.mapper.name,
        "topic": str(topic_of(signal)),
        "path": getattr(signal, "path", "/"),
        "headers": dict(signal.headers),
        "value": _value(signal),
    }
    for name in ("fields", "status"):
        if (found := getattr(signal, name, None)) is not None:
            shown[name] = found
    shown["replies"] = {kind: await _reply_messages(route, answer) for kind, answer in answers_to(signal)}
    if DIVERT_TO in signal.headers:
        shown["divertedTo"] = signal.headers[DIVERT_TO]
    return shown


def _value(signal: Inbound) -> Any:
    match signal:
        case Subscribe(query=query):
            members = {
                name: value
                for name, value in structs.asdict(query).items()
                if name != "entity" and value not in (None, ())
            }
            return {
                name: payload_as_json(value) if isinstance(value, bytes) else value for name, value in members.items()
            }
        case Request(key=key, demand=demand):
            return {"subscriptionId": key, "demand": demand}
        case Cancel(key=key):
            return {"subscriptionId": key}
        case SessionMessage(request=bytes() as raw):
            return {"bytes": raw.hex(" ")}
        case SessionMessage(request=request):
            members = {name: value for name, value in asdict(request).items() if name != "auth_key"}
            return {"type": type(request).__name__.lower(), **members}
        case _:
            return None if signal.value is None else payload_as_json(signal.value)


def answers_to(signal: Inbound) -> Sequence[tuple[str, Outbound]]:
    """Return example responses to a signal, one of success and one of failure; none to a response."""
    headers = signal.headers
    match signal:
        case Command(entity=entity, action=action, path=path):
            value = b"{}" if action == "retrieve" else None
            good: Outbound = Response(entity, action, path, _STATUSES.get(action, _CHANGED), value, headers)
            return ("response", good), ("error", ErrorResponse(entity, entity.type.group, REFUSED, headers))
        case LiveCommand(entity=entity, action=action, path=path):
            good = LiveResponse(entity, action, path, _STATUSES.get(action, _CHANGED), None, headers)
            return ("response", good), ("error", ErrorResponse(entity, "things", REFUSED, headers, "live"))
        case Message(entity=entity, direction=direction, subject=subject, path=path):
            good = MessageResponse(entity, direction, subject, path, 200, None, headers)
            return ("response", good), ("error", ErrorResponse(entity, "things", REFUSED, headers, "live"))
        case Subscribe(kind=kind, query=query, key=key):
            key = key or "example"
            created = Created(kind, key, query.entity, headers)
            return ("created", created), ("failed", Failed(kind, key, query.entity, headers, REFUSED))
        case Request(kind=kind, key=key, entity=entity):
            return (("failed", Failed(kind, key, entity, headers, REFUSED)),)
        case SessionMessage():
            return (("error", ErrorResponse(None, "things", REFUSED, headers)),)
        case _:
            return ()


async def _reply_messages(route: ReplyTargetPublisher, signal: Outbound, *, unasked: bool = False) -> Shown:
    """Return the messages of a signal."""
    try:
        messages = await route.preview_messages(signal, unasked=unasked)
    except MappingError as error:
        return {"nothing": f"it cannot be encoded: {error}"}
    if isinstance(messages, str):
        return {"nothing": WHY_NOT[messages]}
    return {
        "messages": [
            {
                "address": each.address,
                "headers": dict(each.envelope.headers),
                "payload": payload_as_json(each.envelope.payload),
            }
            for each in messages
        ]
    }


def payload_as_json(payload: bytes) -> Any:
    """Return a payload as JSON: its value, or text, or base64."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return base64.b64encode(payload).decode()
    try:
        return json.loads(text, parse_float=_finite, parse_constant=str)
    except (ValueError, RecursionError):
        return text


def _finite(text: str) -> float | str:
    """A number too large for JSON's readers stays a text."""
    number = float(text)
    return text if number in (float("inf"), float("-inf")) else number
