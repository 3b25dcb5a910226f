"""A private RabbitMQ on a free port, which tests can stop, kill and start again on the same port.

    with RabbitMQ.start() as broker:
        connect(broker.uri())
        broker.kill()
        broker.start_again()

`stop` sends SIGTERM, and durable queues with their persistent messages are on disk; `kill` sends SIGKILL. After both,
`start_again` keeps the port and the data. A start takes about five seconds, so share a broker and use other queues or
another virtual host. RabbitMQ would start a port mapper (epmd) as a daemon; so each broker gets a port mapper that ends
with it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from tests.support.brokers import BrokerFailed, BrokerMissing, BrokerSilent, docker_answers, free_port, is_listening
from tests.support.brokers.mosquitto import Certificates
from tests.support.brokers.runners import Container, Process, Runner, started
from tests.support.wait import TimedOut, wait_until_sync

IMAGE = "rabbitmq:3.13.7"
READY_WITHIN = 60.0
USER, PASSWORD = "service", "right"

# The packaged command changes the user; the program that it calls does not.
SEARCHED = os.pathsep.join(
    [
        "/usr/lib/rabbitmq/bin",
        os.environ.get("PATH", os.defpath),
        "/usr/sbin",
        "/usr/local/sbin",
        "/opt/homebrew/sbin",
    ]
)


class RabbitMQ:
    """A private broker. `port` is for AMQP, `tls_port` for AMQP over TLS (0 without certificates)."""

    def __init__(
        self,
        runner: Runner,
        folder: Path,
        port: int,
        tls_port: int,
        users: Mapping[str, str],
        certificates: Certificates | None,
    ) -> None:
        self._runner, self._folder, self._users = runner, folder, users
        self.certificates = certificates
        self.host, self.port, self.tls_port = runner.host, port, tls_port

    def __repr__(self) -> str:
        state = "running" if self._runner.is_running() else "stopped"
        return f"<RabbitMQ {state} at {self.host}:{self.port}, data in {self._folder}>"

    @classmethod
    def start(
        cls,
        *,
        users: Mapping[str, str] | None = None,
        vhosts: Sequence[str] = (),
        tls: Certificates | None = None,
        config_lines: Sequence[str] = (),
        plugins: Sequence[str] = (),
    ) -> RabbitMQ:
        """Start a broker and wait until it is ready.

        The user `service` has all permissions; `users` (name → password) have none. `plugins` are names of RabbitMQ's
        own plugins. `config_lines` override earlier ones of the same name. Raises BrokerMissing without RabbitMQ, and
        BrokerFailed if it does not start.
        """
        return started(lambda: cls._made(users or {}, ("/", *vhosts), tls, config_lines, plugins), "eaddrinuse")

    @classmethod
    def _made(
        cls,
        users: Mapping[str, str],
        vhosts: Sequence[str],
        tls: Certificates | None,
        config_lines: Sequence[str],
        enabled: Sequence[str],
    ) -> RabbitMQ:
        in_container = docker_answers()
        program = None if in_container else shutil.which("rabbitmq-server", path=SEARCHED)
        if not in_container and program is None:
            raise BrokerMissing("rabbitmq-server", SEARCHED)
        folder = Path(tempfile.mkdtemp(prefix="rabbitmq-"))
        # In a container, the broker's own user reads this folder.
        folder.chmod(0o755 if in_container else 0o700)
        port, tls_port = free_port(), free_port() if tls else 0
        interface = "" if in_container else "127.0.0.1:"
        everybody = {USER: PASSWORD, **users}
        definitions = folder / "definitions.json"
        definitions.write_text(json.dumps(_definitions(everybody, vhosts)), encoding="utf-8")
        lines = [
            f"listeners.tcp.1 = {interface}{port}",
            "log.console = true",
            "log.console.level = info",
            "loopback_users = none",
            f"load_definitions = {definitions}",
            # So low that no alarm is raised before a test raises it.
            "disk_free_limit.absolute = 1MB",
            *_tls_lines(folder, tls, f"{interface}{tls_port}"),
            *config_lines,
        ]
        config = folder / "rabbitmq.conf"
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        plugins = folder / "enabled_plugins"
        plugins.write_text(f"[{','.join(enabled)}].\n", encoding="utf-8")
        ports = [port, tls_port] if tls else [port]
        environment = {"RABBITMQ_CONFIG_FILE": str(config), "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins)}
        # The data of a container belong to the host name, which must stay the same after a restart.
        runner: Runner = (
            _Node(program, folder) if program else Container(IMAGE, None, folder, ports, environment, hostname="rabbit")
        )
        return cls(runner, folder, port, tls_port, everybody, tls)

    def start_again(self) -> None:
        """Start on the same port with the same data, and wait until the broker listens."""
        try:
            self._runner.start()
            wait_until_sync(self._is_settled, READY_WITHIN)
        except TimedOut as error:
            raise BrokerSilent(f"RabbitMQ is not ready after {READY_WITHIN} s:\n{self.log()[-4000:]}") from error
        if not self._runner.is_running():
            raise BrokerFailed(f"RabbitMQ ended while it was starting:\n{self.log()[-4000:]}")

    def _is_settled(self) -> bool:
        # Another process may use the port, so also check that the broker runs.
        return not self._runner.is_running() or is_listening(self.host, self.tls_port or self.port)

    def stop(self) -> None:
        """Send SIGTERM and wait for the end: durable queues are then on disk."""
        self._runner.end(gently=True)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._runner.end(gently=False)

    def restart(self) -> None:
        """Stop with SIGTERM and start again on the same port."""
        self.stop()
        self.start_again()

    def control(self, *words: str) -> str:
        """Run `rabbitmqctl` and return its output. Takes a second."""
        return self._runner.run("rabbitmqctl", "--quiet", *words)

    def write_tables(self) -> None:
        """Write the declared queues to disk, so that they survive a kill.

        RabbitMQ 3.10 lost the newest queue, with all its confirmed messages, in 2 of 83 kills within a second of its
        declaration.
        """
        self.control("eval", "mnesia:sync_log().")

    def raise_alarm(self) -> None:
        """Raise the memory alarm: the broker accepts no messages until `clear_alarm`."""
        self.control("set_vm_memory_high_watermark", "absolute", "1")

    def clear_alarm(self) -> None:
        self.control("set_vm_memory_high_watermark", "0.4")

    def is_running(self) -> bool:
        return self._runner.is_running()

    def log(self) -> str:
        """The whole output of the broker since its first start."""
        return self._runner.log()

    def uri(
        self, user: str = USER, *, vhost: str = "/", tls: bool = False, host: str | None = None, port: int | None = None
    ) -> str:
        """Return the URI for a connection document or a client, with the password of `user`."""
        scheme, own_port = ("amqps", self.tls_port) if tls else ("amqp", self.port)
        login = f"{user}:{self._users.get(user, 'none')}"
        return f"{scheme}://{login}@{host or self.host}:{port or own_port}/{quote(vhost, safe='')}"

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


def _definitions(users: Mapping[str, str], vhosts: Sequence[str]) -> dict[str, Any]:
    """Return the definitions that the broker imports at its first start."""
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    nothing = {"configure": "", "write": "", "read": ""}
    return {
        "vhosts": [{"name": vhost} for vhost in vhosts],
        "users": [
            {"name": name, "password_hash": _password_hash(password), "tags": ""} for name, password in users.items()
        ],
        "permissions": [
            {"user": name, "vhost": vhost, **(everything if name == USER else nothing)}
            for name in users
            for vhost in vhosts
            if name == USER or vhost == "/"
        ],
    }


def _password_hash(password: str) -> str:
    """Return RabbitMQ's hash of a password: a salt of four bytes and SHA-256 of salt and password."""
    salt = secrets.token_bytes(4)
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def _tls_lines(folder: Path, tls: Certificates | None, listener: str) -> list[str]:
    """Return the settings of the TLS listener, and copy the files to the folder, which a container sees."""
    if tls is None:
        return []
    files = {"cacertfile": tls.ca, "certfile": tls.certificate, "keyfile": tls.key}
    lines = [f"listeners.ssl.1 = {listener}", "ssl_options.verify = verify_none"]
    for option, file in files.items():
        copied = Path(shutil.copy(file, folder / option))
        copied.chmod(0o644)
        lines.append(f"ssl_options.{option} = {copied}")
    return lines


class _Node(Process):
    """The installed program with its port mapper."""

    def __init__(self, program: str, folder: Path) -> None:
        log = folder / "rabbitmq.log"
        self._epmd_port = free_port()
        mapping = {"HOME": str(folder), "ERL_EPMD_ADDRESS": "127.0.0.1", "ERL_EPMD_PORT": str(self._epmd_port)}
        own = {
            "ERL_CRASH_DUMP": str(folder / "erl_crash.dump"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_NODENAME": f"t{secrets.token_hex(4)}@localhost",
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }
        super().__init__([program], log, {**mapping, **own})
        self._mapper = Process([shutil.which("epmd", path=SEARCHED) or "epmd"], log, mapping)

    def start(self) -> None:
        if not self._mapper.is_running():
            self._mapper.start()
            wait_until_sync(lambda: is_listening(self.host, self._epmd_port))
        super().start()

    def run(self, program: str, *words: str) -> str:
        return super().run(shutil.which(program, path=SEARCHED) or program, *words)

    def remove(self) -> None:
        self._mapper.end(gently=False)
