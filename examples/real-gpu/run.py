"""Measures skyserve before real engines on one GPU, and prints a table per step.

It requires skyserve in the PATH, and PyTorch, transformers and aiohttp. Engines share the GPU, so
several of them slow each other down; each still has its own KV memory, batch and queue.

    python3 run.py --out DIRECTORY calibrate overhead cancel continue   # two engines
    python3 run.py --out DIRECTORY policies                             # four engines: 140 GB
    python3 run.py --out DIRECTORY --layers 8 --kv-tokens 20000 --workloads groups tot15 policies    # fast engines, little memory
"""
import argparse
import asyncio
import gzip
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import aiohttp

HERE = Path(__file__).parent
MODEL = "llama-3.1-8b-random"
flags = None
children = []


def spawn(command, log, **extra):
    out = open(Path(flags.out) / log, "ab")
    child = subprocess.Popen([str(c) for c in command], stdout=out, stderr=out, **extra)
    children.append(child)
    return child


def http():
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0))


class Replica:
    """An engine in its own process."""

    def __init__(self, number):
        self.id, self.port = f"e{number}", 8200 + number
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        self.process = spawn([sys.executable, HERE / "engine.py", "--port", self.port, "--kv-tokens", flags.kv_tokens, "--layers", flags.layers,
                              "--steps", Path(flags.out) / f"{self.id}-steps.csv"], f"{self.id}.log")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


async def until(what, check, within=120.0):
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            if await check():
                return
        except (aiohttp.ClientError, OSError):
            pass
        await asyncio.sleep(0.02)
    raise TimeoutError(f"not within {within} s: {what}")


async def healthy(session, url):
    async with session.get(url) as response:
        return response.status == 200


async def metric(session, url, name):
    """The sum of the series of a metric."""
    async with session.get(url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((name + "{", name + " ")))


class Balancer:
    """A skyserve lb before the given replicas."""

    number = 0

    def __init__(self, replicas, *arguments):
        Balancer.number += 1
        port = 8000 + Balancer.number
        self.url, self.admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 100}"
        given = [a for r in replicas for a in ("--replica", f"{r.id}={r.url}")]
        self.process = spawn(["skyserve", "lb", "--region", "us", "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{port + 100}", *given, *arguments], "lb.log")
        self.replicas = replicas

    async def ready(self, session):
        async def all_ready():
            async with session.get(self.admin + "/workers") as response:
                text = await response.text()
            return text.lower().count('"ready"') >= len(self.replicas)
        await until("all replicas are ready", all_ready)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def load(url, workload, clients, seconds, seed):
    """Runs skyserve load and returns its report."""
    result = subprocess.run(["skyserve", "load", "--target", f"us={url}", "--workload", workload, "--clients", f"us={clients}", "--duration", f"{seconds}s",
                             "--seed", str(seed), "-o", "json", "--quiet"], capture_output=True, text=True)
    if not result.stdout:
        raise RuntimeError(f"skyserve load: exit {result.returncode}: {result.stderr}")
    return json.loads(result.stdout)


def save(name, value):
    with open(Path(flags.out) / "results.jsonl", "a") as file:
        file.write(json.dumps({"step": name, **value}) + "\n")


