"""The options of %nanwatch: what their values may be, and how a choice reads."""

from __future__ import annotations

import keyword
from argparse import ArgumentTypeError, Namespace


def positive(text: str) -> int:
    """A whole number from 1 on; argparse reports anything else."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return int(text)


def variable(text: str) -> str:
    """A name that the notebook can bind; argparse reports anything else."""
    if not text.isidentifier() or keyword.iskeyword(text):
        raise ArgumentTypeError(f"expected a variable name such as trace, got {text!r}")
    return text


def described(options: Namespace) -> str:
    """The options that were chosen, as they are typed."""
    words = [
        options.model,
        options.steps and f"--steps {options.steps}",
        f"--keep {options.keep}",
        f"--on-fault {options.on_fault}",
        options.detail != "full" and f"--detail {options.detail}",
        options.guard and "--guard",
        options.snapshot and f"--snapshot {options.snapshot}",
        options.shadow and f"--shadow {options.shadow}",
        options.name and f"-o {options.name}",
        options.quiet and "-q",
    ]
    return f" ({', '.join(word for word in words if word)})"
