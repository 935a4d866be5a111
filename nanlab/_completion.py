"""What Tab offers on a line of %nanwatch: options, their values, and variables that hold a model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from IPython.core.completer import SimpleCompletion, context_matcher
from IPython.core.getipython import get_ipython
from torch import nn

if TYPE_CHECKING:
    from IPython.core.completer import CompletionContext, SimpleMatcherResult

LINE = re.compile(r"\s*%%?nanwatch\s(?P<words>.*)$")
WORDS = ("off", "on")


def candidates(words: list[str], fragment: str, parser: Any, namespace: dict[str, Any]) -> Iterator[str]:
    """What may stand in place of ``fragment`` after ``words``; not yet narrowed to what begins with it."""
    options = {name: action for action in parser._actions for name in action.option_strings}
    model_given = False
    pending = None
    for word in words:
        model_given |= pending is None and word not in options
        pending = options[word] if pending is None and word in options and options[word].nargs != 0 else None
    if pending is not None:
        yield from pending.choices or ()
        return
    if not model_given:
        yield from models(fragment, namespace)
    yield from (option for option in options if option not in words)


def models(fragment: str, namespace: dict[str, Any]) -> Iterator[str]:
    """Variables that are modules, and after a dot the attributes that are."""
    owner, dot, _ = fragment.rpartition(".")
    if not dot:
        yield from (name for name, value in namespace.items() if is_model(name, value))
        return
    value = namespace.get(owner.split(".")[0])
    for name in owner.split(".")[1:]:
        value = vars(value).get(name) if hasattr(value, "__dict__") else None
    inside = dict(value.named_children()) if isinstance(value, nn.Module) else getattr(value, "__dict__", {})
    yield from (f"{owner}.{name}" for name, part in inside.items() if is_model(name, part))


def is_model(name: str, value: object) -> bool:
    """Whether a variable is worth offering: a module under a name of the user's own."""
    return isinstance(value, nn.Module) and not name.startswith("_")


@context_matcher(identifier="nanlab.nanwatch", priority=100)
def nanwatch_matcher(context: CompletionContext) -> SimpleMatcherResult:
    """Complete a line of %nanwatch or %%nanwatch; elsewhere nothing."""
    shell = get_ipython()
    match = LINE.match(context.line_with_cursor[: context.cursor_position])
    if match is None or shell is None:
        return {"completions": []}
    head, _, fragment = match["words"].rpartition(" ")
    parser = shell.find_line_magic("nanwatch").parser
    words = head.split()
    found = [word for word in candidates(words, fragment, parser, shell.user_ns) if word.startswith(fragment)]
    if not words and "%%" not in context.line_with_cursor:
        found += [word for word in WORDS if word.startswith(fragment) and word not in found]
    return {
        "completions": [SimpleCompletion(word, type="param") for word in found],
        "matched_fragment": fragment,
        "suppress": bool(found),
    }
