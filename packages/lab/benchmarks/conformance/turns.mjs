// openai's client for JavaScript in a conversation with a scripted server (scripted.py):
//
//   node turns.mjs URL
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const parameters = { type: "object", properties: { a: { type: "integer" }, b: { type: "integer" } },
  required: ["a", "b"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "add", parameters, strict: true } }];
const messages = [{ role: "user", content: "What is 2 plus 3?" }];
const common = { model: "local", tools, parallel_tool_calls: false };
const say = async more => (await client.chat.completions.create({ ...common, messages, ...more })).choices[0].message;

const call = await say();
assert.deepEqual(JSON.parse(call.tool_calls[0].function.arguments), { a: 2, b: 3 });
messages.push(call, { role: "tool", tool_call_id: call.tool_calls[0].id, content: "5" });
const told = await say();
assert.equal(told.content, "The tool says 5.");
messages.push(told, { role: "user", content: "Tell me more." });
const whole = await say();
const stream = client.chat.completions.stream({ ...common, messages });
assert.equal((await stream.finalMessage()).content, whole.content);
messages.push(whole, { role: "user", content: "What is 4 plus 5?" });

const runner = client.chat.completions.runTools({ model: "local", messages, stream: true, tools: [
  { type: "function", function: { name: "add", parameters, parse: JSON.parse, function: ({ a, b }) => `${a + b}` } }] });
assert.equal(await runner.finalContent(), "The tool says 9.");
const schema = { type: "object", properties: { n: { enum: [1, 2] } }, required: ["n"], additionalProperties: false };
const typed = await client.chat.completions.create({ model: "local", messages: runner.messages, temperature: 0,
  response_format: { type: "json_schema", json_schema: { name: "n", strict: true, schema } } });
assert.ok([1, 2].includes(JSON.parse(typed.choices[0].message.content).n));
console.log("ok");
