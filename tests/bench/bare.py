"""The bare client for comparison: paho publishes with QoS 1 on its own loop, with a window of 100.

    python -m tests.bench.bare HOST PORT TOPIC COUNT BYTES|TEXT

All messages are equal, with BYTES bytes or the text TEXT. Prints one JSON line: the seconds until the last confirm,
and the processor seconds of this process.
"""

from __future__ import annotations

import json
import sys
import time

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

WINDOW = 100


def main(host: str, port: int, topic: str, count: int, payload: bytes) -> int:
    """Publish from paho's loop itself, without another thread, which is the fastest way."""
    client = Client(CallbackAPIVersion.VERSION2, "bare")
    client.max_inflight_messages_set(WINDOW)
    confirmed = sent = 0
    is_connected = False

    def on_connect(*_: object) -> None:
        nonlocal is_connected
        is_connected = True

    def on_publish(*_: object) -> None:
        nonlocal confirmed
        confirmed += 1

    client.on_connect, client.on_publish = on_connect, on_publish
    client.connect(host, port)
    while not is_connected:
        client.loop(1)
    begun, processor = time.perf_counter(), time.process_time()
    while confirmed < count:
        while sent < count and sent - confirmed < WINDOW:
            client.publish(topic, payload, 1)
            sent += 1
        client.loop(1)
    print(
        json.dumps({"seconds": time.perf_counter() - begun, "processor": time.process_time() - processor}), flush=True
    )
    client.disconnect()
    return 0


if __name__ == "__main__":
    host, port, topic, count, what = sys.argv[1:]
    sys.exit(main(host, int(port), topic, int(count), b"x" * int(what) if what.isdecimal() else what.encode()))
