"""The one place where devices differ: cpu, cuda, npu."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Device:
    """A kind of device and the torch.distributed backend that joins several of it."""

    kind: str
    torch: torch.device
    fabric: str


class DeviceError(RuntimeError):
    """A device that was asked for and is not there."""


def choose(name: str) -> Device:
    """The device of a `--device` setting; `torch_npu` is imported only when npu is asked for."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        if not torch.cuda.is_available():
            raise DeviceError("no CUDA device: use --device cpu, or a torch build with CUDA")
        return Device("cuda", torch.device("cuda", torch.cuda.current_device()), "nccl")
    if name == "npu":
        os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        try:
            importlib.import_module("torch_npu")
        except Exception as error:  # an import of a driver fails in many ways
            raise DeviceError(f"torch_npu cannot be used: {error}; install moesaic[npu] and CANN") from error
        return Device("npu", torch.device("npu", 0), "hccl")
    return Device("cpu", torch.device("cpu"), "gloo")
