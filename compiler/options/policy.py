"""User-defined rules, each in one Python file, that select the prompt positions to keep in the cache.

A rule is a subclass of `Policy`. It is traced when a model is compiled, and its operations become part of the program;
the artifact does not need its file. This module does not import torch, so that the command line starts fast.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from sscc.ir.errors import ErrorKind, InputError, UsageError, quoted
from sscc.ir.files import check_name
from sscc.ir.geometry import DEFAULT_POOL, KV_POLICIES, POOL_MODES, RULE
from sscc.ir.suggestions import did_you_mean, similar_file

if TYPE_CHECKING:
    from torch import Tensor

    from sscc.compiler.options.rule_prompt import Prompt

WHOLE_PROMPT = "prompt"
"""Value of `obs` for a rule that observes every query of the prompt."""
SUFFIX = ".py"
OPTION = "--kv-policy"


class PolicyErrors(ErrorKind):
    BAD_TOPK = UsageError, "{rule}.topk must return an int of at least 0, got {rows!r} for layer {layer}"
    NO_POLICY = UsageError, "{option} must be a name, a file or an sscc.Policy, got {value!r}"
    UNKNOWN = (
        UsageError,
        "{option} must be one of {known}, or a file with a rule, FILE{suffix}, got {value!r}{hint}",
    )
    NOT_READABLE = InputError, "{path}: the rule cannot be read: {reason}{hint}"
    NOT_IN_FILE = InputError, "{path} has no policy {rule}{hint}"
    EMPTY_FILE = InputError, "{path} defines no policy: write a subclass of sscc.Policy"
    SEVERAL = InputError, "{path} defines the policies {rules}: name one of them, as {path}:CLASS"
    FILE_FAILS = InputError, "{place}: {type}: {cause}"
    TAKES_ARGUMENTS = UsageError, "the policy {rule} cannot be constructed without arguments: {cause}"
    BAD_OBS = UsageError, "{rule}.obs must be a number of queries, {whole!r} or None, got {obs!r}"
    BAD_POOL = UsageError, "{rule}.pool must be an odd number of positions, got {pool!r}"
    BAD_POOL_MODE = UsageError, "{rule}.pool_mode must be one of {known}, got {mode!r}"
    NO_SCORES = UsageError, "{rule} has no method scores(self, prompt)"


class Policy:
    """Base class of rules that score the positions of a prefilled prompt. The positions with the highest scores stay in
    the cache, in addition to sinks and ring.

    Attributes:
        obs: number of last queries that `scores` sees, or WHOLE_PROMPT; None for the compiler's default. With
            WHOLE_PROMPT all queries are kept until the end of the prompt: H max_context D numbers, for one layer at a
            time.
        pool: odd width of the pooling of scores along positions; 1 for none.
        pool_mode: "avg" or "max".

    `--kv-obs`, `--kv-pool` and `--kv-pool-mode` override these.
    """

    obs: ClassVar[int | str | None] = None
    pool: ClassVar[int] = 1
    pool_mode: ClassVar[str] = POOL_MODES[0]

    def scores(self, prompt: Prompt) -> Tensor:
        """Return finite scores [Hkv, n] f32 of all positions. Each KV head keeps the positions with the
        highest scores, and among equal scores the earlier positions.

        The method is traced once, on tensors without data, when a model is compiled. Python's conditions and loops may
        depend on sizes; conditions on the data of a tensor need operations such as `torch.where`. All layers share the
        traced operations.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method scores(self, prompt)")

    def topk(self, layer: int, layers: int, topk: int) -> int:
        """Return the number of positions that a layer selects.

        Args:
            layer: index of the layer, from 0, among those that the budget applies to (layers that attend within a
                sliding window keep their window).
            layers: number of these layers.
            topk: number that every layer selects by default.
        """
        return topk


class SnapStream(Policy):
    """The default rule: the pooled attention of the last queries of a prompt."""

    pool: ClassVar[int] = DEFAULT_POOL

    def scores(self, prompt: Prompt) -> Tensor:
        return prompt.attention_mass()


@dataclass(frozen=True)
class Rule:
    """A policy with its name and digest, which an artifact records.

    Attributes:
        policy: the policy.
        name: name of its class.
        digest: sha256 (hex) of its file; for a policy given as an object or a class, of the source of the class and
            the attributes of the object.
    """

    policy: Policy
    name: str
    digest: str

    @property
    def text(self) -> str:
        """The value of `Geometry.policy`."""
        return f"{RULE}{self.name}@{self.digest}"

    @property
    def has_budgets(self) -> bool:
        """True if the policy overrides `topk`, so that layers may select different numbers of positions."""
        return type(self.policy).topk is not Policy.topk

    def budgets(self, layers: int, topk: int) -> tuple[int, ...]:
        """Return the number of positions that each layer selects. Raises UsageError if `topk` returns anything but an
        int of at least 0."""
        numbers = [self.policy.topk(layer, layers, topk) for layer in range(layers)]
        for layer, number in enumerate(numbers):
            if type(number) is not int or number < 0:
                raise PolicyErrors.BAD_TOPK(rule=self.name, rows=number, layer=layer)
        return tuple(numbers)


