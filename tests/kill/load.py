"""The load: modifies things over MQTT with QoS 1 and logs every answer, synced, before it sends anything more.

    python -m tests.kill.load HOST PORT LOG

Each command writes a number that is written never again to `/attributes/n` of one of several things. A line of the log is
one JSON object: `{"sent": n, "thing": …}` before a command is sent, `{"answered": n, "status": …, "revision": …}` after.
SIGTERM stops the sending; the process ends when everything that was sent is answered.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

THINGS = 5
IN_FLIGHT = 40
ANSWERED_WITHIN = 60.0


def thing_of(number: int) -> str:
    return f"device-{number % THINGS}"


class Log:
    """Lines that are on the disk when `write` returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, *lines: dict[str, Any]) -> None:
        self._file.write("".join(json.dumps(line) + "\n" for line in lines))
        self._file.flush()
        os.fsync(self._file.fileno())


def main(host: str, port: int, log_path: Path) -> int:
    log = Log(log_path)
    answers: queue.Queue[dict[str, Any]] = queue.Queue()
    subscribed, stopping = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    client = Client(CallbackAPIVersion.VERSION2, f"load-{os.getpid()}", clean_session=False)
    client.on_connect = lambda *_: client.subscribe("load/answers", 1)
    client.on_subscribe = lambda *_: subscribed.set()

    def on_message(_client: Client, _userdata: Any, message: MQTTMessage) -> None:
        answers.put(json.loads(message.payload))

    client.on_message = on_message
    client.connect(host, port)
    client.loop_start()
    if not subscribed.wait(10):
        return 1
    number, open_numbers = 0, set[int]()
    while open_numbers or not stopping.is_set():
        fresh = [] if stopping.is_set() else list(range(number, number + IN_FLIGHT - len(open_numbers)))
        number += len(fresh)
        open_numbers.update(fresh)
        if fresh:
            log.write(*({"sent": n, "thing": thing_of(n)} for n in fresh))
        for n in fresh:
            client.publish("load/ask", command(n), 1)
        answer = answers.get(timeout=ANSWERED_WITHIN)
        log.write(line_of(answer))
        open_numbers.discard(int(answer["headers"]["correlation-id"]))
    client.disconnect()
    client.loop_stop()
    return 0


def command(number: int) -> bytes:
    return json.dumps(
        {
            "topic": f"acme.kill/{thing_of(number)}/things/twin/commands/modify",
            "headers": {"correlation-id": str(number)},
            "path": "/attributes/n",
            "value": number,
        }
    ).encode()


def line_of(answer: dict[str, Any]) -> dict[str, Any]:
    headers = answer["headers"]
    return {
        "answered": int(headers["correlation-id"]),
        "status": answer["status"],
        "revision": headers.get("entity-revision"),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
