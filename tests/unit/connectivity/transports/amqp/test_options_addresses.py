"""AMQP addresses, virtual hosts, and the rules of an AMQP connection document."""

from __future__ import annotations

import pytest

from connectivity.transports.amqp.options import split_address, virtual_host
from tests.support.table import each_row
from tests.support.vectors.connections import Case, load_cases


@each_row("case", load_cases("amqp_091"), ids=str)
def test_a_document_has_the_problems_of_its_rule(case: Case) -> None:
    case.check()


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("ex/key", ("ex", "key")),
        ("/orders", ("", "orders")),
        ("ex/key/", ("ex", "key")),
        ("e.x/k.#", ("e.x", "k.#")),
        ("/amq.rabbitmq.reply-to.g1h2+A/A==.M/z//Q==", ("", "amq.rabbitmq.reply-to.g1h2+A/A==.M/z//Q==")),
    ],
)
def test_2_3_1_an_address_is_an_exchange_and_a_key(address: str, parts: tuple[str, str]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize("address", ["key", "ex/", "/", "", "ex/a/b"])
def test_2_3_1_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="exchange/routingKey"):
        split_address(address)


@pytest.mark.parametrize(
    ("path", "host"), [("", "/"), ("/", "/"), ("/%2F", "/"), ("/fleet", "fleet"), ("/a%2Fb", "a/b")]
)
def test_1_2_the_path_is_the_virtual_host(path: str, host: str) -> None:
    assert virtual_host(path) == host
