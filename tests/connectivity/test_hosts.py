"""Which hosts a connection may never name."""

from __future__ import annotations

import pytest

from connectivity.hosts import is_refused_host


@pytest.mark.parametrize(
    "host",
    [
        *("169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%eth0", "100.100.100.200", "fd00:ec2::254"),
        *(
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "::100.100.100.200",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "0xa9fea9fe",
            "2852039166",
        ),
        *("0251.0376.0251.0376", "169.254.43518", "169.254.169.254.", "metadata.google.internal", "METADATA.goog."),
    ],
)
def test_design_8_30_link_local_and_metadata_hosts_are_refused(host: str) -> None:
    assert is_refused_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "::1",
        "::",
        "::10.0.0.1",
        "10.0.0.1",
        "192.168.1.5",
        "172.16.3.4",
        "fd12::1",
        "broker.example",
        "8.8.8.8",
        "",
    ],
)
def test_design_8_30_loopback_private_and_public_hosts_are_allowed(host: str) -> None:
    assert not is_refused_host(host)
