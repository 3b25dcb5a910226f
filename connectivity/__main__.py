"""Runs the program `connectivity` as `python -m connectivity`."""

from connectivity.cli.main import main

if __name__ == "__main__":
    main()
