"""The load's log: lines that are on disk before the load continues, and their content when read again.

One JSON object a line:

    {"load": …}                                                   the options of the load (`LoadOptions`), first
    {"sent": n, "thing": …, "at": …}                              before a modify is sent; `at` in seconds
    {"faulted": n}                                                a fault was injected into this modify, or another request
    {"again": n}                                                  before it is sent again without an idempotency key
    {"answered": n, "status": …, "revision": …, "at": …}          its response, each time that it arrives
    {"asked": k, "thing": …, "header": …, "value": …, "at": …}    before a retrieve of the past is sent
    {"shown": k, "status": …, "n": …, "at": …}                    its response, each time that it arrives
    {"acknowledged": n}                                           a target has acknowledged that its broker has the event
    {"received": thing, "revision": …, "n": …}                    an event at a target, each time that it arrives
    {"replay": k, "thing": …, "from": …, "known": …}              before a subscribe is sent; `known` has a response already
    {"replay": k, "demanded": …}                                  before a request is sent
    {"replay": k, "item": revision, "n": …, "digest": …}          an event, each time that it arrives
    {"replay": k, "ended": "complete" or the error, "status": …}  the terminal signal, each time that it arrives
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class LogWriter:
    """Appends lines, which are on disk when `write` returns. Threads can share it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def write(self, *lines: dict[str, Any]) -> None:
        with self._lock:
            self._file.write("".join(json.dumps(line) + "\n" for line in lines))
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class Item:
    revision: int
    n: Any
    digest: str


@dataclass(slots=True)
class Replay:
    """The items of one replay, in order. `ends`: each terminal signal, and the number of items before it."""

    thing: str
    start: int
    known: int
    demanded: int = 0
    items: list[Item] = field(default_factory=list)
    ends: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """An event that arrived at a target."""

    thing: str
    revision: int
    n: Any


@dataclass(slots=True)
class PastRetrieve:
    """A retrieve of the past. `answers`: the status and value of each response."""

    thing: str
    header: str
    value: str
    at: float
    answers: list[tuple[int, Any]] = field(default_factory=list)
    answered_at: float | None = None


@dataclass(slots=True)
class Log:
    """The content of logs: sent commands (number → thing), successful (number → revisions), failed.

    `again`: how often a command was sent again without an idempotency key; `sent_at` and `answered_at`: seconds of the
    first time. `acknowledged`: events that a target has acknowledged; `received`: events at a target, in order.
    `tolerated`: the statuses of injected faults, `faulted`: the commands with a fault; `is_ordered`: whether the broker
    keeps confirmed messages.
    """

    sent: dict[int, str] = field(default_factory=dict)
    answered: dict[int, set[int]] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)
    replays: dict[str, Replay] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    received: list[ReceivedEvent] = field(default_factory=list)
    again: Counter[int] = field(default_factory=Counter)
    sent_at: dict[int, float] = field(default_factory=dict)
    answered_at: dict[int, float] = field(default_factory=dict)
    past: dict[str, PastRetrieve] = field(default_factory=dict)
    tolerated: set[int] = field(default_factory=set)
    faulted: set[Any] = field(default_factory=set)
    is_ordered: bool = True

    @classmethod
    def read(cls, *paths: Path) -> Log:
        """Read several logs. A last line that a kill has cut off is ignored."""
        log = cls()
        for path in paths:
            for text in path.read_text(encoding="utf-8").splitlines():
                try:
                    line = json.loads(text)
                except ValueError:
                    continue
                log.add(line, path.stem)
        return log

    def add(self, line: dict[str, Any], owner: str) -> None:
        """Add a line; `owner` distinguishes the replays and retrieves of several loads."""
        match line:
            case {"load": options}:
                self.tolerated.update(options["tolerated"])
                self.is_ordered = self.is_ordered and not options["is_lossy"]
            case {"sent": number}:
                self.sent[number], self.sent_at[number] = line["thing"], line["at"]
            case {"faulted": number}:
                self.faulted.add(number)
            case {"again": number}:
                self.again[number] += 1
            case {"acknowledged": number}:
                self.acknowledged.add(number)
            case {"received": thing}:
                self.received.append(ReceivedEvent(thing, line["revision"], line["n"]))
            case {"answered": number, "status": status}:
                self.answered_at.setdefault(number, line["at"])
                if status < 300:
                    self.answered.setdefault(number, set()).add(line["revision"])
                else:
                    self.refused[number] = status
            case {"asked": number}:
                self.past[f"{owner}/{number}"] = PastRetrieve(line["thing"], line["header"], line["value"], line["at"])
            case {"shown": number}:
                asked = self.past[f"{owner}/{number}"]
                asked.answers.append((line["status"], line["n"]))
                asked.answered_at = asked.answered_at or line["at"]
            case _:
                self._add_to_replay(line, f"{owner}/{line['replay']}")

    def _add_to_replay(self, line: dict[str, Any], name: str) -> None:
        if "thing" in line:
            self.replays[name] = Replay(line["thing"], line["from"], line["known"])
            return
        replay = self.replays[name]
        if "demanded" in line:
            replay.demanded += line["demanded"]
        elif "item" in line:
            replay.items.append(Item(line["item"], line["n"], line["digest"]))
        else:
            replay.ends.append((len(replay.items), line["ended"]))
