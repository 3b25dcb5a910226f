"""What has changed who may do what: told to those who keep somebody's permission for longer than one command.

Most of what is asked of the service is judged when it is asked. Who follows a stream was judged once, long ago: whoever
looks after him is told by `Authorities` of every commit with a policy in it, or with a thing that may have another policy
now, or with something that was erased. That is before anybody is told or sent what was committed: so he who may not read
what comes next is not sent it. While nobody wants to know, a commit costs no more than that question.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, TypeAlias

import structlog

from mappings.ids import EntityId, EntityType
from spark_store.records import Change

log = structlog.get_logger(__name__)

_NAMING_A_POLICY: Final = frozenset({"/", "/policyId"})
"""Where a thing is changed that has another policy afterwards."""

Told: TypeAlias = Callable[[Collection[EntityId]], object]


def authorities(changes: Iterable[Change]) -> set[EntityId]:
    """The policies that have changed, and the things that may have another policy than before."""
    return {
        event.entity
        for change in changes
        for event in change.events
        if event.entity.type is EntityType.POLICY
        or (event.path in _NAMING_A_POLICY and event.entity.type is EntityType.THING)
    }


class Authorities:
    """Who wants to know."""

    def __init__(self) -> None:
        self._told: dict[Told, None] = {}

    def __repr__(self) -> str:
        return f"<Authorities, watched by {len(self._told)}>"

    def watch(self, told: Told) -> None:
        """From now on `told` is called after each commit that has changed some, with these."""
        self._told[told] = None

    def leave(self, told: Told) -> None:
        """It is called no more."""
        self._told.pop(told, None)

    def tell(self, changes: Iterable[Change], erased: Sequence[EntityId] = ()) -> None:
        """These changes are durable. A mistake of somebody who is told costs nobody else anything."""
        if not self._told or not (found := authorities(changes) | set(erased)):
            return
        for told in list(self._told):
            try:
                told(found)
            except Exception:
                log.exception("what follows from a change of policies was not done")
