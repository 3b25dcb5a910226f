"""Deliveries of a listener's peers wait by user."""

from __future__ import annotations

import asyncio

from websockets.asyncio.client import ClientConnection

from connectivity.fair_share import FairShare
from connectivity.transports.listener.inbox import PeerInbox
from connectivity.transports.listener.socket import PeerDelivery
from mappings.model.envelope import Envelope
from tests.support.in_process.websocket_listener import opened, token_entry


class _Peer:
    def __init__(self, shares: FairShare, user: str) -> None:
        self.share = shares.peer(user, user)


def _delivery(peer: _Peer, number: int) -> PeerDelivery:
    delivery = PeerDelivery(Envelope(b"%d" % number, {}), "/twins", None, False, lambda *_: None)
    delivery.user = peer.share.user
    return delivery


async def test_users_take_turns_and_each_keeps_its_order() -> None:
    shares, inbox = FairShare(5000), PeerInbox()
    bad, good = _Peer(shares, "bad"), _Peer(shares, "good")
    for number in range(100):
        inbox.add(_delivery(bad, number))
    inbox.add(_delivery(good, 1000))
    lists = inbox.lists()
    first, second, third = [await anext(lists) for _ in range(3)]
    assert [each.user is bad.share.user for each in first] == [True] * 16
    assert [each.envelope.payload for each in second] == [b"1000"]
    assert [int(each.envelope.payload) for each in (*first, *third)] == list(range(32))


async def test_a_delivery_wakes_whoever_waits_and_the_end_discards_the_others() -> None:
    shares, inbox = FairShare(5000), PeerInbox()
    peer = _Peer(shares, "user")
    lists = inbox.lists()
    waiting = asyncio.ensure_future(anext(lists))
    await asyncio.sleep(0)
    inbox.add(_delivery(peer, 1))
    assert len(await waiting) == 1
    inbox.add(_delivery(peer, 2))
    inbox.end()
    assert [each async for each in lists] == []


async def test_users_share_the_bytes_of_unsettled_messages() -> None:
    tokens = f"{token_entry('bad', 'bad')},{token_entry('good', 'good')}"
    async with opened(options={"tokens": tokens}) as way:
        way.link._bytes = FairShare(100_000)
        bad, other = [await way.client(f"/twins?access_token={name}") for name in ("bad", "good")]
        sending = asyncio.ensure_future(_flood(bad))
        held = await way.take(4)
        await other.send("good")
        [good] = await way.take(1)
        assert good.envelope.payload == b"good", "whoever has more unsettled bytes than are free is not read from"
        assert way.link._bytes.used < 100_000
        for each in (*held, good):
            each.settle()
        assert len(await way.take(4)) == 4
        sending.cancel()


async def _flood(client: ClientConnection) -> None:
    for _ in range(1000):
        await client.send("x" * 10_000)
