"""Options of sampling; `sscc.runtime.session.samplers` picks tokens accordingly."""

from __future__ import annotations

from dataclasses import dataclass

from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.option import FINITE, check_options, option

_MODEL = "the model's generation_config.json, or {0}".format
_LARGEST = 2**63 - 1


class SamplingErrors(ErrorKind):
    BIAS_TOKEN = UsageError, "logit-bias names token {token}, but tokens are numbers between 0 and 2**63 - 1"
    BIAS = UsageError, "logit-bias of token {token} must be between -100 and 100, got {value}"
    BIAS_TWICE = UsageError, "logit-bias names token {token} twice"


@dataclass(frozen=True)
class Sampling:
    """Options of sampling.

    Attributes:
        logit_bias: token and addend to its logit, -100 .. 100; each token once.

    Raises UsageError for values out of bounds.
    """

    temperature: float = option(
        0.0, "temperature of the draws; 0 is greedy", "T", model_default=_MODEL(0), least=0, most=FINITE
    )
    top_k: int = option(
        0, "number of likeliest tokens to draw from; 0 for all", "K", model_default=_MODEL(0), least=0, most=_LARGEST
    )
    top_p: float = option(
        1.0, "total probability of the likeliest tokens to draw from; 1 for all", "P",
        model_default=_MODEL(1), least=0, most=1, exclusive=True,
    )  # fmt: skip
    seed: int = option(0, "seed of the draws", "N", least=0, most=_LARGEST)
    min_p: float = option(
        0.0, "least probability of a token relative to the likeliest one; 0 for all", "P",
        model_default=_MODEL(0), least=0, most=1,
    )  # fmt: skip
    repetition_penalty: float = option(
        1.0, "penalty on tokens of the prompt and the text, as in transformers; 1 for none", "X",
        model_default=_MODEL(1), least=0, most=FINITE, exclusive=True,
    )  # fmt: skip
    presence_penalty: float = option(
        0.0, "penalty on tokens that the text has, as OpenAI defines it", "X", least=-2, most=2
    )
    frequency_penalty: float = option(
        0.0, "penalty on a token for each time that the text has it, as OpenAI defines it", "X", least=-2, most=2
    )
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        check_options(self, as_flags=False)
        seen: set[int] = set()
        for token, addend in self.logit_bias:
            if not 0 <= token < 2**63:
                raise SamplingErrors.BIAS_TOKEN(token=token)
            if not -100.0 <= addend <= 100.0:
                raise SamplingErrors.BIAS(token=token, value=addend)
            if token in seen:
                raise SamplingErrors.BIAS_TWICE(token=token)
            seen.add(token)
