// One of Streamr's public clients, steered from outside: commands come in as JSON lines, what the client says of itself goes
// out as JSON lines. Arguments: the folder of the installed clients, the version, the client's options as JSON.
"use strict";

const path = require("path");
const readline = require("readline");

const [folder, version, options] = process.argv.slice(2);
const StreamrClient = require(path.join(folder, version, "node_modules", "streamr-client"));

const OF_A_SUBSCRIPTION = ["subscribed", "unsubscribed", "resending", "resent", "no_resend", "gap", "error"];
const OF_A_CLIENT = ["connected", "disconnected", "error"];

function say(event, more) {
  process.stdout.write(JSON.stringify({ event, ...more }) + "\n");
}

// What an event brings along: errors as their text, the ends of a gap as numbers.
function brought(first, second) {
  if (first instanceof Error) return { text: first.message };
  if (typeof first === "string") return { text: first };
  return typeof first === "number" ? { from: first, to: second } : {};
}

// An error that escapes from the client would end a user's program; here it is reported, so that a test can fail.
process.on("uncaughtException", (error) => say("thrown", { text: String(error.message || error) }));
process.on("unhandledRejection", (error) => say("thrown", { text: String((error && error.message) || error) }));

const client = new StreamrClient(JSON.parse(options));
for (const event of OF_A_CLIENT) client.on(event, (...words) => say(event, brought(...words)));

const subscriptions = new Map();

const commands = {
  connect: () => client.connect(),
  subscribe({ as, options: wanted }) {
    const onMessage = (content, message) =>
      say("message", {
        as,
        content,
        stream: message.streamId,
        offset: message.offset,
        previousOffset: message.previousOffset,
        timestamp: message.timestamp,
      });
    const subscription = client.subscribe(wanted, onMessage);
    for (const event of OF_A_SUBSCRIPTION) subscription.on(event, (...words) => say(event, { as, ...brought(...words) }));
    subscriptions.set(as, subscription);
  },
  unsubscribe: ({ as }) => client.unsubscribe(subscriptions.get(as)),
  // The method has had two names.
  publish: ({ stream, content }) => (client.publish || client.produceToStream).call(client, stream, content),
};

const lines = readline.createInterface({ input: process.stdin });
lines.on("line", (line) => {
  const command = JSON.parse(line);
  Promise.resolve(commands[command.do](command)).catch((error) => say("thrown", { text: error.message }));
});
lines.on("close", () => process.exit(0));
say("ready");
