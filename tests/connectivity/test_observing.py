"""The status of a connection, from its supervisor alone. More is in tests/connectivity/test_managing.py."""

from __future__ import annotations

from datetime import UTC, datetime

from connectivity.folder import Wanted
from connectivity.management import Owner
from connectivity.observing import SupervisorObserver

NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)


def wanted(*problems: str, override: str | None = None) -> Wanted:
    found = {"connectionStatus": "open"}
    return Wanted("depot", Owner.API, found, None, 1, NOW, override=override, problems=problems)


def test_one_that_cannot_be_used_is_misconfigured_and_says_why() -> None:
    shown = SupervisorObserver().status(wanted("uri: found nothing"), None)
    assert (shown["connectionStatus"], shown["liveStatus"], shown["problems"]) == (
        "open",
        "misconfigured",
        ["uri: found nothing"],
    )
    assert shown["clientStatus"][0]["statusDetails"] == "uri: found nothing"


def test_what_is_not_counted_and_not_logged_is_shown_empty() -> None:
    observer = SupervisorObserver()
    observer.enable_logs("depot")
    observer.reset_logs("depot")
    observer.reset_metrics("depot")
    assert observer.metrics("depot")["connectionId"] == "depot"
    assert observer.logs("depot")["connectionLogs"] == []
