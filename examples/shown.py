"""How the demo looks on a terminal: one short line for each message. Colours where it is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from examples.monitoring import Looked
from examples.party import Party

MOST_OF_A_VALUE = 48
MOST_OF_OCTETS = 90
FIRST, LAST = 5, 2
SHOWN_REPORTS = 3

console = Console(highlight=False)


def show(party: Party, arrow: str, message: dict[str, Any]) -> None:
    """Who, over what, which way, what."""
    colour = "cyan" if arrow == "->" else "green"
    action, _, _ = message["topic"].rpartition("/")[2].partition("?")
    path = message["path"] if message["path"] != "/" else ""
    words = [action, path, str(message.get("status", "")), brief(message.get("value"))]
    said = escape(" ".join(word for word in words if word))
    console.print(f"[{colour}]{party.name:>15} {party.transport:>6} {arrow}[/{colour}] {said}", soft_wrap=True)


class Sparingly:
    """Shows the first messages of a party, and leaves out the rest: nobody reads sixty reports."""

    def __init__(self, most: int = 2 + 2 * SHOWN_REPORTS) -> None:
        self._most = most
        self._number = count(1)

    def __call__(self, party: Party, arrow: str, message: dict[str, Any]) -> None:
        # Reports and answers are shown from two threads: the number is taken in one step.
        if next(self._number) <= self._most:
            show(party, arrow, message)


class WithoutTheMiddle:
    """Shows all but the middle of a long run of items."""

    def __init__(self) -> None:
        self._held: list[tuple[Party, str, dict[str, Any]]] = []
        self._run = 0

    def __call__(self, party: Party, arrow: str, message: dict[str, Any]) -> None:
        if message["topic"].endswith("/next"):
            self._run += 1
            if self._run > FIRST:
                self._held.append((party, arrow, message))
                return
        else:
            self._catch_up()
        show(party, arrow, message)

    def _catch_up(self) -> None:
        if (left_out := len(self._held) - LAST) > 0:
            console.print(f"{'':>26} ... and {left_out} more ...", style="dim")
        for held in self._held[-LAST:]:
            show(*held)
        self._held, self._run = [], 0


def raw(name: str, transport: str) -> Callable[[str, int, str], None]:
    """What shows messages of octets: who, over what, which way, how many there are, and what they say."""

    def show(arrow: str, length: int, said: str) -> None:
        colour = "cyan" if arrow == "->" else "green"
        words = said if len(said) <= MOST_OF_OCTETS else f"{said[: MOST_OF_OCTETS - 3]}..."
        text = f"[{colour}]{name:>15} {transport:>6} {arrow}[/{colour}] {length} octets: {escape(words)}"
        console.print(text, soft_wrap=True)

    return show


def brief(value: Any) -> str:
    """A value in few words: of an event only what tells it from others, of a subscription not its name."""
    if isinstance(value, dict):
        if isinstance(item := value.get("item"), dict):
            path = item["path"] if item["path"] != "/" else ""
            return f"revision {item['revision']} {path} {brief(item.get('value'))}"
        if isinstance(items := value.get("items"), list):
            return ", ".join(f"{it['thingId'].partition(':')[2]} {brief(it.get('attributes'))}" for it in items)
        if isinstance(error := value.get("error"), dict):
            return f"{error.get('status')} {error.get('error')}"
        value = {name: it for name, it in value.items() if name not in ("subscriptionId", "_policy")}
        text = ", ".join(f"{name} {it}" for name, it in value.items())
    else:
        text = "" if value is None else str(value)
    return text if len(text) <= MOST_OF_A_VALUE else f"{text[: MOST_OF_A_VALUE - 3]}..."


def heading(text: str) -> None:
    console.print()
    console.rule(escape(text), align="left")


def tell(text: str) -> None:
    console.print(f"  {escape(text)}", soft_wrap=True)


def complain(text: str) -> None:
    console.print(f"[red]{escape(text)}[/red]", soft_wrap=True)


def summary(rows: list[tuple[str, str]]) -> None:
    table = Table(title="What happened", show_header=False)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print()
    console.print(table)


def connections(looked: Sequence[Looked]) -> None:
    table = Table("connection", "is", "since")
    for title in ("taken", "sent", "failures"):
        table.add_column(title, justify="right")
    for it in looked:
        # Of the time nobody needs the day.
        cells = (it.connection, it.status, it.since.rpartition("T")[2], it.taken, it.sent, it.failures)
        table.add_row(*(escape(str(cell)) for cell in cells))
    console.print(table)
