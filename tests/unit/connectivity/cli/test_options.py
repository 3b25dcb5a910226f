"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from connectivity.cli.options import confirm, loaded_settings
from tests.support.table import each_row


def test_settings_that_cannot_be_used_end_the_command_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("data_dir: elsewhere\n", encoding="utf-8")
    assert str(loaded_settings(file).data_dir) == "elsewhere"
    file.write_text("data_dri: elsewhere\n", encoding="utf-8")
    with pytest.raises(typer.Exit) as ended:
        loaded_settings(file)
    assert ended.value.exit_code == 2
    assert "data_dri" in capsys.readouterr().err


def test_a_question_is_asked_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    confirm("Really?", yes=True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda text, err: True)
    confirm("Really?", yes=False)
    monkeypatch.setattr("typer.confirm", lambda text, err: False)
    with pytest.raises(typer.Exit) as no:
        confirm("Really?", yes=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    with pytest.raises(typer.Exit) as unanswered:
        confirm("Really?", yes=False)
    assert (no.value.exit_code, unanswered.value.exit_code) == (1, 2)
    assert capsys.readouterr().err == "Really? Add --yes to confirm.\n"


class InterruptedTerminal:
    """A terminal at which reading a line raises an error."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        raise self._error


@each_row(("error", "code"), [(KeyboardInterrupt(), 130), (EOFError(), 1)])
def test_ctrl_c_at_a_question_ends_the_command_with_130(error: BaseException, code: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", InterruptedTerminal(error))
        patch.setattr("sys.stderr.isatty", lambda: True, raising=False)
        with pytest.raises(typer.Exit) as ended:
            confirm("Really?", yes=False)
    assert ended.value.exit_code == code