def row(name, **values):
    save(name, values)
    print(f"{name:42}" + "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items()), flush=True)


def report_row(name, r, **more):
    row(name, req_s=r["requests_per_second"], tok_s=r["output_tokens_per_second"], ttft_p50=r["ttft_ms"]["p50"], ttft_p90=r["ttft_ms"]["p90"],
        tpot_p50=r["tpot_ms"]["p50"], tpot_p90=r["tpot_ms"]["p90"], hits=r["prefix_hit_rate"], ok=r["ok"], failed=r["failed"], rejected=r["rejected"], **more)


def words(count, seed):
    draw = random.Random(seed)
    return " ".join(draw.choice("bcdfgmnprst") + draw.choice("aeiou") + draw.choice("lmnrs") + draw.choice("aeiou") for _ in range(count))


async def stream(session, url, prompt, limit, on_token=None):
    """Streams one chat. Returns its text, TTFT, time and the replica that began it."""
    start = time.monotonic()
    first, text, tokens, gap, last = None, "", 0, 0.0, start
    body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": limit, "stream": True, "ignore_eos": True}
    async with session.post(url + "/v1/chat/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {await response.text()}")
        replica = response.headers.get("x-skyserve-replica")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"])
            piece = (event["choices"][0].get("delta") or {}).get("content") if event["choices"] else None
            if piece:
                now = time.monotonic()
                first = first or now - start
                if tokens:
                    gap = max(gap, now - last)
                last = now
                text, tokens = text + piece, tokens + piece.count(" ")
                if on_token:
                    on_token(tokens, replica)
    return {"text": text, "tokens": tokens, "ttft": first, "e2e": time.monotonic() - start, "replica": replica, "gap": gap}


async def warm(session, replicas):
    """Visits the sizes that the load will need, for which the engine captures CUDA graphs."""
    for size, count in [(60, 1), (900, 4), (1500, 16), (1700, 32)]:
        await asyncio.gather(*[stream(session, r.url, words(size, f"{r.id}-{size}-{i}"), 24) for r in replicas for i in range(count)])


async def calibrate(session, replicas):
    """Records one engine under load, for sim calibrate, and measures other loads that its profile should predict."""
    record = Path(flags.out) / "record.jsonl"
    lb = Balancer(replicas[:1], "--record", record)
    await lb.ready(session)
    for clients, workload, seconds in [(1, "arena", 15), (8, "arena", 30), (4, "tot15", 20), (3, "groups", 30)]:
        report_row(f"fitted to: {workload} {clients} clients", await asyncio.to_thread(load, lb.url, workload, clients, seconds, 1))
    lb.stop()
    pack(record)
    for clients, workload, seconds in [(4, "arena", 30), (16, "arena", 35), (8, "groups", 35)]:
        await forget(session, replicas)
        record = Path(flags.out) / f"held-out-{workload}-{clients}.jsonl"
        lb = Balancer(replicas[:1], "--record", record)
        await lb.ready(session)
        report_row(f"held out: {workload} {clients} clients", await asyncio.to_thread(load, lb.url, workload, clients, seconds, 7))
        lb.stop()
        pack(record)


def pack(path):
    with open(path, "rb") as plain, gzip.open(f"{path}.gz", "wb") as packed:
        shutil.copyfileobj(plain, packed)
    path.unlink()


async def forget(session, replicas):
    for r in replicas:
        async with session.post(r.url + "/reset_prefix_cache") as response:
            assert response.status == 200


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


async def overhead(session, replicas):
    """Alternates requests sent directly and through the balancer."""
    lb = Balancer(replicas[:1])
    await lb.ready(session)
    targets = [("direct", replicas[0].url), ("balanced", lb.url)]
    for burst in [1, 8]:
        times = {"direct": [], "balanced": []}
        for i in range(60 if burst == 1 else 15):
            for name, url in targets if i % 2 else reversed(targets):
                times[name] += await asyncio.gather(*[stream(session, url, words(40, f"{burst}-{i}-{name}-{j}"), 8) for j in range(burst)])
        for name, got in times.items():
            ttft, e2e = [r["ttft"] for r in got], [r["e2e"] for r in got]
            row(f"overhead: {burst} at once, {name}", n=len(got), ttft_p50_ms=1000 * statistics.median(ttft), ttft_p99_ms=1000 * percentile(ttft, 0.99),
                e2e_p50_ms=1000 * statistics.median(e2e), e2e_p99_ms=1000 * percentile(e2e, 0.99))
    lb.stop()


async def cancel(session, replicas):
    """Closes 16 streams at once and waits until the engine runs none."""
    lb = Balancer(replicas[:1])
    await lb.ready(session)
    for attempt in range(3):
        begun = asyncio.Event()
        started = set()

        def on_token(tokens, _, name=None):
            if tokens >= 5:
                started.add(name)
                if len(started) == 16:
                    begun.set()

        tasks = [asyncio.create_task(stream(session, lb.url, words(300, f"c{attempt}-{i}"), 2000, lambda n, r, i=i: on_token(n, r, i))) for i in range(16)]
        await asyncio.wait_for(begun.wait(), 60)
        before = await metric(session, replicas[0].url, "vllm:num_requests_running")
        start = time.monotonic()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

        async def idle():
            return await metric(session, replicas[0].url, "vllm:num_requests_running") == 0
        await until("the engine is idle", idle, 30)
        took = time.monotonic() - start

        async def counted():
            return await metric(session, lb.admin, "skyserve_replica_outstanding") == 0
        await until("the balancer counts none", counted, 30)
        row(f"cancel: 16 streams, attempt {attempt + 1}", running_before=before, idle_after_ms=1000 * took)
    lb.stop()


async def continuation(session, replicas):
    """Kills the engine of a stream; the stream must go on at another with the same text."""
    lb = Balancer(replicas)
    await lb.ready(session)

    async def proven():
        return await metric(session, lb.admin, "skyserve_replica_continues_streams") == len(replicas)
    await until("both engines are proven to continue", proven, 30)
    equal = 0
    attempts = 4
    for attempt in range(attempts):
        prompt = words(200, f"k{attempt}")
        killed = []

        def on_token(tokens, replica):
            if tokens >= 40 and not killed:
                killed.append(replica)
                next(r for r in replicas if r.id == replica).kill()

        got = await stream(session, lb.url, prompt, 200, on_token)
        survivor = next(r for r in replicas if r.id != killed[0])
        want = await stream(session, survivor.url, prompt, 200)
        same = got["text"] == want["text"] and got["tokens"] == 200
        equal += same
        row(f"continue: kill -9 after 40 tokens, {attempt + 1}", killed=killed[0], tokens=got["tokens"], same_text=same, pause_ms=1000 * got["gap"], usual_gap_ms=1000 * want["gap"])
        dead = next(r for r in replicas if r.id == killed[0])
        dead.start()
        await until("the engine is up again", lambda: healthy(session, dead.url + "/health"))
        await lb.ready(session)
        await until("both engines are proven to continue", proven, 30)
    row("continue: equal answers", equal=equal, of=attempts)
    lb.stop()


POLICIES = [("round-robin",), ("least-load",), ("cache-aware",), ("skylb",), ("skylb", "outstanding:8"), ("cost",)]


async def policies(session, replicas):
    """Compares policies on the same prompts, with empty caches at the start of each."""
    for workload, clients, seconds in [(w, 24, flags.seconds) for w in flags.workloads]:
        for policy in POLICIES:
            await forget(session, replicas)
            lb = Balancer(replicas, "--policy", policy[0], *(["--push", policy[1]] if len(policy) > 1 else []))
            await lb.ready(session)
            hits = [await asyncio.gather(*[metric(session, r.url, f"vllm:prefix_cache_{kind}_total") for r in replicas]) for kind in ("hits", "queries")]
            report = await asyncio.to_thread(load, lb.url, workload, clients, seconds, 3)
            after = [await asyncio.gather(*[metric(session, r.url, f"vllm:prefix_cache_{kind}_total") for r in replicas]) for kind in ("hits", "queries")]
            found, asked = (sum(b) - sum(a) for a, b in zip(hits, after))
            matched, sent = [await metric(session, lb.admin, n) for n in ("skyserve_prefix_match_bytes_total", "skyserve_prompt_bytes_total")]
            report_row(f"{workload} {' '.join(policy)}", report, engine_hits=found / max(asked, 1), predicted_hits=matched / max(sent, 1))
            lb.stop()
            await until("the engines are idle", lambda: idle_all(session, replicas), 30)


async def idle_all(session, replicas):
    return sum(await asyncio.gather(*[metric(session, r.url, "vllm:num_requests_running") for r in replicas])) == 0


STEPS = {"calibrate": (calibrate, 1), "overhead": (overhead, 1), "cancel": (cancel, 1), "continue": (continuation, 2), "policies": (policies, 4)}


async def main():
    session = http()
    replicas = []
    started = time.monotonic()
    try:
        for name in flags.steps:
            step, count = STEPS[name]
            new = [Replica(n) for n in range(len(replicas), count)]
            replicas += new
            for r in new:
                await until(f"{r.id} is up", lambda r=r: healthy(session, r.url + "/health"))
            await warm(session, new)
            print(f"-- {name} ({time.monotonic() - started:.0f} s)", flush=True)
            await step(session, replicas[:count])
    finally:
        await session.close()
        for child in children:
            if child.poll() is None:
                child.kill()
    print(f"-- done ({time.monotonic() - started:.0f} s)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="+", choices=STEPS)
    parser.add_argument("--out", default=".", help="directory for logs, results.jsonl and record.jsonl.gz")
    parser.add_argument("--layers", type=int, default=32, help="layers of the engines' model: 32 for the 8B shape, fewer for faster engines")
    parser.add_argument("--kv-tokens", type=int, default=60_000, help="KV memory of each engine")
    parser.add_argument("--workloads", nargs="+", default=["tot15", "groups"], help="workloads of skyserve load that compare policies")
    parser.add_argument("--seconds", type=int, default=35, help="duration of each load that compares policies")
    flags = parser.parse_args()
    os.makedirs(flags.out, exist_ok=True)
    asyncio.run(main())
