"""The program `connectivity`, also as `python -m connectivity`."""

from __future__ import annotations

import sys

from connectivity.stop_signals import end_at_stop_signals


def main() -> None:
    """Run a command. `serve` can be stopped while its modules are imported."""
    if sys.argv[1:2] == ["serve"]:
        end_at_stop_signals()
    from connectivity.cli import main as cli

    cli.main()


if __name__ == "__main__":
    main()
