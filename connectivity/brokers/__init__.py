"""One file for each kind of broker; the folder is the registry, the connection type the file's name."""

from __future__ import annotations

import importlib
import pkgutil
from difflib import get_close_matches
from functools import cache
from typing import cast

from connectivity.brokers.base import BrokerType

__all__ = ["BrokerType", "broker_names", "load_broker"]


@cache
def broker_names() -> tuple[str, ...]:
    """The connection types that the service knows: `amqp-091`, `kafka`, …"""
    return tuple(
        sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__) if module.name != "base")
    )


def load_broker(name: str) -> BrokerType:
    """The broker for a connection type. Raises LookupError, which names the nearest known one."""
    if name not in (known := broker_names()):
        nearest = get_close_matches(name, known, 1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise LookupError(f"no connection type {name!r}: known are {', '.join(known)}{hint}")
    return cast(BrokerType, importlib.import_module(f"connectivity.brokers.{name.replace('-', '_')}").BROKER)
