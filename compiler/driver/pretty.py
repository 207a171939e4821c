"""Readable IR: values named after the model's modules, short types, and no weights.

The text is for readers only and is not parsed. A function is a list of assignments:

* `%a @ %b` is a matrix product; `%x[i, j] = ..` an element-wise operation (without indices if all of them are the
  same); `sum over k: ..` a reduction.
* Operations that move no data have no line of their own: constants, a layer's slice of a stacked weight
  (`%q_proj.weight[%layer]`) and its transpose (`.T`) are written where they are used, and dimensions of size 1 are
  omitted.
* A loop carries variables. `next` gives their values in the next iteration; after the loop they have their final
  values.
* A stage's body is written below the stage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from torch_mlir import ir

from sscc.ir.builders import ROLES, STORED, short_name
from sscc.ir.dialects import df, kv
from sscc.ir.levels import get_facts, get_level
from sscc.ir.locations import module_path
from sscc.ir.rewriting import fill_value, functions, is_zeros, producer

WIDTH = 110
"""Column at which lines are broken."""
LONGEST_ATTRIBUTE = 60
_INDICES = "ijklmnopqrst"
_INFIX = {
    "arith.addf": "+", "arith.addi": "+", "arith.subf": "-", "arith.subi": "-", "arith.mulf": "*", "arith.muli": "*",
    "arith.divf": "/", "arith.divsi": "/", "arith.floordivsi": "//", "arith.remsi": "%", "arith.andi": "and",
    "arith.ori": "or", "math.powf": "**", "math.fpowi": "**",
}  # fmt: skip
_COMBINING = {
    "arith.addf": "sum", "arith.addi": "sum", "arith.maximumf": "max", "arith.maxnumf": "max", "arith.maxsi": "max",
    "arith.mulf": "product", "arith.minimumf": "min", "arith.minnumf": "min",
}  # fmt: skip
_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge", "lt", "le", "gt", "ge")
_ORDERED = ("eq", "gt", "ge", "lt", "le", "ne")
_FLOAT_PREDICATES = ("false", *_ORDERED, "ord", *_ORDERED, "uno", "true")
_COMPOUND = frozenset({*_INFIX, "arith.negf", "arith.cmpi", "arith.cmpf", "arith.select"})
_CASTS = frozenset({"arith.truncf", "arith.extf", "arith.sitofp", "arith.uitofp", "arith.fptosi", "arith.extsi",
                    "arith.extui", "arith.trunci"})  # fmt: skip
_CLASSES = {
    "carried": " (carried)", "carried in memory": " (carried in memory)", "layer-indexed in/out": " (a part per layer)",
}  # fmt: skip
_LINELESS = frozenset({"arith.constant", "tensor.empty", "linalg.fill", "tensor.extract_slice", "arith.index_cast",
                       "torch.prim.ListConstruct"})  # fmt: skip
_RESHAPES = frozenset({"tensor.expand_shape", "tensor.collapse_shape", "tensor.cast"})
_FLOATING = re.compile(r"-?\d+\.\d+(e[+-]\d+)?", re.IGNORECASE)


def pretty(
    module: ir.Module, *, shown: Sequence[str] | None = None, locations: bool = False, weights: bool = False
) -> str:
    """Return the text of a module of any level.

    Args:
        shown: names of the functions to show, without the header of the module; None for all.
        locations: append to each line its origin in the model.
        weights: list weights that are passed to functions.
    """
    known = {function.name.value: function for function in functions(module)}
    bodies = {name for name, function in known.items() if df.BODY in function.attributes}
    parts = [] if shown is not None else [_heading(module)]
    for name in known if shown is None else shown:
        if name not in bodies or shown is not None:
            printer = _Function(known, bodies, locations, weights)
            parts.append("\n".join(line for whole in printer.function(known[name]) for line in _broken(whole)))
    return "\n\n".join(parts) + "\n"


def _heading(module: ir.Module) -> str:
    try:
        facts, geometry = get_facts(module)
        level = get_level(module)
    except Exception:  # modules from elsewhere are shown, too
        return "// not a dump of sscc"
    slots = f"batch {facts.batch}, prefill chunk {facts.chunk}, {facts.dtype}"
    cache = f"sink {geometry.sink} + recent {geometry.recent} + topk {geometry.topk} rows of {geometry.max_context}"
    return f"// level {level}: {facts.layers} layers, vocabulary {facts.vocab_size}, {slots}; {cache}"


def short_type(type_: ir.Type | str) -> str:
    """Return `1x32xf32` for `tensor<1x32xf32>`, and for torch's `!torch.vtensor<[1,32],f32>`."""
    text = str(type_)
    tensor = re.fullmatch(r"tensor<(.*)>", text)
    if tensor:
        return tensor[1]
    torch = re.fullmatch(r"!torch\.vtensor<\[([\d,]*)\],(\w+)>", text)
    if torch:
        return "x".join([*filter(None, torch[1].split(",")), torch[2]])
    return text.removeprefix("!torch.")


