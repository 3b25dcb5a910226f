"""The checker: asks for every thing's whole history over a broker and compares it with the logs of the loads.

    python -m tests.support.kill_series.checker URI ASK ANSWERS LOG…

Prints one finding a line and ends with 1, or prints counts and ends with 0. It asks the running service as any client
would, so it sees what clients see.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.clients.mqtt import BrokerClient
from tests.support.kill_series.clients import join
from tests.support.kill_series.load import NAMESPACE, THINGS, streaming
from tests.support.kill_series.log import Log, Replay

COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class Entry:
    revision: int
    path: str
    value: Any


def findings(log: Log, histories: Mapping[str, Sequence[Entry]], states: Mapping[str, Any]) -> list[str]:
    """Everything that breaks the promise: losses, repeats, gaps, states that are not the fold of their history, and
    replays that told something else."""
    found = [f"{number} was refused with {status}" for number, status in log.refused.items()]
    found += [
        f"{number} was answered in two ways, as {sorted(revisions)}"
        for number, revisions in log.answered.items()
        if len(revisions) > 1
    ]
    for thing, history in histories.items():
        found += _in_history(log, thing, history, states.get(thing))
    for name, replay in log.replays.items():
        found += _in_replay(name, replay, histories.get(replay.thing, ()))
    if log.received or log.promised:
        found += _at_target(log, histories)
    return found


def _in_history(log: Log, thing: str, history: Sequence[Entry], state: Any) -> Iterator[str]:
    revisions = [entry.revision for entry in history]
    if revisions != list(range(1, len(revisions) + 1)):
        yield f"{thing}: gap or disorder in the revisions around {_first_break(revisions)}"
    written = Counter(entry.value for entry in history if entry.path == "/attributes/n")
    yield from (f"{thing}: {number} was written {times} times" for number, times in written.items() if times > 1)
    at = {entry.value: entry.revision for entry in history if entry.path == "/attributes/n"}
    for number in (number for number, owner in log.sent.items() if owner == thing):
        answered = log.answered.get(number, set())
        if number not in at:
            yield f"{thing}: {number} was {'answered' if answered else 'sent'} and is lost"
        elif answered and at[number] not in answered:
            yield f"{thing}: {number} was answered as {max(answered)} and stands at {at[number]}"
    last = next((entry.value for entry in reversed(history) if entry.path == "/attributes/n"), None)
    if state != last:
        yield f"{thing}: the state says {state}, its history ends with {last}"


def _first_break(revisions: Sequence[int]) -> int | None:
    return next((found for expected, found in enumerate(revisions, 1) if expected != found), None)


def _in_replay(name: str, replay: Replay, history: Sequence[Entry]) -> Iterator[str]:
    """A replay's items go up by one; one that has been there before is the same in every byte."""
    seen: dict[int, str] = {}
    highest = replay.start - 1
    values = {entry.revision: entry.value for entry in history if entry.path == "/attributes/n"}
    over = replay.ends[0][0] if replay.ends else len(replay.items)
    for position, item in enumerate(replay.items):
        if item.revision in seen:
            if seen[item.revision] != item.digest:
                yield f"replay {name}: {item.revision} came again and was another"
            continue
        if item.revision != highest + 1:
            yield f"replay {name}: {item.revision} came after {highest}"
        if position >= over:
            yield f"replay {name}: {item.revision} came after the end"
        if item.revision in values and values[item.revision] != item.n:
            yield f"replay {name}: {item.revision} said {item.n}, the history says {values[item.revision]}"
        seen[item.revision] = item.digest
        highest = max(highest, item.revision)
    if len(seen) > replay.demanded:
        yield f"replay {name}: {len(seen)} events came, {replay.demanded} were asked for"
    if not replay.ends:
        yield f"replay {name} has not ended"
    elif replay.ends[0][1] == COMPLETE and highest < replay.known:
        yield f"replay {name}: complete at {highest}, when {replay.known} had been answered before it began"


def _at_target(log: Log, histories: Mapping[str, Sequence[Entry]]) -> Iterator[str]:
    """A target hears of every event, the first time in order; what it acknowledges it has heard of."""
    highest: dict[str, int] = {}
    values = {thing: {entry.revision: entry.value for entry in history} for thing, history in histories.items()}
    for heard in log.received:
        before = highest.get(heard.thing, 0)
        if heard.revision > before + 1:
            yield f"target: {heard.thing} at {heard.revision} came after {before}"
        if heard.revision > 1 and values.get(heard.thing, {}).get(heard.revision) != heard.n:
            yield f"target: {heard.thing} at {heard.revision} said {heard.n}, which its history does not"
        highest[heard.thing] = max(before, heard.revision)
    for thing, history in histories.items():
        if highest.get(thing, 0) != len(history):
            yield f"target: {thing} was heard of up to {highest.get(thing, 0)}, its history ends with {len(history)}"
    numbers = {heard.n for heard in log.received if isinstance(heard.n, int)}
    yield from (f"target: {number} was acknowledged and not heard of" for number in sorted(log.promised - numbers))


def replay(client: BrokerClient, thing: str) -> list[Entry]:
    """The whole history of a thing, as a client gets it."""
    created = client.ask_for(streaming(thing, "subscribeForPersistedEvents"))
    client.command(streaming(thing, "request"), value={**created["value"], "demand": 10_000_000})
    entries = []
    while not (answer := client.next())["topic"].endswith(f"/{COMPLETE}"):
        # What the load was answered may come once more, in between: a broker that was killed may have it twice.
        if "/streaming/" in answer["topic"]:
            assert answer["topic"].endswith("/next"), answer
            item = answer["value"]["item"]
            entries.append(Entry(item["revision"], item["path"], item.get("value")))
    return entries


def summary(log: Log, histories: Mapping[str, Sequence[Entry]]) -> str:
    replays = log.replays.values()
    completed = sum(bool(replay.ends) and replay.ends[0][1] == COMPLETE for replay in replays)
    items = sum(len(replay.items) for replay in replays)
    again = items - sum(len({item.revision for item in replay.items}) for replay in replays)
    return (
        f"{len(log.answered)} answers, {sum(map(len, histories.values()))} entries, nothing lost; "
        f"{len(replays)} replays, {completed} complete, {len(replays) - completed} failed, "
        f"{items} events, {again} of them came again"
        + (f"; {len(log.received)} events at a target, {len(log.promised)} acknowledged" if log.received else "")
    )


def main(uri: str, ask: str, answers: str, *paths: Path) -> int:
    log = Log.read(*paths)
    histories, states = dict[str, list[Entry]](), dict[str, Any]()
    with join(uri, ask, answers) as client:
        for thing in (f"device-{number}" for number in range(THINGS)):
            histories[thing] = replay(client, thing)
            answer = client.ask_for(f"{NAMESPACE}/{thing}/things/twin/commands/retrieve", "/attributes/n")
            states[thing] = answer.get("value")
    found = findings(log, histories, states)
    print("\n".join(found) or summary(log, histories))
    return 1 if found else 0


if __name__ == "__main__":
    _, uri, ask, answers, *paths = sys.argv
    sys.exit(main(uri, ask, answers, *map(Path, paths)))
