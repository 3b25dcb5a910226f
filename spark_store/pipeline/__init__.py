"""The pipeline: a Spark driver process that moves the journal's events into the lake's tables."""
