"""A real nats-server for tests: on a free port of loopback, with its state in a folder, restartable."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

READY = "Server is ready"
SECONDS = 20


class NatsServer:
    """Not started until `start`. The port and the state stay the same over restarts."""

    def __init__(self, folder: Path, *, jetstream: bool = True, max_payload: int = 1 << 20) -> None:
        self.folder = folder
        self.port = free_port()
        self.config = folder / "nats.conf"
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        kept = f'jetstream {{ store_dir: "{folder / "state"}", max_file: 2GB, max_mem: 256MB }}' if jetstream else ""
        self.config.write_text(f"listen: 127.0.0.1:{self.port}\nmax_payload: {max_payload}\n{kept}\n")

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        binary = Path(sys.executable).with_name("nats-server")
        self._process = subprocess.Popen(
            [binary, "--config", self.config], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        ready = threading.Event()
        self._reader = threading.Thread(target=_read, args=(self._process, ready), daemon=True)
        self._reader.start()
        if not ready.wait(SECONDS) or self._process.poll() is not None:
            self.stop()
            raise RuntimeError(f"nats-server did not start on port {self.port}")

    def stop(self) -> None:
        if self._process is None or self._reader is None:
            return
        self._process.terminate()
        self.thaw()
        self._process.wait(SECONDS)
        self._reader.join(SECONDS)
        if self._process.stderr:
            self._process.stderr.close()
        self._process = None

    def freeze(self) -> None:
        """Neither answer nor close anything, like a host that is gone."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    def lose_state(self) -> None:
        """Only while stopped."""
        shutil.rmtree(self.folder / "state", ignore_errors=True)


def _read(process: subprocess.Popen[str], ready: threading.Event) -> None:
    assert process.stderr
    for line in process.stderr:
        if READY in line:
            ready.set()
    ready.set()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
