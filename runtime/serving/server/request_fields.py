"""Base of the bodies of requests: checked fields, and errors that name the field."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from sscc.runtime.serving.server.api_errors import INVALID_VALUE, ApiKind

REFUSED = "refused"
"""The type of pydantic's errors that carry a kind (`refused`)."""


class ValueKind(ApiKind):
    """Base of the enums of values that a parameter does not take."""

    def __init__(self, message: str) -> None:
        super().__init__("{param} is {value}: " + message, INVALID_VALUE)


class BodyFieldErrors(ValueKind):
    HALF_CHARACTER = "it has half of a surrogate pair, which is no character"


def refused(kind: ValueKind, **fields: Any) -> PydanticCustomError:
    """Return the error that a validator raises for a value. Whoever validates adds the parameter and the value."""
    return PydanticCustomError(REFUSED, "the value is refused", {"kind": kind, "fields": fields})


class Parameters(BaseModel):
    """Base of a body or a part of one. It refuses unknown names, and values of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _one_unknown(cls, data: Any) -> Any:
        """Keep only the first of the unknown names, because pydantic makes an error of a kilobyte for each."""
        if not isinstance(data, dict):
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = [name for name in data if name not in known]
        return {name: value for name, value in data.items() if name in known or name == unknown[0]}


def whole_characters(text: str) -> str:
    """JSON can say half of a character beyond U+FFFF, which is no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise refused(BodyFieldErrors.HALF_CHARACTER) from None
    return text


Text = Annotated[str, AfterValidator(whole_characters)]
