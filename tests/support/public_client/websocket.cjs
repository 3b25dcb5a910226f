// The WebSocket of browsers, for a Node that has none of its own.
globalThis.WebSocket ??= require("ws");
