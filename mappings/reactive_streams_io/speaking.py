"""What an application does with the streams of a connection: those that its peer asked for, and its own.

All of it is the session's, which may go on over another connection; `Session` says what these raise (reactive-streams-io,
subscriptions).
"""

from __future__ import annotations

from collections.abc import Sequence

from mappings.reactive_streams_io.session import Session


class Speaker:
    """Speaks in whatever `session` the connection has. What answers with a bool says False where the stream is over."""

    session: Session

    # Streams that the peer asked for.

    def accept(self, stream: int, element_size: int = 0) -> bool:
        """Begin a stream."""
        return self.session.accept(stream, element_size)

    def refuse(self, stream: int, error: str) -> bool:
        """Answer a subscribe with an error. The stream begins, so that the peer knows which one, and fails."""
        return self.session.end(stream, error)

    def offer(self, stream: int, elements: Sequence[bytes]) -> bool:
        """Let elements wait for the transport: as many as `wanted` says at most."""
        return self.session.offer(stream, elements)

    def complete(self, stream: int) -> bool:
        """End a stream behind all that was offered."""
        return self.session.end(stream, None)

    def fail(self, stream: int, error: str) -> bool:
        """Fail a stream behind all that was offered."""
        return self.session.end(stream, error)

    def wanted(self, stream: int) -> int:
        """How many elements of a stream may be offered now."""
        return self.session.wanted(stream)

    def waiting(self, stream: int) -> int:
        """Octets of a stream that the transport has not taken yet."""
        return self.session.waiting(stream)

    # Streams that we asked for.

    def request(self, stream: int, demand: int) -> bool:
        """Ask for more of a stream."""
        return self.session.request(stream, demand)

    def cancel(self, stream: int) -> bool:
        """Want no more of a stream. Nothing of it is told from now on."""
        return self.session.cancel(stream)
