"""The dashboard and the alerts use existing metrics and labels, in expressions that Prometheus parses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
import yaml

from tests.support.markdown import anchors
from tests.support.paths import ROOT
from tools.docs.metrics import described

DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "connectivity.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

SCRAPED = frozenset({"instance", "job"})
"""The labels that Prometheus itself adds to each series, and to its own series `up`."""

_PLACEHOLDER = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")
_WINDOW = "[$__rate_interval]"
"""Grafana's variable for a window that suits the graph."""


def series() -> dict[str, frozenset[str]]:
    """Return every time series that can be queried, with its labels."""
    found = {"up": SCRAPED}
    for metric in described():
        labels = frozenset(metric.labels) | SCRAPED
        if metric.type == "histogram":
            found[f"{metric.name}_bucket"] = labels | {"le"}
            found[f"{metric.name}_count"] = found[f"{metric.name}_sum"] = labels
        else:
            found[metric.name] = labels
    return found


SERIES = series()


def selectors(text: str) -> list[Any]:
    """The series that an expression selects. Raises ValueError for one that cannot be read."""
    found: list[Any] = []

    def visit(expression: Any) -> None:
        if isinstance(expression, promql_parser.VectorSelector):
            found.append(expression)

    promql_parser.walk(promql_parser.parse(text.replace(_WINDOW, "[5m]")), visit)
    return found


def kept_labels(text: str) -> frozenset[str]:
    """The labels that a result of an expression has: those that it groups by, or else those of its series."""
    grouped: list[frozenset[str]] = []

    def visit(expression: Any) -> None:
        if isinstance(expression, promql_parser.AggregateExpr):
            modifier = expression.modifier
            grouped.append(frozenset(modifier.labels if modifier is not None else ()))

    promql_parser.walk(promql_parser.parse(text.replace(_WINDOW, "[5m]")), visit)
    return frozenset.intersection(*(grouped or [SERIES[selector.name] for selector in selectors(text)]))


def expressions() -> Iterator[tuple[str, str]]:
    """Yield every expression with its location."""
    for alert in ALERTS:
        yield alert["alert"], alert["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]


def problems(where: str, text: str) -> Iterator[str]:
    """Yield the parts of an expression that match no metric. Raises ValueError for an invalid expression."""
    found = selectors(text)
    if not found:
        yield f"{where} selects nothing"
    for selector in found:
        if selector.name not in SERIES:
            yield f"{where} asks for {selector.name}"
            return
        asked = {matcher.name for matcher in selector.matchers.matchers}
        if not asked <= SERIES[selector.name]:
            yield f"{where} asks for {asked} of {selector.name}"
    if found and not kept_labels(text) <= frozenset.union(*(SERIES[selector.name] for selector in found)):
        yield f"{where} groups by labels that its metrics do not have"


def test_expressions_use_existing_metrics_and_labels() -> None:
    assert list(expressions())
    assert [problem for where, text in expressions() for problem in problems(where, text)] == []


def test_the_check_notices_an_unknown_metric_and_label() -> None:
    for text in ("connectivity_nothing", 'connectivity_store_up{connection="a"}'):
        assert list(problems("planted", text)), text
    with pytest.raises(ValueError, match=r"."):
        list(problems("planted", "sum("))


def outcomes(text: str) -> set[str]:
    """The outcomes that an expression names."""
    return {
        value
        for selector in selectors(text)
        for matcher in selector.matchers.matchers
        if matcher.name == "outcome"
        for value in matcher.value.split("|")
    }


def test_expressions_use_existing_outcomes() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    named = [(where, outcome) for where, text in expressions() for outcome in outcomes(text)]
    assert named
    assert [(where, outcome) for where, outcome in named if f"`{outcome}`" not in page] == []


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {selector.name for panel in PANELS for target in panel["targets"] for selector in selectors(target["expr"])}
    for metric in described():
        assert any(name.startswith(metric.name) for name in shown), metric.name


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_describes_the_problem_and_links_to_its_runbook_section(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning")
    texts = alert["annotations"]
    assert {"summary", "description", "runbook"} == set(texts)
    assert texts["summary"].endswith(".")
    page, _, anchor = texts["runbook"].partition("#")
    assert anchor in anchors(ROOT / page), f"{page} has no heading for {anchor}"
    text = (ROOT / page).read_text(encoding="utf-8")
    assert f"`{alert['alert']}`, {alert['labels']['severity']}." in text
    labels = {name for words in texts.values() for name in _PLACEHOLDER.findall(words)} - {"value"}
    assert labels <= kept_labels(alert["expr"]), "the labels of the result"


def test_every_heading_of_the_page_is_an_alert_of_the_rules() -> None:
    headings = re.findall(
        r"^## (.+)$", (ROOT / "docs" / "reference" / "alerts.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(headings) == len(ALERTS) == len({alert["alert"] for alert in ALERTS})


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: f"{panel['id']}")
def test_a_panel_has_its_place_and_shows_labels_that_its_result_has(panel: dict[str, Any]) -> None:
    place = panel["gridPos"]
    assert place["x"] + place["w"] <= 24
    assert panel["datasource"]["uid"] == "${datasource}"
    for target in panel["targets"]:
        shown = set(_PLACEHOLDER.findall(target["legendFormat"]))
        assert shown <= kept_labels(target["expr"]), panel["title"]


def test_no_two_panels_have_the_same_place_or_number() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    covered = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(covered)) == len(covered)


def test_the_choice_of_connections_comes_from_a_metric_that_has_them() -> None:
    (variable,) = [it for it in DASHBOARD["templating"]["list"] if it["name"] == "connection"]
    name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
    assert label in SERIES[name]
