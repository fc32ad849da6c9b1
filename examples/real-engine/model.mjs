// Writes a tiny GGUF model of the llama architecture with random weights, for checks of a real
// engine without a download. The weights depend only on the seed, so all engines answer alike.
//
// The tokenizer has a token for each syllable (a consonant and a vowel), for a space and for some
// marks, and the 256 bytes for all other input. The model generates only the former. Such a text has
// exactly one division into tokens, so a continued answer is tokenised as it was generated.
import { writeFileSync } from 'node:fs';

const width = 64;
const layers = 2;
const heads = 4;
const hidden = 128;
export const contextLength = 1024;

// The types of tokens in GGUF.
const normal = 1, unknown = 2, control = 3, byte = 6;

// The roles and the end of a message are control tokens.
export const chatTemplate = `{%- for message in messages -%}
<|{{ message.role }}|>{{ message.content }}<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}`;

function vocabulary() {
  const tokens = [];
  const add = (text, type, score, generated = false) => tokens.push({ text, type, score, generated });
  add('<unk>', unknown, 0);
  add('<s>', control, 0);
  add('</s>', control, 0);
  for (const name of ['system', 'user', 'assistant', 'end']) add(`<|${name}|>`, control, 0);
  for (let b = 0; b < 256; b++) add(`<0x${b.toString(16).toUpperCase().padStart(2, '0')}>`, byte, 0);
  const consonants = 'bcdfghjklmnpqrstvwxz', vowels = 'aeiou';
  for (const letter of consonants + vowels) add(letter, normal, -100);
  for (const c of consonants) for (const v of vowels) add(c + v, normal, -1, true);
  for (const mark of ['\u2581', '.', ',', '\n']) add(mark, normal, -2, true); // U+2581 stands for a space
  return tokens;
}

// random returns a generator of normally distributed numbers (mulberry32, Box-Muller).
function random(seed) {
  const uniform = () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  return () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
}

// tensors returns the weights by name. The first number of every position stays constant through all
// layers, so the output layer can exclude tokens with it.
function tensors(tokens, seed) {
  const draw = random(seed);
  const all = new Map();
  const matrix = (name, columns, rows, scale, change = () => undefined) => {
    const data = new Float32Array(columns * rows);
    for (let r = 0; r < rows; r++) {
      for (let c = 0; c < columns; c++) data[r * columns + c] = change(r, c) ?? draw() * scale;
    }
    all.set(name, { shape: [columns, rows], data });
  };
  const ones = (name) => all.set(name, { shape: [width], data: new Float32Array(width).fill(1) });
  const spread = 1 / Math.sqrt(width);
  const keepFirst = (r) => (r === 0 ? 0 : undefined);

  matrix('token_embd.weight', width, tokens.length, 1, (r, c) => (c === 0 ? 3 : undefined));
  for (let i = 0; i < layers; i++) {
    const name = (part) => `blk.${i}.${part}.weight`;
    ones(name('attn_norm'));
    for (const part of ['attn_q', 'attn_k', 'attn_v']) matrix(name(part), width, width, 2 * spread);
    matrix(name('attn_output'), width, width, 3 * spread, keepFirst);
    ones(name('ffn_norm'));
    for (const part of ['ffn_gate', 'ffn_up']) matrix(name(part), width, hidden, spread);
    matrix(name('ffn_down'), hidden, width, 3 / Math.sqrt(hidden), keepFirst);
  }
  ones('output_norm.weight');
  matrix('output.weight', width, tokens.length, 2, (r, c) => (c === 0 ? (tokens[r].generated ? 0 : -100) : undefined));
  return all;
}

// Writer appends the values of GGUF, which are little-endian.
class Writer {
  parts = [];
  size = 0;
  push(buffer) {
    this.parts.push(buffer);
    this.size += buffer.length;
  }
  u32(n) { const b = Buffer.alloc(4); b.writeUInt32LE(n); this.push(b); }
  i32(n) { const b = Buffer.alloc(4); b.writeInt32LE(n); this.push(b); }
  u64(n) { const b = Buffer.alloc(8); b.writeBigUInt64LE(BigInt(n)); this.push(b); }
  f32(n) { const b = Buffer.alloc(4); b.writeFloatLE(n); this.push(b); }
  text(s) { const b = Buffer.from(s); this.u64(b.length); this.push(b); }
  pad(to) { this.push(Buffer.alloc((to - (this.size % to)) % to)); }
}

// The types of values in GGUF, with the methods that write them.
const types = { u32: 4, i32: 5, f32: 6, bool: 7, text: 8, array: 9 };
const writeValue = {
  u32: (w, v) => w.u32(v), i32: (w, v) => w.i32(v), f32: (w, v) => w.f32(v),
  bool: (w, v) => w.push(Buffer.from([v ? 1 : 0])), text: (w, v) => w.text(v),
};

function metadata(tokens) {
  return [
    ['general.architecture', 'text', 'llama'],
    ['general.name', 'text', 'tiny-random'],
    ['llama.context_length', 'u32', contextLength],
    ['llama.embedding_length', 'u32', width],
    ['llama.block_count', 'u32', layers],
    ['llama.feed_forward_length', 'u32', hidden],
    ['llama.rope.dimension_count', 'u32', width / heads],
    ['llama.attention.head_count', 'u32', heads],
    ['llama.attention.head_count_kv', 'u32', heads],
    ['llama.attention.layer_norm_rms_epsilon', 'f32', 1e-5],
    ['llama.vocab_size', 'u32', tokens.length],
    ['tokenizer.ggml.model', 'text', 'llama'],
    ['tokenizer.ggml.tokens', 'text', tokens.map((t) => t.text)],
    ['tokenizer.ggml.scores', 'f32', tokens.map((t) => t.score)],
    ['tokenizer.ggml.token_type', 'i32', tokens.map((t) => t.type)],
    ['tokenizer.ggml.unknown_token_id', 'u32', 0],
    ['tokenizer.ggml.bos_token_id', 'u32', 1],
    ['tokenizer.ggml.eos_token_id', 'u32', 2],
    ['tokenizer.ggml.add_bos_token', 'bool', false],
    ['tokenizer.ggml.add_eos_token', 'bool', false],
    ['tokenizer.ggml.add_space_prefix', 'bool', false],
    ['tokenizer.chat_template', 'text', chatTemplate],
  ];
}

const alignment = 32;

// writeModel writes the model to a file.
export function writeModel(path, seed = 7) {
  const tokens = vocabulary();
  const weights = tensors(tokens, seed);
  const pairs = metadata(tokens);
  const w = new Writer();
  w.push(Buffer.from('GGUF'));
  w.u32(3);
  w.u64(weights.size);
  w.u64(pairs.length);
  for (const [key, type, value] of pairs) {
    w.text(key);
    if (Array.isArray(value)) {
      w.u32(types.array);
      w.u32(types[type]);
      w.u64(value.length);
      for (const v of value) writeValue[type](w, v);
    } else {
      w.u32(types[type]);
      writeValue[type](w, value);
    }
  }
  let offset = 0;
  for (const [name, { shape, data }] of weights) {
    w.text(name);
    w.u32(shape.length);
    for (const n of shape) w.u64(n);
    w.u32(0); // F32
    w.u64(offset);
    offset += Math.ceil(data.byteLength / alignment) * alignment;
  }
  w.pad(alignment);
  for (const { data } of weights.values()) {
    w.push(Buffer.from(data.buffer));
    w.pad(alignment);
  }
  writeFileSync(path, Buffer.concat(w.parts));
}
