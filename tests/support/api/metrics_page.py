"""The metrics of a service with a few counts and connections, for tests of the command line."""

from __future__ import annotations

STATUS = {
    "connectionId": "depot",
    "connectionStatus": "open",
    "liveStatus": "misconfigured",
    "recoveryStatus": "ongoing",
    "clientStatus": [
        {"type": "client", "client": "c-0", "status": "misconfigured", "statusDetails": "bad credentials"}
    ],
    "sourceStatus": [{"type": "source", "client": "c-0", "address": "cmd", "status": "open", "inStateSince": "T"}],
    "targetStatus": [],
}
COUNTED = {"PT1M": 3, "PT1H": 120, "PT24H": 800, "lastMessageAt": "2026-02-03T10:01:07Z"}
ZERO = {"PT1M": 0, "PT1H": 0, "PT24H": 0}
METRICS = {
    "connectionMetrics": {"inbound": {"consumed": {"success": COUNTED, "failure": ZERO}, "mapped": {}}},
    "targetMetrics": {"addressMetrics": {"_responses": {"published": {"failure": {"PT24H": 1}}}}},
}
