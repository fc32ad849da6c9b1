"""Serves OpenAI's API on one GPU: transformers' continuous batching behind aiohttp.

The model has the shape of Llama-3.1-8B and random weights, which cost the same time as trained ones.
Its output layer turns each token into the next of a fixed random order, so that rounding, which depends
on the batch, never changes an answer: all engines give the same one. Metrics have vLLM's names.

    python3 engine.py --port 8201 --kv-tokens 60000
"""
import argparse
import asyncio
import json
import os
import re
import time
import zlib

import torch
import transformers
from aiohttp import web
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig

MODEL = "llama-3.1-8b-random"
VOCABULARY = 128256
BEGIN, END, ROLES = 128000, 128009, {"system": 128010, "user": 128011, "assistant": 128012, "tool": 128013}
MAX_LENGTH = 32768

# A token is the one that skyserve's workloads count: an optional space and up to eight letters or
# digits, or one character. A text that is cut between two tokens has the tokens of its two parts.
TOKEN = re.compile(r" ?[0-9A-Za-z]{1,8}|.", re.S)
GENERATED = re.compile(r" [0-9a-z]{4}")
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def token_text(token):
    """The text of a generated token: a space and its number in base 36, which token_id reads back."""
    text = ""
    for _ in range(4):
        token, digit = divmod(token, 36)
        text = DIGITS[digit] + text
    return " " + text


def token_id(text):
    if GENERATED.fullmatch(text) and (n := int(text, 36)) < VOCABULARY:
        return n
    return zlib.crc32(text.encode()) % BEGIN


def encode(text):
    return [token_id(piece) for piece in TOKEN.findall(text)]


class Refusal(Exception):
    """An error of the request, in OpenAI's form."""

    def __init__(self, status, message, param=None, code=None):
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


def content_text(content):
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
        return "".join(p["text"] for p in content)
    raise Refusal(400, "content must be text", "messages")


def answer_start(tokens):
    """The start of an answer: its last token depends on the conversation, so answers differ."""
    return [ROLES["assistant"], zlib.crc32(repr(tokens).encode()) % BEGIN]


def chat_prompt(body):
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refusal(400, "messages must be a list with at least one message", "messages")
    tokens = [BEGIN]
    for message in messages:
        if message.get("role") not in ROLES:
            raise Refusal(400, f"the role {message.get('role')!r} is unknown", "messages")
        if message["role"] == "assistant":
            tokens += answer_start(tokens)
        else:
            tokens.append(ROLES[message["role"]])
        tokens += [*encode(content_text(message.get("content"))), END]
    if body.get("continue_final_message"):
        if body.get("add_generation_prompt", True):
            raise Refusal(400, "continue_final_message requires add_generation_prompt: false", "continue_final_message")
        return tokens[:-1]
    if body.get("add_generation_prompt", True):
        tokens += answer_start(tokens)
    return tokens


def text_prompt(body):
    if not isinstance(body.get("prompt"), str) or not body["prompt"]:
        raise Refusal(400, "prompt must be a text", "prompt")
    return [BEGIN, *encode(body["prompt"])]


CHAT = ("chatcmpl-", "chat.completion", chat_prompt)
TEXT = ("cmpl-", "text_completion", text_prompt)


class OldestFirst(dict):
    """Blocks that can be evicted: the least recently used first, as vLLM does, not the last one."""

    def popitem(self):
        key = next(iter(self))
        return key, self.pop(key)


