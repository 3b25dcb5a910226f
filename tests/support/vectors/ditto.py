"""The vector files of the Ditto protocol: messages and their meanings.

`commands.json`, `streaming.json` and `search.json` have a message and its signal, `live.json` a message and several
signals, `refused.json` a message and its error, `ignored.json` messages without a meaning, and `outgoing.json` a signal and
its messages. A message is JSON (`message`), a text that JSON cannot hold (`text`), or bytes that are not text (`hex`).
"""

from __future__ import annotations

import json
from typing import Any

from mappings.errors import Fault
from mappings.ids import EntityId, EntityType
from mappings.model.envelope import Envelope
from mappings.model.signals import (
    Acknowledgement,
    Acknowledgements,
    Cancel,
    Command,
    Complete,
    ConnectionAnnouncement,
    Created,
    EndReason,
    ErrorResponse,
    Event,
    Failed,
    HistoryQuery,
    LiveCommand,
    LiveEvent,
    LiveResponse,
    Message,
    MessageResponse,
    Next,
    PolicyAnnouncement,
    Request,
    Response,
    SearchQuery,
    Subscribe,
    SubscriptionKind,
    TwinEvent,
)
from tests.support.paths import VECTORS

_LIVE = {
    each.__name__: each for each in (Message, MessageResponse, LiveCommand, LiveResponse, LiveEvent, Acknowledgement)
}

FOLDER = VECTORS / "ditto"


def load(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return rows


def about(row: dict[str, Any]) -> str:
    return str(row["about"]).replace(" ", "_")


def payload(row: dict[str, Any]) -> bytes:
    if "hex" in row:
        return bytes.fromhex(row["hex"])
    if "text" in row:
        return str(row["text"]).encode()
    return json.dumps(row["message"], ensure_ascii=False).encode()


def envelope(row: dict[str, Any]) -> Envelope:
    return Envelope(payload(row), {})


def entity(text: str | None) -> EntityId | None:
    """Return the entity of a text such as `thing acme.site:lamp-7`; None for None."""
    if text is None:
        return None
    type, _, id = text.partition(" ")
    namespace, _, name = id.partition(":")
    return EntityId(EntityType(type), namespace, name)


def raw(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def event(row: dict[str, Any]) -> Event:
    members = {**row, "entity": entity(row["entity"]), "value": raw(row["value"]), "headers": raw(row["headers"])}
    return Event(**members)


def fault(row: dict[str, Any]) -> Fault:
    return Fault(row["status"], row["error"], row["message"], row.get("description"), row.get("extra", {}))


def signal(row: dict[str, Any]) -> Any:
    """Return the signal of a vector: its type is in `is`, and its members have their own names."""
    members = {name: value for name, value in row.items() if name != "is"}
    kind = SubscriptionKind(members.pop("kind", "history"))
    if "entity" in members:
        members["entity"] = entity(members["entity"])
    match row["is"]:
        case "Command":
            return Command(**{**members, "value": raw(members["value"])})
        case "TwinEvent":
            extra = raw(members.pop("extra", None))
            return TwinEvent(**{**members, "value": raw(members["value"])}, extra=extra)
        case "ConnectionAnnouncement":
            return ConnectionAnnouncement(**{**members, "value": members["value"].encode()})
        case "Response":
            return Response(**{**members, "value": raw(members["value"])})
        case "PolicyAnnouncement":
            return PolicyAnnouncement(
                **{**members, "value": members["value"].encode(), "subjects": tuple(members["subjects"])}
            )
        case name if name in _LIVE:
            return _LIVE[name](**{**members, "value": raw(members["value"])})
        case "Acknowledgements":
            return Acknowledgements(**{**members, "acks": tuple(map(signal, members["acks"]))})
        case "ErrorResponse":
            return ErrorResponse(**{**members, "fault": fault(members["fault"])})
        case "Subscribe" if kind is SubscriptionKind.SEARCH:
            asked = members["query"]
            asked["namespaces"] = tuple(asked.get("namespaces", ()))
            asked["aggregation"] = raw(asked.get("aggregation"))
            return Subscribe(kind, SearchQuery(**asked), members["headers"])
        case "Subscribe":
            bounds = members["query"]
            query = HistoryQuery(
                entity(bounds["entity"]) or _no_entity(),
                bounds["from"],
                bounds["to"],
                bounds["after"],
                bounds["before"],
                bounds["filter"],
            )
            return Subscribe(SubscriptionKind.HISTORY, query, members["headers"])
        case "Request":
            return Request(kind, **members)
        case "Cancel":
            return Cancel(kind, **members)
        case "Created":
            return Created(kind, **members)
        case "Complete":
            return Complete(kind, **members)
        case "Next" if kind is SubscriptionKind.SEARCH:
            return Next(kind, **{**members, "elements": [page.encode() for page in members["elements"]]})
        case "Next":
            return Next(
                SubscriptionKind.HISTORY, **{**members, "elements": [event(element) for element in members["elements"]]}
            )
        case "Failed":
            reason = members["reason"]
            found = EndReason[reason] if isinstance(reason, str) else fault(reason)
            return Failed(kind, **{**members, "reason": found})
        case other:
            raise ValueError(f"found a signal '{other}' in a vector file")


def _no_entity() -> EntityId:
    raise ValueError("found a subscribe without an entity in a vector file")
