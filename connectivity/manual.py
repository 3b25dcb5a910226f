"""What people are told about a kind of broker: the facts that its page in the documentation is printed from.

They stand in the broker's file, beside the code that they are about, with figures taken from its constants. Texts are
Markdown. How a page looks is decided in `connectivity.spec.broker_pages`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


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
    """The page `docs/<family>.md`, or this type's part of it. What is empty is left out.

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

    @property
    def page(self) -> str:
        """The name of the page's file."""
        return f"{self.family.lower()}.md"
