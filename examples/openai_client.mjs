// openai's client for JavaScript on a server of draftwise.
//
//   draftwise serve &                     # http://127.0.0.1:8000
//   npm install openai
//   node examples/openai_client.mjs [URL]
import OpenAI from "openai";

const url = process.argv[2] ?? "http://127.0.0.1:8000";
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const model = (await client.models.list()).data[0].id;
const content = "### math\n1. 31 * 7\n2. 205 - 106\n### answer\n";

const stream = await client.chat.completions.create({
  model,
  messages: [{ role: "user", content }],
  max_tokens: 40,
  temperature: 0,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
  if (chunk.usage) console.log("\n", chunk.usage, chunk.metrics.speculative_decoding);
}
