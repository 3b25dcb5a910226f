"""Whether a connection document can be opened: shape, rules, JSON Schema."""
