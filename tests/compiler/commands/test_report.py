"""`sscc report`: one page that needs nothing else, trusts nothing that it shows, and works in a browser."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from sscc.compiler.tools.commands.cli import main
from sscc.compiler.tools.commands.parser import CommandLineErrors
from sscc.compiler.tools.commands.report import ReportCommandErrors
from sscc.compiler.tools.inspection.inspection import InspectionErrors
from sscc.compiler.tools.inspection.measurements import MeasurementErrors
from sscc.compiler.tools.report.dot import dot_text
from sscc.compiler.tools.report.graph import KernelGraph, kernel_graphs
from sscc.compiler.tools.report.model_explorer import model_explorer_text
from sscc.compiler.tools.report.page import SECTIONS, percent, render
from sscc.compiler.tools.report.pass_dumps import DumpFolderErrors
from sscc.compiler.tools.report.report_inputs import Sources
from sscc.compiler.tools.report.roofline import Box, roofline
from sscc.ir.errors import ErrorKind
from sscc.ir.file_form import RecordErrors
from sscc.ir.files import FileErrors
from sscc.ir.schedule import Program
from sscc.ir.sizes import format_seconds
from sscc.ir.target import TargetErrors
from sscc.runtime.artifact.artifact_files import ArtifactFileErrors
from sscc.runtime.session.artifact import Artifact
from tests.browser import chromium, opened_tab
from tests.errors import check, one_line

LARGEST = 2 << 20
"""Bytes of a page of a tiny model with its dumps. A model of 30 layers has one of 1 MiB."""
HOSTILE = """<script>alert(1)</script>"'&<img src=x onerror=alert(2)>{{ 7919 * 7927 }}"""
PROMPT = f"What the cache keeps of it:\n{HOSTILE}"
NOT_BOTH = "argument --model-explorer: not allowed with argument --dot"
VOID = {"meta", "link", "img", "br", "input"}


class Page(HTMLParser):
    """Elements with their attributes, the text of scripts, and whether all that opens is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.scripts.append(data)

    def with_tag(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def bench(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return prepared measurements of the artifact, because measuring takes time."""
    schedule = Artifact.load(artifact).schedule_digest
    shared = {"seconds": [0.5, 0.4, 0.6], "bandwidth": 1e9}
    prefill = {"test": "prefill", "tokens": 20, "slots": 1, "depth": 0, "tokens_per_second": 40.0, "share": None}
    decode = {"test": "decode", "tokens": 5, "slots": 2, "depth": 30, "tokens_per_second": 20.0, "share": 0.25}
    results = [prefill | shared | {"bytes_per_step": None}, decode | shared | {"bytes_per_step": 25_000_000}]
    described = {"artifact": str(artifact), "schedule": schedule, "interpreter": "native", "threads": 1}
    data = {**described, "ranks": 1, "ranks_of_this_machine": 1, "results": results}
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    path.write_text(json.dumps(data))
    return path


@pytest.fixture(scope="module")
def page(artifact: Path, bench: Path) -> Path:
    output = artifact.parent / "report.html"
    (artifact.parent / "prompt.txt").write_text(PROMPT)
    besides = ["--bench", str(bench), "--ir-dir", str(artifact.parent / "ir")]
    besides += ["--prompt-file", str(artifact.parent / "prompt.txt")]
    assert main(["report", str(artifact), "-o", str(output), *besides]) == 0
    return output


def graphs(sources: Sources) -> list[KernelGraph]:
    program = sources.artifact.program
    return [graph for timing in sources.timings.values() for graph in kernel_graphs(program, timing)]


def test_one_file_with_every_section(page: Path) -> None:
    text = page.read_text()
    parsed = Page(text)
    assert [section["id"] for section in parsed.with_tag("section")] == [section.key for section in SECTIONS]
    assert {link["href"] for link in parsed.with_tag("a")} <= {f"#{section.key}" for section in SECTIONS}
    assert [link["href"] for link in parsed.with_tag("link")] == ["data:,"]
    assert not any("src" in attributes for _, attributes in parsed.elements)
    assert not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org)", text)
    assert len(text.encode()) < LARGEST
    identities = Counter(attributes["id"] for _, attributes in parsed.elements if "id" in attributes)
    assert max(identities.values()) == 1


