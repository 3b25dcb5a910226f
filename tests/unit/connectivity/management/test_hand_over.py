"""Clients that a changed connection no longer has end their sessions, after a new client has taken their place."""

from __future__ import annotations

import asyncio
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

    def __init__(self, name: str, actions: list[str]) -> None:
        super().__init__(MemoryBroker(), [])
        self.name, self._actions = name, actions

    async def end_session(self) -> None:
        self._actions.append(f"{self.name} ended")

    async def close(self) -> None:
        self._actions.append(f"{self.name} closed")


class LostLink(RecordingLink):
    """A link that is lost before its session has ended."""

    async def end_session(self) -> None:
        raise GONE


class BusyLink(RecordingLink):
    """A link with a delivery that is not settled."""

    async def end_session(self) -> None:
        await asyncio.Event().wait()


class Client:
    """The client of a connection, as far as it counts here: the last of its links stays."""

    is_running = True

    def __init__(self, *links: Link | None) -> None:
        self._links = list(links)

    @property
    def link(self) -> Link | None:
        return self._links.pop(0) if len(self._links) > 1 else self._links[0]

    def stop_consuming(self) -> None:
        """It does not connect again."""
        self.is_running = False


@pytest.fixture
def actions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The actions on links of a broker that keeps sessions by the name of the connection."""
    actions: list[str] = []

    async def connect(
        definition: Connection, client: int = 0, consume: ConsumeOptions = CONSUME_DEFAULTS
    ) -> RecordingLink:
        if definition.name == "refused":
            raise GONE
        name = names(definition)[client]
        actions.append(f"{name} connected")
        await consume.on_new_session(name)
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
        pytest.param(
            defined("a"), defined("a", port=2), ["a_0 connected", "a_0 ended", "a_0 closed"], id="another broker"
        ),
    ],
)
async def test_the_sessions_of_clients_that_no_longer_exist_end(
    before: Connection, after: Connection, expected: list[str], actions: list[str]
) -> None:
    await hand_over(clients(before, actions), before, after, [], CONSUME_DEFAULTS)
    assert actions == expected


async def test_deliveries_of_a_session_that_begins_are_forgotten_after_the_former_session_has_ended(
    actions: list[str],
) -> None:
    """The two sessions may give deliveries the same names."""

    async def forget(prefix: str) -> None:
        actions.append(f"{prefix} forgotten")

    before = defined("a")
    await hand_over(clients(before, actions), before, defined("b"), [], ConsumeOptions(on_new_session=forget))
    assert actions == ["b_0 connected", "a_0 ended", "b_0 closed", "b_0 forgotten"]


async def test_a_client_of_another_connection_at_the_same_broker_comes_back(actions: list[str]) -> None:
    """A connection that is replaced by one with another ID leaves its client ID to that one."""
    before = defined("a", 2)
    await hand_over(
        clients(before, actions), before, None, [defined("b"), defined("a"), defined("a", 2, port=2)], CONSUME_DEFAULTS
    )
    assert actions == ["a_1 ended"]


async def test_a_client_without_a_link_keeps_its_session(actions: list[str]) -> None:
    with capture_logs() as lines:
        await hand_over([Client(None)], defined("a"), defined("b"), [], CONSUME_DEFAULTS)  # type: ignore[list-item]
    assert actions == []
    assert [(line["event"], line["session"], line["reason"]) for line in lines] == [
        ("session not ended", "a_0", "there is no link")
    ]


async def test_a_session_that_the_new_client_takes_over_does_not_end(actions: list[str]) -> None:
    """The broker is the same, at another address."""
    before = defined("a", 2)
    taken, other = clients(before, actions)
    assert isinstance(taken.link, RecordingLink)
    taken.link.die(GONE)
    with capture_logs() as lines:
        await hand_over([taken, other], before, defined("a", 2, port=2), [], CONSUME_DEFAULTS)
    assert actions == ["a_0 connected", "a_1 ended", "a_0 closed"]
    assert lines == []
    assert not taken.is_running


async def test_sessions_remain_if_the_new_client_cannot_connect(actions: list[str]) -> None:
    """If the change was a mistake, nothing is lost."""
    before = defined("a")
    with capture_logs() as lines:
        await hand_over(clients(before, actions), before, defined("refused"), [], CONSUME_DEFAULTS)
    assert actions == []
    assert [(line["event"], line["session"], line["reason"]) for line in lines] == [
        ("session not ended", "a_0", "the new client did not connect: connecting: the link was lost")
    ]


async def test_a_new_client_does_not_go_around_a_tunnel(actions: list[str]) -> None:
    login = {"type": "plain", "username": "tunnel", "password": "secret"}
    tunnel = {"enabled": True, "credentials": login, "validateHost": False, "uri": "ssh://bastion.acme.example:22"}
    before = defined("a")
    with capture_logs():
        await hand_over(
            clients(before, actions),
            before,
            connection(uri="memory://lab:1", name="b", sshTunnel=tunnel),
            [],
            CONSUME_DEFAULTS,
        )
    assert actions == []


async def test_a_client_that_loses_its_link_ends_its_session_on_the_next_one(
    actions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE", 0)
    before = defined("a", 2)
    loser = Client(LostLink("a_0", actions), LostLink("a_0", actions), None, RecordingLink("a_0", actions))
    with capture_logs() as lines:
        await hand_over([loser, Client(RecordingLink("a_1", actions))], before, defined("b"), [], CONSUME_DEFAULTS)  # type: ignore[list-item]
    assert actions == ["b_0 connected", "a_1 ended", "a_0 ended", "b_0 closed"]
    assert lines == []
    assert not loser.is_running


async def test_a_client_that_does_not_connect_again_is_not_waited_for(actions: list[str]) -> None:
    loser = Client(LostLink("a_0", actions), LostLink("a_0", actions), None)
    loser.is_running = False
    with capture_logs() as lines:
        await hand_over([loser], defined("a"), None, [], CONSUME_DEFAULTS)  # type: ignore[list-item]
    assert [(line["event"], line["session"]) for line in lines] == [("session not ended", "a_0")]


async def test_a_session_whose_messages_are_not_settled_in_time_remains(
    actions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.01)
    before = defined("a", 2)
    busy, other = Client(BusyLink("a_0", actions)), Client(RecordingLink("a_1", actions))
    with capture_logs() as lines:
        await hand_over([busy, other], before, defined("b"), [], CONSUME_DEFAULTS)  # type: ignore[list-item]
    assert actions == ["b_0 connected", "a_1 ended", "b_0 closed"]
    assert [(line["event"], line["session"], line["reason"]) for line in lines] == [
        ("session not ended", "a_0", "it took more than 0.01 s")
    ]
