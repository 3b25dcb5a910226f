// What browsers have, for a Node that has none of its own.
globalThis.WebSocket ??= require("ws");
globalThis.crypto ??= require("node:crypto").webcrypto;
