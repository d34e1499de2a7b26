"""The error about a value: which argument it is, what is allowed, and what was received."""

from __future__ import annotations

from typing import Any, Final

_MAX_BITS: Final = 300
_MAX_SHOWN: Final = 200


class BadValueError(ValueError):
    """A value is not what it must be.

    Attributes:
        name: The argument or option, as its caller wrote it. Tests ask for this, not for words.
        allowed: What the value must be.

    >>> raise BadValueError("rounds", "at least 1", 0, fix="Try rounds=1")
    Traceback (most recent call last):
    leakmeter.auditors.errors.BadValueError: rounds must be at least 1, got 0. Try rounds=1.
    """

    def __init__(
        self, name: str, allowed: str, value: object, *, fix: str = "", hint: str = ""
    ) -> None:
        """Word the error.

        Args:
            name: The argument or option, as its caller wrote it.
            allowed: What the value must be; it follows "must be".
            value: What was received.
            fix: What to do next, as a sentence without its full stop.
            hint: What else follows the value, such as the nearest name.
        """
        self.name, self.allowed = name, allowed
        advice = f". {fix}." if fix else ""
        super().__init__(f"{name} must be {allowed}, got {shown(value)}{hint}{advice}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what remakes the error where Ray or another process hands it on."""
        return ValueError.__new__, (type(self), *self.args), {**self.__dict__, "args": self.args}


def shown(value: object) -> str:
    """Return a value as Python writes it, in one line that fits a terminal.

    >>> shown("x"), shown(10**5000), shown([1] * 1000)
    ("'x'", 'a number of 16610 bits', '[1, 1, 1, 1, 1, 1, 1…')
    """
    if hasattr(value, "dtype") and not getattr(value, "shape", (1,)):
        value = value.item()  # type: ignore[attr-defined]  # numpy's, which is not imported for it
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"a number of {value.bit_length()} bits"  # Python refuses to write very long ones
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # such a number, or deep nesting, inside of it
        return f"a {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN else f"{text[:20].rstrip()}…"