class Engine:
    """The model and its continuous batching, with the counters that /metrics shows."""

    def __init__(self, flags):
        self.flags = flags
        self.model = self.build()
        blocks = flags.kv_tokens // flags.block_size
        graphs = {"use_cuda_graph": True, "q_padding_interval_size": 64, "kv_padding_interval_size": flags.kv_padding} if flags.graphs else {"use_cuda_graph": False}
        self.manager = self.model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, max_new_tokens=16, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=ContinuousBatchingConfig(
                block_size=flags.block_size, num_blocks=blocks, max_batch_tokens=flags.chunk, max_requests_per_batch=flags.max_running,
                use_async_batching=False, **graphs))
        self.blocks, self.cached, self.waiting_for = blocks, {}, {}
        self.queries = self.hits = self.prompts = self.generated = self.finished = 0
        self.manager.warmup()
        self.count_hits()
        self.manager.start()
        if flags.graphs:
            self.graphs_for_decode_only()
        if flags.steps:
            self.log_steps()

    def build(self):
        torch.manual_seed(self.flags.seed)
        torch.set_default_dtype(torch.bfloat16)
        config = LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=4096, intermediate_size=14336, num_hidden_layers=self.flags.layers, num_attention_heads=32,
            num_key_value_heads=8, max_position_embeddings=MAX_LENGTH, rms_norm_eps=1e-5, bos_token_id=BEGIN, eos_token_id=END,
            tie_word_embeddings=False, dtype="bfloat16", attn_implementation="sdpa")
        with torch.device("cuda"):
            model = LlamaForCausalLM(config).eval()
            with torch.no_grad():
                model.model.embed_tokens.weight.normal_()
                for layer in model.model.layers:  # small beside the embedding that passes through
                    layer.self_attn.o_proj.weight.mul_(0.02)
                    layer.mlp.down_proj.weight.mul_(0.02)
                model.lm_head.weight.zero_()
                model.lm_head.weight[torch.randperm(BEGIN)] = model.model.embed_tokens.weight[:BEGIN]
        return model

    def count_hits(self):
        """Counts the prompt tokens that the engine finds in its cache, as it looks each prompt up once."""
        cache = self.manager.batch_processor.cache
        cache._block_manager._init_block_ids = OldestFirst()
        search = cache.search_prefix_match

        def counted(request, tokens):
            found = search(request, tokens)
            self.queries += len(tokens)
            self.hits += min(found, len(tokens) - 1)
            self.cached[request] = min(found, len(tokens) - 1)
            return found

        cache.search_prefix_match = counted

    def graphs_for_decode_only(self):
        """Runs prefill steps without CUDA graphs: their many sizes would be captured during the load."""
        runner = self.manager.batch_processor.model_runner
        choose = runner._get_forward_fn

        def chosen(use_block_table):
            forward, graph = choose(use_block_table)
            return forward, graph and runner.inputs_and_outputs.num_q_tokens <= 64

        runner._get_forward_fn = chosen

    def log_steps(self):
        """Writes a line as each step begins: the time, its tokens, the running and waiting requests and the used KV tokens."""
        runner = self.manager.batch_processor.model_runner
        choose = runner._get_forward_fn
        out = open(self.flags.steps, "a", buffering=1)  # by line: an engine is killed at the end

        def logged(use_block_table):
            running, waiting, used = self.load()
            out.write(f"{time.monotonic():.6f},{runner.inputs_and_outputs.num_q_tokens},{running},{waiting},{used * self.blocks * self.flags.block_size:.0f}\n")
            return choose(use_block_table)

        runner._get_forward_fn = logged

    def forget(self):
        """Evicts every block that no request uses."""
        blocks = self.manager.batch_processor.cache._block_manager
        blocks.has_enough_free_blocks(blocks.num_free_blocks)

    def load(self):
        """Running and waiting requests and the used share of the KV memory."""
        batch = self.manager.batch_processor
        running = len(batch.scheduler.active_requests)
        waiting = len(batch.scheduler.waiting_requests) + self.manager.input_queue.qsize()
        return running, waiting, 1 - batch.cache.get_num_free_blocks() / self.blocks

    async def generate(self, tokens, limit, stops):
        """Yields the ids of new tokens as they come; a closed generator cancels the request."""
        self.finished += 1
        request = f"r{self.finished}"
        results = asyncio.Queue()
        self.manager.register_result_handler(request, results.put_nowait)
        self.manager.add_request(tokens, request_id=request, max_new_tokens=limit, streaming=True, eos_token_id=stops)
        self.prompts += len(tokens)
        sent = 0
        done = False
        try:
            while not done:
                result = await results.get()
                if result.error:
                    raise Refusal(500, result.error)
                done = result.is_finished()
                new = result.generated_tokens[sent:limit]
                sent += len(new)
                self.generated += len(new)
                if new:
                    yield request, new
        finally:
            if not done:
                self.manager.cancel_request(request)
                with self.manager.output_router._lock:
                    self.manager.output_router.result_handlers.pop(request, None)


engine: Engine


def usage(prompt, completion, cached):
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached}}


