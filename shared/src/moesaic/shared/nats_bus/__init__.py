"""The bus on NATS. Nothing outside this folder imports nats.

async with connect("gateway", "nats://127.0.0.1:4222") as bus: ...
"""

from moesaic.shared.nats_bus.bus import connect

__all__ = ["connect"]
