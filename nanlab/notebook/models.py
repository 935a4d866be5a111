"""The models of a notebook, by the names the user gave them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from torch import nn

from nanlab.errors import TypeMismatchError, UsageError

PLAIN = (
    ast.Expression,
    ast.Name,
    ast.Attribute,
    ast.Subscript,
    ast.Constant,
    ast.UnaryOp,
    ast.USub,
    ast.Load,
)


def find_model(text: str, namespace: dict[str, Any]) -> nn.Module:
    """The module behind a name, an attribute path or an index such as ``models[0]``; no call is
    made.

    Raises UsageError if there is none, TypeMismatchError if it is no module.
    """
    wanted = f"expected a variable such as model or trainer.model, got {text!r}"
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        raise UsageError(f"{wanted}; {suggestion(text, namespace)}") from None
    if not all(isinstance(node, PLAIN) for node in ast.walk(tree)):
        raise UsageError(f"{wanted}; assign it to a variable first, and watch that")
    try:
        value = eval(compile(tree, "<nanwatch>", "eval"), namespace)
    except Exception as error:
        seen = f"{type(error).__name__}: {error}"
        raise UsageError(
            f"no model is called {text} ({seen}); {suggestion(text, namespace)}"
        ) from None
    if not isinstance(value, nn.Module):
        kind = type(value).__name__
        raise TypeMismatchError(
            f"expected a torch.nn.Module, got {text} of type {kind}; {suggestion(text, namespace)}"
        )
    return value


def suggestion(text: str, namespace: dict[str, Any]) -> str:
    """A hint: the model with the most similar name, or how to watch without one."""
    found = list(models("", namespace))
    if not found:
        return "run the cell that makes the model first, or leave the model out: %%nanwatch"
    return f"try: %%nanwatch {(get_close_matches(text, found, n=1, cutoff=0.0) or found)[0]}"


def models(typed: str, namespace: dict[str, Any]) -> Iterator[str]:
    """Variables that are modules; if ``typed`` has a dot, attributes that are."""
    owner, dot, _ = typed.rpartition(".")
    if not dot:
        yield from (name for name, value in namespace.items() if is_model(name, value))
        return
    value = namespace.get(owner.split(".")[0])
    for name in owner.split(".")[1:]:
        value = parts(value).get(name)
    yield from (f"{owner}.{name}" for name, part in parts(value).items() if is_model(name, part))


def parts(value: object) -> dict[str, Any]:
    """Attributes of an object without running properties; of a module, its children."""
    if isinstance(value, nn.Module):
        return dict(value.named_children())
    return dict(getattr(value, "__dict__", {}))


def is_model(name: str, value: object) -> bool:
    """Whether a variable is a module under a public name."""
    return isinstance(value, nn.Module) and not name.startswith("_")
