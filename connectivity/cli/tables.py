"""Converts responses of the API to tables, lines and YAML. Pure functions.

The service may be newer or older than this program: missing members are shown as missing, and unexpected ones are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from mappings.texts import CONTROL_CHARACTERS

TableRow: TypeAlias = dict[str, object]

WINDOWS = {"PT1M": "minute", "PT1H": "hour", "PT24H": "day"}
_OUTCOMES = ("success", "failure")
_RESOURCES = ("clientStatus", "sourceStatus", "targetStatus", "sshTunnelStatus")


def as_yaml(document: object) -> str:
    """The document as YAML, in its own order."""
    import yaml

    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1_000_000)
    if CONTROL_CHARACTERS.search(text.replace("\n", "")) is None:
        return text
    # Line separators and changes of the writing direction are printable for the library.
    return yaml.safe_dump(document, sort_keys=False, width=1_000_000)


def connections(found: object) -> list[TableRow]:
    """Return one row for each connection of a list; problems only if there are some."""
    rows: list[TableRow] = [
        {
            "id": each.get("id"),
            "type": each.get("connectionType"),
            # An operator may have opened or closed it against its file.
            "wanted": each.get("_override") or each.get("connectionStatus"),
            "owner": each.get("_file") or each.get("_owner"),
            "name": each.get("name"),
            "problems": "; ".join(map(str, _list(each.get("_problems")))) or None,
        }
        for each in objects(found)
    ]
    if not any(row["problems"] for row in rows):
        for row in rows:
            del row["problems"]
    return rows


def live(found: object) -> TableRow:
    """Return the status of a connection as a row, with the details of the first part with this status."""
    status = _object(found)
    parts = [each for name in _RESOURCES for each in objects(status.get(name))]
    decisive = next(
        (each for each in parts if each.get("status") == status.get("liveStatus")), parts[0] if parts else {}
    )
    return {
        "id": status.get("connectionId"),
        "wanted": status.get("connectionStatus"),
        "is": status.get("liveStatus"),
        "recovery": status.get("recoveryStatus"),
        "since": status.get("connectedSince"),
        "details": decisive.get("statusDetails"),
    }


def resources(found: object) -> list[TableRow]:
    """Return one row for each client, source, target and tunnel of a status."""
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


def metrics(found: object) -> list[TableRow]:
    """Return one row for each counter with a count: of the whole connection, then of each address."""
    document = _object(found)
    rows: list[TableRow] = []
    for direction, kinds in _object(document.get("connectionMetrics")).items():
        rows += _counters(direction, None, kinds)
    for name, direction in (("sourceMetrics", "source"), ("targetMetrics", "target")):
        for address, kinds in _object(_object(document.get(name)).get("addressMetrics")).items():
            rows += _counters(direction, address, kinds)
    return rows


def _counters(of: str, address: str | None, kinds: object) -> Iterator[TableRow]:
    for kind, outcomes in _object(kinds).items():
        for outcome in _OUTCOMES:
            counted = _object(_object(outcomes).get(outcome))
            if any(counted.get(window) for window in WINDOWS):
                row: TableRow = {"of": of, "address": address, "what": kind, "how": outcome}
                row |= {heading: counted.get(window) for window, heading in WINDOWS.items()}
                yield row | {"last": counted.get("lastMessageAt")}


_TESTED_PARTS = {"clients": "client", "sources": "source", "replyTargets": "reply-target", "targets": "target"}
_SUCCESS_STATES = {"open", "unknown", None}


def connection_test(report: object) -> list[TableRow]:
    """Return one row for each tested client, source, reply-target and target."""
    return [
        {
            "what": what if each.get("index") is None else f"{what} {each['index']}",
            "address": each.get("address"),
            "is": each.get("status"),
            "details": each.get("details"),
        }
        for name, what in _TESTED_PARTS.items()
        for each in objects(_object(report).get(name))
    ]


def is_good(report: object) -> bool:
    """Whether the tested connection would open, and its sample is valid."""
    states = [row["is"] for row in connection_test(report)]
    return not _object(_object(report).get("sample")).get("error") and all(state in _SUCCESS_STATES for state in states)


def test_sample(report: object) -> Iterator[str]:
    """Return the other results of a test: parts without effect, and the sample."""
    found = _object(report)
    yield from (f"without effect: {each}" for each in _list(found.get("withoutEffect")))
    sample = _object(found.get("sample"))
    if not sample:
        return
    yield f"sample at source {sample.get('source')}, {sample.get('address')}:"
    signals = objects(sample.get("signals"))
    for signal in signals:
        yield f"  {signal.get('topic')} {signal.get('path')} ({signal.get('mapper')})"
        yield from _members(signal, ("fields", "status", "value"), "    ")
        yield from _headers(signal, "    ")
        yield from _replies(signal)
    if error := _object(sample.get("error")):
        yield f"  refused: {error.get('error')}: {error.get('message')}"
        if description := error.get("description"):
            yield f"    {description}"
        yield from _replies(error)
    elif not signals:
        yield "  nothing: the message is dropped"


def _replies(found: Mapping[str, Any]) -> Iterator[str]:
    for kind, reply in _object(found.get("replies")).items():
        if why := _object(reply).get("nothing"):
            yield f"    {kind}: nothing is sent: {why}"
        for message in objects(_object(reply).get("messages")):
            yield f"    {kind} to {message.get('address')}"
            yield from _headers(message, "      ")
            yield from _members(message, ("payload",), "      ")


def _headers(found: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in _object(found.get("headers")).items():
        yield f"{indent}{name}: {value}"


def _members(found: Mapping[str, Any], names: Sequence[str], indent: str) -> Iterator[str]:
    for name in names:
        if (value := found.get(name)) is not None:
            yield f"{indent}{name} = {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"


def of_level(found: object, level: str | None) -> dict[str, Any]:
    """The logs of a connection, those of one level alone if one is named."""
    document = dict(_object(found))
    entries = objects(document.get("connectionLogs"))
    return document | {"connectionLogs": [each for each in entries if level in (None, each.get("level"))]}


def entry(found: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return a log entry as one line: when, level, where, what."""
    where = " ".join(str(found[name]) for name in ("category", "type") if found.get(name))
    place = f" {found['address']}" if found.get("address") else ""
    about = f" [{found['entityId']}]" if found.get("entityId") else ""
    known = found.get("correlationId")
    correlation = f" ({known})" if known and known != "<not-provided>" else ""
    how, message = str(found.get("level", "–")), found.get("message", "")
    return str(found.get("timestamp", "–")), how, f"{where}{place}{about}: {message}{correlation}"


def leaves(found: Mapping[str, Any]) -> TableRow:
    """Return the values in a thing with the paths that filters use; an empty object is a value too."""
    row: TableRow = {}
    waiting: list[tuple[str, object]] = [("", found)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict) and (value or not path):
            inner = [(f"{path}/{name}" if path else str(name), member) for name, member in value.items()]
            waiting.extend(reversed(inner))
        else:
            row[path] = value
    return row


def align_columns(found: object) -> list[TableRow]:
    """The rows of a list of objects, each with the names of all of them, in the order they come in."""
    rows = objects(found)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


def objects(found: object) -> list[Mapping[str, Any]]:
    """The objects of a list."""
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _list(found: object) -> list[Any]:
    return found if isinstance(found, list) else []


def _object(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}
