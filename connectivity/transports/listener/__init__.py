"""The parts shared by the TCP and WebSocket listeners: server socket, link, timeouts."""
