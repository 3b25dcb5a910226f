"""The checker: reads the history of each thing over a broker, and compares it with the loads' logs.

    python -m tests.support.kill_series.checker URI ASK ANSWERS LOG…

Prints a line for each finding, then a line of figures. The exit code is 1 if there is a finding. It uses the running
service as a client, so it sees what clients see.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.clients.mqtt import BrokerClient
from tests.support.kill_series.clients import join
from tests.support.kill_series.load import APART, SUBSCRIBE, THINGS, command, streaming
from tests.support.kill_series.log import Log, PastRetrieve, Replay

COMPLETE = "complete"

LONGEST_WAIT = 60.0
"""Seconds within which a command must get its response, even during restarts.

Far less than any source holds a delivery.
"""


class Fault(StrEnum):
    """The kind of a finding."""

    LOST = "lost"
    DOUBLED = "doubled"
    REORDERED = "reordered"
    STALLED = "stalled"
    WRONG = "wrong"


class Finding(NamedTuple):
    """A violation of a guarantee."""

    fault: Fault
    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    revision: int
    path: str
    value: Any
    timestamp: str = ""


def findings(
    log: Log, histories: Mapping[str, Sequence[Entry]], states: Mapping[str, Any], longest: float = LONGEST_WAIT
) -> list[Finding]:
    """Return all violations of guarantees in the histories, states, replays and retrieves.

    These are losses, duplicates, gaps, a wrong order, commands without a response within `longest` seconds, states that
    are not the fold of their history, and replays and retrieves that differ from the history.
    """
    found = [
        Finding(Fault.WRONG, f"{number} was refused with {status}")
        for number, status in log.refused.items()
        if status not in log.tolerated
    ]
    found += [
        Finding(Fault.WRONG, f"{number} was answered in two ways, as {sorted(revisions)}")
        for number, revisions in log.answered.items()
        if len(revisions) > _most(log, number)
    ]
    for thing, history in histories.items():
        found += _in_history(log, thing, history, states.get(thing))
        found += _in_order(log, thing, history)
    found += _waits(log, longest)
    for name, replay in log.replays.items():
        found += _in_replay(name, replay, histories.get(replay.thing, ()))
    for name, asked in log.past.items():
        found += _in_past(name, asked, histories.get(asked.thing, ()), log.tolerated)
    if log.received or log.acknowledged:
        found += _at_target(log, histories)
    return found


def _most(log: Log, number: int) -> int:
    """Return how often a command may be carried out: once, and once for each time it was sent as new."""
    return 1 + log.again[number]


def _written(history: Sequence[Entry]) -> dict[Any, list[int]]:
    """Return the revisions at which each number was written."""
    written = defaultdict[Any, list[int]](list)
    for entry in history:
        if entry.path == "/attributes/n":
            written[entry.value].append(entry.revision)
    return written


def _in_history(log: Log, thing: str, history: Sequence[Entry], state: Any) -> Iterator[Finding]:
    revisions = [entry.revision for entry in history]
    if revisions != list(range(1, len(revisions) + 1)):
        yield Finding(Fault.WRONG, f"{thing}: gap or disorder in the revisions around {_first_break(revisions)}")
    written = _written(history)
    for number, at in written.items():
        if len(at) > _most(log, number):
            yield Finding(Fault.DOUBLED, f"{thing}: {number} was written {len(at)} times")
    for number in (number for number, owner in log.sent.items() if owner == thing):
        answered = log.answered.get(number, set())
        if number not in written:
            if answered or number not in log.refused:
                yield Finding(Fault.LOST, f"{thing}: {number} was {'answered' if answered else 'sent'} and is lost")
        elif not answered.issubset(written[number]):
            yield Finding(
                Fault.WRONG, f"{thing}: {number} was answered as {max(answered)} and stands at {written[number][0]}"
            )
    last = next((entry.value for entry in reversed(history) if entry.path == "/attributes/n"), None)
    if state != last:
        yield Finding(Fault.WRONG, f"{thing}: the state says {state}, its history ends with {last}")


def _in_order(log: Log, thing: str, history: Sequence[Entry]) -> Iterator[Finding]:
    """Find commands that were not carried out in the order of their first sending, by sender.

    Failed commands may be sent again later, so they are left out.
    """
    highest: dict[int, int] = {}
    failed = log.refused.keys() | log.faulted
    for number in _written(history):
        if not log.is_ordered or number not in log.sent or number in failed:
            continue
        sender = number // APART
        if number < highest.get(sender, -1):
            yield Finding(Fault.REORDERED, f"{thing}: {number} was written after {highest[sender]}")
        highest[sender] = max(number, highest.get(sender, -1))


def _waits(log: Log, longest: float) -> Iterator[Finding]:
    for number in log.sent:
        if number not in log.answered and number not in log.refused:
            yield Finding(Fault.STALLED, f"{number} was never answered")
    for name, asked in log.past.items():
        if not asked.answers:
            yield Finding(Fault.STALLED, f"retrieve {name} of the past was never answered")
    for name, waited in waits(log).items():
        if waited > longest:
            yield Finding(Fault.STALLED, f"{name} was answered after {waited:.1f} s, expected {longest:g} s at most")


def waits(log: Log) -> dict[str, float]:
    """Return the seconds that each command and retrieve of the past waited for its first response."""
    found = {str(number): at - log.sent_at[number] for number, at in log.answered_at.items()}
    past = log.past.items()
    found |= {f"retrieve {name}": it.answered_at - it.at for name, it in past if it.answered_at is not None}
    return found


def _first_break(revisions: Sequence[int]) -> int | None:
    return next((found for expected, found in enumerate(revisions, 1) if expected != found), None)


def _in_replay(name: str, replay: Replay, history: Sequence[Entry]) -> Iterator[Finding]:
    """Check that the revisions of a replay rise by one, and that duplicates are equal in every byte."""
    seen: dict[int, str] = {}
    highest = replay.start - 1
    values = {entry.revision: entry.value for entry in history if entry.path == "/attributes/n"}
    over = replay.ends[0][0] if replay.ends else len(replay.items)
    for position, item in enumerate(replay.items):
        if item.revision in seen:
            if seen[item.revision] != item.digest:
                yield Finding(Fault.WRONG, f"replay {name}: {item.revision} came again and was another")
            continue
        if item.revision != highest + 1:
            fault = Fault.LOST if item.revision > highest else Fault.REORDERED
            yield Finding(fault, f"replay {name}: {item.revision} came after {highest}")
        if position >= over:
            yield Finding(Fault.WRONG, f"replay {name}: {item.revision} came after the end")
        if item.revision in values and values[item.revision] != item.n:
            text = f"replay {name}: {item.revision} has the value {item.n}, the history has {values[item.revision]}"
            yield Finding(Fault.WRONG, text)
        seen[item.revision] = item.digest
        highest = max(highest, item.revision)
    if len(seen) > replay.demanded:
        yield Finding(Fault.WRONG, f"replay {name}: {len(seen)} events came, {replay.demanded} were asked for")
    if not replay.ends:
        yield Finding(Fault.STALLED, f"replay {name} has not ended")
    elif replay.ends[0][1] == COMPLETE and highest < replay.known:
        text = f"replay {name}: complete at {highest}, when {replay.known} had been answered before it began"
        yield Finding(Fault.LOST, text)


def _in_past(name: str, asked: PastRetrieve, history: Sequence[Entry], tolerated: set[int]) -> Iterator[Finding]:
    """Compare the responses of a retrieve of the past with the history at that revision or time."""
    if asked.header == "at-historical-revision":
        before = [entry for entry in history if entry.revision <= int(asked.value)]
    else:
        before = [entry for entry in history if entry.timestamp < asked.value]
    expected = next((entry.value for entry in reversed(before) if entry.path == "/attributes/n"), None)
    for status, value in asked.answers:
        if status not in tolerated and (status, value) != (200, expected):
            text = f"retrieve {name} of {asked.thing} at {asked.value}: {status} {value}, the history has {expected}"
            yield Finding(Fault.WRONG, text)


def _at_target(log: Log, histories: Mapping[str, Sequence[Entry]]) -> Iterator[Finding]:
    """Check that a target received each event, the first time in order, including acknowledged ones."""
    highest: dict[str, int] = {}
    values = {thing: {entry.revision: entry.value for entry in history} for thing, history in histories.items()}
    for event in log.received:
        before = highest.get(event.thing, 0)
        if event.revision > before + 1:
            yield Finding(Fault.LOST, f"target: {event.thing} at {event.revision} came after {before}")
        if event.revision > 1 and values.get(event.thing, {}).get(event.revision) != event.n:
            text = f"target: {event.thing} at {event.revision} has the value {event.n}, which its history does not have"
            yield Finding(Fault.WRONG, text)
        highest[event.thing] = max(before, event.revision)
    for thing, history in histories.items():
        if (last := highest.get(thing, 0)) != len(history):
            text = f"target: {thing} was received up to {last}, its history ends with {len(history)}"
            yield Finding(Fault.LOST, text)
    numbers = {event.n for event in log.received if isinstance(event.n, int)}
    for number in sorted(log.acknowledged - numbers):
        yield Finding(Fault.LOST, f"target: {number} was acknowledged and not received")


def replay(client: BrokerClient, thing: str) -> list[Entry]:
    """Return the whole history of a thing, as a client receives it."""
    created = client.ask_for(streaming(thing, SUBSCRIBE))
    client.command(streaming(thing, "request"), value={**created["value"], "demand": 10_000_000})
    entries = []
    while not (answer := client.next())["topic"].endswith(f"/{COMPLETE}"):
        # A response may arrive again in between, that to the subscribe too: a restarted broker may deliver it twice.
        if "/streaming/" in answer["topic"] and not answer["topic"].endswith("/created"):
            assert answer["topic"].endswith("/next"), answer
            item = answer["value"]["item"]
            entries.append(Entry(item["revision"], item["path"], item.get("value"), item["timestamp"]))
    return entries


def seen(client: BrokerClient, thing: str) -> tuple[list[Entry], Any]:
    """Return the history and the state of a thing at one time, because requeued commands may still arrive."""
    while True:
        before, history, after = (state(client, thing), replay(client, thing), state(client, thing))
        if before == after:
            return history, after


def state(client: BrokerClient, thing: str) -> Any:
    return client.ask_for(command(thing, "retrieve"), "/attributes/n").get("value")


def figures(log: Log, found: Sequence[Finding]) -> str:
    """Return one line of figures for the record of a long run."""
    counts = Counter(finding.fault for finding in found)
    replays = log.replays.values()
    completed = sum(bool(replay.ends) and replay.ends[0][1] == COMPLETE for replay in replays)
    parts = [
        f"{len(log.answered)} commands answered",
        f"{len(log.refused)} refused",
        f"{sum(log.again.values())} sent again",
        *(f"{counts[fault]} {fault}" for fault in Fault),
        f"longest wait {max(waits(log).values(), default=0.0):.1f} s",
        f"{len(log.past)} retrieves of the past",
        f"{len(replays)} replays, {completed} complete, {len(replays) - completed} failed",
    ]
    if log.received:
        parts.append(f"{len(log.received)} events at a target, {len(log.acknowledged)} acknowledged")
    return "; ".join(parts)


def main(uri: str, ask: str, answers: str, *paths: Path) -> int:
    log = Log.read(*paths)
    histories, states = dict[str, list[Entry]](), dict[str, Any]()
    with join(uri, ask, answers) as client:
        for thing in (f"device-{number}" for number in range(THINGS)):
            histories[thing], states[thing] = seen(client, thing)
    found = findings(log, histories, states)
    print("\n".join([*(finding.text for finding in found), figures(log, found)]))
    return 1 if found else 0


if __name__ == "__main__":
    _, uri, ask, answers, *paths = sys.argv
    sys.exit(main(uri, ask, answers, *map(Path, paths)))
