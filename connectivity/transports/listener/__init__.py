"""What the two listening transports share: the server socket, the link that holds all peers, their timeouts."""
