"""Which hosts connections may reach."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from connectivity.security import egress
from connectivity.security.egress import EgressRules, enforce, entry, refusal
from tests.support.table import each_row
from tests.support.validation import validate

CLOSED = EgressRules(is_private_allowed=False)
LISTS = EgressRules(
    blocked=["203.0.113.0/24", "2001:db8:1::/48", "8.8.8.8", "evil.example", "*.internal"],
    allowed=["203.0.113.7", "good.internal", "169.254.0.0/16", "metadata.goog"],
)


@each_row(
    "host",
    [
        *(
            "169.254.169.254",
            "169.254.0.1",
            "fe80::1",
            "fe80::1%eth0",
            "100.100.100.200",
            "fd00:ec2::254",
            "fd20:ce::254",
        ),
        *("::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "::169.254.169.254", "::100.100.100.200"),
        *(
            "::ffff:0:169.254.169.254",
            "64:ff9b:1:a9fe:a9:fe00::",
            "64:ff9b:1:7a9:fe:a9fe:0:0",
            "64:ff9b:1:7:a9:fea9:fe00::",
        ),
        *("64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::1", "2001:0:a9fe:a9fe::1", "168.63.129.16"),
        *("0xa9fea9fe", "2852039166", "0251.0376.0251.0376", "0xa9.0xfe.0251.254", "169.254.43518", "169.16689662"),
        *("169.254.169.254.", "169.254.169.254..", "\uff11\uff16\uff19.254.169.254", "169\u3002254\uff0e169\uff61254"),
        *("metadata.google.internal", "METADATA.goog.", "Metadata.Azure.Internal"),
    ],
)
@each_row("rules", [EgressRules(), CLOSED, LISTS], ids=["default", "closed", "listed"])
def test_design_8_30_link_local_and_metadata_hosts_are_always_refused(host: str, rules: EgressRules) -> None:
    found = rules.refusal(host)
    assert found is not None
    assert found.expected == "a host that is neither link-local nor a metadata service"


PRIVATE = [
    *("127.0.0.1", "localhost", "LOCALHOST.", "::1", "::", "0.0.0.0", "0", "127.1", "0x7f000001", "017700000001"),
    *("10.0.0.1", "192.168.1.5", "172.16.3.4", "100.64.0.1", "fd12::1", "fc00::1", "::10.0.0.1", "::ffff:10.0.0.1"),
    *("64:ff9b::10.0.0.1", "2002:a00:1::1", "224.0.0.1", "ff02::1", "240.0.0.1", "255.255.255.255", "192.0.2.1"),
]
PUBLIC = ["broker.example", "8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8", "", "not a host"]


@each_row("host", [*PRIVATE, *PUBLIC])
def test_design_8_30_loopback_private_and_public_hosts_are_allowed(host: str) -> None:
    assert EgressRules().refusal(host) is None


@each_row("host", PRIVATE)
def test_private_hosts_can_be_refused(host: str) -> None:
    found = CLOSED.refusal(host)
    assert found is not None
    assert "hosts.private is refuse" in found.expected


@pytest.mark.parametrize("host", PUBLIC)
def test_public_hosts_and_names_are_allowed_also_then(host: str) -> None:
    assert CLOSED.refusal(host) is None


@each_row(
    ("host", "address", "is_refused"),
    [
        ("203.0.113.6", None, True),
        ("203.0.113.7", None, False),
        ("::ffff:203.0.113.6", None, True),
        ("::ffff:203.0.113.7", None, False),
        ("64:ff9b::203.0.113.6", None, True),
        ("2001:db8:1::5", None, True),
        ("2001:db8:2::5", None, False),
        ("8.8.8.8", None, True),
        ("134744072", None, True),
        ("8.8.4.4", None, False),
        ("evil.example", None, True),
        ("EVIL.example.", None, True),
        ("not-evil.example", None, False),
        ("a.b.internal", None, True),
        ("internal", None, False),
        ("good.internal", None, False),
        ("harmless.example", "203.0.113.6", True),
        ("harmless.example", "203.0.113.7", False),
        ("harmless.example", "8.8.4.4", False),
        ("evil.example", "8.8.4.4", True),
        ("good.internal", "203.0.113.6", False),
        ("good.internal", "169.254.169.254", True),
        ("metadata.goog", "203.0.113.7", True),
    ],
)
def test_lists_close_and_open_single_hosts(host: str, address: str | None, is_refused: bool) -> None:
    assert (LISTS.refusal(host, address) is not None) is is_refused


def test_an_allowed_name_leads_to_private_addresses_where_these_are_refused() -> None:
    rules = EgressRules(is_private_allowed=False, allowed=["broker.internal", "10.1.0.0/16"])
    assert rules.refusal("broker.internal", "10.0.0.1") is None
    assert rules.refusal("other.internal", "10.1.2.3") is None
    assert rules.refusal("other.internal", "10.0.0.1") is not None
    assert rules.refusal("broker.internal", "fe80::1%2") is not None


@each_row(
    ("text", "found"),
    [
        ("10.0.0.0/8", ip_network("10.0.0.0/8")),
        ("10.1.2.3", ip_network("10.1.2.3/32")),
        (" 10.1.2.3 ", ip_network("10.1.2.3/32")),
        ("fd00::/8", ip_network("fd00::/8")),
        ("::1", ip_network("::1/128")),
        ("broker", "broker"),
        ("Broker.", "broker"),
        ("a-b.example", "a-b.example"),
        ("*.example", "*.example"),
        ("my_broker", "my_broker"),
    ],
)
def test_an_entry_of_a_list_is_a_network_or_a_name(text: str, found: object) -> None:
    assert entry(text) == found


@each_row("text", ["", "10.0.0.0/33", "10.0.0.1/8", "10.1", "0x7f.1", "*", "a.*", "*.", "a b", "a/b", "-"])
def test_a_text_that_is_no_entry_of_a_list(text: str) -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/8"):
        entry(text)


def test_rules_are_in_force_for_as_long_as_they_are() -> None:
    document = {
        "id": "c",
        "connectionType": "amqp-091",
        "connectionStatus": "open",
        "uri": "amqp://127.0.0.1:5672",
        "sources": [{"addresses": ["q"], "authorizationContext": ["a"]}],
    }
    assert validate(document) == []
    with enforce(CLOSED):
        assert refusal("127.0.0.1") is not None
        with enforce(EgressRules(is_private_allowed=False, allowed=["127.0.0.1"])):
            assert validate(document) == []
        assert [str(problem) for problem in validate(document)] == [
            'uri: found "127.0.0.1", an address that is not public, expected a public address, since hosts.private is '
            "refuse, or a host in hosts.allowed"
        ]
    assert egress.refusal("127.0.0.1") is None
