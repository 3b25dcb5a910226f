"""The outbox of a listener: a queue for each address, so that slow peers do not delay others."""

from __future__ import annotations

from collections.abc import Hashable

from connectivity.targets.outbox import LinkWindow, OrderedQueue, Outbox, PendingPublish
from connectivity.transports.base import Done, Link

FEW_QUEUES = 64
"""The number of queues from which empty ones are deleted."""


class PerAddressOutbox(Outbox):
    """The queues of a listener, one for each recently used address."""

    def __init__(self) -> None:
        super().__init__(0)
        self._by_address: dict[str, OrderedQueue] = {}
        self._link: Link | None = None
        self._most = FEW_QUEUES

    def __repr__(self) -> str:
        return f"<PerAddressOutbox {len(self._by_address)} queues, {len(self)} messages, link {self._link!r}>"

    def __len__(self) -> int:
        return sum(map(len, self._by_address.values()))

    @property
    def is_attached(self) -> bool:
        return self._link is not None

    def behind(self, ended: Done, sender: Hashable = None) -> None:
        """Call `ended` when unknown messages of this sender are there and taken, else at once.

        A listener stops reading from slow peers, so that nothing has to be held back here.
        """
        if busy := [queue for queue in self._by_address.values() if queue.has_unknown(sender)]:
            posting = PendingPublish(len(busy), ended)
            for queue in busy:
                queue.mark(posting, sender)
        else:
            ended(None)

    def attach(self, link: Link, client: int = 0) -> None:  # noqa: ARG002 - a listener has one
        self._link = link
        for queue in list(self._by_address.values()):
            queue.use(LinkWindow(link))

    def detach(self, client: int = 0, *, was_silent: bool = False) -> None:  # noqa: ARG002 - a listener has one
        """Process the end of the listener. Messages for its peers end at the next one, without receiver."""
        self._link = None
        for queue in self._by_address.values():
            # No peer's message closes a listener.
            queue.lose(was_silent=True)

    async def drain(self) -> None:
        for queue in list(self._by_address.values()):
            await queue.drain()

    def queue_for(self, about: Hashable, address: str) -> OrderedQueue:  # noqa: ARG002 - the address decides here
        if (queue := self._by_address.get(address)) is None:
            if len(self._by_address) >= self._most:
                self._forget_empty()
            queue = self._by_address[address] = OrderedQueue()
            if self._link is not None:
                queue.use(LinkWindow(self._link))
        return queue

    def _forget_empty(self) -> None:
        self._by_address = {address: queue for address, queue in self._by_address.items() if len(queue)}
        self._most = max(FEW_QUEUES, 2 * len(self._by_address))
