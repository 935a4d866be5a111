"""A place in the user's program, as people read it."""

from __future__ import annotations

import os


def location(file: str, line: int | str) -> str:
    """``train.py:41`` or ``In[7]:3``: a file below the current folder by its relative path; ""
    where there is no file."""
    if not file:
        return ""
    for folder in ("site-packages", "dist-packages"):  # of an installed package, as it is imported
        _, found, below = file.replace(os.sep, "/").rpartition(f"/{folder}/")
        if found:
            return f"{below}:{line}"
    try:
        below = os.path.relpath(file) if os.path.isabs(file) else file
    except (OSError, ValueError):  # the folder is gone, or on another drive
        below = file
    return f"{file if below.startswith(os.pardir) else below}:{line}"
