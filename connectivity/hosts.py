"""Which hosts a connection may never name: link-local addresses and the metadata services of clouds.

Whoever may write a connection document could otherwise make the service talk to what only its machine can reach. Loopback
and private networks are allowed, since that is where brokers live. Only literal addresses are judged, in every spelling
that the system's resolver takes (`169.254.169.254`, `0xa9fea9fe`, `2852039166`, `::ffff:169.254.169.254`); names are not
looked up here. A link judges the address that it really connects to with `is_refused_address`.
"""

from __future__ import annotations

import ipaddress
import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network

EXPECTED = "a host that is neither link-local nor a metadata service"

_METADATA_ADDRESSES = frozenset(
    ipaddress.ip_address(text) for text in ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254")
)
_METADATA_NAMES = frozenset({"metadata.google.internal", "metadata.goog", "instance-data.ec2.internal"})
_NAT64 = IPv6Network("64:ff9b::/96")
_COMPATIBLE = IPv6Network("::/96")
"""An IPv4 address with nothing before it, once meant for the change to IPv6; `::` and `::1` are none."""


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


def _embedded(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 one stands for, if it stands for one."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def is_refused_address(text: str) -> bool:
    """Whether this literal address is one that connections may never reach. A name is never one."""
    address = _address(text)
    if address is None:
        return False
    return _embedded(address).is_link_local or _embedded(address) in _METADATA_ADDRESSES


def is_refused_host(host: str) -> bool:
    """Whether a document may not name this host."""
    return host.rstrip(".").lower() in _METADATA_NAMES or is_refused_address(host.rstrip("."))