class _Function:
    """Printer of one function.

    Args:
        known: functions of the module.
        bodies: names of the bodies of stages.
    """

    def __init__(self, known: dict[str, Any], bodies: set[str], locations: bool, weights: bool) -> None:
        self._known, self._bodies, self._locations, self._weights = known, bodies, locations, weights
        self._names: dict[ir.Value, str] = {}
        self._stored: set[ir.Value] = set()
        self._taken: set[str] = set()
        self._by_layer = False
        self._compound: dict[ir.Value, str] = {}  # outermost operation of scalars that are expressions
        self._carried: set[ir.Value] = set()
        self._last: set[ir.Value] = set()  # last value of each module, in each block

    # -- names

    def _name(self, value: ir.Value) -> str:
        if value not in self._names:
            self._names[value] = f"%{len(self._names)}"
        return self._names[value]

    def _call(self, value: ir.Value, name: str, *, numbered: bool = False) -> str:
        """Give a value a unique name."""
        base = re.sub(r"[^\w.]", "_", name, flags=re.ASCII) or "v"
        number, given = (2, f"{base}.1") if numbered else (1, base)
        while given in self._taken:
            given, number = f"{base}.{number}", number + 1
        self._taken.add(given)
        self._names[value] = f"%{given}"
        return self._names[value]

    def _alias(self, value: ir.Value, text: str, source: ir.Value | None = None) -> None:
        self._names[value] = text
        if source in self._stored:
            self._stored.add(value)

    def _call_results(self, op: ir.Operation) -> list[str]:
        """Name results after their module: its last result gets its name, earlier results get the name and a number."""
        if op.name in kv.SPECS:
            outputs = kv.spec_of_op(op).results
            return [self._call(value, name) for value, name in zip(op.results, outputs, strict=True)]
        name = _module_name(op)
        return [self._call(value, name, numbered=value not in self._last) for value in op.results]

    # -- functions

    def function(self, function: Any) -> Iterator[str]:
        kind = "entry" if str(function.attributes.get("sym_visibility", '"public"')) != '"private"' else "kernel"
        if function.name.value in self._bodies:
            kind = "body"
        arguments = list(function.arguments)
        attributes = [ir.DictAttr(each) for each in function.attributes.get("arg_attrs", [])] or [None] * len(arguments)
        shown, stored = [], []
        for argument, held in zip(arguments, attributes, strict=True):
            role, full = _role(held)
            name = self._call(argument, short_name(full) if role in STORED else full or f"arg{len(self._names)}")
            how = "" if held is None or "sscc.class" not in held else ir.StringAttr(held["sscc.class"]).value
            self._by_layer |= how.startswith("layer-indexed")
            text = f"{name}: {short_type(argument.type)}"
            if role in STORED:
                self._stored.add(argument)
                stored.append(text)
            else:
                shown.append(text + _CLASSES.get(how, ""))
        results = [short_type(each) for each in ir.FunctionType(function.type).results]
        yield f"{kind} @{function.name.value}("
        yield from _wrapped(shown)
        if stored:
            count = f"{len(stored)} weight{'s' * (len(stored) > 1)}"
            yield from _wrapped([f"{count}: {stored[0]}", *stored[1:]] if self._weights else [count])
        yield f") -> ({', '.join(results)}) {{"
        yield from self._block(function.body.blocks[0], "  ")
        yield "}"

    def _begin(self, block: ir.Block) -> None:
        """Find the last value of each module."""
        ops = (op.operation for op in block.operations)
        self._last.update({_module_name(op): op.results[0] for op in ops if _has_line(op)}.values())

    def _block(self, block: ir.Block, indent: str) -> Iterator[str]:
        self._begin(block)
        for op in block.operations:
            for line in self._operation(op.operation):
                yield f"{indent}{line}"

    def _operation(self, op: ir.Operation) -> Iterator[str]:
        if self._inlined(op):
            return
        handler = _HANDLERS.get(op.name)
        if handler is None and op.name.endswith(".yield"):
            handler = _Function._yield
        lines = list(handler(self, op) if handler is not None else self._other(op))
        comment = self._comment(op) if self._locations else ""
        if comment and lines:
            lines[0] = f"{lines[0]:<{WIDTH // 2}}  {comment}"
        yield from lines

    def _comment(self, op: ir.Operation) -> str:
        location = op.location
        while isinstance(location, ir.NameLoc | ir.CallSiteLoc):
            location = location.child_loc if isinstance(location, ir.NameLoc) else location.callee
        text = module_path(op.location)
        if isinstance(location, ir.FileLineColLoc):
            text = f"{text} {location.filename.rpartition('/')[2]}:{location.start_line}".strip()
        return f"// {text}" if text else ""

    # -- operations without a line

    def _inlined(self, op: ir.Operation) -> bool:
        if op.name == "arith.constant" or (op.name.startswith("torch.constant.")):
            self._alias(op.results[0], _literal(op))
        elif op.name == "tensor.empty":
            self._alias(op.results[0], "empty")
        elif fill_value(op) is not None:
            self._alias(op.results[0], self._name(fill_value(op)))
        elif op.name == "torch.prim.ListConstruct":
            self._alias(op.results[0], f"[{', '.join(map(self._name, op.operands))}]")
        elif op.name == "tensor.extract_slice" and self._sliced(op) is not None:
            self._alias(op.results[0], f"{self._name(op.operands[0])}{self._sliced(op)}", op.operands[0])
        elif op.name == "linalg.transpose" and str(op.attributes["permutation"]) == "array<i64: 1, 0>":
            self._alias(op.results[0], f"{self._name(op.operands[0])}.T", op.operands[0])
        elif (op.name in _RESHAPES and _of_units(op)) or (op.name == "df.load" and op.operands[0] in self._stored):
            self._alias(op.results[0], self._name(op.operands[0]), op.operands[0])
        elif op.name in ("arith.index_cast", "arith.index_castui"):
            self._alias(op.results[0], self._name(op.operands[0]))
        else:
            return False
        return True

    def _sliced(self, op: ir.Operation, source: ir.Type | None = None) -> str | None:
        """Return the indices of a slice: a single index for a length of 1, else a range, or ":" for a whole dimension,
        except at the end. None for a slice with strides."""
        shape = ir.RankedTensorType(source or op.operands[0].type).shape
        values = iter(list(op.operands)[1 if op.name == "tensor.extract_slice" else 2 :])
        offsets, sizes, strides = (_numbers(op, f"static_{name}") for name in ("offsets", "sizes", "strides"))
        if any(stride != 1 for stride in strides):
            return None
        dynamic = [self._name(next(values)) if offset < -(1 << 62) else str(offset) for offset in offsets]
        lengths = [self._name(next(values)) if size < -(1 << 62) else str(size) for size in sizes]
        indices = []
        for at, length, whole in zip(dynamic, lengths, shape, strict=True):
            if at == "0" and length == str(whole):
                indices.append(":")
            elif length == "1":
                indices.append(at)
            else:
                end = str(int(at) + int(length)) if at.isdecimal() and length.isdecimal() else f"{at} + {length}"
                indices.append(f":{length}" if at == "0" else f"{at}:{end}")
        while indices and indices[-1] == ":":
            indices.pop()
        return f"[{', '.join(indices)}]" if indices else ""

    # -- operations with a line

    def _assigned(self, op: ir.Operation, text: str) -> str:
        types = ", ".join(short_type(result.type) for result in op.results)
        return f"{', '.join(self._call_results(op))} = {text} : {types}" if op.results else text

    def _other(self, op: ir.Operation) -> Iterator[str]:
        hidden = {"operandSegmentSizes", "resultSegmentSizes", *_stage_attributes(op)}
        shown = sorted((name, value) for name, value in op.attributes.items() if name not in hidden)
        attributes = [f"{name} = {_shortened(str(value))}" for name, value in shown]
        operands = ", ".join(self._operands(op))
        text = f"{op.name.removeprefix('torch.')}({operands})" + (f" {{{', '.join(attributes)}}}" if attributes else "")
        regions = [block for region in op.regions for block in region.blocks]
        line = self._assigned(op, text) + _stage(op)
        yield f"{line} {{" if regions else line
        for block in regions:
            for argument in block.arguments:
                self._call(argument, "x")
            yield from self._block(block, "  ")
        if regions:
            yield "}"

    def _operands(self, op: ir.Operation) -> list[str]:
        if op.name not in kv.SPECS:
            return [self._name(value) for value in op.operands]
        return [f"{name} {self._name(value)}" for name, value in kv.operands_of(op).items()]

    def _generic(self, op: ir.Operation) -> Iterator[str]:
        if len(op.results) != 1:
            yield from self._other(op)
            return
        held, iterators = op.attributes["indexing_maps"], op.attributes["iterator_types"]
        maps = [[_indexed(str(each)) for each in ir.AffineMapAttr(item).value.results] for item in held]
        kinds = [str(kind) for kind in iterators]
        block = op.regions[0].blocks[0]
        plain = all(each == maps[-1] for each in maps) and not any("reduction" in kind for kind in kinds)
        values = list(op.operands)
        for argument, value, at in zip(block.arguments, values, maps, strict=True):
            bare = plain or not at or self._is_literal(value)
            self._names[argument] = self._name(value) + ("" if bare else f"[{', '.join(at)}]")
        expression, where = self._expression(block)
        yielded = producer(block.operations[len(block.operations) - 1].operands[0])
        accumulated = list(block.arguments)[-1]
        over = ", ".join(_INDICES[i] for i, kind in enumerate(kinds) if "reduction" in kind)
        if over and yielded is not None and yielded.name in _COMBINING and accumulated in list(yielded.operands):
            others = [value for value in yielded.operands if value != accumulated]
            inner, where = self._expression(block, others[0] if others else accumulated)
            start = "" if is_zeros(values[-1]) or self._name(values[-1]) == "0" else f" from {self._name(values[-1])}"
            expression = f"{_COMBINING[yielded.name]} over {over}{start}: {inner}"
        elif over:
            expression = f"fold over {over}: {expression}"
        shape = short_type(op.results[0].type)
        (name,) = self._call_results(op)
        target = name if plain else f"{name}[{', '.join(maps[-1])}]"
        yield f"{target} = {expression}{where} : {shape}"

    def _is_literal(self, value: ir.Value) -> bool:
        return not self._name(value).startswith("%")

    def _expression(self, block: ir.Block, value: ir.Value | None = None) -> tuple[str, str]:
        """Return the expression of a body of scalar operations, and a clause that defines letters for subexpressions
        that are used several times."""
        ops = [op.operation for op in block.operations]
        uses: dict[ir.Value, int] = {}
        for op in ops:
            for operand in op.operands:
                uses[operand] = uses.get(operand, 0) + 1
        where: list[str] = []
        for op in ops[:-1]:
            if op.results:
                text = self._scalar(op)
                result = op.results[0]
                if uses.get(result, 0) > 1 and op.name != "arith.constant" and len(text) > len("%x[i, j, k]"):
                    letter = f"{chr(ord('u') + len(where) % 6)}{len(where) // 6 or ''}"
                    where.append(f"{letter} = {text}")
                    text = letter
                elif op.name in _COMPOUND:
                    self._compound[result] = op.name
                self._names[result] = text
        wanted = self._name(value if value is not None else ops[-1].operands[0])
        return wanted, f" where {', '.join(where)}" if where else ""

    def _scalar(self, op: ir.Operation) -> str:
        name = op.name.rpartition(".")[2]
        if op.name == "arith.constant":
            return _literal(op)
        operands = [self._bracketed(op, index) for index in range(len(op.operands))]
        if op.name in _INFIX:
            return f"{operands[0]} {_INFIX[op.name]} {operands[1]}"
        if op.name == "arith.negf":
            return f"-{operands[0]}"
        if op.name in ("arith.cmpi", "arith.cmpf"):
            table = _PREDICATES if name == "cmpi" else _FLOAT_PREDICATES
            predicate = table[ir.IntegerAttr(op.attributes["predicate"]).value]
            return f"{operands[0]} {_COMPARED.get(predicate, predicate)} {operands[1]}"
        if op.name == "arith.select":
            return f"{operands[1]} if {operands[0]} else {operands[2]}"
        if op.name in ("arith.index_cast", "arith.index_castui"):
            return operands[0]
        if op.name in _CASTS:
            return f"{op.results[0].type}({operands[0]})"
        if op.name == "linalg.index":
            return _INDICES[ir.IntegerAttr(op.attributes["dim"]).value]
        if op.name == "tensor.extract":
            return f"{operands[0]}[{', '.join(operands[1:])}]"
        return f"{name}({', '.join(operands)})"

    def _bracketed(self, op: ir.Operation, index: int) -> str:
        """Return an operand, in brackets if it is an expression with an operator of lower precedence."""
        text, inner = self._name(op.operands[index]), self._compound.get(op.operands[index])
        chained = index == 0 and inner == op.name and _INFIX.get(op.name) in ("+", "*")
        return f"({text})" if inner is not None and op.name in _COMPOUND and not chained else text

    def _scalar_line(self, op: ir.Operation) -> Iterator[str]:
        yield self._assigned(op, self._scalar(op))

    def _product(self, op: ir.Operation) -> Iterator[str]:
        a, b, out = op.operands
        added = "" if is_zeros(out) else f"{self._name(out)} + "
        yield self._assigned(op, f"{added}{self._name(a)} @ {self._name(b)}")

    def _reshape(self, op: ir.Operation) -> Iterator[str]:
        if self._is_literal(op.operands[0]):
            self._alias(op.results[0], self._name(op.operands[0]))
        else:
            yield self._assigned(op, f"reshape {self._name(op.operands[0])}")

    def _transpose(self, op: ir.Operation) -> Iterator[str]:
        order = ", ".join(map(str, _numbers(op, "permutation")))
        yield self._assigned(op, f"transpose {self._name(op.operands[0])} by [{order}]")

    def _insert(self, op: ir.Operation) -> Iterator[str]:
        value, target = self._name(op.operands[0]), self._name(op.operands[1])
        indices = self._sliced(op, op.operands[1].type)
        if indices is None:
            yield from self._other(op)
        elif op.operands[1] in self._carried and _is_last_use(op, op.operands[1]):
            self._names[op.results[0]] = target
            yield f"{target}{indices or '[:]'} = {value}"
        else:
            yield self._assigned(op, f"{target} with {indices or '[:]'} = {value}")

    def _concat(self, op: ir.Operation) -> Iterator[str]:
        parts = ", ".join(map(self._name, op.operands))
        yield self._assigned(op, f"concat({parts}, axis {_plain(op.attributes['dim'])})")

    def _load(self, op: ir.Operation) -> Iterator[str]:
        yield f"{self._assigned(op, f'load {self._name(op.operands[0])}')}{_stage(op)}"

    def _call_line(self, op: ir.Operation) -> Iterator[str]:
        callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        if callee in self._bodies:
            yield from self._stage_body(op, self._known[callee])
            return
        passed = [value for value in op.operands if self._weights or value not in self._stored]
        count = len(op.operands) - len(passed)
        names = [*map(self._name, passed), *([f"{count} weight{'s' * (count > 1)}"] if count else [])]
        parameters = ir.FunctionType(self._known[callee].type).results if callee in self._known else []
        attributes = self._known[callee].attributes.get("res_attrs", []) if parameters else []
        for result, held in zip(op.results, attributes, strict=False):
            role = _role(ir.DictAttr(held))[1]
            if role:
                self._call(result, role.replace("{", "").replace("}", ""))
        types = ", ".join(short_type(result.type) for result in op.results)
        results = [self._names.get(result) or self._call(result, callee.rpartition(".")[2]) for result in op.results]
        left = f"{', '.join(results)} = " if results else ""
        yield f"{left}call @{callee}({', '.join(names)}){f' : {types}' if types else ''}{_stage(op)}"

    def _stage_body(self, op: ir.Operation, body: Any) -> Iterator[str]:
        block = body.body.blocks[0]
        for argument, value in zip(block.arguments, op.operands, strict=True):
            self._alias(argument, self._name(value), value)
        yield f"stage {_stage(op).strip(' ;')}:"
        self._begin(block)
        last = None
        for inner in block.operations:
            last = inner.operation
            if last.name == "func.return":
                break
            for line in self._operation(last):
                yield f"  {line}"
        if last is not None:
            for result, value in zip(op.results, last.operands, strict=True):
                self._names[result] = self._name(value)

    def _for(self, op: ir.Operation) -> Iterator[str]:
        lower, upper, step = (self._name(value) for value in list(op.operands)[:3])
        block = op.regions[0].blocks[0]
        induction, *carried = block.arguments
        counter = self._call(induction, "layer" if self._by_layer else "i")
        self._by_layer = False  # inner loops are not over layers
        texts = []
        for argument, start in zip(carried, list(op.operands)[3:], strict=True):
            begins = self._name(start)
            name = begins if re.fullmatch(r"%[\w.]+", begins) else self._call(argument, "carried")
            self._names[argument] = name
            self._carried.add(argument)
            texts.append(name if name == begins else f"{name} = {begins}")
        by = "" if step == "1" else f" by {step}"
        self._begin(block)
        yield f"for {counter} in {lower} .. {upper}{by}{' carrying ' if texts else ''}{', '.join(texts)} {{"
        for inner in block.operations:
            if inner.operation.name != "scf.yield":
                for line in self._operation(inner.operation):
                    yield f"  {line}"
                continue
            moved = [
                f"{self._name(argument)} = {self._name(value)}"
                for argument, value in zip(carried, inner.operation.operands, strict=True)
                if self._name(argument) != self._name(value)
            ]
            if moved:
                yield f"  next {', '.join(moved)}"
        yield "}"
        for argument, result in zip(carried, op.results, strict=True):
            self._names[result] = self._name(argument)

    def _if(self, op: ir.Operation) -> Iterator[str]:
        results = self._call_results(op)
        left = f"{', '.join(results)} = " if results else ""
        yield f"{left}if {self._name(op.operands[0])} {{"
        for number, region in enumerate(op.regions):
            if len(region.blocks):
                if number:
                    yield "} else {"
                yield from self._block(region.blocks[0], "  ")
        yield "}"

    def _yield(self, op: ir.Operation) -> Iterator[str]:
        if op.operands:
            yield f"yield {', '.join(map(self._name, op.operands))}"

    def _return(self, op: ir.Operation) -> Iterator[str]:
        yield f"return {', '.join(map(self._name, op.operands))}".rstrip()