def policy_of(asked: object) -> str | Rule | None:
    """Return the name of a built-in policy, or the rule of a user. The file of a rule is executed.

    Args:
        asked: one of KV_POLICIES, a file (FILE.py or FILE.py:CLASS), a `Policy`, a subclass of it that takes no
            arguments, a `Rule` or None.

    Raises:
        UsageError: any other value, or a policy with invalid attributes.
        InputError: a file that cannot be executed, that lacks the named class, or, without a name, that does not
            define exactly one policy.
    """
    if asked is None or isinstance(asked, Rule):
        return asked
    if isinstance(asked, str) and asked in KV_POLICIES:
        return asked
    if isinstance(asked, type) and issubclass(asked, Policy):
        return _of_object(_made(asked))
    if isinstance(asked, Policy):
        return _of_object(asked)
    if not isinstance(asked, str | os.PathLike):
        raise PolicyErrors.NO_POLICY(option=OPTION, value=asked)
    path, _, name = str(asked).partition(f"{SUFFIX}:")
    if name or str(asked).endswith(SUFFIX):
        return _of_file(Path(path + SUFFIX if name else path), name)
    raise PolicyErrors.UNKNOWN(
        option=OPTION,
        value=str(asked),
        known=KV_POLICIES,
        suffix=SUFFIX,
        hint=did_you_mean(str(asked), KV_POLICIES),
    )


def _of_object(policy: Policy) -> Rule:
    kind = type(policy)
    parts = [_source(part) for part in kind.__mro__ if issubclass(part, Policy) and part is not Policy]
    text = "\n".join([*parts, *(f"{name}={value!r}" for name, value in sorted(vars(policy).items()))])
    return _checked(policy, hashlib.sha256(text.encode()).hexdigest())


def _source(kind: type) -> str:
    """Return the source of a class, or the bytecode of its methods if it has no source file, as in an interpreter."""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        members = ((name, getattr(member, "__code__", None)) for name, member in sorted(vars(kind).items()))
        codes = ((name, code.co_code.hex(), code.co_consts, code.co_names) for name, code in members if code)
        return "\n".join(map(str, codes))


def _of_file(path: Path, name: str) -> Rule:
    """Return the rule of the class `name` in a file, or of its only policy if `name` is empty."""
    check_name(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PolicyErrors.NOT_READABLE(path=path, reason=error.strerror, hint=similar_file(path)) from None
    digest = hashlib.sha256(data).hexdigest()
    module = _run(path, f"sscc_rule_{path.stem}_{digest[:8]}")
    kinds = {
        kind.__name__: kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Policy) and kind.__module__ == module.__name__
    }
    if name and name not in kinds:
        raise PolicyErrors.NOT_IN_FILE(path=path, rule=name, hint=did_you_mean(name, kinds))
    if not name and not kinds:
        raise PolicyErrors.EMPTY_FILE(path=path)
    if not name and len(kinds) != 1:
        raise PolicyErrors.SEVERAL(path=path, rules=list(kinds))
    return _checked(_made(kinds[name] if name else next(iter(kinds.values()))), digest)


def _run(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # the suffix is that of a module
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise PolicyErrors.FILE_FAILS(
            place=place_of(error, str(path)), type=type(error).__name__, cause=quoted(error)
        ) from None
    return module


def file_of(rule: Rule) -> str:
    """Return the file that defines a rule's method `scores`; the rule's name if the method has no Python code."""
    code = getattr(inspect.unwrap(type(rule.policy).scores), "__code__", None)
    return rule.name if code is None else str(code.co_filename)


def method_of(rule: Rule) -> str:
    """Return ``FILE:LINE`` of the beginning of a rule's method `scores`, for errors without a line of their own; the
    rule's name if the method has no Python code."""
    code = getattr(inspect.unwrap(type(rule.policy).scores), "__code__", None)
    return rule.name if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def place_of(error: BaseException, file: str) -> str:
    """Return ``FILE:LINE`` for the innermost line of a file in an error's traceback; the file alone if it has none."""
    lines = [error.lineno] if isinstance(error, SyntaxError) and error.filename == file else []
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == file:
            lines.append(frame.tb_lineno)
        frame = frame.tb_next
    return f"{file}:{lines[-1]}" if lines else file


def _made(kind: type[Policy]) -> Policy:
    try:
        return kind()
    except TypeError as error:
        raise PolicyErrors.TAKES_ARGUMENTS(rule=kind.__name__, cause=quoted(error)) from None


def _checked(policy: Policy, digest: str) -> Rule:
    name = type(policy).__name__
    obs: Any = policy.obs
    if obs is not None and obs != WHOLE_PROMPT and (type(obs) is not int or obs < 1):
        raise PolicyErrors.BAD_OBS(rule=name, obs=obs, whole=WHOLE_PROMPT)
    if type(policy.pool) is not int or policy.pool < 1 or policy.pool % 2 == 0:
        raise PolicyErrors.BAD_POOL(rule=name, pool=policy.pool)
    if policy.pool_mode not in POOL_MODES:
        raise PolicyErrors.BAD_POOL_MODE(rule=name, mode=policy.pool_mode, known=POOL_MODES)
    if type(policy).scores is Policy.scores:
        raise PolicyErrors.NO_SCORES(rule=name)
    return Rule(policy, name, digest)
