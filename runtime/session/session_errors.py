"""Errors of a session."""

from __future__ import annotations

from sscc.ir.errors import ErrorKind, InputError, InternalError, UsageError


class SessionErrors(ErrorKind):
    NO_TOKENIZER = InputError, "the artifact has no tokenizer: pass tokens, or compile a checkpoint that has one"
    NO_SLOT = UsageError, "slot {slot} does not exist; the program has slots 0 .. {last}"
    SLOT_EMPTY = UsageError, "slot {slot} holds no prompt: prefill it first"
    SLOT_FULL = (
        UsageError,
        "slot {slot} holds {tokens} tokens, the maximum context of the program: compile with a larger --max-context",
    )
    SLOT_IN_PREFILL = UsageError, "slot {slot} is being prefilled: finish or abandon that prefill"
    COPY_AFTER_TOKENS = (
        UsageError,
        "slot {slot} was fed {tokens} tokens after its prompt: it can only be copied before the first",
    )
    REPLAY_STATE = (
        UsageError,
        "the model's recurrent states and convolutions cannot read the last token of a prompt twice: prefill the "
        "prompt without it, and decode it",
    )
    REPLAY_AFTER_TOKENS = (
        UsageError,
        "slot {slot} was fed {tokens} tokens after its prompt: the prompt can only be replayed before the first",
    )
    EMPTY_PROMPT = UsageError, "the prompt has no tokens, and it must have at least 1"
    PROMPT_TOO_LONG = (
        UsageError,
        "the prompt has {tokens} tokens, but the program's maximum context is {max_context}: shorten the prompt or "
        "compile with a larger --max-context",
    )
    REQUEST_TOO_LONG = (
        UsageError,
        "{tokens} prompt tokens and {max_new_tokens} new tokens exceed the program's maximum context of {max_context}: "
        "ask for fewer new tokens or compile with a larger --max-context",
    )
    MAX_NEW_TOKENS = UsageError, "max-new-tokens must be at least 1, got {value}"
    PROMPT_TOKEN = (
        UsageError,
        "token {token} at position {position} of the prompt is outside the vocabulary 0 .. {last}",
    )
    TOKEN = UsageError, "token {token} for slot {slot} is outside the vocabulary 0 .. {last}"
    NO_CHECKPOINT = UsageError, "chunk {chunk} is not a checkpoint, so no prompt can continue after it"
    REUSED_CHUNKS = UsageError, "{chunks} chunks of a prompt of {tokens} tokens cannot be reused; at most {most} can"
    KEPT_CHUNK = (
        UsageError,
        "chunk {chunk} of a prompt of {tokens} tokens cannot be kept: whole chunks to prefill are {first} .. {last}",
    )
    PREFILL_IN_PROGRESS = (
        UsageError,
        "slot {slot} cannot be prefilled while the prefill of slot {other} is in progress: finish or abandon that one",
    )
    PREFILL_BEGUN = UsageError, "the prompt before is not there any more: the prefill of slot {slot} has begun"
    NO_PREFILL = UsageError, "no prefill is in progress: call start_prefill first"
    PREFILL_STEPS = UsageError, "a prefill call takes at least 1 step, not {steps}"
    PREFILL_STUCK = InputError, "the schedule's prefill makes no progress: it stays at phase {phase} and chunk {chunk}"
    NO_PREFILL_LOGITS = UsageError, "there are no prefill logits, because no prefill has finished yet"
    STEP_ARRAYS = (
        UsageError,
        "a decode step takes tokens int64 [{slots}] and active bool [{slots}], not {tokens_dtype} [{tokens_shape}] and "
        "{active_dtype} [{active_shape}]",
    )
    NO_VERIFY = UsageError, "the program has no step of several tokens: compile with --verify"
    VERIFY_ARRAYS = (
        UsageError,
        "a step of several tokens takes tokens int64 [{slots}, {tokens}] and their count int64 [{slots}], not "
        "{tokens_dtype} [{tokens_shape}] and {count_dtype} [{count_shape}]",
    )
    TOO_MANY_TOKENS = UsageError, "slot {slot} cannot take {tokens} tokens in one step; the program has 0 .. {most}"
    NO_ROOM = UsageError, "slot {slot} has room for {room} more tokens, but the step has {tokens}"
    ACCEPTED = UsageError, "slot {slot} cannot accept {tokens} tokens; the latest step of several fed it {fed}"
    REWIND = (
        UsageError,
        "slot {slot} cannot go back by {tokens} tokens: it has {fed} tokens after its prompt, and the program can take "
        "back at most {most} (--verify), or with recurrent states only tokens of its latest step of several tokens",
    )
    STEP_REFUSED = InternalError, "a decode step was refused, but its tokens and slots are valid"
    NO_STAGES = UsageError, "stages can only be watched in a program of one rank that runs a schedule"
    NO_IDENTITY = UsageError, "slots can only be saved and loaded by a session of an artifact with its own weights"
