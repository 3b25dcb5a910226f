// `dcodeIO.Long`: an immutable integer of 64 bits, signed or unsigned, with the method names of long.js. This is a
// separate implementation on BigInt.
(() => {
  "use strict";

  const fit = (value, unsigned) => (unsigned ? BigInt.asUintN(64, value) : BigInt.asIntN(64, value));
  const big = (value) => (value instanceof Long ? value.value : Long.fromValue(value).value);

  class Long {
    constructor(low = 0, high = 0, unsigned = false) {
      this.unsigned = Boolean(unsigned);
      this.value = fit((BigInt(high | 0) << 32n) | BigInt(low >>> 0), this.unsigned);
      this.low = low | 0;
      this.high = high | 0;
    }

    static of(value, unsigned) {
      return new Long(Number(BigInt.asIntN(32, value)), Number(BigInt.asIntN(32, value >> 32n)), unsigned);
    }
    static fromBits(low, high, unsigned) { return new Long(low, high, unsigned); }
    static fromInt(value, unsigned) { return Long.of(BigInt(Math.trunc(value)), unsigned); }
    static fromNumber(value, unsigned) {
      return Long.of(Number.isFinite(value) ? BigInt(Math.trunc(value)) : 0n, unsigned);
    }
    static fromString(text, unsigned, radix) {
      if (typeof unsigned === "number") [unsigned, radix] = [false, unsigned];
      const base = BigInt(radix ?? 10);
      let digits = text.toLowerCase();
      const isNegative = digits.startsWith("-");
      if (isNegative) digits = digits.slice(1);
      let value = 0n;
      for (const digit of digits) {
        const number = parseInt(digit, Number(base));
        if (Number.isNaN(number)) throw new Error(`found ${text}, expected a whole number to the base ${base}`);
        value = value * base + BigInt(number);
      }
      return Long.of(isNegative ? -value : value, unsigned);
    }
    static fromValue(value) {
      if (value instanceof Long) return value;
      if (typeof value === "number") return Long.fromNumber(value);
      if (typeof value === "string") return Long.fromString(value);
      return new Long(value.low, value.high, value.unsigned);
    }
    static isLong(value) { return value instanceof Long; }

    toInt() { return this.unsigned ? this.low >>> 0 : this.low; }
    toNumber() { return Number(this.value); }
    toString(radix) { return this.value.toString(radix ?? 10); }
    toJSON() { return this.toNumber(); }
    toSigned() { return Long.of(this.value, false); }
    toUnsigned() { return Long.of(this.value, true); }
    getLowBits() { return this.low; }
    getHighBits() { return this.high; }
    getLowBitsUnsigned() { return this.low >>> 0; }
    getHighBitsUnsigned() { return this.high >>> 0; }

    isZero() { return this.value === 0n; }
    isNegative() { return this.value < 0n; }
    isPositive() { return this.value >= 0n; }
    isOdd() { return (this.value & 1n) === 1n; }
    isEven() { return !this.isOdd(); }
    compare(other) { const o = big(other); return this.value < o ? -1 : this.value > o ? 1 : 0; }
    equals(other) { return this.compare(other) === 0; }
    notEquals(other) { return this.compare(other) !== 0; }
    lessThan(other) { return this.compare(other) < 0; }
    lessThanOrEqual(other) { return this.compare(other) <= 0; }
    greaterThan(other) { return this.compare(other) > 0; }
    greaterThanOrEqual(other) { return this.compare(other) >= 0; }

    add(other) { return Long.of(this.value + big(other), this.unsigned); }
    subtract(other) { return Long.of(this.value - big(other), this.unsigned); }
    multiply(other) { return Long.of(this.value * big(other), this.unsigned); }
    divide(other) { return Long.of(this.value / big(other), this.unsigned); }
    modulo(other) { return Long.of(this.value % big(other), this.unsigned); }
    negate() { return Long.of(-this.value, this.unsigned); }
    not() { return Long.of(~this.value, this.unsigned); }
    and(other) { return Long.of(this.value & big(other), this.unsigned); }
    or(other) { return Long.of(this.value | big(other), this.unsigned); }
    xor(other) { return Long.of(this.value ^ big(other), this.unsigned); }
    shiftLeft(bits) { return Long.of(this.value << (big(bits) & 63n), this.unsigned); }
    shiftRight(bits) { return Long.of(this.value >> (big(bits) & 63n), this.unsigned); }
    shiftRightUnsigned(bits) {
      return Long.of(BigInt.asUintN(64, this.value) >> (big(bits) & 63n), this.unsigned);
    }
  }

  const short = {
    eq: "equals", neq: "notEquals", lt: "lessThan", lte: "lessThanOrEqual", gt: "greaterThan",
    gte: "greaterThanOrEqual", comp: "compare", sub: "subtract", mul: "multiply", div: "divide", mod: "modulo",
    neg: "negate", shl: "shiftLeft", shr: "shiftRight", shru: "shiftRightUnsigned",
  };
  for (const [name, method] of Object.entries(short)) Long.prototype[name] = Long.prototype[method];

  Long.ZERO = new Long(0, 0);
  Long.UZERO = new Long(0, 0, true);
  Long.ONE = new Long(1, 0);
  Long.UONE = new Long(1, 0, true);
  Long.NEG_ONE = new Long(-1, -1);
  Long.MAX_VALUE = new Long(-1, 0x7fffffff);
  Long.MAX_UNSIGNED_VALUE = new Long(-1, -1, true);
  Long.MIN_VALUE = new Long(0, 0x80000000 | 0);

  (globalThis.dcodeIO ??= {}).Long = Long;
})()
