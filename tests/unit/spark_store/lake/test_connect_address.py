"""The address for Spark queries: it exists while a pipeline runs, and only its owner can read it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from spark_store.errors import StoreUnavailable
from spark_store.lake.connect_address import local_address, publish_address, read_address


def test_an_address_exists_while_the_pipeline_runs_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    file, address = tmp_path / "connect.json", local_address(15002, "s3cret")
    assert address == "sc://localhost:15002/;token=s3cret"
    # Files of a killed pipeline are replaced.
    file.with_suffix(".part").write_text("half")
    file.write_text("old")
    with publish_address(file, address):
        assert read_address(file) == address
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert [it.name for it in tmp_path.iterdir()] == ["connect.json"]
    assert list(tmp_path.iterdir()) == []


def test_the_address_of_a_later_one_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "connect.json"
    with publish_address(file, "sc://localhost:1"), publish_address(file, "sc://localhost:2"):
        file.write_bytes(b'"sc://localhost:3"')
    assert read_address(file) == "sc://localhost:3"


def test_a_missing_or_corrupt_address_file_raises_an_error_with_the_next_step(tmp_path: Path) -> None:
    file = tmp_path / "connect.json"
    with pytest.raises(StoreUnavailable, match="start the service"):
        read_address(file)
    file.write_bytes(b'{"token": "s3cret"')
    with pytest.raises(StoreUnavailable, match="expected an address, found 18 bytes") as refused:
        read_address(file)
    assert "s3cret" not in str(refused.value)
    with (
        pytest.raises(StoreUnavailable, match="cannot be written"),
        publish_address(tmp_path / "gone" / "it", ""),
    ):
        raise AssertionError("published")
