// Reads frames and requests with the protocol library of the public clients and writes them again, one JSON line each:
// {"frame": text, "version": 28} or {"request": text} come in; {"kind", "written"} or {"refused"} goes out.
"use strict";

const readline = require("readline");
const { WebsocketRequest, WebsocketResponse } = require("streamr-client-protocol");

function read({ frame, request, version }) {
  if (request !== undefined) {
    const read = WebsocketRequest.deserialize(request);
    return { kind: read.constructor.name, written: read.serialize() };
  }
  const read = WebsocketResponse.deserialize(frame);
  return { kind: read.constructor.getMessageName(), written: read.serialize(0, version) };
}

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  let result;
  try {
    result = read(JSON.parse(line));
  } catch (error) {
    result = { refused: error.message };
  }
  process.stdout.write(JSON.stringify(result) + "\n");
});
