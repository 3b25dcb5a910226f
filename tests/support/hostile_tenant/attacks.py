"""The hostile tenant: an attack on one resource of the service, as a process with the lowest priority.

    python -m tests.support.hostile_tenant.attacks NAME WEBSOCKET_PORT TCP_PORT

With `nice 19`, it takes no processor time from the measurement. It prints `prepared` when the attack is ready; a line
at its input starts the attack, and the end of the input stops it. It prints `attacking` after the first work, which other
programs may delay, and at the end one JSON line: the amount of work.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.connection_documents import policy_for
from tests.support.hostile_tenant.peer import Peer, frame

SUBJECT = "hostile:tenant"
NAMESPACE = "hostile"
LARGE = 95_000
"""The length of a value that nearly fills a thing, in characters."""

ENDLESS = 2**62
Step = Callable[[], object]


def command(name: str, verb: str, path: str = "/", value: Any = None, **headers: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "topic": f"{NAMESPACE}/{name}/things/twin/{verb}",
        "path": path,
        "headers": {"correlation-id": "h", **headers},
    }
    return document if value is None else {**document, "value": value}


def _search(word: str, value: Any) -> dict[str, Any]:
    return {"topic": f"_/_/things/twin/search/{word}", "path": "/", "headers": {"correlation-id": "h"}, "value": value}


class Attack(ABC):
    """An attack: `prepare` it, then run `peers` peers in parallel, each repeatedly."""

    peers = 8

    def __init__(self, websocket: int, tcp: int) -> None:
        self.websocket, self.tcp = websocket, tcp
        self.done: Counter[str] = Counter()

    def prepare(self) -> None:  # noqa: B027 - not every attack needs preparation
        """Create what the attack needs."""

    @abstractmethod
    def peer(self, number: int) -> None:
        """Run one session of a peer. Raises OSError when the service closes it."""

    def connect(self, path: str = "/hostile") -> Peer:
        self.done["connected"] += 1
        return Peer(self.websocket, path)

    def create(self, name: str, **thing: Any) -> None:
        with self.connect() as peer:
            answer = peer.ask(command(name, "commands/create", value={"_policy": policy_for(SUBJECT), **thing}))
            assert answer["status"] == 201, answer

    def flood(self, peer: Peer, frames: Sequence[bytes]) -> None:
        """Send the same frames repeatedly. Raises OSError when the service closes the session."""
        joined, count = b"".join(frames), len(frames)
        while True:
            peer.send(joined)
            self.done["sent"] += count

    def run(self) -> None:
        for number in range(self.peers):
            threading.Thread(target=self._again, args=(number,), daemon=True).start()

    def _again(self, number: int) -> None:
        while True:
            try:
                self.peer(number)
            except OSError:
                self.done["closed"] += 1


class Loop(Attack):
    """Commands that block longest: huge policies, long conditions, deep values, replays without end."""

    EVENTS = 300

    def prepare(self) -> None:
        fields = {f"f{number}": number for number in range(2_000)}
        for number in range(self.peers):
            self.create(f"loop-{number}", attributes=fields)
        with self.connect() as peer:
            for number in range(self.EVENTS):
                peer.ask(command("loop-0", "commands/modify", "/attributes/n", {"n": number, "note": "x" * 200}))

    def peer(self, number: int) -> None:
        name = f"loop-{number}"
        with self.connect() as peer:
            match number % 4:
                case 0:
                    peer.discard()
                    self.flood(peer, [self._policy(name, turn) for turn in range(4)])
                case 1:
                    clauses = ",".join(f'like(attributes/f{each},"*{each}*x*")' for each in range(140))
                    peer.discard()
                    self.flood(
                        peer, [frame(command(name, "commands/modify", "/attributes/n", 1, condition=f"or({clauses})"))]
                    )
                case 2:
                    value: Any = list(range(15_000))
                    for _ in range(190):
                        value = {"d": value}
                    peer.discard()
                    self.flood(peer, [frame(command(name, "commands/modify", "/attributes/deep", value))])
                case _:
                    self._replay(peer)

    @staticmethod
    def _policy(name: str, turn: int) -> bytes:
        """Return a policy with the most permissions, different ones each turn."""
        entries: dict[str, Any] = policy_for(SUBJECT)["entries"]
        for number in range(35):
            entries[f"E{number}"] = {
                "subjects": {f"hostile:{turn}-{number}-{each}": {"type": "t"} for each in range(10)},
                "resources": {
                    f"thing:/attributes/f{turn}{number}{each}": {"grant": ["READ"], "revoke": []} for each in range(14)
                },
            }
        document = command(name, "commands/modify", "/entries", entries)
        return frame({**document, "topic": f"{NAMESPACE}/{name}/policies/commands/modify"})

    def _replay(self, peer: Peer) -> None:
        while True:
            created = peer.ask(command("loop-0", "streaming/subscribeForPersistedEvents"))
            key = created["value"]["subscriptionId"]
            peer.send(frame(command("loop-0", "streaming/request", value={"subscriptionId": key, "demand": ENDLESS})))
            while not (message := peer.receive())["topic"].endswith(("/complete", "/failed")):
                self.done["events"] += 1
            self.done[message["topic"].rpartition("/")[2]] += 1


class Memory(Attack):
    """Unread responses and elements, subscriptions without end, acknowledgements that never come."""

    peers = 16
    SUBSCRIPTIONS = 200

    def prepare(self) -> None:
        self.create("memory", attributes={"large": "x" * LARGE})
        with self.connect() as peer:
            for number in range(40):
                answer = peer.ask(
                    command("memory", "commands/modify", "/attributes/large", f"{number:06}" + "x" * (LARGE - 6))
                )
                assert answer["status"] == 204, answer

    def peer(self, number: int) -> None:
        with self.connect() as peer:
            match number % 4:
                case 0:
                    # Unread elements.
                    keys = []
                    for _ in range(self.SUBSCRIPTIONS):
                        created = peer.ask(command("memory", "streaming/subscribeForPersistedEvents"))
                        keys.append(created["value"]["subscriptionId"])
                    for key in keys:
                        value = {"subscriptionId": key, "demand": ENDLESS}
                        peer.send(frame(command("memory", "streaming/request", value=value)))
                    self.flood(peer, [frame(command("memory", "commands/retrieve"))])
                case 1:
                    # Unread responses.
                    self.flood(peer, [frame(command("memory", "commands/retrieve"))] * 100)
                case 2:
                    # Subscriptions without requests.
                    peer.discard()
                    self.flood(peer, [frame(command("memory", "streaming/subscribeForPersistedEvents"))] * 50)
                case _:
                    # Acknowledgements that never arrive.
                    waiting = {"requested-acks": ["hostile:never"], "timeout": "60s"}
                    large = "x" * (LARGE // 2)
                    peer.discard()
                    self.flood(peer, [frame(command("memory", "commands/modify", "/attributes/n", large, **waiting))])


class Descriptors(Attack):
    """Sockets opened as fast as possible, and kept half open."""

    peers = 4

    def peer(self, number: int) -> None:
        held = []
        port = self.websocket if number % 2 == 0 else self.tcp
        while True:
            link = socket.create_connection(("127.0.0.1", port), 5)
            link.send(b"GET /hostile HTTP/1.1\r\n")
            held.append(link)
            self.done["opened"] += 1
            if len(held) > 3_000:
                held.pop(0).close()


class SearchWorkers(Attack):
    """Broad searches, wildcards without a match, and aggregations, without a pause."""

    AT_ONCE = 10

    def peer(self, number: int) -> None:
        with self.connect() as peer:
            started = self.AT_ONCE
            for each in range(started):
                peer.send(self._subscribe(number, each))
            while True:
                message = peer.receive()
                match message["topic"].rpartition("/")[2]:
                    case "created":
                        value = {**message["value"], "demand": 1_000}
                        peer.send(frame(_search("request", value)))
                    case "complete" | "failed" | "errors" as word:
                        self.done[word] += 1
                        started += 1
                        peer.send(self._subscribe(number, started))

    @staticmethod
    def _subscribe(number: int, turn: int) -> bytes:
        match number % 3:
            case 0:
                value: dict[str, Any] = {"filter": f'like(attributes/note,"*a*b*{number}*nothing{turn}*")'}
            case 1:
                value = {
                    "aggregation": {"groupBy": {"room": "attributes/room"}, "measures": {"n": {"avg": "attributes/n"}}}
                }
            case _:
                value = {"filter": "exists(attributes/n)", "options": "size(200),sort(-attributes/note)"}
        return frame(_search("subscribe", value))


class Disk(Attack):
    """Things of the largest permitted size, created and changed until a quota refuses them."""

    def peer(self, number: int) -> None:
        with self.connect() as peer:
            peer.discard()
            value = {"_policy": policy_for(SUBJECT), "attributes": {"large": "x" * LARGE}}
            for turn in range(10_000):
                name = f"disk-{number}-{turn}"
                peer.send(frame(command(name, "commands/create", value=value)))
                peer.send(frame(command(name, "commands/modify", "/attributes/large", f"{turn}" + "y" * (LARGE - 6))))
                self.done["sent"] += 2


class Scripts(Attack):
    """Messages whose mapping script runs until its time limit."""

    def peer(self, number: int) -> None:
        with self.connect("/scripts") as peer:
            peer.discard()
            self.flood(peer, [frame(command("any", "commands/retrieve"))] * 10)


class JournalQueue(Attack):
    """Small durable changes as fast as the service accepts them, one thing for each peer."""

    peers = 16

    def prepare(self) -> None:
        for number in range(self.peers):
            self.create(f"journal-{number}")

    def peer(self, number: int) -> None:
        with self.connect() as peer:
            peer.discard()
            name = f"journal-{number}"
            self.flood(peer, [frame(command(name, "commands/modify", "/attributes/n", each)) for each in range(100)])


ATTACKS: dict[str, type[Attack]] = {
    "loop": Loop,
    "memory": Memory,
    "descriptors": Descriptors,
    "search workers": SearchWorkers,
    "disk": Disk,
    "scripts": Scripts,
    "journal queue": JournalQueue,
}
"""The attacks, by the resource that they attack."""


def main(name: str, websocket: int, tcp: int) -> int:
    os.nice(19)
    attack = ATTACKS[name](websocket, tcp)
    attack.prepare()
    attack.done.clear()
    print("prepared", flush=True)
    if sys.stdin.readline():
        attack.run()
        while not attack.done:
            time.sleep(0.01)
        print("attacking", flush=True)
        sys.stdin.read()
    print(json.dumps(attack.done), flush=True)
    # Do not wait for threads that block in sockets.
    os._exit(0)


if __name__ == "__main__":
    _, name, *ports = sys.argv
    sys.exit(main(name, *map(int, ports)))
