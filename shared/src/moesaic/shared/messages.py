"""The wire: a closed set of frozen, tagged, versioned types. Bytes are JSON, written by orjson.

A message's `type` names its kind and version (`load.v1`). Receivers ignore fields they do not know, so a field with a
default may be added; anything else is a new version. Integer arrays travel as `IntArray`: base64 of little-endian integers
with their shape.
"""

from __future__ import annotations

import secrets
import time
from typing import Any, Literal, TypeVar

import msgspec
import orjson

T = TypeVar("T")
U = TypeVar("U")

Phase = Literal["prefill", "decode"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")


class BadMessage(ValueError):
    """Bytes that are not the message they were taken for; the text says which field."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a message."""


class Source(Part, frozen=True, kw_only=True):
    """Who said it: everything numbered is (producer, boot, seq). A new boot starts from seq 1."""

    producer: str
    boot: str
    seq: int


class IntArray(Part, frozen=True, kw_only=True):
    """An integer array: `data` is little-endian, `width` bytes each, in C order (base64 in JSON)."""

    shape: tuple[int, ...]
    width: Literal[4, 8]
    data: bytes


# --- generation -----------------------------------------------------------------------------------------------------


class Sampling(Part, frozen=True, kw_only=True):
    """How tokens are chosen. Noise is a hash of (seed, output index), so the same seed gives the same tokens."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """None: no log-probabilities; n: the chosen token's and the n most likely."""


class Generate(Part, frozen=True, kw_only=True, tag="generate.v1", tag_field="type"):
    """A request in token ids. `tokens` is the prompt followed by the `output_offset` outputs already delivered."""

    request: str
    gateway: str
    model: str
    tokens: tuple[int, ...]
    sampling: Sampling
    output_offset: int = 0
    deadline: float | None = None
    """Unix seconds after which the engine may drop it."""


class Accepted(Part, frozen=True, kw_only=True, tag="accepted.v1", tag_field="type"):
    """The engine has the request."""

    request: str
    engine: str
    boot: str


RefusalCode = Literal["invalid", "wrong_model", "too_long", "full", "draining", "not_ready", "unknown"]


class Refused(Part, frozen=True, kw_only=True, tag="refused.v1", tag_field="type"):
    """The engine did not take it. `not_ready`, `full` and `draining` may succeed elsewhere or later."""

    request: str
    code: RefusalCode
    reason: str


class TokenLogprob(Part, frozen=True, kw_only=True):
    """Log-probabilities (natural, of the unmodified distribution) at one output position."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class WireError(Part, frozen=True, kw_only=True):
    """Why a stream ended without finishing."""

    code: Literal["lost_group", "deadline", "internal"]
    message: str


class Frame(Part, frozen=True, kw_only=True, tag="frame.v1", tag_field="type"):
    """Output tokens `from_index`, `from_index + 1`, … of one request. `finish` or `error` ends the stream."""

    request: str
    from_index: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish: Literal["stop", "length"] | None = None
    error: WireError | None = None
    cached_tokens: int = 0
    """Prompt tokens whose KV was found in the prefix cache."""


class Frames(Part, frozen=True, kw_only=True, tag="frames.v1", tag_field="type"):
    """One step's frames of one engine for one gateway; without frames, a heartbeat."""

    source: Source
    frames: tuple[Frame, ...] = ()


class Replay(Part, frozen=True, kw_only=True, tag="replay.v1", tag_field="type"):
    """Ask for a request's tokens again, from an output index."""

    request: str
    from_index: int


class Cancel(Part, frozen=True, kw_only=True, tag="cancel.v1", tag_field="type"):
    """Stop a request if it runs, and forget it. Also the acknowledgement of a finished stream."""

    request: str


class ModelCard(Part, frozen=True, kw_only=True, tag="model.v1", tag_field="type"):
    """What a gateway must know of a model. `files` maps a file name to its digest in the object store."""

    model: str
    digest: str
    architecture: str
    context: int
    vocab: int
    layers: int
    experts: int
    top_k: int
    eos_token_ids: tuple[int, ...]
    files: dict[str, str]
    created: float


# --- engines and groups -----------------------------------------------------------------------------------------------

EngineState = Literal["joining", "serving", "draining", "failed"]


class EngineStatus(Part, frozen=True, kw_only=True, tag="status.v1", tag_field="type"):
    """An engine's heartbeat."""

    source: Source
    at: float
    model: str
    role: Literal["both", "prefill", "decode"]
    state: EngineState
    group: str
    generation: int = 0
    rank: int = -1
    ranks: int = 0
    epoch: int = 0
    instalment: int = 0
    reason: str = ""
    mode: Literal["exact", "fast"] = "fast"
    waiting: int = 0
    running: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    kv_block_size: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache, cumulative."""
    prefix_hits: int = 0
    steps: int = 0
    step_ms: float = 0.0
    """Moving average of the wall time of a step with work."""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    switches: int = 0
    """Instalments committed since boot."""
    switch_stall_ms: float = 0.0
    """Time the last commit added to its step."""
    switch_stall_ms_max: float = 0.0
    staged_bytes: int = 0
    """Weight bytes staged since boot."""
    pid: int = 0


class PhaseLoad(Part, frozen=True, kw_only=True):
    """Counters of one phase. Arrays `[L, E]` or `[L]`; L counts MoE layers, E logical experts.

    `tokens` and `active_steps` (this engine's own tokens, counted once at their own rank) are cumulative since boot.
    The rest is what was *executed* under the placement named in the `Load`, cumulative since that was committed:
    `executed_tokens`, `executed_experts` on this rank; `cost_*` over the whole group, in tokens, the same on every rank.
    """

    steps: int
    tokens: IntArray
    active_steps: IntArray
    executed_steps: int
    executed_us: int = 0
    """Microseconds that these steps took on this engine, waiting for the others included."""
    executed_tokens: IntArray
    executed_experts: IntArray
    cost_total: IntArray
    """Sum over steps of all ranks' cost `[L]`; divided by the ranks, it is the sum of the mean."""
    cost_max: IntArray
    """Sum over steps of the busiest rank's cost `[L]`."""
    cost_best: IntArray
    """Sum over steps of the busiest rank's cost if whole tokens were spread evenly (best EP) `[L]`."""
    timing: tuple[float, ...] = ()
    """What this rank's experts took, for fitting a cost model: upper triangle, row by row, of the sums of products of
    (1, active experts, tokens, ms), one term per layer and step since boot; empty where it is not measured."""


class Load(Part, frozen=True, kw_only=True, tag="load.v1", tag_field="type"):
    """An engine's load counters, cumulative, without padding and warm-up tokens."""

    source: Source
    at: float
    group: str
    model_digest: str
    rank: int
    ranks: int
    generation: int
    epoch: int
    instalment: int
    phases: dict[Phase, PhaseLoad]


class Member(Part, frozen=True, kw_only=True):
    """One engine of a group. Its rank is its place in the list."""

    engine: str
    boot: str
    node: str
    device: str
    host: str
    """Address other members reach it at."""
    bell: int
    """TCP port that wakes it when the group is parked."""
    slots: int
    """Expert slots of its pool, the spare ones included."""
    spare: int
    speed: float = 1.0
    ready: bool = False
    """It has left the former generation and waits for this one's rendezvous."""


class Group(Part, frozen=True, kw_only=True, tag="group.v1", tag_field="type"):
    """One life of a group (a *generation*): ordered members, model, rendezvous. Any change of members makes the next."""

    group: str
    generation: int
    size: int
    model: str
    model_digest: str
    layers: int
    experts: int
    top_k: int
    slot_bytes: int
    members: tuple[Member, ...]
    store: str = ""
    """host:port of rank 0's rendezvous; empty until every member is ready."""

    @property
    def formed(self) -> bool:
        """Every rank is claimed, ready, and the rendezvous is open."""
        return bool(self.store) and len(self.members) == self.size and all(m.ready for m in self.members)

    @property
    def budget(self) -> tuple[int, ...]:
        """Slots per rank that a placement may use: the pool without its spare part."""
        return tuple(m.slots - m.spare for m in self.members)

    def rank_of(self, engine: str, boot: str) -> int | None:
        """The rank of this life of an engine, or None."""
        return next((r for r, m in enumerate(self.members) if (m.engine, m.boot) == (engine, boot)), None)


# --- load windows and placements ----------------------------------------------------------------------------------------


class HotExpert(Part, frozen=True, kw_only=True):
    """An expert far above or below its layer's mean: `ratio` = its tokens / mean tokens per expert."""

    layer: int
    expert: int
    tokens: int
    ratio: float


class PhaseWindow(Part, frozen=True, kw_only=True):
    """One phase of a merged window. Balancedness is of what was executed, cost = tokens; None where nothing was."""

    steps: int
    tokens: IntArray
    """Routed tokens `[L, E]`, all engines together."""
    active_steps: IntArray
    step_ms: float | None = None
    """Mean time of a step under the placement of the window."""
    timing: tuple[float, ...] = ()
    """As in `PhaseLoad`, of all engines, in this window."""
    balance: float | None
    balance_best: float | None
    """The bound: the same routes, each step's whole tokens spread evenly over the ranks."""
    balance_worst: float | None
    worst_layer: int | None
    layer_balance: tuple[float | None, ...] = ()


class Imbalance(Part, frozen=True, kw_only=True, tag="imbalance.v1", tag_field="type"):
    """The monitor's load window of one group."""

    source: Source
    group: str
    model_digest: str
    generation: int
    epoch: int
    instalment: int
    ranks: int
    begin: float
    end: float
    engines: tuple[str, ...]
    phases: dict[Phase, PhaseWindow]
    hot: tuple[HotExpert, ...] = ()
    cold: tuple[HotExpert, ...] = ()
    drift: float | None = None
    """Correlation of this window's load with the one before, mean over layers."""
    lost: int = 0
    """Counter messages known to be lost in this window (nothing is lost of the counts)."""


class LayerPlacement(Part, frozen=True, kw_only=True):
    """Where one layer's experts live. `experts[r]`: logical experts on rank r, ascending; `shares[r]`: their shares."""

    experts: tuple[tuple[int, ...], ...]
    shares: tuple[tuple[int, ...], ...]


class Forecast(Part, frozen=True, kw_only=True):
    """What the planner expects of a placement."""

    balance_now: float
    balance_next: float
    moves: int
    """Copies newly received, all ranks and layers."""
    bytes: int


class Placement(Part, frozen=True, kw_only=True, tag="placement.v1", tag_field="type"):
    """A target: which rank holds which expert, in every layer. Its epoch is the KV revision it is stored under.

    It is applied in instalments that every engine derives from (live state, target, `order`): `placement.path`.
    """

    group: str
    generation: int
    model_digest: str
    layers: tuple[LayerPlacement, ...]
    order: tuple[int, ...] = ()
    """Layers in the order in which they should move; those not named follow ascending."""
    policy: str = ""
    reason: str = ""
    forecast: Forecast | None = None
    at: float = 0.0


PlacementEventName = Literal["proposed", "staged", "committed", "refused", "rolled_back"]


class PlacementEvent(Part, frozen=True, kw_only=True, tag="placement_event.v1", tag_field="type"):
    """One line of the audit trail. `instalment` of `instalments` is 1-based; `bytes` and `moves` are of this event."""

    event: PlacementEventName
    source: Source
    at: float
    group: str
    generation: int
    epoch: int
    instalment: int = 0
    instalments: int = 0
    step: int = 0
    moves: int = 0
    bytes: int = 0
    stall_ms: float = 0.0
    reason: str = ""
    forecast: Forecast | None = None


# --- bytes ----------------------------------------------------------------------------------------------------------


def encode(message: msgspec.Struct) -> bytes:
    """JSON bytes of a message."""
    return orjson.dumps(message, default=msgspec.to_builtins)


def decode(data: bytes, kind: type[T]) -> T:
    """The message in `data`. Raises BadMessage with the field and the reason."""
    return _convert(data, kind)  # type: ignore[no-any-return]


def decode_either(data: bytes, one: type[T], other: type[U]) -> T | U:
    """One of two messages, told apart by their `type`. Raises BadMessage."""
    return _convert(data, one | other)  # type: ignore[no-any-return]


def _convert(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.convert(orjson.loads(data), kind)
    except (orjson.JSONDecodeError, msgspec.ValidationError) as error:
        raise BadMessage(str(error)) from error


class Sequencer:
    """Numbers what one producer says in one kind of message: a boot id (fresh unless given), then seq 1, 2 and so on."""

    def __init__(self, producer: str, boot: str = "") -> None:
        self.producer = producer
        self.boot = boot or secrets.token_hex(6)
        self._seq = 0

    def next(self) -> Source:
        """The next number."""
        self._seq += 1
        return Source(producer=self.producer, boot=self.boot, seq=self._seq)


def now() -> float:
    """Unix seconds, for what leaves the process."""
    return time.time()
