"""Names of messages without an ID: a redelivery gets its former name, a new command a new one."""

from __future__ import annotations

import pytest

from connectivity.transports.amqp import delivery_names
from connectivity.transports.amqp.delivery_names import NumberedNames
from connectivity.transports.base import KnownNames
from tests.support.dice import dice

ON, OFF = b'"on"', b'"off"'


def test_b14_every_delivery_has_a_name_of_its_own() -> None:
    names = NumberedNames("q")
    given = [names.first(payload) for payload in (ON, OFF, ON)]
    assert len(set(given)) == 3
    assert given == sorted(given)
    assert all(name.startswith(names.prefix) for name in given)


def test_b14_redeliveries_get_the_names_of_their_first_deliveries() -> None:
    names = NumberedNames("q")
    first = [names.first(b"%d" % number) for number in range(10)]
    assert (
        NumberedNames("q").again([b"%d" % number for number in range(4, 10)], KnownNames(carried_out=first))
        == first[4:]
    )


@pytest.mark.parametrize(
    ("carried_out", "redelivered", "known"),
    [
        pytest.param([ON, OFF], [ON], 0, id="the third of on, off, on"),
        pytest.param([ON, OFF], [ON, OFF, ON], 2, id="all three"),
        pytest.param([ON, OFF, ON], [OFF, ON], 2, id="the last two"),
        pytest.param([ON, b"dim", OFF], [b"dim", OFF, ON], 2, id="the last two and a new one"),
        pytest.param([], [ON, OFF], 0, id="none was carried out"),
        pytest.param([ON, ON, ON], [ON, ON], 0, id="equal ones, so the redelivered ones are unknown"),
        pytest.param([ON, OFF, ON, OFF], [ON, OFF], 2, id="the last two of a pattern"),
        pytest.param([OFF], [b"retrieve", OFF, ON], 1, id="behind a retrieve, which leaves no name"),
    ],
)
def test_b14_only_the_last_carried_out_commands_are_redelivered(
    carried_out: list[bytes], redelivered: list[bytes], known: int
) -> None:
    names = NumberedNames("q")
    earlier = [names.first(payload) for payload in carried_out]
    again = NumberedNames("q").again(redelivered, KnownNames(carried_out=earlier))
    found = [name for name in again if name in earlier]
    assert found == (earlier[-known:] if known else [])
    assert len(set(again)) == len(redelivered)


def test_b14_several_signals_of_one_delivery_have_one_name() -> None:
    names = NumberedNames("q")
    (first,) = [names.first(ON)]
    assert NumberedNames("q").again([ON], KnownNames(carried_out=[first, f"{first}#1"])) == [first]


def test_names_of_other_queues_are_ignored() -> None:
    other = NumberedNames("other")
    name = other.first(ON)
    assert NumberedNames("q").again([ON], KnownNames(carried_out=[name])) != [name]


def test_b14_of_distinct_commands_each_end_is_recognized_after_any_acknowledgements() -> None:
    source = dice("names")
    for _ in range(200):
        names, count = NumberedNames("q"), source.randint(1, 30)
        carried_out = [names.first(b"%d" % number) for number in range(count)]
        begin, new = source.randint(0, count), source.randint(0, 5)
        again = NumberedNames("q").again(
            [b"%d" % number for number in range(begin, count + new)], KnownNames(carried_out=carried_out)
        )
        assert again[: count - begin] == carried_out[begin:]
        assert not set(again[count - begin :]) & set(carried_out)


def test_b14_a_delivery_that_was_requeued_keeps_its_name_behind_later_ones() -> None:
    names = NumberedNames("q")
    requeued, later = names.first(ON), names.first(OFF)
    assert names.again([ON], KnownNames([requeued], [later])) == [requeued]


def test_b14_commands_long_before_the_last_delivery_are_not_redelivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names, now = NumberedNames("q"), [10**18]
    monkeypatch.setattr(delivery_names, "time_ns", lambda: now[0])
    old = names.first(ON)
    now[0] += 11 * 10**9
    last = names.first(OFF)
    assert old not in names.again([ON, OFF], KnownNames(carried_out=[old, last]))


def test_a_queue_or_message_id_that_looks_like_another_name_is_ignored() -> None:
    names = NumberedNames("q")
    carried_out = names.first(ON)
    strange = [NumberedNames("q#1").first(OFF), "amqp:#q#9", f"{names.prefix}9"]
    assert names.again([ON], KnownNames(carried_out=[carried_out, *strange])) == [carried_out]


def test_b14_redeliveries_of_a_link_that_died_silently_are_recognized_behind_newer_commands() -> None:
    """The broker noticed late that the link was dead; more commands came over the next link meanwhile."""
    silent, following = NumberedNames("q"), NumberedNames("q")
    earlier = [silent.first(b"%d" % number) for number in range(5)]
    later = [following.first(b"%d" % number) for number in range(5, 9)]
    assert following.again([b"3", b"4"], KnownNames(carried_out=[*earlier, *later])) == earlier[3:]


def test_b14_redeliveries_of_several_links_are_recognized_together() -> None:
    """A link was cut before it could acknowledge the deliveries of the link before it."""
    first, second = NumberedNames("q"), NumberedNames("q")
    earlier = [first.first(b"%d" % number) for number in range(5)]
    later = [second.first(b"%d" % number) for number in range(5, 9)]
    payloads = [b"%d" % number for number in range(3, 11)]
    again = NumberedNames("q").again(payloads, KnownNames(carried_out=[*later, *earlier]))
    assert again[:6] == [*earlier[3:], *later]
    assert not {*again[6:]} & {*earlier, *later}


def test_redeliveries_of_two_links_with_equal_commands_are_recognized() -> None:
    """A sender had no confirm for its last command, and sent it again, before both links were lost."""
    first, second = NumberedNames("q"), NumberedNames("q")
    earlier = [first.first(payload) for payload in (b"1", b"2")]
    later = [second.first(payload) for payload in (b"2", b"3", b"4")]
    again = NumberedNames("q").again([b"2", b"2", b"3", b"4", b"5"], KnownNames(carried_out=[*earlier, *later]))
    assert again[:4] == [earlier[-1], *later]
    assert again[4] not in {*earlier, *later}


def test_redeliveries_of_a_link_are_recognized_if_an_earlier_link_had_some_of_their_commands() -> None:
    """A sender without confirms sent its last commands again, after one that only the second link has."""
    first, second = NumberedNames("q"), NumberedNames("q")
    earlier = [first.first(payload) for payload in (b"0", b"2", b"3")]
    later = [second.first(payload) for payload in (b"1", b"2", b"3", b"1", b"4")]
    payloads = [b"1", b"2", b"3", b"1", b"4", b"5"]
    again = NumberedNames("q").again(payloads, KnownNames(carried_out=[*earlier, *later]))
    assert again[:5] == later
    assert again[5] not in {*earlier, *later}


def test_redeliveries_of_several_links_are_recognized_in_another_order() -> None:
    first, second = NumberedNames("q"), NumberedNames("q")
    earlier = [first.first(b"%d" % number) for number in range(5)]
    later = [second.first(b"%d" % number) for number in range(5, 9)]
    payloads = [b"5", b"6", b"7", b"8", b"3", b"4"]
    again = NumberedNames("q").again(payloads, KnownNames(carried_out=[*earlier, *later]))
    assert again == [*later, *earlier[3:]]
