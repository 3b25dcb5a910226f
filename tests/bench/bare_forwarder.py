"""The bare client in place of the service: paho publishes a message for each received one.

    python -m tests.bench.bare_forwarder HOST PORT FROM TO COUNT BYTES

It receives and publishes with QoS 1, paho acknowledges, and 100 messages are in flight. Prints `ready`, then after COUNT
messages one JSON line: the processor seconds of this process.
"""

from __future__ import annotations

import json
import sys
import time

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from tests.bench.bare import WINDOW
from tests.support.clients.mqtt import answer_at_once


def main(host: str, port: int, source: str, target: str, count: int, size: int) -> int:
    client = Client(CallbackAPIVersion.VERSION2, "passing-on")
    client.max_inflight_messages_set(WINDOW)
    payload = b"x" * size
    confirmed = 0
    is_ready = False

    def on_connect(*_: object) -> None:
        client.subscribe(source, 1)

    def on_message(_client: Client, _userdata: object, _message: MQTTMessage) -> None:
        client.publish(target, payload, 1)

    def on_publish(*_: object) -> None:
        nonlocal confirmed
        confirmed += 1

    def on_subscribe(*_: object) -> None:
        nonlocal is_ready
        is_ready = True

    client.on_message, client.on_publish, client.on_subscribe = on_message, on_publish, on_subscribe
    client.on_socket_open = answer_at_once
    client.on_connect = on_connect
    client.connect(host, port)
    while not is_ready:
        client.loop(1)
    print("ready", flush=True)
    processor = time.process_time()
    while confirmed < count:
        client.loop(1)
    print(json.dumps({"processor": time.process_time() - processor}), flush=True)
    client.disconnect()
    return 0


if __name__ == "__main__":
    host, port, source, target, count, size = sys.argv[1:]
    sys.exit(main(host, int(port), source, target, int(count), int(size)))
