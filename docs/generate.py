"""Writes docs/reference/*.md from the sources: the command line, Python, passes, the kv and df dialects, the files
(schedule, artifact, machine description), and the kinds of errors.

python docs/generate.py            write them
python docs/generate.py --check    exit 1 where a committed file is not what would be written
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import sscc
from sscc.compiler.tools.commands.examples import EXAMPLES
from sscc.compiler.tools.commands.parser import build_parser, command_parsers, help_of
from sscc.compiler.tools.fleet.fleet_options import FleetOptions
from sscc.ir import cache_plan, looping, operations, schedule, target
from sscc.ir.dialects import df, kv
from sscc.ir.errors import ErrorKind
from sscc.ir.operations import OPERATIONS
from sscc.ir.opspec import Group, Op, Operand, OpSpec, group_operands, spec_of
from sscc.ir.option import described_fields, flag_of, records_of
from sscc.passes.base import Pass, options_of
from sscc.passes.pass_pipeline import PIPELINES, REGISTRY, pipeline_text
from sscc.runtime.artifact import manifest, signature

REFERENCE = Path(__file__).parent / "reference"
NOTICE = "<!-- Written by docs/generate.py from {source}: change that, then run it again. -->"
READERS = {
    "cli.md": "users of the command line who look up a command or an option",
    "python.md": "users of `import sscc` who look up a class or a function",
    "passes.md": "compiler engineers who look up a pass",
    "kv.md": "compiler engineers who read or write IR, or need the exact definition of an operation",
    "df.md": "compiler engineers who read the stages and streams of a dump",
    "schedule.md": "engineers who read a schedule, or write a backend for it",
    "artifact.md": "engineers who read the files of an artifact",
    "machine.md": "accelerator architects who describe a machine, or look up the origin of a figure",
    "errors.md": "users who look up an error, and authors of programs that handle errors",
}
ELEMENTS = {
    "f": "a float type",
    "row": "rows",
    "prompt": "rows of a prompt",
    "encoded": "encoded rows",
    "quantized_key": "i8 or a float type",
}
LONGEST_SIGNATURE = 90
MODES = {"read": "read", "write": "written", "part": "written in part", "update": "updated"}


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes docs/reference from the sources.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file is out of date")
    check = parser.parse_args().check
    stale = {path: text for path, text in pages().items() if not path.is_file() or path.read_text() != text}
    for path, text in stale.items():
        print(f"{path.name} is out of date: run python docs/generate.py" if check else f"wrote {path}")
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    return 1 if check and stale else 0


def pages() -> dict[Path, str]:
    """Return every generated file with its text: a title, the notice, the page's readers, and its contents."""
    contents = {
        "cli.md": _command_line(),
        "python.md": _python(),
        "passes.md": _passes(),
        "kv.md": _dialect(),
        "df.md": _dataflow(),
        "schedule.md": _schedule(),
        "artifact.md": _artifact(),
        "machine.md": _machine(),
        "errors.md": _errors(),
    }
    written = {}
    for name, parts in contents.items():
        title, notice, *rest = parts
        written[REFERENCE / name] = "\n\n".join([title, notice, f"*For {READERS[name]}.*", *rest]) + "\n"
    return written


# ------------------------------------------------------------------------------------------------------ docstrings


def markdown(docstring: str, language: str = "mlir") -> str:
    """A docstring of this project as Markdown: literal blocks, of this language, fenced, field lists as bullets."""
    parts = []
    for block in re.split(r"\n\n(?=\S)", inspect.cleandoc(docstring)):
        heading, _, rest = block.partition("\n")
        if heading.endswith("::"):
            parts.append(f"{heading[:-1]}\n\n{_fenced(rest, language)}")
        elif heading in ("Attributes:", "Args:", "Raises:"):
            label = f"{heading}\n\n" if language == "python" else ""
            parts.append(label + "\n".join(_bullets(rest)))
        else:
            parts.append(re.sub(r"^(What|Why|When it does not apply|Preserves): ", r"**\1:** ", _inline(block)))
    return "\n\n".join(parts)


def _fenced(text: str, language: str = "mlir") -> str:
    return f"```{language}\n{textwrap.dedent(text).strip(chr(10))}\n```"


def _bullets(text: str) -> Iterator[str]:
    for line in textwrap.dedent(text).splitlines():
        name, _, rest = line.partition(": ")
        yield f"  {_inline(line.strip())}" if line.startswith(" ") else f"* `{name}`: {_inline(rest)}"


