"""The program of a `.pt2`: its JSON, read by an allowlist into the objects from which torch makes an ExportedProgram.

No part of the JSON reaches torch unchanged. Each object is built here from known fields, and parts that torch would
evaluate, import or paste into Python source are made safe by their form:

* operators are looked up in `pt2_operators`, symbolic sizes are parsed by `pt2_expressions`;
* names of values become names in generated source, so they must be identifiers; names of weights are dotted ones;
* of torch's metadata of an operation only the module path and source lines are kept, as plain text;
* guards (Python source), custom objects, sample inputs and the signatures of inner modules are dropped.
"""

from __future__ import annotations

import json
import keyword
import math
import re
import reprlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch._export.serde import schema

from sscc.compiler.frontend.pt2_expressions import NotASize, parse_size
from sscc.compiler.frontend.pt2_operators import ON_SIZES, find_operator, is_wrapper
from sscc.ir.errors import ErrorKind, UnsupportedError

TRUST = "; `sscc compile --trust-pt2` loads the file with torch itself, which runs code from the file"

MOST_NODES = 200_000
MOST_SYMBOLS = 16
MOST_BITS = 256
"""Maximum bits of an integer that operations on sizes may reach."""
DEEPEST_GRAPH = 4
MOST_RANK = 16
LONGEST_TEXT = 300
MOST_FRAMES = 200

_LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z_0-9]{0,499}")
_DOTTED = re.compile(r"(?!__)[A-Za-z_0-9]{1,200}(\.(?!__)[A-Za-z_0-9]{1,200}){0,30}")
_SYMBOL = re.compile(r"s[0-9]{1,9}")
_TEXT = re.compile(r"[ -~]*")
_FRAME = re.compile(r'File "([^"\\\n]{1,500})", line ([0-9]{1,7}), in ')
_MODULE = re.compile(r"[A-Za-z_0-9.@<> (,)\[\]-]{0,500}")  # such as layers.slice(None, 2, None).0
_INFINITE = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}

T = TypeVar("T")


def made(kind: type[T], **value: Any) -> T:
    """Return a union of torch's schema that holds one value."""
    union: T = kind.create(**value)  # type: ignore[attr-defined]
    return union


class Pt2ProgramKind(ErrorKind):
    """Kinds of errors for a program of an unknown form; the message says how to load it nevertheless."""

    def __init__(self, message: str) -> None:
        super().__init__(UnsupportedError, "{path}: {where} " + message + TRUST)


class Pt2ProgramErrors(Pt2ProgramKind):
    FIELD_UNKNOWN = "has an unknown field: {field!r}"
    FIELD_MISSING = "lacks the field {field!r}"
    VALUE = "is {value}, expected {expected}"
    SIZE = "is the symbolic size {text!r}, which is not supported: {reason}"
    OPERATOR = "calls {operator!r}, which is not among the operators that a decoder may call"
    ARGUMENT = "has the argument {argument!r}, which {operator} does not have"
    KIND = "is of the kind {form!r}, which a decoder does not have"
    NAME_UNKNOWN = "refers to {name!r}, which is not defined before"
    TOO_MANY = "has more than {limit} {things}"
    BITS = "computes whole numbers of more than {limit} bits"


