"""Lists of findings, fixes and stations of a path that print as a person reads them; else they are
plain lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from nanlab.trace.locations import location

if TYPE_CHECKING:
    from nanlab.rules._rule import Finding, Fix

STATIONS = 6  # of a path that are printed
LINES = 30  # of a list


class Findings(list["Finding"]):
    """``trace.findings``: a line for each."""

    def __repr__(self) -> str:
        return _numbered([f"{each.severity}: {each}" for each in self], "no findings")


class Fixes(list["Fix"]):
    """``finding.fixes``: verdict, what it does, what to write."""

    tried = True  # nothing is left to wait for

    def __repr__(self) -> str:
        lines = []
        for fix in self:
            why = f" ({fix.why})" if fix.why else ""
            code = fix.code.replace("\n", "\n      ")
            lines.append(f"{fix.verdict}: {fix.title}{why}\n      {code}")
        return _numbered(lines, "no fixes")


class TriedFixes(Fixes):
    """A list that is filled the first time it is read: trying a fix runs the failing step again."""

    def __init__(self, make: Callable[[], list[Fix]]) -> None:
        super().__init__()
        self._make: Callable[[], list[Fix]] | None = make

    @property
    def tried(self) -> bool:  # type: ignore[override]
        """Whether nothing is left to wait for."""
        return self._make is None

    def _fill(self) -> None:
        make, self._make = self._make, None
        if make is not None:
            try:
                super().extend(make())
            except BaseException:  # interrupted: whoever asks next waits for it
                self._make = make
                raise

    def __iter__(self) -> Iterator[Fix]:
        self._fill()
        return super().__iter__()

    def __len__(self) -> int:
        self._fill()
        return super().__len__()

    def __getitem__(self, at: Any) -> Any:
        self._fill()
        return super().__getitem__(at)

    def __contains__(self, fix: object) -> bool:
        self._fill()
        return super().__contains__(fix)

    def __eq__(self, other: object) -> bool:
        self._fill()
        return super().__eq__(other)

    def __add__(self, other: Any) -> Any:
        self._fill()
        return super().__add__(other)

    def append(self, fix: Fix) -> None:
        """Add one more."""
        self._fill()
        super().append(fix)

    def index(self, fix: Fix, *bounds: Any) -> int:
        """Which of them it is."""
        self._fill()
        return super().index(fix, *bounds)

    def __reduce__(self) -> Any:
        return Fixes, (list(self),)

    __hash__ = None  # type: ignore[assignment]


class Path(list[dict[str, Any]]):
    """``finding.path``: from where it began to where it was seen, the first six stations and the
    count of the rest."""

    def __repr__(self) -> str:
        return "\n".join(self.told()) or "no path"

    def told(self) -> list[str]:
        """A line for each station that is printed."""
        left = len(self) - STATIONS
        shown = list(self) if left <= 0 else self[: STATIONS - 1]
        lines = [_station(each) for each in shown]
        return lines if left <= 0 else [*lines, f"... {left:,} more", _station(self[-1])]

    def chain(self) -> str:
        """``sqrt → pow → ... 4,990 more → addmm``."""
        names = [str(each.get("op") or "leaf") for each in self]
        left = len(names) - STATIONS
        names = names if left <= 0 else [*names[: STATIONS - 1], f"... {left:,} more", names[-1]]
        return " → ".join(names)


def _station(station: dict[str, Any]) -> str:
    place = location(str(station.get("file") or ""), int(station.get("line") or 0))
    where = place or str(station.get("module") or "")
    bad = int(station.get("nonfinite") or 0)
    parts = [str(station.get("phase") or ""), where, f"{bad:,} bad" if bad else ""]
    return f"{station.get('op') or 'leaf'}  ({', '.join(part for part in parts if part)})"


def _numbered(lines: list[str], none: str) -> str:
    shown = [f"{i}  {line}" for i, line in enumerate(lines[:LINES])]
    more = [f"... {len(lines) - LINES:,} more"] if len(lines) > LINES else []
    return "\n".join([*shown, *more]) or none
