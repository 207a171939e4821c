"""Eager execution of an unmodified model with a compressed cache, by the definitions in `algorithm` and
`query_selection`.

The compiled program is compared with it: prefill of the whole prompt at once (full causal attention, then every layer
is compressed), then one token at a time over the assembled caches. One sequence, no chunks, no batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Union

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.nn.functional import pad
from transformers import PreTrainedModel

from sscc.compiler.frontend import algorithm
from sscc.compiler.frontend.algorithm import Softmax
from sscc.compiler.frontend.latent_rows import Products
from sscc.compiler.frontend.operator import IMPLEMENTATION, Observer, context_limit, observing
from sscc.compiler.frontend.query_selection import (
    QuantizedKeys,
    choose,
    fetch_rows,
    masses,
    near_positions,
    quantize_keys,
    query_attention,
)
from sscc.compiler.frontend.recognition import IMPLEMENTATIONS
from sscc.compiler.frontend.rules import scores_by
from sscc.compiler.frontend.stateful import OperatorContext, computing
from sscc.compiler.options.policy import Rule
from sscc.ir.errors import ErrorKind, UnsupportedError, UsageError
from sscc.ir.geometry import Geometry, Span
from sscc.ir.layer_state.rows import selector_of
from sscc.ir.quantized_keys import check_bits

# ids [1, s] i64, positions [1, s] i64 -> logits [1, s' >= 1, V]; the last row belongs to the last token.
Forward = Callable[[Tensor, Tensor], Tensor]
NO_SOURCES: Mapping[int, int] = MappingProxyType({})
"""No layer reads the rows of another one."""
Model = Union[ExportedProgram, torch.nn.Module]  # a transformers model is a module


class EagerErrors(ErrorKind):
    EMPTY_PROMPT = UsageError, "the prompt must have at least 1 token, got 0"
    PROMPT_TOO_LONG = UsageError, "the prompt has {tokens} tokens, more than max-context {context}"
    NO_ATTENTION = UnsupportedError, "the model never calls sscc::attention: its attention cannot be compressed"
    NO_PREFILL = UsageError, "decode needs a prefill first"
    POSITION_OUTSIDE = UsageError, "position {position} is outside max-context {context}"
    LAYERS_OUT_OF_ORDER = (
        UnsupportedError,
        "the model calls {operator} for layer {layer} where layer {expected} was expected: layers must come in order, "
        "and call an operator once",
    )
    NO_FETCH = UsageError, "a step must fetch at least 1 row, got {rows}"
    TEXT_TOO_LONG = UsageError, "{prompt} prompt tokens and {tokens} new tokens exceed max-context {context}"
    OTHER_IMPLEMENTATION = (
        UnsupportedError,
        "the model runs attention implementation {used!r}: load it with attn_implementation={wanted!r}",
    )


class EagerSnapStream:
    """One sequence on one model, with a compressed cache per layer.

    Attributes:
        k_cache: per layer, [Hkv, R, D] of the model's dtype (f32 if rows are encoded); empty before `prefill`. A layer
            with latent rows has one KV head, whose keys are these rows; a layer without attention has no rows.
        v_cache: per layer, [Hkv, R, Dv]; for a layer with latent rows a view of the keys.
        selected: per layer, [Hkv, topk] i64, ascending; -1 if nothing is selected.
        position: absolute position of the next token.
        prompt_len: tokens of the prompt, which determine where the ring begins.
        geometries: per layer, the geometry of its rows: the requested one, or that of its window.
        attending: layers with attention.
        states: by layer and name, the rows [1, R, D] that operators other than attention keep.
        rows: by layer and name, rows of all positions that goldens do not record.

    A layer that reads the rows of another one has the very tensors of that layer.
    """

    def __init__(
        self,
        model: Model,
        geometry: Geometry,
        latent: Collection[int] = (),
        sources: Mapping[int, int] = NO_SOURCES,
        rule: Rule | None = None,
    ) -> None:
        """Wrap a model.

        Args:
            model: a transformers model loaded with ``attn_implementation="sscc"``, or an ExportedProgram (or any
                module) called as ``(ids, positions)`` that calls `sscc::attention` once per layer.
            geometry: cache geometry.
            latent: layers whose heads compute K and V from one cached row per position (`latent_rows`).
            sources: for each layer that shares the K and V of an earlier one, the earlier layer. The sharer keeps
                nothing, attends to the rows of the earlier layer, and does not take part in its selection (ours).
            rule: user's rule that scores prompts.

        Raises:
            UnsupportedError: a transformers model with another attention implementation.
        """
        self.geometry = geometry
        self.latent = latent
        self._rule = None if rule is None else scores_by(rule)
        self._model = model
        self._products = Products()
        self.sources = sources
        self._forward = forward_of(model)
        self.k_cache: list[Tensor] = []
        self.v_cache: list[Tensor] = []
        self.selected: list[Tensor] = []
        self.position = 0
        self.geometries: list[Geometry] = []
        self.attending: set[int] = set()
        self.states: dict[tuple[int, str], Tensor] = {}
        self.rows: dict[tuple[int, str], Tensor] = {}
        self.prompt_len = 0

    def prefill(self, prompt: Sequence[int]) -> Tensor:
        """Start a new sequence with a prompt, and compress every layer.

        Returns:
            logits [V] of the last prompt token, from full causal attention.

        Raises:
            UsageError: an empty prompt, or one beyond max_context.
            UnsupportedError: the model does not call `sscc::attention` exactly once per layer, in order.
        """
        g, n = self.geometry, len(prompt)
        if n == 0:
            raise EagerErrors.EMPTY_PROMPT()
        if n > g.max_context:
            raise EagerErrors.PROMPT_TOO_LONG(tokens=n, context=g.max_context)
        self.k_cache, self.v_cache, self.selected, self.geometries = [], [], [], []
        self.attending, self.states = set(), {}
        self.position = self.prompt_len = n
        logits = self._run(self._prefill_layer, lambda operator: operator.prefilling(self), list(prompt), 0)
        if not self.attending and not self.rows:
            raise EagerErrors.NO_ATTENTION()
        return logits

    def decode(self, token: int, position: int | None = None) -> Tensor:
        """Feed one token over the compressed caches.

        Args:
            token: token id.
            position: position of the token; the next position if None. Position n - 1 replays the last prompt token
                through the compressed cache, which prefill's own logits do not use.

        Returns:
            logits [V].

        Raises:
            UsageError: no prefill yet, or a position beyond max_context.
        """
        at = self.position if position is None else position
        if not self.k_cache:
            raise EagerErrors.NO_PREFILL()
        if not 0 <= at < self.geometry.max_context:
            raise EagerErrors.POSITION_OUTSIDE(position=at, context=self.geometry.max_context)
        self.position = at + 1
        return self._run(self._decode_layer, lambda operator: operator.decoding(self), [token], at)

    def _decode_layer(
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float, window: Span, softmax: Softmax
    ) -> Tensor:
        if layer not in self.latent:
            return self._attend(q, k, v, layer, scale, softmax)
        latent = self._products.latent_rows(k, v, layer)
        rows = latent.rows[None]
        sums = self._attend(latent.absorbed(q), rows, rows[..., : latent.width], layer, scale, softmax)
        return latent.values(sums).to(q.dtype)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float, softmax: Softmax) -> Tensor:
        """Return the attention of a step, [1, H, 1, Dv], after storing its rows [1, Hkv, 1, ..]."""
        at, g = self.position - 1, self.geometries[layer]
        base = algorithm.base(self.prompt_len, g)
        row, valid = algorithm.row(at, base, g), algorithm.valid_rows(at, base, g)
        if layer not in self.sources:
            self._put(layer, row, k, v)
        out = algorithm.cached_attention(q[0, :, 0], self.k_cache[layer], self.v_cache[layer], valid, scale, softmax)
        return out[None, :, None]

    def _put(self, layer: int, row: int, k: Tensor, v: Tensor) -> None:
        """Store the rows of a step."""
        g = self.geometries[layer]
        self.k_cache[layer][:, row] = algorithm.stored(k[0, :, 0], g)
        if layer not in self.latent:  # latent layers have values that are views of the keys
            self.v_cache[layer][:, row] = algorithm.stored(v[0, :, 0], g)

    def _prefill_layer(
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float, window: Span, softmax: Softmax
    ) -> Tensor:
        if layer not in self.latent:
            keys, values = self._keep(q, k, v, layer, scale, window, softmax)
        else:
            latent = self._products.latent_rows(k, v, layer)
            rows = latent.rows[None]
            stored, _ = self._keep(
                latent.absorbed(q), rows, rows[..., : latent.width], layer, scale, window, softmax
            )
            keys, values = (k[0], v[0]) if torch.equal(stored, latent.rows) else latent.heads(stored)
        return algorithm.causal_attention(q[0], keys, values, scale, window, softmax)[None]

    def _keep(
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float, window: Span, softmax: Softmax
    ) -> tuple[Tensor, Tensor]:
        """Store the rows that a layer keeps of a prompt. Return the rows [Hkv, n, ..] that prefill attends to."""
        g = self._next_geometry(layer, window)
        if layer in self.sources:
            self._share(layer, self.sources[layer])
        else:
            rule = self._rule if g.selects else None
            k_rows, v_rows, selected = algorithm.compress(q[0], k[0], v[0], scale, g, softmax, rule)
            self.k_cache[layer], self.selected[layer] = k_rows, selected
            self.v_cache[layer] = k_rows[..., : v.shape[3]] if layer in self.latent else v_rows
        return k[0], v[0]

    def keep_state(self, layer: int, name: str, rows: Tensor) -> None:
        """See `sscc.compiler.frontend.eager_run.EagerRun`."""
        self._come_to(layer, (layer, name) in self.states, f"the operator of {name}")
        self.states[layer, name] = rows

    def state(self, layer: int, name: str) -> Tensor:
        """See `sscc.compiler.frontend.eager_run.EagerRun`."""
        return self.states[layer, name]

    def attends_beside(self, layer: int) -> None:
        """See `sscc.compiler.frontend.eager_run.EagerRun`."""
        self._come_to(layer, (layer, "k") in self.rows, "sscc::chosen_attention")

    def _come_to(self, layer: int, again: bool, operator: str) -> None:
        """Record the layer that is prefilled now.

        Args:
            again: True if the layer has called this operator before.

        Raises:
            UnsupportedError: `again`, or another layer was expected.
        """
        expected = len(self.geometries)
        if again or layer not in (expected - 1, expected):
            raise EagerErrors.LAYERS_OUT_OF_ORDER(operator=operator, layer=layer, expected=expected)
        if layer == expected:
            self._begin_layer()

    def _begin_layer(self) -> None:
        """Append a layer without rows."""
        self.geometries.append(self.geometry)
        self.selected.append(torch.empty((0, 0), dtype=torch.int64))
        for caches in (self.k_cache, self.v_cache):
            caches.append(torch.empty(0, 0, 0))

    def _next_geometry(self, layer: int, window: Span) -> Geometry:
        """Return and record the geometry of the layer that is prefilled now. Raises UnsupportedError."""
        self._come_to(layer, layer in self.attending, "sscc::attention")
        before = (self.geometries[number] for number in self.attending if number not in self.sources)
        if layer in self.sources:
            g = self.geometries[self.sources[layer]]
        elif window:
            g = self.geometry.windowed(window)
        else:
            g = self.geometry.of_layer(sum(not other.window for other in before))
        self.geometries[layer] = g
        self.attending.add(layer)
        return g

    def _share(self, layer: int, source: int) -> None:
        """Give a layer the rows of layer `source`."""
        for kept in (self.k_cache, self.v_cache, self.selected):
            kept[layer] = kept[source]

    @torch.no_grad()
    def _run(self, observer: Observer, others: OperatorContext, tokens: list[int], start: int) -> Tensor:
        positions = torch.arange(start, start + len(tokens))
        products = self._products.of(self._model if self.latent else None)
        with products, observing(observer), computing(others), context_limit(self.geometry.max_context):
            return self._forward(torch.tensor([tokens]), positions[None])[0, -1]


class EagerQuerySelection(EagerSnapStream):
    """One sequence on one model that keeps all rows; each step selects the rows that it attends to.

    Prefill attends to rows as they are stored, so that later results do not depend on how a row was written. Layers
    with a sliding window are as in `EagerSnapStream`: they keep their ring and select nothing.

    Attributes:
        k_cache: per layer the store, [Hkv, max_context, D] of the model's dtype (f32 if rows are encoded); for a layer
            with a sliding window its ring. v_cache likewise.
        selected: per layer the positions that the last step attended to, [Hkv, topk] i64, ascending, padded with -1;
            before any step -1, or with `fetch` the selection of the prompt's last query.
        quantized_keys: per layer, quantized keys of the store; None for a layer with a sliding window.
    """

    def __init__(
        self,
        model: Model,
        geometry: Geometry,
        bits: int,
        fetch: int | None = None,
        latent: Collection[int] = (),
        sources: Mapping[int, int] = NO_SOURCES,
    ) -> None:
        """Wrap a model as `EagerSnapStream` does.

        Args:
            geometry: sinks, ring, and number of rows that a step selects; `obs` and pooling are not used.
            bits: bits per number of a quantized key: 1, 2, 4 or 16.
            fetch: maximum number of rows that a step copies from slow memory per KV head, at least 1; None for no
                limit.
            latent: as for `EagerSnapStream`. All heads of such a layer select together.
            sources: as for `EagerSnapStream`. A sharer selects separately, by its own query and the other layer's
                quantized keys.

        Raises:
            UsageError: another number of bits; in `prefill`, heads whose quantized keys do not fill whole bytes.
            UnsupportedError: as for `EagerSnapStream`.
        """
        super().__init__(model, geometry, latent, sources)
        if fetch is not None and fetch < 1:
            raise EagerErrors.NO_FETCH(rows=fetch)
        self.bits = bits
        self.fetch = fetch
        self.quantized_keys: list[QuantizedKeys | None] = []

    def prefill(self, prompt: Sequence[int]) -> Tensor:
        self.quantized_keys = []
        return super().prefill(prompt)

    def _begin_layer(self) -> None:
        super()._begin_layer()
        self.quantized_keys.append(None)

    def _keep(
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float, window: Span, softmax: Softmax
    ) -> tuple[Tensor, Tensor]:
        if window:
            return super()._keep(q, k, v, layer, scale, window, softmax)
        g = self._next_geometry(layer, window)
        check_bits(self.bits, k.shape[-1])
        if layer in self.sources:
            source = self.sources[layer]
            self._share(layer, source)
            self.quantized_keys[layer] = self.quantized_keys[source]
            return self.k_cache[source][:, : self.prompt_len], self.v_cache[source][:, : self.prompt_len]
        k_rows = algorithm.stored(k[0], g)
        room = g.max_context - self.prompt_len
        self.k_cache[layer] = pad(k_rows, (0, 0, 0, room))
        if layer in self.latent:
            v_rows, v_cache = k_rows[..., : v.shape[3]], self.k_cache[layer][..., : v.shape[3]]
        else:
            v_rows = algorithm.stored(v[0], g)
            v_cache = pad(v_rows, (0, 0, 0, room))
        self.v_cache[layer] = v_cache
        quantized_keys = quantize_keys(k[0], self.bits)
        levels, row_scales = pad(quantized_keys.levels, (0, 0, 0, room)), pad(quantized_keys.scale, (0, room))
        self.quantized_keys[layer] = QuantizedKeys(levels, row_scales, self.bits)
        chosen = torch.full((k.shape[1], g.topk), -1)
        if self.fetch is not None:
            chosen = choose(self._masses(q[:, :, -1], layer, scale, softmax), g)[0]
        self.selected[layer] = chosen
        return k_rows, v_rows

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float, softmax: Softmax) -> Tensor:
        quantized_keys, n, g = self.quantized_keys[layer], self.position, self.geometries[layer]
        if quantized_keys is None:
            return super()._attend(q, k, v, layer, scale, softmax)
        if layer not in self.sources:
            newest = quantize_keys(k[0, :, 0], self.bits)
            quantized_keys.levels[:, n - 1], quantized_keys.scale[:, n - 1] = newest.levels, newest.scale
            self._put(layer, n - 1, k, v)
        query = q[:, :, 0]
        weights = self._masses(query, layer, scale, softmax)
        limit, resident = self.fetch, self.selected[layer][None]
        chosen = choose(weights, g) if limit is None else fetch_rows(resident, weights, limit, g)
        self.selected[layer] = chosen[0]
        keys, values = self.k_cache[layer][None, :, :n], self.v_cache[layer][None, :, :n]
        return query_attention(query, keys, values, chosen, torch.tensor([n]), scale, g, softmax)[:, :, None]

    def _masses(self, query: Tensor, layer: int, scale: float, softmax: Softmax) -> Tensor:
        """Return the weights of a layer's positions for the query [1, H, D] of the newest position: [1, Hkv, n]."""
        n, quantized_keys = self.position, self.quantized_keys[layer]
        assert quantized_keys is not None
        seen = QuantizedKeys(quantized_keys.levels[None, :, :n], quantized_keys.scale[None, :, :n], self.bits)
        keys = self.k_cache[layer][None, :, :n]
        return masses(query, keys, seen, torch.tensor([n]), scale, self.geometries[layer], softmax)