def _inline(text: str) -> str:
    if "::\n\n" in text:  # a literal block inside a paragraph
        before, _, block = text.partition("::\n\n")
        return f"{_inline(before)}:\n\n{_fenced(block)}"
    return text.replace("``", "`")


# ---------------------------------------------------------------------------------------------------- command line


def _command_line() -> Iterator[str]:
    yield "# The command line"
    yield NOTICE.format(source="the options of commands in compiler/tools/commands/")
    yield "`sscc COMMAND --help` prints the same. Numbers of bytes are written 4096, 64K, 4MiB, 1.5GiB or 2GB."
    parser = build_parser()
    commands = command_parsers(parser)
    for name, command in commands.items():
        yield f"## sscc {name}"
        yield f"{command.description}"
        yield _examples(name)
        for group in command._action_groups:
            actions = [a for a in group._group_actions if a.dest != "help" and a.help is not argparse.SUPPRESS]
            if not actions:
                continue
            plain = group.title in ("positional arguments", "options")
            yield "\n".join([f"| {'' if plain else group.title} | |", "|---|---|", *map(_argument, actions)])
    yield "## Deployment files"
    yield (
        "Options under `args` of a [fleet](../fleet.md)'s deployment file, besides `artifact` and the options of "
        "`sscc serve`, which apply to each replica. Names have no dashes."
    )
    rows = [f"| `{flag_of(name)[2:]}` | {_cell(text)} |" for name, _, text in described_fields(FleetOptions)]
    yield "\n".join(["| | |", "|---|---|", *rows])


def _examples(name: str) -> str:
    lines = [f"# {what}\n{line}" if what else line for what, line in EXAMPLES[name]]
    return "\n".join(["```console", *lines, "```"])


def _argument(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    names = ", ".join(f"`{option}{value}`" for option in action.option_strings) or f"`{action.metavar}`"
    return f"| {names} | {help_of(action).replace('|', chr(92) + '|')} |"


# ---------------------------------------------------------------------------------------------------------- Python


def _python() -> Iterator[str]:
    yield "# In Python"
    yield NOTICE.format(source="the docstrings of what `import sscc` offers")
    yield "[../python.md](../python.md) has examples. Every name below is one of `sscc`."
    public = {name: getattr(sscc, name) for name in sscc.__all__ if not name.startswith("_")}
    errors = [value for value in public.values() if inspect.isclass(value) and issubclass(value, Exception)]
    for name, value in public.items():
        if inspect.isfunction(value):
            yield from _callable(f"## {name}", f"sscc.{name}", value)
    for name, value in public.items():
        if inspect.isclass(value) and value not in errors:
            yield from _class(name, value)
    yield "## Errors"
    yield "All are kinds of `SsccError`; a command that ends with one has its exit code."
    rows = [f"| `{e.__name__}` | {_inline(_summary(e))} | {e.exit_code} |" for e in errors]
    yield "\n".join(["| | | exit code |", "|---|---|---|", *rows])


def _class(name: str, value: type) -> Iterator[str]:
    yield f"## {name}"
    own = value.__init__ if "__init__" in vars(value) and not dataclasses.is_dataclass(value) else None
    if own is not None:
        yield f"```python\nsscc.{name}{_signature(own)}\n```"
    yield markdown(inspect.getdoc(value) or "", "python")
    if dataclasses.is_dataclass(value) and records_of(value):
        rows = [f"| `{name}` | `{_cell(kind)}` | {_cell(text)} |" for name, kind, text in described_fields(value)]
        yield "\n".join(["| field | type | |", "|---|---|---|", *rows])
    for member, item in vars(value).items():
        inner = item.__func__ if isinstance(item, classmethod | staticmethod) else item
        if member.startswith("_") or not inspect.getdoc(inner):
            continue
        if isinstance(inner, property | functools.cached_property):
            yield f"### {name}.{member}"
            yield markdown(inspect.getdoc(inner) or "", "python")
        elif inspect.isfunction(inner):
            yield from _callable(f"### {name}.{member}", member, inner)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _callable(heading: str, name: str, function: Any) -> Iterator[str]:
    yield heading
    yield f"```python\n{name}{_signature(function)}\n```"
    yield markdown(inspect.getdoc(function) or "", "python")


def _signature(function: Any) -> str:
    """The parameters and the result as the source has them, a parameter a line where they are long."""
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    parts = [part for part in _parameters(node.args) if part not in ("self", "cls")]
    result = "" if node.returns is None or node.name == "__init__" else f" -> {ast.unparse(node.returns)}"
    line = f"({', '.join(parts)}){result}"
    if len(line) <= LONGEST_SIGNATURE:
        return line
    return "\n".join(["(", *(f"    {part}," for part in parts), f"){result}"])


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    plain = [*arguments.posonlyargs, *arguments.args]
    missing = len(plain) - len(arguments.defaults)
    for argument, default in zip(plain, [*[None] * missing, *arguments.defaults], strict=True):
        yield _parameter(argument, default)
    if arguments.kwonlyargs and arguments.vararg is None:
        yield "*"
    if arguments.vararg is not None:
        yield f"*{ast.unparse(arguments.vararg)}"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(argument, default)
    if arguments.kwarg is not None:
        yield f"**{ast.unparse(arguments.kwarg)}"


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) if default is None else f"{ast.unparse(argument)} = {ast.unparse(default)}"


