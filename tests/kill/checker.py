"""The checker: replays every thing's history over the broker and compares it with the load's log.

    python -m tests.kill.checker HOST PORT LOG

Prints one finding a line and ends with 1, or prints a count and ends with 0. It asks the running service as any client
would, so it sees what clients see.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.client import MqttClient
from tests.kill.load import THINGS


@dataclass(frozen=True, slots=True)
class Log:
    """What was sent (number → thing) and what was answered with success (number → revision)."""

    sent: dict[int, str]
    answered: dict[int, int]
    refused: dict[int, int]


@dataclass(frozen=True, slots=True)
class Entry:
    revision: int
    path: str
    value: Any


def read_log(path: Path) -> Log:
    """The log's lines; a last line that was cut off by a kill is no line."""
    sent, answered, refused = dict[int, str](), dict[int, int](), dict[int, int]()
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if "sent" in line:
            sent[line["sent"]] = line["thing"]
        elif line["status"] < 300:
            answered[line["answered"]] = line["revision"]
        else:
            refused[line["answered"]] = line["status"]
    return Log(sent, answered, refused)


def findings(log: Log, histories: dict[str, list[Entry]], states: dict[str, Any]) -> list[str]:
    """Everything that breaks the promise: losses, repeats, gaps, and states that are not the fold of their history."""
    found = [f"{number} was refused with {status}" for number, status in log.refused.items()]
    for thing, history in histories.items():
        revisions = [entry.revision for entry in history]
        if revisions != list(range(1, len(revisions) + 1)):
            found.append(f"{thing}: gap or disorder in the revisions around {_first_break(revisions)}")
        written = Counter(entry.value for entry in history if entry.path == "/attributes/n")
        found += [f"{thing}: {number} was written {times} times" for number, times in written.items() if times > 1]
        at = {entry.value: entry.revision for entry in history if entry.path == "/attributes/n"}
        for number in (number for number, owner in log.sent.items() if owner == thing):
            if number not in at:
                found.append(f"{thing}: {number} was {'answered' if number in log.answered else 'sent'} and is lost")
            elif number in log.answered and at[number] != log.answered[number]:
                found.append(f"{thing}: {number} was answered as {log.answered[number]} and stands at {at[number]}")
        last = next((entry.value for entry in reversed(history) if entry.path == "/attributes/n"), None)
        if states.get(thing) != last:
            found.append(f"{thing}: the state says {states.get(thing)}, its history ends with {last}")
    return found


def _first_break(revisions: list[int]) -> int | None:
    return next((found for expected, found in enumerate(revisions, 1) if expected != found), None)


def replay(client: MqttClient, thing: str) -> list[Entry]:
    """The whole history of a thing, as a client gets it."""
    prefix = f"acme.kill/{thing}/things/twin/streaming"
    created = client.ask_for(f"{prefix}/subscribeForPersistedEvents")
    client.command(f"{prefix}/request", value={**created["value"], "demand": 10_000_000})
    *events, _complete = client.until("complete")
    items = [event["value"]["item"] for event in events]
    return [Entry(item["revision"], item["path"], item.get("value")) for item in items]


def main(host: str, port: int, log_path: Path) -> int:
    log = read_log(log_path)
    histories, states = dict[str, list[Entry]](), dict[str, Any]()
    with MqttClient(host, port, ask="load/check", answers="load/checked") as client:
        for thing in (f"device-{number}" for number in range(THINGS)):
            histories[thing] = replay(client, thing)
            answer = client.ask_for(f"acme.kill/{thing}/things/twin/commands/retrieve", "/attributes/n")
            states[thing] = answer.get("value")
    found = findings(log, histories, states)
    print("\n".join(found) or f"{len(log.answered)} answers, {sum(map(len, histories.values()))} entries, nothing lost")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
