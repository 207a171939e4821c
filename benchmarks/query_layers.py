"""Loss by layers and heads when each decode step's query selects the rows that it attends to.

    python benchmarks/query_layers.py [--topk 108] [--bits 2] [--group 3] [--examples N]
      [--write docs/results/quality.md]

The inputs are windows of text as in the runs `smollm2-query-perplexity*` of quality.py: a prefilled part, and tokens
that each select rows. Selection is a mask over the attention of the window, so one forward pass of the model (eager,
f32) computes all decode steps. The model runs with selection in all layers, in one group of layers only, and in none,
to find the loss of each in nats. With selection in all layers, the mean share of each head's softmax on unselected rows
is measured, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedModel

if __package__ is None or __package__ == "":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.quality import essays, model
from benchmarks.table import replace_block
from sscc.compiler.frontend.algorithm import PLAIN, Softmax, causal_attention
from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.compiler.frontend.construction import build_model
from sscc.compiler.frontend.operator import IMPLEMENTATION, context_limit, observing
from sscc.compiler.frontend.query_selection import choose, exact_logits, masses, quantize_keys
from sscc.compiler.tools.quality.example import Example
from sscc.compiler.tools.quality.perplexity import perplexity_examples
from sscc.ir.geometry import Geometry, Span

SHOWN = 6
"""Number of layers and heads with the largest missed share in the report."""


@dataclass
class Choosing:
    """An attention observer with which the last `scored` positions of some layers attend only to rows that they select.

    Attributes:
        g: sinks, ring and number of selected rows.
        bits: bits per element of a quantized key.
        scored: number of positions that select.
        layers: layers that select.
        missed: mean share of the softmax on unselected rows, [H] per call, by layer.
    """

    g: Geometry
    bits: int
    scored: int
    layers: Collection[int]
    missed: dict[int, list[Tensor]] = field(default_factory=dict)

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float, window: Span, softmax: Softmax
    ) -> Tensor:
        assert softmax == PLAIN, "the measured model has a plain softmax"
        out = causal_attention(q[0], k[0], v[0], scale, window)
        if layer in self.layers:
            out[:, -self.scored :] = self._choose(q, k, v, layer, scale)
        return out[None]

    def _choose(self, q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float) -> Tensor:
        """Return the attention of the last positions, each as a separate sequence: [H, scored, Dv]."""
        count, g = k.shape[2], self.g
        queries = q[0, :, -self.scored :].transpose(0, 1)
        live = torch.arange(count - self.scored + 1, count + 1)
        chosen = choose(masses(queries, k, quantize_keys(k, self.bits), live, scale, g), g)
        position, end = torch.arange(count), live[:, None]
        always = (position < g.sink) | ((position >= end - g.recent) & (position < end))
        among = torch.zeros(*chosen.shape[:2], count + 1, dtype=torch.bool)
        among.scatter_(2, torch.where(chosen < 0, count, chosen), True)
        seen = (always[:, None] | among[:, :, :count])[:, :, None]
        logits = exact_logits(queries, k, scale).masked_fill((position >= end)[:, None, None], float("-inf"))
        missed = (logits.softmax(-1) * ~seen).sum(-1)
        self.missed.setdefault(layer, []).append(missed.mean(0).flatten())
        weights = logits.masked_fill(~seen, float("-inf")).softmax(-1)
        return (weights @ v).flatten(1, 2).transpose(0, 1)


def loss(decoder: PreTrainedModel, example: Example, observer: Choosing) -> float:
    """Return the nats per token of the continuation of a window."""
    tokens = torch.tensor([[*example.prompt, *example.continuation]])
    # The last prompt token, which is no decode step and attends to all rows, predicts the first token.
    with torch.no_grad(), observing(observer), context_limit(tokens.shape[1]):
        logits = decoder(input_ids=tokens, use_cache=False, logits_to_keep=len(example.continuation) + 1).logits
    return float(torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, -len(example.continuation) :]))


def load(path: Path) -> tuple[PreTrainedModel, Tokenizer]:
    """Return a checkpoint as an f32 model that uses sscc's attention operator, and its tokenizer."""
    checkpoint = open_checkpoint(path)
    assert checkpoint.config is not None
    decoder = build_model(checkpoint.config, torch.float32)
    weights = {name: checkpoint.tensor(name).float() for name in checkpoint.names()}
    decoder.load_state_dict(weights, strict=False, assign=True)
    decoder.tie_weights()
    decoder.set_attn_implementation(IMPLEMENTATION)
    return decoder, Tokenizer.from_str(checkpoint.tokenizer["tokenizer.json"].decode())


def report(differences: dict[str, Tensor], missed: Tensor) -> str:
    """Return Markdown: the loss in nats per token by group of layers, and the layers and heads with the largest share
    on unselected rows."""
    rows = ["| layers that select | nats per token above all rows |", "| --- | ---: |"]
    for name, values in differences.items():
        error = values.std() / len(values) ** 0.5
        rows.append(f"| {name} | {values.mean():+.4f} +- {error:.4f} |")
    layers = missed.mean(1)
    worst = ", ".join(f"{layer} ({layers[layer]:.1%})" for layer in layers.argsort(descending=True)[:SHOWN].tolist())
    heads = [divmod(place, missed.shape[1]) for place in missed.flatten().argsort(descending=True)[:SHOWN].tolist()]
    named = ", ".join(f"{layer}.{head} ({missed[layer, head]:.1%})" for layer, head in heads)
    return "\n".join(
        [
            *rows,
            "",
            f"Share of the softmax on unselected rows: mean of all heads {missed.mean():.1%}; largest in layers "
            f"{worst}; heads (layer.head) {named}.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the loss of selection by layers and heads.")
    parser.add_argument("--topk", type=int, default=108, help="selected rows of a step, besides sinks and ring")
    parser.add_argument("--recent", type=int, default=16)
    parser.add_argument("--bits", type=int, default=2)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--scored", type=int, default=128)
    parser.add_argument("--group", type=int, default=3, help="number of adjacent layers that select together")
    parser.add_argument("--examples", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the table in a Markdown page")
    words = parser.parse_args()
    torch.set_num_threads(words.threads)
    decoder, tokenizer = load(model("smollm2"))
    count = decoder.config.num_hidden_layers
    context = words.length + words.scored
    geometry = Geometry(4, words.recent, words.topk, obs=1, pool=1, pool_mode="avg", max_context=context)
    sets: dict[str, Collection[int]] = {"all": range(count)}
    sets |= {
        f"{first} to {min(first + words.group, count) - 1}": range(first, min(first + words.group, count))
        for first in range(0, count, words.group)
    }
    differences: dict[str, list[float]] = {name: [] for name in sets}
    missed = []
    text = essays()
    windows = perplexity_examples(text.read_text(), str(text), [words.length], words.scored, words.examples, tokenizer)
    for example in windows:
        whole = loss(decoder, example, Choosing(geometry, words.bits, words.scored, ()))
        for name, layers in sets.items():
            observer = Choosing(geometry, words.bits, words.scored, layers)
            differences[name].append(loss(decoder, example, observer) - whole)
            if name == "all":
                missed.append(torch.stack([observer.missed[layer][0] for layer in range(count)]))
        print(f"{example.index + 1} of {words.examples}", file=sys.stderr)
    table = report({name: torch.tensor(values) for name, values in differences.items()}, torch.stack(missed).mean(0))
    print(table)
    if words.write is not None:
        words.write.write_text(replace_block(words.write.read_text(), "query-layers", table))


if __name__ == "__main__":
    main()
