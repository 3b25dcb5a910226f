"""The way in: consume, decode, check the sender, deduplicate, settle."""
