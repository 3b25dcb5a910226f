"""The composition root: what is joined to what, without a broker. The running process is in tests/integration."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from connectivity.service import PortInUse, Service, _listen
from connectivity.settings import Settings
from mappings.errors import Fault
from mappings.ids import EntityId, EntityType
from mappings.signals import Command, HistoryQuery, Kind, Subscribe
from spark_store.records import Change

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
OWNER = ("acme:owner",)
NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    (tmp_path / "connections").mkdir()
    made = Service(Settings(connections_dir=tmp_path / "connections", data_dir=tmp_path), lambda: NOW)
    yield made
    await made.close()


async def create(service: Service) -> None:
    decision = service.decider.decide(Command(LAMP, "create", "/", b"{}", {}), OWNER)
    await service.store.submit([Change(decision.events, decision.snapshots)])


def subscribe(filter: str | None = None) -> Subscribe:
    return Subscribe(Kind.HISTORY, HistoryQuery(LAMP, filter=filter), {})


async def test_a_subscribe_without_permission_has_a_fault_for_a_feed(service: Service) -> None:
    await create(service)
    refused = service._open_feed(subscribe(), ("acme:stranger",))
    assert isinstance(refused, Fault)
    assert refused.error == "things:thing.notfound"
    assert not isinstance(service._open_feed(subscribe(), OWNER), Fault)


async def test_a_subscribe_with_an_unreadable_filter_has_a_fault_for_a_feed(service: Service) -> None:
    await create(service)
    refused = service._open_feed(subscribe("eq("), OWNER)
    assert isinstance(refused, Fault)
    assert refused.error == "rql.expression.invalid"


async def test_a_service_without_connections_is_ready(service: Service) -> None:
    await service.registry.refresh()
    assert service.readiness() == (True, {"status": "ready", "store": "writable", "connections": {}})


async def test_the_commits_of_the_journal_are_measured(service: Service) -> None:
    await create(service)
    assert b"connectivity_journal_commit_seconds_count 1.0" in service.monitor.exposition()


def test_a_port_that_is_taken_is_said_to_be() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PortInUse, match="is in use"):
            _listen("127.0.0.1", taken.getsockname()[1])


def test_a_free_port_is_taken_where_none_is_named() -> None:
    with _listen("127.0.0.1", 0) as listening:
        assert listening.getsockname()[1] > 0
