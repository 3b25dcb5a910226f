"""The metrics of connections whose files are removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from connectivity.config.settings import Settings
from connectivity.service import Service
from tests.support.brokers import free_port


@pytest.mark.parametrize("status", ["open", "closed"])
async def test_a_connection_has_no_metrics_after_its_file_was_removed(status: str, tmp_path: Path) -> None:
    folder = tmp_path / "connections"
    folder.mkdir()
    service = Service(Settings(data_dir=tmp_path, connections_dir=folder, spark={"mode": "off"}))
    document = {
        "connectionType": "mqtt",
        "uri": f"tcp://127.0.0.1:{free_port()}",
        "sources": [{"addresses": ["in"], "qos": 1, "authorizationContext": ["acme:x"]}],
    }
    for name in ("depot", "annex"):
        (folder / f"{name}.json").write_text(json.dumps({**document, "connectionStatus": "open"}), encoding="utf-8")
    await service.registry.refresh()
    for name in ("depot", "annex"):
        service.monitor.meter(name).inbound("refused")
        if status == "closed":
            await service.management.close(name, "ada")
    (folder / "depot.json").unlink()
    await service.registry.refresh()
    shown = generate_latest(service.monitor.registry).decode()
    assert ('connection="depot"' in shown, 'connection="annex"' in shown) == (False, True)
    await service.close()
