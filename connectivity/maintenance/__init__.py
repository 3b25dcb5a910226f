"""Background and operator jobs on journal and lake."""
