"""The page of figures takes its table and plots from a run, and only from a whole one."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.bench import page
from tests.bench.report import Figure

RUN = {
    name: [Figure(name, "2,000/s", "1,000/s (a client)", "–", True) for _ in labels]
    for name, labels in page.FIGURES.items()
} | {"first": [Figure("first", "p50 0.6 ms, p99 1.5 ms", "–", "–", True)]}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page with old figures."""
    written = tmp_path / "performance.md"
    written.write_text("# Performance\n\n<!-- figures -->\n\nold\n\n<!-- end -->\n\nWhat it means\n")
    for name, file in (("PAGE", written), ("RATES", tmp_path / "rates.svg"), ("WAITS", tmp_path / "waits.svg")):
        monkeypatch.setattr(page, name, file)
    return written


def test_a_run_replaces_the_table_and_draws_both_plots(written: Path) -> None:
    assert page.write(RUN)
    text = written.read_text()
    assert "old" not in text
    assert text.count("| yes |") == sum(len(labels) for labels in page.FIGURES.values())
    assert text.endswith("<!-- end -->\n\nWhat it means\n")
    rates, waits = (ElementTree.parse(file).getroot() for file in (page.RATES, page.WAITS))
    assert [text.text for text in rates.iter("{http://www.w3.org/2000/svg}text")][:2] == [
        "replay over MQTT",
        "2.00 (2,000/s)",
    ]
    widths = [float(bar.attrib["width"]) for bar in waits.iter("{http://www.w3.org/2000/svg}rect")]
    assert widths == [widths[0], pytest.approx(widths[0] * 0.4)]


def test_a_run_of_some_benchmarks_leaves_the_page_alone(written: Path) -> None:
    assert not page.write({"next": RUN["next"]})
    assert "old" in written.read_text()


def test_the_page_has_the_places_that_a_run_fills() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- figures -->") == text.count("<!-- end -->") == 1
    assert all(f"| {label} |" in text for labels in page.FIGURES.values() for label in labels)
