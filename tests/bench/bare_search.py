"""The bare client in place of the service: it responds to searches with constant messages.

    python -m tests.bench.bare_search HOST PORT ASK ANSWERS ITEMS

It is paho on its own loop. `ITEMS` is the JSON of a page. Prints `ready`, and ends when its standard input is closed.
"""

from __future__ import annotations

import json
import os
import select
import sys

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.clients.mqtt import answer_at_once

START = b'{"topic":"_/_/things/twin/search/%b","headers":{"correlation-id":"%b","ditto-originator":"acme:bench",'
END = b'"content-type":"application/json"},"path":"/","value":{"subscriptionId":"%b"%b}}'


def say(word: bytes, number: bytes, key: bytes, more: bytes = b"") -> bytes:
    return (START + END) % (word, number, key, more)


def main(host: str, port: int, ask: str, answers: str, items: str) -> int:
    client = Client(CallbackAPIVersion.VERSION2, "answering")
    client.max_inflight_messages_set(1_000)
    page = b',"items":' + items.encode()

    def on_connect(*_: object) -> None:
        client.subscribe(ask, 1)

    def on_message(_client: Client, _userdata: object, message: MQTTMessage) -> None:
        received = json.loads(message.payload)
        number = received["headers"]["correlation-id"].encode()
        if received["topic"].endswith("/subscribe"):
            client.publish(answers, say(b"created", number, b"key-with-22-characters"), 1)
        else:
            key = received["value"]["subscriptionId"].encode()
            client.publish(answers, say(b"next", number, key, page), 1)
            client.publish(answers, say(b"complete", number, key), 1)

    client.on_message, client.on_socket_open = on_message, answer_at_once
    client.on_subscribe = lambda *_: print("ready", flush=True)
    client.on_connect = on_connect
    client.connect(host, port)
    while not (select.select([sys.stdin], [], [], 0)[0] and not os.read(sys.stdin.fileno(), 1)):
        for _ in range(20):
            client.loop(0.05)
    client.disconnect()
    return 0


if __name__ == "__main__":
    host, port, ask, answers, items = sys.argv[1:]
    sys.exit(main(host, int(port), ask, answers, items))
