"""The errors nanlab raises, each also the built-in type that fits."""

from __future__ import annotations


class NanlabError(Exception):
    """Base of nanlab's errors; the message says what was wrong, what was seen, what to do."""


class UsageError(NanlabError, ValueError):
    """An argument has the right type and a wrong value, or a call came at the wrong time."""


class TypeMismatchError(NanlabError, TypeError):
    """An argument has the wrong type: no floating-point dtype, no ``nn.Module``."""


class CapsuleError(NanlabError, ValueError):
    """A saved trace cannot be read or written: no capsule, cut, damaged, or of another version."""


class NotReplayable(NanlabError, RuntimeError):
    """A recorded step cannot be run again; the message says why, and what to do."""
