"""Measures the seconds from `connectivity serve` to ready, compared with a bare server.

The bare server is FastAPI on uvicorn with one subscription by paho.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.bench.harness import FULL, SUBJECT, Scale, fill, serving
from tests.bench.report import Figure
from tests.support.brokers import free_port
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.connection_documents import connection, source
from tests.support.wait import wait_until_sync

ROUNDS = 7
GOAL = 1.2
READY_WITHIN = 30.0

BARE = """
import sys, threading
import uvicorn
from fastapi import FastAPI
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

broker, port, subscribed = int(sys.argv[1]), int(sys.argv[2]), threading.Event()
client = Client(CallbackAPIVersion.VERSION2)
client.on_connect = lambda *_: client.subscribe("bench/ask", 1)
client.on_subscribe = lambda *_: subscribed.set()
client.connect("127.0.0.1", broker)
client.loop_start()
subscribed.wait()
app = FastAPI()
app.get("/health/ready")(lambda: {})
uvicorn.run(app, port=port, log_level="warning")
"""


def to_ready(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """A start with one MQTT connection and a journal of 1,000 events.

    The first start of each fills the disk's cache.
    """
    fill(folder / "data" / "journal.db", 10, 100)
    ours, bare = [], []
    with Mosquitto.start(persistence=False) as broker:
        for _ in range(scale.of(ROUNDS, 1) + 1):
            begun = time.monotonic()
            with serving(folder, connection(broker, source("bench", SUBJECT))):
                ours.append(time.monotonic() - begun)
            bare.append(_bare(broker))
    found, beside = statistics.median(ours[1:]), statistics.median(bare[1:])
    return [
        Figure(
            "`connectivity serve` to ready",
            f"{found:.2f} s",
            f"{beside:.2f} s (FastAPI, uvicorn, paho)",
            f"≤ {GOAL} s",
            found <= GOAL,
            f"ratio {found / beside:.2f}; slowest {max(ours[1:]):.2f} s",
        )
    ]


def _bare(broker: Mosquitto) -> float:
    port, begun = free_port(), time.monotonic()
    with subprocess.Popen([sys.executable, "-c", BARE, str(broker.port), str(port)]) as process:
        wait_until_sync(lambda: _is_ready(port), READY_WITHIN)
        seconds = time.monotonic() - begun
        process.kill()
    return seconds


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False