class ProgramReader:
    """Reader of the JSON value of a program.

    Args:
        path: the archive, for messages.
        weights, constants: names of the tensors in the archive.
    """

    def __init__(self, path: Path, weights: Iterable[str], constants: Iterable[str]) -> None:
        self.path = path
        self.held = {"weights": frozenset(weights), "constants": frozenset(constants)}
        self.symbols: set[str] = set()
        self.nodes = 0

    def read(self, value: Any) -> schema.ExportedProgram:
        """Return the program. Raises UnsupportedError naming the first field that is not of the known form."""
        where = "models/model.json"
        optional = ("verifiers", "torch_version", "guards_code")
        fields = self.fields(
            value, where, ("graph_module", "opset_version", "range_constraints", "schema_version"), optional
        )
        version = self.fields(fields["schema_version"], f"{where}: schema_version", ("major", "minor"))
        major, minor = (self.integer(version[name], f"{where}: schema_version") for name in ("major", "minor"))
        if major != schema.SCHEMA_VERSION[0]:
            expected = f"{schema.SCHEMA_VERSION[0]}, the one of torch {torch.__version__}: export it again"
            raise self.wrong(f"{where}: schema_version.major", major, expected)
        opset = self.table(fields["opset_version"], f"{where}: opset_version")
        verifiers = self.items(fields.get("verifiers", []), f"{where}: verifiers", 4)
        for verifier in verifiers:
            self.choice(verifier, f"{where}: verifiers", ("TRAINING", "ATEN", "CORE_ATEN", "EDGE"))
        module = self.module(fields["graph_module"], f"{where}: graph_module")
        return schema.ExportedProgram(
            graph_module=module,
            opset_version={
                self.choice(name, f"{where}: opset_version", ("aten",)): self.integer(number, f"{where}: opset_version")
                for name, number in opset.items()
            },
            range_constraints=self.ranges(fields["range_constraints"], f"{where}: range_constraints"),
            schema_version=schema.SchemaVersion(major, minor),
            verifiers=["TRAINING"] if "TRAINING" in verifiers else [],
        )

    # ------------------------------------------------------------------------------------------- forms of values

    def wrong(self, where: str, value: Any, expected: str) -> Exception:
        return Pt2ProgramErrors.VALUE(
            path=self.path, where=where, value=reprlib.repr(value)[:LONGEST_TEXT], expected=expected
        )

    def fields(
        self, value: Any, where: str, required: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Return the fields of an object, which are `required` and some of `optional`."""
        if not isinstance(value, dict):
            raise self.wrong(where, value, "an object")
        for field in required:
            if field not in value:
                raise Pt2ProgramErrors.FIELD_MISSING(path=self.path, where=where, field=field)
        if len(value) > len(required):
            for field in value:
                if field not in required and field not in optional:
                    raise Pt2ProgramErrors.FIELD_UNKNOWN(path=self.path, where=where, field=field[:LONGEST_TEXT])
        return value

    def table(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.wrong(where, value, "an object")
        return value

    def items(self, value: Any, where: str, limit: int) -> list[Any]:
        if not isinstance(value, list):
            raise self.wrong(where, value, "a list")
        if len(value) > limit:
            raise Pt2ProgramErrors.TOO_MANY(path=self.path, where=where, limit=limit, things="items")
        return value

    def union(self, value: Any, where: str) -> tuple[str, Any]:
        """Return the kind and the value of a union: an object of one field."""
        if not isinstance(value, dict) or len(value) != 1:
            raise self.wrong(where, value, "an object of one field")
        return next(iter(value.items()))

    def integer(self, value: Any, where: str, least: int = -(2**63), most: int = 2**63 - 1) -> int:
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(where, value, f"a whole number from {least} to {most}")
        return value

    def number(self, value: Any, where: str) -> float:
        if isinstance(value, str) and value in _INFINITE:
            return _INFINITE[value]
        if type(value) not in (int, float) or (type(value) is int and abs(value) > 2**63):
            raise self.wrong(where, value, "a number")
        return float(value)

    def truth(self, value: Any, where: str) -> bool:
        if type(value) is not bool:
            raise self.wrong(where, value, "true or false")
        return value

    def text(self, value: Any, where: str, pattern: re.Pattern[str] = _TEXT, form: str = "plain text") -> str:
        if not isinstance(value, str) or len(value) > 16 * LONGEST_TEXT or not pattern.fullmatch(value):
            raise self.wrong(where, value, form)
        return value

    def choice(self, value: Any, where: str, choices: tuple[str, ...]) -> str:
        if value not in choices:
            raise self.wrong(where, value, f"one of {', '.join(map(repr, choices))}")
        return str(value)

    def name(self, value: Any, where: str) -> str:
        """Return the name of a value, which becomes a name in Python source that torch generates."""
        name = self.text(value, where, _IDENTIFIER, "an identifier")
        if keyword.iskeyword(name) or name.startswith("__") or name in ("self", "torch"):
            raise self.wrong(where, value, "an identifier that Python leaves free")
        return name

    def weight_name(self, value: Any, where: str) -> str:
        return self.text(value, where, _DOTTED, "names joined by dots")

    def member(self, kind: type[T], value: Any, where: str) -> T:
        """Return a member of one of torch's enums, by its number."""
        try:
            return kind(value) if type(value) is int else kind(None)  # type: ignore[call-arg]
        except ValueError:
            raise self.wrong(where, value, f"a number of {kind.__name__}") from None

    def absent(self, value: Any, where: str) -> None:
        if value:
            raise self.wrong(where, value, "nothing")

    # ------------------------------------------------------------------------------------------ sizes and tensors

    def size(self, value: Any, where: str) -> schema.SymInt:
        kind, inner = self.union(value, where)
        if kind == "as_int":
            return made(schema.SymInt, as_int=self.integer(inner, where, 0))
        if kind != "as_expr":
            raise Pt2ProgramErrors.KIND(path=self.path, where=where, form=kind[:LONGEST_TEXT])
        return made(schema.SymInt, as_expr=self.expression(inner, where))

    def expression(self, value: Any, where: str, *, truth: bool = False) -> schema.SymExpr:
        """Return a symbolic size: a sympy object instead of the text, which torch would evaluate."""
        fields = self.fields(value, where, ("expr_str",), ("hint",))
        text = fields["expr_str"]
        if not isinstance(text, str):
            raise self.wrong(where, text, "a symbolic size")
        try:
            parsed: Any = parse_size(text, truth=truth)
        except NotASize as error:
            raise Pt2ProgramErrors.SIZE(
                path=self.path, where=where, text=text[:LONGEST_TEXT], reason=str(error)
            ) from None
        self.symbols.update(str(symbol) for symbol in parsed.free_symbols)
        if len(self.symbols) > MOST_SYMBOLS:
            raise Pt2ProgramErrors.TOO_MANY(path=self.path, where=where, limit=MOST_SYMBOLS, things="symbols")
        hint = None
        if fields.get("hint") is not None and not truth:
            kind, number = self.union(fields["hint"], f"{where}.hint")
            self.choice(kind, f"{where}.hint", ("as_int",))
            hint = made(schema.SymExprHint, as_int=self.integer(number, f"{where}.hint", 0))
        return schema.SymExpr(parsed, hint)

    def tensor(self, value: Any, where: str) -> schema.TensorMeta:
        fields = self.fields(
            value, where, ("dtype", "sizes", "requires_grad", "device", "strides", "storage_offset", "layout")
        )
        sizes, strides = (
            [self.size(size, f"{where}.{name}") for size in self.items(fields[name], f"{where}.{name}", MOST_RANK)]
            for name in ("sizes", "strides")
        )
        if len(sizes) != len(strides):
            raise self.wrong(f"{where}.strides", fields["strides"], f"{len(sizes)} strides")
        return schema.TensorMeta(
            dtype=self.dtype(fields["dtype"], f"{where}.dtype"),
            sizes=sizes,
            requires_grad=self.truth(fields["requires_grad"], f"{where}.requires_grad"),
            device=self.device(fields["device"], f"{where}.device"),
            strides=strides,
            storage_offset=self.size(fields["storage_offset"], f"{where}.storage_offset"),
            layout=self.layout(fields["layout"], f"{where}.layout"),
        )

    def dtype(self, value: Any, where: str) -> schema.ScalarType:
        dtype = self.member(schema.ScalarType, value, where)
        if dtype == schema.ScalarType.UNKNOWN:
            raise self.wrong(where, value, "a number of ScalarType")
        return dtype

    def layout(self, value: Any, where: str) -> schema.Layout:
        if value != schema.Layout.Strided:
            raise self.wrong(where, value, "a dense tensor (layout 7)")
        return schema.Layout.Strided

    def device(self, value: Any, where: str) -> schema.Device:
        fields = self.fields(value, where, ("type",), ("index",))
        if fields["type"] != "cpu" or fields.get("index") not in (None, 0):
            raise self.wrong(where, fields, "the CPU: export the model there")
        return schema.Device("cpu")

    # ------------------------------------------------------------------------------------------------- operations

    def graph(self, value: Any, where: str, depth: int = 0) -> schema.Graph:
        if depth > DEEPEST_GRAPH:
            raise Pt2ProgramErrors.TOO_MANY(path=self.path, where=where, limit=DEEPEST_GRAPH, things="nested graphs")
        fields = self.fields(
            value,
            where,
            ("inputs", "outputs", "nodes", "tensor_values", "sym_int_values", "sym_bool_values"),
            ("is_single_tensor_return", "custom_obj_values", "sym_float_values"),
        )
        self.absent(fields.get("custom_obj_values"), f"{where}.custom_obj_values")
        self.absent(fields.get("sym_float_values"), f"{where}.sym_float_values")
        scope = _Scope(self, where)
        scope.tensors = {
            self.name(name, f"{where}.tensor_values"): self.tensor(meta, f"{where}.tensor_values.{name}")
            for name, meta in self.table(fields["tensor_values"], f"{where}.tensor_values").items()
        }
        scope.sizes = {
            self.name(name, f"{where}.sym_int_values"): self.size_or_number(size, f"{where}.sym_int_values.{name}")
            for name, size in self.table(fields["sym_int_values"], f"{where}.sym_int_values").items()
        }
        scope.truths = {
            self.name(name, f"{where}.sym_bool_values"): self.truth_value(size, f"{where}.sym_bool_values.{name}")
            for name, size in self.table(fields["sym_bool_values"], f"{where}.sym_bool_values").items()
        }
        inputs = [scope.input(item) for item in self.items(fields["inputs"], f"{where}.inputs", MOST_NODES)]
        nodes = []
        for index, node in enumerate(self.items(fields["nodes"], f"{where}.nodes", MOST_NODES)):
            self.nodes += 1
            if self.nodes > MOST_NODES:
                raise Pt2ProgramErrors.TOO_MANY(path=self.path, where=where, limit=MOST_NODES, things="operations")
            nodes.append(scope.node(node, f"{where}.nodes[{index}]", depth))
        outputs = [scope.output(item) for item in self.items(fields["outputs"], f"{where}.outputs", MOST_NODES)]
        single = self.truth(fields.get("is_single_tensor_return", False), f"{where}.is_single_tensor_return")
        if single and len(outputs) != 1:
            raise self.wrong(f"{where}.outputs", fields["outputs"], "one tensor")
        return schema.Graph(inputs, outputs, nodes, scope.tensors, scope.sizes, scope.truths, single)

    def size_or_number(self, value: Any, where: str) -> schema.SymInt:
        kind, inner = self.union(value, where)
        if kind == "as_int":  # torch fails on such a value itself
            return made(schema.SymInt, as_expr=schema.SymExpr(parse_size(f"Integer({self.integer(inner, where)})")))
        return self.size(value, where)

    def truth_value(self, value: Any, where: str) -> schema.SymBool:
        kind, inner = self.union(value, where)
        if kind == "as_bool":
            return made(schema.SymBool, as_bool=self.truth(inner, where))
        if kind != "as_expr":
            raise Pt2ProgramErrors.KIND(path=self.path, where=where, form=kind[:LONGEST_TEXT])
        return made(schema.SymBool, as_expr=self.expression(inner, where, truth=True))

    def metadata(self, value: Any, where: str) -> dict[str, str]:
        """Return the module path and source lines of an operation; torch's other metadata is dropped."""
        fields = self.table(value, where)
        kept: dict[str, str] = {}
        trace, modules = fields.get("stack_trace"), fields.get("nn_module_stack")
        for text in (trace, modules):
            if text is not None and (not isinstance(text, str) or len(text) > 1 << 16):
                raise self.wrong(where, text, "text")
        if trace:
            frames = _FRAME.findall(trace)[-MOST_FRAMES:]
            kept["stack_trace"] = "\n".join(f'File "{file}", line {line}, in forward' for file, line in frames)
        if modules:
            entries = [_outer_parts(item) for item in modules.split(";")]
            paths = [parts[1] for parts in entries if len(parts) == 3 and _MODULE.fullmatch(parts[1])]
            if len(paths) != len(entries) or any(len(_outer_parts(path)) != 1 for path in paths):
                raise self.wrong(f"{where}.nn_module_stack", modules, "module paths")
            kept["nn_module_stack"] = ";".join(f"m{place},{path},module" for place, path in enumerate(paths))
        return kept

    # --------------------------------------------------------------------------------------------------- signature

    def module(self, value: Any, where: str) -> schema.GraphModule:
        fields = self.fields(
            value, where, ("graph", "signature", "module_call_graph"), ("metadata", "treespec_namedtuple_fields")
        )
        self.absent(fields.get("treespec_namedtuple_fields"), f"{where}.treespec_namedtuple_fields")
        graph = self.graph(fields["graph"], f"{where}.graph")
        signature = self.signature(fields["signature"], f"{where}.signature", graph)
        calls = self.items(fields["module_call_graph"], f"{where}.module_call_graph", MOST_NODES)
        return schema.GraphModule(graph, signature, [self.call(calls, f"{where}.module_call_graph")])

    def signature(self, value: Any, where: str, graph: schema.Graph) -> schema.GraphSignature:
        fields = self.fields(value, where, ("input_specs", "output_specs"))
        inputs = self.items(fields["input_specs"], f"{where}.input_specs", MOST_NODES)
        outputs = self.items(fields["output_specs"], f"{where}.output_specs", MOST_NODES)
        read = [self.input_spec(spec, f"{where}.input_specs[{place}]") for place, spec in enumerate(inputs)]
        for specs, names, what in ((inputs, graph.inputs, "input_specs"), (outputs, graph.outputs, "output_specs")):
            if len(specs) != len(names):
                raise self.wrong(f"{where}.{what}", specs, f"{len(names)} entries")
        named = [self.spec_name(spec) for spec in read]
        if named != [item.as_tensor.name for item in graph.inputs] or len(set(named)) != len(named):
            raise self.wrong(f"{where}.input_specs", named, "the inputs of the graph, in their order")
        written = [self.output_spec(spec, f"{where}.output_specs[{place}]") for place, spec in enumerate(outputs)]
        if [self.spec_name(spec) for spec in written] != [item.as_tensor.name for item in graph.outputs]:
            raise self.wrong(f"{where}.output_specs", outputs, "the outputs of the graph, in their order")
        return schema.GraphSignature(read, written)

    @staticmethod
    def spec_name(spec: Any) -> str:
        arg = spec.value.arg
        return str(arg.as_tensor.name if isinstance(arg, schema.Argument) else arg.name)

    def input_spec(self, value: Any, where: str) -> schema.InputSpec:
        kind, inner = self.union(value, where)
        if kind == "user_input":
            fields = self.fields(inner, where, ("arg",))
            return made(schema.InputSpec, user_input=schema.UserInputSpec(self.tensor_only(fields["arg"], where)))
        keys = {"parameter": "parameter_name", "buffer": "buffer_name", "tensor_constant": "tensor_constant_name"}
        if kind not in keys:
            raise Pt2ProgramErrors.KIND(path=self.path, where=where, form=kind[:LONGEST_TEXT])
        fields = self.fields(inner, where, ("arg", keys[kind]), ("persistent",) if kind == "buffer" else ())
        arg, target = self.tensor_name(fields["arg"], where), self.weight_name(fields[keys[kind]], where)
        persistent = kind != "buffer" or self.truth(fields.get("persistent"), where)
        places = {"parameter": ("weights", "constants"), "tensor_constant": ("constants",)}
        tables = places.get(kind, ("weights", "constants") if persistent else ("constants",))
        if not any(target in self.held[table] for table in tables):
            raise Pt2ProgramErrors.NAME_UNKNOWN(path=self.path, where=where, name=target)
        if kind == "parameter":
            return made(schema.InputSpec, parameter=schema.InputToParameterSpec(arg, target))
        if kind == "buffer":
            return made(schema.InputSpec, buffer=schema.InputToBufferSpec(arg, target, persistent))
        return made(schema.InputSpec, tensor_constant=schema.InputToTensorConstantSpec(arg, target))

    def output_spec(self, value: Any, where: str) -> schema.OutputSpec:
        kind, inner = self.union(value, where)
        if kind == "user_output":
            fields = self.fields(inner, where, ("arg",))
            return made(schema.OutputSpec, user_output=schema.UserOutputSpec(self.tensor_only(fields["arg"], where)))
        if kind == "buffer_mutation":  # capture refuses it with a reason
            fields = self.fields(inner, where, ("arg", "buffer_name"))
            arg, name = self.tensor_name(fields["arg"], where), self.weight_name(fields["buffer_name"], where)
            return made(schema.OutputSpec, buffer_mutation=schema.BufferMutationSpec(arg, name))
        raise Pt2ProgramErrors.KIND(path=self.path, where=where, form=kind[:LONGEST_TEXT])

    def tensor_name(self, value: Any, where: str) -> schema.TensorArgument:
        return schema.TensorArgument(self.name(self.fields(value, where, ("name",))["name"], where))

    def tensor_only(self, value: Any, where: str) -> schema.Argument:
        kind, inner = self.union(value, where)
        if kind != "as_tensor":
            raise Pt2ProgramErrors.KIND(path=self.path, where=where, form=kind[:LONGEST_TEXT])
        return made(schema.Argument, as_tensor=self.tensor_name(inner, where))

    def call(self, calls: list[Any], where: str) -> schema.ModuleCallEntry:
        """Return the signature of the program itself, which is the first entry; those of inner modules are dropped."""
        if not calls:
            raise self.wrong(where, calls, "at least one entry")
        entry = self.fields(calls[0], where, ("fqn",), ("signature",))
        self.choice(entry["fqn"], f"{where}.fqn", ("",))
        fields = self.fields(
            entry.get("signature"),
            f"{where}.signature",
            ("inputs", "outputs", "in_spec", "out_spec"),
            ("forward_arg_names",),
        )
        self.absent(fields["inputs"], f"{where}.inputs")
        self.absent(fields["outputs"], f"{where}.outputs")
        names = fields.get("forward_arg_names")
        if names is not None:
            listed = self.items(names, f"{where}.forward_arg_names", 100)
            names = [self.name(name, f"{where}.forward_arg_names") for name in listed]
            if len(set(names)) != len(names):
                raise self.wrong(f"{where}.forward_arg_names", names, "names that differ")
        specs = {name: self.tree(fields[name], f"{where}.{name}") for name in ("in_spec", "out_spec")}
        return schema.ModuleCallEntry(
            "", schema.ModuleCallSignature([], [], specs["in_spec"], specs["out_spec"], names)
        )

    def tree(self, value: Any, where: str) -> str:
        """Return a structure of tuples, lists and dictionaries from torch's JSON form."""
        text = self.text(value, where)
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            raise self.wrong(where, value, "JSON") from None
        if not isinstance(parsed, list) or len(parsed) != 2 or parsed[0] != schema.TREESPEC_VERSION:
            raise self.wrong(where, value, "a tree of version 1")
        return json.dumps([schema.TREESPEC_VERSION, self.branch(parsed[1], where, 0)])

    def branch(self, value: Any, where: str, depth: int) -> dict[str, Any]:
        fields = self.fields(value, where, ("type", "context", "children_spec"))
        if fields == _LEAF:
            return dict(_LEAF)
        kind = self.choice(fields["type"], where, ("builtins.tuple", "builtins.list", "builtins.dict"))
        children = self.items(fields["children_spec"], where, 100)
        if depth > DEEPEST_GRAPH:
            raise Pt2ProgramErrors.TOO_MANY(path=self.path, where=where, limit=DEEPEST_GRAPH, things="levels")
        context = "null"
        if kind == "builtins.dict":
            try:
                keys = self.items(json.loads(self.text(fields["context"], where)), where, 100)
            except (ValueError, RecursionError):
                raise self.wrong(where, fields["context"], "JSON") from None
            context = json.dumps([self.name(key, where) for key in keys])
        elif fields["context"] != "null":
            raise self.wrong(where, fields["context"], "'null'")
        branches = [self.branch(child, where, depth + 1) for child in children]
        return {"type": kind, "context": context, "children_spec": branches}

    def ranges(self, value: Any, where: str) -> dict[str, schema.RangeConstraint]:
        ranges = {}
        for name, limits in self.table(value, where).items():
            self.text(name, where, _SYMBOL, "a symbol: s and a number")
            fields = self.fields(limits, where, ("min_val", "max_val"))
            low, high = (
                None if fields[key] is None else self.integer(fields[key], f"{where}.{name}")
                for key in ("min_val", "max_val")
            )
            if name in self.symbols:  # torch warns of others
                ranges[name] = schema.RangeConstraint(low, high)
        return ranges


def _outer_parts(text: str) -> list[str]:
    """Return the parts of a text between commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts if depth == 0 else []


class _Scope:
    """The values of one graph that are defined so far, by name."""

    def __init__(self, reader: ProgramReader, where: str) -> None:
        self.reader = reader
        self.where = where
        self.tensors: dict[str, schema.TensorMeta] = {}
        self.sizes: dict[str, schema.SymInt] = {}
        self.truths: dict[str, schema.SymBool] = {}
        self.defined: set[str] = set()
        self.bits: dict[str, int] = {}

    def define(self, value: Any, where: str, table: dict[str, Any]) -> str:
        name = self.reader.name(value, where)
        if name not in table:
            raise Pt2ProgramErrors.NAME_UNKNOWN(path=self.reader.path, where=where, name=name)
        if name in self.defined:
            raise self.reader.wrong(where, name, "a name that is not defined before")
        self.defined.add(name)
        return name

    def use(self, value: Any, where: str, table: dict[str, Any]) -> str:
        name = self.reader.name(value, where)
        if name not in self.defined or name not in table:
            raise Pt2ProgramErrors.NAME_UNKNOWN(path=self.reader.path, where=where, name=name)
        return name

    def input(self, value: Any) -> schema.Argument:
        where = f"{self.where}.inputs"
        argument = self.reader.tensor_only(value, where)
        self.define(argument.as_tensor.name, where, self.tensors)
        return argument

    def output(self, value: Any) -> schema.Argument:
        where = f"{self.where}.outputs"
        argument = self.reader.tensor_only(value, where)
        self.use(argument.as_tensor.name, where, self.tensors)
        return argument

    def node(self, value: Any, where: str, depth: int) -> schema.Node:
        reader = self.reader
        optional = ("is_hop_single_tensor_return", "name")
        fields = reader.fields(value, where, ("target", "inputs", "outputs", "metadata"), optional)
        target = fields["target"]
        operator = find_operator(target) if isinstance(target, str) else None
        if operator is None:
            shown = reprlib.repr(target)[1:-1] if isinstance(target, str) else reprlib.repr(target)
            raise Pt2ProgramErrors.OPERATOR(path=reader.path, where=where, operator=shown)
        where = f"{where} ({target.rpartition('.ops.')[2]})"
        items = reader.items(fields["inputs"], where, 1000)
        inputs = [self.named(item, where, depth, graphs=is_wrapper(target)) for item in items]
        if isinstance(operator, torch._ops.OpOverload):
            known = {argument.name for argument in operator._schema.arguments}
            for named in inputs:
                if named.name not in known:
                    raise Pt2ProgramErrors.ARGUMENT(
                        path=reader.path, where=where, argument=named.name, operator=target
                    )
            if len({named.name for named in inputs}) != len(inputs):
                raise reader.wrong(where, [named.name for named in inputs], "arguments that differ")
        outputs = [self.result(item, where) for item in reader.items(fields["outputs"], where, 1000)]
        name = None if fields.get("name") is None else reader.name(fields["name"], where)
        self._count_bits(target, inputs, outputs, where)
        single = fields.get("is_hop_single_tensor_return")
        if single is not None:
            reader.truth(single, where)
        return schema.Node(target, inputs, outputs, reader.metadata(fields["metadata"], where), single, name)

    def named(self, value: Any, where: str, depth: int, *, graphs: bool) -> schema.NamedArgument:
        reader = self.reader
        fields = reader.fields(value, where, ("name", "arg"), ("kind",))
        name = "" if fields["name"] == "" else reader.text(fields["name"], where, _IDENTIFIER, "an identifier")
        kind = fields.get("kind")
        if kind is not None:
            kind = reader.member(schema.ArgumentKind, kind, where)
        form, inner = reader.union(fields["arg"], where)
        if graphs and form == "as_graph":
            graph = reader.fields(inner, where, ("name", "graph"))
            argument = schema.GraphArgument(
                reader.name(graph["name"], where), reader.graph(graph["graph"], f"{where}.graph", depth + 1)
            )
            return schema.NamedArgument(name, made(schema.Argument, as_graph=argument), kind)
        read = self._argument(form, inner, where)
        return schema.NamedArgument(name, made(schema.Argument, **{form: read}), kind)

    def _argument(self, form: str, value: Any, where: str) -> Any:
        reader = self.reader
        one: dict[str, Callable[[Any], Any]] = {
            "as_none": lambda item: reader.truth(item, where),
            "as_tensor": lambda item: self._tensor(item, where),
            "as_int": lambda item: reader.integer(item, where),
            "as_float": lambda item: reader.number(item, where),
            "as_bool": lambda item: reader.truth(item, where),
            "as_string": lambda item: reader.text(item, where),
            "as_sym_int": lambda item: self._symbol(item, where, schema.SymIntArgument, "as_int", self.sizes),
            "as_sym_bool": lambda item: self._symbol(item, where, schema.SymBoolArgument, "as_bool", self.truths),
            "as_scalar_type": lambda item: reader.dtype(item, where),
            "as_memory_format": lambda item: reader.member(schema.MemoryFormat, item, where),
            "as_layout": lambda item: reader.layout(item, where),
            "as_device": lambda item: reader.device(item, where),
            "as_optional_tensor": lambda item: self._optional(item, where),
        }
        if form in one:
            return one[form](value)
        lists = {"as_tensors", "as_ints", "as_floats", "as_bools", "as_sym_ints", "as_sym_bools", "as_optional_tensors"}
        if form not in lists:
            raise Pt2ProgramErrors.KIND(path=reader.path, where=where, form=form[:LONGEST_TEXT])
        return [one[form[:-1]](item) for item in reader.items(value, where, 10_000)]

    def _tensor(self, value: Any, where: str) -> schema.TensorArgument:
        name = self.reader.tensor_name(value, where).name
        return schema.TensorArgument(self.use(name, where, self.tensors))

    def _optional(self, value: Any, where: str) -> schema.OptionalTensorArgument:
        form, inner = self.reader.union(value, where)
        if form == "as_none":
            return made(schema.OptionalTensorArgument, as_none=self.reader.truth(inner, where))
        self.reader.choice(form, where, ("as_tensor",))
        return made(schema.OptionalTensorArgument, as_tensor=self._tensor(inner, where))

    def _symbol(self, value: Any, where: str, kind: Any, plain: str, table: dict[str, Any]) -> Any:
        form, inner = self.reader.union(value, where)
        if form == plain:
            read = self.reader.integer if plain == "as_int" else self.reader.truth
            return made(kind, **{plain: read(inner, where)})
        self.reader.choice(form, where, ("as_name",))
        return made(kind, as_name=self.use(inner, where, table))

    def result(self, value: Any, where: str) -> schema.Argument:
        """Return the names that an operation defines."""
        reader = self.reader
        form, inner = reader.union(value, where)
        if form == "as_none":
            return made(schema.Argument, as_none=reader.truth(inner, where))
        if form == "as_tensor":
            return made(schema.Argument, as_tensor=self._defined(inner, where))
        if form == "as_tensors":
            listed = reader.items(inner, where, 10_000)
            if not listed:
                raise reader.wrong(where, listed, "at least one result")
            return made(schema.Argument, as_tensors=[self._defined(item, where) for item in listed])
        if form not in ("as_sym_int", "as_sym_bool"):
            raise Pt2ProgramErrors.KIND(path=reader.path, where=where, form=form[:LONGEST_TEXT])
        kind, table = (
            (schema.SymIntArgument, self.sizes) if form == "as_sym_int" else (schema.SymBoolArgument, self.truths)
        )
        named = reader.fields(inner, where, ("as_name",))
        argument: Any = made(kind, as_name=self.define(named["as_name"], where, table))
        return made(schema.Argument, **{form: argument})

    def _defined(self, value: Any, where: str) -> schema.TensorArgument:
        name = self.reader.tensor_name(value, where).name
        return schema.TensorArgument(self.define(name, where, self.tensors))

    def _count_bits(
        self, target: str, inputs: list[schema.NamedArgument], outputs: list[schema.Argument], where: str
    ) -> None:
        """Bound the numbers that operations on sizes create: a product has the bits of both of its factors."""
        if target not in ON_SIZES:
            return
        if len(outputs) != 1 or not inputs:
            raise self.reader.wrong(where, len(outputs), "one result")
        bits = [self._bits_of(named.arg) for named in inputs]
        total = sum(bits) if target.endswith(".mul") else max(bits) + 1
        if total > MOST_BITS:
            raise Pt2ProgramErrors.BITS(path=self.reader.path, where=where, limit=MOST_BITS)
        if outputs[0].type in ("as_sym_int", "as_sym_bool"):
            self.bits[outputs[0].value.as_name] = total
        else:
            raise Pt2ProgramErrors.KIND(path=self.reader.path, where=where, form=outputs[0].type)

    def _bits_of(self, argument: Any) -> int:
        if argument.type == "as_int":
            return int(argument.as_int.bit_length())
        if argument.type == "as_sym_int" and argument.as_sym_int.type == "as_int":
            return int(argument.as_sym_int.as_int.bit_length())
        if argument.type == "as_sym_int":
            return self.bits.get(argument.as_sym_int.as_name, 64)
        return 1
