"""The brokers of the examples as programs of this machine: what they are called, how one is run at a port, what brings it.

Each runs on the loopback interface alone, keeps what it has in a folder that is thrown away, and lets everybody in.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
HOST = "127.0.0.1"
KAFKA_JARS = HERE.parent / ".run" / "kafka"

# Brokers are packaged as system services, so their folder is often not on a user's PATH. RabbitMQ's packaged command
# changes the user; what it calls does not.
SEARCHED = os.pathsep.join(
    [
        "/usr/lib/rabbitmq/bin",
        os.environ.get("PATH", os.defpath),
        "/usr/sbin",
        "/usr/local/sbin",
        "/opt/homebrew/sbin",
    ]
)


@dataclass(frozen=True, slots=True)
class Command:
    """What is run, and the variables that it needs."""

    words: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Program:
    """A kind of broker. `name` is what people call it, `service` what compose.yaml does.

    `carries` are the connection types that lead to it, `find` returns where it is or None, `command` how it is run from
    there with its files in a folder, and `brought_by` what to do where it is missing.
    """

    name: str
    service: str
    port_variable: str
    usual_port: int
    carries: frozenset[str]
    find: Callable[[], str | None]
    command: Callable[[str, Path, int], Command]
    brought_by: str


def free_port(wanted: int = 0) -> int:
    """The wanted port, or another one where somebody already listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError:
            probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _mosquitto(program: str, folder: Path, port: int) -> Command:
    configuration = folder / "mosquitto.conf"
    lines = (HERE / "mosquitto.conf").read_text(encoding="utf-8")
    there = lines.replace("listener 1883\n", f"listener {port} {HOST}\n")
    # As root it would become another user, who may not be allowed to read what it needs.
    configuration.write_text(f"user {getpass.getuser()}\n{there}", encoding="utf-8")
    return Command([program, "-c", str(configuration)])


EMBEDDED_CONFIGURATION = """\
listeners:
  default:
    type: tcp
    bind: {host}:{port}
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin:
    allow_anonymous: true
"""


def _embedded(program: str, folder: Path, port: int) -> Command:
    configuration = folder / "amqtt.yaml"
    configuration.write_text(EMBEDDED_CONFIGURATION.format(host=HOST, port=port), encoding="utf-8")
    return Command([program, "-c", str(configuration)])


# RabbitMQ finds its like through a port mapper, which it would leave behind as a daemon; so ours gets one of its own, which
# ends with it.
RABBITMQ_SCRIPT = """\
"$1" & mapper=$!
while kill -0 $mapper && ! "$1" -names >/dev/null 2>&1; do sleep 0.1; done
exec "$2"
"""


def _rabbitmq(program: str, folder: Path, port: int) -> Command:
    (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = {HOST}:{port}\n", encoding="utf-8")
    (folder / "enabled_plugins").write_text("[].\n", encoding="utf-8")
    mapper = shutil.which("epmd", path=SEARCHED) or "epmd"
    environment = {
        "HOME": str(folder),
        "ERL_CRASH_DUMP": str(folder / "erl_crash.dump"),
        "ERL_EPMD_ADDRESS": HOST,
        "ERL_EPMD_PORT": str(free_port()),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_NODENAME": f"examples-{secrets.token_hex(4)}@localhost",
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }
    return Command(["sh", "-c", RABBITMQ_SCRIPT, "sh", mapper, program], environment)


# Started quickly and small, since it never runs for long.
JAVA_OPTIONS = (
    "-Xms128m",
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
KAFKA_SCRIPT = """\
run="$1" properties="$2"
shift 2
"$run" "$@" kafka.tools.StorageTool format --cluster-id ZGVtby1vZi1rYWZrYS0xMQ --config "$properties" || exit
exec "$run" "$@" kafka.Kafka "$properties"
"""
KAFKA_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
controlled.shutdown.enable=false
"""


def _find_kafka() -> str | None:
    """Java, where the broker's jars are there too."""
    return shutil.which("java", path=SEARCHED) if list(KAFKA_JARS.glob("kafka_*.jar")) else None


def _kafka(java: str, folder: Path, port: int) -> Command:
    properties = folder / "server.properties"
    settings = KAFKA_PROPERTIES.format(host=HOST, port=port, controller=free_port(), folder=folder)
    properties.write_text(settings, encoding="utf-8")
    classes = ("-cp", f"{KAFKA_JARS}/*")
    return Command(["sh", "-c", KAFKA_SCRIPT, "sh", java, str(properties), *JAVA_OPTIONS, *classes])


MOSQUITTO = Program(
    name="Mosquitto",
    service="mosquitto",
    port_variable="MQTT_PORT",
    usual_port=1883,
    carries=frozenset({"mqtt", "mqtt-5"}),
    find=lambda: shutil.which("mosquitto", path=SEARCHED),
    command=_mosquitto,
    brought_by="sudo apt-get install mosquitto",
)
EMBEDDED = Program(
    name="the embedded broker (MQTT 3.1.1 only)",
    service="mosquitto",
    port_variable="MQTT_PORT",
    usual_port=1883,
    carries=frozenset({"mqtt"}),
    find=lambda: str(Path(sys.executable).with_name("amqtt")),
    command=_embedded,
    brought_by="make install",
)
RABBITMQ = Program(
    name="RabbitMQ",
    service="rabbitmq",
    port_variable="AMQP_PORT",
    usual_port=5672,
    carries=frozenset({"amqp-091"}),
    find=lambda: shutil.which("rabbitmq-server", path=SEARCHED),
    command=_rabbitmq,
    brought_by="sudo apt-get install rabbitmq-server",
)
KAFKA = Program(
    name="Kafka",
    service="kafka",
    port_variable="KAFKA_PORT",
    usual_port=9092,
    carries=frozenset({"kafka"}),
    find=_find_kafka,
    command=_kafka,
    brought_by="sudo apt-get install default-jre-headless ivy && tools/kafka",
)
WANTED = (RABBITMQ, KAFKA, MOSQUITTO)
"""Those that take longest to start come first."""
