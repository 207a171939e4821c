"""/metrics: what Prometheus' own parser makes of it."""

from __future__ import annotations

import dataclasses
import math

import httpx2
import openai
from prometheus_client.parser import text_string_to_metric_families

from sscc.runtime.serving.engine import Histogram
from sscc.runtime.serving.server.prometheus import CONTENT_TYPE, exposition
from tests.runtime.server.fake import NAME, SIGNATURE, running

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples_of(text: str) -> Samples:
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation and family.type != "unknown" for family in families)
    assert all(family.name.startswith("sscc_") for family in families)
    return {(s.name, tuple(s.labels.items())): s.value for family in families for s in family.samples}


def test_what_requests_leave() -> None:
    with running() as server, openai.OpenAI(base_url=server.v1, api_key="any") as client:
        before = httpx2.get(f"{server.url}/metrics")
        assert before.headers["content-type"] == CONTENT_TYPE
        assert samples_of(before.text)["sscc_requests_submitted_total", ()] == 0
        client.completions.create(model=NAME, prompt="hello", max_tokens=4, temperature=0)
        client.completions.create(model=NAME, prompt="hello", max_tokens=60, temperature=0)
        samples = samples_of(httpx2.get(f"{server.url}/metrics").text)
        assert samples["sscc_slots", ()] == SIGNATURE.batch
        for name in ("queued", "running", "prefilling"):
            assert samples[f"sscc_requests_{name}", ()] == 0
        assert samples["sscc_requests_submitted_total", ()] == 2
        assert samples["sscc_requests_finished_total", (("finish", "length"),)] == 1
        assert samples["sscc_requests_finished_total", (("finish", "eos"),)] == 1
        assert samples["sscc_requests_finished_total", (("finish", "error"),)] == 0
        assert samples["sscc_prompt_tokens_total", ()] == 10
        assert samples["sscc_new_tokens_total", ()] == 4 + 27
        assert samples["sscc_time_to_first_token_seconds_count", ()] == 2
        assert samples["sscc_inter_token_latency_seconds_count", ()] == 3 + 26
        assert samples["sscc_time_to_first_token_seconds_sum", ()] > 0


def test_rows_of_running_sequences() -> None:
    with running() as server:
        server.interpreter.go.clear()
        with openai.OpenAI(base_url=server.v1, api_key="any") as client:
            stream = client.completions.create(model=NAME, prompt="x" * 60, max_tokens=9, stream=True)
            next(stream)
            samples = samples_of(httpx2.get(f"{server.url}/metrics").text)
            assert samples["sscc_requests_running", ()] == 1
            assert samples["sscc_kv_rows_kept", ()] == 16
            assert samples["sscc_kv_rows_evicted", ()] == 44
            server.interpreter.go.set()
            list(stream)


def test_histograms_are_cumulative() -> None:
    with running() as server:
        metrics = dataclasses.replace(
            server.engine.metrics(), queued_seconds=Histogram((0.1, 1.0), counts=(3, 2, 1), sum=7.5)
        )
    samples = samples_of(exposition(metrics).decode())
    bounds = [("0.1", 3), ("1.0", 5), ("+Inf", 6)]
    assert [samples["sscc_queue_time_seconds_bucket", (("le", bound),)] for bound, _ in bounds] == [3, 5, 6]
    assert (samples["sscc_queue_time_seconds_count", ()], samples["sscc_queue_time_seconds_sum", ()]) == (6, 7.5)


def test_every_figure_of_the_engine_is_there() -> None:
    """A field that the engine gains is not forgotten here."""
    with running() as server:
        metrics = server.engine.metrics()
    fields = dataclasses.fields(metrics)
    marked = {
        field.name: (
            Histogram((1.0,), (index, 0), 0.0)
            if isinstance(getattr(metrics, field.name), Histogram)
            else {"eos": index}
            if field.name == "finished"
            else index
        )
        for index, field in enumerate(fields, start=1000)
    }
    values = set(samples_of(exposition(type(metrics)(**marked)).decode()).values())
    assert {value for value in values if math.isfinite(value)} >= set(range(1000, 1000 + len(fields)))
