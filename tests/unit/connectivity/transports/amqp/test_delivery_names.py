"""Names of messages without an ID: a redelivery gets the name of its first delivery, a new command never."""

from __future__ import annotations

import pytest

from connectivity.transports.amqp.delivery_names import NumberedNames
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
    assert NumberedNames("q").again([b"%d" % number for number in range(4, 10)], first) == first[4:]


@pytest.mark.parametrize(
    ("carried_out", "redelivered", "known"),
    [
        pytest.param([ON, OFF], [ON], 0, id="the third of on, off, on"),
        pytest.param([ON, OFF], [ON, OFF, ON], 2, id="all three"),
        pytest.param([ON, OFF, ON], [OFF, ON], 2, id="the last two"),
        pytest.param([ON, OFF, ON], [OFF, ON, OFF], 2, id="the last two and a new one"),
        pytest.param([], [ON, OFF], 0, id="none was carried out"),
        pytest.param([OFF], [b"retrieve", OFF, ON], 1, id="behind a retrieve, which leaves no name"),
    ],
)
def test_b14_only_the_end_of_what_was_carried_out_comes_again(
    carried_out: list[bytes], redelivered: list[bytes], known: int
) -> None:
    names = NumberedNames("q")
    earlier = [names.first(payload) for payload in carried_out]
    again = NumberedNames("q").again(redelivered, earlier)
    found = [name for name in again if name in earlier]
    assert found == (earlier[-known:] if known else [])
    assert len(set(again)) == len(redelivered)


def test_b14_several_signals_of_one_delivery_have_one_name() -> None:
    names = NumberedNames("q")
    (first,) = [names.first(ON)]
    assert NumberedNames("q").again([ON], [first, f"{first}#1"]) == [first]


def test_names_of_other_queues_are_ignored() -> None:
    other = NumberedNames("other")
    name = other.first(ON)
    assert NumberedNames("q").again([ON], [name]) != [name]


def test_b14_of_distinct_commands_each_end_is_recognized_whatever_was_acknowledged() -> None:
    source = dice("names")
    for _ in range(200):
        names, count = NumberedNames("q"), source.randint(1, 30)
        carried_out = [names.first(b"%d" % number) for number in range(count)]
        begin, new = source.randint(0, count), source.randint(0, 5)
        again = NumberedNames("q").again([b"%d" % number for number in range(begin, count + new)], carried_out)
        assert again[: count - begin] == carried_out[begin:]
        assert not set(again[count - begin :]) & set(carried_out)
