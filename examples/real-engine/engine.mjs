// llama.cpp with a prefix cache: some slots, each with the KV memory of its last request. A request gets
// the free slot whose tokens have the longest common prefix with its own; others wait.
import { getLlama } from 'node-llama-cpp';
import { contextLength } from './model.mjs';

// Engine serves one model. Its counters are those that vLLM exports.
export class Engine {
  running = 0;
  waiting = [];
  counters = { prompt: 0, generated: 0, queried: 0, hit: 0, finished: 0, aborted: 0 };

  // load loads a GGUF file. delay is the minimum time per token in milliseconds: the tiny model is
  // faster than any real one.
  static async load(path, slots, delay) {
    const engine = new Engine();
    const llama = await getLlama({ gpu: false, build: 'never', maxThreads: 1, logLevel: 'error' });
    engine.model = await llama.loadModel({ modelPath: path });
    const context = await engine.model.createContext({ contextSize: contextLength, sequences: slots, threads: 1 });
    engine.slots = Array.from({ length: slots }, () => ({ sequence: context.getSequence(), free: true }));
    engine.delay = delay;
    return engine;
  }

  get template() { return this.model.fileInfo.metadata.tokenizer.chat_template; }

  // tokenize tokenizes a text; special: it contains control tokens.
  tokenize(text, special) { return this.model.tokenize(text, special); }

  // kvUsage returns the share of the KV memory that is in use, 0 to 1.
  kvUsage() {
    const used = this.slots.reduce((sum, s) => sum + (s.free ? 0 : s.sequence.nextTokenIndex), 0);
    return used / (this.slots.length * contextLength);
  }

  // generate yields the texts of at most max tokens. It calls begin with the number of cached prompt
  // tokens first. It ends early once signal is aborted.
  async *generate(prompt, max, signal, begin) {
    const slot = await this.#acquire(prompt, signal);
    if (!slot) return;
    let complete = false;
    try {
      // The last token of a prompt is always evaluated, because its result is needed.
      await slot.sequence.adaptStateToTokens(prompt.slice(0, -1), false);
      const cached = slot.sequence.nextTokenIndex;
      this.counters.prompt += prompt.length;
      this.counters.queried += prompt.length;
      this.counters.hit += cached;
      begin(cached);
      let count = 0;
      for await (const token of slot.sequence.evaluate(prompt.slice(cached), { temperature: 0 })) {
        if (signal.aborted) break;
        this.counters.generated++;
        yield this.model.detokenize([token], false);
        if (++count === max) break;
        await new Promise((resume) => setTimeout(resume, this.delay));
        if (signal.aborted) break;
      }
      complete = count === max;
    } finally {
      this.counters[complete ? 'finished' : 'aborted']++;
      this.#release(slot);
    }
  }

  // #acquire returns a slot, or nothing if the request was aborted while it waited.
  async #acquire(prompt, signal) {
    while (!this.slots.some((s) => s.free)) {
      await new Promise((resume) => {
        this.waiting.push(resume);
        signal.addEventListener('abort', resume, { once: true });
      });
      if (signal.aborted) return undefined;
    }
    const common = (s) => {
      const tokens = s.sequence.contextTokens;
      let n = 0;
      while (n < tokens.length && n < prompt.length && tokens[n] === prompt[n]) n++;
      return n;
    };
    const free = this.slots.filter((s) => s.free);
    const best = free.reduce((a, b) => (common(b) > common(a) ? b : a));
    best.free = false;
    this.running++;
    return best;
  }

  #release(slot) {
    slot.free = true;
    this.running--;
    for (const resume of this.waiting.splice(0)) resume();
  }
}
