// Instead of Ethereum's library, which client 1.0.2 constructs when it is loaded and calls only where messages are signed.
module.exports = class Absent {};
