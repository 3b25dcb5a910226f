"""What the API answers, made ready for people: rows for tables, lines, YAML. Pure functions.

An answer is JSON of a service that may be newer or older than this program: what is missing is shown as missing, and what
has another shape than expected is left out, never a reason to fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, object]

WINDOWS = {"PT1M": "minute", "PT1H": "hour", "PT24H": "day"}
_OUTCOMES = ("success", "failure")
_RESOURCES = ("clientStatus", "sourceStatus", "targetStatus", "sshTunnelStatus")


def as_yaml(document: object) -> str:
    """The document as YAML, in its own order."""
    import yaml

    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1_000_000)


def connections(found: object) -> list[Row]:
    """One row for each connection of a list."""
    return [
        {
            "id": each.get("id"),
            "type": each.get("connectionType"),
            "wanted": each.get("connectionStatus"),
            "name": each.get("name"),
        }
        for each in objects(found)
    ]


def live(found: object) -> Row:
    """What a connection does, in one row."""
    status = _object(found)
    first = next(iter(objects(status.get("clientStatus"))), {})
    return {
        "id": status.get("connectionId"),
        "wanted": status.get("connectionStatus"),
        "is": status.get("liveStatus"),
        "recovery": status.get("recoveryStatus"),
        "since": status.get("connectedSince"),
        "details": first.get("statusDetails"),
    }


def resources(found: object) -> list[Row]:
    """One row for each client, source, target and tunnel of a status."""
    status = _object(found)
    return [
        {
            "what": each.get("type"),
            "client": each.get("client"),
            "address": each.get("address"),
            "is": each.get("status"),
            "since": each.get("inStateSince"),
            "details": each.get("statusDetails"),
        }
        for name in _RESOURCES
        for each in objects(status.get(name))
    ]


def metrics(found: object) -> list[Row]:
    """One row for each counter that has counted anything: of the whole connection, then of each address."""
    document = _object(found)
    rows: list[Row] = []
    for direction, kinds in _object(document.get("connectionMetrics")).items():
        rows += _counters(direction, None, kinds)
    for name, direction in (("sourceMetrics", "source"), ("targetMetrics", "target")):
        for address, kinds in _object(_object(document.get(name)).get("addressMetrics")).items():
            rows += _counters(direction, address, kinds)
    return rows


def _counters(of: str, address: str | None, kinds: object) -> Iterator[Row]:
    for kind, outcomes in _object(kinds).items():
        for outcome in _OUTCOMES:
            counted = _object(_object(outcomes).get(outcome))
            if any(counted.get(window) for window in WINDOWS):
                row: Row = {"of": of, "address": address, "what": kind, "how": outcome}
                row |= {heading: counted.get(window) for window, heading in WINDOWS.items()}
                yield row | {"last": counted.get("lastMessageAt")}


def of_level(found: object, level: str | None) -> dict[str, Any]:
    """The logs of a connection, those of one level alone if one is named."""
    document = dict(_object(found))
    entries = objects(document.get("connectionLogs"))
    return document | {"connectionLogs": [each for each in entries if level in (None, each.get("level"))]}


def entry(found: Mapping[str, Any]) -> tuple[str, str, str]:
    """A log entry as the words of one line: when, how it went, where, what."""
    where = " ".join(str(found[name]) for name in ("category", "type") if found.get(name))
    place = f" {found['address']}" if found.get("address") else ""
    about = f" [{found['entityId']}]" if found.get("entityId") else ""
    known = found.get("correlationId")
    correlation = f" ({known})" if known and known != "<not-provided>" else ""
    how, message = str(found.get("level", "–")), found.get("message", "")
    return str(found.get("timestamp", "–")), how, f"{where}{place}{about}: {message}{correlation}"


def same_names(found: object) -> list[Row]:
    """The rows of a list of objects, each with the names of all of them, in the order they come in."""
    rows = objects(found)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


def objects(found: object) -> list[Mapping[str, Any]]:
    """The objects of a list."""
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _object(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}
