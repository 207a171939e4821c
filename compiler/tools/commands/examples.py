"""Examples of every command for its help and the reference."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "sscc": (
        ("compile a model and run it", "sscc compile model.gguf -o model.rdu"),
        ("", 'sscc run model.rdu --prompt "Once upon a time"'),
        ("the options of a command", "sscc compile --help"),
    ),
    "compile": (
        ("a cache of 1024 rows for prompts of 32k tokens", "sscc compile model/ --kv-budget 1024 --max-context 32768"),
        (
            "four slots that decode together, 4-bit weights",
            "sscc compile model.gguf -o served.rdu --batch 4 --weights int4",
        ),
        (
            "a model too large to load, from its config alone",
            "sscc compile config.json --no-weights -o large.rdu",
        ),
        (
            "stop at the IR that has the cache threaded through it",
            "sscc compile model.pt --compile-to graph -o model.graph.mlir",
        ),
    ),
    "run": (
        ("a model, compiled the first time", 'sscc run model.gguf --prompt "Why is the sky blue?"'),
        ("32 tokens with greedy sampling", 'sscc run model.rdu --prompt "Once upon a time" --max-new-tokens 32'),
        ("a prompt on stdin, sampled tokens", "sscc run model.rdu --prompt-file - --temperature 0.8 < prompt.txt"),
        ("a long prompt, shortened by a draft", "sscc run model.rdu --prompt-file a.txt --draft small.rdu --keep 0.3"),
        ("the tokens that the cache has kept", "sscc run model.rdu --prompt-file prompt.txt --show-kept"),
        ("compare with recorded tensors of eager PyTorch", "sscc run model.rdu --check"),
    ),
    "serve": (
        ("a model, compiled the first time", "sscc serve model.gguf --max-context 8192"),
        ("on port 8000 of this machine", "sscc serve served.rdu --port 8000"),
        ("share the prefill of common prompt prefixes", "sscc serve served.rdu --prompt-cache 2GiB --max-body 16M"),
        ("long prompts, shortened by a draft", "sscc serve served.rdu --draft small.rdu --keep 0.3"),
        ("prefill on another server", "sscc serve served.rdu --role decode --prefill-from http://127.0.0.1:8001"),
    ),
    "chat": (
        ("with a system message", 'sscc chat served.rdu --system "Answer in one sentence."'),
        ("questions from a file, one per line", "sscc chat served.rdu < questions.txt"),
    ),
    "inspect": (
        ("sizes, bytes and modelled times", "sscc inspect model.rdu"),
        ("on 16 sockets, prompts of 8k tokens", "sscc inspect model.rdu --sockets 16 --prompt 8192"),
        ("a trace for Perfetto", "sscc inspect model.rdu --trace decode.json"),
        ("stages, on a machine with another bandwidth", "sscc inspect model.rdu --stages --set hbm.bandwidth=3.2e12"),
        ("seven bandwidths", "sscc inspect model.rdu --sweep hbm.bandwidth=1e12..4e12:7 --plot sweep.svg"),
    ),
    "report": (
        ("one page for a browser", "sscc report model.rdu"),
        ("with the changes of each pass, and measurements", "sscc report model.rdu --ir-dir ir --bench bench.json"),
        ("the graph of kernels and stages alone", "sscc report model.rdu --dot -o - | dot -Tsvg -o model.svg"),
    ),
    "bench": (
        ("prompts of 512 tokens, 128 steps after 512 tokens, with one slot and with all", "sscc bench model.rdu"),
        ("two depths, ten repetitions", "sscc bench model.rdu -p 1024 -n 64 -d 256,1024 -r 10 --json"),
    ),
    "diff": (
        ("the effects of a smaller cache", "sscc diff large.rdu small.rdu"),
        ("also the first token that differs", 'sscc diff model.rdu int4.rdu --prompt "Once upon a time"'),
        ("changes of sizes and operations by a pass", "sscc diff ir/06-build-entries.mlir ir/07-outline-kernels.mlir"),
    ),
    "print": (
        ("the loop over the layers of a decode step", "sscc print ir/09-kernel-looping.mlir --ir-function 'decode.l*'"),
        ("with the model's source location of each line", "sscc print ir/13-place-stages.mlir --locations"),
        ("in a pager, with colours", "sscc print --color always ir/13-place-stages.mlir | less -R"),
        ("an artifact's schedule", "sscc print model.rdu --ir-function decode"),
    ),
    "targets": (
        ("the built-in machine", "sscc targets"),
        ("a file to describe another machine with", "sscc targets --json > mine.json"),
    ),
    "opt": (
        ("every pass", "sscc opt --list-passes"),
        (
            "two passes on a dump",
            "sscc opt ir/05-thread-cache.mlir --pass-pipeline 'build-entries,outline-kernels{granularity=layer}'",
        ),
        ("MLIR's own passes, on a dump from stdin", "sscc opt - --pass-pipeline canonicalize,cse < model.graph.mlir"),
    ),
    "eval": (
        ("two budgets and the full cache, at 1024 tokens", "sscc eval model.gguf -o results --budgets 256 512"),
        ("prompts shortened by a draft", "sscc eval model.gguf -o results --draft small.rdu --keep 0.1 0.3 0.5"),
        ("one task with long prompts", "sscc eval model.gguf -o results --tasks passkey --lengths 4096 --examples 50"),
    ),
    "bisect": (
        ("every pass of a compilation, on random tokens", "sscc bisect model.pt --prompt-tokens 300 --steps 1"),
        ("some passes, on a dump", "sscc bisect ir/06-build-entries.mlir --pass-pipeline outline-kernels"),
    ),
    "pack": (("a GGUF file, to open it faster", "sscc pack model.gguf -o model.pt"),),
    "cache": (
        ("models, packed weights and native code", "sscc cache"),
        ("remove all of them", "sscc cache --clear"),
    ),
    "doctor": (
        ("versions, extras, CPU, memory and its bandwidth", "sscc doctor"),
        ("for a bug report", "sscc doctor --json > doctor.json"),
    ),
    "completion": (
        ("bash, from the next shell on", "sscc completion bash >> ~/.bash_completion"),
        ("zsh, in a folder of $fpath", "sscc completion zsh > ~/.zfunc/_sscc"),
    ),
}
"""Pairs of a description and a shell command line, for each command and for `sscc` itself."""
