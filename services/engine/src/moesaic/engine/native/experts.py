"""The experts of a step, wherever they live: gather, assign, compute, bring back.

Few tokens a step: every rank gets every token and every route, so all compute the same assignment to replicas without
another word; each computes its share, and one exchange brings the results home.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from moesaic.engine.counters import Counters
from moesaic.engine.model.arithmetic import Arithmetic
from moesaic.engine.model.decoder import mlp
from moesaic.engine.native.fabric import Fabric
from moesaic.engine.native.slots import LayerTable, SlotPool
from moesaic.shared.arrays import Ints
from moesaic.shared.dispatch import assign


class PlacedExperts:
    """`Experts` of one step."""

    def __init__(
        self,
        fabric: Fabric,
        tables: list[LayerTable],
        pool: SlotPool,
        arithmetic: Arithmetic,
        counters: Counters,
        sizes: tuple[int, ...],
    ) -> None:
        self._fabric = fabric
        self._tables = tables
        self._pool = pool
        self._arithmetic = arithmetic
        self._counters = counters
        self._sizes = sizes
        self._starts = np.cumsum((0, *sizes))

    def __call__(self, moe_layer: int, x: Tensor, experts: Tensor) -> Tensor:
        """See Experts: x `[T, H]` and experts `[T, K]` of this rank to `[T, K, H]`."""
        top_k = experts.shape[1]
        everyone, routes = self._gather(x, experts)
        table = self._tables[moe_layer]
        ranks_of = assign(routes, table.ranks_of, table.shares, self._fabric.ranks)  # [all T, K]
        rank = self._fabric.rank
        mine = np.flatnonzero(ranks_of.reshape(-1) == rank)
        here = routes.reshape(-1)[mine]
        own = slice(int(self._starts[rank]), int(self._starts[rank + 1]))
        self._counters.routed(moe_layer, routes[own])
        by_rank = np.bincount(ranks_of.reshape(-1), minlength=self._fabric.ranks)
        active = np.unique(here).size
        self._counters.executed(moe_layer, by_rank, rank, active)

        began = time.perf_counter()
        computed = self._compute(everyone, mine // top_k, table.slot_of[here])
        if computed.device.type == "cpu":  # elsewhere the work is only queued by now
            self._counters.timed(active, here.size, time.perf_counter() - began)
        home = np.searchsorted(self._starts, mine // top_k, side="right") - 1
        to = ranks_of[own].reshape(-1)
        send = np.bincount(home, minlength=self._fabric.ranks).tolist()
        receive = np.bincount(to, minlength=self._fabric.ranks).tolist()
        came = self._fabric.exchange_rows(computed, send, receive)
        out = torch.empty(x.shape[0] * top_k, x.shape[1], dtype=x.dtype, device=x.device)
        out[torch.from_numpy(np.argsort(to, kind="stable")).to(x.device)] = came
        return out.view(x.shape[0], top_k, x.shape[1])

    def _gather(self, x: Tensor, experts: Tensor) -> tuple[Tensor, Ints]:
        """All ranks' hidden states `[all T, H]` and routes `[all T, K]`, in one exchange."""
        if self._fabric.ranks == 1:
            return x, experts.cpu().numpy()
        ids = experts.to(torch.int32).view(torch.float32).to(x.device)
        rows = self._fabric.gather_rows(torch.cat((x.float(), ids), dim=1), self._sizes)
        hidden, ids = torch.split(rows, [x.shape[1], experts.shape[1]], dim=1)
        return hidden.to(x.dtype), ids.contiguous().view(torch.int32).cpu().numpy().astype(np.int64)

    def _compute(self, x: Tensor, rows: Ints, slots: Ints) -> Tensor:
        """Rows of x through the experts in these slots, one product per active slot: `[N, H]`."""
        order = np.argsort(slots, kind="stable")
        active, counts = np.unique(slots, return_counts=True)
        sorted_rows = x[torch.from_numpy(rows[order]).to(x.device)]
        out = torch.empty_like(sorted_rows)
        places = torch.from_numpy(order).to(x.device)
        for slot, part, at in zip(
            active.tolist(),
            torch.split(sorted_rows, counts.tolist()),
            torch.split(places, counts.tolist()),
            strict=True,
        ):
            out[at] = mlp(self._arithmetic, part, self._pool.gate_up[slot], self._pool.down[slot])
        return out
