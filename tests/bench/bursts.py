"""The load of bursts: modifies over MQTT QoS 1 in one write, then a wait for the last response.

    python -m tests.bench.bursts HOST PORT COUNT BYTES BURSTS [FIRST]

The commands go to fifty things in turn, from the thing with the number FIRST, and are encoded before the measurement.
Prints one JSON line: the seconds from the first command to the last response.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from tests.bench.modify import command
from tests.support.clients.paho_end import end_client

PATIENCE = 120.0
CONNECT = b"\x10\x12\x00\x04MQTT\x04\x02\x00\x00\x00\x06bursts"
CONNACK_LENGTH = 4
TOPIC = b"bench/ask"


def publish(mid: int, payload: bytes) -> bytes:
    """Return a PUBLISH packet of MQTT 3.1.1 with QoS 1."""
    body = struct.pack(">H", len(TOPIC)) + TOPIC + struct.pack(">H", mid) + payload
    length, left = bytearray(), len(body)
    while left:
        left, digit = divmod(left, 128)
        length.append(digit | (0x80 if left else 0))
    return b"\x32" + bytes(length) + body


def discard(link: socket.socket) -> None:
    while link.recv(1 << 16):
        pass


def main(host: str, port: int, count: int, size: int, bursts: int, first: int = 0) -> int:
    client = Client(CallbackAPIVersion.VERSION2, "burst-answers")
    ready, answered, refused = threading.Event(), threading.Semaphore(0), 0

    def on_message(_client: Client, _userdata: Any, message: MQTTMessage) -> None:
        nonlocal refused
        refused += json.loads(message.payload).get("status", 200) >= 300
        answered.release()

    def on_connect(*_: object) -> None:
        client.subscribe("bench/answers", 0)

    client.on_message = on_message
    client.on_subscribe = lambda *_: ready.set()
    client.on_connect = on_connect
    client.connect(host, port)
    client.loop_start()
    assert ready.wait(PATIENCE)
    with socket.create_connection((host, port), PATIENCE) as link:
        link.sendall(CONNECT)
        link.recv(CONNACK_LENGTH)
        link.settimeout(None)
        threading.Thread(target=discard, args=(link,), daemon=True).start()
        burst = b"".join(publish(number + 1, command(number, size, "modify", first)) for number in range(count))
        begun = time.perf_counter()
        for _ in range(bursts):
            link.sendall(burst)
            for _ in range(count):
                assert answered.acquire(timeout=PATIENCE)
        seconds = time.perf_counter() - begun
        link.shutdown(socket.SHUT_RDWR)
    end_client(client)
    print(json.dumps({"seconds": seconds}), flush=True)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