def _summary(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())


# ---------------------------------------------------------------------------------------------------------- passes


def _passes() -> Iterator[str]:
    yield "# Passes"
    yield NOTICE.format(source="the docstrings in passes/")
    yield "In the order in which a compilation runs them:"
    yield "\n".join(f"* `-O{level}`: {', '.join(_link(item) for item in items)}" for level, items in PIPELINES.items())
    yield (
        "The examples are the insides of modules, and tests run them: `..` stands for what is left out, and values may "
        "have any name."
    )
    for kind in REGISTRY.values():
        yield from _pass(kind)


def _link(item: Pass) -> str:
    return f"[{pipeline_text([item])}](#{item.name})"


def _pass(kind: type[Pass]) -> Iterator[str]:
    docstring = importlib.import_module(kind.__module__).__doc__ or ""
    title, _, rest = docstring.partition("\n")
    yield f"## {kind.name}"
    what = title.partition(": ")[2]
    yield f"*Takes level {' or '.join(kind.takes)}, reaches level {kind.level}.* {what[0].upper()}{what[1:]}"
    for name, (type_, default) in options_of(kind).items():
        shown = str(default).lower() if type_ is bool else default
        yield f"*Option* `{name}` ({type_.__name__}), default `{shown}`."
    yield markdown(rest)


# --------------------------------------------------------------------------------------------------------- dialect


def _dialect() -> Iterator[str]:
    yield "# The `kv` dialect"
    yield NOTICE.format(source="ir/dialects/kv.py and ir/operations.py")
    yield markdown((kv.__doc__ or "").partition("\n")[2])
    yield f"In the tables, a letter is a size, the same one throughout an operation: {_letters()}"
    for spec in kv.SPECS.values():
        yield from _operation(spec)
        for several in spec.several.values():
            yield from _group(several.record)


def _dataflow() -> Iterator[str]:
    yield "# The `df` dialect"
    yield NOTICE.format(source="ir/dialects/df.py")
    yield markdown((df.__doc__ or "").partition("\n")[2])
    yield f"## {df.Load.OPERATION_NAME}"
    yield markdown(df.Load.__doc__ or "")
    kinds = {name: "result" if "Result" in str(type_) else "operand" for name, type_ in df.Load.__annotations__.items()}
    rows = [f"| {kind} | `{name}` | tensor, the same type for all |" for name, kind in kinds.items()]
    yield "\n".join(["| | name | type |", "|---|---|---|", *rows])
    yield from _record(df.BufferPlace)


def _operation(spec: OpSpec) -> Iterator[str]:
    yield f"## {spec.name}"
    yield markdown(inspect.getdoc(spec.record) or "")
    rows = ["| | name | type |", "|---|---|---|"]
    for name, pattern in spec.patterns.items():
        rows.append(f"| {'operand' if name in spec.inputs else 'result'} | `{name}` | {_tensor(pattern)} |")
    groups = spec.several.items()
    rows += [f"| operands | `{group}` | up to {kind.most} of {kind.record.__name__} |" for group, kind in groups]
    for name in (*spec.own_attributes, *spec.optional_attributes):
        shown = "attribute" if name in spec.own_attributes else "perhaps an attribute"
        rows.append(f"| {shown} | `{name}` | {'integer' if spec.kind(name) is int else 'float'} |")
    yield "\n".join(rows)


