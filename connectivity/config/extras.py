"""The optional parts of an installation: which are there, and the command that installs a missing one."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connectivity.config.settings import Settings


class Extra(str, Enum):
    """An extra of the package."""

    LAKE = "lake"
    SPARK = "spark"
    JAVASCRIPT = "javascript"
    TRACING = "tracing"

    @property
    def is_installed(self) -> bool:
        try:
            metadata.distribution(_DISTRIBUTIONS[self])
        except metadata.PackageNotFoundError:
            return False
        return True

    @property
    def expected(self) -> str:
        """The text that an error expects instead of a missing extra."""
        return f"the extra '{self.value}'; install it with: pip install 'broker-connectivity[{self.value}]'"


_DISTRIBUTIONS = {
    Extra.LAKE: "deltalake",
    Extra.SPARK: "pyspark",
    Extra.JAVASCRIPT: "quickjs-ng",
    Extra.TRACING: "opentelemetry-sdk",
}
"""A distribution that only this extra installs."""


_MODULES = {
    "_quickjs": Extra.JAVASCRIPT,
    "deltalake": Extra.LAKE,
    "opentelemetry": Extra.TRACING,
    "pyarrow": Extra.LAKE,
    "py4j": Extra.SPARK,
    "pyspark": Extra.SPARK,
}


def extra_of(module: str) -> Extra | None:
    """Return the extra that brings a module; None for any other module."""
    return _MODULES.get(module.partition(".")[0])


def missing_extras(settings: Settings) -> Iterator[str]:
    """Yield a text for each setting that needs an extra which is not installed."""
    from connectivity.config.settings import SparkMode

    spark, lake = settings.spark, Path(settings.data_dir) / "lake"
    needed = {SparkMode.EMBEDDED: Extra.SPARK, SparkMode.EXTERNAL: Extra.LAKE}.get(spark.mode)
    if needed is not None and not needed.is_installed:
        yield f"spark.mode: found {spark.mode.value}, expected off, or {needed.expected}"
    elif "mode" not in spark.model_fields_set and spark.mode is SparkMode.OFF and lake.exists():
        yield f"data_dir: found a lake in {lake}, expected {Extra.SPARK.expected}; or set spark.mode"
    if settings.tracing.endpoint is not None and not Extra.TRACING.is_installed:
        yield f"tracing.endpoint: found {settings.tracing.endpoint}, expected none, or {Extra.TRACING.expected}"
