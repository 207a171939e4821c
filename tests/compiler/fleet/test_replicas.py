"""Replicas on Ray Serve, as processes. Runs where Ray is installed:

pip install 'sscc[fleet]' && pytest tests/compiler/fleet/test_replicas.py
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

pytest.importorskip("ray", reason="the extra fleet is not installed: pip install 'sscc[fleet]'")

import ray
from ray import serve
from ray.serve.schema import ServeDeploySchema

from benchmarks.serving import free_ports
from sscc.compiler.tools.fleet import app

pytestmark = pytest.mark.fleet
SLOTS = 4  # of each replica, as the fixture compiles it
TOKENS = 700  # of an answer: enough that a replica dies in its middle
SECONDS = 60.0
RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray gives its workers the niceness 15: they get about 3 % of a core while another process is busy.
    "RAY_worker_niceness": "0",
    # Serve kills a proxy that is not ready within three times 5 s, and one that does not answer within 10 s.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
}


@dataclass
class Fleet:
    """Attributes: url: of the gateway's own port; proxy: of Serve's."""

    url: str
    proxy: str
    options: dict[str, Any]

    def deploy(self, **changes: Any) -> None:
        """Changes what is deployed, and waits until it runs."""
        serve.run(app(self.options | changes), name="sscc")

    def metric(self, name: str) -> float:
        """A metric, added up over replicas."""
        text = httpx2.get(f"{self.url}/metrics", timeout=SECONDS).text
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    def pids(self) -> list[int]:
        """The processes of the replicas."""
        state = serve.status().applications["sscc"].deployments["Replica"]
        assert state.status.value == "HEALTHY"
        return sorted(map(int, os.popen("pgrep -f '^ray::ServeReplica:sscc:Replica'").read().split()))


@pytest.fixture(scope="module")
def fleet(tiny_rdu: Callable[..., Path]) -> Iterator[Fleet]:
    """Two replicas of a program that keeps all rows."""
    port, proxy = free_ports(2)
    os.environ.update(RAY_ENVIRONMENT)
    ray.init(num_cpus=2, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": proxy})
        artifact = str(tiny_rdu("--kv-policy", "query"))
        fleet = Fleet(
            f"http://127.0.0.1:{port}",
            f"http://127.0.0.1:{proxy}",
            {"artifact": artifact, "served-model-name": "m", "prompt-cache": "64MiB", "replicas": 2, "port": port},
        )
        fleet.deploy()
        yield fleet
    finally:
        serve.shutdown()
        ray.shutdown()


def bodies(count: int) -> list[dict[str, Any]]:
    """Requests of both kinds, each with a seed of its own."""
    return [
        {
            "model": "m",
            "prompt": [(7 * index + token) % 200 for token in range(40 + index)],
            "max_tokens": TOKENS,
            "temperature": 1.0,
            "seed": index,
            "ignore_eos": True,
            "stream": index % 3 > 0,
            "logprobs": 1 if index % 4 == 0 else None,
        }
        for index in range(count)
    ]


async def ask(client: httpx2.AsyncClient, url: str, body: dict[str, Any]) -> Any:
    """Text and logprobs of an answer; what went wrong is text too."""
    if not body["stream"]:
        answer = (await client.post(f"{url}/v1/completions", json=body)).json()
        choices = answer.get("choices", [{"text": json.dumps(answer), "logprobs": None}])
    else:
        choices = []
        async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line.removeprefix("data: "))
                    choices += chunk.get("choices", [{"text": json.dumps(chunk), "logprobs": None}])
    logprobs = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    entries = [entry for one in logprobs for entry in zip(*one.values(), strict=True)]
    return "".join(choice["text"] for choice in choices), entries


async def ask_all(url: str, questions: Sequence[dict[str, Any]], clients: int) -> list[Any]:
    gate = asyncio.Semaphore(clients)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx2.AsyncClient(timeout=SECONDS, limits=limits) as client:

        async def one(body: dict[str, Any]) -> Any:
            async with gate:
                return await ask(client, url, body)

        return list(await asyncio.gather(*map(one, questions)))


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_replica_that_is_killed_under_load_costs_no_answer(fleet: Fleet) -> None:
    questions = bodies(32)
    alone = asyncio.run(ask_all(fleet.url, questions, 1))
    assert all(len(text) > 100 and "error" not in text for text, _ in alone)
    before = {name: fleet.metric(f"sscc_fleet_{name}_total") for name in ("retried", "resumed")}
    running = set(fleet.pids())
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(lambda: asyncio.run(ask_all(fleet.url, questions, 8)))
        wait_until(lambda: fleet.metric("sscc_requests_running") > SLOTS)  # so that each replica has some
        os.kill(fleet.pids()[0], signal.SIGKILL)
    assert load.result() == alone
    assert fleet.metric("sscc_fleet_lost_total") == 0
    assert any(fleet.metric(f"sscc_fleet_{name}_total") > count for name, count in before.items())
    wait_until(lambda: fleet.metric("sscc_fleet_replicas") == 2)
    assert len(set(fleet.pids()) - running) == 1


def test_a_conversation_returns_to_its_replica(fleet: Fleet) -> None:
    """All of what both replicas keep would be needed otherwise: each turn prefills what is new."""
    with httpx2.Client(timeout=SECONDS) as client:
        texts = [f"{number}" * 300 for number in range(4)]
        for turn in range(3):
            for number, text in enumerate(texts):
                body = {"model": "m", "prompt": text, "max_tokens": 2, "seed": 1}
                usage = client.post(f"{fleet.url}/v1/completions", json=body).json()["usage"]
                cached = usage["prompt_tokens_details"]["cached_tokens"]
                assert cached == 0 if turn == 0 else cached >= len(text) - 120, (turn, number)
                texts[number] += " and so on" * 10


def test_a_replica_that_is_taken_away_finishes_what_it_has(fleet: Fleet) -> None:
    """Requests are not sent again, so each one that the replica did not finish would fail."""
    fleet.deploy(attempts=1)
    questions = bodies(16)
    alone = asyncio.run(ask_all(fleet.url, questions, 1))
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(lambda: asyncio.run(ask_all(fleet.url, questions, 8)))
        fleet.deploy(attempts=1, replicas=1)
    assert load.result() == alone
    wait_until(lambda: fleet.metric("sscc_fleet_replicas") == 1)


def test_serves_own_proxies_serve_too(fleet: Fleet) -> None:
    """Of one who has more in Ray than this."""
    questions = bodies(6)
    assert asyncio.run(ask_all(fleet.proxy, questions, 3)) == asyncio.run(ask_all(fleet.url, questions, 3))


def test_a_gateway_on_another_port_goes_on_with_the_answers_of_the_old_one(fleet: Fleet) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    questions = bodies(8)
    alone = asyncio.run(ask_all(fleet.url, questions, 1))
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(lambda: asyncio.run(ask_all(fleet.url, questions, 8)))
        time.sleep(0.3)
        fleet.deploy(port=port)
    assert load.result() == alone
    assert asyncio.run(ask_all(url, questions, 8)) == alone
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{fleet.url}/health", timeout=SECONDS)


def test_serve_takes_the_deployment_files() -> None:
    deploy = Path(__file__).parents[3] / "deploy"
    files = [(deploy / "fleet.yaml").read_text()]
    manifest = yaml.safe_load_all((deploy / "kubernetes.yaml").read_text())
    files += [item["data"]["fleet.yaml"] for item in manifest if item["kind"] == "ConfigMap"]
    for text in files:
        ServeDeploySchema.model_validate(yaml.safe_load(text))
