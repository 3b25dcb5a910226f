"""The load of commands over any broker at a rate: modifies with responses, until SIGTERM.

    python -m tests.bench.paced_load URI ASK ANSWERS RATE

A command leaves at its time, even if responses are pending. After SIGTERM it waits for all responses, and prints one JSON
line: their number and the achieved rate.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time

from tests.bench.modify import THINGS
from tests.support.kill_series.clients import join

ANSWERED_WITHIN = 60.0
PATH = "/features/sensor/properties/reading"


def main(uri: str, ask: str, answers: str, rate: float) -> int:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    sent = refused = 0
    with join(uri, ask, answers) as requester:
        print("ready", flush=True)
        begun = time.perf_counter()
        while not stopping.is_set():
            requester.command(
                f"acme.bench/device-{sent % THINGS}/things/twin/commands/modify",
                PATH,
                {"n": sent, "note": "x" * 200},
                wait=False,
            )
            sent += 1
            if (early := begun + sent / rate - time.perf_counter()) > 0:
                time.sleep(early)
        seconds = time.perf_counter() - begun
        for _ in range(sent):
            refused += requester.next(ANSWERED_WITHIN).get("status", 200) >= 300
    print(json.dumps({"sent": sent, "refused": refused, "rate": sent / seconds}), flush=True)
    return 0 if not refused else 1


if __name__ == "__main__":
    _, uri, ask, answers, rate = sys.argv
    sys.exit(main(uri, ask, answers, float(rate)))
