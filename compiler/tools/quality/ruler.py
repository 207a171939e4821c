"""RULER itself (arXiv 2404.06654): the generators of the package nvidia-long-context-eval, run as the package runs
them."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sscc.compiler.tools.quality.example import Example
from sscc.compiler.tools.quality.prompts import PromptFormat
from sscc.compiler.tools.quality.tasks import RULER_PREFIX
from sscc.ir.errors import ErrorKind, InputError, UsageError, quoted
from sscc.ir.extras import RULER, require

PACKAGE = "long_context_eval"
LIMIT = 900.0  # seconds; a generator loops forever if its smallest prompt does not fit


class RulerErrors(ErrorKind):
    UNKNOWN_TASK = UsageError, "RULER has no task {task!r}; its tasks are {tasks}"
    TEMPLATE_FILLS_PROMPT = (
        UsageError,
        "the task {task} of RULER does not fit into {length} tokens: the chat template alone has {template_tokens}",
    )
    NO_ANSWER_PREFIX = InputError, "a prompt of RULER lacks {prefix!r}, with which its answer begins"
    TOO_SLOW = (
        InputError,
        "RULER did not make the task {task} within {seconds:.0f} s: its prompts may not fit the length",
    )
    NO_NLTK_DATA = (
        InputError,
        "RULER needs nltk's data for the task {task}: run python -m nltk.downloader punkt_tab",
    )
    FAILED = InputError, "RULER did not make the task {task}: {reason}"


def ruler_tasks() -> dict[str, Any]:
    """Return the configuration of each task of the installed package. Raises UsageError if it is not installed."""
    package = _package()
    import yaml

    config: dict[str, Any] = yaml.safe_load((package / "synthetic.yaml").read_text())
    return config


def ruler_examples(name: str, length: int, count: int, seed: int, prompts: PromptFormat) -> Iterator[Example]:
    """Return `count` examples of a RULER task, with prompts of at most about `length` tokens.

    A chat template is put around the output of the generators for models that continue text. They also accept
    templates, but change words in them ("are" to "is" for one needle), and so in the system message that some of them
    contain.

    Raises:
        UsageError: the package is not installed, or has no such task, or `length` has no room beside the template.
        InputError: its generator failed.
    """
    tasks = ruler_tasks()
    if name not in tasks:
        raise RulerErrors.UNKNOWN_TASK(task=name, tasks=list(tasks))
    kind = tasks[name]["task"]
    constants: dict[str, Any] = importlib.import_module(f"{PACKAGE}.data.synthetic.constants").TASKS[kind]
    new_tokens = int(constants["tokens_to_generate"])
    question, prefix = constants["template"], constants.get("answer_prefix", "")
    own = 0 if prompts.template is None else prompts.added(question, prefix)
    if own >= length:
        raise RulerErrors.TEMPLATE_FILLS_PROMPT(task=name, length=length, template_tokens=own)
    with tempfile.TemporaryDirectory() as scratch:
        _write_tokenizer(prompts.tokenizer, Path(scratch))
        options = {
            "save_dir": scratch,
            "save_name": name,
            "tokenizer_type": "hf",
            "tokenizer_path": scratch,
            "max_seq_length": length - own + new_tokens,  # it counts new tokens too
            "tokens_to_generate": new_tokens,
            "num_samples": count,
            "random_seed": seed,
            "template": question + prefix,
            **tasks[name]["args"],
        }
        _generate(name, _package() / "data" / "synthetic" / f"{kind}.py", options)
        lines = (Path(scratch) / name / "validation.jsonl").read_text().splitlines()
    metric = "string_match_part" if kind == "qa" else "string_match_all"
    for index, line in enumerate(lines):
        sample = json.loads(line)
        text, answers = sample["input"], tuple(sample["outputs"])
        if prompts.template is not None:
            text = prompts.text(*_parted(text, prefix))
        prompt = tuple(prompts.encode(text))
        yield Example(RULER_PREFIX + name, length, index, prompt, answers, metric, new_tokens, text=text)


def _parted(text: str, prefix: str) -> tuple[str, str]:
    """Return a generated prompt as the question and the beginning of its answer, which `prefix` matches."""
    constant = prefix.partition("{")[0]
    place = text.rfind(constant) if constant else len(text)
    if place < 0:
        raise RulerErrors.NO_ANSWER_PREFIX(prefix=constant)
    return text[:place], text[place:]


def _package() -> Path:
    require(RULER, "a task of RULER")
    return Path(importlib.import_module(PACKAGE).__path__[0])


def _generate(name: str, script: Path, options: dict[str, Any]) -> None:
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    try:
        done = subprocess.run(
            [sys.executable, str(script), *words], capture_output=True, text=True, check=False, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        raise RulerErrors.TOO_SLOW(task=name, seconds=LIMIT) from None
    if done.returncode:
        if "nltk.download" in done.stderr:
            raise RulerErrors.NO_NLTK_DATA(task=name)
        said = [line for line in done.stderr.splitlines() if line.strip(" *")]
        raise RulerErrors.FAILED(task=name, reason=quoted((said or ["it gives no reason"])[-1]))


def _write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a folder that transformers' AutoTokenizer opens."""
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
