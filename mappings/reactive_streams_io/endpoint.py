"""One end of one connection: bytes and the time come in, events and bytes come out.

    state      hello       frames of streams   goodbye               malformed   late
    OPENING    OPEN        –                   CLOSED, one back      CLOSED      CLOSED, goodbye
    RESUMING   –           held                CLOSED, one back      CLOSED      interrupted
    RESUMED    malformed   to the session      CLOSED, one back      CLOSED      OPEN
    OPEN       malformed   to the session      CLOSED, one back      CLOSED      ping; then interrupted or CLOSED
    CLOSING    –           dropped             CLOSED                CLOSED      CLOSED
    CLOSED     nothing is read; the rest from `take` is sent, then the transport is closed

A client is RESUMING between its `resume` and the reply. It is RESUMED, and silent, until the next token has arrived: its
first frame invalidates the last one. CLOSING waits for the peer's goodbye. `late`: nothing arrived in time (`tick`). The
state that outlives a transport is a `RsioSession`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum

from mappings.errors import EncodeError, Fault, ProtocolError
from mappings.reactive_streams_io import errors
from mappings.reactive_streams_io.decoder import Decoder
from mappings.reactive_streams_io.errors import VERSION, ProtocolViolation, broken
from mappings.reactive_streams_io.events import Closed, EndpointEvent, Interrupted, NotResumed, Resumed, SessionOpened
from mappings.reactive_streams_io.frames import (
    CODES,
    CORE,
    LAYOUTS,
    TRACKED,
    CancelFrame,
    ClientHello,
    Extension,
    Frame,
    Goodbye,
    Ping,
    Pong,
    RequestFrame,
    Resume,
    ResumeAck,
    ResumeFail,
    ResumeGrant,
    ResumeOk,
    Seq,
    ServerHello,
    SubscribeFrame,
    encode,
)
from mappings.reactive_streams_io.limits import OBJECT, EndpointLimits
from mappings.reactive_streams_io.resumption import Resumables, ResumeToken
from mappings.reactive_streams_io.session import RsioSession


class EndpointState(Enum):
    OPENING = "waiting for a hello"
    RESUMING = "resuming"
    RESUMED = "waiting for a token"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class EndpointRole(Enum):
    """The role of an end; the value is its hello."""

    CLIENT = CODES[ClientHello]
    SERVER = CODES[ServerHello]


class Endpoint:
    """One end of a connection.

    `has_messages`: the transport has messages, each with one or more whole frames, in place of a byte stream;
    `is_connected`: it has a beginning, at which the server sends first, and an end that is detected, unlike messages over a
    broker. `resumables` makes a server grant tokens to `subject`, a `ticket` makes a client resume an interrupted session.
    """

    def __init__(
        self,
        role: EndpointRole,
        now: float,
        *,
        limits: EndpointLimits | None = None,
        extensions: Iterable[Extension] = tuple(Extension),
        has_messages: bool = False,
        is_connected: bool | None = None,
        subject: str = "",
        resumables: Resumables | None = None,
        ticket: ResumeToken | None = None,
    ) -> None:
        self.role = role
        self.state = EndpointState.OPENING
        self.subject = subject
        self.in_force: frozenset[int] = frozenset()
        self.offered: frozenset[int] = frozenset()
        self._limits = limits or EndpointLimits()
        ours = ticket.extensions if ticket else frozenset(extension.value for extension in extensions)
        if role is EndpointRole.SERVER and resumables is None:
            ours -= {Extension.RESUME.value}
        self._ours = ours
        self._has_messages = has_messages
        self._is_connected = not has_messages if is_connected is None else is_connected
        self._resumables = resumables
        self._ticket = ticket
        self._token: bytes | None = None
        keeps = Extension.RESUME.value in ours
        self.session = ticket.session if ticket else RsioSession(self._limits, keeps_copies=keeps)
        other = EndpointRole.CLIENT if role is EndpointRole.SERVER else EndpointRole.SERVER
        self._decoder = Decoder(self._limits, frozenset({other.value, CODES[Goodbye]}), other.value, self.session.sizes)
        self._events: list[EndpointEvent] = []
        self._control: deque[bytes] = deque()
        self._afterwards: deque[bytes] = deque()
        self._control_bytes = 0
        self._pending_requests = 0
        self._carried_over = b""
        self._held: list[Frame] = []
        self._held_bytes = 0
        self._numbered = False
        self._hello_is_sent = False
        self._next_sent = self._next_received = 1
        self._begun = self._last_received = self._last_ping = now
        self._incomplete_since: float | None = None
        self._goodbye_is_queued = False
        self._may_resume = role is EndpointRole.SERVER
        self._is_unconfirmed = False
        self._speaks_first = role is EndpointRole.CLIENT or self._is_connected
        if self._speaks_first:
            self._send_hello()

    # The transport.

    @property
    def is_closed(self) -> bool:
        """Whether to close the transport when `take` returns nothing."""
        return self.state is EndpointState.CLOSED

    @property
    def is_drained(self) -> bool:
        """Whether the connection has ended and `take` returns nothing."""
        return self.is_closed and not self._control and not self._carried_over

    def receive(self, raw: bytes, now: float) -> list[EndpointEvent]:
        """Process received bytes of a stream, or one message. Errors end the connection, as an event."""
        if self.state is EndpointState.CLOSED:
            return []
        self._pending_requests = 0
        try:
            frames = self._decoder.feed(raw)
            if self._has_messages:
                self._message(frames, now)
            else:
                for frame in frames:
                    self._frame(frame, now)
                    if self.is_closed:
                        break
            self._note_incomplete(now)
            self._bound()
        except ProtocolError as error:
            self._close_now(error.fault.message, is_fault=True)
        return self.take_events()

    def reject(self, violation: ProtocolViolation) -> list[EndpointEvent]:
        """Process something without frames from the transport."""
        if self.state is not EndpointState.CLOSED:
            self._close_now(broken(violation).fault.message, is_fault=True)
        return self.take_events()

    def take(self) -> bytes:
        """Return the next bytes for the transport, or a message if it has messages; empty if there are none.

        At most `EndpointLimits.batch` bytes, unless a single frame is larger. Returned frames are considered sent.
        """
        batch: list[bytes] = []
        room = self._limits.batch
        if self._is_numbering:
            batch.append(encode(Seq(self._next_sent)))
            room -= len(batch[0])
        numbered = len(batch)
        while (frame := self._next_frame()) is not None:
            if len(frame) > room and len(batch) > numbered:
                self._carried_over = frame
                break
            batch.append(frame)
            room -= len(frame)
            if room > 0 and self.state is EndpointState.OPEN and not self._control and not self._afterwards:
                more = self.session.more_frames(room)
                batch += more
                room -= sum(map(len, more))
        if len(batch) == numbered:
            return b""
        self._next_sent += numbered
        self._hello_is_sent = True
        return batch[0] if len(batch) == 1 else b"".join(batch)

    def lose(self, now: float, reason: str = errors.LOST) -> list[EndpointEvent]:
        """The transport is gone. A session that can be resumed is interrupted, any other one is over."""
        if self.state is EndpointState.CLOSED:
            return self.take_events()
        if not self._interrupt(now, reason):
            self._end(reason)
        return self.take_events()

    def close(self, now: float, reason: str = errors.OK) -> list[EndpointEvent]:
        """Part from the peer: all streams end, and the connection is over once the peer has said goodbye too."""
        if self.state in (EndpointState.CLOSING, EndpointState.CLOSED):
            return self.take_events()
        self._send_goodbye(reason)
        self._revoke_token()
        self._events += self.session.end_all(reason)
        self._begun = now
        self.state = EndpointState.CLOSING
        return self.take_events()

    def tick(self, now: float) -> list[EndpointEvent]:
        """The time has come that `due` named, or any other."""
        if self.state is not EndpointState.CLOSED and (due := self.due) is not None and now >= due:
            self._handle_timeout(now)
        return self.take_events()

    def unread(self, now: float) -> None:
        """Note that the transport does not read now: a missing frame does not mean that the peer is silent."""
        self._last_received = now
        if self._incomplete_since is not None:
            self._incomplete_since = now

    @property
    def due(self) -> float | None:
        """When to call `tick`; None if nothing is waited for."""
        limits = self._limits
        if self.state is EndpointState.OPENING:
            return self._begun + limits.hello_timeout if self._speaks_first else None
        if self.state in (EndpointState.RESUMING, EndpointState.RESUMED):
            return self._begun + limits.hello_timeout
        if self.state is EndpointState.CLOSING:
            return self._begun + limits.goodbye_timeout
        if self.state is EndpointState.CLOSED:
            return None
        if Extension.KEEPALIVE.value in self.in_force:
            ping = max(self._last_received, self._last_ping) + limits.silence_before_ping
            return min(ping, self._last_received + limits.silence_before_loss)
        since = self._incomplete_since if self._is_connected else self._last_received
        return None if since is None else since + limits.idle

    def take_events(self) -> list[EndpointEvent]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    # Streams.

    def subscribe(self, publisher: str, demand: int = 0) -> int:
        """Ask the peer for a stream. Raises EncodeError where the connection is over, too."""
        if self.state in (EndpointState.CLOSING, EndpointState.CLOSED):
            raise EncodeError(Fault(503, "rsio:connection.closed", f"found a {self.state.value} connection"))
        return self.session.subscribe(publisher, demand)

    # Resuming.

    def ticket(self) -> ResumeToken | None:
        """The ticket to resume after an interruption; None if the client cannot."""
        if self._token is not None:
            return ResumeToken(self.session, self._token, self._ours)
        return self._ticket

    def expires(self) -> float | None:
        """When the session ends without frames; None if the loss of the transport is detected."""
        return None if self._is_connected else self._last_received + self._lifetime

    def yield_session(self, now: float) -> None:  # noqa: ARG002
        """Hand the session over to another connection: say goodbye to this peer, and keep the streams."""
        if self.state is not EndpointState.CLOSED:
            self.session = RsioSession(self._limits, keeps_copies=False)
            self._close_now(errors.RESUMED_ELSEWHERE)

    # Inbound.

    def _message(self, frames: Iterator[Frame], now: float) -> None:
        for number, frame in enumerate(frames):
            if number == 0 and not self._is_next_message(frame, now):
                return
            if number >= self._limits.frames:
                raise broken(ProtocolViolation.TOO_MANY_FRAMES, f"more than {self._limits.frames}")
            if number > 0 or not isinstance(frame, Seq):
                self._frame(frame, now)
            if self.is_closed:
                return
        if self._decoder.waiting:
            raise broken(ProtocolViolation.CUT_FRAME, f"{self._decoder.waiting} bytes")

    def _is_next_message(self, first: Frame, now: float) -> bool:
        """Whether to process a message, judged by its first frame."""
        if Extension.SEQUENCE.value not in self.in_force:
            return True
        if self.role is EndpointRole.CLIENT and isinstance(first, Goodbye):
            # A goodbye without number does not know this session: another client may have sent it, or it was repeated.
            return not self._interrupt(now, first.reason)
        if not isinstance(first, Seq):
            # Frames that the client sent before it received our hello have no number.
            if self._numbered or self.role is EndpointRole.CLIENT:
                raise broken(ProtocolViolation.NO_SEQUENCE_NUMBER)
            return True
        self._numbered = True
        if first.number > self._next_received:
            if self.role is EndpointRole.CLIENT and self._interrupt(now, ProtocolViolation.SEQUENCE_GAP.condition):
                return False
            raise broken(ProtocolViolation.SEQUENCE_GAP, f"message {first.number}, expected {self._next_received}")
        if first.number < self._next_received:
            return False
        self._next_received += 1
        self._last_received = now
        return True

    def _frame(self, frame: Frame, now: float) -> None:
        self._last_received = now
        if self._is_unconfirmed and self._resumables is not None:
            # The client has seen the answer to its resume.
            self._is_unconfirmed = False
            self._resumables.used(self.session)
        if isinstance(frame, Goodbye):
            self._goodbye(frame.reason)
        elif self.state is EndpointState.CLOSING:
            # Only the answer to our goodbye is waited for.
            if isinstance(frame, ClientHello | ServerHello):
                self._decoder.allowed = self._allowed(frame)
        elif isinstance(frame, TRACKED):
            if self.state is EndpointState.RESUMING:
                self._hold_back(frame)
            else:
                self._stream_frame(frame)
        else:
            self._connection_frame(frame, now)
            self._bound()

    def _bound(self) -> None:
        """Require the peer to read the replies that it causes.

        One message may cause many, so each frame is checked.
        """
        waiting = self._control_bytes + self.session.sent_bytes
        waiting += OBJECT * (len(self._control) + self.session.control_frame_count + self._pending_requests)
        if waiting > self._limits.backlog:
            raise broken(ProtocolViolation.UNREAD, f"{waiting} waiting bytes, expected at most {self._limits.backlog}")

    def _note_incomplete(self, now: float) -> None:
        """Since when a frame has been waiting for its end, on a transport without messages."""
        if not self._decoder.waiting:
            self._incomplete_since = None
        elif self._incomplete_since is None or self._last_received == now:
            self._incomplete_since = now

    def _stream_frame(self, frame: Frame) -> None:
        told = self.session.receive(frame)
        self._events += told
        if isinstance(frame, SubscribeFrame | RequestFrame | CancelFrame):
            # They wait until this message is processed. There are only as many elements as were requested.
            self._pending_requests += len(told)
            self._bound()
        if Extension.RESUME.value in self.in_force and (received := self.session.acknowledgement()) is not None:
            self._queue_frame(ResumeAck(received))

    def _connection_frame(self, frame: Frame, now: float) -> None:
        match frame:
            case ClientHello() | ServerHello():
                self._hello(frame, now)
            case Ping(data):
                self._queue_frame(Pong(data))
            case Pong():
                pass
            case ResumeAck(received):
                self.session.acknowledge(received)
            case ResumeGrant() if self.role is EndpointRole.CLIENT and self.state in (
                EndpointState.OPEN,
                EndpointState.RESUMED,
            ):
                self._granted(frame)
            case ResumeGrant() if self.state is EndpointState.RESUMING:
                # For the session that would begin here. Another grant follows, whatever the response.
                pass
            case Resume() if self._may_resume and not self.session.received and self._resumables is not None:
                self._resume(frame, self._resumables, now)
            case ResumeOk(received) if self.state is EndpointState.RESUMING:
                self._resumed(received, now)
            case ResumeFail(reason) if self.state is EndpointState.RESUMING:
                self._not_resumed(reason)
            case Seq():
                raise broken(ProtocolViolation.SEQUENCE_MISPLACED)
            case _:
                raise broken(ProtocolViolation.RESUME_MISPLACED, type(frame).__name__)

    def _hello(self, hello: ClientHello | ServerHello, now: float) -> None:
        self._decoder.allowed = self._allowed(hello)
        self.state = EndpointState.OPEN
        if not self._speaks_first:
            self._send_hello()
        self._events.append(SessionOpened(self.in_force))
        if self._ticket is not None:
            self._request_resume(self._ticket, now)
        elif Extension.RESUME.value not in self.in_force:
            self.session.discard_copies()
        elif self._resumables is not None:
            self._queue_frame(self._grant(self._resumables))

    def _allowed(self, hello: ClientHello | ServerHello) -> frozenset[int]:
        """Return the codes that are valid after this hello."""
        self.offered = frozenset(hello.extensions)
        self.in_force = self._ours & self.offered
        extended = {
            code for code, layout in LAYOUTS.items() if layout.extension and layout.extension.value in self.in_force
        }
        return CORE | extended

    def _goodbye(self, reason: str) -> None:
        self._send_goodbye(errors.OK)
        self._end(reason)

    # Resuming.

    @property
    def _lifetime(self) -> float:
        """How long a token is valid: from the loss, or from the last frame if only silence reveals the loss."""
        limits = self._limits
        is_found_late = not self._is_connected and Extension.KEEPALIVE.value in self.in_force
        return limits.lifetime + (limits.silence_before_loss if is_found_late else 0.0)

    def _grant(self, resumables: Resumables, previous_token: bytes | None = None) -> ResumeGrant:
        return ResumeGrant(resumables.grant(self, previous_token), round(self._lifetime * 1000), self._limits.window)

    def _granted(self, grant: ResumeGrant) -> None:
        self._token, self._ticket = grant.token, None
        self.session.window = min(grant.window, self._limits.window)
        self.state = EndpointState.OPEN
        # Said at once, so that the token before this one is void.
        self._queue_frame(ResumeAck(self.session.acknowledge_all()))

    def _request_resume(self, ticket: ResumeToken, now: float) -> None:
        if Extension.RESUME.value not in self.in_force:
            self._not_resumed("the server does not support resume")
            return
        self.state = EndpointState.RESUMING
        self._begun = now
        self._queue_frame(Resume(ticket.token, self.session.received, self.session.first_available))

    def _resume(self, frame: Resume, resumables: Resumables, now: float) -> None:
        self._may_resume = False
        holder = resumables.claim(frame.token, self.subject, now)
        if holder is None or holder is self:
            self._refuse_to_resume("the resume token is unknown or expired", resumables)
            return
        old = holder.session
        same = holder.offered == self.offered
        fits = old.can_repeat(frame.received) and frame.first_available <= old.received + 1
        holder.yield_session(now)
        if not same or not fits:
            resumables.give_up(old)
            self._refuse_to_resume("frames are missing" if same else "the extensions have changed", resumables)
            return
        self._events += self.session.end_all("another session was resumed here")
        resumables.void(self.session)
        self._adopt(old)
        self._queue_frame(ResumeOk(old.received))
        old.repeat(frame.received)
        self._events.append(Resumed(old.key))
        self._afterwards.append(encode(self._grant(resumables, frame.token)))
        self._is_unconfirmed = True

    def _refuse_to_resume(self, reason: str, resumables: Resumables) -> None:
        self._queue_frame(ResumeFail(reason))
        self._queue_frame(self._grant(resumables))

    def _resumed(self, received: int, now: float) -> None:
        if not self.session.can_repeat(received):
            raise broken(ProtocolViolation.ACKNOWLEDGED_TOO_MUCH, f"{received}, expected at most {self.session.sent}")
        self.session.repeat(received)
        self._held.clear()
        self._begun = now
        self.state = EndpointState.RESUMED
        self._events.append(Resumed(self.session.key))

    def _not_resumed(self, reason: str) -> None:
        self._events += [NotResumed(reason), *self.session.end_all(reason)]
        self._ticket = None
        self._adopt(RsioSession(self._limits, keeps_copies=Extension.RESUME.value in self.in_force))
        self.state = EndpointState.OPEN
        held, self._held = self._held, []
        for frame in held:
            self._stream_frame(frame)

    def _adopt(self, session: RsioSession) -> None:
        self.session = session
        self._decoder.sizes = session.sizes

    def _hold_back(self, frame: Frame) -> None:
        """Hold frames while the server does not know of the resume: they apply only if it fails."""
        if not isinstance(frame, SubscribeFrame | RequestFrame | CancelFrame):
            raise broken(ProtocolViolation.RESUME_MISPLACED, f"{type(frame).__name__} before the response")
        self._held.append(frame)
        self._held_bytes += len(encode(frame)) + OBJECT
        if self._held_bytes > self._limits.backlog:
            raise broken(ProtocolViolation.FRAME_TOO_LARGE, f"{self._held_bytes} bytes before the response")

    def _interrupt(self, now: float, reason: str) -> bool:
        """Leave the session to be resumed. False where that cannot be."""
        if self._goodbye_is_queued:
            return False
        if self._resumables is not None:
            if self.state is not EndpointState.OPEN or not self._resumables.has_session(self.session):
                return False
            since = now if self._is_connected else self._last_received
            self._resumables.lose(self.session, since + self._lifetime)
        elif self.ticket() is None:
            return False
        self._control.clear()
        self._carried_over = b""
        self.state = EndpointState.CLOSED
        self._events.append(Interrupted(reason))
        return True

    def _revoke_token(self) -> None:
        self._token = self._ticket = None
        if self._resumables is not None:
            self._resumables.void(self.session)

    # Time.

    def _handle_timeout(self, now: float) -> None:
        if self.state is EndpointState.OPENING:
            if not self._interrupt(now, errors.LATE_HELLO):
                self._close_now(errors.LATE_HELLO, is_fault=True)
        elif self.state is EndpointState.CLOSING:
            self._end("no goodbye in time")
        elif self.state is EndpointState.RESUMING:
            self._interrupt(now, "no response in time")
        elif self.state is EndpointState.RESUMED:
            self.state = EndpointState.OPEN
        elif (
            Extension.KEEPALIVE.value in self.in_force and now < self._last_received + self._limits.silence_before_loss
        ):
            self._last_ping = now
            self._queue_frame(Ping(b""))
        elif not self._interrupt(now, errors.IDLE):
            self._close_now(errors.IDLE)

    # Outbound.

    @property
    def _is_numbering(self) -> bool:
        return self._has_messages and self._hello_is_sent and Extension.SEQUENCE.value in self.in_force

    def _next_frame(self) -> bytes | None:
        if self.state is EndpointState.RESUMED:
            return None
        if self._carried_over:
            # In any state: it may be the goodbye.
            frame, self._carried_over = self._carried_over, b""
            return frame
        if self._control:
            frame = self._control.popleft()
            self._control_bytes -= len(frame)
            return frame
        is_optimistic = (
            self.state is EndpointState.OPENING and self.role is EndpointRole.CLIENT and self._ticket is None
        )
        if self.state is not EndpointState.OPEN and not is_optimistic:
            return None
        if self._afterwards and not self.session.is_repeating:
            return self._afterwards.popleft()
        return self.session.next_frame()

    def _queue_frame(self, frame: Frame) -> None:
        if self._goodbye_is_queued:
            return
        raw = encode(frame)
        self._control.append(raw)
        self._control_bytes += len(raw)

    def _send_hello(self) -> None:
        extensions = tuple(sorted(self._ours))
        self._queue_frame(
            ClientHello(VERSION, extensions) if self.role is EndpointRole.CLIENT else ServerHello(VERSION, extensions)
        )

    def _send_goodbye(self, reason: str) -> None:
        self._queue_frame(Goodbye(errors.truncate(reason, self._limits.text_sent)))
        self._goodbye_is_queued = True

    def _close_now(self, reason: str, *, is_fault: bool = False) -> None:
        """End the connection without waiting for the peer."""
        if self._control_bytes + OBJECT * len(self._control) > self._limits.backlog:
            self._control.clear()
            self._control_bytes = 0
        self._send_goodbye(reason)
        self._end(reason, is_fault=is_fault)

    def _end(self, reason: str, *, is_fault: bool = False) -> None:
        self._revoke_token()
        self._events += self.session.end_all(reason)
        self._held.clear()
        self.state = EndpointState.CLOSED
        self._events.append(Closed(reason, is_fault))
