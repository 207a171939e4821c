"""absorb-latent: the latent row from which all heads compute K and V is cached instead of K and V.

What: multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) computes K and V of every head from one latent row per
position, by products with weights, and appends the same rotated numbers to each head's keys. With `latent` [r] the
latent row and `shared` [p] the rotated numbers::

    k[h] = [W_K[h] latent | shared]      v[h] = W_V[h] latent

so that for a query q[h] = [a | b] and attention weights P::

    q[h] . k[h, t] = [a W_K[h] | b] . [latent[t] | shared[t]]
    sum over t of P[t] v[h, t] = W_V[h] (sum over t of P[t] latent[t])

A decode layer uses the right-hand sides: one KV head for all query heads, whose rows are `[latent | shared]` and whose
values are the first r numbers of its keys. A prefill layer attends to K and V of every head, which takes less
arithmetic if many queries meet each key; `kv.latent_attention` computes K and V from the latent rows on the fly.

Why: a cached row has r + p numbers in all, instead of a K and a V for every head.

How it is recognised: by the computation of K and V. Apart from views (slices, reshapes, transpositions) and rounding, V
must be columns of a product with a weight of the layer, and K a concatenation of such columns, of a product of the same
rows, and of values that are the same for all heads. Names of models, modules and weights do not matter.

Before, in a decode layer of two heads, whose keys are one number computed from two latent ones, and a shared one::

    func.func private @decode.layer.0(%q: tensor<3x2x1x2xf32> {sscc.input = "hidden"},
        %x: tensor<3x2xf32> {sscc.input = "latent"}, %s: tensor<3x1x1xf32> {sscc.input = "shared"},
        %w: tensor<8x2xf32> {sscc.weight = "up"})
        -> (tensor<3x2x1x3xf32> {sscc.output = "hidden"}) attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
      %zero = arith.constant 0.0 : f32
      %e0 = tensor.empty() : tensor<2x8xf32>
      %wt = linalg.transpose ins(%w : tensor<8x2xf32>) outs(%e0 : tensor<2x8xf32>) permutation = [1, 0]
      %e1 = tensor.empty() : tensor<3x8xf32>
      %z1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<3x8xf32>) -> tensor<3x8xf32>
      %p = linalg.matmul ins(%x, %wt : tensor<3x2xf32>, tensor<2x8xf32>) outs(%z1 : tensor<3x8xf32>) -> tensor<3x8xf32>
      %heads = tensor.expand_shape %p [[0], [1, 2, 3]] output_shape [3, 2, 1, 4]
        : tensor<3x8xf32> into tensor<3x2x1x4xf32>
      %kn = tensor.extract_slice %heads[0, 0, 0, 0] [3, 2, 1, 1] [1, 1, 1, 1]
        : tensor<3x2x1x4xf32> to tensor<3x2x1x1xf32>
      %v = tensor.extract_slice %heads[0, 0, 0, 1] [3, 2, 1, 3] [1, 1, 1, 1]
        : tensor<3x2x1x4xf32> to tensor<3x2x1x3xf32>
      %e2 = tensor.empty() : tensor<3x2x1x1xf32>
      %ks = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>,
          affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>],
          iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
          ins(%s : tensor<3x1x1xf32>) outs(%e2 : tensor<3x2x1x1xf32>) {
      ^bb0(%in: f32, %out: f32):
        linalg.yield %in : f32
      } -> tensor<3x2x1x1xf32>
      %k = tensor.concat dim(3) %kn, %ks : (tensor<3x2x1x1xf32>, tensor<3x2x1x1xf32>) -> tensor<3x2x1x2xf32>
      %o = "kv.self_attention"(%q, %k, %v) {layer = 0 : i64, scale = 0.5 : f64}
        : (tensor<3x2x1x2xf32>, tensor<3x2x1x2xf32>, tensor<3x2x1x3xf32>) -> tensor<3x2x1x3xf32>
      return %o : tensor<3x2x1x3xf32>
    }

After::

    func.func private @decode.layer.0(%hidden: .. "hidden"}, %latent: .. "latent"}, %shared: .. "shared"}, %up: ..
      ..
      %row = tensor.concat dim(3) %l, %s : (tensor<3x1x1x2xf32>, tensor<3x1x1x1xf32>) -> tensor<3x1x1x3xf32>
      %heads = tensor.expand_shape %up .. output_shape [2, 4, 2] ..
      %w_k = tensor.extract_slice %heads[0, 0, 0] [2, 1, 2] ..
      %a = tensor.extract_slice %hidden[0, 0, 0, 0] [3, 2, 1, 1] ..
      ..
      %own = linalg.contract .. ins(%a, %w_k : tensor<3x2x1x1xf32>, tensor<2x1x2xf32>) ..
      %b = tensor.extract_slice %hidden[0, 0, 0, 1] [3, 2, 1, 1] ..
      %query = tensor.concat dim(3) %own, %b : .. -> tensor<3x2x1x3xf32>
      %values = tensor.extract_slice %row[0, 0, 0, 0] [3, 1, 1, 2] ..
      %o = "kv.self_attention"(%query, %row, %values) ..
      %w_v = tensor.extract_slice %heads[0, 1, 0] [2, 3, 2] ..
      ..
      %out = linalg.contract .. ins(%o, %w_v : tensor<3x2x1x2xf32>, tensor<2x3x2xf32>) ..
      return %out : tensor<3x2x1x3xf32>

A layer that attends to positions selected by an index does so in prefill too: each token attends to different rows, so
that K and V of a row would be computed many times.

When it does not apply: to K or V with further operations (a bias, a rotation of all of K), if the latent row would not
be smaller, if only one of the entries has this form, to windowed attention, whose ring is short, to attention with
capped scores or learned sinks, and to layers whose K and V other layers share. These layers are unchanged, and cache K
and V of every head.

Preserves: every other operation; locations.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from torch_mlir import ir

from sscc.ir.builders import extract_slice, i64_attr, reshape, tensor_type, with_axis_split
from sscc.ir.choices import STEPS
from sscc.ir.collectives import grid_of
from sscc.ir.dialects import kv
from sscc.ir.geometry import Geometry
from sscc.ir.levels import get_facts
from sscc.ir.rewriting import functions, is_zeros, producer
from sscc.ir.sizes import dense_strides
from sscc.ir.views import is_view, permutation_of, reshaped_strides
from sscc.passes.attended import LAYER, operators_of
from sscc.passes.base import Pass, count
from sscc.passes.latent_queries import absorbed, joined, product
from sscc.passes.tiling import is_cast

CHOSEN = "kv.chosen_attention"


@dataclass(frozen=True)
class AbsorbLatent(Pass):
    name: ClassVar[str] = "absorb-latent"
    takes: ClassVar[tuple[str, ...]] = ("graph",)
    follows: ClassVar[tuple[str, ...]] = ("repeat-layers",)
    level: ClassVar[str] = "graph"

    def run(self, module: ir.Module) -> None:
        _, geometry = get_facts(module)
        ranks = prod(grid_of(module))
        layers: dict[int, list[tuple[str, ir.Operation, _Latent | None]]] = {}
        stateful = {f: operators_of(f) for f in functions(module) if LAYER in f.attributes}
        attending = {f: operators[0] for f, operators in stateful.items() if operators}
        sources = {op.attributes["shares"].value for op in attending.values() if op.name == "kv.shared_attention"}
        for function, attention in attending.items():
            layer, entry = (function.attributes[name].value for name in (LAYER, "sscc.entry"))
            if attention.name in ("kv.self_attention", CHOSEN) and layer not in sources:
                latent = _latent_of(attention, ranks) if _is_plain(attention, geometry) else None
                layers.setdefault(layer, []).append((entry, attention, latent))
        for entries in layers.values():
            if len({latent.sizes if latent else None for _, _, latent in entries}) > 1:
                continue
            for entry, attention, latent in entries:
                if latent is not None:
                    (_absorb if entry in STEPS or attention.name == CHOSEN else _note)(attention, latent)
                    count("attentions over latent rows")


# ------------------------------------------------------------------------------------------------------ recognition


@dataclass(frozen=True)
class _Layout:
    """Position of a value's elements in another value: offset and strides, in elements of `root`, of a tensor of
    `shape`."""

    root: ir.Value
    offset: int
    strides: tuple[int, ...]
    shape: tuple[int, ...]


def _layout(value: ir.Value) -> _Layout | None:
    """Return a value as a part of the tensor that its views show; None if strides cannot express it."""
    op = producer(value)
    shape = tuple(value.type.shape)
    if op is None or not is_view(op) or op.name == "tensor.insert_slice":
        return _Layout(value, 0, dense_strides(shape), shape)
    source = _layout(op.operands[0])
    if source is None:
        return None
    offset, strides = source.offset, source.strides
    permutation = permutation_of(op)
    if permutation is not None:
        return _Layout(source.root, offset, tuple(strides[axis] for axis in permutation), shape)
    if op.name != "tensor.extract_slice":
        new_strides = reshaped_strides(source.shape, strides, shape)
        return None if new_strides is None else _Layout(source.root, offset, new_strides, shape)
    names = ("static_offsets", "static_sizes", "static_strides")
    offsets, sizes, steps = (list(op.attributes[name]) for name in names)
    if len(op.operands) > 1 or tuple(sizes) != shape:  # dynamic, or of a lower rank
        return None
    offset += sum(first * stride for first, stride in zip(offsets, strides, strict=True))
    return _Layout(source.root, offset, tuple(a * b for a, b in zip(strides, steps, strict=True)), shape)


@dataclass(frozen=True)
class _Projected:
    """A value [B, H, S, w] that is W[h] x[b, t]: columns of a product of rows with a weight.

    Attributes:
        rows: [B * S, r].
        weight: [O, r].
        first, step: head h uses `width` rows of the weight from first + h * step on.
    """

    rows: ir.Value
    weight: ir.Value
    first: int
    step: int
    heads: int
    width: int

    @classmethod
    def of(cls, value: ir.Value) -> _Projected | None:
        slots, heads, tokens, width = value.type.shape
        layout = _layout(value)
        product = None if layout is None else producer(layout.root)
        if product is not None and is_cast(product):
            product = producer(product.operands[0])
        if layout is None or product is None or product.name != "linalg.matmul":
            return None
        rows, matrix, out = product.operands
        weight = _layout(matrix)
        if weight is None or not isinstance(weight.root.owner, ir.Block) or not is_zeros(out):
            return None
        depth, columns = matrix.type.shape
        whole = weight.offset == 0 and list(weight.root.type.shape) == [columns, depth] and weight.strides == (1, depth)
        step = layout.strides[1]
        expected = (tokens * columns, step, columns, 1)
        axes = zip(layout.shape, layout.strides, expected, strict=True)
        same_strides = all(size == 1 or stride == other for size, stride, other in axes)
        if not whole or not same_strides or list(rows.type.shape) != [slots * tokens, depth] or step < width:
            return None
        projected = cls(rows, weight.root, layout.offset, step, heads, width)
        inside = projected.first % step + width <= step and projected.base + heads * step <= columns
        return projected if inside else None

    @property
    def base(self) -> int:
        """First row of the weight that belongs to these heads, counted in blocks of `step` rows each."""
        return self.first // self.step * self.step

    def matrix(self) -> ir.Value:
        """Return the weight of every head, [H, w, r], as a view."""
        columns, depth = self.weight.type.shape
        weight, count = self.weight, self.heads * self.step
        if count != columns:
            weight = extract_slice(weight, [self.base, 0], [count, depth])
        parts = with_axis_split(weight, 0, self.heads)
        if self.width == self.step:
            return parts
        return extract_slice(parts, [0, self.first - self.base, 0], [self.heads, self.width, depth])


def _shared(value: ir.Value) -> ir.Value | None:
    """Return the part of a value [B, H, S, p] that all heads share, [B, S, p] or with unit dimensions; None if heads
    differ."""
    op = producer(value)
    if op is None or op.name != "linalg.generic" or len(op.operands) != 2:
        return None
    block = op.regions[0].blocks[0]
    first: Any = block.operations[0].operation
    source = op.operands[0]
    if first.name != "linalg.yield" or first.operands[0] != block.arguments[0]:
        return None
    read, written = (ir.AffineMapAttr(attribute).value for attribute in op.attributes["indexing_maps"])
    sizes = list(value.type.shape)
    dims = [ir.AffineDimExpr(e).position if isinstance(e, ir.AffineDimExpr) else None for e in read.results]
    # A constant index reads the only element of a unit dimension.
    constants = (size for dim, size in zip(dims, source.type.shape, strict=True) if dim is None)
    known = [dim for dim in dims if dim is not None]
    left_out = set(range(4)) - set(known)
    fits = (
        written == ir.AffineMap.get_identity(4),
        all(size == 1 for size in constants),
        known == sorted(set(known)),
        1 in left_out,
        all(sizes[dim] == 1 for dim in left_out - {1}),
    )
    return source if all(fits) else None


@dataclass(frozen=True)
class _Latent:
    """Latent rows from which the K and V of an attention are computed.

    Attributes:
        key: the part of K that is a product.
        shared: the other parts, each the same for all heads.
        parts: for each part of K, in order, its width and whether it is the product.
        value: V.
    """

    key: _Projected
    shared: tuple[ir.Value, ...]
    parts: tuple[tuple[int, bool], ...]
    value: _Projected

    @property
    def depth(self) -> int:
        """r, the length of a latent row."""
        return int(self.key.rows.type.shape[1])

    @property
    def first(self) -> int:
        """Position of the product's columns in K."""
        return sum(width for width, _ in itertools.takewhile(lambda part: not part[1], self.parts))

    @property
    def width(self) -> int:
        """r + p: numbers of a row."""
        return self.depth + sum(width for width, is_product in self.parts if not is_product)

    @property
    def sizes(self) -> tuple[object, ...]:
        """Sizes that must be the same in both entries."""
        where = ((item.first, item.step, item.heads, item.width) for item in (self.key, self.value))
        return self.depth, self.parts, *where


