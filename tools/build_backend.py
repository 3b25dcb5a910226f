"""The build backend of pyproject.toml: setuptools, with its intermediate files in a temporary folder.

In the folder `build/lib`, setuptools keeps the modules of earlier builds. It packs all of them into each new wheel, even
modules that no longer exist.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

EXTRA_CONFIG = "DIST_EXTRA_CONFIG"
"""The environment variable with one more configuration file of setuptools."""

Config = dict[str, Any] | None


@contextmanager
def temporary_folders() -> Iterator[None]:
    """Let setuptools keep intermediate files in a folder that is deleted afterwards."""
    before = os.environ.pop(EXTRA_CONFIG, None)
    with TemporaryDirectory() as folder:
        config = Path(folder, "build.cfg")
        config.write_text(f"[build]\nbuild_base = {folder}/build\n[egg_info]\negg_base = {folder}\n", encoding="utf-8")
        os.environ[EXTRA_CONFIG] = str(config)
        try:
            yield
        finally:
            del os.environ[EXTRA_CONFIG]
            if before is not None:
                os.environ[EXTRA_CONFIG] = before


def get_requires_for_build_wheel(config_settings: Config = None) -> list[str]:
    """Return what must be installed to build the wheel."""
    with temporary_folders():
        return list(build_meta.get_requires_for_build_wheel(config_settings))


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Config = None) -> str:
    """Write the metadata of the wheel, and return the name of their folder."""
    with temporary_folders():
        return str(build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings))


def build_wheel(wheel_directory: str, config_settings: Config = None, metadata_directory: str | None = None) -> str:
    """Build the wheel from the files of the source tree alone, and return its file name."""
    with temporary_folders():
        return str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))
