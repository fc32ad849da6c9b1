// Checks the balancer with a real engine: several processes of llama.cpp behind `skyserve lb`. The
// engines decode greedily, so every answer is known from a direct request. Each check prints a line;
// the first one that fails ends the run with exit code 1.
//
// Usage: node run.mjs DIRECTORY (for the model). It requires skyserve in the PATH.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as pause } from 'node:timers/promises';
import { contextLength, writeModel } from './model.mjs';

const directory = process.argv[2];
const modelFile = join(directory, 'tiny-random.gguf');
const model = 'tiny-random';
writeModel(modelFile);

const children = new Set();
process.on('exit', () => children.forEach((child) => child.kill('SIGKILL')));

// start starts a process and returns it with the first match of a pattern in its output.
async function start(command, args, output, pattern) {
  const child = spawn(command, args, { stdio: ['ignore', output === 'stdout' ? 'pipe' : 'ignore', output === 'stderr' ? 'pipe' : 'inherit'] });
  children.add(child);
  child.on('exit', () => children.delete(child));
  const lines = createInterface({ input: child[output] });
  for await (const line of lines) {
    const match = line.match(pattern);
    if (match) {
      child[output].resume();
      return { child, match };
    }
  }
  throw new Error(`${command} ${args.join(' ')} ended before it was ready`);
}

async function startEngine(id, port = 0, ...flags) {
  const args = [new URL('server.mjs', import.meta.url).pathname, '--model', modelFile, '--port', String(port), '--delay', '8', ...flags];
  const { child, match } = await start(process.execPath, args, 'stdout', /^listening on (\S+)/);
  return { id, child, url: match[1] };
}

async function startBalancer(engines) {
  const replicas = engines.flatMap((e) => ['--replica', `${e.id}=${e.url}`]);
  const args = ['lb', '--region', 'us', '--listen', '127.0.0.1:0', '--admin', '127.0.0.1:0', '--log-format', 'json', ...replicas];
  const { match } = await start('skyserve', args, 'stderr', /"public":"([^"]+)","admin":"([^"]+)"/);
  return { public: match[1], admin: match[2] };
}

// metric returns the sum of a metric's series that contain a label; undefined if there is none.
async function metric(url, name, label = '') {
  const lines = (await (await fetch(url + '/metrics')).text()).split('\n').filter((l) => l.startsWith(name) && l.includes(label) && !l.startsWith('#'));
  return lines.length === 0 ? undefined : lines.reduce((sum, l) => sum + Number(l.slice(l.lastIndexOf(' '))), 0);
}

async function becomes(what, check, within = 15_000) {
  let last;
  for (const end = Date.now() + within; Date.now() < end; await pause(50)) {
    if (await check().catch((error) => { last = error; })) return;
  }
  assert.fail(`not within ${within} ms: ${what}${last ? ` (${last})` : ''}`);
}

const post = (url, path, body, signal) => fetch(url + path, {
  method: 'POST', headers: { 'content-type': 'application/json' }, signal, body: typeof body === 'string' ? body : JSON.stringify(body),
});

// stream requests a stream and calls each with every piece of text. It returns the assembled response.
async function stream(url, path, body, each = () => {}, signal) {
  const res = await post(url, path, { model, stream: true, stream_options: { include_usage: true }, ...body }, signal);
  assert.equal(res.status, 200, res.ok ? '' : await res.text());
  const all = { text: '', replica: res.headers.get('x-skyserve-replica'), match: Number(res.headers.get('x-skyserve-prefix-match')), pieces: 0, ends: 0 };
  let rest = '';
  for await (const part of res.body.pipeThrough(new TextDecoderStream())) {
    const events = (rest + part).split('\n\n');
    rest = events.pop();
    for (const event of events) {
      if (event === 'data: [DONE]') { all.ends++; continue; }
      const chunk = JSON.parse(event.slice('data: '.length));
      if (chunk.error) { all.error = chunk.error; continue; }
      all.usage = chunk.usage ?? all.usage;
      const [choice] = chunk.choices;
      all.finish = choice?.finish_reason ?? all.finish;
      const text = choice?.delta?.content ?? choice?.text ?? '';
      if (text === '') continue;
      all.text += text;
      all.pieces++;
      await each(all);
    }
  }
  return all;
}

// words returns a text of n syllables.
function words(n, seed) {
  let text = '';
  for (let i = 0; i < n; i++) {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    text += 'bcdfghjklmnprstvz'[(seed >> 8) % 17] + 'aeiou'[(seed >> 16) % 5] + (i % 4 === 3 ? ' ' : '');
  }
  return text;
}

