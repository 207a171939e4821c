"""Metrics and status of a fleet, combined from those of its replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

Json = dict[str, Any]
LABEL = "replica"


def metrics_of(texts: Mapping[str, str], own: Sequence[Metric]) -> bytes:
    """Return the metrics of all replicas in Prometheus's text format, labelled with the replica's name, and the
    gateway's.

    Args:
        texts: metrics of each replica in the same format, by its name.
        own: metrics of the gateway.
    """
    families: dict[str, Metric] = {}
    for replica, text in texts.items():
        for family in text_string_to_metric_families(text):
            whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            whole.samples += [_labelled(sample, replica) for sample in family.samples]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families([*families.values(), *own]))
    return generate_latest(registry)


def _labelled(sample: Sample, replica: str) -> Sample:
    return sample._replace(labels={LABEL: replica, **sample.labels})


class _Families(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def describe(self) -> Sequence[Metric]:
        return ()

    def collect(self) -> Sequence[Metric]:
        return self._families


def status_of(states: Mapping[str, Json]) -> Json:
    """Return /v1/status of a fleet: totals and queue lengths are added up, and the slots are concatenated with their
    replica's name. The program is the same in all replicas, so the first one's is returned."""
    first = next(iter(states.values()))
    slots = [slot | {LABEL: name} for name, state in states.items() for slot in state["slots"]]
    return first | {
        "queued": sum(state["queued"] for state in states.values()),
        "totals": _sums([state["totals"] for state in states.values()]),
        "finished": _sums([state["finished"] for state in states.values()]),
        "slots": [slot | {"slot": number} for number, slot in enumerate(slots)],
        "replicas": list(states),
    }


def _sums(counts: Sequence[Mapping[str, Any]]) -> Json:
    return {name: sum(one[name] for one in counts) for name in counts[0]}
