"""The parts of the page of a connection type.

The package `manuals` has one module for each type; `transports` generates the pages.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class AddressForm(NamedTuple):
    """A form of addresses: where it is used (`source`, `target`), its syntax, its meaning, and an example."""

    of: str
    form: str
    meaning: str
    example: str


class HeaderRule(NamedTuple):
    """A header, its source in a delivery, and its effect in a message to send."""

    name: str
    received: str
    sent: str


class Limit(NamedTuple):
    """A limited quantity, and its limit."""

    of: str
    bound: str


class Outcomes(NamedTuple):
    """The effect of each outcome of a delivery at the broker."""

    settled: str
    again: str
    dropped: str


class Fault(NamedTuple):
    """A fault at the broker, and its effect."""

    what: str
    seen: str


class Note(NamedTuple):
    """A further section."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Manual:
    """This type's part of the page `docs/reference/<family>.md`, without empty sections.

    `example` is the path of a complete example connection in the repository.
    """

    family: str
    title: str
    introduction: str
    example: str
    outcomes: Outcomes
    addresses: tuple[AddressForm, ...] = ()
    address_rules: str = ""
    headers: tuple[HeaderRule, ...] = ()
    header_rules: str = ""
    settling_rules: str = ""
    limits: tuple[Limit, ...] = ()
    faults: tuple[Fault, ...] = ()
    notes: tuple[Note, ...] = ()
    example_uri: str = "ssl://fleet:${env:BROKER_PASSWORD}@broker.acme.example:8883"
    """The address in the examples of the page."""
    example_source: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the source in the short example."""
    example_full: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the long example."""

    @property
    def page(self) -> str:
        """The file name of the page."""
        return f"{self.family.lower()}.md"


def manuals() -> dict[str, Manual]:
    """The manual of each connection type, by the name of the type."""
    package = importlib.import_module("tools.docs.manuals")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return {name.replace("_", "-"): importlib.import_module(f"tools.docs.manuals.{name}").MANUAL for name in names}