let passed = 0;
async function check(name, make) {
  try {
    console.log(`ok    ${name.padEnd(38)} ${await make()}`);
    passed++;
  } catch (error) {
    console.log(`FAIL  ${name.padEnd(38)} ${error.stack ?? error}`);
    console.log(`${passed} passed, 1 failed`);
    process.exit(1);
  }
}

const chat = '/v1/chat/completions', text = '/v1/completions';
const question = (n) => ({ messages: [{ role: 'user', content: words(12, n) }], max_tokens: 120 });
const engines = await Promise.all(['e0', 'e1', 'e2'].map((id) => startEngine(id)));
const lb = await startBalancer(engines);
const engineOf = (id) => engines.find((e) => e.id === id);
const proven = (id) => metric(lb.admin, 'skyserve_replica_continues_streams', `replica="${id}"`);

await check('engines are ready and proven', async () => {
  for (const e of engines) {
    await becomes(`${e.id} is proven to continue streams`, async () => (await proven(e.id)) === 1);
  }
  const tokens = await metric(engines[0].url, 'vllm:generation_tokens_total');
  assert.ok(tokens <= 5, `the check generated ${tokens} tokens`);
  return `${engines.length} engines, ${tokens} tokens each for the proof`;
});

await check('streams equal direct answers', async () => {
  const seeds = [1, 2, 3, 4, 5, 6];
  const texts = [];
  for (const n of seeds) { // One at a time: llama.cpp's sums, and with them close decisions, depend on the sequences that share a step.
    const direct = await stream(engines[n % 3].url, chat, question(n));
    const balanced = await stream(lb.public, chat, question(n));
    assert.equal(balanced.text, direct.text);
    texts.push(balanced.text);
  }
  assert.equal(new Set(texts).size, seeds.length, 'different questions have the same answer');
  return `${seeds.length} questions, ${texts[0].length} bytes each: ${JSON.stringify(texts[0].slice(0, 24))}`;
});

await check('parallel streams end once and are whole', async () => {
  const seeds = [1, 2, 3, 4, 5, 6];
  for (const result of await Promise.all(seeds.map((n) => stream(lb.public, chat, question(n))))) {
    assert.equal(result.finish, 'length');
    assert.equal(result.ends, 1);
    assert.equal(result.usage.completion_tokens, 120);
    assert.notEqual(result.text, '');
  }
  return `${seeds.length} in parallel`;
});

await check('a whole answer equals its stream', async () => {
  const streamed = await stream(engines[0].url, chat, question(1));
  const whole = await (await post(lb.public, chat, { model, ...question(1) })).json();
  assert.equal(whole.choices[0].message.content, streamed.text);
  return `${whole.usage.total_tokens} tokens`;
});

await check('a disconnect stops decoding', async () => {
  const leave = new AbortController();
  let replica;
  await assert.rejects(stream(lb.public, chat, { ...question(7), max_tokens: 900 }, async (all) => {
    replica = all.replica;
    if (all.pieces === 5) leave.abort();
  }, leave.signal), { name: 'AbortError' });
  const { url } = engineOf(replica);
  await becomes('the engine runs nothing', async () => (await metric(url, 'vllm:num_requests_running')) === 0, 3_000);
  const [before, aborted] = [await metric(url, 'vllm:generation_tokens_total'), await metric(url, 'vllm:request_success_total', 'abort')];
  await pause(300);
  assert.equal(await metric(url, 'vllm:generation_tokens_total'), before, 'the engine still generates');
  assert.equal(aborted, 1);
  return 'running 0, no further tokens of 900';
});

// killed streams a request and kills its engine after some pieces.
async function killed(url, path, body, after) {
  let victim;
  const result = await stream(url, path, body, async (all) => {
    if (all.pieces === after) {
      victim = engineOf(all.replica);
      victim.child.kill('SIGKILL');
    }
  });
  return { ...result, victim };
}

// revive starts a killed engine again, at the same URL.
async function revive(victim) {
  Object.assign(victim, await startEngine(victim.id, new URL(victim.url).port));
  await becomes(`${victim.id} is proven again`, async () => (await proven(victim.id)) === 1);
}

