"""The base of every section, and the kinds of numbers and words that fields are made of."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, Strict

MOST_THREADS: Final = 1024
"""Libraries crash where the system refuses a thread, which happens not far above this."""
Auto = Literal["auto"]
"""The word for 'decide for me'; `resolution.resolve` or a measurement replaces it by the value."""

Flag = Annotated[bool, Strict()]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Strict(), Field(ge=1)]
WholeNumber = Annotated[int, Strict(), Field(ge=0)]
Seed = Annotated[int, Strict(), Field(ge=0, lt=2**32)]
"""What every generator takes, also when roles and ranks are counted into it."""
Threads = Annotated[int, Strict(), Field(ge=1, le=MOST_THREADS)]
Number = Annotated[float, Strict()]
Positive = Annotated[float, Strict(), Field(gt=0)]
AtLeastOne = Annotated[float, Strict(), Field(ge=1)]
NonNegative = Annotated[float, Strict(), Field(ge=0)]
Fraction = Annotated[float, Strict(), Field(ge=0, le=1)]
OpenFraction = Annotated[float, Strict(), Field(gt=0, lt=1)]
PositiveFraction = Annotated[float, Strict(), Field(gt=0, le=1)]
DecayRate = Annotated[float, Strict(), Field(ge=0, lt=1)]
Options = dict[str, JsonValue]
"""Free keys that are handed on as they are."""


class Section(BaseModel):
    """A frozen group of keys; a key that it does not know is an error."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )
