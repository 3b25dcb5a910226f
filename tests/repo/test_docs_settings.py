"""The page of settings lists all settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from connectivity.config.section import Section
from connectivity.config.settings import Settings
from connectivity.config.settings_loader import load_settings
from tools.docs.settings import settings_page


def rows() -> dict[str, str]:
    """Setting → its default, as the page shows them."""
    return dict(re.findall(r"^\| `([a-z_.]+)` \| `?([^`|]+?)`? \|", settings_page(), re.MULTILINE))


def test_the_page_has_every_setting() -> None:
    fields = Settings.model_fields
    expected = [name for name, field in fields.items() if not isinstance(field.default, Section)]
    for name, field in fields.items():
        if isinstance(field.default, Section):
            expected += [f"{name}.{inner}" for inner in type(field.default).model_fields]
    assert sorted(rows()) == sorted(expected)
    assert {"limits.payload", "journal.historical_headers", "lake.retention", "spark.mode"} <= set(rows())


def test_the_description_of_a_group_is_text_and_not_a_code_block() -> None:
    """Markdown takes an indented line for code."""
    assert "\n\nWithout any key the service creates one" in settings_page()
    assert not re.findall(r"^ +", settings_page(), re.MULTILINE)


def test_the_defaults_of_the_page_are_the_defaults(tmp_path: Path) -> None:
    """Written into a file unchanged, they change nothing."""
    content: dict[str, Any] = {}
    for name, default in rows().items():
        group, _, inner = name.rpartition(".")
        if default != "–":
            (content.setdefault(group, {}) if group else content)[inner] = default
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    assert load_settings(file) == load_settings()
    assert content["reconnect"] == {"min": "500ms", "max": "30s"}
    assert content["limits"] == {"payload": "1MiB", "low_space": "64MiB"}
