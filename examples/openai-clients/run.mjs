// Makes typical calls of OpenAI's API with the official Node client, against two regions of one
// service. harness.mjs describes the output and the environment.
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { US, EU, KEY, SMALL, call, failed, collect, outstanding, becomesZero, end } from './harness.mjs';

const at = (url, apiKey = KEY) => new OpenAI({ baseURL: url + '/v1', apiKey, maxRetries: 0, timeout: 20_000 });
const us = at(US);
const eu = at(EU);
const model = 'chat-small';
const messages = [{ role: 'user', content: 'Where do you run?' }];

// rejected makes a call that must fail with an error of a kind, status and code.
async function rejected(make, kind, status, code) {
  const error = await failed(make, kind, status);
  assert.equal(error.code, code);
  return error;
}

await call('models.list', async () => {
  const ids = (await collect(await us.models.list())).map((m) => m.id);
  assert.ok(ids.includes(model), ids.join());
  return ids.join(', ');
});

await call('models.retrieve', async () => (await us.models.retrieve(model)).id);

let whole;
await call('chat', async () => {
  const completion = await us.chat.completions.create({ model, messages, max_tokens: 24 });
  whole = completion.choices[0].message.content;
  assert.equal(completion.usage.completion_tokens, 24);
  assert.equal(completion.choices[0].finish_reason, 'length');
  return JSON.stringify(whole.slice(0, 40));
});

await call('chat, streamed', async () => {
  const chunks = await collect(await us.chat.completions.create({ model, messages, max_tokens: 24, stream: true }));
  assert.equal(chunks.map((c) => c.choices[0].delta.content).join(''), whole);
  assert.ok(chunks.every((c) => !c.usage), 'usage in a stream without include_usage');
  return `${chunks.length} chunks`;
});

await call('chat, streamed with usage', async () => {
  const chunks = await collect(await us.chat.completions.create({
    model, messages, max_tokens: 24, stream: true, stream_options: { include_usage: true },
  }));
  const last = chunks.at(-1);
  assert.deepEqual(last.choices, []);
  assert.equal(last.usage.completion_tokens, 24);
  assert.ok(last.usage.prompt_tokens_details.cached_tokens > 0, 'the repeated prompt was not cached');
  return `${last.usage.total_tokens} tokens, ${last.usage.prompt_tokens_details.cached_tokens} cached`;
});

await call('chat, stream helper', async () => {
  const completion = await us.chat.completions.stream({ model, messages, max_tokens: 24 }).finalChatCompletion();
  assert.equal(completion.choices[0].message.content, whole);
  return completion.choices[0].finish_reason;
});

const tools = [{
  type: 'function',
  function: { name: 'weather', parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false } },
}];
await call('tools', async () => {
  const first = await us.chat.completions.create({ model, messages, tools, tool_choice: 'required' });
  const [made] = first.choices[0].message.tool_calls;
  assert.equal(first.choices[0].finish_reason, 'tool_calls');
  assert.equal(made.function.name, 'weather');
  assert.equal(typeof JSON.parse(made.function.arguments).city, 'string');
  const turn = [...messages, first.choices[0].message, { role: 'tool', tool_call_id: made.id, content: 'sunny' }];
  const second = await us.chat.completions.create({ model, messages: turn, tools, max_tokens: 8 });
  assert.equal(second.usage.completion_tokens, 8);
  return `${made.function.name}(${made.function.arguments})`;
});

await call('tools, streamed', async () => {
  const run = us.chat.completions.stream({ model, messages, tools, tool_choice: { type: 'function', function: { name: 'weather' } } });
  const [made] = (await run.finalChatCompletion()).choices[0].message.tool_calls;
  assert.equal(typeof JSON.parse(made.function.arguments).city, 'string');
  return `${made.function.name}(${made.function.arguments})`;
});

await call('structured output', async () => {
  const schema = { type: 'object', properties: { city: { type: 'string' }, size: { enum: ['small', 'large'] } }, required: ['city', 'size'], additionalProperties: false };
  const completion = await us.chat.completions.parse({
    model, messages, response_format: { type: 'json_schema', json_schema: { name: 'place', strict: true, schema } },
  });
  const place = JSON.parse(completion.choices[0].message.content);
  assert.ok(['small', 'large'].includes(place.size), JSON.stringify(place));
  return JSON.stringify(place);
});

