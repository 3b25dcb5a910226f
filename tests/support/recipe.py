"""Follow recipes of `docs/how-to` like a reader: write files, type commands and compare output.

In a page, a fenced block with a title is a file. A `console` block has commands after `$ `, each followed by its
output; a `mosquitto_sub` without `-C` is a terminal, whose output the next `text` block shows. `…` is any text; a line
`…` is any lines.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests.support import forked_in_folder
from tests.support.forked_service import ForkedService
from tests.support.markdown import blocks
from tests.support.paths import ROOT
from tests.support.wait import PATIENCE, wait_until_sync

HOW_TO = ROOT / "docs" / "how-to"

_MARK = "=ended="
_ABOUT_ITSELF = re.compile(r"(Client \S+ |Subscribed \(mid)")
"""Lines that `mosquitto_sub -d` adds."""


class Command(NamedTuple):
    """A command and its expected output."""

    text: str
    output: list[str]


def commands(text: str) -> Iterator[Command]:
    """Yield the commands of a `console` block. An open quote or a backslash continues a command."""
    for part in text.removeprefix("$ ").split("\n$ "):
        typed, *lines = part.rstrip("\n").split("\n")
        while _is_open(typed):
            typed += "\n" + lines.pop(0)
        yield Command(typed, lines)


def _is_open(typed: str) -> bool:
    try:
        shlex.split(typed, comments=True)
    except ValueError:
        return True
    return typed.endswith("\\")


def is_shown(expected: list[str], found: list[str]) -> bool:
    """Return whether this output matches the page."""
    lines = (r"(?:.*\n)*?" if line.strip() == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in expected)
    return re.fullmatch("".join(lines), "".join(f"{line}\n" for line in found)) is not None


class Terminal:
    """A running `mosquitto_sub` and its output."""

    def __init__(self, command: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._file = folder / "terminal.txt"
        self._seen = 0
        with self._file.open("wb") as output:
            self._process = subprocess.Popen(
                ["sh", "-c", f"exec {command} -d"], stdout=output, stderr=output, cwd=folder, env=environment
            )
        wait_until_sync(lambda: "Subscribed (mid" in self._file.read_text(encoding="utf-8"))

    def expect(self, lines: list[str]) -> None:
        """Wait for this output after the output that was expected before."""
        wait_until_sync(lambda: len(self._unseen()) >= len(lines))
        found = self._unseen()
        self._seen += len(found)
        assert is_shown(lines, found), f"printed {found}, the page shows {lines}"

    def _unseen(self) -> list[str]:
        lines = self._file.read_text(encoding="utf-8").splitlines()
        return [line for line in lines if not _ABOUT_ITSELF.match(line)][self._seen :]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Follower:
    """Follows recipes in a folder, in one shell.

    `places` maps the page's addresses and paths to those of the test; `acts` are commands that the test executes itself.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        places: Mapping[str, str],
        acts: Mapping[str, Callable[[], object]],
    ) -> None:
        self._folder, self._environment, self._places = folder, environment, places
        self._acts = acts
        self._stack = ExitStack()
        self._terminal: Terminal | None = None
        self._code = 0
        self._shell = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            text=True,
        )
        self._stack.callback(self._end_shell)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _placed(self, text: str) -> str:
        for shown, real in self._places.items():
            text = text.replace(shown, real)
        return text

    def follow(self, page: str) -> int:
        """Follow the page, and return the number of commands."""
        count = 0
        for block in blocks(HOW_TO / f"{page}.md"):
            if block.title:
                (self._folder / block.title).write_text(self._placed(block.text), encoding="utf-8")
            elif block.language == "text":
                assert self._terminal is not None, "no terminal shows this"
                self._terminal.expect(self._placed(block.text).splitlines())
            elif block.language == "console":
                typed = list(commands(self._placed(block.text)))
                for command, after in zip(typed, [*typed[1:], None], strict=True):
                    self._type(command, may_fail=after is not None and after.text == "echo $?")
                count += len(typed)
            else:
                raise AssertionError(f"a block that nothing is done with: {block}")
        return count

    def _type(self, command: Command, *, may_fail: bool) -> None:
        text = command.text
        if (act := self._acts.get(text)) is not None:
            act()
            return
        if text.startswith("mosquitto_sub ") and " -C " not in text:
            self._terminal = Terminal(text, self._folder, self._environment)
            self._stack.callback(self._terminal.close)
            return
        words = shlex.shlex(text, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        program, *arguments = words
        is_simple = program == "connectivity" and not set(arguments) & set("|&;<>")
        output = self._fork(arguments) if is_simple else self._run(text)
        assert may_fail or self._code == 0, f"{text}: {self._code}\n" + "\n".join(output)
        is_status, end = is_simple and arguments[:2] == ["connections", "status"], time.monotonic() + PATIENCE
        while is_status and not is_shown(command.output, output) and time.monotonic() < end:
            # A connection takes a moment to open.
            output = self._fork(arguments)
        if command.output or may_fail:
            assert is_shown(command.output, output), f"{text} prints\n{output}, the page shows\n{command.output}"

    def _fork(self, arguments: list[str]) -> list[str]:
        """Run `connectivity` in a forked process, and return its output lines."""
        file = self._folder / "output.txt"
        file.unlink(missing_ok=True)
        environment = {**self._environment, "PWD": str(self._folder)}
        self._code = ForkedService(arguments, environment, file, forked_in_folder.__name__).wait(PATIENCE)
        return [line.rstrip() for line in file.read_text(encoding="utf-8").splitlines()]

    def _run(self, text: str) -> list[str]:
        """Run a command in the shell, and return its output lines."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        # Restore the exit code of the previous command, for `echo $?`.
        print(
            f"(exit {self._code}); {{ {text}\n}} </dev/null; printf '\\n%s %s\\n' {_MARK} $?",
            file=self._shell.stdin,
            flush=True,
        )
        output: list[str] = []
        for line in self._shell.stdout:
            if line.startswith(_MARK):
                self._code = int(line.split()[1])
                break
            output.append(line.rstrip())
        return output[:-1] if output[-1:] == [""] else output

    def _end_shell(self) -> None:
        self._shell.kill()
        self._shell.communicate()


def programs(folder: Path, host: str, port: int) -> str:
    """Create a folder for PATH with `connectivity` under test, and MQTT clients that use this broker."""
    folder.mkdir()
    scripts = {"connectivity": f'exec {sys.executable} -m connectivity "$@"', "python3": f'exec {sys.executable} "$@"'}
    # Without `stdbuf`, output to a file is written in blocks.
    for name, more in {"mosquitto_pub": "", "mosquitto_sub": "", "mosquitto_rr": " -W 60"}.items():
        scripts[name] = f'exec stdbuf -oL {shutil.which(name)} -h {host} -p {port}{more} "$@"'
    for name, line in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    return str(folder)
