// Makes typical calls of Anthropic's Messages API with the official Node client, against two regions of
// one service. harness.mjs describes the output and the environment.
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import { US, EU, KEY, TINY, call, failed, collect, outstanding, becomesZero, end } from './harness.mjs';

const options = { maxRetries: 0, timeout: 20_000 };
const at = (baseURL, apiKey = KEY) => new Anthropic({ baseURL, apiKey, authToken: null, ...options }); // sends x-api-key
const us = at(US);
const model = 'chat-small';
const cache_control = { type: 'ephemeral' };
const system = [{ type: 'text', text: 'Answer briefly. '.repeat(20), cache_control }];
const messages = [{ role: 'user', content: [{ type: 'text', text: 'Where do you run?', cache_control }] }];
const tools = [{ name: 'weather', description: 'The weather of a city', input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } }];

// rejected makes a call that must fail with an error of a kind, status and type.
async function rejected(make, kind, status, type) {
  const error = await failed(make, kind, status);
  assert.equal(error.type ?? error.error.error.type, type);
  assert.equal(error.error.type, 'error');
  assert.equal(error.error.request_id, error.requestID);
  return error;
}

let whole;
await call('messages', async () => {
  whole = await us.messages.create({ model, system, messages, max_tokens: 24 });
  assert.equal(whole.type, 'message');
  assert.equal(whole.usage.output_tokens, 24);
  assert.equal(whole.stop_reason, 'max_tokens');
  assert.ok(whole._request_id, 'the message has no request id');
  return JSON.stringify(whole.content[0].text.slice(0, 40));
});

await call('messages, other region', async () => {
  const bearer = new Anthropic({ baseURL: EU, apiKey: null, authToken: KEY, ...options }); // sends Authorization
  const message = await bearer.messages.create({ model, system, messages, max_tokens: 24 });
  assert.equal(message.usage.output_tokens, 24);
  return message.id;
});

await call('messages, streamed', async () => {
  const events = await collect(await us.messages.create({ model, system, messages, max_tokens: 24, stream: true }));
  const deltas = events.filter((e) => e.type === 'content_block_delta');
  assert.equal(deltas.map((e) => e.delta.text).join(''), whole.content[0].text);
  assert.equal(events[0].type, 'message_start');
  assert.equal(events.at(-1).type, 'message_stop');
  return `${events.length} events`;
});

await call('messages, stream helper', async () => {
  const message = await us.messages.stream({ model, system, messages, max_tokens: 24 }).finalMessage();
  assert.equal(message.content[0].text, whole.content[0].text);
  assert.equal(message.usage.output_tokens, 24);
  assert.ok(message.usage.cache_read_input_tokens > 0, 'the repeated prompt was not cached');
  return `${message.usage.input_tokens} tokens, ${message.usage.cache_read_input_tokens} cached`;
});

await call('next turn', async () => {
  const turn = [...messages, { role: 'assistant', content: whole.content }, { role: 'user', content: 'Why there?' }];
  const message = await us.messages.create({ model, system, messages: turn, max_tokens: 8 });
  assert.ok(message.usage.cache_read_input_tokens > whole.usage.input_tokens + whole.usage.cache_read_input_tokens, 'the answer was not cached');
  return `${message.usage.cache_read_input_tokens} cached`;
});

await call('tools', async () => {
  const first = await us.messages.create({ model, messages, tools, tool_choice: { type: 'any' }, max_tokens: 200 });
  const [use] = first.content;
  assert.equal(first.stop_reason, 'tool_use');
  assert.equal(use.type, 'tool_use');
  assert.equal(use.name, 'weather');
  assert.equal(typeof use.input.city, 'string');
  const result = { role: 'user', content: [{ type: 'tool_result', tool_use_id: use.id, content: 'sunny' }] };
  const turn = [...messages, { role: 'assistant', content: first.content }, result];
  const second = await us.messages.create({ model, messages: turn, tools, max_tokens: 8 });
  assert.equal(second.content[0].type, 'text');
  return `${use.name}(${JSON.stringify(use.input)})`;
});

await call('tools, streamed', async () => {
  const run = us.messages.stream({ model, messages, tools, tool_choice: { type: 'tool', name: 'weather' }, max_tokens: 200 });
  const [use] = (await run.finalMessage()).content;
  assert.equal(typeof use.input.city, 'string');
  return `${use.name}(${JSON.stringify(use.input)})`;
});

await call('countTokens', async () => {
  const { input_tokens } = await us.messages.countTokens({ model, system, messages });
  assert.equal(input_tokens, whole.usage.input_tokens + (whole.usage.cache_read_input_tokens ?? 0));
  return `${input_tokens} tokens`;
});

await call('models.list', async () => {
  const ids = (await collect(await us.models.list())).map((m) => m.id);
  assert.ok(ids.includes(model), ids.join());
  return ids.join(', ');
});

await call('400, no messages', async () => {
  const e = await failed(() => us.messages.create({ model, messages: [], max_tokens: 1 }), Anthropic.BadRequestError, 400);
  return e.message;
});

await call('400, guarded parameter', async () => {
  const source = { type: 'url', url: 'http://169.254.169.254/latest' };
  const guarded = { model, messages: [{ role: 'user', content: [{ type: 'image', source }] }], max_tokens: 1 };
  const e = await rejected(() => us.messages.create(guarded), Anthropic.BadRequestError, 400, 'invalid_request_error');
  return e.error.error.message;
});

await call('401, no such key', async () => {
  const e = await rejected(() => at(US, 'sk-wrong').messages.create({ model, messages, max_tokens: 1 }), Anthropic.AuthenticationError, 401, 'authentication_error');
  return e.error.error.message;
});

await call('404, unknown model', async () => {
  const e = await rejected(() => us.messages.create({ model: 'gpt-9', messages, max_tokens: 1 }), Anthropic.NotFoundError, 404, 'not_found_error');
  return e.error.error.message;
});

await call('429, over the limit', async () => {
  const tiny = at(US, TINY);
  await tiny.messages.create({ model, messages, max_tokens: 1 });
  const e = await rejected(() => tiny.messages.create({ model, messages, max_tokens: 1 }), Anthropic.RateLimitError, 429, 'rate_limit_error');
  assert.ok(Number(e.headers.get('retry-after')) > 0);
  return `${e.error.error.message}; retry after ${e.headers.get('retry-after')} s`;
});

await call('abort frees the slot', async () => {
  await becomesZero(outstanding);
  const stream = await us.messages.create({ model, messages, max_tokens: 8000, stream: true });
  let seen = 0;
  for await (const _ of stream) {
    if (++seen === 3) {
      assert.ok((await outstanding()) > 0, 'the request is not outstanding');
      stream.controller.abort();
    }
  }
  await becomesZero(outstanding);
  return `after ${seen} events`;
});

end();
