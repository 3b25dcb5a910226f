"""Fair sharing of a number of places among users and their peers."""

from __future__ import annotations

from random import Random

from connectivity.fair_share import FairShare, PeerShare


def fill(*peers: PeerShare) -> None:
    """Take all places that these peers may take, in turn."""
    while any(peer.has_room for peer in peers):
        for peer in peers:
            if peer.has_room:
                peer.take()


def test_a_single_peer_gets_a_third_of_all_places() -> None:
    peer = FairShare(30_000).peer("user", "peer")
    fill(peer)
    assert peer.used == 10_000


def test_another_user_finds_places_beside_one_with_very_many_peers() -> None:
    shares = FairShare(6000)
    fill(*[shares.peer("bad", number) for number in range(5000)])
    assert shares.used == 3000
    other = shares.peer("good", "peer")
    fill(other)
    assert other.used == 1000


def test_a_peer_finds_places_beside_others_of_its_user() -> None:
    shares = FairShare(5000)
    fill(*[shares.peer("user", number) for number in range(50)])
    assert shares.peer("user", "new").has_room


def test_peers_of_many_users_share_the_places_evenly() -> None:
    shares = FairShare(1000)
    peers = [shares.peer(user, peer) for user in range(10) for peer in range(3)]
    fill(*peers)
    assert shares.used > 700
    assert {peer.used for peer in peers} <= {peers[0].used, peers[0].used - 1, peers[0].used + 1}


def test_fair_shares_never_exceed_the_total() -> None:
    random_source = Random(7)
    shares = FairShare(40)
    peers = [shares.peer(number // 4, number) for number in range(40)]
    for _ in range(5000):
        peer = random_source.choice(peers)
        if random_source.random() < 0.3 and peer.used:
            peer.give_back()
        elif peer.has_room:
            peer.take()
        assert shares.used == sum(each.used for each in peers) <= 40


def test_peers_are_forgotten_with_their_last_place() -> None:
    shares = FairShare(10)
    peer = shares.peer("user", "peer")
    assert shares.peer("user", "peer") is peer
    del peer
    assert repr(shares) == "<FairShare, 0 of 10, 0 users>"
