"""Streams of messages as a domain: IDs, partitions, entries and options, without a wire protocol."""
