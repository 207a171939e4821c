"""The default sampling of a model, from its generation_config.json."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from sscc.ir.errors import ErrorKind, InputError, UsageError, quoted
from sscc.ir.files import read_text
from sscc.runtime.session.sampling import Sampling

GENERATION_FILE = "generation_config.json"

_OF_DRAWS = ("temperature", "top_k", "top_p", "min_p")
MODEL_SAMPLING = (*_OF_DRAWS, "repetition_penalty")
"""Fields of `Sampling` that a model may set."""


class GenerationConfigErrors(ErrorKind):
    WRONG = InputError, "{path}: {cause}"
    NOT_A_NUMBER = InputError, "{path}: {field} is {value!r}, expected a number"


def default_sampling(folder: Path | None, names: Collection[str]) -> Sampling:
    """Return the sampling of an artifact's model: greedy, unless its generation_config.json has `do_sample`.

    With it, `temperature` (default 1), `top_k`, `top_p` and `min_p` apply, and `repetition_penalty` always, as in
    transformers' `generate`. Missing fields change nothing.

    Args:
        folder: folder of the tokenizer's files; None without.
        names: names of the files in it that count.

    Raises:
        InputError: a damaged file, or invalid values for sampling.
    """
    if folder is None or GENERATION_FILE not in names:
        return Sampling()
    path = folder / GENERATION_FILE
    try:
        config = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise GenerationConfigErrors.WRONG(path=path, cause=quoted(error)) from None
    if not isinstance(config, dict):
        raise GenerationConfigErrors.WRONG(path=path, cause="it is not a JSON object")
    return stated_sampling(config, str(path))


def stated_sampling(config: Mapping[str, Any], where: str) -> Sampling:
    """Return the sampling that the fields of a generation_config.json define; see `default_sampling`.

    Args:
        where: name of the file, for errors.
    """
    draws = config.get("do_sample") is True
    stated: dict[str, Any] = {
        name: _number(config[name], name, where)
        for name in ("repetition_penalty", *(_OF_DRAWS if draws else ()))
        if config.get(name) is not None
    }
    if draws:
        stated.setdefault("temperature", 1.0)
        if "top_k" in stated:
            stated["top_k"] = max(0, int(stated["top_k"]))
    try:
        return Sampling(**stated)
    except UsageError as error:
        raise GenerationConfigErrors.WRONG(path=where, cause=error) from None


def overriding(choices: object) -> dict[str, Any]:
    """Return the fields of `Sampling` by which a caller's choices override the model's.

    Args:
        choices: object with an attribute for each of `MODEL_SAMPLING`, None for the model's value; a `top_k` of -1
            keeps every token, as 0 does.
    """
    stated = {name: getattr(choices, name) for name in MODEL_SAMPLING if getattr(choices, name) is not None}
    if stated.get("top_k") == -1:
        stated["top_k"] = 0
    return stated


def _number(value: Any, field: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise GenerationConfigErrors.NOT_A_NUMBER(path=where, field=field, value=value)
    return value
