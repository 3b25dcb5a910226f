"""A private Mosquitto on a free port, which tests can stop, kill and start again on the same port.

    with Mosquitto.start(users={"ada": "secret"}) as broker:
        connect(broker.host, broker.port)
        broker.restart()

`stop` sends SIGTERM, and Mosquitto writes its sessions and queues to disk. `kill` sends SIGKILL, and Mosquitto loses the
messages since the last save. After both, `start_again` keeps the port and the data.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import tempfile
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import trustme
from cryptography.hazmat.primitives import serialization

from tests.support.brokers import BrokerFailed, BrokerMissing, BrokerSilent, docker_answers, free_port, is_listening
from tests.support.brokers.runners import Container, Process, Runner, started
from tests.support.wait import TimedOut, wait_until_sync

IMAGE = "eclipse-mosquitto:2.0.22"
READY_WITHIN = 60.0

# Brokers are packaged as system services, so their folder is often not on a user's PATH.
SEARCHED = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin"])


ACCESS_PLUGIN = "mosquitto_dynamic_security.so"
PLUGIN_FOLDERS = ("usr/lib", "usr/lib/*", "usr/local/lib", "opt/homebrew/lib", "usr/lib64")


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: the authority, the broker's certificate with its key, and a client's pair."""

    ca: Path
    certificate: Path
    key: Path
    client_certificate: Path
    client_key: Path

    def client_key_pkcs8(self) -> str:
        """The client's private key in PKCS #8, which connection documents require."""
        key = serialization.load_pem_private_key(self.client_key.read_bytes(), None)
        return key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()

    @classmethod
    def make(cls, folder: Path, *names: str, until: datetime | None = None) -> Certificates:
        """Create an authority in `folder`, and a certificate for these host names of a broker.

        The default is the loopback interface. `until` is the end of the broker's certificate.
        """
        made = cls(*(folder / name for name in ("ca.pem", "broker.pem", "broker.key", "client.pem", "client.key")))
        authority = trustme.CA()
        authority.cert_pem.write_to_path(made.ca)
        broker = authority.issue_cert(*(names or ("localhost", "127.0.0.1")), not_after=until)
        broker.cert_chain_pems[0].write_to_path(made.certificate)
        broker.private_key_pem.write_to_path(made.key)
        client = authority.issue_cert("device.test", common_name="device")
        client.cert_chain_pems[0].write_to_path(made.client_certificate)
        client.private_key_pem.write_to_path(made.client_key)
        return made


class Mosquitto:
    """A private broker. `port` is for MQTT, `tls_port` for MQTT over TLS (0 without certificates)."""

    def __init__(self, runner: Runner, folder: Path, port: int, tls_port: int, users: Mapping[str, str]) -> None:
        self._runner, self._folder, self._users = runner, folder, users
        self.host, self.port, self.tls_port = runner.host, port, tls_port

    def __repr__(self) -> str:
        state = "running" if self._runner.is_running() else "stopped"
        return f"<Mosquitto {state} at {self.host}:{self.port}, data in {self._folder}>"

    @classmethod
    def start(
        cls,
        *,
        persistence: bool = True,
        users: Mapping[str, str] | None = None,
        tls: Certificates | None = None,
        allowed: Sequence[str] | None = None,
        config_lines: Sequence[str] = (),
    ) -> Mosquitto:
        """Start a broker and wait until it is ready.

        With `users` (name → password), clients must log in; with `allowed`, clients can subscribe and publish only to
        these topic filters. `config_lines` come last in the configuration, so they apply to the TLS listener if there
        is one (`require_certificate true`). Raises BrokerMissing without Mosquitto, and BrokerFailed if it does not
        start.
        """
        return started(
            lambda: cls._made(
                persistence=persistence, users=users or {}, tls=tls, allowed=allowed, config_lines=config_lines
            ),
            "Address already in use",
        )

    @classmethod
    def _made(
        cls,
        *,
        persistence: bool,
        users: Mapping[str, str],
        tls: Certificates | None,
        allowed: Sequence[str] | None,
        config_lines: Sequence[str],
    ) -> Mosquitto:
        in_container = docker_answers()
        program = None if in_container else shutil.which("mosquitto", path=SEARCHED)
        if not in_container and program is None:
            raise BrokerMissing("mosquitto", SEARCHED)
        folder = Path(tempfile.mkdtemp(prefix="mosquitto-"))
        port, tls_port = free_port(), free_port() if tls else 0
        config = folder / "mosquitto.conf"
        interface = "" if in_container else " 127.0.0.1"
        lines = [
            *_general_lines(folder, persistence=persistence, users=users),
            f"listener {port}{interface}",
            *_tls_lines(folder, tls, f"{tls_port}{interface}"),
            *_access_lines(folder, allowed, in_container=in_container),
            *config_lines,
        ]
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        ports = [port, tls_port] if tls else [port]
        runner: Runner = (
            Process([program, "-c", str(config)], config.with_suffix(".log"))
            if program
            else Container(IMAGE, f"mosquitto -c {config}", folder, ports)
        )
        return cls(runner, folder, port, tls_port, users)

    def start_again(self) -> None:
        """Start on the same port with the same data, and wait until the broker listens."""
        self._runner.start()
        ports = [port for port in (self.port, self.tls_port) if port]

        def is_settled() -> bool:
            return not self._runner.is_running() or all(is_listening(self.host, port) for port in ports)

        try:
            wait_until_sync(is_settled, READY_WITHIN)
        except TimedOut as error:
            raise BrokerSilent(f"mosquitto is not ready after {READY_WITHIN} s:\n{self.log()}") from error
        if not self._runner.is_running():
            raise BrokerFailed(f"mosquitto ended while it was starting:\n{self.log()}")

    def stop(self) -> None:
        """Send SIGTERM and wait for the end: sessions and queues are then on disk."""
        self._runner.end(gently=True)

    def kill(self) -> None:
        """Send SIGKILL: unsaved data is lost."""
        self._runner.end(gently=False)

    def restart(self) -> None:
        """Stop with SIGTERM and start again on the same port: clients lose their links, sessions remain."""
        self.stop()
        self.start_again()

    def set_password(self, user: str, password: str) -> None:
        """Change the password of a user, which applies after the next start."""
        self._users = {**self._users, user: password}
        _write_passwords(self._folder, self._users)

    def is_running(self) -> bool:
        return self._runner.is_running()

    def log(self) -> str:
        """The whole output of the broker since its first start."""
        return self._runner.log()

    def uri(self, user: str | None = None, *, tls: bool = False) -> str:
        """Return the URI for a connection document; with `user`, one with a login."""
        login = f"{user}:{self._users[user]}@" if user else ""
        return f"ssl://{login}{self.host}:{self.tls_port}" if tls else f"tcp://{login}{self.host}:{self.port}"

    def close(self) -> None:
        """Stop the broker and remove its data. Can be called twice."""
        self._runner.end(gently=False)
        self._runner.remove()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _general_lines(folder: Path, *, persistence: bool, users: Mapping[str, str]) -> list[str]:
    """Return the general settings, with limits so high that tests reach those of the service first."""
    lines = [
        "max_inflight_messages 1000",
        "max_queued_messages 0",
        "set_tcp_nodelay true",
        "log_dest stderr",
        "log_timestamp_format %Y-%m-%dT%H:%M:%S",
        f"allow_anonymous {'false' if users else 'true'}",
        f"persistence {'true' if persistence else 'false'}",
    ]
    if persistence:
        lines += [f"persistence_location {folder}/", "autosave_interval 30"]
    if os.geteuid() == 0:
        # Without this, Mosquitto started as root changes to a user without access to this folder.
        lines.append("user root")
    if users:
        lines.append(f"password_file {_write_passwords(folder, users)}")
    return lines


