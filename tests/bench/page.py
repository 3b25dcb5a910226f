"""Writes docs/explanation/performance.md, with ten figures and two plots, from the figures of a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import NamedTuple

from tests.bench.report import HEAD, Figure, machine
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "explanation" / "performance.md"
RATES, WAITS = (PAGE.with_name(f"performance-{name}.svg") for name in ("rates", "waits"))

FIGURES: Mapping[str, Sequence[str]] = {
    "next": ["replay over MQTT"],
    "amqp-next": ["replay over AMQP"],
    "kafka-next": ["replay over Kafka"],
    "modify": ["modify over MQTT", "modify over MQTT at 1,000/s"],
    "amqp-drain": ["waiting modifies over AMQP"],
    "kafka-drain": ["waiting modifies over Kafka"],
    "first": ["first event after a request"],
    "fairness": ["new subscription during 100 replays"],
    "idle": ["100,000 idle subscriptions"],
}
"""The benchmarks of the page, and the names of their first figures there."""

_RATE = re.compile(r"([\d,]+)/s")
_WAITS = re.compile(r"p50 ([\d.]+) ms, p99 ([\d.]+) ms")
_SHOWN = re.compile(r"(?<=<!-- figures -->\n).*(?=<!-- end -->)", re.DOTALL)
_WIDTH, _LABELS, _ROW = 720, 250, 34
_STYLE = """
text { font: 13px sans-serif; fill: #333 } .one { fill: #00897b } .more { fill: #80cbc4 } line { stroke: #888 }
@media (prefers-color-scheme: dark) { text { fill: #ddd } }
"""


class Bar(NamedTuple):
    """A bar of a plot: dark up to `value`, and light up to `beyond`."""

    label: str
    value: float
    beyond: float
    text: str


def write(figures: Mapping[str, Sequence[Figure]]) -> bool:
    """Write the page and its plots; False if the run lacks some of the figures."""
    if not FIGURES.keys() <= figures.keys():
        return False
    shown = [
        replace(figure, name=label)
        for name, labels in FIGURES.items()
        for label, figure in zip(labels, figures[name], strict=False)
    ]
    table = f"{machine()}.\n\n{HEAD}\n" + "".join(f"{figure.row()}\n" for figure in shown)
    PAGE.write_text(_SHOWN.sub(lambda _: f"\n{table}\n", PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    RATES.write_text(plot(list(ratios(shown)), mark=1.0), encoding="utf-8")
    WAITS.write_text(plot(list(waits(shown))), encoding="utf-8")
    return True


def ratios(figures: Sequence[Figure]) -> Iterator[Bar]:
    """Yield the rate of the service divided by the rate of the bare client, if both exist."""
    for figure in figures:
        ours, bare = _RATE.match(figure.measured), _RATE.match(figure.bare)
        if ours and bare:
            ratio = _number(ours[1]) / _number(bare[1])
            yield Bar(figure.name, ratio, ratio, f"{ratio:.2f} ({ours[0]})")


def waits(figures: Sequence[Figure]) -> Iterator[Bar]:
    """Yield the median and the 99th percentile of the waiting times."""
    for figure in figures:
        if found := _WAITS.match(figure.measured):
            yield Bar(figure.name, float(found[1]), float(found[2]), figure.measured)


def plot(bars: Sequence[Bar], mark: float | None = None) -> str:
    """Return horizontal bars as SVG, with a line at `mark`."""
    room = _WIDTH - _LABELS - 170
    scale = room / max(*(bar.beyond for bar in bars), mark or 0.0)
    height = _ROW * len(bars) + 10
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"><style>{_STYLE}</style>']
    for number, bar in enumerate(bars):
        top = 8 + number * _ROW
        lines.append(f'<text x="{_LABELS - 8}" y="{top + 16}" text-anchor="end">{escape(bar.label)}</text>')
        for kind, value in (("more", bar.beyond), ("one", bar.value)):
            lines.append(
                f'<rect class="{kind}" x="{_LABELS}" y="{top}" width="{value * scale:.1f}" height="22" rx="3"/>'
            )
        lines.append(f'<text x="{_LABELS + bar.beyond * scale + 8:.1f}" y="{top + 16}">{escape(bar.text)}</text>')
    if mark is not None:
        x = _LABELS + mark * scale
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}" stroke-dasharray="4 3"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _number(text: str) -> float:
    return float(text.replace(",", ""))
