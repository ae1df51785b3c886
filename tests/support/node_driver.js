// Runs the worker of a translator's page in node, without a browser: reads a JSON object from stdin, writes one to stdout.
//
// {"worker": SCRIPT, "messages": […]}: the worker's answers to each message, in order.
// {"worker": SCRIPT, "expression": "…", "input": …}: the value of a function of the worker's script, called with the input.

const vm = require("vm");

const given = JSON.parse(require("fs").readFileSync(0, "utf8"));
const answers = [];
globalThis.self = {postMessage: (answer) => answers.push(answer)};
vm.runInThisContext(`${given.worker}\n;globalThis.called = ${given.expression ?? "null"};`);

async function main() {
  if (given.expression) return globalThis.called(given.input);
  for (const data of given.messages) await self.onmessage({data});
  return answers;
}

main().then((value) => {
  process.stdout.write(JSON.stringify(value, (key, each) => ArrayBuffer.isView(each) ? [...each] : each));
});
