"""Install peers, each into its own environment in `.peers`, which git ignores.

    python benchmarks/peers/install.py NAME ..      (names: see --help; `all` for every peer)

llama.cpp is built from the source distribution of llama-cpp-python, which takes some minutes and needs a C++ compiler,
cmake and ninja. The others are wheels. Their torch should be the CPU build, see README.md. Installed peers are skipped;
to install one again, remove `.peers/NAME`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

if __package__ is None or __package__ == "":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.peers.registry import FOLDER, PEERS, Peer

LLAMA_TOOLS = (
    "llama-bench",
    "llama-batched-bench",
    "llama-completion",
    "llama-perplexity",
    "llama-quantize",
    "llama-server",
)
LLAMA_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)


def install(peer: Peer, jobs: int) -> None:
    """Create the environment of a peer. Raises subprocess.CalledProcessError if a step fails."""
    path = FOLDER / peer.environment
    if (path / "installed").exists():
        print(f"{peer.name} is installed in {path}")
        return
    if not peer.python.exists():
        subprocess.run([sys.executable, "-m", "venv", path], check=True)
    pip = [str(peer.python), "-m", "pip", "--disable-pip-version-check"]
    if peer.environment == "llama":
        build_llama(path, pip, peer.packages[0], jobs)
    else:
        subprocess.run([*pip, "install", "--quiet", *peer.packages], check=True)
        if peer.bare:
            subprocess.run([*pip, "install", "--quiet", "--no-deps", *peer.bare], check=True)
    (path / "installed").write_text("\n".join((*peer.packages, *peer.bare)) + "\n")


def build_llama(path: Path, pip: list[str], package: str, jobs: int) -> None:
    """Build llama.cpp's tools for this machine from the copy in a source distribution."""
    source, build = path / "source", path / "build"
    if not source.exists():
        name = package.partition("=")[0]
        subprocess.run([*pip, "download", "--quiet", "--no-deps", "--no-binary", name, "-d", path, package], check=True)
        partial = path / "source.partial"
        shutil.rmtree(partial, ignore_errors=True)
        with tarfile.open(next(path.glob("*.tar.gz"))) as archive:
            archive.extractall(partial, filter="data")
        partial.rename(source)
    (project,) = source.glob("*/vendor/llama.cpp")
    subprocess.run(["cmake", "-S", project, "-B", build, "-G", "Ninja", *LLAMA_OPTIONS], check=True)
    subprocess.run(["cmake", "--build", build, "--parallel", str(jobs), "--target", *LLAMA_TOOLS], check=True)


def main() -> None:
    peers = {peer.environment: peer for peer in PEERS if peer.environment}
    parser = argparse.ArgumentParser(description="Install the peers of sscc's benchmarks.")
    parser.add_argument("names", nargs="+", choices=["all", *peers], metavar="NAME", help=", ".join(["all", *peers]))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="jobs of the C++ build (all processors)")
    words = parser.parse_args()
    for name in peers if "all" in words.names else words.names:
        install(peers[name], words.jobs)


if __name__ == "__main__":
    main()
