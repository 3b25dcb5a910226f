"""What a connection shows of itself: what it has counted, what has happened to it, and how it is."""
