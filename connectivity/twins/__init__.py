"""What a command does to a thing or a policy: pure decisions, no store and no broker."""
