"""Subscriptions: the reactive-streams engine, its manager, and the feeds of elements."""
