"""The pipeline: a process of its own, a Spark driver, that moves the journal's events into the lake's tables."""
