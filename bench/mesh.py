"""The whole mesh on this machine: throughput over HTTP, and what switching placements costs it.

Measured: `moesaic up` with the demo model on two engines (fast mode): seconds until ready; tokens per second over HTTP at 1, 8 and 32
concurrent streams; the same at 8 streams while a new placement is stored every half second, with the stall that each commit
added to its step and the bytes moved. Peer: `transformers` generate with the same checkpoint in float32, the same number of
prompts as one static batch, two threads, in the same run, alternating with ours.

What the figures do not say: the demo model is so small that a step is mostly overhead, so nothing follows for large models; two
engines, gateway, client and bus share the machine's cores, while the peer has them alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
from _report import Figure, arguments, progress, show

from moesaic.shared import log, subjects
from moesaic.shared.bus import Bus, Delivery
from moesaic.shared.messages import Group, Placement, PlacementEvent, decode, encode
from moesaic.shared.nats_bus import connect
from moesaic.shared.placement import State, layer_of

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "models" / "moesaic-tiny"
PROMPT = "The following options are available for"
STREAMS = (1, 8, 32)
READY_S = 120.0


class Up:
    """A running `moesaic up` in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "moesaic.cli", "up", "--model", str(MODEL), "--port", "0"],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def ready(self) -> tuple[dict[str, str], float]:
        """Its addresses, and the seconds it took."""
        file = self.folder / ".moesaic" / "mesh.json"
        while not file.exists():
            if self.process.poll() is not None or time.monotonic() - self.began > READY_S:
                raise SystemExit("moesaic up did not become ready")
            time.sleep(0.02)
        return json.loads(file.read_bytes()), time.monotonic() - self.began

    def stop(self) -> None:
        """As Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(20)


async def stream(http: aiohttp.ClientSession, api: str, tokens: int, seed: int) -> int:
    """One streamed completion; its tokens."""
    body = {
        "model": MODEL.name, "prompt": f"{PROMPT} {seed}", "max_tokens": tokens, "temperature": 0.8, "seed": seed,
        "stream": True, "ignore_eos": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    made = 0
    async with http.post(f"{api}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if line.startswith(b"data: {"):
                usage = json.loads(line[6:]).get("usage")
                made = usage["completion_tokens"] if usage else made
    return made


async def rate(http: aiohttp.ClientSession, api: str, streams: int, tokens: int) -> float:
    """Tokens per second of so many streams at once."""
    began = time.perf_counter()
    made = await asyncio.gather(*(stream(http, api, tokens, seed) for seed in range(streams)))
    return sum(made) / (time.perf_counter() - began)


def peer_rates(tokens: int) -> dict[int, float]:
    """`transformers` generate, one static batch, in a process of its own."""
    code = f"""
import json, time, torch, transformers
transformers.logging.set_verbosity_error(); torch.set_num_threads(2)
from transformers import AutoModelForCausalLM, AutoTokenizer
m = AutoModelForCausalLM.from_pretrained({str(MODEL)!r}, dtype=torch.float32).eval()
t = AutoTokenizer.from_pretrained({str(MODEL)!r}); t.padding_side = "left"
out = {{}}
for n in {STREAMS!r}:
    x = t([f"{PROMPT} {{i}}" for i in range(n)], return_tensors="pt", padding=True)
    kw = dict(do_sample=True, temperature=0.8, min_new_tokens={tokens}, max_new_tokens={tokens})
    with torch.inference_mode():
        m.generate(**x, do_sample=False, max_new_tokens=2)
        s = time.perf_counter(); m.generate(**x, **kw); out[n] = n * {tokens} / (time.perf_counter() - s)
