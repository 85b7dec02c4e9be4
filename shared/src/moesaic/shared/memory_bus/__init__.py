"""The bus in memory: what `bus` promises, for services of one process and for tests, with outages on demand.

broker = MemoryBroker()
one, other = MemoryBus(broker), MemoryBus(broker)
broker.down(); broker.up(); broker.lose("moesaic.v1.load.>", every=3)
"""

from moesaic.shared.memory_bus.broker import MemoryBroker
from moesaic.shared.memory_bus.bus import MemoryBus

__all__ = ["MemoryBroker", "MemoryBus"]
