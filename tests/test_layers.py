"""Imports between folders: folders stand on floors, imports run downwards, and modules form no import circle.

Every import counts alike: at the top of a module, inside a function, under TYPE_CHECKING. An import stands inside a
function because of the time that it takes, never because it would close a circle elsewhere.
"""

from __future__ import annotations

import ast
import graphlib
import itertools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "sscc"
"""Comes with whatever is imported of it, so anybody may ask it for the version. It imports nothing in turn: the names
that it offers are imported when they are first used, and before that by type checkers alone."""

Layers = tuple[tuple[str, ...], ...]
Apart = tuple[tuple[str, str], ...]

LAYERS: Layers = (
    ("sscc.ir",),
    ("sscc.passes", "sscc.runtime.support"),
    ("sscc.compiler.emit", "sscc.runtime.text", "sscc.runtime.timing", "sscc.runtime.validator"),
    ("sscc.runtime.artifact",),
    ("sscc.runtime.backends",),
    ("sscc.runtime.session",),
    ("sscc.runtime.serving",),
    ("sscc.compiler.options",),
    ("sscc.compiler.frontend",),
    ("sscc.compiler.interpret",),
    ("sscc.compiler.driver",),
    ("sscc.compiler.tools",),
)
"""Folders from the bottom to the top. A folder imports folders of the floors below it, and none of its own floor."""

APART: Apart = (
    ("sscc.runtime.backends.cpu", "sscc.runtime.backends.reference"),
    ("sscc.compiler.tools.report", "sscc.compiler.frontend"),
)
"""Neither imports the other: results of the two backends are compared, and a report reads files alone."""


@dataclass(frozen=True)
class Import:
    """One module imports another.

    Attributes:
        typing: whether for type checkers alone.
    """

    importer: str
    imported: str
    path: Path
    line: int
    typing: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.importer} imports {self.imported}"


# ------------------------------------------------------------------------------------------------------------ reading


def module_files(root: Path, packages: Mapping[str, str]) -> dict[str, Path]:
    """Return the modules by name, except empty ones, whose imports have no effect.

    Args:
        packages: files and folders below `root` by the path that they are installed under.
    """
    paths: dict[str, Path] = {}
    for target, source in sorted(packages.items(), key=lambda pair: -len(pair[1])):
        folder = root / source
        files = [folder] if folder.is_file() else [*folder.rglob("*.py"), *folder.rglob("*.pyi")]
        taken = {path for path in paths.values() if path.is_relative_to(root)}
        for path in files:
            inside = Path(target) if path == folder else target / path.relative_to(folder)
            name = ".".join(inside.with_suffix("").parts).removesuffix(".__init__")
            if path.suffix in (".py", ".pyi") and path not in taken and not _is_empty(path):
                paths[name] = path
    return paths


def _is_empty(path: Path) -> bool:
    body = ast.parse(path.read_bytes()).body
    return path.stem == "__init__" and all(isinstance(node, ast.Expr) for node in body)


def imports_of(files: Mapping[str, Path]) -> list[Import]:
    """Every import of one of these modules by another."""
    imports = []
    for importer, path in files.items():
        package = importer if path.stem == "__init__" else importer.rpartition(".")[0]
        for node, typing in _statements(ast.parse(path.read_bytes()), False):
            imported = {name for name in _imported(node, package, files) if name in files and name != importer}
            imports += [Import(importer, name, path, node.lineno, typing) for name in sorted(imported)]
    return imports


