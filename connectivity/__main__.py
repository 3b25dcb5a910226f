"""`python -m connectivity` is the program `connectivity`."""

from connectivity.cli.console import main

if __name__ == "__main__":
    main()
