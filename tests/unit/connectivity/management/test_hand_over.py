"""Clients that a changed connection no longer has end their sessions, after a new client has taken their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from connectivity.connections.model import Connection
from connectivity.errors import Detail, NotConnected
from connectivity.management import hand_over as module
from connectivity.management.client import ConnectionClient
from connectivity.management.hand_over import hand_over
from connectivity.transports.base import CONSUME_DEFAULTS, ConsumeOptions, Link
from tests.support.in_process.service import connection
from tests.support.memory_transport import CONNECTION_TYPE, MemoryBroker, MemoryLink

GONE = NotConnected(Detail.CONNECTING, "the link was lost")


class RecordingLink(MemoryLink):
    """A link with a session, which records what happens to it."""

    def __init__(self, name: str, actions: list[str], *, is_lost: bool = False) -> None:
        super().__init__(MemoryBroker(), [])
        self.name, self._actions, self._is_lost = name, actions, is_lost

    async def end_session(self) -> None:
        if self._is_lost:
            raise GONE
        self._actions.append(f"{self.name} ended")

    async def close(self) -> None:
        self._actions.append(f"{self.name} closed")


class Client:
    """The client of a connection, as far as it counts here."""

    def __init__(self, link: Link | None) -> None:
        self.link = link


@pytest.fixture
def actions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The actions on links of a broker that keeps sessions by the name of the connection."""
    actions: list[str] = []

    async def connect(
        definition: Connection, client: int = 0, _consume: ConsumeOptions = CONSUME_DEFAULTS
    ) -> RecordingLink:
        if definition.name == "refused":
            raise GONE
        name = names(definition)[client]
        actions.append(f"{name} connected")
        return RecordingLink(name, actions)

    keeping = replace(CONNECTION_TYPE, open_session=connect, session_names=names)
    monkeypatch.setattr(module, "load_connection_type", lambda _name: keeping)
    return actions


def names(definition: Connection) -> Sequence[str]:
    return [f"{definition.name}_{number}" for number in range(definition.client_count)]


def defined(name: str, clients: int = 1, port: int = 1) -> Connection:
    return connection(uri=f"memory://lab:{port}", name=name, clientCount=clients)


def clients(before: Connection, actions: list[str]) -> list[ConnectionClient]:
    return [Client(RecordingLink(name, actions)) for name in names(before)]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(defined("a", 2), defined("a", 2), [], id="same clients"),
        pytest.param(defined("a", 2), defined("a", 3), [], id="more clients"),
        pytest.param(defined("a", 3), defined("a", 1), ["a_1 ended", "a_2 ended"], id="fewer clients"),
        pytest.param(
            defined("a", 2),
            defined("b", 3),
            ["b_0 connected", "a_0 ended", "a_1 ended", "b_0 closed"],
            id="other clients",
        ),
        pytest.param(defined("a"), defined("a", port=2), ["a_0 ended"], id="another broker"),
    ],
)
async def test_the_sessions_of_clients_that_no_longer_exist_end(
    before: Connection, after: Connection, expected: list[str], actions: list[str]
) -> None:
    await hand_over(clients(before, actions), before, after)
    assert actions == expected


async def test_a_client_without_a_link_keeps_its_session(actions: list[str]) -> None:
    await hand_over([Client(None)], defined("a"), defined("b"))  # type: ignore[list-item]
    assert actions == []


async def test_sessions_end_even_if_the_new_client_cannot_connect(actions: list[str]) -> None:
    before = defined("a")
    with capture_logs() as lines:
        await hand_over(clients(before, actions), before, defined("refused"))
    assert actions == ["a_0 ended"]
    assert [(line["event"], line["reason"]) for line in lines] == [
        ("new client not connected in advance", "connecting: the link was lost")
    ]


async def test_a_link_that_is_lost_meanwhile_does_not_keep_another_session_from_ending(actions: list[str]) -> None:
    before = defined("a", 2)
    lost = RecordingLink("a_0", actions, is_lost=True)
    with capture_logs() as lines:
        await hand_over(
            [Client(lost), Client(RecordingLink("a_1", actions))],  # type: ignore[list-item]
            before,
            defined("b"),
        )
    assert actions == ["b_0 connected", "a_1 ended", "b_0 closed"]
    assert [line["event"] for line in lines] == ["session not ended"]
