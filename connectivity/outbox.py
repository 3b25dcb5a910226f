"""What one connection has to publish, over the links that it has.

There is a lane for each of the connection's clients (`connectivity.lanes`). What is about the same thing goes through the
same lane: so the answers about an entity, and the events of a subscription, leave in the order in which they were posted,
though the connection has several links. Each lane goes over its own client's link. While that client has none, its lane
goes over the link of another client, and returns later: one dead link holds nobody up. A lane of whose messages links seem
to die waits for its own client, so that it takes no other link down.

Messages that scripts are still making hold their place: what the same party (a source or a target) posts behind them waits
with them, what others post goes by.

At a door each address is somebody else's socket, and some are read slowly. There each address has a lane of its own
(`AddressedOutbox`), with a window of its own on the link, so that nobody waits for what another one does not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence

from connectivity.brokers.base import Link, Outgoing
from connectivity.lanes import Carrier, Ended, Lane, Posting

FEW_LANES = 64
"""From so many lanes on, the empty ones of a door are forgotten."""


class Outbox:
    """The lanes of a connection with so many clients."""

    def __init__(self, clients: int = 1) -> None:
        self._lanes = [Lane() for _ in range(clients)]
        self._carriers: dict[int, Carrier] = {}
        self._making: set[asyncio.Future[Sequence[Outgoing]]] = set()

    def __repr__(self) -> str:
        return f"<Outbox {self._lanes!r}>"

    def __len__(self) -> int:
        return sum(map(len, self._lanes))

    @property
    def is_attached(self) -> bool:
        """Whether there is a link to the broker now."""
        return bool(self._carriers)

    def post(
        self,
        messages: Sequence[Outgoing],
        ended: Ended | None = None,
        about: Hashable = None,
        party: Hashable = None,
    ) -> Posting:
        """Queue messages behind those that are about the same. Without messages `ended` is called at once."""
        posting = Posting(len(messages), ended)
        if messages:
            self.put(messages, posting, about, party)
        elif ended is not None:
            ended(None)
        return posting

    def put(
        self, messages: Sequence[Outgoing], posting: Posting, about: Hashable = None, party: Hashable = None
    ) -> None:
        """The same with a posting that the caller knows already, since a link may confirm within the call."""
        self._lane(about, messages[0].address).post(messages, posting, party)

    def hold(
        self,
        making: asyncio.Future[Sequence[Outgoing]],
        posting: Posting,
        about: Hashable,
        party: Hashable,
        address: str = "",
    ) -> None:
        """The same with messages that are still being made, however many they will be. `posting` is of one until then.

        `address` is where they will go.
        """
        lane = self._lane(about, address)
        lane.hold(posting, party)
        self._making.add(making)

        def made(making: asyncio.Future[Sequence[Outgoing]]) -> None:
            self._making.discard(making)
            lane.fill(() if making.cancelled() else making.result(), posting, party)

        making.add_done_callback(made)

    def behind(self, ended: Ended, party: Hashable = None) -> None:
        """Call `ended` when links have taken all that waits now: what is done for it, is done at the links' pace.

        What is still being made counts if it is this party's.
        """
        if busy := [lane for lane in self._lanes if lane.is_waiting(party)]:
            posting = Posting(len(busy), ended)
            for lane in busy:
                lane.mark(posting, party)
        else:
            ended(None)

    def attach(self, link: Link, client: int = 0) -> None:
        """A client has a link: what waits goes out through it."""
        self._carriers[client] = Carrier(link)
        self._place_lanes()

    def detach(self, client: int = 0, *, was_silent: bool = False) -> None:
        """A client's link is gone: what it had not confirmed goes out again, over the next one.

        `was_silent`: not the broker has ended it.
        """
        if (carrier := self._carriers.pop(client, None)) is not None:
            for lane in carrier.lanes:
                lane.lose(was_silent=was_silent)
            self._place_lanes()

    async def drained(self) -> None:
        """Wait until every message has ended."""
        for lane in self._lanes:
            await lane.drained()

    def _lane(self, about: Hashable, address: str) -> Lane:  # noqa: ARG002 - what it is about says where it leaves
        lanes = self._lanes
        return lanes[0] if len(lanes) == 1 else lanes[hash(about) % len(lanes)]

    def _place_lanes(self) -> None:
        for home, lane in enumerate(self._lanes):
            lane.use(self._carriers.get(home) or self._host(home, lane))

    def _host(self, home: int, lane: Lane) -> Carrier | None:
        """The link that a lane may use whose own client has none."""
        if lane.is_suspect or not self._carriers:
            return None
        others = sorted(self._carriers)
        return self._carriers[others[home % len(others)]]


class AddressedOutbox(Outbox):
    """The lanes of a door, one for each address that something waits for or was sent to a while ago."""

    def __init__(self) -> None:
        super().__init__(0)
        self._by_address: dict[str, Lane] = {}
        self._link: Link | None = None
        self._most = FEW_LANES

    def __repr__(self) -> str:
        return f"<AddressedOutbox {len(self._by_address)} lanes, {len(self)} messages, link {self._link!r}>"

    def __len__(self) -> int:
        return sum(map(len, self._by_address.values()))

    @property
    def is_attached(self) -> bool:
        return self._link is not None

    def behind(self, ended: Ended, party: Hashable = None) -> None:
        """Call `ended` when what is being made for this party is there and taken. Else at once: a door stops reading from
        whoever does not read, so that nothing has to be held back here."""
        if busy := [lane for lane in self._by_address.values() if lane.is_making(party)]:
            posting = Posting(len(busy), ended)
            for lane in busy:
                lane.mark(posting, party)
        else:
            ended(None)

    def attach(self, link: Link, client: int = 0) -> None:  # noqa: ARG002 - a door has one
        self._link = link
        for lane in list(self._by_address.values()):
            lane.use(Carrier(link))

    def detach(self, client: int = 0, *, was_silent: bool = False) -> None:  # noqa: ARG002 - a door has one
        """The door is closed. What was for its peers finds nobody at the next one, and ends."""
        self._link = None
        for lane in self._by_address.values():
            # No peer's message is the reason why a door is closed.
            lane.lose(was_silent=True)

    async def drained(self) -> None:
        for lane in list(self._by_address.values()):
            await lane.drained()

    def _lane(self, about: Hashable, address: str) -> Lane:  # noqa: ARG002 - the address says where it leaves
        if (lane := self._by_address.get(address)) is None:
            if len(self._by_address) >= self._most:
                self._forget_empty()
            lane = self._by_address[address] = Lane()
            if self._link is not None:
                lane.use(Carrier(self._link))
        return lane

    def _forget_empty(self) -> None:
        self._by_address = {address: lane for address, lane in self._by_address.items() if len(lane)}
        self._most = max(FEW_LANES, 2 * len(self._by_address))
