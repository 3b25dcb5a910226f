"""What `connectivity connections apply` would do: decided from documents and from what the service has. Pure.

A connection is

    new         the service has none of this id
    changed     it differs, field by field
    unchanged   it does not, as far as can be seen; a document whose secrets cannot be compared counts here unless they
                are to be sent
    gone        no document has it any more, and what is gone shall be deleted
    refused     a file of the service owns it, and is where it is changed
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from connectivity.differences import Compared, Difference, compare


class Action(str, Enum):
    """What becomes of a connection."""

    NEW = "new"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    GONE = "gone"
    REFUSED = "refused"


DOING = frozenset({Action.NEW, Action.CHANGED, Action.GONE})
"""Those that change something."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A document, and the file that it stands in."""

    document: Mapping[str, Any]
    file: Path


@dataclass(frozen=True, slots=True)
class There:
    """What the service has; `file` is the one that owns it, None for the API. The document may be left out for those."""

    tag: str
    document: Mapping[str, Any] | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of one connection. `tag` is what it was compared with, None where there is nothing."""

    id: str
    action: Action
    file: Path | None = None
    tag: str | None = None
    changes: Sequence[Difference] = ()
    unknown: Sequence[str] = ()
    reason: str | None = None


def decide(
    wanted: Mapping[str, Wanted], there: Mapping[str, There], *, secrets: bool = False, prune: bool = False
) -> list[Step]:
    """One step for each connection that is wanted, and with `prune` for those of the API that are not."""
    steps = [_step(name, document, there.get(name), secrets) for name, document in wanted.items()]
    if prune:
        steps += [
            Step(name, Action.GONE, tag=found.tag)
            for name, found in there.items()
            if name not in wanted and found.file is None
        ]
    return steps


def _step(name: str, wanted: Wanted, there: There | None, secrets: bool) -> Step:
    if there is None:
        return Step(name, Action.NEW, wanted.file)
    if there.file is not None:
        return Step(name, Action.REFUSED, wanted.file, there.tag, reason=f"it belongs to the file {there.file}")
    found: Compared = compare(there.document or {}, wanted.document)
    is_changed = found.changes or (secrets and found.unknown)
    action = Action.CHANGED if is_changed else Action.UNCHANGED
    return Step(name, action, wanted.file, there.tag, found.changes, found.unknown)


def lines(step: Step) -> Iterator[str]:
    """What the step changes, for people."""
    for change in step.changes:
        yield f"{change.path}: {_value(change.before)} → {_value(change.after)}"
    for path in step.unknown:
        sent = "it is sent" if step.action in DOING else "it is not sent without --secrets"
        yield f"{path}: a secret that cannot be compared; {sent}"


def shown(step: Step) -> dict[str, Any]:
    """The step for machines."""
    return {
        "id": step.id,
        "action": step.action.value,
        "file": None if step.file is None else str(step.file),
        "tag": step.tag,
        "changes": [change._asdict() for change in step.changes],
        "unknown": list(step.unknown),
        "reason": step.reason,
    }


def summary(steps: Sequence[Step]) -> str:
    """How many of which: `1 new, 2 changed`."""
    counts = {action: sum(step.action is action for step in steps) for action in Action}
    return ", ".join(f"{count} {action.value}" for action, count in counts.items() if count) or "nothing"


def _value(value: Any) -> str:
    return "–" if value is None else json.dumps(value, ensure_ascii=False)