for (const [name, path, body] of [
  ['kill -9 within a chat', chat, question(8)],
  ['kill -9 within a completion', text, { prompt: words(10, 9), max_tokens: 120 }],
]) {
  await check(name, async () => {
    const direct = await stream(engines[0].url, path, body);
    const whole = await metric(lb.admin, 'skyserve_continuations_total', 'outcome="whole"') ?? 0;
    const got = await killed(lb.public, path, body, 30);
    assert.equal(got.error, undefined);
    assert.equal(got.text, direct.text);
    assert.equal(got.usage.completion_tokens, 120);
    assert.equal(got.usage.prompt_tokens, direct.usage.prompt_tokens);
    assert.equal(await metric(lb.admin, 'skyserve_continuations_total', 'outcome="whole"'), whole + 1);
    await revive(got.victim);
    return `${got.victim.id} killed after 30 of 120 tokens; the text is the uninterrupted answer's`;
  });
}

await check('a killed engine without continuation', async () => {
  const other = await Promise.all(['e0', 'e1'].map((id) => startEngine(id, 0, '--ignore-continue')));
  const beside = await startBalancer(other);
  for (const e of other) {
    await becomes(`${e.id} is unproven`, async () => (await metric(beside.admin, 'skyserve_replica_continues_streams', `replica="${e.id}"`)) === 0);
  }
  const direct = await stream(engines[0].url, chat, question(8));
  const got = await stream(beside.public, chat, question(8), async (all) => {
    if (all.pieces === 30) other.find((e) => e.id === all.replica).child.kill('SIGKILL');
  });
  assert.equal(got.error?.code, 'replica_failed');
  assert.equal(got.ends, 0);
  assert.ok(direct.text.startsWith(got.text), 'the client received text of another answer');
  assert.equal(await metric(beside.admin, 'skyserve_continuations_total', 'outcome="unproven"'), 1);
  return `continue_final_message ignored: ${got.pieces} tokens, then the error ${got.error.code}`;
});

await check('the second turn is cached', async () => {
  const first = [{ role: 'user', content: words(150, 11) }];
  const answer = await stream(lb.public, chat, { messages: first, max_tokens: 150 });
  await Promise.all([21, 22].map((n) => stream(lb.public, chat, { messages: [{ role: 'user', content: words(150, n) }], max_tokens: 20 })));
  const second = [...first, { role: 'assistant', content: answer.text }, { role: 'user', content: words(20, 12) }];
  const next = await stream(lb.public, chat, { messages: second, max_tokens: 20 });
  const cached = next.usage.prompt_tokens_details.cached_tokens, share = cached / next.usage.prompt_tokens;
  assert.equal(next.replica, answer.replica, 'the second turn went to another engine');
  assert.ok(cached > 0);
  assert.ok(Math.abs(share - next.match) < 0.15, `the engine's share is ${share.toFixed(3)}, X-Skyserve-Prefix-Match ${next.match}`);
  return `${cached} of ${next.usage.prompt_tokens} tokens (${share.toFixed(3)}), X-Skyserve-Prefix-Match ${next.match.toFixed(3)}`;
});

const messages = [{ role: 'user', content: 'x' }];
for (const [name, path, body, status, message] of [
  ['error: context too long', chat, { model, messages: [{ role: 'user', content: words(1100, 1) }], max_tokens: 1 }, 400, `maximum context length is ${contextLength}`],
  ['error: max_tokens too large', chat, { model, messages, max_tokens: 5000 }, 400, `maximum context length is ${contextLength}`],
  ['error: max_tokens negative', chat, { model, messages, max_tokens: -1 }, 400, 'max_tokens'],
  ['error: no messages', chat, { model, messages: [] }, 400, 'messages'],
  ['error: not JSON', chat, '{"model":', 400, ''],
  ['error: unknown model', text, { model: 'other', prompt: 'x' }, 404, 'other'],
]) {
  await check(name, async () => {
    const res = await post(lb.public, path, body);
    const { error } = await res.json();
    assert.equal(res.status, status);
    assert.ok(error.message.includes(message), error.message);
    assert.ok(error.type, 'the error has no type');
    return `${status} ${error.message.slice(0, 70)}`;
  });
}

await check('nothing is left running', async () => {
  await becomes('all counts are zero', async () => {
    const running = await Promise.all(engines.map((e) => metric(e.url, 'vllm:num_requests_running')));
    return (await metric(lb.admin, 'skyserve_in_flight')) === 0 && running.every((n) => n === 0);
  });
  const hits = await Promise.all(engines.map((e) => metric(e.url, 'vllm:prefix_cache_hits_total')));
  return `cached tokens by engine: ${hits.join(', ')}`;
});

console.log(`${passed} passed, 0 failed`);
process.exit(0);
