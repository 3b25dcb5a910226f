"""The aggregation of the statuses of clients, sources and targets, rule by rule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from connectivity.connections.lifecycle import Status
from connectivity.monitoring.status import (
    Recovery,
    ResourceStatus,
    live_status,
    recovery_of,
    report,
    status_of,
)
from tests.support.table import each_row

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
LETTERS = {
    "o": Status.OPEN,
    "c": Status.CLOSED,
    "f": Status.FAILED,
    "m": Status.MISCONFIGURED,
    "u": Status.UNKNOWN,
}


def statuses(letters: str) -> list[ResourceStatus]:
    """Return one status for each letter: lower case for targets, upper case for clients."""
    return [
        ResourceStatus("client" if letter.isupper() else "target", "connectivity-0", LETTERS[letter.lower()], "", None)
        for letter in letters
    ]


@each_row(
    ("letters", "expected"),
    [
        ("", "o"),
        ("o", "o"),
        ("ooo", "o"),
        ("OO", "o"),
        ("of", "f"),
        ("mf", "f"),
        ("fccu", "f"),
        ("om", "m"),
        ("mcu", "m"),
        ("c", "c"),
        ("cc", "c"),
        ("CC", "c"),
        ("u", "o"),
        ("uu", "o"),
        ("ou", "o"),
        ("uc", "o"),
        ("ouc", "o"),
        ("U", "u"),
        ("OU", "u"),
        ("Ou", "o"),
        ("oc", "u"),
        ("OC", "u"),
    ],
)
def test_status_7_3_of_a_list_is_the_first_rule_that_applies(letters: str, expected: str) -> None:
    assert status_of(statuses(letters)) is LETTERS[expected]


@each_row(
    ("lists", "expected"),
    [
        ("O o o", "o"),
        ("O  u", "o"),
        ("O uc u", "o"),
        ("F o o", "f"),
        ("O m f", "f"),
        ("O o m", "m"),
        ("C c c", "c"),
        ("C  ", "u"),
        ("O c o", "u"),
        ("U o o", "u"),
        ("O oc o", "u"),
    ],
)
def test_status_7_3_of_a_connection_is_that_of_its_lists(lists: str, expected: str) -> None:
    clients, sources, targets = (statuses(letters) for letters in lists.split(" "))
    assert live_status((clients, sources, targets)) is LETTERS[expected]


@pytest.mark.parametrize(
    ("clients", "expected"),
    [
        ([Recovery.SUCCEEDED, Recovery.SUCCEEDED], Recovery.SUCCEEDED),
        ([Recovery.SUCCEEDED, Recovery.ONGOING], Recovery.ONGOING),
        ([Recovery.ONGOING, Recovery.GIVEN_UP, Recovery.SUCCEEDED], Recovery.GIVEN_UP),
        ([Recovery.SUCCEEDED, Recovery.UNKNOWN], Recovery.UNKNOWN),
        ([Recovery.UNKNOWN, Recovery.ONGOING], Recovery.ONGOING),
        ([], Recovery.UNKNOWN),
    ],
)
def test_status_7_3_recovery_is_that_of_all_clients(clients: list[Recovery], expected: Recovery) -> None:
    found = [ResourceStatus("client", "connectivity-0", Status.OPEN, "", None, recovery=each) for each in clients]
    assert recovery_of(found) is expected


def test_status_7_3_a_report_has_all_fields_of_all_resources() -> None:
    client = ResourceStatus("client", "connectivity-0", Status.OPEN, "connected", NOON, recovery=Recovery.SUCCEEDED)
    source = ResourceStatus("source", "connectivity-0", Status.OPEN, "Consumer started", NOON, "cmd.in")
    target = ResourceStatus("target", "connectivity-0", Status.UNKNOWN, "on-demand", None, "{{ thing:id }}")
    early = NOON.astimezone(timezone(timedelta(hours=3)))
    assert report("depot", "open", [client], [source], [target], early) == {
        "connectionId": "depot",
        "connectionStatus": "open",
        "liveStatus": "open",
        "recoveryStatus": "succeeded",
        "connectedSince": "2026-01-02T12:00:00Z",
        "clientStatus": [
            {
                "type": "client",
                "client": "connectivity-0",
                "status": "open",
                "recoveryStatus": "succeeded",
                "statusDetails": "connected",
                "inStateSince": "2026-01-02T12:00:00Z",
            }
        ],
        "sourceStatus": [
            {
                "type": "source",
                "client": "connectivity-0",
                "address": "cmd.in",
                "status": "open",
                "statusDetails": "Consumer started",
                "inStateSince": "2026-01-02T12:00:00Z",
            }
        ],
        "targetStatus": [
            {
                "type": "target",
                "client": "connectivity-0",
                "address": "{{ thing:id }}",
                "status": "unknown",
                "statusDetails": "on-demand",
            }
        ],
        "sshTunnelStatus": [],
    }
