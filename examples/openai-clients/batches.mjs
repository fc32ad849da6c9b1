// Makes the calls of OpenAI's Files and Batches APIs with the official Node client, against two regions of
// one service. harness.mjs describes the output and the environment.
import assert from 'node:assert/strict';
import { setTimeout as pause } from 'node:timers/promises';
import OpenAI, { toFile } from 'openai';
import { US, EU, KEY, call, collect, failed, end } from './harness.mjs';

const at = (url) => new OpenAI({ baseURL: url + '/v1', apiKey: KEY, maxRetries: 0, timeout: 20_000 });
const us = at(US);
const eu = at(EU);
const model = 'chat-small';
const endpoint = '/v1/chat/completions';
const completion_window = '24h';

// request returns a line of an input file.
const request = (id, body) => JSON.stringify({ custom_id: id, method: 'POST', url: endpoint, body: { model, max_tokens: 8, ...body } });
const question = (id) => request(id, { messages: [{ role: 'user', content: `Question ${id}?` }] });
const upload = (lines) => toFile(Buffer.from(lines.join('\n')), 'requests.jsonl').then((file) => us.files.create({ file, purpose: 'batch' }));

// ended waits until a batch has a final status.
async function ended(id, within = 60_000) {
  for (const until = Date.now() + within; Date.now() < until; await pause(200)) {
    const batch = await eu.batches.retrieve(id);
    if (['completed', 'failed', 'expired', 'cancelled'].includes(batch.status)) return batch;
  }
  return assert.fail(`${id} has not ended after ${within} ms`);
}

// rejected makes a call that must fail with an error of a kind, status and code.
async function rejected(make, kind, status, code) {
  const error = await failed(make, kind, status);
  assert.equal(error.code, code);
  return error.message;
}

let input;
const ids = Array.from({ length: 40 }, (_, i) => `q-${i}`);
await call('files.create', async () => {
  input = await upload(ids.map(question));
  assert.equal(input.object, 'file');
  assert.equal(input.purpose, 'batch');
  assert.equal(input.filename, 'requests.jsonl');
  assert.equal(input.status, 'processed');
  return `${input.id}, ${input.bytes} bytes`;
});

await call('files.retrieve, other region', async () => {
  assert.deepEqual(await eu.files.retrieve(input.id), input);
  assert.deepEqual(await eu.files.waitForProcessing(input.id), input);
  return input.filename;
});

let batch;
await call('batches.create', async () => {
  batch = await us.batches.create({ input_file_id: input.id, endpoint, completion_window, metadata: { job: 'night' } });
  assert.equal(batch.object, 'batch');
  assert.equal(batch.status, 'validating');
  assert.equal(batch.expires_at - batch.created_at, 24 * 3600);
  assert.deepEqual(batch.metadata, { job: 'night' });
  return batch.id;
});

await call('batches.retrieve, completed', async () => {
  batch = await ended(batch.id);
  assert.equal(batch.status, 'completed');
  assert.deepEqual(batch.request_counts, { total: 40, completed: 40, failed: 0 });
  assert.equal(batch.model, model);
  const { usage } = batch;
  assert.equal(usage.output_tokens, 40 * 8);
  assert.ok(usage.input_tokens > 40);
  assert.equal(usage.total_tokens, usage.input_tokens + usage.output_tokens);
  assert.equal(typeof usage.input_tokens_details.cached_tokens, 'number');
  assert.equal(usage.output_tokens_details.reasoning_tokens, 0);
  assert.ok(batch.in_progress_at >= batch.created_at && batch.completed_at >= batch.finalizing_at);
  assert.ok(!batch.errors && !batch.error_file_id);
  return `${usage.total_tokens} tokens`;
});

await call('files.content', async () => {
  const text = await (await us.files.content(batch.output_file_id)).text();
  const lines = text.trimEnd().split('\n').map((line) => JSON.parse(line));
  assert.deepEqual(lines.map((line) => line.custom_id), ids);
  for (const { response, error } of lines) {
    assert.equal(error, null);
    assert.equal(response.status_code, 200);
    assert.ok(response.request_id);
    assert.equal(response.body.usage.completion_tokens, 8);
  }
  return `${lines.length} lines`;
});

await call('batches.list, by pages', async () => {
  const second = await us.batches.create({ input_file_id: input.id, endpoint, completion_window });
  const all = await collect(eu.batches.list({ limit: 1 }));
  assert.deepEqual(all.map((b) => b.id), [second.id, batch.id]);
  await ended(second.id);
  return `${all.length} batches`;
});

