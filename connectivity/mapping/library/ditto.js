// The environment of a mapping script: the `Ditto` helpers, and the wrappers that call its functions (Ditto connections,
// payload mapping in JavaScript). This file evaluates to a function that takes a direction and a JSON text, calls the
// script, and returns the results as one JSON text. The context serves one message, so nothing has to be frozen.
(() => {
  "use strict";

  const { parse, stringify } = JSON;
  const { isArray } = Array;
  const { defineProperty, entries } = Object;
  const fromBase64 = Uint8Array.fromBase64.bind(Uint8Array);
  const toBase64 = Function.prototype.call.bind(Uint8Array.prototype.toBase64);
  const join = Function.prototype.call.bind(Array.prototype.join);
  const fromCharCode = String.fromCharCode;
  const Promised = Promise;

  const STEP = 1 << 13; // arguments per call, limited by the stack

  const Ditto = {
    buildDittoProtocolMsg(
      namespace, name, group, channel, criterion, action, path, dittoHeaders, value, status, extra,
    ) {
      const parts = [namespace, name, group, channel === "none" ? null : channel, criterion, action];
      const topic = parts.filter((part) => part !== null && part !== undefined).join("/");
      return { topic, path, headers: dittoHeaders, value, status, extra };
    },
    buildExternalMsg(headers, textPayload, bytePayload, contentType) {
      return { headers, textPayload, bytePayload, contentType };
    },
    arrayBufferToString(arrayBuffer) {
      const bytes = new Uint8Array(arrayBuffer);
      let text = "";
      for (let start = 0; start < bytes.length; start += STEP) {
        text += fromCharCode(...bytes.subarray(start, start + STEP));
      }
      return text;
    },
    stringToArrayBuffer(string) {
      const bytes = new Uint8Array(string.length);
      for (let index = 0; index < string.length; index++) bytes[index] = string.charCodeAt(index);
      return bytes.buffer;
    },
    asByteBuffer(arrayBuffer) {
      if (typeof dcodeIO === "undefined" || !dcodeIO.ByteBuffer) {
        throw new Error("Ditto.asByteBuffer needs the option loadBytebufferJS");
      }
      return dcodeIO.ByteBuffer.wrap(arrayBuffer.slice(0));
    },
  };

  const wrappers = {
    mapToDittoProtocolMsgWrapper(externalMsg) {
      const { headers, textPayload, bytePayload, contentType } = externalMsg;
      return mapToDittoProtocolMsg(headers, textPayload, bytePayload, contentType);
    },
    mapFromDittoProtocolMsgWrapper(dittoProtocolMsg) {
      const { topic, path, headers, value, status, extra } = dittoProtocolMsg;
      const [namespace, name, group, ...rest] = topic.split("/");
      // Topics of policies and connections have no channel.
      const channel = group === "things" ? rest.shift() : "none";
      const [criterion, ...action] = rest;
      const named = action.length ? action.join("/") : undefined;
      return mapFromDittoProtocolMsg(
        namespace, name, group, channel, criterion, named, path, headers, value, status, extra,
      );
    },
  };

  // Properties instead of declarations: a script may declare these names itself, with `let` and `const` too.
  for (const [name, value] of entries({ Ditto, ...wrappers })) {
    defineProperty(globalThis, name, { value, writable: true, configurable: true });
  }

  const kind = (value) => (value === null ? "null" : isArray(value) ? "an array" : `a value of type ${typeof value}`);

  const refuse = (what, value, expected) => {
    throw new TypeError(`found ${what} ${kind(value)}, expected ${expected}`);
  };

  const collect = (result, write, most) => {
    if (result === null || result === undefined) return "[]";
    if (result instanceof Promised) {
      throw new TypeError("found a promise as the result, expected a value: promises are not supported");
    }
    const results = isArray(result) ? result : [result];
    const count = results.length;
    if (count > most) throw new RangeError(`produced ${count} messages, more than the limit of ${most}`);
    const texts = [];
    for (let index = 0; index < count; index++) {
      const one = results[index];
      if (typeof one !== "object" || one === null || isArray(one)) refuse("as a result", one, "an object");
      texts[index] = write(one);
    }
    // Without `+`: the engine would keep a tree of strings, which its binding cannot read.
    return `[${join(texts, ",")}]`;
  };

  const written = (envelope) => {
    const text = stringify(envelope);
    return typeof text === "string" ? text : refuse("as a result", text, "an object");
  };

  const bytesOf = (payload) => {
    if (payload instanceof ArrayBuffer) return new Uint8Array(payload);
    if (ArrayBuffer.isView(payload)) return new Uint8Array(payload.buffer, payload.byteOffset, payload.byteLength);
    if (isArray(payload)) return Uint8Array.from(payload);
    return refuse("bytePayload", payload, "an ArrayBuffer, a typed array or an array of numbers");
  };

  const external = ({ headers, textPayload, bytePayload, contentType }) => {
    const message = { headers: {}, contentType: contentType ?? null, text: null, binary: null };
    if (typeof (contentType ?? "") !== "string") refuse("contentType", contentType, "a string");
    for (const [name, value] of entries(headers ?? {})) {
      if (value !== null && value !== undefined) {
        message.headers[name] = typeof value === "string" ? value : stringify(value);
      }
    }
    if (bytePayload !== null && bytePayload !== undefined) message.binary = toBase64(bytesOf(bytePayload));
    else if (typeof textPayload === "string") message.text = textPayload;
    else refuse("textPayload", textPayload, "a string, or bytes in bytePayload");
    return stringify(message);
  };

  return (direction, argument, most) => {
    if (direction === "incoming") {
      const { headers, text, binary, contentType } = parse(argument);
      const message = {
        headers,
        textPayload: text,
        bytePayload: fromBase64(binary).buffer,
        contentType: contentType ?? undefined,
      };
      return collect(mapToDittoProtocolMsgWrapper(message), written, most);
    }
    if (direction === "outgoing") return collect(mapFromDittoProtocolMsgWrapper(parse(argument)), external, most);
    // `check`: whether the script defines the function of the direction in the argument.
    const isThere =
      argument === "incoming"
        ? typeof mapToDittoProtocolMsg === "function" ||
          mapToDittoProtocolMsgWrapper !== wrappers.mapToDittoProtocolMsgWrapper
        : typeof mapFromDittoProtocolMsg === "function" ||
          mapFromDittoProtocolMsgWrapper !== wrappers.mapFromDittoProtocolMsgWrapper;
    return isThere ? "[]" : "";
  };
})()
