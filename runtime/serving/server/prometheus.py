"""The engine's metrics in Prometheus's format."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sscc.runtime.serving.engine import Histogram, Metrics

CONTENT_TYPE = CONTENT_TYPE_LATEST
_GAUGES = {
    "sscc_requests_queued": ("Requests waiting for a slot.", "queued"),
    "sscc_requests_running": ("Requests that decode.", "running"),
    "sscc_requests_prefilling": ("Prompts being prefilled, 0 or 1.", "prefilling"),
    "sscc_slots": ("Slots of the program.", "slots"),
    "sscc_kv_rows_kept": ("Cache rows of the running sequences, per layer and KV head.", "kept_rows"),
    "sscc_kv_rows_evicted": (
        "Positions of the running sequences that are no longer in the cache, per layer and KV head.",
        "evicted_rows",
    ),
}
_COUNTERS = {
    "sscc_requests_submitted": ("Requests accepted.", "submitted"),
    "sscc_requests_rejected": ("Requests refused because the queue was full.", "rejected"),
    "sscc_prompt_tokens": ("Tokens of prompts.", "prompt_tokens"),
    "sscc_cached_prompts": ("Prompts reused from the cache completely or in part.", "cached_prompts"),
    "sscc_cached_prompt_tokens": (
        "Tokens of prompts that were reused from the cache.",
        "cached_prompt_tokens",
    ),
    "sscc_shortened_prompts": ("Prompts shortened by the draft.", "shortened_prompts"),
    "sscc_left_out_prompt_tokens": ("Tokens of prompts left out by the draft.", "left_out_prompt_tokens"),
    "sscc_draft_seconds": ("Time of the draft's work.", "draft_seconds"),
    "sscc_slot_messages": ("Slots sent to or received from other servers.", "slot_messages"),
    "sscc_slot_message_bytes": ("Bytes of these slots as transferred.", "slot_message_bytes"),
    "sscc_slot_message_full_kv_bytes": (
        "Bytes of uncompressed caches of the same prompts.",
        "slot_message_full_kv_bytes",
    ),
    "sscc_new_tokens": ("Tokens generated.", "new_tokens"),
    "sscc_decode_steps": ("Decode steps, each for all active slots.", "decode_steps"),
    "sscc_verify_steps": ("Decode steps that verified drafted tokens.", "verify_steps"),
    "sscc_drafted_tokens": ("Tokens drafted for answers.", "drafted_tokens"),
    "sscc_accepted_tokens": ("Drafted tokens that became part of answers.", "accepted_tokens"),
    "sscc_decode_seconds": ("Time in decode steps.", "decode_seconds"),
    "sscc_prefill_steps": ("Chunk steps of prefill.", "prefill_steps"),
    "sscc_prefill_seconds": ("Time in prefill.", "prefill_seconds"),
    "sscc_overhead_seconds": ("Time of the engine's thread outside decode and prefill steps.", "overhead_seconds"),
}
_HISTOGRAMS = {
    "sscc_time_to_first_token_seconds": ("Time from submission to the first token.", "first_token_seconds"),
    "sscc_inter_token_latency_seconds": ("Time between two tokens of a request.", "inter_token_seconds"),
    "sscc_queue_time_seconds": ("Time from submission to a slot.", "queued_seconds"),
}


def exposition(metrics: Metrics) -> bytes:
    """Return a snapshot in Prometheus's text format, whose content type is `CONTENT_TYPE`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(metrics))
    return generate_latest(registry)


class _Snapshot(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterator[Metric]:
        yield from ()  # used for detecting name clashes, but this is the registry's only collector

    def collect(self) -> Iterator[Metric]:
        for name, (text, field) in _GAUGES.items():
            yield GaugeMetricFamily(name, text, value=getattr(self._metrics, field))
        for name, (text, field) in _COUNTERS.items():
            yield CounterMetricFamily(name, text, value=getattr(self._metrics, field))
        finished = CounterMetricFamily("sscc_requests_finished", "Requests that ended, by reason.", labels=["finish"])
        for finish, count in self._metrics.finished.items():
            finished.add_metric([finish], count)
        yield finished
        for name, (text, field) in _HISTOGRAMS.items():
            yield _histogram(name, text, getattr(self._metrics, field))


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    """Return a histogram with Prometheus's cumulative buckets, from one of the engine's, which are not cumulative."""
    total, buckets = 0, []
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), total))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=histogram.sum)
