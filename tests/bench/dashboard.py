"""Draws four panels of the Grafana dashboard from `/metrics` of a service under load.

    python -m tests.bench.dashboard

Devices modify things for most of a minute, and in the middle twenty clients replay. The panels have the titles of those
in `deploy/grafana/connectivity.json`, with rates over five seconds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.bench.harness import MESSAGE_BYTES, SUBJECT, fill, run, serving, thing
from tests.bench.modify import THINGS
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import client, connection, source
from tests.support.paths import ROOT
from tests.support.service_process import ServiceCommand

PICTURE = ROOT / "docs" / "pictures" / "dashboard.svg"
SECONDS, RATE, WINDOW = 50, 400, 5
REPLAYS, PAST = 20, 4_000
_COLORS = ("#00897b", "#f9a825", "#c62828", "#5e35b1", "#1565c0")
_WIDTH, _HEIGHT, _GAP = 380, 190, 20

Labels = tuple[tuple[str, str], ...]
Scrape = Mapping[tuple[str, Labels], float]
"""The samples of one scrape, by name and labels."""


class Panel(NamedTuple):
    """A panel: its title, its unit, and its lines by name, one value for each second."""

    title: str
    unit: str
    lines: Mapping[str, Sequence[float]]


def scrape(service: ServiceCommand) -> Scrape:
    families = text_string_to_metric_families(service.get("/metrics")[1].decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def panels(scrapes: Sequence[Scrape]) -> list[Panel]:
    """Return the panels of scrapes at intervals of a second."""
    arrived = "connectivity_deliveries_total"
    subscriptions = {"open": [_sum(each, "connectivity_subscriptions") for each in scrapes]}
    return [
        Panel("Received, by outcome", "/s", _rates(scrapes, arrived, "outcome", direction="in")),
        Panel("Elements sent", "/s", _rates(scrapes, "connectivity_events_sent_total", "connection")),
        Panel("Open subscriptions", "", subscriptions),
        Panel("Commit latency", " ms", {"p50": _quantile(scrapes, 0.5), "p99": _quantile(scrapes, 0.99)}),
    ]


def drawn(shown: Sequence[Panel]) -> str:
    """Return the panels as SVG, two in a row."""
    height = (_HEIGHT + _GAP) * ((len(shown) + 1) // 2)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * _WIDTH + _GAP} {height}">',
        "<style>text { font: 12px sans-serif; fill: #ccc } .title { font-weight: bold; fill: #fff }</style>",
    ]
    for number, panel in enumerate(shown):
        x, y = number % 2 * (_WIDTH + _GAP), number // 2 * (_HEIGHT + _GAP)
        lines += [f'<g transform="translate({x} {y})">', *_panel(panel), "</g>"]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(panel: Panel) -> Iterator[str]:
    left, top, right, bottom = 12, 34, _WIDTH - 12, _HEIGHT - 26
    highest = max((value for line in panel.lines.values() for value in line), default=0.0) or 1.0
    yield f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="#1f2329"/>'
    yield f'<text class="title" x="{left}" y="20">{escape(panel.title)}</text>'
    yield f'<text x="{right}" y="20" text-anchor="end">up to {highest:,.4g}{panel.unit}</text>'
    for number, (name, values) in enumerate(panel.lines.items()):
        color = _COLORS[number % len(_COLORS)]
        step = (right - left) / max(1, len(values) - 1)
        points = " ".join(
            f"{left + n * step:.1f},{bottom - (bottom - top) * value / highest:.1f}" for n, value in enumerate(values)
        )
        yield f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>'
        yield f'<text x="{left + number * 90}" y="{_HEIGHT - 8}" style="fill: {color}">{escape(name)}</text>'


def _sum(found: Scrape, name: str, **labels: str) -> float:
    return sum(value for (each, its), value in found.items() if each == name and labels.items() <= dict(its).items())


def _grown(scrapes: Sequence[Scrape], count: Callable[[Scrape], float]) -> Iterator[float]:
    """Yield the growth of a counter per second, over the last `WINDOW` seconds."""
    counts = [count(each) for each in scrapes]
    for now in range(1, len(counts)):
        since = max(0, now - WINDOW)
        yield (counts[now] - counts[since]) / (now - since)


def _rates(scrapes: Sequence[Scrape], name: str, by: str, **labels: str) -> dict[str, list[float]]:
    found = {dict(its).get(by, "") for each in scrapes for (sample, its) in each if sample == name}
    rates = {
        value: list(_grown(scrapes, lambda each, value=value: _sum(each, name, **labels, **{by: value})))  # type: ignore[misc]
        for value in sorted(found)
    }
    return {value: rate for value, rate in rates.items() if any(rate)}


def _quantile(scrapes: Sequence[Scrape], part: float) -> list[float]:
    """Return the quantile of the commit duration over `WINDOW` seconds, in milliseconds."""
    name = "connectivity_journal_commit_seconds_bucket"
    bounds = sorted({float(dict(its)["le"]) for (sample, its) in scrapes[-1] if sample == name})
    found = []
    for now in range(1, len(scrapes)):
        before, after = scrapes[max(0, now - WINDOW)], scrapes[now]
        counts = [_bucket(after, name, bound) - _bucket(before, name, bound) for bound in bounds]
        reached = [bound for bound, count in zip(bounds, counts, strict=True) if count >= part * counts[-1]]
        found.append(1000 * reached[0] if counts[-1] else 0.0)
    return found


def _bucket(found: Scrape, name: str, bound: float) -> float:
    return sum(value for (each, its), value in found.items() if each == name and float(dict(its)["le"]) == bound)


def _replay(broker: Mosquitto) -> None:
    with client(broker, "reader") as mqtt_client:
        for number in range(REPLAYS):
            topic = f"acme.bench/{thing(number).name}/things/twin/streaming"
            opened = mqtt_client.ask_for(f"{topic}/subscribeForPersistedEvents")
            mqtt_client.command(f"{topic}/request", value={**opened["value"], "demand": PAST}, wait=False)
            time.sleep(0.3)


def measured(folder: Path, seconds: int = SECONDS) -> list[Scrape]:
    """Return a scrape for each second."""
    fill(folder / "data" / "journal.db", THINGS, PAST)
    with (
        Mosquitto.start(persistence=False) as broker,
        serving(
            folder, connection(broker, *(source(name, SUBJECT) for name in ("bench", "reader", "loud")))
        ) as service,
        ThreadPoolExecutor() as load,
        MqttClient(broker.host, broker.port, ask="loud/ask", answers="bench/unused") as loud,
    ):
        scrapes = [scrape(service)]
        started = time.monotonic()
        working: list[Future[Any]] = []
        for second in range(1, seconds + 1):
            if second == 5:
                count = RATE * (seconds - 15)
                working.append(load.submit(run, "modify", broker.host, broker.port, count, MESSAGE_BYTES, RATE))
            if second == seconds // 3:
                working.append(load.submit(_replay, broker))
            if seconds // 2 < second < seconds // 2 + 6:
                for _ in range(40):
                    loud.send({"topic": "no topic", "path": "/"}, wait=False)
            time.sleep(max(0.0, started + second - time.monotonic()))
            scrapes.append(scrape(service))
        for each in working:
            each.result()
    return scrapes


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        PICTURE.write_text(drawn(panels(measured(Path(folder)))), encoding="utf-8")


if __name__ == "__main__":
    main()