def _tensor(pattern: str) -> str:
    dims, _, element = pattern.partition(":")
    if not dims:
        return element
    return f"tensor [{', '.join(dims.split())}] of {ELEMENTS.get(element, element)}"


# -------------------------------------------------------------------------------------------------------- schedule


def _schedule() -> Iterator[str]:
    yield "# The schedule"
    yield NOTICE.format(source="ir/schedule.py and ir/operations.py")
    yield markdown((schedule.__doc__ or "").partition("\n")[2])
    yield (
        "In the tables, an `Operand` is an integer or the name of a scalar; "
        f"an `Item` is a {_choices(get_args(schedule.Item))}; a `Step` is a {_choices(schedule.STEPS)}. "
        "Steps of the algorithm name parameters, locals or windows of their body as operands; "
        f"in shapes, a letter is a size, the same one throughout a step: {_letters()}"
    )
    for record in _records():
        yield from _record(record)
        if record is schedule.Product:
            for operation in OPERATIONS:
                yield from _step(spec_of(operation)) if operation.kind else ()
                for kind in spec_of(operation).several.values():
                    yield from _group(kind.record)


def _artifact() -> Iterator[str]:
    yield "# The artifact"
    yield NOTICE.format(source="runtime/artifact/manifest.py and what it is made of")
    yield (
        "[architecture.md](../architecture.md#the-runtime) has the folder's files, and how they are read; the program "
        "is a [schedule](schedule.md), the machine a [description](machine.md)."
    )
    yield markdown(f"`{(manifest.__doc__ or '').lstrip()}".replace("manifest.json", "manifest.json`", 1))
    yield f"This is format {manifest.FORMAT_VERSION}."
    for record in (
        manifest.Manifest, manifest.FileRecord, manifest.WeightsRecord, signature.Signature, cache_plan.LayerGroup,
        cache_plan.Stream, looping.Looping,
    ):  # fmt: skip
        yield from _record(record)
    yield "A `Geometry` is in [python.md](python.md#geometry)."


def _machine() -> Iterator[str]:
    yield "# Machine descriptions"
    yield NOTICE.format(source="ir/target.py and ir/targets/")
    yield markdown(target.__doc__ or "")
    yield (
        f"A file is one JSON object of `format` ({target.FORMAT_VERSION}) and the fields of a `Target`. "
        "`sscc targets --json` writes one, [a guide](../guides/add-a-target.md) says how to change it."
    )
    for record in (
        target.Target, target.MemoryLevel, target.Units, target.Costs, target.SocketLink, target.Figure,
    ):  # fmt: skip
        yield from _record(record)
    default = target.load_target(target.FAMILY)
    for name in target.shipped_targets():
        shipped = target.load_target(f"{target.FAMILY}:{name}")
        yield f"## {target.FAMILY}:{name}"
        yield markdown(shipped.note)
        if name != default.name:
            yield f"What differs from {target.FAMILY}:{default.name}:"
        rows = ["| figure | value | unit | origin | |", "|---|---:|---|---|---|"]
        rows += [
            f"| `{key}` | {figure.value:.12g} | {figure.unit} | {figure.origin} | {_inline(figure.note)} |"
            for key, figure in shipped.figures.items()
            if name == default.name or figure != default.figures.get(key)
        ]
        yield "\n".join(rows)


def _letters() -> str:
    """Return the meanings of the letters in shapes."""
    text = (operations.__doc__ or "").partition("Letters: ")[2]
    return " ".join(text.partition("\n\n")[0].split())


def _step(spec: OpSpec) -> Iterator[str]:
    yield f"## {spec.record.__name__} (`{spec.record.kind}`)"
    yield markdown(inspect.getdoc(spec.record) or "")
    rows = ["| field | what | |", "|---|---|---|"]
    for name in spec.fields:
        if name in spec.operands:
            rows.append(_operand(name, spec.operands[name]))
        elif name in spec.several:
            rows.append(f"| `{name}` | any number of {spec.several[name].record.__name__} | |")
        else:
            kind = "scalar" if name in spec.numbers else " or ".join(f"`{t.__name__}`" for t in _types(spec.kind(name)))
            rows.append(f"| `{name}` | {kind} | |")
    yield "\n".join(rows)


