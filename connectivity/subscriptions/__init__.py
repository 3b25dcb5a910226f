"""The reactive-streams engine that all subscriptions share, its manager, and the feeds."""
