"""Checks of permissions over HTTP, answered by the rules of commands."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from connectivity.errors import OperationRefused
from connectivity.management.permission_requests import PermissionRequest, PermissionRequests
from connectivity.security.on_behalf import BehalfAudit
from connectivity.twins.decider import decide
from spark_store.errors import StoreUnavailable
from spark_store.records import AuditEntry
from tests.support.twin_harness import OWNER, THING, TwinHarness, twin_harness

NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)
CHECKS = json.dumps({"w": {"resource": "thing:/", "entityId": THING, "hasPermissions": ["WRITE"]}}).encode()


def requests_of(harness: TwinHarness, noted: list[AuditEntry] | None = None) -> PermissionRequests:
    async def note(entry: AuditEntry) -> None:
        if noted is None:
            raise StoreUnavailable("the disk is full")
        noted.append(entry)

    audit = BehalfAudit(lambda: NOW, note)
    return PermissionRequests(lambda command, subjects: decide(command, subjects, harness.lookup, harness.now), audit)


async def test_the_results_are_those_of_the_command() -> None:
    requests = requests_of(twin_harness())
    assert json.loads(await requests.check(PermissionRequest((OWNER,), CHECKS))) == {"w": True}
    assert json.loads(await requests.check(PermissionRequest(("edge:other",), CHECKS))) == {"w": False}


async def test_an_invalid_check_is_refused() -> None:
    with pytest.raises(OperationRefused) as refused:
        await requests_of(twin_harness()).check(PermissionRequest((OWNER,), b'{"a":{}}'))
    assert (refused.value.fault.status, refused.value.fault.error) == (400, "json.field.missing")


async def test_a_check_about_others_is_audited_before_it_is_answered() -> None:
    noted: list[AuditEntry] = []
    requests = requests_of(twin_harness(), noted)
    for _ in range(2):
        await requests.check(PermissionRequest((OWNER,), CHECKS, "anna"))
    assert noted == [AuditEntry(NOW.isoformat(), "anna", "permission check on behalf of others", "", None, OWNER)]
    with pytest.raises(OperationRefused) as refused:
        await requests_of(twin_harness()).check(PermissionRequest((OWNER,), CHECKS, "anna"))
    assert (refused.value.fault.status, refused.value.fault.error) == (503, "api:store.unavailable")