await call('completions', async () => {
  const completion = await us.completions.create({ model, prompt: 'Once upon a time', max_tokens: 8 });
  assert.equal(completion.usage.completion_tokens, 8);
  return JSON.stringify(completion.choices[0].text);
});

await call('embeddings', async () => {
  const { data } = await us.embeddings.create({ model, input: ['river', 'market'], dimensions: 8 });
  assert.deepEqual(data.map((e) => e.embedding.length), [8, 8]);
  assert.ok(data.flatMap((e) => e.embedding).every(Number.isFinite));
  return `${data.length} of ${data[0].embedding.length}`;
});

let first;
await call('responses', async () => {
  first = await us.responses.create({ model, input: 'Where do you run?', max_output_tokens: 16 });
  assert.ok(first.output_text);
  assert.equal(first.usage.output_tokens, 16);
  return first.id;
});

await call('responses, next turn', async () => {
  const next = await us.responses.create({ model, input: 'Why there?', previous_response_id: first.id, max_output_tokens: 16 });
  assert.ok(next.usage.input_tokens > first.usage.input_tokens);
  assert.ok(next.usage.input_tokens_details.cached_tokens > 0, 'the previous turn was not cached');
  return `${next.usage.input_tokens} tokens in, ${next.usage.input_tokens_details.cached_tokens} cached`;
});

await call('responses, other region', async () => {
  const next = await eu.responses.create({ model, input: 'And here?', previous_response_id: first.id, max_output_tokens: 16 });
  assert.ok(next.usage.input_tokens > first.usage.input_tokens);
  return next.previous_response_id;
});

await call('responses, retrieved', async () => {
  for (const client of [us, eu]) {
    const again = await client.responses.retrieve(first.id);
    assert.equal(again.output_text, first.output_text);
  }
  const items = await collect(await us.responses.inputItems.list(first.id));
  assert.equal(items[0].content[0].text, 'Where do you run?');
  return `${items.length} input item`;
});

await call('responses, deleted', async () => {
  await eu.responses.delete(first.id);
  await rejected(() => us.responses.retrieve(first.id), OpenAI.NotFoundError, 404, 'response_not_found');
  const lost = { model, input: 'x', previous_response_id: first.id };
  const e = await rejected(() => us.responses.create(lost), OpenAI.BadRequestError, 400, 'previous_response_not_found');
  return e.message;
});

await call('responses, streamed', async () => {
  const events = await collect(await us.responses.create({ model, input: 'Hello', max_output_tokens: 16, stream: true }));
  const text = events.filter((e) => e.type === 'response.output_text.delta').map((e) => e.delta).join('');
  assert.equal(events.at(-1).response.output[0].content[0].text, text);
  return `${events.length} events`;
});

await call('404, unknown model', async () => {
  const e = await rejected(() => us.chat.completions.create({ model: 'gpt-9', messages }), OpenAI.NotFoundError, 404, 'model_not_found');
  return e.message;
});

await call('400, unknown response', async () => {
  const lost = { model, input: 'x', previous_response_id: 'resp_of_another_time' };
  const e = await rejected(() => us.responses.create(lost), OpenAI.BadRequestError, 400, 'previous_response_not_found');
  return e.message;
});

await call('401, no such key', async () => {
  const e = await rejected(() => at(US, 'sk-wrong').chat.completions.create({ model, messages }), OpenAI.AuthenticationError, 401, 'invalid_api_key');
  return e.message;
});

await call('429, over the limit', async () => {
  const small = at(US, SMALL);
  await small.chat.completions.create({ model, messages, max_tokens: 1 });
  const again = () => small.chat.completions.create({ model, messages, max_tokens: 1 });
  const e = await rejected(again, OpenAI.RateLimitError, 429, 'rate_limit_exceeded');
  assert.ok(Number(e.headers.get('retry-after')) > 0);
  return `${e.message}; retry after ${e.headers.get('retry-after')} s`;
});

await call('abort frees the slot', async () => {
  await becomesZero(outstanding);
  const stream = await us.chat.completions.create({ model, messages, max_tokens: 8000, stream: true, ignore_eos: true });
  let seen = 0;
  for await (const _ of stream) {
    if (++seen === 3) {
      assert.ok((await outstanding()) > 0, 'the request is not outstanding');
      stream.controller.abort();
    }
  }
  await becomesZero(outstanding);
  return `after ${seen} chunks of 8000`;
});

end();
