"""Where the keys of secrets come from."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from connectivity.config.settings import Settings
from connectivity.config.settings_loader import load_settings
from connectivity.errors import SettingsError
from connectivity.maintenance.keyring import KEY_FILE_NAME, add_key, keys_of, open_vault, read_key_file
from connectivity.security.keys import key_id, key_text

ONE, TWO, THREE, FOUR = (bytes([number]) * 32 for number in range(1, 5))
SECRET = {"id": "c", "uri": "tcp://u:geheim@h:1"}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("CONNECTIVITY_"):
            monkeypatch.delenv(name)


def settings(folder: Path, text: str = "") -> Settings:
    file = folder / "settings.yaml"
    file.write_text(f"data_dir: {folder / 'data'}\n{text}", encoding="utf-8")
    (folder / "data").mkdir(exist_ok=True)
    return load_settings(file)


def key_file(path: Path, *keys: bytes, mode: int = 0o600) -> Path:
    path.write_text("\n".join(key_text(key) for key in keys), encoding="ascii")
    path.chmod(mode)
    return path


def test_keys_come_from_the_settings_and_the_newest_is_the_first(tmp_path: Path) -> None:
    file = key_file(tmp_path / "keys", TWO, ONE)
    found = settings(
        tmp_path,
        f"secrets: {{key: '{key_text(FOUR)}', key_file: {file}, old_keys: ['{key_text(THREE)}', '{key_text(FOUR)}']}}",
    )
    assert keys_of(found) == [FOUR, TWO, ONE, THREE]
    assert open_vault(found).key_ids == tuple(map(key_id, keys_of(found)))


def test_keys_come_from_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTIVITY_SECRETS__KEY", key_text(ONE))
    monkeypatch.setenv("CONNECTIVITY_SECRETS__OLD_KEYS", f"{key_text(TWO)},{key_text(THREE)}")
    assert keys_of(settings(tmp_path)) == [ONE, TWO, THREE]


def test_without_a_key_the_service_creates_one_for_the_first_secret_and_logs_it(tmp_path: Path) -> None:
    found = settings(tmp_path)
    vault = open_vault(found)
    own = found.data_dir / KEY_FILE_NAME
    with capture_logs() as entries:
        vault.seal({"id": "c", "uri": "tcp://u:${env:P}@h:1"})
        assert not own.exists()
        sealed = vault.seal(SECRET)
        vault.seal(SECRET)
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert [(it["event"], it["key"]) for it in entries] == [("secrets key created", vault.key_ids[0])]
    assert own.read_text().strip() not in str(entries)
    assert open_vault(found).unseal(sealed) == SECRET


def test_a_named_key_seals_before_the_own_one_which_still_opens(tmp_path: Path) -> None:
    sealed = open_vault(settings(tmp_path)).seal(SECRET)
    named = open_vault(settings(tmp_path, f"secrets: {{key: '{key_text(ONE)}'}}"))
    assert named.unseal(sealed) == SECRET
    assert key_id(ONE) in named.seal(SECRET)["uri"]


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o620, 0o602, 0o777])
def test_a_key_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    file = key_file(tmp_path / "keys", ONE, mode=mode)
    expected = "expected one that only its owner can write, and only its owner and group can read"
    problem = rf"secrets\.key_file .*keys: found a file with mode {mode:04o}, {expected} \(chmod 600 "
    with pytest.raises(SettingsError, match=problem):
        keys_of(settings(tmp_path, f"secrets: {{key_file: {file}}}"))


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640])
def test_a_key_file_may_be_read_by_its_group_as_clusters_mount_it(tmp_path: Path, mode: int) -> None:
    assert read_key_file(key_file(tmp_path / "keys", ONE, mode=mode), "x") == [ONE]


@pytest.mark.parametrize("content", [b"", b"\n", b"geheim", key_text(ONE)[:-8].encode(), "é".encode(), b"\xff" * 40])
def test_a_file_without_keys_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(SettingsError, match="expected 32 bytes in base64 on each line") as raised:
        keys_of(settings(tmp_path, f"secrets: {{key_file: {file}}}"))
    assert not content.strip() or content.decode("latin-1").strip() not in str(raised.value)


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"secrets\.key_file .*nope.*No such file"):
        open_vault(settings(tmp_path, f"secrets: {{key_file: {tmp_path / 'nope'}}}"))


def test_a_key_is_put_at_the_head_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    add_key(file, ONE)
    add_key(file, TWO)
    assert read_key_file(file, "x") == [TWO, ONE]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys"]


def test_a_file_with_another_key_keeps_its_owner_its_group_and_its_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a service that reads it as its group could not start any more."""
    file = tmp_path / "keys"
    add_key(file, ONE)
    file.chmod(0o640)
    owners: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda _, user, group: owners.append((user, group)))
    add_key(file, TWO)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert owners == [(file.stat().st_uid, file.stat().st_gid)]


def test_keys_are_not_shown_to_another_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not in the group of the file cannot give it back to the group."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    file = tmp_path / "keys"
    add_key(file, ONE)
    file.chmod(0o640)
    monkeypatch.setattr(os, "fchown", refuse)
    add_key(file, TWO)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_link_to_a_file_of_keys_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    add_key(tmp_path / "real" / "keys", ONE)
    (tmp_path / "keys").symlink_to(tmp_path / "real" / "keys")
    add_key(tmp_path / "keys", TWO)
    assert (tmp_path / "keys").is_symlink()
    assert read_key_file(tmp_path / "real" / "keys", "x") == [TWO, ONE]


def test_a_leftover_file_of_a_crash_does_not_block_the_next_key(tmp_path: Path) -> None:
    (tmp_path / ".keys.new").write_text("half a k")
    add_key(tmp_path / "keys", ONE)
    assert read_key_file(tmp_path / "keys", "x") == [ONE]


def test_a_file_of_something_else_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_text("notes")
    file.chmod(0o600)
    with pytest.raises(SettingsError):
        add_key(file, ONE)
    assert file.read_text() == "notes"
    with pytest.raises(SettingsError, match="No such file"):
        add_key(tmp_path / "nowhere" / "keys", ONE)


@pytest.mark.parametrize(
    "text",
    [
        "secrets: {key: geheimes-wort}",
        "secrets: {key: 90210417}",
        "secrets: {key: [geheimes-wort]}",
        "secrets: {old_keys: [geheimes-wort]}",
        "secrets: {old_keys: geheimes-wort}",
        "secrets: {old_keys: {geheimes-wort: 5}}",
        "secrets: {key: geheimes-wort, old_keys: 5}",
        "secrets: {kye: geheimes-wort}",
        "secrets: geheimes-wort",
        "secrets: [geheimes-wort]",
    ],
)
def test_no_key_is_shown_by_settings_that_are_wrong(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError) as raised:
        settings(tmp_path, text)
    assert "secrets" in str(raised.value)
    assert "geheimes-wort" not in str(raised.value)
    assert "90210417" not in str(raised.value)


def test_no_key_is_shown_by_settings_that_are_right(tmp_path: Path) -> None:
    found = settings(tmp_path, f"secrets: {{key: '{key_text(ONE)}', old_keys: ['{key_text(TWO)}']}}")
    for text in (repr(found), str(found), found.model_dump_json()):
        assert key_text(ONE) not in text
        assert key_text(TWO) not in text


def test_a_key_file_that_cannot_be_written_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SettingsError, match="No space left on device"):
        add_key(tmp_path / "keys", ONE)
    assert list(tmp_path.iterdir()) == []
