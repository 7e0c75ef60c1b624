// openai's client for JavaScript, field by field, on a server that begun with tools.jinja:
//
//   node fields.mjs URL
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
assert.equal((await client.models.retrieve(model)).id, model);

const prompt = "### math\n1. 31 * 7\n2. 205 - 106\n### answer\n";
const messages = [{ role: "user", content: prompt }];
const say = async more =>
  (await client.completions.create({ model, prompt, max_tokens: 24, temperature: 0, ...more }));
const text = async more => (await say(more)).choices[0].text;
const chat = more =>
  client.chat.completions.create({ model, messages, max_tokens: 24, temperature: 0, ...more });
const all = async stream => { const found = []; for await (const e of stream) found.push(e); return found; };

const greedy = await text();
const cases = {
  "stream, usage": async () => {
    const options = { include_usage: true, continuous_usage_stats: true };
    const events = await all(await say({ stream: true, stream_options: options }));
    assert.equal(events.map(e => e.choices[0]?.text ?? "").join(""), greedy);
    assert.ok(events.every(e => e.usage.completion_tokens >= 0));
    assert.ok(events.at(-1).metrics.speculative_decoding.num_spec_tokens > 0);
  },
  "n, seed": async () => {
    const more = { n: 3, seed: 7, temperature: 3, draftwise: { preset: "plain" } };
    const [one, two] = [await say(more), await say(more)].map(m => m.choices.map(c => c.text));
    assert.equal(one.length, 3);
    assert.deepEqual(one, two);
    assert.notEqual(one[0], one[1]);
  },
  stop: async () => {
    const stop = greedy.slice(4, 6);
    const { choices: [choice] } = await say({ stop: [stop] });
    assert.equal(choice.text, greedy.slice(0, greedy.indexOf(stop)));
    assert.equal(choice.finish_reason, "stop");
  },
  "max_tokens, ignore_eos": async () => {
    const made = await say({ max_tokens: 70, ignore_eos: true });
    assert.equal(made.usage.completion_tokens, 70);
    assert.equal(made.choices[0].finish_reason, "length");
  },
  "temperature, top_p, top_k, min_p": async () => {
    for (const one of [{ top_p: 1e-6 }, { top_k: 1 }, { min_p: 1 }]) {
      assert.equal(await text({ temperature: 1.5, ...one }), greedy);
    }
  },
  "penalties, logit_bias": async () => {
    const long = { max_tokens: 60, ignore_eos: true, temperature: 3, seed: 1, draftwise: { preset: "plain" } };
    const plain = await text(long);
    assert.equal(await text(long), plain);
    for (const one of [{ repetition_penalty: 3 }, { presence_penalty: 2 }, { frequency_penalty: 2 }]) {
      assert.notEqual(await text({ ...long, ...one }), plain, JSON.stringify(one));
    }
    const forced = await say({ logit_bias: { 65: 100 }, max_tokens: 3, logprobs: 0 });
    assert.equal(new Set(forced.choices[0].logprobs.tokens).size, 1);
  },
  "token ids, echo, logprobs": async () => {
    for (const max_tokens of [0, 1]) {
      const more = { prompt: [[65, 66, 67], [70, 71]], max_tokens, echo: true, logprobs: 2 };
      const made = await say(more);
      const lengths = made.choices.map(c => c.logprobs.token_logprobs.length);
      assert.deepEqual(lengths, [3 + max_tokens, 2 + max_tokens]);
      assert.equal(made.choices[0].logprobs.token_logprobs[0], null);
      assert.equal(made.usage.completion_tokens, 2 * max_tokens);
    }
  },
  "several prompts": async () => {
    const made = await say({ prompt: [prompt, "a b c", prompt] });
    assert.deepEqual([made.choices[0].text, made.choices[2].text], [greedy, greedy]);
  },
  "chat, logprobs, max_completion_tokens": async () => {
    const made = await chat({ max_tokens: undefined, max_completion_tokens: 5, logprobs: true,
      top_logprobs: 3, user: "someone", ignore_eos: true });
    assert.equal(made.choices[0].logprobs.content.length, 5);
    assert.equal(made.choices[0].logprobs.content[0].top_logprobs.length, 3);
    const events = await all(await chat({ stream: true }));
    const whole = (await chat()).choices[0].message.content;
    assert.equal(events.map(e => e.choices[0].delta.content ?? "").join(""), whole);
  },
  "response_format, structured_outputs": async () => {
    const schema = { type: "object", properties: { n: { type: "integer", maximum: 99, minimum: 0 } },
      required: ["n"], additionalProperties: false };
    const made = await chat({ response_format: { type: "json_schema", json_schema: { name: "n", schema } } });
    assert.deepEqual(Object.keys(JSON.parse(made.choices[0].message.content)), ["n"]);
    const free = await chat({ max_tokens: 60, response_format: { type: "json_object" } });
    assert.ok(free.choices[0].message.content.startsWith("{"));
    assert.match(await text({ structured_outputs: { regex: "(ab|cd){2,3}e" } }), /^(ab|cd){2,3}e$/);
    assert.ok(["yes", "no"].includes(await text({ structured_outputs: { choice: ["yes", "no"] } })));
  },
  "tools, tool_choice": async () => {
    const parameters = { type: "object", properties: { on: { type: "boolean" } }, required: ["on"],
      additionalProperties: false };
    const tools = [{ type: "function", function: { name: "light", parameters } }];
    for (const tool_choice of ["required", { type: "function", function: { name: "light" } }]) {
      const made = await chat({ tools, tool_choice, max_tokens: 60 });
      const [call] = made.choices[0].message.tool_calls;
      assert.equal(typeof JSON.parse(call.function.arguments).on, "boolean");
      assert.equal(made.choices[0].finish_reason, "tool_calls");
    }
    for (const tool_choice of ["none", "auto"]) {
      assert.ok(!(await chat({ tools, tool_choice })).choices[0].message.tool_calls);
    }
  },
  draftwise: async () => {
    for (const own of [{ preset: "plain" }, { preset: "banditspec", plans: [1, 3] },
      { policy: "exp3spec", label: "math", tenant: "t", private: true, priority: 1, pieces: true }]) {
      assert.equal(await text({ draftwise: own }), greedy);
    }
    await assert.rejects(text({ max_tokens: 200, draftwise: { deadline_s: 1e-3 } }), { status: 408 });
  },
  refusals: async () => {
    await assert.rejects(text({ frob: 1 }), OpenAI.BadRequestError);
    await assert.rejects(client.completions.create({ model: "gpt-4", prompt }), OpenAI.NotFoundError);
  },
};
for (const [name, run] of Object.entries(cases)) {
  await run();
  console.log("ok", name);
}
