"""Files in deploy/: valid for their readers, with metrics that a fleet has."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sscc.compiler.tools.fleet.fleet_options import Replicas, parse_options
from sscc.runtime.serving.fleet.gateway import Gateway
from tests.runtime.fleet.test_gateway import FakePool, call_of, whole
from tests.runtime.server.fake import open_app

DEPLOY = Path(__file__).parents[1] / "deploy"
_NAME = re.compile(r"\bsscc_[a-z_]+")
KUBERNETES: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def of_kind(kind: str) -> dict[str, Any]:
    (one,) = [item for item in KUBERNETES if item["kind"] == kind]
    return one


def served_metrics() -> set[str]:
    """Names of what /metrics of a fleet has."""
    with open_app() as replica:
        gateway = Gateway(FakePool([replica]), by_prompt=False, attempts=1, max_body=1000, api_keys=())
        _, text = asyncio.run(whole(gateway, call_of("GET", "/metrics")))
    return {match[0] for line in text.decode().splitlines() if line[:1] != "#" and (match := _NAME.match(line))}


def test_the_board_shows_what_there_is() -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text())
    served = served_metrics()
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    for panel in panels:
        for target in panel["targets"]:
            names = set(_NAME.findall(target["expr"]))
            assert names, panel["title"]
            assert names <= served, panel["title"]
            counted = {name for name in names if name.endswith("_total")}
            assert counted <= set(re.findall(r"(?:rate|increase)\((\w+)\[", target["expr"])), panel["title"]
    shown = set(_NAME.findall(json.dumps(panels)))
    assert {name for name in served if name.startswith("sscc_fleet_") and not name.endswith("_created")} <= shown


def test_prometheus_reads_where_a_fleet_listens() -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    fleet = yaml.safe_load((DEPLOY / "fleet.yaml").read_text())
    options = fleet["applications"][0]["args"]
    assert job["metrics_path"] == "/metrics"
    assert job["static_configs"][0]["targets"] == [f"{options['host']}:{options['port']}"]


def test_the_manifest_fits_together() -> None:
    pod = of_kind("Deployment")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    fleet = yaml.safe_load(of_kind("ConfigMap")["data"]["fleet.yaml"])
    options = fleet["applications"][0]["args"]
    (port,) = container["ports"]
    (service_port,) = of_kind("Service")["spec"]["ports"]
    assert port["containerPort"] == options["port"] == service_port["port"]
    assert container["startupProbe"]["httpGet"]["port"] == service_port["targetPort"] == port["name"]
    labels = pod["metadata"]["labels"]
    assert of_kind("Service")["spec"]["selector"] == of_kind("Deployment")["spec"]["selector"]["matchLabels"] == labels
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert {"SSCC_API_KEY"} == {variable["name"] for variable in container["env"]}
    replicas = Replicas.parse(str(options["replicas"]))
    assert int(container["resources"]["limits"]["cpu"]) > replicas.most * options["threads"]
    wait = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert options["drain-timeout"] <= wait < pod["spec"]["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("text", [(DEPLOY / "fleet.yaml").read_text(), of_kind("ConfigMap")["data"]["fleet.yaml"]])
def test_deployment_files_are_taken(text: str) -> None:
    (application,) = yaml.safe_load(text)["applications"]
    assert application["import_path"] == "sscc.compiler.tools.fleet:app"
    assert yaml.safe_load(text)["proxy_location"] == "Disabled"
    assert parse_options(application["args"]).port == 8000


def test_the_container_is_made_of_what_is_there() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    sources = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ") and "--from" not in line]
    assert all((DEPLOY.parent / source).exists() for line in sources for source in line)
    assert "RAY_USAGE_STATS_ENABLED=0" in text
    (replaced,) = re.findall(r"sed 's/(.*?)/", text)
    assert replaced in (DEPLOY / "fleet.yaml").read_text()
    mounts = of_kind("Deployment")["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    (started,) = re.findall(r'^CMD \["serve", "run", "(.*)/fleet.yaml"\]$', text, re.MULTILINE)
    assert started in {mount["mountPath"] for mount in mounts}
