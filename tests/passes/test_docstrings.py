"""The Before and After blocks of the pass docstrings are true: Before is run through the pass, After is compared.

A Before block is the inside of a module. An After block is compared line by line from the first line that fits on; its
heading may name options of the pass (```After, with `granularity=layer`::```). In it

* ``..`` inside a line stands for anything, and on a line of its own for any lines;
* a value may have any name (`%row` stands for `%0`), but the same one throughout a function.
"""

from __future__ import annotations

import importlib
import re
import textwrap

import pytest

from sscc.compiler.tools.testing.ir_cases import run_ir
from sscc.passes.pass_pipeline import REGISTRY

MODULE = """module attributes {{
  kv.geometry = {{sink = 1 : i64, recent = 2 : i64, topk = 1 : i64, obs = 1 : i64, pool = 1 : i64, pool_mode = "avg",
                 max_context = 8 : i64}},
  sscc.program = {{batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64,
                  config = "{{}}", digest = "", eos = "[]"}}, sscc.level = "{level}" {extra}}} {{
{body}
}}
"""
EXTRA = {"repeat-layers": ', sscc.kinds = {first = array<i64: 0, 0, 0, 0>, path = "layers"}'}

_BLOCK = re.compile(r"^(Before|After)([^\n]*)::\n\n((?:    .*\n|\n)+)", re.MULTILINE)
_OPTION = re.compile(r"`([a-z-]+=\w+)`")
_VALUE = re.compile(r"%[A-Za-z0-9_]+")
_ANY_LINES = ".."


class Mismatch(Exception):
    """A line of an After block that the output does not have where it should."""


def blocks(docstring: str, kind: str) -> list[tuple[str, str]]:
    """Return the options in the headings of a docstring's Before or After blocks, and the contents of the blocks."""
    blocks = [match.groups() for match in _BLOCK.finditer(docstring + "\n")]
    return [(" ".join(_OPTION.findall(head)), textwrap.dedent(text)) for name, head, text in blocks if name == kind]


class Matcher:
    """Matches lines with ``..`` and value names, remembering which name stands for which value."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def fits(self, pattern: str, line: str) -> bool:
        """Return True if `line` matches `pattern`; names of values in it are bound from then on."""
        if "func.func" in pattern:
            self.names = {}
        groups: dict[str, str] = {}
        match = re.fullmatch(self._regex(pattern.strip(), groups), line.strip())
        if match is None:
            return False
        bound = {name: match.group(group) for name, group in groups.items()}
        defined = re.match(r"\s*(%\w+)(:\d+)? = ", line)
        if defined:  # the printer gives a name again once its region has ended
            self.names = {name: value for name, value in self.names.items() if value != defined.group(1)}
        if set(bound.values()) & set(self.names.values()) or len(set(bound.values())) != len(bound):
            return False
        self.names.update(bound)
        return True

    def _regex(self, pattern: str, groups: dict[str, str]) -> str:
        parts = []
        position = 0
        for match in re.finditer(r"\.\.|%[A-Za-z0-9_]+", pattern):
            parts.append(re.escape(pattern[position : match.start()]))
            parts.append(".*?" if match.group() == ".." else self._value(match.group(), groups))
            position = match.end()
        return "".join(parts) + re.escape(pattern[position:])

    def _value(self, name: str, groups: dict[str, str]) -> str:
        if name in self.names:
            return re.escape(self.names[name]) + r"(?![A-Za-z0-9_])"
        if name in groups:
            return f"(?P={groups[name]})"
        groups[name] = f"g{len(groups)}"
        return f"(?P<{groups[name]}>{_VALUE.pattern})"


def compare(after: str, output: str) -> None:
    """Raises Mismatch with the first line of `after` that does not fit."""
    patterns = [line for line in after.splitlines() if line.strip()]
    lines = [line for line in output.splitlines() if line.strip()]
    matcher = Matcher()
    position = 0
    anywhere = True
    for pattern in patterns:
        if pattern.strip() == _ANY_LINES:
            anywhere = True
            continue
        stop = len(lines) if anywhere else position + 1
        index = next((i for i in range(position, stop) if matcher.fits(pattern, lines[i])), None)
        if index is None:
            raise Mismatch(f"no line {pattern.strip()!r} after line {position} (names {matcher.names}) of\n{output}")
        position = index + 1
        anywhere = False


@pytest.mark.parametrize("name", REGISTRY)
def test_the_example_is_what_the_pass_does(name: str) -> None:
    docstring = importlib.import_module(REGISTRY[name].__module__).__doc__ or ""
    ((_, before),) = blocks(docstring, "Before")
    module = MODULE.format(body=before, level=REGISTRY[name].takes[0], extra=EXTRA.get(name, ""))
    after = blocks(docstring, "After")
    assert after
    outputs = {options: run_ir(module, (f"{name}{{{options}}}" if options else name,)) for options, _ in after}
    for options, block in after:
        compare(block, outputs[options])


@pytest.mark.parametrize("name", REGISTRY)
def test_a_pass_is_named_after_its_file_and_class(name: str) -> None:
    module = REGISTRY[name].__module__
    assert module == f"sscc.passes.{name.replace('-', '_')}"
    assert REGISTRY[name].__name__ == "".join(word.capitalize() for word in name.split("-"))
    docstring = importlib.import_module(module).__doc__ or ""
    assert docstring.startswith(f"{name}: ")
    headings = ("What: ", "Why: ", "Before", "After", "When it does not apply: ", "Preserves: ")
    positions = [docstring.find(f"\n{heading}") for heading in headings]
    assert -1 not in positions
    assert positions == sorted(positions)


OUTPUT = """func.func @f(%arg0: i1) {
  %0 = one(%arg0)
  %1 = two(%0, %arg0)
}
func.func @g(%arg0: i1) {
  %0 = three(%arg0)
}
"""


@pytest.mark.parametrize(
    "after",
    [
        "func.func @f(%x: i1) {\n%a = one(%x)\n%b = two(%a, %x)\n}",
        "func.func @f(%x: ..\n..\n%b = two(%a, %x)",
        "%b = two(..)\n}\nfunc.func @g(%y: ..\n%a = three(%y)",
    ],
)
def test_what_fits(after: str) -> None:
    compare(after, OUTPUT)


@pytest.mark.parametrize(
    "after",
    [
        "func.func @f(%x: i1) {\n%b = two(%a, %x)",  # a line between is not said to be there
        "func.func @f(%x: i1) {\n%a = one(%x)\n%b = two(%x, %a)",  # the other way round
        "func.func @f(%x: i1) {\n%a = one(%x)\n%b = two(%a, %a)",  # one name for two values
        "func.func @f(%x: i1) {\n%a = one(%y)",  # two names for one value
        "%a = one(%x)\n..\n%a = four(..)",
    ],
)
def test_what_does_not_fit(after: str) -> None:
    with pytest.raises(Mismatch):
        compare(after, OUTPUT)