def choice(kind, text, first, finish, whole=False):
    if kind is TEXT:
        return {"index": 0, "text": text, "finish_reason": finish}
    if whole:
        return {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    delta = {"role": "assistant", "content": text} if first else {"content": text} if text else {}
    return {"index": 0, "delta": delta, "finish_reason": finish}


def read_limit(body, kind, prompt):
    value = body.get("max_completion_tokens") or body.get("max_tokens") or (16 if kind is TEXT else 256)
    if not isinstance(value, int) or value < 1:
        raise Refusal(400, f"max_tokens must be a positive integer, got {value!r}", "max_tokens")
    if prompt + value > MAX_LENGTH:
        raise Refusal(400, f"{prompt} prompt tokens and {value} output tokens exceed {MAX_LENGTH}", "max_tokens")
    return value


async def complete(request, kind):
    body = await request.json()
    if body.get("model") != MODEL:
        raise Refusal(404, f"The model `{body.get('model')}` does not exist.", "model", "model_not_found")
    tokens = kind[2](body)
    limit = read_limit(body, kind, len(tokens))
    stops = -1 if body.get("ignore_eos", False) else END
    head = {"id": kind[0] + os.urandom(8).hex(), "created": int(time.time()), "model": MODEL}
    count, cached, last = 0, 0, None
    if not body.get("stream"):
        texts = []
        async for name, new in engine.generate(tokens, limit, stops):
            texts += map(token_text, new)
            count, cached, last = count + len(new), engine.cached.get(name, 0), new[-1]
        finish = "stop" if last == END and stops == END else "length"
        return web.json_response({**head, "object": kind[1], "choices": [choice(kind, "".join(texts), True, finish, whole=True)],
                                  "usage": usage(len(tokens), count, cached)})
    head["object"] = kind[1] + (".chunk" if kind is CHAT else "")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)

    async def send(event):
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    options = body.get("stream_options") or {}
    async for name, new in engine.generate(tokens, limit, stops):
        event = {**head, "choices": [choice(kind, "".join(map(token_text, new)), count == 0, None)]}
        count, cached, last = count + len(new), engine.cached.get(name, 0), new[-1]
        if options.get("continuous_usage_stats"):
            event["usage"] = usage(len(tokens), count, cached)
        await send(event)
    await send({**head, "choices": [choice(kind, "", False, "stop" if last == END and stops == END else "length")]})
    if options.get("include_usage"):
        await send({**head, "choices": [], "usage": usage(len(tokens), count, cached)})
    await response.write(b"data: [DONE]\n\n")
    return response


async def metrics(_):
    running, waiting, used = engine.load()
    label = f'{{model_name="{MODEL}"}}'
    lines = []
    for name, kind, value in [
            ("vllm:num_requests_running", "gauge", running), ("vllm:num_requests_waiting", "gauge", waiting), ("vllm:kv_cache_usage_perc", "gauge", used),
            ("vllm:prefix_cache_queries_total", "counter", engine.queries), ("vllm:prefix_cache_hits_total", "counter", engine.hits),
            ("vllm:prompt_tokens_total", "counter", engine.prompts), ("vllm:generation_tokens_total", "counter", engine.generated)]:
        lines += [f"# TYPE {name} {kind}", f"{name}{label} {value}"]
    return web.Response(text="\n".join(lines) + "\n")


async def models(_):
    return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "local", "max_model_len": MAX_LENGTH}]})


async def reset(_):
    engine.forget()
    return web.Response()


async def tokenize(request):
    body = await request.json()
    tokens = chat_prompt(body) if "messages" in body else text_prompt(body)
    return web.json_response({"count": len(tokens), "max_model_len": MAX_LENGTH, "tokens": tokens})


@web.middleware
async def refusals(request, handler):
    try:
        return await handler(request)
    except (Refusal, json.JSONDecodeError) as error:
        status = getattr(error, "status", 400)
        return web.json_response({"error": {"message": str(error), "type": "invalid_request_error", "param": getattr(error, "param", None),
                                            "code": getattr(error, "code", None)}}, status=status)


def main():
    global engine
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--layers", type=int, default=32, help="32 for the 8B shape; fewer for a faster engine")
    parser.add_argument("--kv-tokens", type=int, default=60_000)
    parser.add_argument("--kv-padding", type=int, default=2048, help="step of the KV sizes that CUDA graphs are captured for")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--chunk", type=int, default=2048, help="maximum number of tokens in a step")
    parser.add_argument("--max-running", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", help="CSV file for a line per step")
    parser.add_argument("--graphs", action=argparse.BooleanOptionalAction, default=True)
    started = time.time()
    engine = Engine(parser.parse_args())
    app = web.Application(middlewares=[refusals], client_max_size=64 << 20)

    async def version(_):
        return web.json_response({"version": f"transformers-{transformers.__version__}"})

    async def health(_):
        alive = engine.manager.is_running()
        return web.Response(status=200 if alive else 500)

    app.add_routes([
        web.post("/v1/chat/completions", lambda r: complete(r, CHAT)), web.post("/v1/completions", lambda r: complete(r, TEXT)),
        web.post("/tokenize", tokenize), web.post("/reset_prefix_cache", reset), web.get("/v1/models", models), web.get("/metrics", metrics), web.get("/health", health), web.get("/version", version)])
    print(f"ready after {time.time() - started:.1f} s, {torch.cuda.memory_allocated() / 1e9:.1f} GB", flush=True)
    # handler_cancellation: a client that closes its connection cancels its request.
    web.run_app(app, host="127.0.0.1", port=engine.flags.port, handler_cancellation=True, access_log=None, print=None)


if __name__ == "__main__":
    main()
