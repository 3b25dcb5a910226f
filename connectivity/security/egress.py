"""The hosts that connections may reach.

Without rules, the author of a connection document could reach hosts that only the service's machine reaches. Link-local
addresses and the metadata services of clouds are always refused. Loopback and private networks are allowed by default;
`hosts.private: refuse` and `hosts.blocked` refuse them, `hosts.allowed` allows single ones again. Checked are literal
addresses in every spelling that the resolver accepts (`0xa9fea9fe`, `2852039166`, `::ffff:169.254.169.254`), every address
of a name, and the address that a socket has reached (`connectivity.transports.dialer`). The rules are those of the process.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import NamedTuple, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
HostRule: TypeAlias = IPv4Network | IPv6Network | str
"""A network or address, or a name in lower case; `*.internal` is every name under `internal`."""

EXPECTED_ENTRY = (
    "an address, a network such as 10.0.0.0/8, or a host name such as broker.acme.example or *.acme.example"
)

_NEVER = "a host that is neither link-local nor a metadata service"
_BLOCKED = "a host that is not in hosts.blocked, or one that is in hosts.allowed"
_PRIVATE = "a public address, since hosts.private is refuse, or a host in hosts.allowed"

_METADATA_ADDRESSES = frozenset(
    ipaddress.ip_address(text)
    for text in ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254")
)
_METADATA_NAMES = frozenset(
    {"metadata.google.internal", "metadata.goog", "instance-data.ec2.internal", "metadata.azure.internal"}
)
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
_NAT64 = (IPv6Network("64:ff9b::/96"), _LOCAL_NAT64)
_OTHER_LENGTHS = (6, 7, 8)
"""Bytes before the embedded address, besides 12, as a translator may be configured (RFC 6052, 2.2)."""
_TRANSLATED = IPv6Network("::ffff:0:0:0/96")
"""IPv4-translated addresses of IPv6 (RFC 2765)."""
_COMPATIBLE = IPv6Network("::/96")
"""IPv4-compatible addresses of IPv6; `::` and `::1` are not among them."""

_NAME = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?")


class Refusal(NamedTuple):
    """Why a host may not be reached: found and expected."""

    found: str
    expected: str

    def __str__(self) -> str:
        return f"{self.found}, expected {self.expected}"


def entry(text: str) -> HostRule:
    """Parse an entry of a list of hosts. Raises ValueError that says what was expected."""
    try:
        return ipaddress.ip_network(text.strip())
    except ValueError:
        name = _plain(text.strip())
    # With a slash or like a number, it is a mistyped network.
    if not _NAME.fullmatch(name) or _address(name) is not None:
        raise ValueError(EXPECTED_ENTRY)
    return name


@dataclass(frozen=True, slots=True)
class EgressRules:
    """The operator's rules about hosts. The lists contain parsed entries."""

    is_private_allowed: bool = True
    blocked: Sequence[str] = ()
    allowed: Sequence[str] = ()

    def refusal(self, host: str, address: str | None = None) -> Refusal | None:
        """Return why this host may not be reached; None if it may.

        `address` is the resolved address; without it, `host` is checked as the document has it.
        """
        name = _plain(host)
        found = _address(name if address is None else address)
        if name in _METADATA_NAMES:
            return Refusal("the address of a cloud's metadata service", _NEVER)
        meant = _embedded_addresses(found) if found is not None else ()
        possible = (*meant, *_otherwise_embedded_addresses(found))
        for each in possible:
            if each.is_link_local:
                return Refusal("a link-local address", _NEVER)
            if each in _METADATA_ADDRESSES:
                return Refusal("the address of a cloud's metadata service", _NEVER)
        if _first_match(self.allowed, name, meant[:1]) is not None:
            return None
        if (listed := _first_match(self.blocked, name, possible)) is not None:
            return Refusal(f"a host that matches {listed} in hosts.blocked", _BLOCKED)
        if not self.is_private_allowed and (name == "localhost" or any(not _is_public(each) for each in meant)):
            return Refusal("an address that is not public", _PRIVATE)
        return None


_rules = EgressRules()


@contextmanager
def enforce(rules: EgressRules) -> Iterator[None]:
    """Judge by these rules meanwhile, in the whole process."""
    global _rules
    before, _rules = _rules, rules
    try:
        yield
    finally:
        _rules = before


def refusal(host: str, address: str | None = None) -> Refusal | None:
    """`EgressRules.refusal`, by the rules that are in force."""
    return _rules.refusal(host, address)


def _plain(host: str) -> str:
    """A host as resolvers understand it: full-width letters are plain ones, and a final dot says nothing."""
    return unicodedata.normalize("NFKC", host).replace("\u3002", ".").rstrip(".").lower()


def _address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


def _embedded_addresses(address: Address) -> tuple[Address, ...]:
    """Return the address, and the IPv4 addresses that it embeds; a mapped one is only that."""
    if isinstance(address, IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    last = IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _COMPATIBLE and int(address) > 1:
        return (last,)
    if address in _TRANSLATED or any(address in network for network in _NAT64):
        return (last, address)
    if address.sixtofour is not None:
        return (address.sixtofour, address)
    return (address, *(address.teredo or ()))


def _otherwise_embedded_addresses(address: Address | None) -> tuple[IPv4Address, ...]:
    """Return what a translator of the local network may take an address for, by the length of its prefix."""
    if not isinstance(address, IPv6Address) or address not in _LOCAL_NAT64:
        return ()
    # The ninth byte of all of them is zero, and no part of the address.
    rest = address.packed[:8] + address.packed[9:]
    return tuple(IPv4Address(rest[start : start + 4]) for start in _OTHER_LENGTHS)


def _is_public(address: Address) -> bool:
    return (address.is_global and not address.is_multicast) or any(address in network for network in _NAT64)


def _first_match(entries: Sequence[str], name: str, addresses: Sequence[Address]) -> str | None:
    """The first of the entries that the name or one of the addresses belongs to."""
    for text in entries:
        match entry(text):
            case str() as listed:
                if name == listed or (listed.startswith("*.") and name.endswith(listed[1:])):
                    return text
            case network:
                # A network does not know addresses of the other version, nor ones with a zone.
                if any(each.version == network.version and _without_zone(each) in network for each in addresses):
                    return text
    return None


def _without_zone(address: Address) -> Address:
    return ipaddress.ip_address(int(address)) if isinstance(address, IPv4Address) else IPv6Address(int(address))
