"""`python -m connectivity` is the program `connectivity`."""

from connectivity.cli.main import main

if __name__ == "__main__":
    main()
