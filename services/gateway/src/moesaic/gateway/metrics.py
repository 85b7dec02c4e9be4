"""What the gateway measures: the names that vLLM's dashboards expect, and `moesaic_gateway_*`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from moesaic.shared.messages import EngineStatus

TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
E2E_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
ROUTE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)


class Metrics:
    """One gateway's registry. `statuses` gives the engines that were heard lately."""

    def __init__(self, statuses: Callable[[], Iterable[EngineStatus]]) -> None:
        self.registry = registry = CollectorRegistry()
        model = ["model_name"]

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, model, registry=registry, buckets=buckets)

        def counter(name: str, text: str, labels: list[str]) -> Counter:
            return Counter(name, text, labels, registry=registry)

        self.ttft = histogram("vllm:time_to_first_token_seconds", "Arrival to first token", TTFT_S)
        self.itl = histogram("vllm:inter_token_latency_seconds", "Between tokens of a choice", ITL_S)
        self.e2e = histogram("vllm:e2e_request_latency_seconds", "Arrival to end", E2E_S)
        self.request_prompt = histogram("vllm:request_prompt_tokens", "Prompt tokens of a request", TOKENS)
        self.request_generation = histogram("vllm:request_generation_tokens", "Output tokens of a request", TOKENS)
        self.prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens", model)
        self.generation_tokens = counter("vllm:generation_tokens", "Output tokens", model)
        self.success = counter("vllm:request_success", "Ended choices", [*model, "finished_reason"])
        self.http = counter("moesaic_gateway_http_requests", "Answers", ["route", "status"])
        self.route = histogram("moesaic_gateway_route_seconds", "Until an engine accepted", ROUTE_S)
        self.retries = counter("moesaic_gateway_retries", "Offers that an engine did not take", ["reason"])
        self.resumes = counter("moesaic_gateway_resumes", "Streams continued on another engine", ["reason"])
        self.replays = counter("moesaic_gateway_replays", "Replays asked for", ["answer"])
        self.missed = Counter("moesaic_gateway_missed_messages", "Messages of engines that got lost", registry=registry)
        self.malformed = Counter("moesaic_gateway_malformed_messages", "Messages not understood", registry=registry)
        self.open = Gauge("moesaic_gateway_open_requests", "Requests in flight", registry=registry)
        self.bus = Gauge("moesaic_gateway_bus_connected", "Whether the bus is there", registry=registry)
        registry.register(_Engines(statuses))

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self.registry)


class _Engines(Collector):
    """Per model, from the newest heartbeats of its engines."""

    def __init__(self, statuses: Callable[[], Iterable[EngineStatus]]) -> None:
        self._statuses = statuses

    def describe(self) -> Iterable[Metric]:
        """Nothing is asked of the engines at registration."""
        return []

    def collect(self) -> Iterable[Metric]:
        """All families, summed over engines."""
        models: dict[str, list[EngineStatus]] = {}
        for status in self._statuses():
            models.setdefault(status.model, []).append(status)
        yield _gauge("vllm:num_requests_running", "Requests in a batch", models, lambda e: e.running)
        yield _gauge("vllm:num_requests_waiting", "Requests that wait", models, lambda e: e.waiting)
        kv = GaugeMetricFamily("vllm:kv_cache_usage_perc", "Used part of the KV cache, 0 to 1", labels=["model_name"])
        for model, engines in models.items():
            total = sum(e.kv_blocks_total for e in engines)
            kv.add_metric([model], sum(e.kv_blocks_used for e in engines) / total if total else 0.0)
        yield kv
        yield _counter("vllm:prefix_cache_queries", "Prompt tokens looked up", models, lambda e: e.prefix_queries)
        yield _counter("vllm:prefix_cache_hits", "Prompt tokens found", models, lambda e: e.prefix_hits)
        yield _counter("vllm:num_preemptions", "Requests put back", models, lambda e: e.preemptions)
        yield _states(models)


Figure = Callable[[EngineStatus], int]
Models = dict[str, list[EngineStatus]]


def _gauge(name: str, text: str, models: Models, figure: Figure) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["model_name"])
    for model, engines in models.items():
        family.add_metric([model], sum(map(figure, engines)))
    return family


def _counter(name: str, text: str, models: Models, figure: Figure) -> Metric:
    family = CounterMetricFamily(name, text, labels=["model_name"])
    for model, engines in models.items():
        family.add_metric([model], sum(map(figure, engines)))
    return family


def _states(models: Models) -> Metric:
    family = GaugeMetricFamily("moesaic_gateway_engines", "Engines heard lately", labels=["model_name", "state"])
    for model, engines in models.items():
        for state in sorted({e.state for e in engines}):
            family.add_metric([model, state], sum(e.state == state for e in engines))
    return family
