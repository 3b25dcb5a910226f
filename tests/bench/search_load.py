"""The load of searches by ID: as fast as possible, AT_ONCE at a time, on paho's own loop.

    python -m tests.bench.search_load HOST PORT ASK ANSWERS COUNT AT_ONCE

A search has five messages: `subscribe`, `created`, `request`, `next`, `complete`. Prints one JSON line: the seconds, and
the processor seconds of this process.
"""

from __future__ import annotations

import json
import sys
import time

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.clients.mqtt import answer_at_once

THINGS = 1_000
TOPIC = "_/_/things/twin/search/"


def subscribe(number: int) -> bytes:
    return (
        b'{"topic":"%bsubscribe","headers":{"correlation-id":"%d"},"path":"/",'
        b'"value":{"filter":"eq(thingId,\\"acme.bench:device-%d\\")"}}' % (TOPIC.encode(), number, number % THINGS)
    )


def request(key: str, number: str) -> bytes:
    value = b'{"subscriptionId":"%b","demand":1}' % key.encode()
    headers = b'{"correlation-id":"%b"}' % number.encode()
    return b'{"topic":"%brequest","headers":%b,"path":"/","value":%b}' % (TOPIC.encode(), headers, value)


def main(host: str, port: int, ask: str, answers: str, count: int, at_once: int) -> int:
    client = Client(CallbackAPIVersion.VERSION2, "conversing")
    client.max_inflight_messages_set(2 * at_once)
    begun = ended = things = 0
    is_ready = False

    def on_connect(*_: object) -> None:
        client.subscribe(answers, 1)

    def on_message(_client: Client, _userdata: object, message: MQTTMessage) -> None:
        nonlocal begun, ended, things
        received = json.loads(message.payload)
        word = received["topic"].rpartition("/")[2]
        if word == "created":
            client.publish(ask, request(received["value"]["subscriptionId"], received["headers"]["correlation-id"]), 1)
        elif word == "next":
            things += len(received["value"]["items"])
        elif word == "complete":
            ended += 1
            if begun < count:
                client.publish(ask, subscribe(begun), 1)
                begun += 1
        else:
            raise ValueError(f"found {received}, expected a search to go well")

    def on_subscribe(*_: object) -> None:
        nonlocal is_ready
        is_ready = True

    client.on_message, client.on_subscribe, client.on_socket_open = on_message, on_subscribe, answer_at_once
    client.on_connect = on_connect
    client.connect(host, port)
    while not is_ready:
        client.loop(1)
    start, processor = time.perf_counter(), time.process_time()
    while begun < min(at_once, count):
        client.publish(ask, subscribe(begun), 1)
        begun += 1
    while ended < count:
        client.loop(1)
        if time.perf_counter() - start > 120:
            print(f"{ended} of {count} searches have ended", file=sys.stderr)
            return 1
    seconds = time.perf_counter() - start
    client.disconnect()
    assert things == count, f"found {things} things, expected {count}"
    print(json.dumps({"seconds": seconds, "processor": time.process_time() - processor}), flush=True)
    return 0


if __name__ == "__main__":
    host, port, ask, answers, count, at_once = sys.argv[1:]
    sys.exit(main(host, int(port), ask, answers, int(count), int(at_once)))
