"""A private Kafka of one node on free ports, which tests can stop, kill and start again.

    with Kafka.start(users={"ada": "secret"}) as broker:
        broker.create("orders", partitions=2)
        connect(broker.bootstrap)
        broker.kill()
        broker.start_again()

Clients of Kafka connect to the address that the broker advertises. `port` advertises itself; `proxied_port` advertises
`proxy_port`, for a proxy of the test. Without Docker, the broker runs from the jars of `tools/kafka`.

`python -m tests.support.brokers.kafka` creates a Java class data archive of the broker, as part of `make install`: with
it, a start takes two thirds of the time.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from tests.support.brokers import BrokerFailed, BrokerMissing, BrokerSilent, docker_answers, free_port, is_listening
from tests.support.brokers.mosquitto import Certificates
from tests.support.brokers.runners import Container, Process, Runner, started
from tests.support.paths import ROOT
from tests.support.wait import TimedOut, wait_until_sync

IMAGE = "apache/kafka:4.1.1"
JARS = ROOT / ".run" / "kafka"
CLASSES = JARS.parent / "kafka-classes.jsa"
CLUSTER = "dGVzdHMtb2Yta2Fma2EtMQ"
READY_WITHIN = 60.0
ANSWERS_WITHIN = 60.0
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

# Options for a quick start and little memory, because the broker never runs for long.
JAVA = [
    "java",
    "-Xms128m",
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
]

PREPARED = [f"-XX:SharedArchiveFile={CLASSES}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
"""Use the class data archive; ignore silently a missing one, or one of another Java."""


class Kafka:
    """A private broker.

    Ports: `port` is plain, `proxied_port` is plain behind `proxy_port`, `login_port` is for users; with certificates,
    `tls_port` is for TLS, `tls_login_port` for users, and `tls_own_port` for clients with a certificate. All listeners
    always exist. Clients without a login have all permissions; users too, except those that `deny` revokes.
    """

    def __init__(
        self,
        folder: Path,
        users: Mapping[str, str],
        tls: Certificates | None,
        proxies: int = 1,
        java_options: Sequence[str] = PREPARED,
    ) -> None:
        self._folder, self._users, self._tls, self._java_options = folder, users, tls, java_options
        self.port, self.login_port = free_port(), free_port()
        self._proxies = [(free_port(), free_port()) for _ in range(proxies)]
        self.use_proxy(0)
        self.tls_port, self.tls_login_port, self.tls_own_port = (free_port() if tls else 0 for _ in range(3))
        self._controller_port = free_port()
        self._properties = folder / "server.properties"
        self._runner = self._made_runner()
        self.host = self._runner.host
        self._admin: AdminClient | None = None

    def __repr__(self) -> str:
        return f"<Kafka at {self.host}:{self.port}, data in {self._folder}>"

    def __getstate__(self) -> dict[str, object]:
        """Leave out the administration client: a copy creates its own."""
        return {**self.__dict__, "_admin": None}

    def use_proxy(self, number: int) -> None:
        """Select the listener of `proxied_port` and `proxy_port`, because each worker has its own."""
        self.proxied_port, self.proxy_port = self._proxies[number]

    @classmethod
    def start(
        cls, *, users: Mapping[str, str] | None = None, tls: Certificates | None = None, proxies: int = 1
    ) -> Kafka:
        """Start a broker and wait until it is ready. `users` (name → password) can log in.

        They can use each of `MECHANISMS`. `proxies` is the number of listeners for proxies. Raises BrokerMissing
        without Docker and without the jars, and BrokerFailed if it does not start.
        """
        return started(lambda: cls(Path(tempfile.mkdtemp(prefix="kafka-")), users or {}, tls, proxies), "in use")

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers for clients without a login."""
        return f"{self.host}:{self.port}"

    @property
    def certificates(self) -> Certificates:
        assert self._tls is not None, "this broker has no TLS"
        return self._tls

    def _made_runner(self) -> Runner:
        format_line = f"format --cluster-id {CLUSTER} --config {self._properties}"
        for name, password in self._users.items():
            for mechanism in MECHANISMS[1:]:
                format_line += f" --add-scram {mechanism}=[name={name},password={password}]"
        if docker_answers():
            tools = "/opt/kafka/bin"
            script = self._folder / "run.sh"
            script.write_text(
                f"{tools}/kafka-storage.sh {format_line} --ignore-formatted\n"
                f"exec {tools}/kafka-server-start.sh {self._properties}\n",
                encoding="utf-8",
            )
            ports = [self.port, self.login_port, *(port for port, _ in self._proxies)]
            ports += [self.tls_port, self.tls_login_port, self.tls_own_port]
            runner: Runner = Container(IMAGE, f"bash {script}", self._folder, [port for port in ports if port])
            self._write_properties(runner.host, "")
            return runner
        if not list(JARS.glob("kafka_*.jar")) or (java := shutil.which(JAVA[0])) is None:
            raise BrokerMissing("Kafka", str(JARS))
        run = [java, *JAVA[1:], *self._java_options, "-cp", f"{JARS}/*"]
        script = self._folder / "run.sh"
        data, formatted = self._folder / "data", self._formatted_folder()
        # Formatting starts a Java process, so the formatted storage of the same users is kept and copied.
        script.write_text(
            f"if [ ! -d {data} ]; then\n"
            f"  if [ ! -d {formatted} ]; then\n"
            f"    {_line(run)} kafka.tools.StorageTool {format_line}\n"
            f"    mkdir -p {formatted.parent}\n"
            f"    cp -r {data} {formatted}.$$\n"
            f"    mv -T {formatted}.$$ {formatted} || rm -rf {formatted}.$$\n"
            f"  else\n"
            f"    cp -r {formatted} {data}\n"
            f"  fi\n"
            f"fi\n"
            f"exec {_line(run)} kafka.Kafka {self._properties}\n",
            encoding="utf-8",
        )
        runner = Process(["sh", "-e", str(script)], self._folder / "kafka.log")
        self._write_properties(runner.host, "127.0.0.1")
        return runner

    def _formatted_folder(self) -> Path:
        """Return the folder of formatted storage with these users and passwords."""
        users = hashlib.sha256(repr(sorted(self._users.items())).encode()).hexdigest()[:16]
        return JARS.parent / "kafka-formatted" / users

    def _write_properties(self, host: str, bind: str) -> None:
        # name → bound port, advertised port, protocol
        listeners = {
            "PLAIN": (self.port, self.port, "PLAINTEXT"),
            "LOGIN": (self.login_port, self.login_port, "SASL_PLAINTEXT"),
            **{
                f"PROXIED{number}": (port, proxy_port, "PLAINTEXT")
                for number, (port, proxy_port) in enumerate(self._proxies)
            },
        }
        if self._tls is not None:
            listeners["TLS"] = (self.tls_port, self.tls_port, "SSL")
            listeners["TLSLOGIN"] = (self.tls_login_port, self.tls_login_port, "SASL_SSL")
            listeners["TLSOWN"] = (self.tls_own_port, self.tls_own_port, "SSL")
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(
                [
                    f"CONTROLLER://127.0.0.1:{self._controller_port}",
                    *(f"{name}://{bind}:{port}" for name, (port, _, _) in listeners.items()),
                ]
            ),
            "advertised.listeners": ",".join(
                f"{name}://{host}:{advertised}" for name, (_, advertised, _) in listeners.items()
            ),
            "listener.security.protocol.map": ",".join(
                ["CONTROLLER:PLAINTEXT", *(f"{name}:{protocol}" for name, (_, _, protocol) in listeners.items())]
            ),
            "inter.broker.listener.name": "PLAIN",
            "log.dirs": str(self._folder / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
            # A broker that was down rejoins immediately, and stops without a controlled shutdown.
            "broker.heartbeat.interval.ms": "200",
            "broker.session.timeout.ms": "1000",
            "controlled.shutdown.enable": "false",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "true",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            **self._login_settings(),
            **self._tls_settings(),
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        self._properties.write_text(text, encoding="utf-8")

    def _login_settings(self) -> dict[str, str]:
        package = "org.apache.kafka.common.security"
        users = "".join(f' user_{name}="{password}"' for name, password in self._users.items())
        modules = {
            "plain": f"{package}.plain.PlainLoginModule required{users};",
            "scram-sha-256": f"{package}.scram.ScramLoginModule required;",
            "scram-sha-512": f"{package}.scram.ScramLoginModule required;",
        }
        return {
            f"listener.name.{listener}.{mechanism}.sasl.jaas.config": module
            for listener in ("login", "tlslogin")
            for mechanism, module in modules.items()
        }

    def _tls_settings(self) -> dict[str, str]:
        """Return the TLS settings, and copy the files to the broker's folder, which a container sees.

        Kafka requires the key in PKCS #8 at the beginning of the file.
        """
        if self._tls is None:
            return {}
        key = load_pem_private_key(self._tls.key.read_bytes(), None)
        pair = self._folder / "broker.pem"
        pair.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + self._tls.certificate.read_bytes()
        )
        authority = shutil.copy(self._tls.ca, self._folder / "ca.pem")
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(pair),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority),
            "ssl.client.auth": "requested",
            "listener.name.tlsown.ssl.client.auth": "required",
        }

    def start_again(self) -> None:
        """Start on the same ports with the same data, and wait until the broker responds."""
        self._runner.start()
        end = time.monotonic() + READY_WITHIN

        def is_settled() -> bool:
            return not self._runner.is_running() or is_listening(self.host, self.port)

        try:
            wait_until_sync(is_settled, READY_WITHIN)
        except TimedOut as error:
            raise BrokerSilent(f"Kafka is not ready after {READY_WITHIN} s:\n{self.log()}") from error
        if not self._runner.is_running():
            raise BrokerFailed(f"Kafka ended while it was starting:\n{self.log()}")
        while True:
            try:
                self.admin.list_topics(timeout=max(1.0, end - time.monotonic()))
                return
            except KafkaException as error:
                if time.monotonic() > end:
                    raise BrokerSilent(
                        f"Kafka does not answer after {READY_WITHIN} s: {error}\n{self.log()}"
                    ) from error

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self._admin

    def create(self, *topics: str, partitions: int = 1, **settings: str) -> None:
        """Create topics and wait until each partition has a leader, e.g. `max_message_bytes="1000"`."""
        config = {name.replace("_", "."): value for name, value in settings.items()}
        wanted = [NewTopic(topic, partitions, 1, config=config) for topic in topics]
        for future in self.admin.create_topics(wanted).values():
            future.result(ANSWERS_WITHIN)
        # The controller responds before the broker knows the topics, and the broker leads their partitions even later.
        self._wait_topics(lambda known: all(known.get(topic) == partitions for topic in topics))
        places = [TopicPartition(topic, number) for topic in topics for number in range(partitions)]
        wait_until_sync(lambda: self._leads(places), ANSWERS_WITHIN)

    def _leads(self, places: Sequence[TopicPartition]) -> bool:
        answers = self.admin.list_offsets({place: OffsetSpec.latest() for place in places})  # type: ignore[no-untyped-call]
        return all(answer.exception(ANSWERS_WITHIN) is None for answer in answers.values())

    def delete(self, *topics: str) -> None:
        for future in self.admin.delete_topics(list(topics)).values():
            future.result(ANSWERS_WITHIN)
        self._wait_topics(lambda known: not known.keys() & set(topics))

    def deny(self, user: str, kind: ResourceType, name: str, what: AclOperation) -> None:
        """Revoke a permission of a user: the operation `what` on the topic or group of this name."""
        rule = AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", what, AclPermissionType.DENY)
        # Without a rule that allows, a rule that denies would revoke the permissions of all users.
        others = AclBinding(
            kind, name, ResourcePatternType.LITERAL, "User:*", "*", AclOperation.ALL, AclPermissionType.ALLOW
        )
        for future in self.admin.create_acls([rule, others]).values():
            future.result(ANSWERS_WITHIN)

    def _wait_topics(self, condition: Callable[[dict[str, int]], bool]) -> None:
        def is_so() -> bool:
            topics = self.admin.list_topics(timeout=ANSWERS_WITHIN).topics
            return bool(condition({name: len(topic.partitions) for name, topic in topics.items()}))

        wait_until_sync(is_so, ANSWERS_WITHIN)

    def stop(self) -> None:
        """Send SIGTERM and wait for the end."""
        self._runner.end(gently=True)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._runner.end(gently=False)

    def is_running(self) -> bool:
        return self._runner.is_running()

    def log(self) -> str:
        """The whole output of the broker since its first start."""
        return self._runner.log()

    def uri(self, user: str | None = None, password: str | None = None, *, tls: bool = False) -> str:
        """Return the URI for a connection document; with `user`, one with a login."""
        login = f"{user}:{password or self._users[user]}@" if user else ""
        scheme = "ssl" if tls else "tcp"
        port = (self.tls_login_port if user else self.tls_port) if tls else (self.login_port if user else self.port)
        return f"{scheme}://{login}{self.host}:{port}"

    def close(self) -> None:
        """Stop the broker and remove its data. Can be called twice."""
        self._admin = None
        self._runner.end(gently=False)
        self._runner.remove()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _line(command: list[str]) -> str:
    return " ".join(f"'{part}'" for part in command)


def prepare_classes() -> None:
    """Run a broker that writes its class data archive when it stops. Does nothing with Docker."""
    if docker_answers() or CLASSES.exists():
        return
    written = CLASSES.with_suffix(".part")
    options = [f"-XX:ArchiveClassesAtExit={written}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    with tempfile.TemporaryDirectory() as certificates:
        tls = Certificates.make(Path(certificates))
        broker = Kafka(Path(tempfile.mkdtemp(prefix="kafka-")), {"ada": "secret"}, tls, java_options=options)
        try:
            broker.start_again()
            broker.create("classes")
            broker.stop()
        finally:
            broker.close()
    # Java crashes on an incomplete archive, so the file gets its name when it is complete.
    written.rename(CLASSES)


if __name__ == "__main__":
    prepare_classes()