def _is_plain(attention: ir.Operation, geometry: Geometry) -> bool:
    """Return True if an attention is to chosen positions, or over all, without a cap of scores and learned sinks."""
    if attention.name == CHOSEN:
        return True
    _, _, _, *sinks = attention.operands
    windowed = kv.window_of(attention).inside(geometry.max_context)
    return not windowed and not sinks and kv.optional_of(attention, "softcap") is None


def _latent_of(attention: ir.Operation, ranks: int) -> _Latent | None:
    """Return the latent rows of an attention, if the heads of all ranks have separate K and V, and a latent row is
    smaller."""
    query, key, value = list(attention.operands)[:3]
    cut = kv.head_parts_of(attention)
    heads, kv_heads = query.type.shape[1], key.type.shape[1]
    if cut is not None:
        heads, kv_heads = heads * ranks, kv_heads * cut
    if heads != kv_heads:
        return None
    whole = producer(key)
    pieces = [key]
    if whole is not None and whole.name == "tensor.concat":
        pieces = list(whole.operands) if ir.IntegerAttr(whole.attributes["dim"]).value == 3 else []
    values, projected = _Projected.of(value), [_Projected.of(piece) for piece in pieces]
    shared = [_shared(piece) for piece, product in zip(pieces, projected, strict=True) if product is None]
    products = [item for item in projected if item is not None]
    if values is None or len(products) != 1 or products[0].rows != values.rows or any(item is None for item in shared):
        return None
    parts = [(int(p.type.shape[3]), item is not None) for p, item in zip(pieces, projected, strict=True)]
    common = tuple(item for item in shared if item is not None)
    latent = _Latent(products[0], common, tuple(parts), values)
    return latent if latent.width < heads * (key.type.shape[3] + value.type.shape[3]) else None