def _write_passwords(folder: Path, users: Mapping[str, str]) -> Path:
    """Write the password file and return its path."""
    passwords = folder / "passwords"
    passwords.write_text("".join(f"{_password_line(*user)}\n" for user in users.items()), encoding="utf-8")
    passwords.chmod(0o600)
    return passwords


def _tls_lines(folder: Path, tls: Certificates | None, listener: str) -> list[str]:
    """Return the settings of the TLS listener, and copy the files to the folder, which a container sees."""
    if tls is None:
        return []
    files = {"cafile": tls.ca, "certfile": tls.certificate, "keyfile": tls.key}
    return [
        f"listener {listener}",
        *(f"{option} {shutil.copy(file, folder / option)}" for option, file in files.items()),
    ]


def _access_lines(folder: Path, allowed: Sequence[str] | None, *, in_container: bool) -> list[str]:
    """Return the settings of the plugin that refuses subscriptions.

    With a plain access list, Mosquitto accepts such a subscription, but delivers nothing.
    """
    if allowed is None:
        return []
    acls = [
        {"acltype": kind, "topic": topic, "priority": 0, "allow": True}
        for topic in allowed
        for kind in ("subscribePattern", "publishClientSend")
    ]
    rules = {
        "defaultACLAccess": {
            "subscribe": False,
            "unsubscribe": True,
            "publishClientSend": False,
            "publishClientReceive": True,
        },
        "roles": [{"rolename": "everybody", "acls": acls}],
        "groups": [{"groupname": "everybody", "roles": [{"rolename": "everybody"}], "clients": []}],
        "anonymousGroup": "everybody",
        "clients": [],
    }
    file = folder / "access.json"
    file.write_text(json.dumps(rules), encoding="utf-8")
    return [f"plugin {_access_plugin(in_container=in_container)}", f"plugin_opt_config_file {file}"]


def _access_plugin(*, in_container: bool) -> Path:
    """Return the path of Mosquitto's access plugin. Raises BrokerMissing."""
    if in_container:
        return Path("/usr/lib", ACCESS_PLUGIN)
    for folder in PLUGIN_FOLDERS:
        for found in sorted(Path("/").glob(f"{folder}/{ACCESS_PLUGIN}")):
            return found
    raise BrokerMissing(ACCESS_PLUGIN, ", ".join(f"/{folder}" for folder in PLUGIN_FOLDERS))


def _password_line(name: str, password: str) -> str:
    """Return a line of a password file of Mosquitto 2: PBKDF2 with SHA-512, like `mosquitto_passwd`."""
    salt, rounds = secrets.token_bytes(12), 101
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, rounds)
    return f"{name}:$7${rounds}${b64encode(salt).decode()}${b64encode(digest).decode()}"
