"""The load of commands: modifies or retrieves over MQTT QoS 1 with responses, paced or unpaced.

    python -m tests.bench.modify HOST PORT COUNT BYTES RATE [VERB [FIRST [RESPONSES [COMMANDS]]]]

The commands go to fifty things in turn, from the thing with the number FIRST. With RATE 0, 200 commands are in flight;
otherwise, a command leaves at its time, and its latency counts from this time. RESPONSES is the topic of the responses, or
of the events of a target; COMMANDS is the topic of the commands. Prints one JSON line: the seconds, and the latencies in
milliseconds.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.clients.mqtt import answer_at_once
from tests.support.clients.paho_end import end_client

UNANSWERED = 200
THINGS = 50


def command(number: int, size: int, verb: str, first: int) -> bytes:
    """Return a modify whose message has about `size` bytes, or a retrieve of a whole thing."""
    document: dict[str, Any] = {
        "topic": f"acme.bench/device-{first + number % THINGS}/things/twin/commands/{verb}",
        "headers": {"correlation-id": str(number)},
        "path": "/features/sensor/properties/reading" if verb == "modify" else "/",
    }
    if verb == "modify":
        document["value"] = {"n": number, "note": ""}
        document["value"]["note"] = "x" * (size - len(json.dumps(document)))
    return json.dumps(document).encode()


def main(
    host: str,
    port: int,
    count: int,
    size: int,
    rate: float,
    verb: str = "modify",
    first: int = 0,
    answers: str = "bench/answers",
    requests: str = "bench/ask",
) -> int:
    client = Client(CallbackAPIVersion.VERSION2, "modify")
    client.max_inflight_messages_set(1000)
    ready, ended = threading.Event(), threading.Event()
    room = threading.Semaphore(UNANSWERED if not rate else count)
    due: dict[int, float] = {}
    latencies: list[float] = []
    bad: list[bytes] = []

    def on_connect(*_: object) -> None:
        client.subscribe(answers, 1)

    def on_message(_client: Client, _userdata: Any, message: MQTTMessage) -> None:
        answer = json.loads(message.payload)
        number = int(answer["headers"]["correlation-id"])
        latencies.append((time.perf_counter() - due[number]) * 1000)
        if answer.get("status", 200) >= 300:
            bad.append(bytes(message.payload))
        room.release()
        if len(latencies) == count:
            ended.set()

    client.on_message = on_message
    client.on_socket_open = answer_at_once
    client.on_subscribe = lambda *_: ready.set()
    client.on_connect = on_connect
    client.connect(host, port)
    client.loop_start()
    ready.wait(10)
    payloads = [command(number, size, verb, first) for number in range(count)]
    begun = time.perf_counter()
    for number, payload in enumerate(payloads):
        room.acquire()
        due[number] = begun + number / rate if rate else time.perf_counter()
        if (early := due[number] - time.perf_counter()) > 0:
            time.sleep(early)
        client.publish(requests, payload, 1)
    ended.wait(120)
    seconds = time.perf_counter() - begun
    end_client(client)
    if bad or len(latencies) < count:
        print(f"{count - len(latencies)} unanswered, {len(bad)} refused: {bad[:1]!r}", file=sys.stderr)
        return 1
    ranks = statistics.quantiles(latencies, n=100)
    print(json.dumps({"seconds": seconds, "p50": ranks[49], "p99": ranks[98], "max": max(latencies)}), flush=True)
    return 0


if __name__ == "__main__":
    host, port, count, size, rate, *rest = sys.argv[1:]
    verb, first, answers, requests = (*rest, *("modify", "0", "bench/answers", "bench/ask")[len(rest) :])
    sys.exit(main(host, int(port), int(count), int(size), float(rate), verb, int(first), answers, requests))
