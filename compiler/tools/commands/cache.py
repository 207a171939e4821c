"""`sscc cache`: list and removal of the files in sscc's cache folder."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from sscc.compiler.tools.commands.parser import CommonOptions, Parser
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.option import option
from sscc.ir.sizes import format_bytes
from sscc.ir.terminal import listing

KINDS = {
    "models": "artifacts of models that commands compiled",
    "weights": "weights packed for native code",
    "native": "native code of schedules",
    "checkpoints": "paths of the checkpoints that artifacts refer to",
}
"""Folders of the cache and their contents. Removed files are created again when a command needs them."""
_DAY = 24 * 3600


class CacheCommandErrors(ErrorKind):
    UNKNOWN = UsageError, "--clear must be one of {known} or all, got {name!r}"


@dataclass(frozen=True)
class CacheOptions:
    """Options of the cache."""

    clear: tuple[str, ...] | None = option(
        None, f"remove files of these kinds: {', '.join(KINDS)} (all without a name); commands create them again",
        "KIND", words=True, optional_value=(),
    )  # fmt: skip


def add_arguments(parser: Parser) -> None:
    parser.add_options(CacheOptions)
    parser.add_options(CommonOptions, ["json"])


def main(args: argparse.Namespace) -> int:
    from sscc.compiler.driver.model_cache import cached_models, clear, folder_bytes
    from sscc.runtime.support.user_cache import cache_folder

    if args.clear is not None:
        freed = clear(_kinds(args.clear))
        print(json.dumps({"freed_bytes": freed}) if args.json else f"freed {format_bytes(freed)}")
        return 0
    models, sizes = list(cached_models()), {kind: folder_bytes(kind) for kind in KINDS}
    if args.json:
        found = {"folder": str(cache_folder()), "bytes": sizes, "models": [asdict(model) for model in models]}
        print(json.dumps(found))
        return 0
    lines = [f"{cache_folder()}: {format_bytes(sum(sizes.values()))}"]
    lines += [f"  {kind:12} {format_bytes(size):>10}  {KINDS[kind]}" for kind, size in sizes.items()]
    for model in models:
        options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in model.options.items())
        size, name = format_bytes(model.nbytes), Path(model.model).name
        lines.append(f"{name:40} {size:>10}  {_ago(model.used)}  {options}".rstrip())
    print(listing(lines))
    return 0


def _kinds(names: list[str]) -> tuple[str, ...]:
    """Return the folders to clear. Raises UsageError for a kind that does not exist."""
    if not names or names == ["all"]:
        return tuple(KINDS)
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise CacheCommandErrors.UNKNOWN(name=unknown[0], known=list(KINDS))
    return tuple(names)


def _ago(used: float) -> str:
    days = int(max(time.time() - used, 0) // _DAY)
    return "used today" if days == 0 else f"used {days} day{'' if days == 1 else 's'} ago"
