// Makes the calls of several clients twice, directly at an engine and through a balancer in front of
// it, and prints a table. A call that works directly must return the same through the balancer;
// otherwise the exit code is 1.
//
//   ENGINE, BALANCER  the base URLs (http://127.0.0.1:8201)
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { HumanMessage } from '@langchain/core/messages';
import { ChatOpenAI, OpenAIEmbeddings } from '@langchain/openai';
import { embed, generateText, stepCountIs, streamText, tool } from 'ai';
import OpenAI from 'openai';
import { z } from 'zod';

const { ENGINE, BALANCER } = process.env;
const model = 'meta-llama/Llama-3.1-8B-Instruct';
const apiKey = 'sk-any';
const messages = [{ role: 'user', content: 'Name three rivers.' }];
const weather = { description: 'the weather in a city', parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } };
const long = { role: 'system', content: 'You are a careful guide. '.repeat(200) };

const openai = (url) => new OpenAI({ baseURL: url + '/v1', apiKey, maxRetries: 0 });
const anthropic = (url) => new Anthropic({ baseURL: url, apiKey, maxRetries: 0 });
const vercel = (url) => createOpenAICompatible({ name: 'engine', baseURL: url + '/v1', apiKey, includeUsage: true });
const langchain = (url, more) => new ChatOpenAI({ model, apiKey, maxTokens: 24, maxRetries: 0, configuration: { baseURL: url + '/v1' }, ...more });

