"""Base class of request bodies: strict fields, and errors that name the field."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from sscc.runtime.serving.server.api_errors import INVALID_VALUE, ApiKind

REFUSED = "refused"
"""Type of the pydantic errors that carry a kind (`refused`)."""


class ValueKind(ApiKind):
    """Base of the enums of errors about a parameter's value."""

    def __init__(self, message: str) -> None:
        super().__init__("{param} is {value}: " + message, INVALID_VALUE)


class BodyFieldErrors(ValueKind):
    HALF_CHARACTER = "it contains half of a surrogate pair, which is not a character"


def refused(kind: ValueKind, **fields: Any) -> PydanticCustomError:
    """Return the error that a validator raises for a value. The caller of the validator adds the parameter and the
    value."""
    return PydanticCustomError(REFUSED, "the value is refused", {"kind": kind, "fields": fields})


class Parameters(BaseModel):
    """Base of bodies and their parts. It refuses unknown fields, and values of the wrong type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _one_unknown(cls, data: Any) -> Any:
        """Drop all unknown names but the first, because pydantic creates an error of a kilobyte for each of them."""
        if not isinstance(data, dict):
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = [name for name in data if name not in known]
        return {name: value for name, value in data.items() if name in known or name == unknown[0]}


def whole_characters(text: str) -> str:
    """Return a text without lone surrogates, which JSON can express but UTF-8 cannot. Raises pydantic's error for
    others."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise refused(BodyFieldErrors.HALF_CHARACTER) from None
    return text


Text = Annotated[str, AfterValidator(whole_characters)]
