"""The seam between the engine service and what computes tokens. `native` is ours; others can stand behind the same methods.

The service owns the bus: requests in, tokens out, load out, placement in, the group's record. A backend owns the model, the
step loop and the fabric between ranks. Nothing of a backend's loop shows in the wire types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from moesaic.shared.messages import (
    Generate,
    Group,
    Phase,
    PhaseLoad,
    Placement,
    PlacementEventName,
    RefusalCode,
    TokenLogprob,
    WireError,
)


@dataclass(frozen=True)
class ModelSpec:
    """What is served, and this rank's room for it."""

    digest: str
    architecture: str
    context: int
    vocab: int
    layers: int
    """MoE layers."""
    experts: int
    top_k: int
    eos_token_ids: tuple[int, ...]
    slot_bytes: int
    slots: int
    spare: int
    device: str
    bell: int
    """TCP port at which other ranks wake this one; 0 where the backend needs none."""
    files: Mapping[str, bytes]
    """Tokenizer files by name."""


@dataclass(frozen=True)
class Output:
    """New output tokens of one request; `finish` or `error` ends it."""

    request: str
    from_index: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish: str | None = None
    error: WireError | None = None
    cached_tokens: int = 0


@dataclass(frozen=True)
class PlacementReport:
    """Something happened to a placement. `local`: on this rank only; else on every rank alike."""

    event: PlacementEventName
    epoch: int
    instalment: int
    instalments: int
    step: int = 0
    moves: int = 0
    bytes: int = 0
    stall_ms: float = 0.0
    reason: str = ""
    local: bool = False


@dataclass(frozen=True)
class LoadSnapshot:
    """Load counters and the placement under which the executed ones were counted."""

    generation: int
    epoch: int
    instalment: int
    phases: Mapping[Phase, PhaseLoad]


@dataclass(frozen=True)
class BackendStatus:
    """Figures for the heartbeat; names as in `EngineStatus`."""

    epoch: int
    instalment: int
    waiting: int
    running: int
    kv_blocks_used: int
    kv_blocks_total: int
    kv_block_size: int
    prefix_queries: int
    prefix_hits: int
    steps: int
    step_ms: float
    prompt_tokens: int
    generated_tokens: int
    preemptions: int
    switches: int
    switch_stall_ms: float
    switch_stall_ms_max: float
    staged_bytes: int


class Events(Protocol):
    """What a backend tells, from any thread; the calls return at once."""

    def outputs(self, outputs: Sequence[Output]) -> None:
        """One step's tokens."""

    def joined(self, generation: int) -> None:
        """The generation steps."""

    def lost(self, generation: int, reason: str) -> None:
        """The generation is over. Requests are kept and go on with the next one."""

    def placement(self, report: PlacementReport) -> None:
        """Staged, committed or refused."""

    def failed(self, reason: str) -> None:
        """The backend cannot go on at all."""


@dataclass(frozen=True)
class Refusal:
    """Why a request was not taken."""

    code: RefusalCode
    reason: str


class Backend(Protocol):
    """Methods return at once unless they say otherwise, and may be called from the service's thread only."""

    @property
    def spec(self) -> ModelSpec:
        """What is served; fixed."""

    def start(self, events: Events) -> None:
        """Begin to work; tells `events` from now on."""

    def rendezvous(self, group: Group) -> str:
        """Rank 0 only: open the place where a generation's ranks meet; its address."""

    def join(self, group: Group, rank: int, epoch: int, placement: Placement | None) -> None:
        """Enter a formed generation. It starts from the stored placement (of this epoch) as rank 0 read it, if it fits."""

    def leave(self) -> None:
        """Leave the generation, telling the other ranks at the next step; ends in `Events.lost`."""

    def submit(self, request: Generate) -> Refusal | None:
        """Take a request, or say why not."""

    def cancel(self, request: str) -> None:
        """Stop a request and free what it has. Unknown ones are ignored."""

    def fail_all(self, error: WireError) -> None:
        """End every request with an error."""

    def offer(self, epoch: int, placement: Placement) -> None:
        """A placement was published; the backend stages it, switches, or refuses."""

    def load(self) -> LoadSnapshot:
        """Counters now."""

    def status(self) -> BackendStatus:
        """Figures now."""

    def close(self) -> None:
        """Stop and free everything; waits."""
