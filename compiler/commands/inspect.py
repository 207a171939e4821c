"""`sscc inspect`: what an artifact is, and what a decode step moves, read off its schedule."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sscc.compiler.units import format_bytes

if TYPE_CHECKING:
    from sscc.runtime.inspection import Inspection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", type=Path, metavar="OUT.rdu", help="what `sscc compile` wrote")
    parser.add_argument("--json", action="store_true", help="one object, for programs; bytes as integers")


def main(args: argparse.Namespace) -> int:
    from sscc.runtime.artifact import Artifact
    from sscc.runtime.inspection import inspect_artifact

    found = inspect_artifact(Artifact.load(args.artifact))
    if args.json:
        print(json.dumps(asdict(found)))
    else:
        print("\n".join(_lines(found)))
    return 0


def _lines(i: Inspection) -> Iterator[str]:
    s, g = i.signature, i.signature.geometry
    heads = f"{s.heads}/{s.kv_heads} heads of {s.head_dim}"
    yield f"model      {i.model}: {s.layers} layers, {heads}, {s.vocab_size} tokens"
    yield f"program    {i.target}, {s.dtype}, batch {s.batch}, prefill chunk {s.prefill_chunk}"
    parts = f"sink {g.sink} + recent {g.recent} + topk {g.topk}"
    yield f"cache      {g.budget} rows = {parts}, for {g.max_context} tokens"
    yield f"selection  observation window {g.obs}, {g.pool_mode} pool {g.pool}"
    yield (
        f"KV         {format_bytes(i.kv_bytes)} a sequence, {format_bytes(i.full_kv_bytes)} uncompressed "
        f"({i.full_kv_bytes / i.kv_bytes:.1f}x)"
    )
    yield f"kernels    {i.kernels}: {', '.join(f'{count} {kind}' for kind, count in i.stages.items())}"
    yield f"launches   {i.launches_per_token} per decode step, {i.prefill_launches} in prefill's body"
    yield (
        f"memory     weights {format_bytes(i.weight_bytes)}, states {format_bytes(i.state_bytes)}, "
        f"temporaries {format_bytes(i.temporary_bytes)}"
    )
    if i.hbm_bytes > i.hbm_capacity_bytes:
        yield f"HBM        {format_bytes(i.hbm_bytes)} do not fit into {format_bytes(i.hbm_capacity_bytes)}"
    else:
        yield f"HBM        {format_bytes(i.hbm_bytes)} of {format_bytes(i.hbm_capacity_bytes)}"
    moved, floor = i.decode_traffic_bytes, i.decode_floor_bytes
    yield (
        f"decode     moves {format_bytes(moved)} a step, at least {format_bytes(floor)} "
        f"(weights and caches once): {moved / floor:.2f}x"
    )
    yield (
        f"bound      {_duration(i.decode_floor_seconds)} a step by HBM bandwidth alone, "
        f"{_duration(i.full_cache_floor_seconds)} with full caches of {g.max_context} tokens"
    )


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.4g} us"