def _types(kind: Any) -> tuple[type, ...]:
    """Those of a union; None is what a field is that is left out."""
    return tuple(t for t in get_args(kind) or (kind,) if t is not type(None))


def _operand(name: str, operand: Operand) -> str:
    shape = _tensor(f"{' '.join(operand.step_dims)}:{operand.element}")
    optional = ', or ""' if operand.optional else ""
    return f"| `{name}` | {shape}{optional} | {MODES[operand.mode]} |"


def _group(record: type[Group]) -> Iterator[str]:
    yield f"## {record.__name__}"
    yield markdown(inspect.getdoc(record) or "")
    rows = [_operand(name, operand) for name, operand in group_operands(record).items()]
    yield "\n".join(["| field | what | |", "|---|---|---|", *rows])


def _choices(records: Sequence[Any]) -> str:
    """The names of records: "Vector, Reduction or Product"."""
    names = [getattr(item, "__forward_arg__", None) or item.__name__ for item in records]
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _record(record: Any) -> Iterator[str]:
    kind = getattr(record, "kind", None)
    yield f"## {record.__name__}" + (f" (`{kind}`)" if kind else "")
    yield markdown(record.__doc__ or "")
    rows = ["| field | type |", "|---|---|"]
    rows += [
        f"| `{field.name}` | {_type(getattr(field.type, '__name__', field.type))} |"
        for field in dataclasses.fields(record)
    ]
    yield "\n".join(rows)


def _records() -> list[Any]:
    found: list[Any] = [value for value in vars(schedule).values() if dataclasses.is_dataclass(value)]
    own = (record for record in found if not issubclass(record, Op | Group))
    return sorted(own, key=lambda record: inspect.getsourcelines(record)[1])


def _type(text: str) -> str:
    """A field's type, its choices spelled out."""
    if text in ("Dtype", "Role", "Tier", "ParamAccess", "When"):
        return " or ".join(f'"{choice}"' for choice in getattr(schedule, text).__args__)
    return f"`{text}`".replace(" | ", "` or `")


# ---------------------------------------------------------------------------------------------------------- errors


_DECLARES = re.compile(r"^class \w+(Errors|Warnings)\(", re.MULTILINE)


def error_enums() -> list[type[ErrorKind]]:
    """Every enum of kinds of errors, by its area. Only modules that declare one are imported."""
    for module in pkgutil.walk_packages(sscc.__path__, "sscc."):
        spec = importlib.util.find_spec(module.name)
        origin = spec.origin if spec else None
        of_tests = module.name.startswith("sscc.tests.")  # beside the packages in an editable install
        if of_tests or not origin or not origin.endswith(".py"):
            continue
        if _DECLARES.search(Path(origin).read_text(encoding="utf-8")):
            importlib.import_module(module.name)
    return sorted((enum for enum in _enums(ErrorKind) if enum.__members__), key=_area)


def _enums(base: type[ErrorKind]) -> Iterator[type[ErrorKind]]:
    for enum in base.__subclasses__():
        if enum.__module__.startswith("sscc."):
            yield enum
            yield from _enums(enum)


def _area(enum: type[ErrorKind]) -> str:
    return next(iter(enum)).code.partition(".")[0]


def _errors() -> Iterator[str]:
    yield "# Errors"
    yield NOTICE.format(source="the enums of kinds in all modules")
    yield (
        "Every error has a kind, whose code is stable across versions, and fields, from which the message is made. "
        "With `--json`, commands print both; the server's errors have the code as `code`. A field stands in braces. "
        "The exit code is that of a command which ends with the error."
    )
    for enum in error_enums():
        yield f"## {_area(enum)}"
        about = (vars(enum).get("__doc__") or "").strip().partition("\n")[0]
        yield f"{about} (`{enum.__module__}`)" if about else f"`{enum.__module__}`"
        yield "\n".join(
            f"* `{kind.code}` (exit code {kind.error.exit_code}): {_as_code(kind.template)}"
            for kind in sorted(enum, key=lambda kind: kind.code)
        )


def _as_code(text: str) -> str:
    """A message as Markdown shows it: its fields without formats, and backticks kept."""
    text = re.sub(r"\{(\w+)[^}]*\}", r"{\1}", text)
    marks = "``" if "`" in text else "`"
    return f"{marks} {text} {marks}" if marks == "``" else f"`{text}`"


if __name__ == "__main__":
    sys.exit(main())
