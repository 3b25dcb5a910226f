"""A Debian with only its base system in a folder; needs root and `debootstrap`.

Each command runs in its own mount namespace, so that no mount remains. It uses the network of this machine, with its name
servers, proxies, certificates and package index.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SUITE = "bookworm"

_COPIED = (
    "etc/hosts",
    "etc/pip.conf",
    "etc/resolv.conf",
    "etc/apt/apt.conf.d/*proxy*",
    "usr/local/share/ca-certificates/*.crt",
)
"""Files with the network settings of this machine."""

_ENTER = """
set -e
mount --rbind /dev "$1/dev"
mount -t proc proc "$1/proc"
mount --bind "$2" "$1$2"
root=$1
shift 2
unset PYTHONPATH VIRTUAL_ENV
export HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive
exec chroot "$root" "$@"
"""


class DebianMissing(Exception):
    """Root or debootstrap is missing; the message says how to install it."""


class Debian:
    """A Debian in the folder `root`, which has the folder `shared` at the same path."""

    def __init__(self, root: Path, shared: Path) -> None:
        self._root, self._shared = root, shared

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs another one inside."""
        return ["unshare", "--mount", "sh", "-c", _ENTER, "sh", str(self._root), str(self._shared), *arguments]

    def run(self, *arguments: str) -> str:
        """Run a command inside, and return its output. Raises AssertionError with its output if it fails."""
        ended = subprocess.run(
            self.command(*arguments), cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        assert ended.returncode == 0, f"{' '.join(arguments)}: {ended.returncode}\n{ended.stdout}"
        return ended.stdout


@contextmanager
def installed_debian(root: Path, shared: Path) -> Iterator[Debian]:
    """Install a new Debian, and delete it at the end. Raises DebianMissing."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise DebianMissing("expected root and debootstrap (sudo apt-get install debootstrap)")
    root.mkdir()
    try:
        subprocess.run(
            ["unshare", "--mount", "debootstrap", "--variant=minbase", "--include=ca-certificates", SUITE, root],
            check=True,
            stdout=subprocess.PIPE,
        )
        for pattern in _COPIED:
            for file in Path("/").glob(pattern):
                shutil.copy(file, root / file.relative_to("/"))
        # The package manager runs some programs as another user.
        root.chmod(0o755)
        (root / shared.relative_to("/")).mkdir(parents=True)
        debian = Debian(root, shared)
        debian.run("update-ca-certificates")
        yield debian
    finally:
        shutil.rmtree(root)
