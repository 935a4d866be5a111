"""Texts, and other things that occur often, as small numbers."""

from __future__ import annotations

from typing import Any

Span = tuple[
    int, int, int, int
]  # first line, first column, last line, column after the last; columns in bytes of UTF-8


class Names:
    """Texts (or other hashables) by small numbers."""

    def __init__(self, *first: Any) -> None:
        self.items: list[Any] = list(first)
        self.ids: dict[Any, int] = {item: i for i, item in enumerate(first)}

    def __call__(self, item: Any) -> int:
        number = self.ids.get(item)
        if number is None:
            number = self.ids[item] = len(self.items)
            self.items.append(item)
        return number