def make_golden(
    model: Model,
    geometry: Geometry,
    prompt: Sequence[int],
    new_tokens_count: int,
    latent: Collection[int] = (),
    sources: Mapping[int, int] = NO_SOURCES,
    rule: Rule | None = None,
) -> tuple[list[int], list[int], dict[str, Tensor]]:
    """Generate greedily and record every tensor that a compiled program can be compared with.

    Args:
        model: as for `EagerSnapStream`.
        geometry: cache geometry.
        prompt: token ids.
        new_tokens_count: number of tokens to generate; all of them are also fed back.
        latent, sources, rule: as for `EagerSnapStream`.

    Returns:
        prompt: the prompt as a list.
        new_tokens: [new_tokens_count] greedy tokens; the first comes from ``prefill_logits``.
        tensors: in execution order ``k_cache.0``, ``v_cache.0``, ``selected.0`` (absent if topk is 0), .. after
            prefill, ``prefill_logits`` [V], then ``logits.s`` [V] after feeding ``new_tokens[s]`` at position
            ``len(prompt) + s``. For layers whose queries select, ``k_cache.0`` has sinks and ring, and ``k_store.0``,
            ``v_store.0`` [Hkv, len(prompt), D] replace ``selected.0``. Layers with latent rows have ``latent_cache.0``
            and ``latent_store.0``. Layers that read another layer's rows have none of these.

    Raises:
        UsageError: prompt and new tokens together exceed max_context.
    """
    if len(prompt) + new_tokens_count > geometry.max_context:
        raise EagerErrors.TEXT_TOO_LONG(
            prompt=len(prompt), tokens=new_tokens_count, context=geometry.max_context
        )
    selector = selector_of(geometry)
    run = EagerSnapStream(model, geometry, latent, sources, rule)
    if selector.keeps_quantized_keys:
        run = EagerQuerySelection(model, geometry, selector.key_bits, selector.fetch, latent, sources)
    logits = run.prefill(prompt)
    tensors: dict[str, Tensor] = {}
    for layer in sorted(run.attending - sources.keys()):
        g, keys = run.geometries[layer], run.k_cache[layer]
        caches = {"latent": keys} if layer in latent else {"k": keys, "v": run.v_cache[layer]}
        if selector_of(g).keeps_quantized_keys:
            stores = {kind: store[:, : len(prompt)] for kind, store in caches.items()}
            near = near_positions(len(prompt), keys.shape[0], g)
            caches = {kind: algorithm.assemble(store, near) for kind, store in stores.items()}
        tensors |= {f"{kind}_cache.{layer}": cache.clone() for kind, cache in caches.items()}
        if selector_of(g).keeps_quantized_keys:
            tensors |= {f"{kind}_store.{layer}": store.clone() for kind, store in stores.items()}
        elif g.topk:
            tensors[f"selected.{layer}"] = run.selected[layer]
    tensors |= {f"{name}_cache.{layer}": rows.clone() for (layer, name), rows in run.states.items()}
    tensors["prefill_logits"] = logits.clone()
    new_tokens: list[int] = []
    for step in range(new_tokens_count):
        new_tokens.append(int(logits.argmax()))
        logits = run.decode(new_tokens[-1])
        tensors[f"logits.{step}"] = logits.clone()
    return list(prompt), new_tokens, tensors


