"""What a merge patch touches, and what of it would change something.

How a patch is applied is `spark_store.replay.merge`, because replaying needs it too. Here are the questions that a command
asks before: which places does it write (a caller with rights on parts of a thing may merge into those parts), and, for
`if-equal: skip-minimizing-merge`, what remains of it without all that is so already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from connectivity.twins.base import is_same_json
from mappings.pointer import Segments
from spark_store.replay import MatchBudget, is_delete_pattern, matching_keys

NOTHING: Final[Any] = object()
"""What `minimized` gives for a patch that changes nothing."""


def written_places(patch: Any, path: Segments) -> Iterator[Segments]:
    """Every place that a patch at `path` writes: its leaves, deletions included.

    A delete pattern may name any member, so it writes the object that it is applied to.
    """
    if not isinstance(patch, Mapping) or not patch:
        yield path
        return
    for key, member in patch.items():
        if member is None and is_delete_pattern(key):
            yield path
        else:
            yield from written_places(member, (*path, key))


def minimized(target: Any, patch: Any) -> Any:
    """The part of a patch that changes `target`, or NOTHING. Raises PatternRefused."""
    return _minimized(target, patch, MatchBudget())


def _minimized(target: Any, patch: Any, budget: MatchBudget) -> Any:
    if not isinstance(patch, Mapping):
        return NOTHING if is_same_json(target, patch) else patch
    if not isinstance(target, Mapping):
        return patch
    kept: dict[str, Any] = {}
    for key, member in patch.items():
        if member is None:
            if matching_keys(key, target, budget) if is_delete_pattern(key) else key in target:
                kept[key] = None
        elif key not in target:
            kept[key] = member
        elif (below := _minimized(target[key], member, budget)) is not NOTHING:
            kept[key] = below
    return kept or NOTHING
