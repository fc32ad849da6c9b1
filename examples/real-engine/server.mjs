// Serves OpenAI's API over the engine, with vLLM's metrics, as vLLM serves it.
//
//   node server.mjs --model FILE --port N --delay MILLISECONDS [--ignore-continue]
//
// --ignore-continue ignores continue_final_message, as vLLM does for gpt-oss.
import { createServer } from 'node:http';
import { parseArgs } from 'node:util';
import { Template } from '@huggingface/jinja';
import { Engine } from './engine.mjs';
import { contextLength } from './model.mjs';

const { values: flags } = parseArgs({
  options: {
    model: { type: 'string' }, port: { type: 'string' }, delay: { type: 'string', default: '0' },
    'ignore-continue': { type: 'boolean', default: false },
  },
});
const name = 'tiny-random';
const engine = await Engine.load(flags.model, 4, Number(flags.delay));
const template = new Template(engine.template);

// Refusal is an error of a request.
class Refusal extends Error {
  constructor(status, message, param = null) {
    super(message);
    Object.assign(this, { status, param });
  }
}

// maxTokens returns the limit of an answer.
function maxTokens(body, fallback) {
  const key = body.max_completion_tokens == null ? 'max_tokens' : 'max_completion_tokens';
  const value = body[key] ?? fallback;
  if (!Number.isInteger(value) || value < 1) throw new Refusal(400, `${key} must be a positive integer, got ${JSON.stringify(value)}`, key);
  return value;
}

// chatPrompt returns the tokens of a chat.
function chatPrompt(body) {
  const { messages } = body;
  if (!Array.isArray(messages) || messages.length === 0) throw new Refusal(400, 'messages must be a list with at least one message', 'messages');
  for (const [i, m] of messages.entries()) {
    if (!['system', 'user', 'assistant'].includes(m?.role)) throw new Refusal(400, `messages[${i}].role is invalid`, 'messages');
    if (typeof m.content !== 'string') throw new Refusal(400, `messages[${i}].content must be a string`, 'messages');
  }
  const open = body.continue_final_message === true && !flags['ignore-continue'];
  const generate = flags['ignore-continue'] || (body.add_generation_prompt ?? true);
  if (open && generate) throw new Refusal(400, 'continue_final_message requires add_generation_prompt: false', 'continue_final_message');
  let text = template.render({ messages, add_generation_prompt: generate });
  if (open) {
    const { content } = messages.at(-1);
    text = text.slice(0, text.lastIndexOf(content) + content.length); // as transformers does
  }
  return engine.tokenize(text, true);
}

function textPrompt(body) {
  if (typeof body.prompt !== 'string' || body.prompt === '') throw new Refusal(400, 'prompt must be a text', 'prompt');
  return engine.tokenize(body.prompt, false);
}

// The endpoints: how a prompt is read, and what pieces of a response look like.
const endpoints = {
  '/v1/chat/completions': {
    id: 'chatcmpl', object: 'chat.completion', chunk: 'chat.completion.chunk', prompt: chatPrompt, fallback: contextLength,
    piece: (text, first) => ({ delta: first ? { role: 'assistant', content: text } : { content: text } }),
    whole: (content) => ({ message: { role: 'assistant', content } }),
  },
  '/v1/completions': {
    id: 'cmpl', object: 'text_completion', chunk: 'text_completion', prompt: textPrompt, fallback: 16,
    piece: (text) => ({ text }), whole: (text) => ({ text }),
  },
};

// readRequest reads and checks a body.
async function readRequest(req, endpoint) {
  let body;
  try {
    const parts = [];
    for await (const part of req) parts.push(part);
    body = JSON.parse(Buffer.concat(parts));
  } catch {
    throw new Refusal(400, 'the body is not valid JSON');
  }
  if (body.model !== name) throw new Refusal(404, `The model \`${body.model}\` does not exist.`, 'model');
  const prompt = endpoint.prompt(body);
  const room = contextLength - prompt.length;
  const wanted = maxTokens(body, Math.max(1, Math.min(endpoint.fallback, room)));
  if (wanted > room) {
    throw new Refusal(400, `This model's maximum context length is ${contextLength} tokens. However, you requested ${prompt.length} prompt tokens and ${wanted} output tokens.`, 'messages');
  }
  return { body, prompt, max: wanted };
}

