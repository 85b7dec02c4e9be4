"""The monitor's Prometheus metrics, read from its state at each scrape. Labels: group, phase, state; never an expert."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from moesaic.monitor.state import GroupState, State

Number = Callable[[GroupState], float]

GAUGES: tuple[tuple[str, str, Number], ...] = (
    ("moesaic_epoch", "Epoch of the live placement", lambda g: g.epoch[0]),
    ("moesaic_generation", "Generation of the group", lambda g: g.generation),
    (
        "moesaic_switch_stall_milliseconds",
        "Time the last switch added to its step, the slowest engine",
        lambda g: max((s.switch_stall_ms for s in g.engines.newest()), default=0.0),
    ),
    (
        "moesaic_switch_stall_milliseconds_max",
        "Longest time a switch added to a step, since the engines' boot",
        lambda g: max((s.switch_stall_ms_max for s in g.engines.newest()), default=0.0),
    ),
)

COUNTERS: tuple[tuple[str, str, Number], ...] = (
    ("moesaic_windows", "Load windows with work", lambda g: g.closed),
    ("moesaic_lost_messages", "Counter messages lost (nothing of the counts)", lambda g: g.windows.lost),
    ("moesaic_commits", "Instalments of placements committed", lambda g: g.placements.commits),
    ("moesaic_refusals", "Placements refused", lambda g: g.placements.refusals),
    ("moesaic_moves", "Expert copies received in switches", lambda g: g.placements.moves),
    ("moesaic_moved_bytes", "Weight bytes received in switches", lambda g: g.placements.bytes),
)

BALANCES = {
    "moesaic_balance": ("Balancedness of the last window, cost in tokens, mean over layers", "balance"),
    "moesaic_balance_best": ("The same, were each step's tokens spread evenly", "balance_best"),
    "moesaic_balance_worst": ("Balancedness of the worst layer", "balance_worst"),
}


class StateCollector(Collector):
    """Yields metrics of a state. `bad`: messages that made no sense, so far."""

    def __init__(self, state: State, clock: Callable[[], float], bad: Callable[[], int]) -> None:
        self._state = state
        self._clock = clock
        self._bad = bad

    def collect(self) -> Iterator[Metric]:
        """All families."""
        groups = list(self._state.groups.items())
        for name, text, number in GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=["group"])
            for group, state in groups:
                gauge.add_metric([group], number(state))
            yield gauge
        for name, text, number in COUNTERS:
            counter = CounterMetricFamily(name, text, labels=["group"])
            for group, state in groups:
                counter.add_metric([group], number(state))
            yield counter
        yield from self._by_phase(groups)
        yield self._engines(groups)
        yield CounterMetricFamily("moesaic_bad_messages", "Messages that made no sense", value=self._bad())

    def _by_phase(self, groups: list[tuple[str, GroupState]]) -> Iterator[Metric]:
        for name, (text, field) in BALANCES.items():
            gauge = GaugeMetricFamily(name, text, labels=["group", "phase"])
            for group, state in groups:
                for phase, window in state.newest.phases.items() if state.newest else ():
                    value: float | None = getattr(window, field)
                    if value is not None:
                        gauge.add_metric([group, phase], value)
            yield gauge
        tokens = CounterMetricFamily("moesaic_routed_tokens", "Routes counted, all layers", labels=["group", "phase"])
        for group, state in groups:
            for phase, count in state.tokens.items():
                tokens.add_metric([group, phase], count)
        yield tokens

    def _engines(self, groups: list[tuple[str, GroupState]]) -> Metric:
        gauge = GaugeMetricFamily("moesaic_engines", "Engines by state", labels=["group", "state"])
        for group, state in groups:
            for name, count in state.engines.states(self._clock()).items():
                gauge.add_metric([group, name], count)
        return gauge


def exposition(collector: Collector) -> bytes:
    """The text that Prometheus reads."""
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)