await call('files.list, by purpose', async () => {
  const inputs = await collect(us.files.list({ purpose: 'batch', limit: 1 }));
  assert.deepEqual(inputs.map((f) => f.id), [input.id]);
  const outputs = await collect(us.files.list({ purpose: 'batch_output', order: 'asc' }));
  assert.equal(outputs[0].id, batch.output_file_id);
  return `${inputs.length} input, ${outputs.length} outputs`;
});

await call('batches.create, responses', async () => {
  const line = JSON.stringify({ custom_id: 'r', method: 'POST', url: '/v1/responses', body: { model, input: 'Hello', max_output_tokens: 16 } });
  const made = await us.batches.create({ input_file_id: (await upload([line])).id, endpoint: '/v1/responses', completion_window });
  const { status, usage } = await ended(made.id);
  assert.equal(status, 'completed');
  assert.equal(usage.output_tokens, 16);
  return `${usage.total_tokens} tokens`;
});

await call('batches.create, embeddings', async () => {
  const line = JSON.stringify({ custom_id: 'e', method: 'POST', url: '/v1/embeddings', body: { model, input: 'river' } });
  const made = await us.batches.create({
    input_file_id: (await upload([line])).id, endpoint: '/v1/embeddings', completion_window,
    output_expires_after: { anchor: 'created_at', seconds: 3600 },
  });
  const { output_file_id, usage } = await ended(made.id);
  const output = await us.files.retrieve(output_file_id);
  assert.equal(output.purpose, 'batch_output');
  assert.ok(output.expires_at > output.created_at);
  assert.ok(usage.input_tokens > 0 && usage.output_tokens === 0);
  return `${usage.total_tokens} tokens`;
});

await call('failed requests of a batch', async () => {
  const lines = [question('good'), request('bad', { messages: 'none' })];
  const made = await us.batches.create({ input_file_id: (await upload(lines)).id, endpoint, completion_window });
  const { status, request_counts, error_file_id } = await ended(made.id);
  assert.equal(status, 'completed');
  assert.deepEqual(request_counts, { total: 2, completed: 1, failed: 1 });
  const [line] = (await (await us.files.content(error_file_id)).text()).trimEnd().split('\n').map((text) => JSON.parse(text));
  assert.equal(line.custom_id, 'bad');
  assert.equal(line.response.status_code, 400);
  return line.response.body.error.message;
});

await call('errors of an invalid input', async () => {
  const lines = [question('a'), '{', question('a'), request('b', { model: 'gpt-9', messages: [] })];
  const made = await us.batches.create({ input_file_id: (await upload(lines)).id, endpoint, completion_window });
  const { status, errors } = await ended(made.id);
  assert.equal(status, 'failed');
  assert.equal(errors.object, 'list');
  assert.deepEqual(errors.data.map((e) => [e.line, e.code]), [[2, 'invalid_json_line'], [3, 'duplicate_custom_id'], [4, 'model_not_found']]);
  assert.ok(errors.data.every((e) => e.message && e.param !== undefined));
  return `${errors.data.length} errors`;
});

await call('batches.cancel', async () => {
  // As many tokens as fit into the engine's context of 21,000: a longer request fails at once, before it is cancelled.
  const long = request('long', { messages: [{ role: 'user', content: 'x' }], max_tokens: 20_000, ignore_eos: true });
  const made = await us.batches.create({ input_file_id: (await upload([long])).id, endpoint, completion_window });
  const cancelled = await eu.batches.cancel(made.id);
  assert.equal(cancelled.status, 'cancelling', JSON.stringify(cancelled));
  const last = await ended(made.id);
  assert.equal(last.status, 'cancelled');
  assert.ok(last.cancelled_at >= last.cancelling_at);
  return rejected(() => us.batches.cancel(made.id), OpenAI.ConflictError, 409, 'batch_ended');
});

await call('400, 404 of batches', async () => {
  await rejected(() => us.batches.create({ input_file_id: 'file-none', endpoint, completion_window }), OpenAI.NotFoundError, 404, 'file_not_found');
  await rejected(() => us.batches.retrieve('batch_none'), OpenAI.NotFoundError, 404, 'batch_not_found');
  await rejected(() => us.batches.create({ input_file_id: input.id, endpoint: '/v1/moderations', completion_window }), OpenAI.BadRequestError, 400, 'invalid_value');
  const file = await toFile(Buffer.from('{}'), 'x.jsonl');
  return rejected(() => us.files.create({ file, purpose: 'assistants' }), OpenAI.BadRequestError, 400, 'invalid_value');
});

await call('files.delete', async () => {
  const { id, deleted, object } = await eu.files.delete(batch.output_file_id);
  assert.ok(deleted && object === 'file' && id === batch.output_file_id);
  return rejected(() => us.files.content(id), OpenAI.NotFoundError, 404, 'file_not_found');
});

end();
