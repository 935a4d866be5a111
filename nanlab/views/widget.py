"""The base of the widgets: script, style and static fallback."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anywidget
import traitlets
from IPython.display import DisplayHandle, display

from nanlab.errors import UsageError

_HERE = Path(__file__).parent
# While the page still loads the widget, which will take its place, the summary has no height:
# nothing flashes up. Where style sheets are not let in, and where no widget comes, it is there.
_WAIT = (
    "@keyframes nanlab-wait { from, to { max-height: 0; overflow: hidden; visibility: hidden; } }"
)
_WAITING = "animation: nanlab-wait 1s"
_NEEDS_KERNEL = "Above is a static view; run the cell in a notebook for the interactive one."


def script(name: str) -> str:
    """The ES module of a widget: the shared functions, then its own."""
    return (_HERE / "_common.js").read_text("utf-8") + (_HERE / f"{name}.js").read_text("utf-8")


def style(name: str) -> str:
    """The style sheet of a widget: the shared rules, then its own."""
    text = "".join((_HERE / f"{file}.css").read_text("utf-8") for file in ("_common", name))
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.sub(r":[ ]+", ":", re.sub(r"\s*([{};,])\s*", r"\1", text)).strip()


def below(proposal: Any, end: int, what: str, hint: str) -> int:
    """A proposed whole number from 0 up to ``end``, excluded. Raises UsageError."""
    if not 0 <= proposal["value"] < max(1, end):
        last = max(0, end - 1)
        raise UsageError(f"expected {what} from 0 to {last}, got {proposal['value']}; {hint}")
    return int(proposal["value"])


class View(anywidget.AnyWidget):
    """A widget with a static summary for pages where no widget can be shown.

    The summary is displayed first, as an output of its own, and hidden by the live widget. It is
    also in the widget's bundle, for front ends that show HTML of untrusted notebooks.
    """

    _following = False  # whether the selection comes from elsewhere
    fallback = traitlets.Unicode().tag(sync=True)  # class of the static summary in the page

    def __init__(self, **traits: Any) -> None:
        super().__init__(fallback=f"nanlab-static-{secrets.token_hex(4)}", **traits)

    @contextmanager
    def _led(self) -> Iterator[None]:
        """While following a selection made elsewhere, without selecting it again."""
        self._following = True
        try:
            yield
        finally:
            self._following = False

    def static_html(self) -> str:
        """The summary as HTML."""
        raise NotImplementedError

    def static_text(self) -> str:
        """The summary in one line."""
        raise NotImplementedError

    def _summary(self) -> dict[str, str]:
        return {
            "text/html": (
                f'<style>{_WAIT}</style><div class="{self.fallback}"'
                f' style="{_WAITING}">{self.static_html()}</div>'
            ),
            "text/plain": self.static_text(),
        }

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle if bundle is not None else ({}, {})
        return data | {"text/html": self.static_html(), "text/plain": self.static_text()}, metadata

    def show(self) -> DisplayHandle:
        """Display the summary and the widget; the handle of the summary."""
        handle: DisplayHandle = display(self._summary(), raw=True, display_id=True)
        data, metadata = self._repr_mimebundle_()
        data |= {"text/html": f"<small>{_NEEDS_KERNEL}</small>", "text/plain": _NEEDS_KERNEL}
        display(data, metadata=metadata, raw=True)
        return handle

    def _ipython_display_(self) -> None:
        self.show()

    def __repr__(self) -> str:
        return self.static_text()