// collect reads a stream to its end.
async function collect(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

// text joins the text of a stream of chat chunks.
const text = (chunks) => chunks.map((c) => c.choices[0]?.delta?.content ?? '').join('');

// failure returns the part of an error that clients act on.
const failure = (make) => make().then(() => assert.fail('the request succeeded'), (e) => ({ kind: e.constructor.name, status: e.status ?? e.statusCode }));

// Each call returns what its caller sees. Ids, times and cached tokens differ between two calls and
// are left out.
const calls = {
  openai: {
    'models.list': async (c) => (await collect(await c.models.list())).map((m) => m.id),
    'models.retrieve': async (c) => (await c.models.retrieve(model)).id,
    'chat': async (c) => {
      const r = await c.chat.completions.create({ model, messages, max_tokens: 24 });
      return [r.choices, r.usage.prompt_tokens, r.usage.completion_tokens];
    },
    'chat, n=2': async (c) => (await c.chat.completions.create({ model, messages, max_tokens: 8, n: 2 })).choices,
    'chat, stream': async (c) => {
      const chunks = await collect(await c.chat.completions.create({ model, messages, max_tokens: 24, stream: true }));
      return [text(chunks), chunks.at(-1).choices[0].finish_reason, chunks.some((x) => x.usage)];
    },
    'chat, stream, usage': async (c) => {
      const chunks = await collect(await c.chat.completions.create({ model, messages, max_tokens: 24, stream: true, stream_options: { include_usage: true } }));
      return [text(chunks), chunks.at(-1).usage.completion_tokens];
    },
    'chat, stream helper': async (c) => (await c.chat.completions.stream({ model, messages, max_tokens: 24 }).finalChatCompletion()).choices[0].message.content,
    'chat, long prompt': async (c) => (await c.chat.completions.create({ model, messages: [long, ...messages], max_tokens: 8 })).usage.prompt_tokens,
    'chat, tools': async (c) => (await c.chat.completions.create({ model, messages, max_tokens: 8, tools: [{ type: 'function', function: { name: 'weather', ...weather } }] })).choices[0].finish_reason,
    'chat, raw response': async (c) => (await c.chat.completions.create({ model, messages, max_tokens: 8 }).asResponse()).headers.get('content-type'),
    'completions': async (c) => (await c.completions.create({ model, prompt: 'Once upon', max_tokens: 16 })).choices,
    'completions, stream': async (c) => (await collect(await c.completions.create({ model, prompt: 'Once upon', max_tokens: 16, stream: true }))).map((x) => x.choices[0]?.text ?? '').join(''),
    'completions, two prompts': async (c) => (await c.completions.create({ model, prompt: ['one', 'two'], max_tokens: 4 })).choices.length,
    'responses': async (c) => {
      const r = await c.responses.create({ model, input: 'Name a river.', max_output_tokens: 16 });
      return [r.output_text, r.status];
    },
    'responses, stream': async (c) => (await collect(await c.responses.create({ model, input: 'Name a river.', max_output_tokens: 16, stream: true }))).map((e) => e.type),
    'responses, continued': async (c) => {
      const first = await c.responses.create({ model, input: 'Name a river.', max_output_tokens: 16 });
      return (await c.responses.create({ model, input: 'Another.', previous_response_id: first.id, max_output_tokens: 16 })).status;
    },
    'responses, retrieve': async (c) => {
      const first = await c.responses.create({ model, input: 'Name a river.', max_output_tokens: 16 });
      return (await c.responses.retrieve(first.id)).status;
    },
    'embeddings': async (c) => (await c.embeddings.create({ model, input: ['a river', 'a hill'] })).data.map((d) => d.embedding.length),
    'unknown model': (c) => failure(() => c.chat.completions.create({ model: 'none', messages })),
    'invalid body': (c) => failure(() => c.chat.completions.create({ model, messages: 'text' })),
    'aborted stream': async (c) => {
      const stream = await c.chat.completions.create({ model, messages, max_tokens: 4096, stream: true });
      for await (const chunk of stream) { if (chunk) break; }
      return stream.controller.signal.aborted;
    },
    'request timeout': (c) => failure(() => c.chat.completions.create({ model, messages, max_tokens: 4096 }, { timeout: 50 })),
  },
  ai: {
    'generateText': async (p) => {
      const r = await generateText({ model: p(model), prompt: 'Name a river.', maxOutputTokens: 24, maxRetries: 0 });
      return [r.text, r.finishReason, r.usage.outputTokens];
    },
    'streamText': async (p) => {
      const r = streamText({ model: p(model), prompt: 'Name a river.', maxOutputTokens: 24, maxRetries: 0 });
      return [(await collect(r.textStream)).join(''), await r.finishReason, (await r.usage).outputTokens];
    },
    'streamText, tools': async (p) => {
      const r = streamText({
        model: p(model), prompt: 'Weather?', maxOutputTokens: 8, maxRetries: 0, stopWhen: stepCountIs(2),
        tools: { weather: tool({ description: weather.description, inputSchema: z.object({ city: z.string() }), execute: async () => 'rain' }) },
      });
      return (await collect(r.textStream)).join('');
    },
    'completion model': async (p) => (await generateText({ model: p.completionModel(model), prompt: 'Once upon', maxOutputTokens: 16, maxRetries: 0 })).text,
    'embed': async (p) => (await embed({ model: p.textEmbeddingModel(model), value: 'a river', maxRetries: 0 })).embedding.length,
    'unknown model': (p) => failure(() => generateText({ model: p('none'), prompt: 'x', maxRetries: 0 })),
  },
  langchain: {
    'invoke': async (_, url) => {
      const r = await langchain(url).invoke([new HumanMessage('Name a river.')]);
      return [r.content, r.usage_metadata.output_tokens];
    },
    'stream': async (_, url) => (await collect(await langchain(url).stream([new HumanMessage('Name a river.')]))).map((c) => c.content).join(''),
    'batch': async (_, url) => (await langchain(url).batch([[new HumanMessage('A river?')], [new HumanMessage('A hill?')]])).map((r) => r.content),
    'responses API': async (_, url) => (await langchain(url, { useResponsesApi: true }).invoke([new HumanMessage('Name a river.')])).content,
    'embeddings': async (_, url) => (await new OpenAIEmbeddings({ model, apiKey, maxRetries: 0, configuration: { baseURL: url + '/v1' } }).embedQuery('a river')).length,
    'unknown model': (_, url) => failure(() => langchain(url, { model: 'none' }).invoke('x')),
  },
  anthropic: {
    'messages': async (c) => {
      const r = await c.messages.create({ model, messages, max_tokens: 24 });
      return [r.content, r.stop_reason, r.usage.output_tokens];
    },
    'messages, stream': async (c) => (await collect(await c.messages.create({ model, messages, max_tokens: 24, stream: true }))).filter((e) => e.type === 'content_block_delta').map((e) => e.delta.text).join(''),
    'messages, stream helper': async (c) => (await c.messages.stream({ model, messages, max_tokens: 24 }).finalMessage()).content,
    'messages, system and tools': async (c) => (await c.messages.create({ model, messages, max_tokens: 8, system: 'Be brief.', tools: [{ name: 'weather', description: weather.description, input_schema: weather.parameters }] })).type,
    'countTokens': async (c) => (await c.messages.countTokens({ model, messages })).input_tokens,
    'unknown model': (c) => failure(() => c.messages.create({ model: 'none', messages, max_tokens: 8 })),
  },
};
const clients = { openai, ai: vercel, langchain: () => null, anthropic };

// outcome runs a call and returns its result, or its error.
async function outcome(make, client, url) {
  try {
    return { works: true, result: await make(client(url), url) };
  } catch (error) {
    return { works: false, result: `${error.status ?? error.statusCode ?? ''} ${error.message}`.trim().slice(0, 100) };
  }
}

let same = 0, different = 0, unsupported = 0;
console.log(`${'CLIENT'.padEnd(10)} ${'CALL'.padEnd(28)} ${'DIRECT'.padEnd(7)} BALANCER`);
for (const [name, table] of Object.entries(calls)) {
  for (const [call, make] of Object.entries(table)) {
    const direct = await outcome(make, clients[name], ENGINE);
    const balanced = await outcome(make, clients[name], BALANCER);
    let verdict = 'equal';
    if (!direct.works) {
      verdict = balanced.works ? 'works' : `fails: ${balanced.result}`;
      unsupported++;
    } else if (JSON.stringify(direct.result) === JSON.stringify(balanced.result)) {
      same++;
    } else {
      verdict = `DIFFERS: want ${JSON.stringify(direct.result)}, got ${JSON.stringify(balanced.result)}`;
      different++;
    }
    console.log(`${name.padEnd(10)} ${call.padEnd(28)} ${(direct.works ? 'works' : 'fails').padEnd(7)} ${verdict}`);
  }
}
console.log(`${same} equal, ${different} different, ${unsupported} not supported by the engine`);
process.exit(different > 0 ? 1 : 0);
