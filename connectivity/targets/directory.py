"""The directory of open connections, for signals between connections.

Live signals go to the targets of other connections that subscribe to them, and responses may be diverted to another
connection. A connection is in the directory while it is open, whether it has a link or not.

A command with the header `divert-response-to-connection`, consumed by a diversion source, is answered at a target of the
named connection, if that is a diversion target and authorizes the source. Only responses to commands are diverted, and never
twice (Ditto connections, response diversion).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from connectivity.connections.model import ResponseType
from connectivity.connections.templates import DIVERT_TO, DIVERTED_TYPES
from connectivity.targets.open_connection import ConnectionComponent, OpenConnection
from connectivity.targets.target import TargetPublisher
from mappings.model.signals import Headers

DIVERTED_FROM = "diverted-response-from-connection"

_USUAL_TYPES = frozenset({ResponseType.RESPONSE.value, ResponseType.ERROR.value})


class ResponseDiversion(NamedTuple):
    """The target of a diverted response. `target` of None: there is none, for this `reason`."""

    target: TargetPublisher | None
    is_preserved: bool
    reason: str = ""


class ConnectionDirectory(ConnectionComponent):
    """The open connections, in the order in which they were opened."""

    def __init__(self) -> None:
        self._members: dict[str, OpenConnection] = {}

    def __iter__(self) -> Iterator[OpenConnection]:
        return iter(tuple(self._members.values()))

    def receivers(self, connection_id: str) -> Iterator[Sequence[str]]:
        """Return the subjects of each target of a connection."""
        member = self._members.get(connection_id)
        return (
            (target.authorization_context for target in member.connection.targets) if member is not None else iter(())
        )

    def opened(self, opened: OpenConnection) -> None:
        self._members[opened.connection_id] = opened

    def closed(self, connection_id: str) -> None:
        """Remove a connection, and end what waits for its broker."""
        member = self._members.pop(connection_id, None)
        for target in member.targets if member is not None else ():
            target.close()

    def find_diversion(self, headers: Headers, kind: str, origin: str, source: int) -> ResponseDiversion | None:
        """Return the diversion of a response to a source of the connection `origin`; None if not diverted.

        `headers` are those of the response, or of its request.
        """
        member = self._members.get(origin)
        to = headers.get(DIVERT_TO)
        if to is None or member is None or not member.diverting.is_source or DIVERTED_FROM in headers:
            return None
        named = headers.get(DIVERTED_TYPES)
        types = _USUAL_TYPES if named is None else {each.strip().lower() for each in str(named).split(",")}
        if kind not in types or to == origin:
            return None
        target, reason = self._target(str(to), origin, source)
        return ResponseDiversion(target, member.diverting.preserves_original, reason)

    def _target(self, to: str, origin: str, source: int) -> tuple[TargetPublisher | None, str]:
        member = self._members.get(to)
        if member is None:
            return None, "the target connection is not open"
        if not member.diverting.is_target:
            return None, "the target connection is not a diversion target"
        if origin not in member.diverting.authorized:
            return None, "the target connection does not list this connection as authorized"
        if len(member.targets) == 1:
            return member.targets[0], ""
        if source < len(member.targets):
            return member.targets[source], ""
        return None, f"the target connection has no target with the source's index {source}"
