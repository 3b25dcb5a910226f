"""A feature without its extra reports the missing extra first."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from connectivity.config.extras import Extra, extra_of, missing_extras
from connectivity.config.settings import Settings, SparkMode
from tests.support.paths import ROOT


@pytest.fixture
def _core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide all extras of the package."""

    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)


def test_each_extra_of_the_package_is_known() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in Extra:
        assert f"\n{extra.value} = [" in text


@pytest.mark.usefixtures("_core")
def test_without_spark_the_default_is_a_service_without_a_lake(tmp_path: Path) -> None:
    settings = Settings.model_validate({"data_dir": tmp_path, "spark": {}})
    assert settings.spark.mode is SparkMode.OFF
    assert list(missing_extras(settings)) == []


@pytest.mark.usefixtures("_core")
def test_a_lake_in_the_data_folder_is_not_ignored_by_default(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (found,) = missing_extras(Settings.model_validate({"data_dir": tmp_path, "spark": {}}))
    assert found.startswith(f"data_dir: found a lake in {tmp_path / 'lake'}, expected the extra 'spark';")
    assert list(missing_extras(Settings.model_validate({"data_dir": tmp_path, "spark": {"mode": "off"}}))) == []


@pytest.mark.usefixtures("_core")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"spark": {"mode": "embedded"}}, "spark.mode: found embedded, expected off, or the extra 'spark';"),
        ({"spark": {"mode": "external"}}, "spark.mode: found external, expected off, or the extra 'lake';"),
        (
            {"tracing": {"endpoint": "http://127.0.0.1:4318"}},
            "tracing.endpoint: found http://127.0.0.1:4318, expected none, or the extra 'tracing';",
        ),
    ],
)
def test_settings_name_the_extra_that_they_need(
    settings: dict[str, dict[str, str]], expected: str, tmp_path: Path
) -> None:
    (found,) = missing_extras(Settings.model_validate({"data_dir": tmp_path, "spark": {}, **settings}))
    assert found.startswith(expected)


def test_a_module_names_its_extra() -> None:
    assert extra_of("pyarrow.compute") is Extra.LAKE
    assert extra_of("paho.mqtt") is None
