"""Follow a tutorial in an empty folder: write files, type commands and compare their output.

A block with a title is a file of that name. A block `console` is typed into a terminal: `$ ` begins a command, `^C`
interrupts the running one, and the rest is output. A block with the title `Terminal N` belongs to a terminal whose last
command continues. In output, `…` is any text, and a line `…` any lines.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import distribution
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.forked_service import ForkedService
from tests.support.markdown import blocks
from tests.support.paths import ROOT
from tests.support.wait import PATIENCE, TimedOut, wait_until_sync

FOLDER = ROOT / "docs" / "tutorials"
SOURCES = ("~/broker-connectivity", "$HOME/broker-connectivity")
"""The clone of this repository that pages install from."""

_TERMINAL = re.compile(r"Terminal \d")
_FORKED = re.compile(r"connectivity ([^;|&<>$]+?)(?: ?(;|\|\|) echo \"exit code \$\?\")?")
"""Commands that are forked instead of run by a shell, which takes a tenth of the time."""


class Terminal:
    """A terminal in one folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self._log = folder / f".terminal-{id(self)}"
        self._running: subprocess.Popen[bytes] | ForkedService | None = None
        self._shown = ""

    def run(self, command: str, expected: str, *, keeps_running: bool = False) -> None:
        """Run a command. With `keeps_running`, leave it running after the expected output."""
        assert self._running is None, f"typed into a terminal that is busy: {command}"
        self._log.write_bytes(b"")
        self._shown = ""
        self._running = self._start(command)
        if keeps_running:
            self.expect(expected)
            return
        code = self._running.wait(PATIENCE)
        self._running = None
        printed = self._log.read_text("utf-8")
        if (forked := _FORKED.fullmatch(command)) and (forked[2] == ";" or (forked[2] and code)):
            printed, code = f"{printed}exit code {code}\n", 0
        assert code == 0, f"$ {command}\nends with {code}:\n{printed}"
        assert matches(expected, printed), f"$ {command}\nprints\n{printed}\nexpected\n{expected}"

    def _start(self, command: str) -> subprocess.Popen[bytes] | ForkedService:
        if forked := _FORKED.fullmatch(command):
            arguments = shlex.split(forked[1])
            environment = {**self._environment, "PWD": str(self._folder)}
            return ForkedService(arguments, environment, self._log, "tests.support.forked_in_folder")
        with self._log.open("wb") as log:
            return subprocess.Popen(
                ["bash", "-c", command],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def expect(self, expected: str) -> None:
        """Wait for further output of the running command."""
        running = self._running
        assert running is not None
        self._shown += expected
        shown = f"{self._shown}…\n"
        try:
            wait_until_sync(lambda: matches(shown, self._log.read_text("utf-8")) or running.poll() is not None)
        except TimedOut:
            raise AssertionError(f"it prints\n{self._log.read_text()}\nexpected\n{self._shown}") from None
        assert running.poll() is None, f"it has ended with {running.returncode}:\n{self._log.read_text()}"

    def interrupt(self) -> None:
        """Interrupt the command as Ctrl-C does, and wait for its end."""
        assert self._running is not None
        self._running.send_signal(signal.SIGINT)
        self._running.wait(PATIENCE)
        self._running = None

    def close(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.wait(PATIENCE)


class Tutorial:
    """A page and its working folder. `replaced` maps texts of the page to those of the test."""

    def __init__(
        self, name: str, folder: Path, replaced: Mapping[str, str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._page = FOLDER / f"{name}.md"
        self.folder = folder
        self._replaced = replaced
        interpreters = Path(sys.executable).parent
        self._environment = {
            **os.environ,
            "PATH": f"{interpreters}{os.pathsep}{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            # Like an installation without the extra `spark`.
            "CONNECTIVITY_SPARK__MODE": "off",
            **(environment or {}),
        }
        self._terminals: dict[str, Terminal] = {}
        self._before: Mapping[str, Callable[[], object]] = {}

    def follow(self, before: Mapping[str, Callable[[], object]] | None = None) -> None:
        """Follow the whole page. `before` has functions to call before commands."""
        self._before = before or {}
        for block in blocks(self._page):
            text = block.text
            for old, new in self._replaced.items():
                text = text.replace(old, new)
            if block.language == "console":
                self._type(block.title, text)
            elif block.title:
                file = self.folder / block.title
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, "utf-8")
            else:
                assert block.language == "mermaid", f"neither a file nor a terminal: {text}"

    def _type(self, title: str, text: str) -> None:
        assert not title or _TERMINAL.fullmatch(title), title
        for begins_busy, part in enumerate(re.split(r"^\^C\n", text, flags=re.MULTILINE)):
            if begins_busy:
                self._terminals[title].interrupt()
            elif part and title not in self._terminals:
                self._terminals[title] = Terminal(self.folder, self._environment)
            self._type_commands(title, part)

    def _type_commands(self, title: str, text: str) -> None:
        keeps_running, *parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
        if keeps_running:
            self._terminals[title].expect(keeps_running)
        for part in parts:
            command, expected = _command(part)
            self._before.get(command, lambda: None)()
            if not self._prepared(command):
                self._terminals[title].run(command, expected, keeps_running=bool(title) and part is parts[-1])

    def _prepared(self, command: str) -> bool:
        """Return whether the command prepares the folder or the environment, which the test does instead."""
        if found := re.fullmatch(r"mkdir ([\w-]+) && cd \1", command):
            self.folder = self.folder / found[1]
            self.folder.mkdir()
            self._terminals.clear()
            self._terminals[""] = Terminal(self.folder, self._environment)
            return True
        if command.startswith("pip install "):
            for wanted in command.split()[2:]:
                name = wanted.strip('"').partition("[")[0]
                distribution("broker-connectivity" if name in SOURCES else name)
            return True
        if found := re.fullmatch(r"npm install (\S+)@(\S+)", command):
            places = self._environment["NODE_PATH"].split(os.pathsep)
            packages = [file for place in places if (file := Path(place, found[1], "package.json")).exists()]
            assert [json.loads(file.read_text("utf-8"))["version"] for file in packages] == [found[2]]
            return True
        return command == "python3 -m venv .venv && . .venv/bin/activate"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for terminal in self._terminals.values():
            terminal.close()


def _command(part: str) -> tuple[str, str]:
    """Return a command, which may have several lines, and its output."""
    lines = part.splitlines(keepends=True)
    count = 1
    while lines[count - 1].endswith("\\\n"):
        count += 1
    return "".join(lines[:count]).strip(), "".join(lines[count:])


def matches(expected: str, printed: str) -> bool:
    """Return whether the output matches, where `…` is any text, and a line `…` any lines."""
    lines = [
        r"(?:.*\n)*?" if line == "…" else ".*?".join(map(re.escape, line.rstrip().split("…"))) + r"\s*?\n"
        for line in expected.splitlines()
    ]
    return re.fullmatch("".join(lines), printed) is not None
