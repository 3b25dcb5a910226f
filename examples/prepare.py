"""What the example connections find at their brokers: their documents pointed there, their queues and topics made.

The service declares nothing at a broker: queues and topics belong to those who run it. For the examples, that is us. So
`python -m examples.prepare FOLDER` makes the queues and topics that the connections of a folder consume from, topics that
their answers go to, and queues that their targets publish to. One that is there stays as it is.
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
from examples.brokers import Found
from examples.programs import HERE, HOST

ANSWERS_WITHIN = 60.0


class NotPrepared(RuntimeError):
    """A queue or topic could not be made, or a connection document cannot be used; the message says which and why."""


def connections_at(found: Found, folder: Path, *, with_doors: bool = False) -> Path:
    """A folder with the example connections, pointed at the brokers found. Those that nobody carries are left out.

    `with_doors`: also those that need no broker, at the ports that they name.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in sorted((HERE / "connections").iterdir()):
        text = file.read_text(encoding="utf-8")
        # JSON is YAML too.
        connection_type = yaml.safe_load(text)["connectionType"]
        broker = found.carrying(connection_type)
        if broker is not None:
            there = text.replace(f"{HOST}:{broker.usual_port}", f"{broker.host}:{broker.port}")
            (folder / file.name).write_text(there, encoding="utf-8")
        elif with_doors and load_connection_type(connection_type).is_listener:
            shutil.copy(file, folder)
    return folder


def prepare(folder: Path) -> list[str]:
    """Make what the connections of the folder need, and return what that is. Raises NotPrepared."""
    loaded = load([folder])
    if loaded.problems:
        raise NotPrepared("\n".join(map(str, loaded.problems)))
    made: list[str] = []
    for connection in loaded.connections.values():
        if connection.connection_type == "amqp-091":
            names = sorted(queues(connection))
            asyncio.run(_declare(connection, names))
            made += [f"queue {name}" for name in names]
        elif connection.connection_type == "kafka":
            names = sorted(topics(connection))
            _create(connection, names)
            made += [f"topic {name}" for name in names]
    return made


def queues(connection: Connection) -> set[str]:
    """The queues that a connection consumes, and those that its targets publish to without an exchange."""
    published = {target.address for target in connection.targets if target.address.startswith("/")}
    told = {address.removeprefix("/") for address in published if "{" not in address}
    return {address for source in connection.sources for address in source.addresses} | told


def topics(connection: Connection) -> set[str]:
    """The topics that a connection consumes, and those that it answers to wherever the answer goes to."""
    answers = {source.reply_target.address.partition("/")[0] for source in connection.sources}
    consumed = {address for source in connection.sources for address in source.addresses}
    return consumed | {topic for topic in answers if "{" not in topic}


async def _declare(connection: Connection, names: Iterable[str]) -> None:
    uri = connection.broker_uri
    login = (
        f"{quote(uri.username or '', safe='')}:{quote(uri.password.get_secret_value(), safe='')}@"
        if uri.password
        else ""
    )
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            client = await aiormq.connect(f"{uri.scheme}://{login}{uri.host}:{uri.port}{uri.path or '/'}")
            try:
                channel = await client.channel()
                for name in names:
                    await channel.queue_declare(name, durable=True)
            finally:
                await client.close()
    except (aiormq.AMQPError, OSError) as error:
        raise NotPrepared(
            f"the queues of {connection.id} could not be made: {error or type(error).__name__}"
        ) from error


def _create(connection: Connection, names: Iterable[str]) -> None:
    uri = connection.broker_uri
    admin = AdminClient({"bootstrap.servers": f"{uri.host}:{uri.port}", "log_level": 0})
    futures = admin.create_topics([NewTopic(name, 1, 1) for name in names], request_timeout=ANSWERS_WITHIN)
    for name, future in futures.items():
        try:
            future.result(ANSWERS_WITHIN)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise NotPrepared(f"the topic {name} could not be made: {error.args[0].str()}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.prepare", description="Create missing queues and topics.")
    parser.add_argument("folder", type=Path, help="folder with connection files")
    folder = parser.parse_args(arguments).folder
    try:
        if not folder.is_dir():
            raise NotPrepared(f"{folder}: expected a folder with connection files")
        made = prepare(folder)
    except NotPrepared as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(made) or "nothing to create: no connection to AMQP or Kafka")
    return 0


if __name__ == "__main__":
    sys.exit(main())
