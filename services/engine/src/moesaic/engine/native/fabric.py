"""The ranks of one generation and what travels between them in a step."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store, TCPStore

from moesaic.engine.devices import Device


class FabricLost(RuntimeError):
    """A rank is gone or silent: this generation is over."""


class Fabric(Protocol):
    """Collectives of one generation. Each call must be made by every rank, in the same order."""

    rank: int
    ranks: int

    def gather_records(self, record: Sequence[int]) -> list[list[int]]:
        """Every rank's record, by rank."""

    def gather_rows(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """Every rank's rows `[sizes[r], W]`, rank-major: `[sum(sizes), W]`."""

    def exchange_rows(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """Send `send[r]` rows to rank r (in order) and receive `receive[r]` from it: `[sum(receive), W]`."""

    def barrier(self) -> None:
        """Wait for every rank."""

    def close(self) -> None:
        """Leave; the others notice."""


class Solo:
    """One rank: nothing travels."""

    rank = 0
    ranks = 1

    def gather_records(self, record: Sequence[int]) -> list[list[int]]:
        """See Fabric."""
        return [list(record)]

    def gather_rows(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """See Fabric."""
        del sizes
        return rows

    def exchange_rows(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """See Fabric."""
        del send, receive
        return rows

    def barrier(self) -> None:
        """See Fabric."""

    def close(self) -> None:
        """See Fabric."""


class Distributed:
    """torch.distributed: gloo, nccl or hccl. A rank silent for `timeout_s` within a collective ends the generation."""

    def __init__(self, store: Store, rank: int, ranks: int, device: Device, meet_s: float, timeout_s: float) -> None:
        self.rank = rank
        self.ranks = ranks
        self._device = device
        try:
            dist.init_process_group(
                device.fabric, store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=meet_s)
            )
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s))  # noqa: SLF001  # no public name yet
        except (RuntimeError, ValueError) as error:
            raise FabricLost(f"the ranks did not meet: {_line(error)}") from error

    def gather_records(self, record: Sequence[int]) -> list[list[int]]:
        """See Fabric."""
        mine = torch.tensor(record, dtype=torch.int64, device=self._device.torch)
        all_ = torch.empty(self.ranks * len(record), dtype=torch.int64, device=self._device.torch)
        self._try(lambda: dist.all_gather_single(all_, mine))
        records: list[list[int]] = all_.view(self.ranks, -1).tolist()
        return records

    def gather_rows(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """See Fabric."""
        return self.exchange_rows(rows.repeat(self.ranks, 1), [rows.shape[0]] * self.ranks, sizes)

    def exchange_rows(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """See Fabric."""
        out = rows.new_empty(sum(receive), rows.shape[1])
        self._try(lambda: dist.all_to_all_single(out, rows.contiguous(), list(receive), list(send)))
        return out

    def barrier(self) -> None:
        """See Fabric."""
        self.gather_records([0])

    def close(self) -> None:
        """See Fabric."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _try(self, collective: object) -> None:
        try:
            collective()  # type: ignore[operator]  # a closure over one collective call
        except RuntimeError as error:
            raise FabricLost(_line(error)) from error


def open_store(host: str, timeout_s: float) -> TCPStore:
    """Rank 0's rendezvous on a free port."""
    return TCPStore(
        host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s), use_libuv=True
    )


def reach_store(address: str, timeout_s: float) -> TCPStore:
    """Another rank's rendezvous at host:port."""
    host, _, port = address.rpartition(":")
    try:
        return TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=timeout_s), use_libuv=True)
    except (RuntimeError, ValueError) as error:
        raise FabricLost(f"rendezvous {address} cannot be reached: {_line(error)}") from error


def prepare_environment(host: str) -> None:
    """Keep gloo on the loopback interface where the group is on loopback; the host's name may resolve elsewhere."""
    if host.startswith("127."):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _line(error: BaseException) -> str:
    """The first line, without the source position that torch puts before it."""
    text = re.sub(r"^\[[^\]]*\]\s*", "", str(error).strip())
    return text.splitlines()[0][:200] if text else type(error).__name__
