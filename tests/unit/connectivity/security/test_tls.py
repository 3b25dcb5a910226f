"""Certificates and keys in PEM."""

from __future__ import annotations

import os
import ssl

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from hypothesis import given, settings
from hypothesis import strategies as st

from connectivity.security.tls import (
    is_certificate_with_key,
    is_certificates,
    is_key,
    load_client_certificate,
    pem_labels,
)
from tests.support.cpu_budget import at_most
from tests.support.dice import examples
from tests.support.open_files import open_files


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def certificate(authority: trustme.CA) -> str:
    return "".join(blob.bytes().decode() for blob in authority.issue_cert("a.example").cert_chain_pems)


@pytest.fixture(scope="module")
def pair(authority: trustme.CA) -> tuple[str, str]:
    leaf = authority.issue_cert("a.example")
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return leaf.cert_chain_pems[0].bytes().decode(), text.decode()


def test_one_or_more_certificates_are_read(certificate: str, authority: trustme.CA) -> None:
    assert is_certificates(certificate)
    assert is_certificates(certificate + authority.cert_pem.bytes().decode())
    assert is_certificates(f"# Főtanúsítvány\n{certificate}"), "bundles have comments with names"


def test_a_broken_certificate_among_good_ones_is_seen(certificate: str) -> None:
    assert not is_certificates(certificate + "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n")
    assert not is_certificates(certificate + "-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n")
    assert not is_certificates(certificate.replace("-----END", "-----END-", 1))


def test_a_cut_certificate_is_seen(certificate: str) -> None:
    lines = certificate.strip().splitlines()
    assert not is_certificates("\n".join(lines[:5] + lines[-1:]))


def test_a_key_is_no_certificate_and_the_other_way_round(pair: tuple[str, str]) -> None:
    certificate, key = pair
    assert (is_certificates(key), is_key(certificate, "PRIVATE KEY"), is_key(key, "PRIVATE KEY")) == (
        False,
        False,
        True,
    )


def test_a_certificate_of_white_space_without_an_end_is_refused_at_once() -> None:
    with at_most(1):  # hours if each line could begin the content
        assert not is_certificates("-----BEGIN CERTIFICATE-----" + "\n" * 1_000_000)


def test_1_3_only_unencrypted_pkcs8_is_a_key(authority: trustme.CA) -> None:
    key = serialization.load_pem_private_key(authority.issue_cert("a.example").private_key_pem.bytes(), None)
    for form, encryption in (
        (serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()),
        (serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")),
    ):
        text = key.private_bytes(serialization.Encoding.PEM, form, encryption).decode()
        assert pem_labels(text) != ["PRIVATE KEY"]
        assert not is_key(text, "PRIVATE KEY")


def test_a_key_belongs_to_its_certificate_alone(pair: tuple[str, str], certificate: str) -> None:
    assert is_certificate_with_key(*pair)
    assert not is_certificate_with_key(certificate, pair[1])


def test_an_encrypted_key_is_refused_without_asking_anybody(pair: tuple[str, str]) -> None:
    key = serialization.load_pem_private_key(pair[1].encode(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    with pytest.raises(ValueError, match="private key that belongs to it"):
        load_client_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), pair[0], encrypted.decode())


def test_keys_are_loaded_where_the_system_has_no_files_in_memory(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert is_certificate_with_key(*pair)


def test_no_open_file_is_left(pair: tuple[str, str]) -> None:
    assert not files_in_memory()
    for _ in range(5):
        is_certificate_with_key(*pair)
    assert not files_in_memory()


def files_in_memory() -> list[str]:
    return [it for it in open_files() if "memfd:client-certificate" in it]


@given(st.text(st.sampled_from("-BEGIN CERTFADO\nMIA=")) | st.text())
@settings(max_examples=examples(50))
def test_any_text_is_refused_as_a_certificate(text: str) -> None:
    wrapped = f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----"
    assert not is_certificates(text)
    assert not is_certificates(wrapped)
    assert not is_certificate_with_key(wrapped, text)
