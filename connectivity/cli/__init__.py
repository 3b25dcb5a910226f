"""The command line: `connectivity …`."""
