// Instead of what Ethereum's library is constructed with.
module.exports = class Absent {};
