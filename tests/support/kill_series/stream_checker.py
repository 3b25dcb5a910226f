"""Compare the published, stored and received messages of a stream, from logs of `stream_load`.

    python -m tests.support.kill_series.stream_checker PUBLISHED READ STORED

Prints a line for each finding and ends with 1, or prints counts and ends with 0.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class Message(NamedTuple):
    """A message of a partition, as it arrived."""

    offset: int
    previous: int | None
    n: int
    digest: str


@dataclass(slots=True)
class Known:
    """The content of a log: published numbers; by partition, received messages and delivered (offset, n)."""

    published: list[int] = field(default_factory=list)
    got: dict[int, list[Message]] = field(default_factory=dict)
    read: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    sessions: Counter[str] = field(default_factory=Counter)
    """The numbers of log lines about sessions; see `tests.support.kill_series.stream_frame_reader`."""
    is_over: bool = False
    """Whether the writer has published its last message."""

    @classmethod
    def of(cls, path: Path) -> Known:
        """Read a log. A last line that a kill has cut off is ignored."""
        known = cls()
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            known.add(line)
        return known

    def add(self, line: Mapping[str, Any]) -> None:
        if "published" in line:
            self.published.append(line["published"])
        elif "over" in line:
            self.is_over = True
        elif "got" in line:
            message = Message(line["got"], line["previous"], line["n"], line["digest"])
            self.got.setdefault(line["partition"], []).append(message)
        elif "session" in line:
            self.sessions[line["session"]] += 1
        else:
            self.read.setdefault(line["partition"], []).append((line["read"], line["n"]))


def findings(published: Sequence[int], reader: Known, stored: Mapping[int, Sequence[Message]]) -> list[str]:
    """Return all violations of guarantees.

    These are losses, duplicates, gaps, a wrong order, and messages that were never stored.
    """
    times = Counter(message.n for messages in stored.values() for message in messages)
    found = [f"{number} was published and is lost" for number in published if number not in times]
    found += [f"{number} is stored {count} times" for number, count in times.items() if count > 1]
    found += [f"{number} is stored and was never published" for number in sorted(times.keys() - set(published))]
    for partition, messages in stored.items():
        found += _in_store(partition, messages)
    for partition in sorted(stored.keys() | reader.got.keys()):
        found += _at_reader(partition, reader, stored.get(partition, ()))
    return found


def _in_store(partition: int, messages: Sequence[Message]) -> Iterator[str]:
    before: int | None = None
    for message in messages:
        if message.previous != before:
            yield f"{partition}: {message.offset} names {message.previous} as its predecessor, expected {before}"
        if before is not None and message.offset <= before:
            yield f"{partition}: {message.offset} came after {before}"
        before = message.offset


def _at_reader(partition: int, reader: Known, stored: Sequence[Message]) -> Iterator[str]:
    """Check that a reader delivers all messages in order, and that duplicates are equal in every byte."""
    there = {message.offset: message for message in stored}
    for message in reader.got.get(partition, ()):
        if message.offset not in there:
            yield f"{partition}: {message.offset} came and is not stored"
        elif message.digest != there[message.offset].digest:
            yield f"{partition}: {message.offset} came as another message than is stored"
    expected = [(message.offset, message.n) for message in stored]
    if (read := reader.read.get(partition, [])) != expected:
        place = next((at for at, pair in enumerate(zip(read, expected, strict=False)) if pair[0] != pair[1]), len(read))
        was = read[place] if place < len(read) else None
        there_is = expected[place] if place < len(expected) else None
        yield f"{partition}: as number {place + 1} the reader handed on {was}, stored is {there_is}"


def main(published: Path, read: Path, stored: Path) -> int:
    writer, reader, all_there_is = (Known.of(path) for path in (published, read, stored))
    found = findings(writer.published, reader, all_there_is.got)
    counts = sum(map(len, all_there_is.got.values())), sum(map(len, reader.got.values()))
    print("\n".join(found) or f"{len(writer.published)} published, {counts[0]} stored, {counts[1]} came to the reader")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:4])))
