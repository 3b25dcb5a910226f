"""What a service says of its connections: how each of them is, and what it has counted, as an operator asks over HTTP.

`connectivity connections status` and `connectivity connections metrics` show the same, and more of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from examples.conversation import NotAsPromised

HOUR = "PT1H"
"""Of the windows in which a connection counts, the one that a demo fits into."""


class Api(Protocol):
    """Where a service is asked, such as `examples.service.Serving`."""

    def get(self, path: str) -> str: ...


@dataclass(frozen=True, slots=True)
class Looked:
    """A connection: what it is, since when, and how many messages it has taken, answered or sent, and refused."""

    connection: str
    status: str
    since: str
    taken: int
    sent: int
    failures: int


def look_at(service: Api, connection: str) -> Looked:
    """Status and metrics of one connection. Raises NoAnswer; NotAsPromised where it is not open or has done nothing."""
    status, metrics = (json.loads(service.get(f"/api/2/connections/{connection}/{it}")) for it in ("status", "metrics"))
    both: Mapping[str, Any] = metrics["connectionMetrics"]
    looked = Looked(
        connection,
        status["liveStatus"],
        status.get("connectedSince", "never"),
        _counted(both["inbound"], "success", {"consumed"}),
        _counted(both["outbound"], "success", {"published"}),
        sum(_counted(types, "failure", types) for types in both.values()),
    )
    if looked.status != "open" or not (looked.taken and looked.sent):
        raise NotAsPromised(f"connections were expected open and in use, there is {looked}")
    return looked


def _counted(types: Mapping[str, Any], level: str, wanted: Iterable[str]) -> int:
    return sum(types[it][level][HOUR] for it in wanted if level in types.get(it, {}))
