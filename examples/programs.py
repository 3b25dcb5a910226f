"""The programs of the brokers: name, command line and install command of each.

Each listens only on the loopback interface, stores its data in a temporary folder, and accepts clients without a password.
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

FOLDER = Path(__file__).parent
HOST = "127.0.0.1"
KAFKA_JARS = FOLDER.parent / ".run" / "kafka"

# Packages install brokers as system services, often outside a user's PATH. The first folder has RabbitMQ's own commands:
# those in /usr/sbin change the user.
SEARCH_PATH = os.pathsep.join(
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
    """A command line, and the environment variables that it needs."""

    words: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Program:
    """A kind of broker. `name` is for people; `service` and `port_variable` are its names in compose.yaml.

    `connection_types` are the types of connections to it. `find` returns the path of the installed program, or None.
    `command` takes this path, a folder for the broker's files and a port.
    """

    name: str
    service: str
    port_variable: str
    usual_port: int
    connection_types: frozenset[str]
    find: Callable[[], str | None]
    command: Callable[[str, Path, int], Command]
    install_command: str


def free_port(wanted: int = 0) -> int:
    """The wanted port, or a free one if it is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError:
            probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _mosquitto(program: str, folder: Path, port: int) -> Command:
    configuration = folder / "mosquitto.conf"
    lines = (FOLDER / "mosquitto.conf").read_text(encoding="utf-8")
    text = lines.replace("listener 1883\n", f"listener {port} {HOST}\n")
    # Mosquitto that starts as root changes to another user, who may lack permission to read this folder.
    configuration.write_text(f"user {getpass.getuser()}\n{text}", encoding="utf-8")
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


# RabbitMQ would start a port mapper as a daemon that outlives it. This script starts one in the process group instead.
RABBITMQ_SCRIPT = """\
"$1" & mapper=$!
while kill -0 $mapper && ! "$1" -names >/dev/null 2>&1; do sleep 0.1; done
exec "$2"
"""


def _rabbitmq(program: str, folder: Path, port: int) -> Command:
    (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = {HOST}:{port}\n", encoding="utf-8")
    (folder / "enabled_plugins").write_text("[].\n", encoding="utf-8")
    mapper = shutil.which("epmd", path=SEARCH_PATH) or "epmd"
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


# For a quick start and little memory, because the broker does not run long.
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
    """The path of Java, if the jars of Kafka are present."""
    return shutil.which("java", path=SEARCH_PATH) if list(KAFKA_JARS.glob("kafka_*.jar")) else None


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
    connection_types=frozenset({"mqtt", "mqtt-5"}),
    find=lambda: shutil.which("mosquitto", path=SEARCH_PATH),
    command=_mosquitto,
    install_command="sudo apt-get install mosquitto",
)
EMBEDDED = Program(
    name="the embedded broker (MQTT 3.1.1 only)",
    service="mosquitto",
    port_variable="MQTT_PORT",
    usual_port=1883,
    connection_types=frozenset({"mqtt"}),
    find=lambda: str(Path(sys.executable).with_name("amqtt")),
    command=_embedded,
    install_command="make install",
)
RABBITMQ = Program(
    name="RabbitMQ",
    service="rabbitmq",
    port_variable="AMQP_PORT",
    usual_port=5672,
    connection_types=frozenset({"amqp-091"}),
    find=lambda: shutil.which("rabbitmq-server", path=SEARCH_PATH),
    command=_rabbitmq,
    install_command="sudo apt-get install rabbitmq-server",
)
KAFKA = Program(
    name="Kafka",
    service="kafka",
    port_variable="KAFKA_PORT",
    usual_port=9092,
    connection_types=frozenset({"kafka"}),
    find=_find_kafka,
    command=_kafka,
    install_command="sudo apt-get install default-jre-headless ivy && tools/kafka",
)
PROGRAMS = (RABBITMQ, KAFKA, MOSQUITTO)
"""The brokers of the examples; the slowest to start comes first."""
