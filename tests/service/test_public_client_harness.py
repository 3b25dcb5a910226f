"""The harness controls the public clients correctly: with a small test server they work as with any."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import tests.support.public_client as module
from tests.contract.public_client import MOST_REQUESTS, PublicClientBehaviors, broadcasts_of, each_version
from tests.support.paths import ROOT
from tests.support.public_client import VERSIONS, ClientMissing, PublicClient, node
from tests.support.public_client.stand_in import KEY, StandIn
from tests.support.public_client.wire import Peer, Wire

pytestmark = pytest.mark.node


@pytest.mark.soak(shard="public-clients")
class TestStandIn(PublicClientBehaviors):
    """The same behaviors of a stand-in server, to tell faults of the service from those of the clients."""

    @pytest.fixture
    async def listener(self) -> AsyncIterator[tuple[str, str]]:
        async with StandIn.started() as stand_in:
            yield stand_in.url, KEY


@each_version
async def test_a_client_repeats_resend_requests_endlessly_if_the_server_names_missing_messages(version: str) -> None:
    """The service must never cause this; the test shows that it would be noticed."""
    async with (
        StandIn.started() as stand_in,
        Wire.to(stand_in.url) as wire,
        Peer.at(stand_in.url) as peer,
        PublicClient.started(version, wire.url) as client,
    ):
        await client.subscribe("a", stream="tank")
        await client.until(lambda: client.happened("subscribed", "a"))
        await peer.publish("tank", {"v": 0})
        wire.loses = broadcasts_of({"v": 1})
        await peer.publish("tank", {"v": 1})
        stand_in.forget("tank")
        await peer.publish("tank", {"v": 2})
        await client.until(lambda: len(wire.asked("resend")) >= MOST_REQUESTS)


def test_the_versions_that_are_fetched_are_those_that_are_tested() -> None:
    listed = (ROOT / "tools" / "streamr_client.sha512").read_text(encoding="utf-8")
    assert set(re.findall(r"/streamr-client-([0-9.]+)\.tgz$", listed, re.MULTILINE)) == set(VERSIONS)


def test_without_node_a_test_fails_and_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _program: None)
    with pytest.raises(ClientMissing, match="`make install` brings it"):
        node()


def test_without_the_clients_a_test_fails_and_names_the_install_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _program: "node")
    monkeypatch.setattr(module, "_INSTALLED", tmp_path / "nowhere")
    with pytest.raises(ClientMissing, match=r"no clients in .*nowhere; `make install` brings them"):
        node()
