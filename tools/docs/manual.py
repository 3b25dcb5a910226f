"""The parts of a page about a connection type. `manuals` has one for each type; `transports` prints them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class AddressForm(NamedTuple):
    """A form of addresses: whose it is (`source`, `target`), how it looks, where it leads to, an example."""

    of: str
    form: str
    meaning: str
    example: str


class HeaderRule(NamedTuple):
    """A header of envelopes, or words for several: where it comes from in a delivery, what it does in a message to send."""

    name: str
    received: str
    sent: str


class Limit(NamedTuple):
    """Something that is bounded, and by how much."""

    of: str
    bound: str


class Outcomes(NamedTuple):
    """What the broker is told for each outcome of a delivery."""

    settled: str
    again: str
    dropped: str


class Fault(NamedTuple):
    """What may go wrong at the broker, and what is seen of it."""

    what: str
    seen: str


class Note(NamedTuple):
    """A section of its own."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Manual:
    """The page `docs/reference/<family>.md`, or this type's part of it. What is empty is left out.

    `example` is a file of the repository that shows a connection of this type as it is used.
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
        """The name of the page's file."""
        return f"{self.family.lower()}.md"


def manuals() -> dict[str, Manual]:
    """What the documentation says about each connection type, by the type's name."""
    package = importlib.import_module("tools.docs.manuals")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return {name.replace("_", "-"): importlib.import_module(f"tools.docs.manuals.{name}").MANUAL for name in names}
