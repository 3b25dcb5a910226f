"""Parts of a connection document that this version does not support, and what it does not protect.

If ignoring a part would be unsafe, the connection is not opened, and its status gives the reason. Parts without effect are
logged when the connection is opened. Validation reports both before, and what an author should know about security.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from connectivity.connections.model import Connection, Target
from connectivity.connections.target_topics import TOPICS, TargetTopic, parse_target_topic
from connectivity.connections.templates import ADDRESS_HEADER
from connectivity.mapping.script_check import missing_protection
from connectivity.transports import load_connection_type
from mappings.ids import is_namespace
from mappings.mappers import load_codec
from mappings.placeholders.template import Expression, Scope, parse


def refusal(connection: Connection) -> str | None:
    """Return why this version cannot open a connection; None if it can."""
    if connection.ssh_tunnel is not None and connection.ssh_tunnel.enabled:
        # Going around the tunnel would be worse than not going at all.
        return "this version of the service does not support sshTunnel"
    return None


def ignored_parts(connection: Connection) -> Iterator[str]:
    """Return the parts of the document that have no effect."""
    if connection.processor_pool_size > 1:
        yield "processorPoolSize: a connection maps its payloads one after the other"
    for index, target in enumerate(connection.targets):
        yield from (f"targets[{index}].{what}" for what in _left_out(target))


def _left_out(target: Target) -> Iterator[str]:
    """Yield the unsupported parts of a target, each once."""
    yield from dict.fromkeys(what for text in target.topics for what in _left_out_of(parse_target_topic(text)))


def _left_out_of(topic: TargetTopic) -> Iterator[str]:
    for name in topic.ignored:
        near = get_close_matches(name, TOPICS[topic.topic], 1)
        yield f"topics: the parameter {name} is unknown and ignored" + (f"; did you mean {near[0]}?" if near else "")
    for name in topic.repeated:
        yield f"topics: the parameter {name} is repeated, and only the first one applies"
    for name in topic.namespaces:
        if not is_namespace(name):
            # Other services accept such documents, so it is no problem; ignoring it silently would hide it.
            yield f"topics: the namespace {name} matches nothing, as a namespace is a whole name such as acme.plant"


def notes(connection: Connection) -> Iterator[str]:
    """Return the parts without effect and the security notes as validation reports them."""
    if (reason := refusal(connection)) is not None:
        yield f"{connection.id} will not be opened: {reason}"
    yield from (f"{connection.id}: without effect: {shortfall}" for shortfall in ignored_parts(connection))
    yield from (f"{connection.id}: {warning}" for warning in _open_reply_targets(connection))
    if any(
        load_codec(it.mapping_engine).configure(it.options).scripts for it in connection.mapping_definitions.values()
    ):
        for missing in missing_protection():
            yield f"{connection.id}: script processes are not fully isolated on this machine: {missing}"


def _open_reply_targets(connection: Connection) -> Iterator[str]:
    """Yield the reply-targets whose whole address a sender chooses, with nothing that limits it."""
    connection_type = load_connection_type(connection.connection_type)
    if connection_type.is_listener:
        # Its addresses are those of connected peers.
        return
    for index, source in enumerate(connection.sources):
        reply = source.reply_target
        if not reply.enabled or reply.address_pattern is not None:
            continue
        # Where addresses have keys, the header is not an address.
        override = reply.header_mapping.get(ADDRESS_HEADER, "") if connection_type.key_mark is None else ""
        addresses = [reply.address, override]
        if any(map(_begins_with_header, addresses)):
            yield (
                f"sources[{index}].replyTarget.address: senders choose where responses are published, anywhere that the "
                "service may publish; set addressPattern, or begin the address with a fixed text"
            )


def _begins_with_header(address: str) -> bool:
    """Whether a sender chooses the address from its beginning.

    AMQP reaches every queue by a slash and its name.
    """
    first = next(iter(parse(address.removeprefix("/"), Scope.SOURCE).parts), "")
    return isinstance(first, Expression) and first.text.startswith("header:")


def caveats(connection: Connection) -> Iterator[str]:
    """Return restrictions to show in the status of an open connection."""
    if connection.broker_uri.is_secure and not connection.validate_certificates:
        yield "the broker's certificate is not checked"