def test_every_place_that_states_a_kernels_time_states_the_same(
    page: Path, artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Overview, drawings, table, `sscc inspect`, and both graphs for other programs; the kernels add up to the call."""
    text = page.read_text()
    assert main(["inspect", str(artifact), "--prompt", "16", "--json"]) == 0
    inspection = json.loads(capsys.readouterr().out)
    assert main(["inspect", str(artifact), "--prompt", "16"]) == 0
    told = capsys.readouterr().out
    assert main(["report", str(artifact), "--dot", "-o", "-"]) == 0
    dot = capsys.readouterr().out
    assert main(["report", str(artifact), "--model-explorer", "-o", "-"]) == 0
    explorer = {graph["id"]: graph["groupNodeAttributes"] for graph in json.loads(capsys.readouterr().out)["graphs"]}
    for entry in ("decode", "prefill"):
        report = inspection[entry]
        assert sum(kernel["seconds"] for kernel in report["kernels"]) == pytest.approx(report["seconds"])
        assert sum(kernel["launch_seconds"] for kernel in report["kernels"]) == pytest.approx(
            report["overhead_seconds"]
        )
        for kernel in report["kernels"]:
            name, time = kernel["name"], format_seconds(kernel["seconds"])
            share = percent(kernel["seconds"] / report["seconds"])
            legend = re.findall(rf"</i>{re.escape(name)} <b>(.+?)</b> <span>(.+?)</span>", text)
            drawn = re.findall(rf"<summary><code>{re.escape(name)}</code> <b>(.+?)</b> <span>(.+?)[,<]", text)
            rows = re.findall(rf"<code>{re.escape(name)}</code></th><td>\d+</td><td>(.+?)</td><td>(.+?)</td>", text)
            assert (share, time) in legend
            assert (time, share) in rows
            assert not drawn or (share, time) in drawn
            assert f"{name} x {kernel['launches']}: {time}," in told
            assert re.search(rf"{entry}: {re.escape(name)}, \d+ launch(es)?, {re.escape(time)}\"", dot)
            assert explorer[entry][name.replace("/", "_")]["modelled time"] == time


def test_what_the_page_says(page: Path, artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The numbers of `sscc inspect`, the stages of the schedule, the passes, the measurements."""
    text = page.read_text()
    assert main(["inspect", str(artifact), "--prompt", "16", "--json"]) == 0
    inspection = json.loads(capsys.readouterr().out)
    assert f"{inspection['decode']['seconds'] * 1e6:.4g} us" in text
    assert f"{inspection['prefill']['seconds'] * 1e6:.4g} us" in text
    assert "16 rows = sink 2 + recent 8 + topk 6, for 128 tokens" in text
    for name in ("gate_proj+up_proj", "decode_attention", "k_cache", "kernel-looping", "place-stages", "assumed"):
        assert name in text
    assert re.search(r"decode 5 at 30, 2 slots.*?100 ms.*?25 ms.*?25%", text, re.DOTALL)


def test_what_the_cache_kept(page: Path) -> None:
    """Every token, and of every layer and head why it has it: 2 first ones, 8 most recent, 6 selected."""
    text = page.read_text()
    words = re.search(r'<div class="kept-text".*?</div>', text, re.DOTALL)
    assert words is not None
    shown = html.unescape(re.sub(r"<[^>]*>", "", words[0]))
    assert shown.startswith(PROMPT)
    rows = re.findall(r'data-part="(\d:\d)">(\d+)<', text)
    assert [name for name, _ in rows] == ["0:0", "0:1", "1:0", "1:1"]
    for _, row in rows:
        assert Counter(row) == {"4": 2, "3": 8, "2": 6, "0": len(row) - 16}
        assert row.startswith("44")
        assert row.endswith("33333333")


def test_no_text_of_an_artifact_becomes_markup(artifact: Path, bench: Path, tmp_path: Path) -> None:
    loaded = Artifact.load(artifact)
    text = loaded.program.to_json()
    spelled = json.dumps(HOSTILE)[1:-1]
    for name in ("decode_attention", "o_proj", "k_cache", "decode.head", "p0"):
        text = re.sub(rf'(?<!"kind":)"({re.escape(name)})"(?!:)', lambda match: f'"{match[1]}{spelled}"', text)
    program = Program.from_json(text)
    assert sum(HOSTILE in kernel.name for kernel in program.kernels) == 1
    manifest = dataclasses.replace(loaded.manifest, model={"model_type": HOSTILE}, sscc=HOSTILE)
    ir = tmp_path / "ir"
    shutil.copytree(artifact.parent / "ir", ir)
    for dump in ir.glob("*.mlir"):
        dump.write_text(dump.read_text().replace("linalg.", HOSTILE))
    hostile = json.loads(bench.read_text()) | {"interpreter": HOSTILE}
    (tmp_path / "bench.json").write_text(json.dumps(hostile))
    named = dataclasses.replace(loaded, program=program, manifest=manifest)
    sources = Sources.read(named, loaded.target, bench=tmp_path / "bench.json", dumps=ir)
    rendered = render(sources)
    parsed = Page(rendered)
    assert rendered.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 20
    assert len(parsed.with_tag("script")) == len(parsed.scripts) == 1
    assert "alert" not in parsed.scripts[0]
    assert not parsed.with_tag("img")
    assert not any(name.startswith("on") for _, attributes in parsed.elements for name in attributes)
    assert "62773913" not in rendered.replace(HOSTILE, "")
    dot = dot_text(HOSTILE, graphs(sources))
    assert all(len(re.findall(r'(?<!\\)"', line.replace("\\\\", ""))) % 2 == 0 for line in dot.splitlines())


def test_the_graph_alone(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = Sources.read(Artifact.load(artifact), Artifact.load(artifact).target)
    nodes = {(g.entry, g.name, p.name, n.name) for g in graphs(sources) for p in g.pipelines for n in p.nodes}
    assert main(["report", str(artifact), "--dot", "-o", "-"]) == 0
    dot = capsys.readouterr().out
    assert dot == dot_text(artifact.name, graphs(sources))
    assert len(re.findall(r"^ +n\d+_\d+_\d+ \[label=", dot, re.MULTILINE)) == len(nodes)
    assert main(["report", str(artifact), "--model-explorer", "-o", "-"]) == 0
    text = capsys.readouterr().out
    assert text == model_explorer_text(artifact.name, graphs(sources))
    collection = json.loads(text)
    assert set(collection) == {"label", "graphs"}  # what Model Explorer knows a collection by
    assert sum(len(graph["nodes"]) for graph in collection["graphs"]) == len(nodes)
    for graph in collection["graphs"]:
        identities = [node["id"] for node in graph["nodes"]]
        assert len(set(identities)) == len(identities)
        for node in graph["nodes"]:
            assert node["namespace"] in graph["groupNodeAttributes"]
            assert all(type(item["value"]) is str for item in node["attrs"])
            for edge in node["incomingEdges"]:
                source = next(other for other in graph["nodes"] if other["id"] == edge["sourceNodeId"])
                assert edge["sourceNodeOutputId"] in [output["id"] for output in source["outputsMetadata"]]


def test_stages_of_a_layer(artifact: Path) -> None:
    """Loads and stores stand in the stages that they serve, and every byte that a step moves is somewhere."""
    sources = Sources.read(Artifact.load(artifact), Artifact.load(artifact).target)
    step = sources.timings["decode"]
    (layer,) = [graph for graph in kernel_graphs(sources.artifact.program, step) if "layer" in graph.name]
    (pipeline,) = layer.pipelines
    nodes = {node.name: node for node in pipeline.nodes}
    attention = nodes["decode_attention"]
    assert attention.kind == "cache"
    assert [(a.verb, a.name) for a in attention.accesses if a.verb == "updates"] == [
        ("updates", "k_cache"),
        ("updates", "v_cache"),
    ]
    assert "model.layers.0-1.mlp.down_proj.weight" in [a.name for a in nodes["down_proj"].accesses]
    assert nodes["down_proj"].carries == ("hidden",)
    assert not any(name.startswith(("load ", "store ")) for name in nodes)
    carried = {(s.source, s.target) for s in pipeline.streams if s.carried}
    assert ("down_proj", "input_layernorm") in carried
    moved = {s.stage: s.nbytes.get("hbm", 0) for s in step.stages() if s.kernel == layer.name}
    folded = {a.stage for node in pipeline.nodes for a in node.accesses if a.stage}
    assert {*nodes} | folded == {*moved}
    assert sum(moved.values()) == next(x.kernel.nbytes["hbm"] for x in step.launches if x.kernel.name == layer.name)


def test_a_stage_with_quantized_weights_is_a_product(checkpoint: Path, tmp_path: Path) -> None:
    words = ["compile", str(checkpoint), "-o", str(tmp_path / "int8.rdu"), "--weights", "int8", "--kv-budget", "64"]
    assert main([*words, "-q"]) == 0
    loaded = Artifact.load(tmp_path / "int8.rdu")
    shown = graphs(Sources.read(loaded, loaded.target))
    nodes = {node.name: node for graph in shown for pipeline in graph.pipelines for node in pipeline.nodes}
    assert "dequantize" in nodes["down_proj"].steps
    assert (nodes["down_proj"].kind, nodes["decode_attention"].kind) == ("product", "cache")


def test_labels_of_the_roofline_cover_no_point_and_no_other_label(artifact: Path) -> None:
    drawing = roofline(Sources.read(Artifact.load(artifact), Artifact.load(artifact).target))
    labels = [label for label in drawing.labels if label.kind == "point"]
    assert len(labels) > 4
    boxes = [box for label in drawing.labels if not label.angle for box in label.boxes()]
    for label in labels:
        (box,) = label.boxes()
        assert [other for other in boxes if overlap(box, other)] == [box]
        assert not any(overlap(box, point.box()) for point in drawing.points if not label.text.startswith(point.name))


def overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@pytest.mark.parametrize(
    ("words", "kind", "fields"),
    [
        (["--dot", "--model-explorer"], CommandLineErrors.INVALID, {"reason": NOT_BOTH}),
        (["--dot", "--bench", "x"], ReportCommandErrors.OPTION_OF_PAGE, {"form": "dot"}),
        (["--bench", "missing.json"], MeasurementErrors.UNREADABLE, {"path": "missing.json"}),
        (["--ir-dir", "missing"], DumpFolderErrors.UNREADABLE, {"folder": "missing"}),
        (["--prompt-file", "missing.txt"], FileErrors.CANNOT_READ, {"path": "missing.txt"}),
        (["--context", "0"], InspectionErrors.CONTEXT, {"tokens": 0, "max_context": 128}),
        (["--prompt", "500"], InspectionErrors.PROMPT, {"tokens": 500, "max_context": 128}),
        (["--target", "gpu"], TargetErrors.UNKNOWN, {"target": "gpu", "family": "rdu"}),
        (["-o", "no/folder/x.html"], FileErrors.CANNOT_WRITE, {"path": "no/folder/x.html"}),
    ],
)
def test_refusals(
    words: list[str], kind: ErrorKind, fields: dict[str, Any], artifact: Path, capsys: pytest.CaptureFixture[str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    check(one_line(["report", str(artifact), *words], capsys), kind, **fields)
    assert list(tmp_path.iterdir()) == []


def test_measurements_that_do_not_fit(
    artifact: Path, bench: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = json.loads(bench.read_text())
    result = good["results"][1]
    path = tmp_path / "b.json"
    bad_test = {"place": "it.results[0].test", "value": "x"}
    cases: list[tuple[Any, ErrorKind, dict[str, Any]]] = [
        ("{", MeasurementErrors.NOT_JSON, {"path": path}),
        ([], RecordErrors.WRONG_VALUE, {"place": "it", "value": "[]", "expected": "Measurements"}),
        (good | {"schedule": "0"}, MeasurementErrors.OTHER_PROGRAM, {"path": path, "artifact": artifact}),
        (
            {key: value for key, value in good.items() if key != "schedule"},
            RecordErrors.LACKS,
            {"place": "it", "missing": ["schedule"]},
        ),
        (good | {"results": [result | {"seconds": []}]}, MeasurementErrors.NOT_POSITIVE, {"number": 0}),
        (good | {"results": [result | {"seconds": [float("nan")]}]}, MeasurementErrors.NOT_POSITIVE, {"number": 0}),
        (good | {"results": [result | {"test": "x"}]}, RecordErrors.WRONG_VALUE, bad_test),
    ]
    for data, kind, fields in cases:
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        words = ["report", str(artifact), "--bench", str(path), "-o", str(tmp_path / "x.html")]
        error = one_line(words, capsys)
        check(error, kind, **fields)
        assert str(path) in str(error)
    assert not (tmp_path / "x.html").exists()


def test_a_damaged_artifact_is_refused_as_inspect_does(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy.rdu"
    shutil.copytree(artifact, copy)
    (copy / "schedule.json").write_text((copy / "schedule.json").read_text().replace("decode", "DECODE", 1))
    for command in ("inspect", "report"):
        error = one_line([command, str(copy)], capsys)
        check(error, ArtifactFileErrors.DIGEST_DIFFERS, path=copy / "schedule.json")


def test_no_torch(artifact: Path, tmp_path: Path) -> None:
    """An install that only runs artifacts can report on them."""
    script = (
        "import sys; from sscc.compiler.tools.commands.cli import main; code = main(sys.argv[1:]); "
        "print(code, [name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    (tmp_path / "p.txt").write_text("a text")
    words = ["report", str(artifact), "--ir-dir", str(artifact.parent / "ir"), "-o", str(tmp_path / "x.html")]
    words += ["--prompt-file", str(tmp_path / "p.txt")]
    run = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    assert run.stdout == "0 []\n"


# ------------------------------------------------------------------------------------------------------ in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_in_a_browser(page: Path, browser: Any, width: int, scheme: str) -> None:
    """No script fails, no request leaves the page, and nothing is wider than the window, with all parts open or
    closed."""
    with opened_tab(browser, page.as_uri(), (width, 800), dark=scheme == "dark") as tab:
        shade = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", shade)[:3])) > 380) == (scheme == "light")
        for unfolded in (False, True):
            if unfolded:
                tab.page.evaluate("document.querySelectorAll('details').forEach((item) => { item.open = true; })")
            assert tab.page.evaluate("document.documentElement.scrollWidth") == width
            wide = "[...document.querySelectorAll('main > section')].filter((s) => s.scrollWidth > s.clientWidth)"
            assert tab.page.evaluate(f"{wide}.length") == 0
            scrolling = (
                "[...document.querySelectorAll('.scroll, .diff')]"
                ".filter((s) => s.checkVisibility() && s.scrollWidth - s.clientWidth > 1)"
            )
            tab.wait_until(f"{scrolling}.every((s) => getComputedStyle(s).maskImage !== 'none')")
            assert tab.page.evaluate(f"{scrolling}.length") > 0 or width > 1000
        tab.page.click("#theme")
        assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") != shade
        tab.page.click("nav a[href='#timeline']")
        tab.wait_until("document.querySelector('nav a[aria-current]').hash === '#timeline'")
        cards = tab.page.locator("svg.graph .card")
        assert cards.count() > 10
        assert cards.first.bounding_box()["width"] > 100
        # Everything of the text, one head of a layer, and everything again.
        shades = "[...document.querySelectorAll('.kept-text span')].map((word) => word.className).join()"
        whole = tab.page.evaluate(shades)
        tab.page.select_option("#kept-part", "1:0")
        assert tab.page.locator(".kept-text .s4").count() == 16
        tab.page.select_option("#kept-part", "")
        assert tab.page.evaluate(shades) == whole
    assert tab.problems == []
    assert set(tab.requests) == {page.as_uri()}