def plain_forward(module: torch.nn.Module) -> Forward:
    """Return a module as a function (ids, positions) of logits; it may return a tuple that begins with them."""

    def forward(ids: Tensor, positions: Tensor) -> Tensor:
        out: Any = module(ids, positions)
        logits: Tensor = out[0] if isinstance(out, (tuple, list)) else out
        return logits

    return forward


def forward_of(model: Model) -> Forward:
    """Return the forward function of any kind of model."""
    if not isinstance(model, PreTrainedModel):
        return plain_forward(model.module() if isinstance(model, ExportedProgram) else model)
    used = model.config._attn_implementation
    if used not in IMPLEMENTATIONS:
        raise EagerErrors.OTHER_IMPLEMENTATION(used=used, wanted=IMPLEMENTATION)
    return model_forward(model, slice(-1, None))


def model_forward(model: torch.nn.Module, kept: slice) -> Forward:
    """Return a transformers model as a function of ids and positions, which returns the logits of the tokens `kept`, or
    of every token if the model cannot leave any out."""
    keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def forward(ids: Tensor, positions: Tensor) -> Tensor:
        # Indices instead of a count: with a count, layers that share K and V drop the other queries, which changes
        # their attention.
        keep = {"logits_to_keep": torch.arange(ids.shape[1])[kept]} if keeps else {}
        logits: Tensor = model(input_ids=ids, position_ids=positions, use_cache=False, **keep).logits
        return logits

    return forward
