"""Paths that a user gives, of a file to read or of something to write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nanlab.errors import TypeMismatchError, UsageError


def path_of(given: object, example: str) -> Path:
    """The path that was given; ``example`` is what to type. Raises TypeMismatchError."""
    if not isinstance(given, (str, os.PathLike)):
        raise TypeMismatchError(f"expected a path, got {given!r}; try: {example}")
    return Path(given)


@contextmanager
def writing(what: str, there: Path) -> Iterator[None]:
    """Raise UsageError where the block cannot write."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{what} could not be written to {there}: {error.strerror or error}"
        ) from error
