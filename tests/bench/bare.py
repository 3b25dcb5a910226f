"""The bare client: paho publishing QoS 1 on its own loop, window 100, as the figure that the service is compared with.

    python -m tests.bench.bare HOST PORT TOPIC COUNT BYTES

Prints one JSON line: the seconds until the last confirmation, and the processor seconds this process took.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

WINDOW = 100


def main(host: str, port: int, topic: str, count: int, size: int) -> int:
    client = Client(CallbackAPIVersion.VERSION2, "bare")
    client.max_inflight_messages_set(WINDOW)
    client.max_queued_messages_set(0)
    connected, ended = threading.Event(), threading.Event()
    room = threading.Semaphore(WINDOW * 2)
    confirmed = 0

    def on_publish(*_: object) -> None:
        nonlocal confirmed
        confirmed += 1
        room.release()
        if confirmed == count:
            ended.set()

    client.on_connect = lambda *_: connected.set()
    client.on_publish = on_publish
    client.connect(host, port)
    client.loop_start()
    connected.wait(10)
    payload = b"x" * size
    begun, processor = time.perf_counter(), time.process_time()
    for _ in range(count):
        room.acquire()
        client.publish(topic, payload, 1)
    ended.wait(120)
    print(
        json.dumps({"seconds": time.perf_counter() - begun, "processor": time.process_time() - processor}), flush=True
    )
    client.disconnect()
    client.loop_stop()
    return 0 if confirmed == count else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
