"""Creates the missing queues and topics of connections: `python -m examples.prepare FOLDER`.

The service never creates queues and topics at a broker. This command creates those that the connections in a folder consume
from, the topics of their responses, and the queues of their targets. It does not change existing ones.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

import aiormq
import yaml
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from connectivity.connections.model import Connection
from connectivity.management.files import load
from connectivity.transports import load_connection_type
from examples.brokers import AvailableBrokers
from examples.programs import FOLDER, HOST

TIMEOUT = 60.0


class PreparationFailed(RuntimeError):
    """A queue or topic could not be created, or a connection document is invalid."""


def write_connections(available: AvailableBrokers, folder: Path, *, with_listeners: bool = False) -> Path:
    """Write the example connections of the running brokers into `folder`, and return the folder.

    Their URIs have the ports of these brokers. `with_listeners`: also the connections that are listeners.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in sorted((FOLDER / "connections").iterdir()):
        text = file.read_text(encoding="utf-8")
        # JSON is YAML too.
        connection_type = yaml.safe_load(text)["connectionType"]
        broker = available.of_type(connection_type)
        if broker is not None:
            text = text.replace(f"{HOST}:{broker.usual_port}", f"{broker.host}:{broker.port}")
            (folder / file.name).write_text(text, encoding="utf-8")
        elif with_listeners and load_connection_type(connection_type).is_listener:
            shutil.copy(file, folder)
    return folder


def prepare(folder: Path) -> list[str]:
    """Create what the connections in the folder need, and return the names. Raises PreparationFailed."""
    loaded = load([folder])
    if loaded.problems:
        raise PreparationFailed("\n".join(map(str, loaded.problems)))
    created: list[str] = []
    for connection in loaded.connections.values():
        if connection.connection_type == "amqp-091":
            names = sorted(queues(connection))
            asyncio.run(_declare(connection, names))
            created += [f"queue {name}" for name in names]
        elif connection.connection_type == "kafka":
            names = sorted(topics(connection))
            _create(connection, names)
            created += [f"topic {name}" for name in names]
    return created


def queues(connection: Connection) -> set[str]:
    """The queues that a connection consumes, and those that its targets publish to without an exchange."""
    addresses = {target.address for target in connection.targets if target.address.startswith("/")}
    published = {address.removeprefix("/") for address in addresses if "{" not in address}
    return {address for source in connection.sources for address in source.addresses} | published


def topics(connection: Connection) -> set[str]:
    """The topics that a connection consumes, and its response topics without placeholders."""
    responses = {source.reply_target.address.partition("/")[0] for source in connection.sources}
    consumed = {address for source in connection.sources for address in source.addresses}
    return consumed | {topic for topic in responses if "{" not in topic}


async def _declare(connection: Connection, names: Iterable[str]) -> None:
    uri = connection.broker_uri
    login = (
        f"{quote(uri.username or '', safe='')}:{quote(uri.password.get_secret_value(), safe='')}@"
        if uri.password
        else ""
    )
    try:
        async with asyncio.timeout(TIMEOUT):
            client = await aiormq.connect(f"{uri.scheme}://{login}{uri.host}:{uri.port}{uri.path or '/'}")
            try:
                channel = await client.channel()
                for name in names:
                    await channel.queue_declare(name, durable=True)
            finally:
                await client.close()
    except (aiormq.AMQPError, OSError) as error:
        raise PreparationFailed(
            f"the queues of {connection.id} could not be created: {error or type(error).__name__}"
        ) from error


def _create(connection: Connection, names: Iterable[str]) -> None:
    uri = connection.broker_uri
    admin = AdminClient({"bootstrap.servers": f"{uri.host}:{uri.port}", "log_level": 0})
    futures = admin.create_topics([NewTopic(name, 1, 1) for name in names], request_timeout=TIMEOUT)
    for name, future in futures.items():
        try:
            future.result(TIMEOUT)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise PreparationFailed(f"the topic {name} could not be created: {error.args[0].str()}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.prepare", description="Create missing queues and topics.")
    parser.add_argument("folder", type=Path, help="folder with connection files")
    folder = parser.parse_args(arguments).folder
    try:
        if not folder.is_dir():
            raise PreparationFailed(f"{folder}: expected a folder with connection files")
        created = prepare(folder)
    except PreparationFailed as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(created) or "nothing to create: no connection to AMQP or Kafka")
    return 0


if __name__ == "__main__":
    sys.exit(main())