_HANDLERS: dict[str, Any] = {
    "linalg.generic": _Function._generic,
    "linalg.matmul": _Function._product,
    "linalg.batch_matmul": _Function._product,
    "linalg.transpose": _Function._transpose,
    "tensor.insert_slice": _Function._insert,
    "tensor.concat": _Function._concat,
    "df.load": _Function._load,
    "func.call": _Function._call_line,
    "func.return": _Function._return,
    "scf.for": _Function._for,
    "scf.if": _Function._if,
    **dict.fromkeys(_RESHAPES, _Function._reshape),
    **dict.fromkeys((*_COMPOUND, *_CASTS, "arith.minsi", "arith.maxsi", "arith.ceildivsi", "tensor.extract"),
                    _Function._scalar_line),
}  # fmt: skip


# ------------------------------------------------------------------------------------------------------- parts of text


def _role(attributes: ir.DictAttr | None) -> tuple[str, str]:
    if attributes is None:
        return "", ""
    for role in ROLES:
        if f"sscc.{role}" in attributes:
            return role, ir.StringAttr(attributes[f"sscc.{role}"]).value
    return "", ""


def _wrapped(items: Sequence[str]) -> Iterator[str]:
    """Join items with commas and yield the lines, each filled up to `WIDTH`."""
    line = ""
    for index, item in enumerate(items):
        text = item + "," * (index < len(items) - 1)
        if line and len(line) + 1 + len(text) > WIDTH:
            yield f"    {line}"
            line = text
        else:
            line = f"{line} {text}".strip()
    if line:
        yield f"    {line}"