# --------------------------------------------------------------------------------------------------------- rewriting


def _absorb(attention: ir.Operation, latent: _Latent) -> None:
    """Rewrite attention to latent rows, in a decode layer or a layer that attends to selected rows."""
    query, value = attention.operands[0], attention.operands[2]
    slots, heads, tokens, _ = query.type.shape
    with ir.InsertionPoint(attention), attention.location:
        row = _row(attention, latent)
        new_query = absorbed(query, latent.key.matrix(), latent.first)
        values = extract_slice(row, [0, 0, 0, 0], [slots, 1, tokens, latent.depth])
        type_ = tensor_type([slots, heads, tokens, latent.depth], query.type.element_type)
        if attention.name == CHOSEN:
            chosen, *sinks = list(attention.operands)[3:]
            new = kv.ChosenAttention(new_query, row, values, chosen, *(sinks or [None]), *_settings(attention), type_)
            kv.inherit(new.operation, attention)
        else:
            new = kv.SelfAttention(new_query, row, values, None, *_settings(attention), type_)
        _note_parts(attention, new)
        out = product(new.out, latent.value.matrix(), value.type.shape[3], transposed=True)
    attention.results[0].replace_all_uses_with(out)
    _erase(attention)


def _note(attention: ir.Operation, latent: _Latent) -> None:
    """Rewrite attention of a prefill layer to `kv.latent_attention`, which caches latent rows."""
    with ir.InsertionPoint(attention), attention.location:
        operands = attention.operands[0], _row(attention, latent), latent.key.matrix(), latent.value.matrix()
        first = i64_attr(latent.first)
        new = kv.LatentAttention(*operands, *_settings(attention), first, attention.results[0].type)
        _note_parts(attention, new)
    attention.results[0].replace_all_uses_with(new.out)
    _erase(attention)


