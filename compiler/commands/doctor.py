"""`sscc doctor`: what sscc finds on this machine."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import shutil
from dataclasses import asdict, dataclass, field
from typing import Any

import sscc
from sscc.ir.errors import InternalError
from sscc.ir.sizes import format_bytes

PACKAGES = ("torch", "torch-mlir", "transformers", "safetensors", "tokenizers", "gguf", "jinja2", "numpy", "ml_dtypes")
EXTRAS = {
    "serve": ("fastapi", "uvicorn", "prometheus-client"),
    "eval": ("matplotlib", "tqdm"),
    "completion": ("shtab",),
}
"""Packages that only one command needs, by the extra that installs them."""
COMPILERS = ("c++", "g++", "clang++", "cc", "gcc", "clang")
LINKERS = ("ld", "ld.lld", "mold")
BANDWIDTH_BYTES = 256 << 20
BANDWIDTH_PASSES = 5


@dataclass(frozen=True)
class Diagnosis:
    """Sizes in bytes, bandwidth in GB/s (1e9 bytes/s); `problems` is empty on a machine where sscc works."""

    sscc: str
    python: str
    system: str
    packages: dict[str, str | None]
    extras: dict[str, dict[str, str | None]]
    native: dict[str, Any] | None
    compilers: dict[str, str]
    linkers: dict[str, str]
    problems: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def main(args: argparse.Namespace) -> int:
    diagnosis = examine()
    print(json.dumps(asdict(diagnosis)) if args.json else "\n".join(_lines(diagnosis)))
    return 1 if diagnosis.problems else 0


def examine() -> Diagnosis:
    """Looks at the machine; reading memory for its bandwidth takes about half a second."""
    packages = {name: _version(name) for name in PACKAGES}
    problems = [f"the package {name} is not installed" for name, version in packages.items() if version is None]
    problems += _unpinned(packages)
    try:
        native: dict[str, Any] | None = _native()
    except ImportError as error:
        native = None
        problems.append(f"the native module cannot be imported, install sscc again with a C++ compiler ({error})")
    return Diagnosis(
        sscc=sscc.__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        packages=packages,
        extras={extra: {name: _version(name) for name in names} for extra, names in EXTRAS.items()},
        native=native,
        compilers=_found(COMPILERS),
        linkers=_found(LINKERS),
        problems=problems,
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _unpinned(packages: dict[str, str | None]) -> list[str]:
    """Packages of another version than the one sscc pins exactly."""
    try:
        required = importlib.metadata.requires("sscc") or []
    except importlib.metadata.PackageNotFoundError:
        return ["sscc itself is not installed, it only lies on Python's path"]
    problems = []
    for requirement in required:
        name, exact, pin = requirement.partition(";")[0].partition("==")
        version = packages.get(name.strip())
        if exact and version is not None and version.partition("+")[0] != pin.strip():
            problems.append(f"{name.strip()} is {version}, sscc needs {pin.strip()}")
    return problems


def _found(programs: tuple[str, ...]) -> dict[str, str]:
    paths = {name: shutil.which(name) for name in programs}
    return {name: path for name, path in paths.items() if path is not None}


def _native() -> dict[str, Any]:
    from sscc.runtime import _native as native

    threads = native.usable_threads()
    caches = native.cache_sizes()
    memory = min(native.total_memory(), native.memory_limit() or native.total_memory())
    nbytes = min(max(BANDWIDTH_BYTES, 4 * caches.get("l3", 0)), memory // 8)
    bandwidth = {count: native.read_bandwidth(count, nbytes, BANDWIDTH_PASSES) for count in sorted({1, threads})}
    if min(bandwidth.values()) <= 0:
        raise InternalError("the measured memory bandwidth is not positive")
    return {
        "compiler": native.compiler,
        "architecture": native.architecture(),
        "features": native.cpu_features(),
        "threads": threads,
        "affinity_threads": native.affinity_threads(),
        "cpu_quota": native.cpu_quota(),
        "caches": caches,
        "page_size": native.page_size(),
        "total_memory": native.total_memory(),
        "memory_limit": native.memory_limit(),
        "bandwidth_bytes": nbytes,
        "bandwidth_gb_per_second": {str(count): round(value, 2) for count, value in bandwidth.items()},
    }


def _lines(diagnosis: Diagnosis) -> list[str]:
    versions = [f"{name} {version or 'missing'}" for name, version in diagnosis.packages.items()]
    lines = [
        f"sscc       {diagnosis.sscc}, Python {diagnosis.python}, {diagnosis.system}",
        f"packages   {', '.join(versions)}",
        f"extras     {'; '.join(_extra(name, is_installed) for name, is_installed in diagnosis.extras.items())}",
        *(_native_lines(diagnosis.native) if diagnosis.native else ["native     missing"]),
        f"compilers  {', '.join(diagnosis.compilers.values()) or 'none found'}",
        f"linkers    {', '.join(diagnosis.linkers.values()) or 'none found'}",
    ]
    return (
        lines + [f"problem    {problem}" for problem in diagnosis.problems] + ["all is well"] * (not diagnosis.problems)
    )


def _extra(name: str, packages: dict[str, str | None]) -> str:
    if None in packages.values():
        return f"{name} not installed (pip install 'sscc[{name}]')"
    return f"{name}: {', '.join(f'{package} {version}' for package, version in packages.items())}"


def _native_lines(native: dict[str, Any]) -> list[str]:
    quota = "no CPU quota" if native["cpu_quota"] is None else f"a quota of {native['cpu_quota']:g} CPUs"
    limit = "" if native["memory_limit"] is None else f", limited to {format_bytes(native['memory_limit'])}"
    caches = [f"{name.upper()} {format_bytes(nbytes)}" for name, nbytes in native["caches"].items()]
    speeds = [f"{speed} GB/s with {count} thread(s)" for count, speed in native["bandwidth_gb_per_second"].items()]
    return [
        f"native     built by {native['compiler']}",
        f"cpu        {native['architecture']}: {' '.join(native['features']) or 'no vector extensions known'}",
        f"threads    {native['threads']} usable: {native['affinity_threads']} in the affinity mask, {quota}",
        f"caches     {', '.join(caches) or 'unknown'}",
        f"memory     {format_bytes(native['total_memory'])}{limit}, pages of {format_bytes(native['page_size'])}",
        f"reads      {', '.join(speeds)} (buffer of {format_bytes(native['bandwidth_bytes'])})",
    ]