def _statements(node: ast.AST, typing: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """The import statements below a node, and whether they are for type checkers alone."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, typing
    for field, value in ast.iter_fields(node):
        guarded = isinstance(node, ast.If) and field == "body" and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _statements(child, typing or guarded)


def _imported(node: ast.Import | ast.ImportFrom, package: str, files: Mapping[str, Path]) -> list[str]:
    """The modules that a statement in `package` imports: those that it names, or whose names it takes."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
    module = ".".join([*above, *([node.module] if node.module else [])])
    inside = [f"{module}.{alias.name}" for alias in node.names]
    return [name if name in files else module for name in inside]


# ----------------------------------------------------------------------------------------------------------- judging


def folder_of(module: str, layers: Layers) -> tuple[int, str] | None:
    """Return the floor of a module, and the folder that has it there; None if no folder has it.

    Modules directly inside of the package, beside its folders, stand above all floors.
    """
    fitting = [
        (len(name), level, name) for level, names in enumerate(layers) for name in names if _is_in(module, name)
    ]
    if not fitting and module.rpartition(".")[0] == PACKAGE:
        return len(layers), module
    return max(fitting)[1:] if fitting else None


def _is_in(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")


def faults(files: Mapping[str, Path], layers: Layers, apart: Apart) -> list[str]:
    """Return the errors in the imports of these modules, one line each."""
    imports, named = imports_of(files), {name for names in layers for name in names}
    faults = [f"{name} stands in no layer" for name in files if name != PACKAGE and folder_of(name, layers) is None]
    faults += [f"the layers name {name}, which is not there" for name in sorted(named) if not _holds(name, files)]
    for item in imports:
        if item.importer == PACKAGE and not item.typing:
            faults.append(f"{item}, with whatever else is imported of {PACKAGE}")
        if PACKAGE in (item.importer, item.imported):
            continue
        imported, importer = folder_of(item.imported, layers), folder_of(item.importer, layers)
        if imported is not None and importer is not None and imported != importer:
            if imported[0] > importer[0]:
                faults.append(f"{item}, which stands above it")
            if imported[0] == importer[0]:
                faults.append(f"{item}, which stands beside it")
        for pair in apart:
            if any(_is_in(item.importer, a) and _is_in(item.imported, b) for a, b in (pair, pair[::-1])):
                faults.append(f"{item}, and {' and '.join(pair)} stay apart")
    others = [item for item in imports if PACKAGE not in (item.importer, item.imported)]
    return faults + [f"a circle: {circle}" for circle in _first_circle(others)]


def _holds(name: str, files: Mapping[str, Path]) -> bool:
    return any(_is_in(module, name) for module in files)


def _first_circle(imports: list[Import]) -> list[str]:
    """Return the imports of an import cycle, if there is one."""
    graph: dict[str, set[str]] = {}
    for item in imports:
        graph.setdefault(item.importer, set()).add(item.imported)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        circle: list[str] = error.args[1][::-1]
        steps = {(item.importer, item.imported): item for item in imports}
        return ["; ".join(str(steps[pair]) for pair in itertools.pairwise(circle))]
    return []


# -------------------------------------------------------------------------------------------------------------- tests


def test_imports_run_downwards_and_never_in_a_circle() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    files = module_files(ROOT, project["tool"]["scikit-build"]["wheel"]["packages"])
    assert {PACKAGE, "sscc.ir.errors", "sscc.runtime.support._native", "sscc.compiler.tools.commands.cli"} <= {*files}
    assert "sscc.compiler.package" not in files
    assert "\n".join(faults(files, LAYERS, APART)) == ""


SMALL: Layers = (("p.side",), ("p.low",), ("p.high",))


def found_in(folder: Path, sources: Mapping[str, str], apart: Apart = ()) -> list[str]:
    """Return the errors in a package `p` with these sources, beside the others named in `SMALL`."""
    sources = {"low/a.py": "import os", "side.py": "x = 1", "high.py": "from p.low import a", **sources}
    for name, text in sources.items():
        path = folder / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    files = module_files(folder, {"p": "src"})
    return [fault.replace(f"{folder / 'src'}/", "") for fault in faults(files, SMALL, apart)]


def test_what_runs_downwards_is_right(tmp_path: Path) -> None:
    packages = {"__init__.py": '"""Nothing."""', "low/__init__.py": ""}
    assert found_in(tmp_path, {**packages, "low/b.py": "from p.low.a import x\nimport p.side"}) == []


@pytest.mark.parametrize(
    "text",
    [
        "import p.high",
        "from p import high",
        "from p.high import thing",
        "from ..high import thing",
        "def f():\n    from p.high import thing",
        "class C:\n    async def f(self):\n        import p.high as h",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.high import Thing",
        "try:\n    import os\nexcept ImportError:\n    from p.high import Thing",
    ],
)
def test_no_import_runs_upwards(tmp_path: Path, text: str) -> None:
    line = text.count("\n") + 1
    assert found_in(tmp_path, {"low/b.py": text}) == [
        f"low/b.py:{line}: p.low.b imports p.high, which stands above it",
    ]


def test_the_longest_name_says_where_a_module_stands(tmp_path: Path) -> None:
    layers = (("p.low",), ("p.high",), ("p.low.top",))
    (tmp_path / "low").mkdir()
    (tmp_path / "low" / "top.py").write_text("import p.high")
    (tmp_path / "low" / "a.py").write_text("import p.low.top")
    (tmp_path / "high.py").write_text("import p.low.a")
    messages = faults(module_files(tmp_path, {"p": "."}), layers, ())
    assert f"{tmp_path / 'low' / 'a.py'}:1: p.low.a imports p.low.top, which stands above it" in messages
    assert not any("top.py" in fault for fault in messages if "circle" not in fault)


def test_no_import_runs_sideways(tmp_path: Path) -> None:
    (tmp_path / "low.py").write_text("import p.side")
    (tmp_path / "side.py").write_text("import os")
    messages = faults(module_files(tmp_path, {"p": "."}), (("p.low", "p.side"),), ())
    assert messages == [f"{tmp_path / 'low.py'}:1: p.low imports p.side, which stands beside it"]


def test_no_circle_even_of_imports_inside_functions(tmp_path: Path) -> None:
    low = {"b": "\nimport p.low.c", "c": "def f():\n    import p.low.d", "d": "from p.low import b"}
    (fault,) = found_in(tmp_path, {f"low/{name}.py": text for name, text in low.items()})
    steps = (
        "low/b.py:2: p.low.b imports p.low.c",
        "low/c.py:2: p.low.c imports p.low.d",
        "low/d.py:1: p.low.d imports p.low.b",
    )
    assert fault.startswith("a circle: ")
    assert set(fault.removeprefix("a circle: ").split("; ")) == {*steps}


@pytest.mark.parametrize("pair", [("p.side", "p.low"), ("p.low", "p.side")])
def test_folders_that_stay_apart(tmp_path: Path, pair: tuple[str, str]) -> None:
    (fault,) = found_in(tmp_path, {"low/b.py": "import p.side"}, apart=(pair,))
    assert fault.startswith("low/b.py:1: p.")
    assert fault.endswith(f"and {pair[0]} and {pair[1]} stay apart")


def test_every_module_stands_in_a_layer_and_every_layer_holds_one(tmp_path: Path) -> None:
    assert found_in(tmp_path, {"new.py": "x = 1"}) == ["p.new stands in no layer"]
    (tmp_path / "src" / "side.py").unlink()
    (tmp_path / "src" / "new.py").unlink()
    assert faults(module_files(tmp_path, {"p": "src"}), SMALL, ()) == ["the layers name p.side, which is not there"]


@pytest.mark.parametrize(("text", "count"), [("import sscc.low", 1), ("if TYPE_CHECKING:\n    import sscc.low", 0)])
def test_the_package_itself_imports_nothing(tmp_path: Path, text: str, count: int) -> None:
    (tmp_path / "__init__.py").write_text(text)
    (tmp_path / "low.py").write_text("import os\n")
    (tmp_path / "high.py").write_text("import sscc")
    messages = faults(module_files(tmp_path, {"sscc": "."}), (("sscc.low",), ("sscc.high",)), ())
    assert len(messages) == count
    assert all("sscc imports sscc.low, with whatever else is imported of sscc" in fault for fault in messages)
