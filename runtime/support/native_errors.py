"""Kinds of the errors that the native module raises.

C++ code names a kind and passes the values of its fields (`fail` of native/errors.hpp); the class and the message are
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sscc.ir.errors import ErrorKind, InputError, RankError, SsccError, UsageError
from sscc.runtime.support.scalars import ScalarArithmeticErrors


class NativeErrors(ErrorKind):
    # The core: plans, memory, calls.
    CORE_BUSY = UsageError, "the native core is running an entry, and accepts one call at a time"
    PLAN_MALFORMED = InputError, "the plan is malformed: {place}: {reason}"
    FUNCTION_COUNT = InputError, "the plan names {functions} functions, but {addresses} addresses were passed"
    NO_ADDRESS = InputError, "the function {function!r} of the plan has no address"
    REGION_NOT_EXTERNAL = (
        InputError,
        "memory was passed for region {region!r}, which is not external or already has memory",
    )
    REGION_BYTES = InputError, "region {region!r} was passed {bytes} bytes of memory, but the plan needs {needed}"
    REGION_MISSING = InputError, "no memory was passed for the external region {region!r}"
    REGION_IS_EXTERNAL = InputError, "region {region!r} is external and cannot be zeroed"
    WINDOW_BYTES = (
        InputError,
        "the plan has windows of {windows} bytes in all and of {window} bytes for each rank, which does not fit "
        "{ranks} ranks",
    )
    NO_WINDOWS = InputError, "the plan is for one of several ranks, but no windows of the ranks were passed"
    NO_ENTRY = InputError, "the plan has no entry {entry!r}"
    NO_REGION = InputError, "the plan has no region {region!r}"
    NO_STAGE = InputError, "the plan has no stage {stage!r}"
    NO_THREAD = InputError, "thread {thread} does not exist; the core has {threads} threads"
    SCALAR_COUNT = InputError, "entry {entry!r} takes {inputs} scalars, but {scalars} were passed"
    INDEX_OUT_OF_RANGE = InputError, "stage {stage!r}: an index in a tensor is out of range"
    OUT_OF_REGION = (
        InputError,
        "stage {stage!r}: argument {argument} of {bytes} bytes exceeds region {region!r} of {region_bytes} bytes",
    )
    HOOK_WITHOUT_STAGES = InputError, "a hook needs at least one stage"
    # Threads and ranks.
    THREADS = InputError, "the number of threads must be between 1 and {most}, got {threads}"
    SPIN_OUT_OF_RANGE = InputError, "spin_us must be between 0 and 1e9"
    FORKED = UsageError, "a thread team was used after fork(): create another one in the child process"
    RANK = InputError, "rank {rank} of {ranks} ranks does not exist: ranks count from 0, and there are at most {most}"
    MEETING_ADDRESS = InputError, "the memory of a meeting must begin at a cache line"
    MEETING_OPTIONS = InputError, "timeout must be between 0 and 1e6, and spin_us between 0 and 1e9"
    RANK_STALLED = RankError, "rank {rank} does not answer"
    RANK_ENDED = RankError, "rank {rank} has ended"
    RANK_FAILED = RankError, "rank {rank} has failed"
    # The sampler and the table of tokens.
    SAMPLER_BUSY = UsageError, "the sampler is in use by another thread"
    SAMPLER_SLOTS = UsageError, "a sampler needs at least 1 slot, not {slots}"
    SAMPLER_VOCABULARY = UsageError, "a sampler's vocabulary must have between 1 and 2**31 - 1 tokens, not {vocabulary}"
    SAMPLER_NO_SLOT = UsageError, "slot {slot} does not exist; the sampler has slots 0 .. {last}"
    SAMPLER_NOT_STARTED = UsageError, "no sequence was started in slot {slot}, so it has no next token"
    SAMPLER_SHAPES = UsageError, "the arrays' shapes do not fit a sampler of {slots} slots and {vocabulary} tokens"
    PROMPT_TOKEN = (
        UsageError,
        "token {token} at position {position} of the prompt is outside the vocabulary 0 .. {last}",
    )
    BIAS_TOKEN = UsageError, "token {token} of the logit bias is outside the vocabulary 0 .. {last}"
    LOGPROBS = UsageError, "logprobs must be between 0 and the vocabulary's {vocabulary}, got {logprobs}"
    NOTHING_ALLOWED = UsageError, "the constraint of slot {slot} allows no token"
    LOGITS_NOT_FINITE = InputError, "the largest logit is not finite"
    PANEL_SHAPES = UsageError, "arrays and tables of quantized panels do not fit together"
    TOKEN_TABLE_SHAPES = UsageError, "the shapes of the arrays do not fit the slots of the table of tokens"


_KINDS: dict[str, ErrorKind] = {**NativeErrors.__members__, **ScalarArithmeticErrors.__members__}


def native_error(name: str, fields: Mapping[str, Any]) -> SsccError:
    """Return the error of the kind that the native module names."""
    return _KINDS[name](**fields)
