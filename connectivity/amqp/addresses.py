"""Where AMQP messages go and come from: `exchange/routingKey`, and the virtual host in the path of a `uri`."""

from __future__ import annotations

from urllib.parse import unquote

MOST_BYTES = 255
"""The longest name or routing key, in bytes of UTF-8: AMQP writes its length in one byte."""


def split_address(address: str) -> tuple[str, str]:
    """`exchange/routingKey` → both. Raises ValueError that says what was expected."""
    exchange, *keys = address.rstrip("/").split("/")
    if len(keys) != 1:
        raise ValueError("the format exchange/routingKey, or /queue for a queue by its name")
    return exchange, keys[0]


def virtual_host(path: str) -> str:
    """The virtual host named by the path of a `uri`. Raises ValueError for more than one segment."""
    if "/" in path[1:]:
        raise ValueError("at most one path segment, the virtual host, with %2F for a slash in it")
    return unquote(path[1:]) or "/"
