"""A model of lm-evaluation-harness: its class is derived where the package is installed, which sscc does not need."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from sscc.compiler.tools.quality.harness import CacheScorer, rolling_windows
from sscc.ir.errors import ErrorKind, InputError, UsageError
from sscc.runtime.serving.engine import Engine, EngineOptions, Request
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.session.session import Session
from sscc.runtime.text.chat_template import ChatTemplate
from sscc.runtime.text.tokenizer import encode


class HarnessModelErrors(ErrorKind):
    NOT_INSTALLED = UsageError, "a model for lm-evaluation-harness needs it: pip install lm-eval"
    NO_TOKENIZER = InputError, "{artifact} has no tokenizer, which lm-evaluation-harness needs"
    NO_TEMPLATE = InputError, "{artifact} has no chat template: evaluate without one"
    NO_BEGINNING = (
        InputError,
        "{artifact} has no token that begins or ends a text, and a task asks for a text without a context",
    )
    UNKNOWN_ARGUMENT = UsageError, "generation_kwargs has {name!r}, which is not done here, only {known}"


def harness_model(
    model: str | PathLike[str], *, threads: int | None = None, add_bos_token: bool = False, max_gen_toks: int = 256
) -> Any:
    """Return a model for `lm_eval.simple_evaluate`, which measures what a fixed KV budget costs::

        lm_eval.simple_evaluate(sscc.harness_model("model.rdu"), tasks=["hellaswag"])

    Log-likelihoods are those of steps over the compressed cache: the context is prefilled, and the continuation is fed
    token by token (`sscc.compiler.tools.quality.harness`). Text is made by greedy decoding, or as a task's
    `generation_kwargs` say.

    Args:
        model: an artifact with a tokenizer. All of its slots work at a time.
        threads: that compute; None: all processors.
        add_bos_token: put the special tokens in front of each text that the tokenizer puts there.
        max_gen_toks: new tokens of an answer, where a task does not say.

    Returns:
        An `lm_eval.api.model.LM`.

    Raises:
        UsageError: lm-eval is not installed.
        InputError: the artifact is missing or damaged, or has no tokenizer.
    """
    try:
        base = importlib.import_module("lm_eval.api.model").TemplateLM
    except ImportError as error:
        raise HarnessModelErrors.NOT_INSTALLED() from error
    return model_class(base)(Artifact.load(Path(model)), threads, add_bos_token, max_gen_toks)


def model_class(base: type) -> type:
    """Return the model's class.

    Args:
        base: `lm_eval.api.model.TemplateLM`.
    """

    class HarnessModel(base):
        """Scores and makes text by the steps of an artifact."""

        backend = "causal"

        def __init__(self, artifact: Artifact, threads: int | None, add_bos_token: bool, max_gen_toks: int) -> None:
            super().__init__()
            if artifact.tokenizer_file is None:
                raise HarnessModelErrors.NO_TOKENIZER(artifact=artifact.path)
            self._artifact = artifact
            self._session = Session.from_artifact(artifact, threads=threads)
            self._tokenizer = self._session.tokenizer
            self._add_bos_token, self._max_gen_toks = add_bos_token, max_gen_toks
            folder = artifact.tokenizer
            self._template = None if folder is None else ChatTemplate.load(folder, names=artifact.tokenizer_files)

        # -- what tokens are

        @property
        def eot_token_id(self) -> int:
            """The first token that ends a text."""
            return self._session.signature.eos_token_ids[0]

        @property
        def prefix_token_id(self) -> int:
            """The token in front of a text without a context: the one that begins texts, or one that ends them."""
            begins = encode(self._tokenizer, "")
            known = [*begins[:1], *self._session.signature.eos_token_ids]
            if not known:
                raise HarnessModelErrors.NO_BEGINNING(artifact=self._artifact.path)
            return known[0]

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **more: Any) -> list[int]:
            """Return the tokens of a text."""
            special = self._add_bos_token if add_special_tokens is None else add_special_tokens
            return encode(self._tokenizer, string, special=special)

        @property
        def tokenizer_name(self) -> str:
            """The name under which the harness caches requests."""
            return str(self._artifact.path.name)

        def chat_template(self, chat_template: bool | str = False) -> str:
            """Return the source of the chat template; "" without one."""
            return self._template.source if chat_template and self._template is not None else ""

        def apply_chat_template(
            self, chat_history: list[dict[str, Any]], add_generation_prompt: bool = True
        ) -> str:
            """Return the text of a conversation."""
            if self._template is None:
                raise HarnessModelErrors.NO_TEMPLATE(artifact=self._artifact.path)
            return self._template.render(
                chat_history,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )

        # -- what is measured

        def _loglikelihood_tokens(
            self, requests: Sequence[tuple[Any, list[int], list[int]]], **more: Any
        ) -> list[tuple[float, bool]]:
            found = CacheScorer(self._session).score([(context, tokens) for _, context, tokens in requests])
            return [(one.logprob, one.greedy) for one in found]

        def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
            """Return how likely whole texts are, in windows of as many tokens as the context has."""
            most = self._session.signature.geometry.max_context
            before = self.prefix_token_id
            windows = [list(rolling_windows(self.tok_encode(one.args[0]), before, most)) for one in requests]
            scores = CacheScorer(self._session).score([pair for of_text in windows for pair in of_text])
            left = iter(scores)
            return [sum(next(left).logprob for _ in of_text) for of_text in windows]

        def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
            """Return answers, which end before the strings that a task names."""
            options = EngineOptions(max_queue=None)
            with Engine(self._session, self._tokenizer, options) as engine:
                tickets = engine.submit_all([self._request(*one.args) for one in requests])
                return [ticket.result().text for ticket in tickets]

        def _request(self, context: str, asked: dict[str, Any]) -> Request:
            arguments = dict(asked)
            until = arguments.pop("until", None) or []
            stop = tuple(one for one in ([until] if isinstance(until, str) else until) if one)
            count = next((arguments.pop(name) for name in _COUNTS if name in arguments), self._max_gen_toks)
            sampled = arguments.pop("do_sample", True) is not False
            sampling = {name: arguments.pop(name) for name in _SAMPLING if name in arguments}
            if arguments:
                raise HarnessModelErrors.UNKNOWN_ARGUMENT(name=next(iter(arguments)), known=[*_COUNTS, *_SAMPLING])
            if not sampled:
                sampling = {}
            longest = self._session.signature.geometry.max_context
            count = min(int(count), longest - 1)
            tokens = self.tok_encode(context)[-(longest - count) :]
            return Request(tuple(tokens), count, Sampling(**({"temperature": 0.0} | sampling)), stop)

    return HarnessModel


_COUNTS = ("max_gen_toks", "max_new_tokens", "max_tokens")
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
