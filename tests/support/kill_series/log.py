"""The load's log: lines that are on the disk before anything rests on them, and what they say when read again.

One JSON object a line:

    {"sent": n, "thing": …}                                       before a modify is sent
    {"answered": n, "status": …, "revision": …}                   its answer, each time that it comes
    {"promised": n}                                               a target has acknowledged that its broker has the event
    {"heard": thing, "revision": …, "n": …}                       an event at a target, each time that it comes
    {"replay": k, "thing": …, "from": …, "known": …}              before a subscribe is sent; `known` is answered already
    {"replay": k, "demanded": …}                                  before a request is sent
    {"replay": k, "item": revision, "n": …, "digest": …}          an event, each time that it comes
    {"replay": k, "ended": "complete" or the error, "status": …}  the terminal signal, each time that it comes
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class LogWriter:
    """Lines that are on the disk when `write` returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, *lines: dict[str, Any]) -> None:
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
    """What one replay got, in order. `ends`: how many items had come at each terminal signal, and what it was."""

    thing: str
    start: int
    known: int
    demanded: int = 0
    items: list[Item] = field(default_factory=list)
    ends: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """An event that came at a target."""

    thing: str
    revision: int
    n: Any


@dataclass(slots=True)
class Log:
    """What was sent (number → thing), what was answered with success (number → revisions) and what with an error.

    `promised`: what a target has acknowledged; `heard`: what came at one, in order.
    """

    sent: dict[int, str] = field(default_factory=dict)
    answered: dict[int, set[int]] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)
    replays: dict[str, Replay] = field(default_factory=dict)
    promised: set[int] = field(default_factory=set)
    received: list[ReceivedEvent] = field(default_factory=list)

    @classmethod
    def read(cls, *paths: Path) -> Log:
        """The lines of several logs; a last line that was cut off by a kill is no line."""
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
        """Take one line; `owner` tells the replays of several loads apart."""
        if "sent" in line:
            self.sent[line["sent"]] = line["thing"]
        elif "promised" in line:
            self.promised.add(line["promised"])
        elif "heard" in line:
            self.received.append(ReceivedEvent(line["heard"], line["revision"], line["n"]))
        elif "answered" in line and line["status"] < 300:
            self.answered.setdefault(line["answered"], set()).add(line["revision"])
        elif "answered" in line:
            self.refused[line["answered"]] = line["status"]
        else:
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