def _note_parts(attention: ir.Operation, new: Any) -> None:
    """Record that all ranks have the latent row, which all heads share, if heads are sharded over ranks."""
    if kv.head_parts_of(attention) is not None:
        kv.note_head_parts(new.operation, 1)


def _erase(op: ir.Operation) -> None:
    """Erase an operation, and operations that only it used."""
    before = [item.operation for item in op.block.operations]
    needed = list(op.operands)
    place = before.index(op)
    op.erase()
    for source in reversed(before[:place]):
        if any(value in needed for value in source.results):
            operands = list(source.operands)
            if not any(True for result in source.results for _ in result.uses):
                source.erase()
                needed += operands


def _settings(attention: ir.Operation) -> list[ir.Attribute]:
    return [attention.attributes[name] for name in ("layer", "scale")]


def _row(attention: ir.Operation, latent: _Latent) -> ir.Value:
    """Return the cached row of each position, [B, 1, S, r + p]."""
    slots, _, tokens, _ = attention.operands[0].type.shape
    parts = [_with_shape(latent.key.rows, [slots, 1, tokens, latent.depth])]
    widths = [width for width, is_product in latent.parts if not is_product]
    parts += [_with_shape(v, [slots, 1, tokens, width]) for v, width in zip(latent.shared, widths, strict=True)]
    return joined(parts)


def _with_shape(value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """Return `value` with its unit dimensions at other positions."""
    plain = [size for size in value.type.shape if size != 1]
    squeezed = value if len(plain) == value.type.rank or not plain else reshape(value, plain)
    return reshape(squeezed, shape)
