"""The output of the demo on the terminal: one short line for each message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from examples.broker_client import BrokerClient
from examples.monitoring import ConnectionReport

VALUE_WIDTH = 48
FRAMES_WIDTH = 90
FIRST, LAST = 5, 2
REPORTS = 3
"""The reports that are printed of a device."""

console = Console(highlight=False)


def print_message(client: BrokerClient, arrow: str, message: dict[str, Any]) -> None:
    """Print the client, its transport, the direction, and the message in short."""
    color = "cyan" if arrow == "->" else "green"
    action, _, _ = message["topic"].rpartition("/")[2].partition("?")
    path = message["path"] if message["path"] != "/" else ""
    parts = [action, path, str(message.get("status", "")), short_text(message.get("value"))]
    text = escape(" ".join(part for part in parts if part))
    console.print(f"[{color}]{client.name:>15} {client.transport:>6} {arrow}[/{color}] {text}", soft_wrap=True)


class FirstMessagesPrinter:
    """Prints only the first messages of a client: its creation, and some reports with their responses."""

    def __init__(self, limit: int = 2 + 2 * REPORTS) -> None:
        self._limit = limit
        self._number = count(1)

    def __call__(self, client: BrokerClient, arrow: str, message: dict[str, Any]) -> None:
        # Two threads print: one sends, one receives. `next` of a counter is atomic.
        if next(self._number) <= self._limit:
            print_message(client, arrow, message)


class ReplayPrinter:
    """Prints all messages, but of a run of `next` events only the first and the last ones."""

    def __init__(self) -> None:
        self._held: list[tuple[BrokerClient, str, dict[str, Any]]] = []
        self._run = 0

    def __call__(self, client: BrokerClient, arrow: str, message: dict[str, Any]) -> None:
        if message["topic"].endswith("/next"):
            self._run += 1
            if self._run > FIRST:
                self._held.append((client, arrow, message))
                return
        else:
            self._end_run()
        print_message(client, arrow, message)

    def _end_run(self) -> None:
        if (omitted := len(self._held) - LAST) > 0:
            console.print(f"{'':>26} ... and {omitted} more ...", style="dim")
        for held in self._held[-LAST:]:
            print_message(*held)
        self._held, self._run = [], 0


def frame_printer(name: str, transport: str) -> Callable[[str, int, str], None]:
    """A function that prints the direction, the size and the frames of a binary message."""

    def print_frames(arrow: str, size: int, description: str) -> None:
        color = "cyan" if arrow == "->" else "green"
        text = description if len(description) <= FRAMES_WIDTH else f"{description[: FRAMES_WIDTH - 3]}..."
        line = f"[{color}]{name:>15} {transport:>6} {arrow}[/{color}] {size} bytes: {escape(text)}"
        console.print(line, soft_wrap=True)

    return print_frames


def short_text(value: Any) -> str:
    """A value in one short line, without the id of a subscription and the policy of a thing."""
    if isinstance(value, dict):
        if isinstance(item := value.get("item"), dict):
            path = item["path"] if item["path"] != "/" else ""
            return f"revision {item['revision']} {path} {short_text(item.get('value'))}"
        if isinstance(items := value.get("items"), list):
            return ", ".join(f"{it['thingId'].partition(':')[2]} {short_text(it.get('attributes'))}" for it in items)
        if isinstance(error := value.get("error"), dict):
            return f"{error.get('status')} {error.get('error')}"
        value = {name: it for name, it in value.items() if name not in ("subscriptionId", "_policy")}
        text = ", ".join(f"{name} {it}" for name, it in value.items())
    else:
        text = "" if value is None else str(value)
    return text if len(text) <= VALUE_WIDTH else f"{text[: VALUE_WIDTH - 3]}..."


def print_heading(text: str) -> None:
    """Print a line across the terminal that begins with the whole text, also if the text is longer."""
    line = "─" * (console.width - len(text) - 1)
    console.print(f"\n{escape(text)} [rule.line]{line}[/]", soft_wrap=True)


def print_note(text: str) -> None:
    console.print(f"  {escape(text)}", soft_wrap=True)


def print_error(text: str) -> None:
    console.print(f"[red]{escape(text)}[/red]", soft_wrap=True)


def print_summary(rows: list[tuple[str, str]]) -> None:
    table = Table(title="Summary", show_header=False)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print()
    console.print(table)


def print_connections(reports: Sequence[ConnectionReport]) -> None:
    table = Table("connection", "status", "connected since")
    for title in ("consumed", "published", "failures"):
        table.add_column(title, justify="right")
    for it in reports:
        time = it.since.rpartition("T")[2]
        cells = (it.connection, it.status, time, it.consumed, it.published, it.failures)
        table.add_row(*(escape(str(cell)) for cell in cells))
    console.print(table)
