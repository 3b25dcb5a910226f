"""Client certificates at a RabbitMQ that requires one, and logs in by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trustme

from connectivity.errors import ClientCertificateRequired, ConnectionRefused, Detail, LinkError
from connectivity.transports.base import OutboundMessage
from mappings.model.envelope import Envelope
from tests.contract.link import DeliveryCollector, Publishing
from tests.support.amqp_link import AmqpLinkHarness
from tests.support.brokers.mosquitto import Certificates
from tests.support.brokers.rabbitmq import PASSWORD, USER, RabbitMQ

pytestmark = pytest.mark.broker("rabbitmq")

STRANGERS = trustme.CA()
"""Another authority that the broker trusts."""


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """Return a RabbitMQ as `docs/reference/amqp.md` configures it.

    The client's certificate is that of the user `device`.
    """
    certificates = Certificates.make(tmp_path_factory.mktemp("certificates"), "localhost")
    with certificates.ca.open("ab") as trusted:
        trusted.write(STRANGERS.cert_pem.bytes())
    lines = [
        "auth_mechanisms.1 = EXTERNAL",
        "auth_mechanisms.2 = PLAIN",
        "ssl_cert_login_from = common_name",
        "ssl_options.verify = verify_peer",
        "ssl_options.fail_if_no_peer_cert = true",
    ]
    plugins = ["rabbitmq_auth_mechanism_ssl"]
    with RabbitMQ.start(users={"device": "unused"}, tls=certificates, config_lines=lines, plugins=plugins) as broker:
        broker.control("clear_password", "device")
        broker.control("set_permissions", "-p", "/", "device", "", ".*", ".*")
        yield broker


@pytest.fixture
async def harness(asking: RabbitMQ) -> AsyncIterator[AmqpLinkHarness]:
    async with AmqpLinkHarness.at(asking) as made:
        yield made


def own(certificates: Certificates) -> dict[str, str]:
    """The certificate of the user `device`, as a document has it."""
    certificate = certificates.client_certificate.read_text()
    return {"type": "client-cert", "cert": certificate, "key": certificates.client_key_pkcs8()}


def over_tls(harness: AmqpLinkHarness, login: str = "", credentials: dict[str, str] | None = None) -> AmqpLinkHarness:
    assert harness.broker.certificates is not None
    ca = harness.broker.certificates.ca.read_text()
    harness.document.update(uri=f"amqps://{login}localhost:{harness.broker.tls_port}", ca=ca, credentials=credentials)
    return harness


async def refusal(harness: AmqpLinkHarness) -> LinkError:
    with pytest.raises(LinkError) as caught:
        await harness.connect()
    return caught.value


@pytest.mark.parametrize(("login", "logged_in"), [("", "device EXTERNAL"), (f"{USER}:{PASSWORD}@", f"{USER} PLAIN")])
async def test_a_certificate_logs_in_unless_the_uri_has_a_user(
    harness: AmqpLinkHarness, asking: RabbitMQ, login: str, logged_in: str
) -> None:
    assert asking.certificates is not None
    link = await over_tls(harness, login, own(asking.certificates)).connect()
    publishing = Publishing(link)
    publishing.give(OutboundMessage(harness.out, Envelope(b"out")))
    assert await publishing.all_done() == [None]
    await harness.send([b"in"])
    assert await DeliveryCollector(link).payloads(1) == [b"in"]
    known = await asyncio.to_thread(asking.control, "list_connections", "--silent", "user", "auth_mechanism", "ssl")
    assert f"{logged_in} true" in [" ".join(line.split()) for line in known.splitlines()]
    await link.close()


@pytest.mark.parametrize("login", ["", f"{USER}:{PASSWORD}@"])
async def test_a_broker_that_requests_a_missing_certificate_is_reported(harness: AmqpLinkHarness, login: str) -> None:
    error = await refusal(over_tls(harness, login))
    assert (type(error), error.detail) == (ClientCertificateRequired, Detail.CERTIFICATE)
    assert "require" in error.text


async def test_a_certificate_of_no_user_is_refused_with_the_message_of_the_broker(harness: AmqpLinkHarness) -> None:
    issued = STRANGERS.issue_cert("nobody.test", common_name="nobody")
    certificate = issued.cert_chain_pems[0].bytes().decode()
    error = await refusal(
        over_tls(
            harness, "", {"type": "client-cert", "cert": certificate, "key": issued.private_key_pem.bytes().decode()}
        )
    )
    assert (type(error), error.detail) == (ConnectionRefused, Detail.BAD_CREDENTIALS)
    assert error.text.startswith("ACCESS_REFUSED - Login was refused using authentication mechanism EXTERNAL")


async def test_a_certificate_of_an_unknown_authority_is_refused(harness: AmqpLinkHarness, tmp_path: Path) -> None:
    error = await refusal(over_tls(harness, "", own(Certificates.make(tmp_path))))
    assert (type(error), error.detail) == (ConnectionRefused, Detail.CERTIFICATE)


async def test_a_broker_that_does_not_log_in_by_certificates_is_named(rabbitmq: RabbitMQ) -> None:
    assert rabbitmq.certificates is not None
    async with AmqpLinkHarness.at(rabbitmq) as harness:
        error = await refusal(over_tls(harness, "", own(rabbitmq.certificates)))
    assert (type(error), error.detail) == (ConnectionRefused, Detail.BAD_CREDENTIALS)
    offered, expected = error.text.removeprefix("the broker offers the login mechanisms ").split(", expected ")
    assert (set(offered.split(", ")), expected) == ({"PLAIN", "AMQPLAIN"}, "EXTERNAL")
