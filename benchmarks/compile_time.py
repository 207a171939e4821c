"""How long compilation takes, part by part, for models too large to load here: from their configs, no weights.

    python benchmarks/compile_time.py [CONFIG.json ..]      (default: all of benchmarks/configs)

Each model is compiled in a process of its own. Prints wall seconds (capture, import, each pass, emission,
writing; the rest is imports of torch and opening), peak memory of the process, and the size of the schedule.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).parent / "configs"
PARTS = ("capture", "import_capture", "emit_program", "write_artifact")


def measure(config: Path) -> dict[str, Any]:
    """Compiles `config` in this process and gives seconds by part, bytes and counts."""
    started = time.perf_counter()
    from sscc.compiler import driver
    from sscc.compiler.options import CompileOptions

    seconds: dict[str, float] = {"start (imports)": time.perf_counter() - started}
    with _timed(driver, seconds), tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "model.rdu"
        driver.compile_model(CompileOptions(model=config, output=out, weights="none", kv_budget=4096))
        size = (out / "schedule.json").stat().st_size
    return {
        "model": config.stem,
        "seconds": seconds,
        "total": time.perf_counter() - started,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "schedule_bytes": size,
    }


@contextmanager
def _timed(driver: Any, seconds: dict[str, float]) -> Iterator[None]:
    """Times the driver's parts and passes by wrapping what it calls."""
    originals = {name: getattr(driver, name) for name in (*PARTS, "run_passes")}

    def wrap(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **keywords: Any) -> Any:
            start = time.perf_counter()
            result = call(*args, **keywords)
            if name == "run_passes":
                seconds.update({item.name: item.seconds for item in result})
            else:
                seconds[name.removesuffix("_capture").removesuffix("_program")] = time.perf_counter() - start
            return result

        return timed

    try:
        for name, call in originals.items():
            setattr(driver, name, wrap(name, call))
        yield
    finally:
        for name, call in originals.items():
            setattr(driver, name, call)


def main(configs: list[Path]) -> None:
    results = []
    for config in configs:
        command = [sys.executable, __file__, "--one", str(config)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        results.append(json.loads(output.splitlines()[-1]))
    names = list(dict.fromkeys(name for result in results for name in result["seconds"]))
    print(f"{'seconds':22}" + "".join(f"{result['model']:>16}" for result in results))
    for name in names:
        print(f"{name:22}" + "".join(f"{result['seconds'].get(name, 0):16.2f}" for result in results))
    print(f"{'total':22}" + "".join(f"{result['total']:16.2f}" for result in results))
    print(f"{'peak memory, MiB':22}" + "".join(f"{result['peak_bytes'] / 2**20:16.0f}" for result in results))
    print(f"{'schedule, KiB':22}" + "".join(f"{result['schedule_bytes'] / 2**10:16.0f}" for result in results))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(Path(sys.argv[2]))))
    else:
        main([Path(name) for name in sys.argv[1:]] or sorted(CONFIGS.glob("*.json")))
