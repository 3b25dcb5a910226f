"""The good tenant: sends modify commands at a rate, each measured from the time at which it was due.

    python -m tests.support.hostile_tenant.good_tenant mqtt|websocket HOST PORT SUBJECT RATE PID

It uses MQTT over a broker, or WebSocket at the listener of the hostile tenant, as another user. Commands leave at their
time, even if responses are pending. Prints `ready` when all things exist. After SIGTERM it waits for all responses, and
prints one JSON line: the due time of each command (monotonic clock), its milliseconds, the processor milliseconds of
the service (PID) until the response, and the numbers of refused commands and of commands without a response.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from tests.support.clients.mqtt import BrokerClient, MqttClient
from tests.support.connection_documents import policy_for, topic
from tests.support.hostile_tenant.peer import Peer, frame

SUBJECT = "good:tenant"
THINGS = 20
ANSWERED_WITHIN = 30.0
_decode = msgspec.json.Decoder().decode


class ListenerClient(BrokerClient):
    """A client of a WebSocket listener, with its own network address."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._peer = Peer(port, "/hostile", "127.0.0.2")
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        with suppress(OSError, ValueError):
            while True:
                payload = self._peer.receive_bytes()
                self.received.put(self.read(payload))

    def send(self, document: Any, *, wait: bool = True, to: str | None = None) -> None:
        self._peer.send(frame(document))

    def close(self) -> None:
        # The thread ends with the process, and may hold the socket's buffer.
        pass


def client_of(protocol: str, host: str, port: int) -> BrokerClient:
    if protocol == "websocket":
        return ListenerClient(port)
    return MqttClient(host, port, ask="good/ask", answers="good/answers")


def main(client: BrokerClient, subject: str, rate: float, pid: int) -> int:
    # The clock ID of all threads of another process (clock_getcpuclockid).
    processor = partial(time.clock_gettime, ~pid << 3 | 2)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with client:
        client.read = lambda payload: (time.monotonic(), processor(), _decode(payload))
        for number in range(THINGS):
            client.command(topic(f"good-{number}", "commands/create"), value={"_policy": policy_for(subject)})
            _, _, answer = client.next()
            assert answer["status"] == 201, answer
        print("ready", flush=True)
        due: list[float] = []
        spent: list[float] = []
        begun = time.monotonic()
        while not stopping.is_set():
            number = len(due)
            due.append(begun + number / rate)
            if (early := due[-1] - time.monotonic()) > 0:
                time.sleep(early)
            spent.append(processor())
            client.command(
                topic(f"good-{number % THINGS}", "commands/modify"),
                "/attributes/reading",
                {"n": number, "note": "x" * 200},
                {"correlation-id": str(number)},
                wait=False,
            )
        print(json.dumps(_answers(client, due, spent)), flush=True)
    return 0


def _answers(client: BrokerClient, due: list[float], spent: list[float]) -> dict[str, Any]:
    answered: dict[int, tuple[float, float, float]] = {}
    refused = 0
    deadline = time.monotonic() + ANSWERED_WITHIN
    while len(answered) < len(due) and time.monotonic() < deadline:
        if client.received.empty():
            time.sleep(0.01)
            continue
        came, used, answer = client.next()
        number = int(answer["headers"]["correlation-id"])
        refused += answer["status"] >= 300
        answered[number] = due[number], 1000 * (came - due[number]), 1000 * (used - spent[number])
    return {
        "answers": list(answered.values()),
        "refused": refused,
        "unanswered": len(due) - len(answered),
    }


if __name__ == "__main__":
    _, protocol, host, port, subject, rate, pid = sys.argv
    sys.exit(main(client_of(protocol, host, int(port)), subject, float(rate), int(pid)))
