"""Latent rows in plain torch: the rows from which a model's heads compute keys and values, found while the model runs.

In multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) keys and values of all heads are products of one row c
per position with weights, except for numbers s that all keys share::

    k[h] = [W_K[h] c | s]      v[h] = W_V[h] c

so that queries can be multiplied with the row itself, and attention sums rows::

    q[h] . k[h, t]             = [a W_K[h] | b] . [c[t] | s[t]]        for q[h] = [a | b]
    sum over t of P[t] v[h, t] = W_V[h] (sum over t of P[t] c[t])

For a policy such a layer has one KV head, whose keys are the rows [c | s] and whose values are c. This module shares
nothing with the pass that finds such rows in a captured graph: here a product belongs to K or V if its result contains
their columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sscc.ir.errors import ErrorKind, UnsupportedError


class LatentRowsErrors(ErrorKind):
    NO_LINEAR_LAYER = (
        UnsupportedError,
        "layer {layer} keeps latent rows, but its keys and values are not results of the model's linear layers: it "
        "cannot be run eagerly",
    )


@dataclass(frozen=True)
class LatentRows:
    """Latent rows of some positions, and the weights that compute keys and values from them.

    Attributes:
        rows: [1, n, r + p]: c, then s.
        k_up: [H, N, r], W_K of each head.
        v_up: [H, Dv, r], W_V of each head.
        first: first of the key columns computed from c; s are the other columns, in order.
    """

    rows: Tensor
    k_up: Tensor
    v_up: Tensor
    first: int

    @property
    def width(self) -> int:
        """r: length of the part of a row that is its value."""
        return int(self.k_up.shape[2])

    def heads(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys [H, n, D] and values [H, n, Dv] of rows [1, n, r + p] in the form of a cache; in f32 or wider."""
        wide = torch.promote_types(rows.dtype, torch.float32)
        latent, shared = rows.to(wide).tensor_split([self.width], 2)
        own, values = latent @ self.k_up.to(wide).mT, latent @ self.v_up.to(wide).mT
        in_front, behind = shared.expand(own.shape[0], -1, -1).tensor_split([self.first], 2)
        return torch.cat([in_front, own, behind], 2), values

    def absorbed(self, query: Tensor) -> Tensor:
        """Return queries [b, H, n, D] in the space of rows, [b, H, n, r + p]; in f32 or wider."""
        wide = torch.promote_types(query.dtype, torch.float32)
        in_front, own, behind = query.to(wide).tensor_split([self.first, self.first + self.k_up.shape[1]], 3)
        return torch.cat([own @ self.k_up.to(wide), in_front, behind], 3)

    def values(self, sums: Tensor) -> Tensor:
        """Return head outputs [b, H, n, Dv] from weighted sums of c [b, H, n, r]."""
        return sums @ self.v_up.to(sums.dtype).mT


@dataclass(frozen=True)
class _Product:
    """A product that a model computed: x [n, r] times weight [O, r] is y [n, O]."""

    x: Tensor
    weight: Tensor
    y: Tensor

    def columns(self, part: Tensor) -> int | None:
        """Return the first column of each head's part of K or V, [H, n, w], in the product; None if it is not there."""
        heads, count, width = part.shape
        if self.y.shape[0] != count or self.y.shape[1] % heads or self.y.dtype != part.dtype:
            return None
        of_heads = self.y.reshape(count, heads, -1).transpose(0, 1)
        starts = range(of_heads.shape[2] - width + 1)
        return next((first for first in starts if torch.equal(of_heads[..., first : first + width], part)), None)

    def up(self, heads: int, first: int, width: int) -> Tensor:
        """Return the weight of every head for some columns, [H, w, r]."""
        return self.weight.reshape(heads, -1, self.weight.shape[1])[:, first : first + width]


class Products:
    """The products with weights that a model computes while it runs."""

    def __init__(self) -> None:
        self._products: list[_Product] = []

    @contextmanager
    def of(self, model: Any) -> Iterator[None]:
        """Record the products of a model's linear modules inside the block."""
        modules = model.modules() if isinstance(model, torch.nn.Module) else ()
        hooks = [m.register_forward_hook(self._look) for m in modules if isinstance(m, torch.nn.Linear)]
        try:
            yield
        finally:
            self._products = []
            for hook in hooks:
                hook.remove()

    def _look(self, module: Any, inputs: tuple[Tensor, ...], y: Tensor) -> None:
        (x,) = inputs
        self._products.append(_Product(x.flatten(0, -2), module.weight, y.flatten(0, -2)))

    def latent_rows(self, k: Tensor, v: Tensor, layer: int) -> LatentRows:
        """Return the latent rows from which keys [1, H, n, D] and values [1, H, n, Dv] of the layer whose attention
        runs now were computed. Discards the products recorded so far.

        Raises:
            UnsupportedError: they are not results of the model's linear layers.
        """
        products, self._products = self._products, []
        keys, values, heads = k[0], v[0], k.shape[1]
        shared = (keys == keys[:1]).flatten(0, 1).all(0)
        own = (~shared).nonzero()[:, 0].tolist()
        for product in reversed(products):
            first_value = product.columns(values)
            if first_value is None or not own or own != list(range(own[0], own[-1] + 1)):
                continue
            # Keys may come from another product than values, but it must be one of the same rows.
            for other in reversed(products):
                first_key = other.columns(keys[..., own[0] : own[-1] + 1])
                if first_key is not None and torch.equal(other.x, product.x):
                    rows = torch.cat([product.x, keys[0][:, shared]], 1)[None]
                    k_up = other.up(heads, first_key, len(own))
                    return LatentRows(rows, k_up, product.up(heads, first_value, values.shape[2]), own[0])
        raise LatentRowsErrors.NO_LINEAR_LAYER(layer=layer)