let requests = 0;
async function complete(req, res, endpoint) {
  const { body, prompt, max } = await readRequest(req, endpoint);
  const gone = new AbortController();
  res.on('close', () => gone.abort());
  const head = { id: `${endpoint.id}-${++requests}`, created: Math.floor(Date.now() / 1000), model: name };
  let cached = 0, text = '', count = 0;
  const usage = () => ({
    prompt_tokens: prompt.length, completion_tokens: count, total_tokens: prompt.length + count,
    prompt_tokens_details: { cached_tokens: cached },
  });
  const { include_usage: withUsage, continuous_usage_stats: withCounts } = body.stream_options ?? {};
  const send = (choices, counts) => {
    const chunk = { ...head, object: endpoint.chunk, choices };
    if (counts) chunk.usage = usage();
    res.write(`data: ${JSON.stringify(chunk)}\n\n`);
  };
  if (body.stream) res.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8' });
  for await (const piece of engine.generate(prompt, max, gone.signal, (n) => { cached = n; })) {
    const first = count++ === 0;
    text += piece;
    if (body.stream) send([{ index: 0, ...endpoint.piece(piece, first), finish_reason: null }], withUsage && withCounts);
  }
  if (gone.signal.aborted) return;
  if (!body.stream) {
    res.writeHead(200, { 'content-type': 'application/json' });
    res.end(JSON.stringify({ ...head, object: endpoint.object, choices: [{ index: 0, ...endpoint.whole(text), finish_reason: 'length' }], usage: usage() }));
    return;
  }
  send([{ index: 0, ...endpoint.piece('', false), finish_reason: 'length' }], withUsage && withCounts);
  if (withUsage) send([], true);
  res.end('data: [DONE]\n\n');
}

// metrics returns the engine's counters under vLLM's names.
function metrics() {
  const { counters } = engine;
  const lines = [];
  const add = (kind, metric, value) => lines.push(`# TYPE ${metric} ${kind}`, `${metric}{model_name="${name}",engine="0"} ${value}`);
  add('gauge', 'vllm:num_requests_running', engine.running);
  add('gauge', 'vllm:num_requests_waiting', engine.waiting.length);
  add('gauge', 'vllm:kv_cache_usage_perc', engine.kvUsage());
  add('counter', 'vllm:prompt_tokens_total', counters.prompt);
  add('counter', 'vllm:generation_tokens_total', counters.generated);
  add('counter', 'vllm:prefix_cache_queries_total', counters.queried);
  add('counter', 'vllm:prefix_cache_hits_total', counters.hit);
  lines.push(
    '# TYPE vllm:request_success_total counter',
    `vllm:request_success_total{model_name="${name}",engine="0",finished_reason="length"} ${counters.finished}`,
    `vllm:request_success_total{model_name="${name}",engine="0",finished_reason="abort"} ${counters.aborted}`,
  );
  return lines.join('\n') + '\n';
}

const pages = {
  '/health': () => ['text/plain', ''],
  '/v1/models': () => ['application/json', JSON.stringify({ object: 'list', data: [{ id: name, object: 'model', owned_by: 'vllm', max_model_len: contextLength }] })],
  '/metrics': () => ['text/plain; version=0.0.4', metrics()],
};

async function serve(req, res) {
  const { pathname } = new URL(req.url, 'http://engine');
  if (req.method === 'GET' && pages[pathname]) {
    const [type, page] = pages[pathname]();
    res.writeHead(200, { 'content-type': type });
    res.end(page);
  } else if (req.method === 'POST' && endpoints[pathname]) {
    await complete(req, res, endpoints[pathname]);
  } else {
    throw new Refusal(404, 'Not Found');
  }
}

const server = createServer((req, res) => {
  serve(req, res).catch((error) => {
    const status = error.status ?? 500;
    if (status === 500) console.error(error);
    if (res.headersSent) return res.destroy();
    res.writeHead(status, { 'content-type': 'application/json' });
    res.end(JSON.stringify({ error: { message: error.message, type: status === 404 ? 'NotFoundError' : 'BadRequestError', param: error.param ?? null, code: status } }));
  });
});
server.listen(Number(flags.port), '127.0.0.1', () => console.log(`listening on http://127.0.0.1:${server.address().port}`));
