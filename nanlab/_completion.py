"""What Tab offers on a line of %nanwatch: options, their values, and variables that hold a model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from IPython.core.completer import SimpleCompletion, context_matcher
from IPython.core.getipython import get_ipython

from nanlab._models import models

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