def _broken(line: str) -> Iterator[str]:
    """Break a long line at commas, but not inside of square brackets."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    while len(line) > WIDTH + 10:
        places = [at.start() for at in re.finditer(", ", line[:WIDTH])]
        outside = [at for at in places if at > len(indent) and line.count("[", 0, at) == line.count("]", 0, at)]
        if not outside:
            break
        at = outside[-1]
        yield line[: at + 1]
        line = indent + line[at + 2 :]
    yield line


def _module_name(op: ir.Operation) -> str:
    """Return the end of the module path of an operation, without numbers; "hidden" for values of a whole layer."""
    path = module_path(op.location)
    parts = [part for part in path.split(".") if not part[:1].isdigit()]
    if parts[-1:] == ["layers"] or not parts:
        return "hidden" if parts else op.name.rpartition(".")[2]
    return ".".join([part for part in parts if part not in ("model", "layers")][-2:] or parts[-1:])


def _has_line(op: ir.Operation) -> bool:
    if not op.results or op.name in _LINELESS or op.name.startswith("torch.constant.") or op.name in kv.SPECS:
        return False
    return not (op.name in _RESHAPES and _of_units(op)) and fill_value(op) is None


def _of_units(op: ir.Operation) -> bool:
    """Return True if a reshape only adds or drops dimensions of size 1."""
    before, after = ([size for size in ir.RankedTensorType(value.type).shape if size != 1]
                     for value in (op.operands[0], op.results[0]))  # fmt: skip
    return before == after


def _is_last_use(op: ir.Operation, value: ir.Value) -> bool:
    """Return True if no operation after `op` in its block reads `value` or a part of it."""
    parts, behind = {value}, False
    for each in op.block.operations:
        inner = each.operation
        if behind and parts & {*inner.operands}:
            return False
        if inner.name == "tensor.extract_slice" and inner.operands[0] in parts:
            parts.add(inner.results[0])
        behind = behind or inner == op
    return True


def _numbers(op: ir.Operation, name: str) -> list[int]:
    return [int(each) for each in ir.DenseI64ArrayAttr(op.attributes[name])]


def _indexed(expression: str) -> str:
    return re.sub(r"d(\d+)", lambda match: _INDICES[int(match[1])], expression)


def _plain(attribute: ir.Attribute) -> str:
    return str(attribute).partition(" : ")[0]


def _literal(op: ir.Operation) -> str:
    if "value" not in op.attributes:
        return str(op.name).rpartition(".")[2]  # torch.constant.none
    text = _plain(op.attributes["value"])
    text = _FLOATING.sub(lambda match: f"{float(match[0]):.6g}", text)
    return re.sub(r"^dense<(.*)>$", r"\1", text)


def _shortened(text: str) -> str:
    text = re.sub(r" : [if]\d+\b", "", text)
    return text if len(text) <= LONGEST_ATTRIBUTE else f"{text[:LONGEST_ATTRIBUTE]}.."


def _stage_attributes(op: ir.Operation) -> list[str]:
    return [name for name in op.attributes if name.startswith("df.")] if op.name in ("func.call", "df.load") else []


def _stage(op: ir.Operation) -> str:
    """Return the name and properties of a stage, to follow its operation."""
    held = {name: op.attributes[name] for name in _stage_attributes(op)}
    words = []
    if df.STAGE in held:
        words.append(str(held[df.STAGE]).strip('"'))
    if df.PCUS in held:
        words.append(f"{_plain(held[df.PCUS])} PCUs")
    if df.BUFFERS in held:
        depths = [str(_plain(ir.DictAttr(each)["depth"])) for each in held[df.BUFFERS] if "depth" in ir.DictAttr(each)]
        words += [f"buffers of {'/'.join(depths)}"] if depths else []
    words += [f"{name.partition('.')[2]} {_shortened(_plain(held[name]))}" for name in (df.TILES,) if name in held]
    return f"  ; {', '.join(words)}" if words else ""
