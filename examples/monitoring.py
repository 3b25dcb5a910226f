"""Reads the status and the metrics of connections from the HTTP API.

`connectivity connections status` and `connectivity connections metrics` show more of both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from examples.scenario import UnexpectedResult

HOUR = "PT1H"
"""The metrics' time window that covers a whole demo."""


class Api(Protocol):
    """The API of a service, such as `examples.service.RunningService`."""

    def get(self, path: str) -> str: ...


@dataclass(frozen=True, slots=True)
class ConnectionReport:
    """The status of a connection, the time of its connect, and the numbers of its messages."""

    connection: str
    status: str
    since: str
    consumed: int
    published: int
    failures: int


def connection_report(service: Api, connection: str) -> ConnectionReport:
    """The report of one connection. Raises NoResponse, or UnexpectedResult if it is not open and in use."""
    status, metrics = (json.loads(service.get(f"/api/2/connections/{connection}/{it}")) for it in ("status", "metrics"))
    directions: Mapping[str, Any] = metrics["connectionMetrics"]
    report = ConnectionReport(
        connection,
        status["liveStatus"],
        status.get("connectedSince", "never"),
        _count(directions["inbound"], "success", {"consumed"}),
        _count(directions["outbound"], "success", {"published"}),
        sum(_count(types, "failure", types) for types in directions.values()),
    )
    if report.status != "open" or not (report.consumed and report.published):
        raise UnexpectedResult(f"found {report}, expected a connection that is open and in use")
    return report


def _count(types: Mapping[str, Any], level: str, wanted: Iterable[str]) -> int:
    return sum(types[it][level][HOUR] for it in wanted if level in types.get(it, {}))
