"""The tests that the threat model names exist."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT

_NAMED = re.compile(r"`(test_\w+)`")
_DEFINED = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)

NAMED = sorted(set(_NAMED.findall((ROOT / "docs" / "explanation" / "threat-model.md").read_text(encoding="utf-8"))))
DEFINED = {name for file in (ROOT / "tests").rglob("test_*.py") for name in _DEFINED.findall(file.read_text("utf-8"))}


@pytest.mark.parametrize("name", NAMED)
def test_a_test_that_the_threat_model_names_exists(name: str) -> None:
    assert name in DEFINED