print(json.dumps(out))
"""
    env = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        progress(f"the peer did not run: {done.stderr.strip().splitlines()[-1:]}")
        return {}
    return {int(n): value for n, value in json.loads(done.stdout.splitlines()[-1]).items()}


def dealt(group: Group, seed: int) -> State:
    """All experts of all layers dealt anew: the worst that a placement can ask."""
    draw = random.Random(seed)
    state = []
    for layer in range(group.layers):
        experts = list(range(group.experts))
        draw.shuffle(experts)
        ranks = len(group.members)
        state.append(layer_of(experts[(r + layer) % ranks :: ranks] for r in range(ranks)))
    return tuple(state)


async def storm(bus: Bus, count: int, pause_s: float) -> list[PlacementEvent]:
    """Store placements, one after the other; the commits."""
    commits: list[PlacementEvent] = []

    async def heard(delivery: Delivery) -> None:
        commits.append(decode(delivery.data, PlacementEvent))

    subscription = await bus.subscribe(subjects.placement(MODEL.name, "committed"), heard)
    groups = await bus.bucket(subjects.GROUPS)
    placements = await bus.bucket(subjects.PLACEMENTS)
    entry = await groups.get(subjects.token(MODEL.name))
    if entry is None or entry.value is None:
        raise SystemExit("the group has no record")
    group = decode(entry.value, Group)
    for seed in range(count):
        target = Placement(
            group=group.group, generation=group.generation, model_digest=group.model_digest, layers=dealt(group, seed)
        )
        await placements.put(subjects.token(MODEL.name), encode(target))
        await asyncio.sleep(pause_s)
    await subscription.close()
    return commits


async def pause_planner(bus: Bus) -> None:
    """The bench alone places."""
    await bus.request(subjects.service("moesaic-planner", "pause"), b"{}", timeout=10)


async def switching(api: str, nats: str, tokens: int, count: int) -> list[Figure]:
    """Throughput at 8 streams without and with a storm of placements, alternating."""
    async with connect("bench", nats) as bus, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as http:
        await pause_planner(bus)
        quiet, stormy, commits = [], [], []
        for _ in range(2):
            quiet.append(await rate(http, api, 8, tokens))
            load = asyncio.create_task(rate(http, api, 8, tokens))
            commits += await storm(bus, count, 0.5)
            stormy.append(await load)
    stalls = [c.stall_ms for c in commits]
    name = "8 streams, a placement every 0.5 s"
    share = statistics.mean(stormy) / statistics.mean(quiet)
    return [
        Figure("mesh", name, "throughput_share", "of quiet", share, "quiet", 1.0, 0.95),
        Figure("mesh", name, "commits", "instalments", len(commits)),
        Figure("mesh", name, "stall_median", "ms", statistics.median(stalls), target=1.0, better="lower"),
        Figure("mesh", name, "stall_max", "ms", max(stalls), target=5.0, better="lower"),
        Figure("mesh", name, "moved", "MiB", sum(c.bytes for c in commits) / 2**20),
    ]


async def throughput(api: str, tokens: int) -> dict[int, float]:
    """Tokens per second over HTTP by number of streams."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as http:
        await rate(http, api, 4, 16)
        return {streams: await rate(http, api, streams, tokens) for streams in STREAMS}


def main() -> None:
    """Run it."""
    log.configure("bench", "error")
    args = arguments(__doc__).parse_args()
    tokens, rounds = (64, 1) if args.quick else (192, 3)
    figures: list[Figure] = []
    ours: dict[int, list[float]] = {n: [] for n in STREAMS}
    theirs: dict[int, list[float]] = {n: [] for n in STREAMS}
    for turn in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            up = Up(Path(folder))
            try:
                mesh, seconds = up.ready()
                progress(f"round {turn + 1}: ready after {seconds:.1f} s")
                for n, value in asyncio.run(throughput(mesh["api"], tokens)).items():
                    ours[n].append(value)
                if turn == 0:
                    figures.append(Figure("mesh", "2 engines", "ready", "s", seconds, better="lower"))
                    figures += asyncio.run(switching(mesh["api"], mesh["nats"], tokens * 2, 4 if args.quick else 12))
            finally:
                up.stop()
        progress(f"round {turn + 1}: the peer")
        for n, value in peer_rates(tokens).items():
            theirs[n].append(value)
    for n in STREAMS:
        peer = statistics.median(theirs[n]) if theirs[n] else None
        value = statistics.median(ours[n])
        figures.append(
            Figure("mesh", f"{n} streams, 2 engines", "tokens_per_second", "1/s", value, "transformers", peer)
        )
    show(figures, as_json=args.json)


if __name__ == "__main__":
    main()
