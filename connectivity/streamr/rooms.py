"""The sessions of one connection, and what each of them has on its way (Streamr protocol, sessions).

`mappings.streamr.sessions` decides whose session a request belongs to, what it follows and what ends it. A room does what it
has decided: it opens and ends subscriptions and sends frames. A session has a seat as long as it lives; the seat knows by
which way it was answered last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import structlog

from connectivity.streamr.admission import entity_at
from connectivity.streamr.lines import Line
from connectivity.streamr.live import Live
from connectivity.streamr.resending import Resending
from mappings.errors import INTERNAL_ERROR, Fault
from mappings.streamr.faults import About
from mappings.streamr.frames import Frame, error_of
from mappings.streamr.names import place_of
from mappings.streamr.options import StreamrOptions
from mappings.streamr.requests import Subscribe, Unsubscribe
from mappings.streamr.sessions import Effect, Ended, Follow, Leave, Listeners, Say, SessionLimits, Sessions, Spot
from spark_store.errors import StoreUnavailable

log = structlog.get_logger(__name__)

MakeLive = Callable[[Line, Spot, tuple[str, ...], Callable[[Fault], None]], Live]


class Seat:
    """What one session has on its way. `line` is the way by which it was answered last."""

    __slots__ = ("line", "lives", "resending")

    def __init__(self, line: Line, resending: Resending) -> None:
        self.line = line
        self.lives: dict[Spot, Live] = {}
        self.resending = resending

    def __repr__(self) -> str:
        return f"<Seat at {self.line.address}, following {len(self.lives)}, {self.resending!r}>"


class Room:
    """The sessions of one connection that speak the protocol through one mapping."""

    def __init__(
        self,
        connection_id: str,
        options: StreamrOptions,
        listeners: Listeners,
        make_live: MakeLive,
        make_resending: Callable[[], Resending],
    ) -> None:
        self.connection_id = connection_id
        self.options = options
        self.sessions = Sessions(SessionLimits(idle_timeout=options.idle_timeout), listeners)
        self.seats: dict[str, Seat] = {}
        self.on_follow: Callable[[str], object] = str
        """Told which stream a session is about to follow. Raises StoreUnavailable."""
        self._make_live = make_live
        self._make_resending = make_resending

    def __repr__(self) -> str:
        return f"<Room of {self.connection_id}, {self.sessions!r}>"

    def __iter__(self) -> Iterator[Seat]:
        return iter(list(self.seats.values()))

    def seat(self, line: Line) -> Seat:
        """The seat of the session at this address, begun if need be."""
        seat = self.seats.get(line.address)
        if seat is None:
            seat = self.seats[line.address] = Seat(line, self._make_resending())
        seat.line = line
        return seat

    def subscribe(
        self,
        request: Subscribe,
        line: Line,
        owners: frozenset[str],
        subjects: frozenset[str],
        now: float,
        client: str | None,
    ) -> list[Frame]:
        """Have a session follow a partition; what it is answered in its turn."""
        effects = self.sessions.subscribe(request, line.address, owners, subjects, now, client=client)
        failed: list[Frame] = []
        for effect in effects:
            if isinstance(effect, Follow) and (fault := self._follow(effect.spot, line, subjects)) is not None:
                self._undo(effect.spot, line.address)
                failed.append(error_of(fault, About(*effect.spot), line.correlation_id))
        return failed or _said(effects)

    def unsubscribe(self, request: Unsubscribe, line: Line, client: str | None) -> list[Frame]:
        """Have a session follow a partition no longer; what it is answered in its turn."""
        effects = self.sessions.unsubscribe(request, line.address, client=client)
        self.do([effect for effect in effects if not isinstance(effect, Say)])
        return _said(effects)

    def do(self, effects: Sequence[Effect]) -> None:
        """Carry out what was decided for any reason but a request."""
        for effect in effects:
            match effect:
                case Leave(address, spot, _):
                    self._leave(address, spot)
                case Say(address, frame):
                    self._say(address, frame)
                case Ended(address, why):
                    if (seat := self.seats.pop(address, None)) is not None:
                        seat.resending.stop()
                    log.info("a session ended", connection=self.connection_id, address=address, reason=why.value)

    def _follow(self, spot: Spot, line: Line, subjects: frozenset[str]) -> Fault | None:
        """Begin to follow; why it could not be begun."""
        try:
            self.on_follow(spot[0])
        except StoreUnavailable:
            return INTERNAL_ERROR
        seat = self.seat(line)
        failed: list[Fault] = []

        def lost(fault: Fault) -> None:
            if seat.lives.get(spot) is live:
                self._lost(line.address, spot, fault)
            else:
                failed.append(fault)

        live = self._make_live(line, spot, tuple(subjects), lost)
        place = place_of(spot[0])
        assert place is not None, "who may follow has been judged"
        live.follow(entity_at(place, spot[1]))
        if failed:
            return failed[0]
        seat.lives[spot] = live
        return None

    def _lost(self, address: str, spot: Spot, fault: Fault) -> None:
        """What a session follows has ended by itself, which it is told."""
        self._undo(spot, address)
        self._say(address, error_of(fault, About(*spot)))

    def _undo(self, spot: Spot, address: str) -> None:
        """A session does not follow any longer what it was to follow."""
        self.do(self.sessions.drop(address, spot))

    def _leave(self, address: str, spot: Spot) -> None:
        seat = self.seats.get(address)
        if seat is not None and (live := seat.lives.pop(spot, None)) is not None:
            live.leave()

    def _say(self, address: str, frame: Frame) -> None:
        if (seat := self.seats.get(address)) is not None:
            seat.line.say(frame)


def _said(effects: Sequence[Effect]) -> list[Frame]:
    return [effect.frame for effect in effects if isinstance(effect, Say)]
