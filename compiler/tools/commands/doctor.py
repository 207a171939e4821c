"""`sscc doctor`: versions, CPU, memory and problems of the installation on this machine."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import shutil
from dataclasses import asdict, dataclass, field
from typing import Any

from packaging.requirements import Requirement

import sscc
from sscc.compiler.options.versions import version_of
from sscc.compiler.tools.commands.parser import CommonOptions, Parser
from sscc.ir.errors import ErrorKind, InternalError
from sscc.ir.extras import EXTRAS
from sscc.ir.sizes import format_bytes
from sscc.ir.terminal import listing

COMPILERS = ("c++", "g++", "clang++", "cc", "gcc", "clang")
LINKERS = ("ld", "ld.lld", "mold")
BANDWIDTH_BYTES = 256 << 20
BANDWIDTH_PASSES = 5


class DoctorErrors(ErrorKind):
    NO_BANDWIDTH = InternalError, "the measured memory bandwidth is not positive"


@dataclass(frozen=True)
class Diagnosis:
    """State of the installation and the machine. Sizes are in bytes, bandwidths in GB/s (1e9 bytes/s).

    Attributes:
        packages: versions of the packages that every command needs; None for a missing one.
        extras: versions of the packages of each extra, which only some commands need.
        native: facts of the native module and the machine; None if the module cannot be imported.
        problems: problems that need fixing; empty if sscc works.
    """

    sscc: str
    python: str
    system: str
    packages: dict[str, str | None]
    extras: dict[str, dict[str, str | None]]
    native: dict[str, Any] | None
    compilers: dict[str, str]
    linkers: dict[str, str]
    problems: list[str] = field(default_factory=list)


def add_arguments(parser: Parser) -> None:
    parser.add_options(CommonOptions, ["json"])


def main(args: argparse.Namespace) -> int:
    diagnosis = examine()
    print(json.dumps(asdict(diagnosis)) if args.json else listing(_lines(diagnosis)))
    return 1 if diagnosis.problems else 0


def examine() -> Diagnosis:
    """Return the diagnosis of this machine. The measurement of the memory bandwidth takes about half a second."""
    required = _required()
    packages = {item.name: version_of(item.name) for item in required if item.marker is None}
    problems = [f"the package {name} is not installed" for name, version in packages.items() if version is None]
    if not required:
        problems.append("sscc is on Python's path, but not installed: run pip install in its folder")
    problems += filter(None, map(_misfit, required))
    try:
        native: dict[str, Any] | None = _native()
    except ImportError as error:
        native = None
        problems.append(f"the native module cannot be imported: install sscc again with a C++ compiler ({error})")
    return Diagnosis(
        sscc=sscc.__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        packages=packages,
        extras={extra: {name: version_of(name) for name in of.values()} for extra, of in EXTRAS.items()},
        native=native,
        compilers=_found(COMPILERS),
        linkers=_found(LINKERS),
        problems=problems,
    )


def _required() -> list[Requirement]:
    """Return the requirements of the installed sscc, with those of the extras for users."""
    try:
        listed = [Requirement(text) for text in importlib.metadata.requires("sscc") or []]
    except importlib.metadata.PackageNotFoundError:
        return []
    extras = [{"extra": extra} for extra in EXTRAS]
    needed = [item for item in listed if item.marker is None or any(map(item.marker.evaluate, extras))]
    return [item for item in needed if item.name != "sscc"]  # an extra may include another extra


def _misfit(requirement: Requirement) -> str | None:
    """Return the problem of an installed package with a wrong version; None if it fits or is missing."""
    version = version_of(requirement.name)
    if version is None or requirement.specifier.contains(version, prereleases=True):
        return None
    return f"{requirement.name} is {version}, sscc needs {requirement.specifier}"


def _found(programs: tuple[str, ...]) -> dict[str, str]:
    paths = {name: shutil.which(name) for name in programs}
    return {name: path for name, path in paths.items() if path is not None}


def _native() -> dict[str, Any]:
    from sscc.runtime.support import _native as native
    from sscc.runtime.support.usable_memory import usable_memory

    threads = native.usable_threads()
    caches = native.cache_sizes()
    nbytes = min(max(BANDWIDTH_BYTES, 4 * caches.get("l3", 0)), usable_memory() // 8)
    bandwidth = {count: native.read_bandwidth(count, nbytes, BANDWIDTH_PASSES) for count in sorted({1, threads})}
    if min(bandwidth.values()) <= 0:
        raise DoctorErrors.NO_BANDWIDTH()
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
        *(f"extra      {name}: {_extra(name, packages)}" for name, packages in diagnosis.extras.items()),
        *(_native_lines(diagnosis.native) if diagnosis.native else ["native     missing"]),
        f"compilers  {', '.join(diagnosis.compilers.values()) or 'none found'}",
        f"linkers    {', '.join(diagnosis.linkers.values()) or 'none found'}",
    ]
    return lines + ([f"problem    {problem}" for problem in diagnosis.problems] or ["no problems found"])


def _extra(name: str, packages: dict[str, str | None]) -> str:
    missing = [package for package, version in packages.items() if version is None]
    if missing:
        lack = "not installed" if len(missing) == len(packages) else f"lacks {', '.join(missing)}"
        return f"{lack} (pip install 'sscc[{name}]')"
    return ", ".join(f"{package} {version}" for package, version in packages.items())


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
