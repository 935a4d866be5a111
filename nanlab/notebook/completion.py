"""Tab completion on a line of %nanwatch: options, their values, models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from IPython.core import completer
from IPython.core.getipython import get_ipython

from nanlab.notebook.models import models

if TYPE_CHECKING:
    from IPython.core.completer import CompletionContext, SimpleMatcherResult

LINE = re.compile(r"\s*%%?nanwatch\s(?P<words>.*)$")
WORDS = ("off", "on")


def candidates(
    words: list[str], fragment: str, parser: Any, namespace: dict[str, Any]
) -> Iterator[str]:
    """Words that may follow ``words`` in place of ``fragment``, whatever its letters."""
    options = {name: action for action in parser._actions for name in action.option_strings}
    pending = None
    for word in words:
        if pending is None and word in options and options[word].nargs != 0:
            pending = options[word]
        else:
            pending = None
    if pending is not None:
        yield from pending.choices or ()
        return
    yield from (name for name in models(fragment, namespace) if name not in words)
    yield from (option for option in options if option not in words)


def completions(line: str) -> tuple[list[str], str]:
    """Completions for a line of %nanwatch up to the cursor, and the fragment they replace."""
    shell = get_ipython()
    match = LINE.match(line)
    if match is None or shell is None:
        return [], ""
    head, _, fragment = match["words"].rpartition(" ")
    parser = shell.find_line_magic("nanwatch").parser
    words = head.split()
    found = [
        word
        for word in candidates(words, fragment, parser, shell.user_ns)
        if word.startswith(fragment)
    ]
    if not words and "%%" not in line:
        found += [word for word in WORDS if word.startswith(fragment) and word not in found]
    return found, fragment


def nanwatch_matcher(context: CompletionContext) -> SimpleMatcherResult:
    """IPython matcher for lines of %nanwatch and %%nanwatch."""
    found, fragment = completions(context.line_with_cursor[: context.cursor_position])
    if not found:
        return {"completions": []}
    made = [completer.SimpleCompletion(word, type="param") for word in found]
    return {"completions": made, "matched_fragment": fragment, "suppress": True}


def nanwatch_words(text: str) -> list[str]:
    """The matcher for IPython before 8.6, which passes the last word and takes words."""
    shell = get_ipython()
    return completions(shell.Completer.text_until_cursor)[0] if shell is not None else []


def matcher() -> Any:
    """The matcher to register with this IPython's completer."""
    if not hasattr(completer, "context_matcher"):
        return nanwatch_words
    return completer.context_matcher(identifier="nanlab.nanwatch", priority=100)(nanwatch_matcher)
