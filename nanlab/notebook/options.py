"""The options of %nanwatch: one for each keyword of ``watch``, and the types of their values."""

from __future__ import annotations

import inspect
import keyword
import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

from IPython.core.magic_arguments import argument

from nanlab.capture import watch

# keyword of ``watch`` -> its default; each is an option of the same name
KEYWORDS: dict[str, Any] = {
    name: one.default
    for name, one in inspect.signature(watch).parameters.items()
    if one.kind is one.KEYWORD_ONLY
}
ENTRY = re.compile(r"^(\w+): (.+?)(?=^\w+: |^$|\Z)", re.MULTILINE | re.DOTALL)


def keyword_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that gives a magic an option for each keyword of ``watch``, with its help."""
    hints = get_type_hints(watch.__init__)
    told = {
        name: " ".join(text.split()) for name, text in ENTRY.findall(inspect.getdoc(watch) or "")
    }
    for name, default in reversed(KEYWORDS.items()):
        choices = list(literals(hints[name]))
        told_default = f" (default: {default})" if default is not None else ""
        number = whole if name == "budget" else positive
        values: dict[str, Any] = (
            {"choices": choices} if choices else {"type": number, "metavar": "N"}
        )
        function = argument(
            f"--{name.replace('_', '-')}",
            default=default,
            help=(told[name].rstrip(".") + told_default).replace("%", "%%"),
            **values,
        )(function)
    return function


def literals(hint: Any) -> Iterator[str]:
    """The values of the Literals in a type."""
    for part in get_args(hint):
        if get_origin(hint) is Literal:
            yield part
        else:
            yield from literals(part)


def whole(text: str) -> int:
    """A whole number; argparse reports anything else."""
    if not text.isdecimal():
        raise ArgumentTypeError(f"expected a whole number of 0 or more, got {text!r}")
    return int(text)


def positive(text: str) -> int:
    """A positive whole number; argparse reports anything else."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"expected a whole number of 1 or more, got {text!r}")
    return int(text)


def variable(text: str) -> str:
    """A name that the notebook can bind; argparse reports anything else."""
    if not text.isidentifier() or keyword.iskeyword(text):
        raise ArgumentTypeError(f"expected a variable name such as trace, got {text!r}")
    return text


def chosen(options: Namespace) -> dict[str, Any]:
    """The keywords of ``watch`` that differ from their defaults."""
    return {k: v for k, d in KEYWORDS.items() if (v := getattr(options, k)) != d}


def described(options: Namespace) -> str:
    """The chosen options as typed; "" for none."""
    words = [
        *options.model,
        *[f"--{name.replace('_', '-')} {value}" for name, value in chosen(options).items()],
        options.guard and "--guard",
        options.snapshot and f"--snapshot {options.snapshot}",
        options.name and f"-o {options.name}",
        options.save and f"--save {options.save}",
        options.quiet and "-q",
    ]
    told = ", ".join(word for word in words if word)
    return f" ({told})" if told else ""
