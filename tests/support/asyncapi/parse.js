// Prints what the official parser of AsyncAPI says of each file, as JSON: file -> messages of errors.
const fs = require('fs');
const { Parser } = require('@asyncapi/parser');

const ERROR = 0;

async function main(files) {
  const parser = new Parser();
  const found = {};
  for (const file of files) {
    const { document, diagnostics } = await parser.parse(fs.readFileSync(file, 'utf8'));
    const errors = diagnostics.filter((it) => it.severity === ERROR);
    found[file] = errors.map((it) => `${it.path.join('.')}: ${it.message}`);
    if (document === undefined && errors.length === 0) found[file].push('no document');
  }
  console.log(JSON.stringify(found));
}

main(process.argv.slice(2));
