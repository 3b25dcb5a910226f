// `dcodeIO.ByteBuffer`: a buffer with an offset for reading and writing, with the method names of bytebuffer.js. This is
// a separate implementation on DataView: numbers, strings, hex and base64; no varints and no node streams. Integers of
// 64 bits are `dcodeIO.Long` if that is loaded, numbers otherwise.
(() => {
  "use strict";

  const { arrayBufferToString, stringToArrayBuffer } = Ditto;
  const encode = (text) => new Uint8Array(stringToArrayBuffer(unescape(encodeURIComponent(text))));
  const decode = (bytes) => decodeURIComponent(escape(arrayBufferToString(bytes)));

  class ByteBuffer {
    constructor(capacity = ByteBuffer.DEFAULT_CAPACITY, littleEndian = false) {
      this.buffer = new ArrayBuffer(capacity);
      this.offset = 0;
      this.markedOffset = -1;
      this.limit = capacity;
      this.littleEndian = Boolean(littleEndian);
    }

    static allocate(capacity, littleEndian) { return new ByteBuffer(capacity, littleEndian); }
    static wrap(source, encoding, littleEndian) {
      if (typeof encoding === "boolean") littleEndian = encoding;
      if (typeof source === "string") return ByteBuffer.fromString(source, encoding, littleEndian);
      if (source instanceof ByteBuffer) return source.clone();
      const bytes = new ByteBuffer(0, littleEndian);
      const isView = ArrayBuffer.isView(source);
      bytes.buffer = isView
        ? source.buffer.slice(source.byteOffset, source.byteOffset + source.byteLength)
        : source instanceof ArrayBuffer ? source : Uint8Array.from(source).buffer;
      bytes.limit = bytes.buffer.byteLength;
      return bytes;
    }
    static fromString(text, encoding, littleEndian) {
      const from = { hex: "fromHex", base64: "fromBase64", binary: "fromBinary" }[encoding] ?? "fromUTF8";
      return ByteBuffer[from](text, littleEndian);
    }
    static fromHex(text, littleEndian) { return ByteBuffer.wrap(Uint8Array.fromHex(text), "", littleEndian); }
    static fromBase64(text, littleEndian) { return ByteBuffer.wrap(Uint8Array.fromBase64(text), "", littleEndian); }
    static fromUTF8(text, littleEndian) { return ByteBuffer.wrap(encode(text), "", littleEndian); }
    static fromBinary(text, littleEndian) { return ByteBuffer.wrap(stringToArrayBuffer(text), "", littleEndian); }
    static concat(buffers) {
      const whole = new ByteBuffer(0);
      for (const each of buffers) whole.append(each);
      return whole.flip();
    }
    static isByteBuffer(value) { return value instanceof ByteBuffer; }

    LE(isLittle = true) { this.littleEndian = Boolean(isLittle); return this; }
    BE(isBig = true) { this.littleEndian = !isBig; return this; }
    capacity() { return this.buffer.byteLength; }
    remaining() { return this.limit - this.offset; }
    mark(offset = this.offset) { this.markedOffset = offset; return this; }
    reset() { this.offset = Math.max(0, this.markedOffset); this.markedOffset = -1; return this; }
    clear() { this.offset = 0; this.limit = this.capacity(); this.markedOffset = -1; return this; }
    flip() { this.limit = this.offset; this.offset = 0; return this; }
    skip(length) {
      const offset = this.offset + length;
      if (offset < 0 || offset > this.capacity()) throw new RangeError(`no offset ${offset} in ${this}`);
      this.offset = offset;
      return this;
    }
    ensureCapacity(wanted) {
      if (wanted <= this.capacity()) return this;
      const larger = new ArrayBuffer(Math.max(wanted, 2 * this.capacity()));
      new Uint8Array(larger).set(new Uint8Array(this.buffer));
      // A limit at the end was not set by the script, so it grows with the buffer.
      if (this.limit === this.capacity()) this.limit = larger.byteLength;
      this.buffer = larger;
      return this;
    }
    resize(capacity) { return this.ensureCapacity(capacity); }
    slice(begin = this.offset, end = this.limit) {
      return ByteBuffer.wrap(this.buffer.slice(begin, end), "", this.littleEndian);
    }
    copy(begin, end) { return this.slice(begin, end); }
    clone() {
      const other = ByteBuffer.wrap(this.buffer.slice(0), "", this.littleEndian);
      return Object.assign(other, { offset: this.offset, limit: this.limit, markedOffset: this.markedOffset });
    }

    bytes(begin = this.offset, end = this.limit) { return new Uint8Array(this.buffer, begin, end - begin); }
    toArrayBuffer() { return this.buffer.slice(this.offset, this.limit); }
    toBuffer() { return this.toArrayBuffer(); }
    toHex(begin, end) { return this.bytes(begin, end).toHex(); }
    toBase64(begin, end) { return this.bytes(begin, end).toBase64(); }
    toUTF8(begin, end) { return decode(this.bytes(begin, end)); }
    toBinary(begin, end) { return arrayBufferToString(this.bytes(begin, end)); }
    toString(encoding) {
      const to = { hex: "toHex", base64: "toBase64", utf8: "toUTF8", binary: "toBinary" }[encoding];
      return to ? this[to]() : `ByteBuffer(offset=${this.offset},limit=${this.limit},capacity=${this.capacity()})`;
    }

    take(length, offset) {
      const begin = offset ?? this.offset;
      if (begin < 0 || begin + length > this.capacity()) {
        throw new RangeError(`found ${this}, expected ${length} bytes from ${begin} on`);
      }
      if (offset === undefined) this.offset += length;
      return begin;
    }
    room(length, offset) {
      const begin = offset ?? this.offset;
      this.ensureCapacity(begin + length);
      if (offset === undefined) this.offset += length;
      return begin;
    }
    append(source, encoding, offset) {
      const bytes = source instanceof ByteBuffer ? source.bytes() : ByteBuffer.wrap(source, encoding).bytes();
      const begin = this.room(bytes.length, typeof encoding === "number" ? encoding : offset);
      new Uint8Array(this.buffer).set(bytes, begin);
      return this;
    }
    readBytes(length, offset) {
      const begin = this.take(length, offset);
      return this.slice(begin, begin + length);
    }
    readUTF8String(length, metrics = ByteBuffer.METRICS_CHARS, offset = undefined) {
      if (typeof metrics === "number") [metrics, offset] = [ByteBuffer.METRICS_CHARS, metrics];
      const begin = offset ?? this.offset;
      let size = length;
      if (metrics !== ByteBuffer.METRICS_BYTES) {
        const bytes = this.bytes(begin, this.capacity());
        size = 0;
        // Every byte that is not a continuation byte begins a character.
        for (let left = length; left > 0 && size < bytes.length; left--) {
          do size++; while (size < bytes.length && (bytes[size] & 0xc0) === 0x80);
        }
      }
      const from = this.take(size, offset);
      return decode(this.bytes(from, from + size));
    }
    writeUTF8String(text, offset) {
      const bytes = encode(text);
      const begin = this.room(bytes.length, offset);
      new Uint8Array(this.buffer).set(bytes, begin);
      return this;
    }
  }

  ByteBuffer.DEFAULT_CAPACITY = 16;
  ByteBuffer.LITTLE_ENDIAN = true;
  ByteBuffer.BIG_ENDIAN = false;
  ByteBuffer.METRICS_CHARS = "c";
  ByteBuffer.METRICS_BYTES = "b";

  const methods = ByteBuffer.prototype;
  const numbers = {
    Int8: 1, Uint8: 1, Int16: 2, Uint16: 2, Int32: 4, Uint32: 4, Float32: 4, Float64: 8, BigInt64: 8, BigUint64: 8,
  };
  for (const [name, size] of Object.entries(numbers)) {
    methods[`read${name}`] = function (offset) {
      return new DataView(this.buffer)[`get${name}`](this.take(size, offset), this.littleEndian);
    };
    methods[`write${name}`] = function (value, offset) {
      const begin = this.room(size, offset);
      new DataView(this.buffer)[`set${name}`](begin, value, this.littleEndian);
      return this;
    };
  }
  for (const [name, unsigned] of [["Int64", false], ["Uint64", true]]) {
    const own = unsigned ? "BigUint64" : "BigInt64";
    methods[`read${name}`] = function (offset) {
      const value = this[`read${own}`](offset);
      return dcodeIO.Long ? dcodeIO.Long.of(value, unsigned) : Number(value);
    };
    methods[`write${name}`] = function (value, offset) {
      const isLong = dcodeIO.Long && value instanceof dcodeIO.Long;
      return this[`write${own}`](isLong ? value.value : BigInt(value), offset);
    };
  }
  const others = {
    Byte: "Int8", Short: "Int16", Int: "Int32", Long: "Int64", Float: "Float32", Double: "Float64",
    UTF8String: "UTF8String", String: "UTF8String",
  };
  for (const [name, same] of Object.entries(others)) {
    methods[`read${name}`] = methods[`read${same}`];
    methods[`write${name}`] = methods[`write${same}`];
  }

  (globalThis.dcodeIO ??= {}).ByteBuffer = ByteBuffer;
})()
