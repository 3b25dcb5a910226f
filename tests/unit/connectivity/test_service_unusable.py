"""A stored connection whose secret is missing at the start of the service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from connectivity.config.settings import Settings
from connectivity.service import Service
from tests.support.brokers import free_port
from tests.support.wait import wait_until


@asynccontextmanager
async def _started(folder: Path) -> AsyncIterator[Service]:
    settings = Settings(
        data_dir=folder / "data",
        connections_dir=folder / "connections",
        secrets={"folders": [folder / "secrets"]},
        spark={"mode": "off"},
    )
    service = Service(settings)
    try:
        await service.management.load()
        await service.registry.refresh()
        yield service
    finally:
        await service.close()


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service with a connection that was open before, and whose secret is gone."""
    for name in ("data", "connections", "secrets"):
        (tmp_path / name).mkdir()
    secret = tmp_path / "secrets" / "password"
    secret.write_text("tulip-37", encoding="utf-8")
    async with _started(tmp_path) as earlier:
        await earlier.management.create(_document(f"tcp://ada:${{file:{secret}}}@127.0.0.1:{free_port()}"), "ada")
        await wait_until(lambda: earlier.dispatch.event_publisher.of("depot"))
    secret.unlink()
    async with _started(tmp_path) as service:
        assert service.registry.get("depot") is None
        yield service


def _document(uri: str) -> dict[str, Any]:
    target = {
        "address": "events",
        "topics": ["_/_/things/twin/events"],
        "qos": 1,
        "authorizationContext": ["acme:viewer"],
    }
    return {"id": "depot", "connectionType": "mqtt", "connectionStatus": "open", "uri": uri, "targets": [target]}


async def test_its_targets_keep_their_positions_until_it_is_closed(service: Service) -> None:
    assert service.dispatch.event_publisher.has_targets
    await service.management.close("depot", "ada")
    assert not service.dispatch.event_publisher.has_targets


async def test_its_metrics_say_that_it_is_down_until_it_is_closed(service: Service) -> None:
    assert _is_down(service)
    await service.management.close("depot", "ada")
    assert not _is_down(service)


def _is_down(service: Service) -> bool:
    shown = generate_latest(service.monitor.registry).decode().splitlines()
    return 'connectivity_connection_up{connection="depot"} 0.0' in shown
