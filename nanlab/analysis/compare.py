"""The same training step in low precision and in float32: where they part, and the fewest lines that bring them together."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import pandas as pd
import torch

from nanlab.analysis._casting import LOW, Cast, Result, Site, Tap, autocast
from nanlab.analysis._rewind import Rewind
from nanlab.capture.source import SourceLines
from nanlab.errors import TypeMismatchError, UsageError
from nanlab.formats import format_of

TOLERANCE = (
    0.1  # relative error of a gradient up to which two steps agree; bfloat16 rounding alone makes a few per cent
)
FLOOR = 1e-3  # of the largest gradient's rms: what is smaller is rounding
MOST_TRIALS = 300  # runs of the step in the search
_KEYS = ["phase", "op", "file", "line", "call"]


@dataclass(frozen=True)
class Comparison:
    """A step in low precision beside the same step in float32."""

    table: pd.DataFrame  # a row per matched result: phase, op, file, line, call, error, ulps, flushed, overflowed
    casts: (
        pd.DataFrame
    )  # a row per cast to low precision: phase, file, line, source, target, numel, error, flushed, overflowed
    gradients: pd.DataFrame  # a row per parameter: error, flushed, overflowed of its gradient
    agrees: bool  # whether loss and gradients agree without any change
    minimal: list[tuple[str, int]]  # the fewest lines which, kept in float32, make the step agree
    proof: pd.DataFrame  # a row per line of ``minimal``: what the largest error is when it alone goes back
    trials: int  # runs of the step
    seconds: float
    dtype: str
    first_lost: dict[str, Any] | None = field(default=None)  # the first row in which signal is lost for good

    def __repr__(self) -> str:
        if self.agrees:
            return f"<nanlab.Comparison: {self.dtype} agrees with float32>"
        lines = ", ".join(f"{file.rsplit('/', 1)[-1]}:{line}" for file, line in self.minimal) or "no set of lines"
        return f"<nanlab.Comparison: {self.dtype} differs from float32; {lines} in float32 makes it agree; try .table, .proof>"

    def plot(self, ax: Any = None) -> Any:
        """Draw the relative error of each result in the order in which they ran, on ``ax``, which is returned."""
        import matplotlib.pyplot as plt

        ax = ax or plt.subplots()[1]
        for phase, part in self.table.groupby("phase"):
            ax.plot(part.index, part.error.clip(lower=1e-8, upper=10.0), ".", label=phase)
        ax.axhline(format_of(getattr(torch, self.dtype)).ulp, linewidth=1, color="grey")
        ax.set(yscale="log", xlabel="operation", ylabel=f"relative error of {self.dtype}")
        ax.legend()
        return ax


def compare_step(
    step: Callable[..., Any], dtype: torch.dtype = torch.float16, *, tolerance: float = TOLERANCE, search: bool = True
) -> Comparison:
    """Run ``step`` in ``dtype`` and in float32 on the same weights, data and random state, and match the results.

    step: one training step, called without arguments (or with 0); its models, optimizers, scalers and generators are
    found in what it refers to, and put back afterwards. A step that uses half precision itself runs as it is; any
    other runs under torch.autocast with ``dtype``.
    tolerance: largest relative error of the loss and of each parameter's gradient at which the two steps agree.
    search: look for the fewest lines that must stay in float32, by delta debugging (Zeller and Hildebrandt 2002).

    Raises TypeMismatchError if ``step`` cannot be called or ``dtype`` is not float16 or bfloat16, UsageError if no
    parameter gets a gradient.
    """
    if not callable(step):
        raise TypeMismatchError(f"expected a function that runs one training step, got {type(step).__name__}")
    if dtype not in LOW:
        raise TypeMismatchError(f"expected torch.float16 or torch.bfloat16, got {dtype}")
    return _Comparer(step, dtype, tolerance).compare(search)


class _Comparer:
    def __init__(self, step: Callable[..., Any], dtype: torch.dtype, tolerance: float) -> None:
        self.step, self.dtype, self.tolerance = step, dtype, tolerance
        self.rewind, self.lines = Rewind(step), SourceLines()
        self.trials = 0
        self.autocast = False
        self.reference: dict[str, torch.Tensor] = {}
        self.largest = 0.0, 0.0  # root mean square of the largest gradient; and of that or the loss

    def compare(self, search: bool) -> Comparison:
        start = time.perf_counter()
        low, found = self._run(frozenset())
        if not any(r.dtype in ("float16", "bfloat16") for r in low.results):
            self.autocast = True
            low, found = self._run(frozenset())
        wide, self.reference = self._run(None)
        if not self.reference.keys() - {"loss"}:
            raise UsageError("no parameter got a gradient in this step; expected a function that calls backward")
        rms = {name: float(g.double().square().mean().sqrt()) for name, g in self.reference.items()}
        self.largest = max(value for name, value in rms.items() if name != "loss"), max(rms.values())
        table = _matched(low.results, wide.results, self.dtype)
        agrees = self._error(found) <= self.tolerance
        minimal: list[Site] = []
        if search and not agrees:
            minimal = self._fewest(list(low.low_sites), table)
        proof = self._proof(minimal)
        shown = {r.site: r.shown for r in low.results}
        return Comparison(
            table.drop(columns="site"),
            pd.DataFrame(low.casts, columns=[f.name for f in fields(Cast)]),
            self._gradient_table(found),
            agrees,
            [shown.get(site, site) for site in minimal],
            proof.assign(line=[shown.get(s, s)[1] for s in minimal], file=[shown.get(s, s)[0] for s in minimal]),
            self.trials,
            time.perf_counter() - start,
            str(self.dtype).removeprefix("torch."),
            _first_lost(table),
        )

    def _run(self, wide: frozenset[Site] | None, keep: bool = True) -> tuple[Tap, dict[str, torch.Tensor]]:
        """(the run, loss and gradients) with these lines in float32; None: all."""
        self.trials += 1
        tap = Tap(self.lines, wide, keep)
        taken: dict[str, torch.Tensor] = {}
        names = {id(p): n for n, p in self.rewind.parameters().items()}
        handles = [
            p.register_post_accumulate_grad_hook(
                lambda p: taken.update({names[id(p)]: p.grad.detach().float().clone()})
            )
            for p in self.rewind.parameters().values()
            if p.requires_grad
        ]
        device = next((p.device.type for p in self.rewind.parameters().values()), "cpu")
        try:
            with self.rewind.run(), tap, autocast(device, self.dtype, self.autocast and wide is not None):
                result = self.step(0) if _takes_argument(self.step) else self.step()
        finally:
            for handle in handles:
                handle.remove()
        if isinstance(result, torch.Tensor) and result.numel() == 1:
            taken["loss"] = result.detach().float().reshape(1).clone()
        return tap, taken

    def _error(self, found: dict[str, torch.Tensor]) -> float:
        """Largest relative error of loss and gradients; inf where one is lost whole or not finite."""
        return max((self._relative(found.get(name), name) for name in self.reference), default=0.0)

    def _relative(self, got: torch.Tensor | None, name: str) -> float:
        """Error of a gradient over its norm, or over a thousandth of that of the largest gradient's elements.

        The gradient of a bias before a normalisation or in softmax's keys is zero but for rounding; its own norm says nothing.
        """
        wanted = self.reference[name]
        if got is None or got.shape != wanted.shape or not bool(torch.isfinite(got).all()):
            return float("inf")
        size = max(float(wanted.double().norm()), FLOOR * self.largest[name == "loss"] * wanted.numel() ** 0.5)
        error = float((got.double() - wanted.double()).norm())
        return error / size if size else error

    def _agrees(self, sites: list[Site]) -> bool:
        return self._error(self._run(frozenset(sites), keep=False)[1]) <= self.tolerance

    def _fewest(self, sites: list[Site], table: pd.DataFrame) -> list[Site]:
        """A smallest-by-one set of lines that makes the step agree: without any one of them it does not."""
        suspects = list(dict.fromkeys(table.loc[(table.flushed + table.overflowed) > 0, "site"].tolist()))
        suspects += [
            s for s in dict.fromkeys(table.sort_values("error", ascending=False)["site"].tolist()) if s not in suspects
        ]
        for site in suspects[:8]:
            if self._agrees([site]):
                return [site]
        return delta_debug(sites, self._agrees) if self._agrees(sites) else []

    def _proof(self, minimal: list[Site]) -> pd.DataFrame:
        rows = []
        for site in minimal:
            others = [s for s in minimal if s != site]
            error = self._error(self._run(frozenset(others), keep=False)[1])
            rows.append({"error_without": error, "breaks": error > self.tolerance})
        return pd.DataFrame(rows, columns=["error_without", "breaks"])

    def _gradient_table(self, found: dict[str, torch.Tensor]) -> pd.DataFrame:
        rows = []
        for name, value in self.reference.items():
            got = found.get(name)
            flushed = 1.0 if got is None else float(((got == 0) & (value != 0)).float().mean())
            bad = 0.0 if got is None else float((~torch.isfinite(got) & torch.isfinite(value)).float().mean())
            rows.append({"parameter": name, "error": self._relative(got, name), "flushed": flushed, "overflowed": bad})
        return pd.DataFrame(rows)


def delta_debug(items: list[Any], passes: Callable[[list[Any]], bool]) -> list[Any]:
    """A 1-minimal part of ``items`` that still passes: leaving out any one of them fails.

    The algorithm ddmin of Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input" (2002).
    """
    parts = 2
    for _ in range(MOST_TRIALS):
        if len(items) < 2:
            break
        size = -(-len(items) // parts)
        chunks = [items[i : i + size] for i in range(0, len(items), size)]
        smaller = next((c for c in chunks if len(chunks) > 1 and passes(c)), None)
        if smaller is not None:
            items, parts = smaller, 2
            continue
        rests = ([i for i in items if i not in c] for c in chunks)
        rest = next((r for r in rests if r and passes(r)), None) if parts > 2 or len(items) == 2 else None
        if rest is not None:
            items, parts = rest, max(parts - 1, 2)
        elif parts >= len(items):
            break
        else:
            parts = min(len(items), 2 * parts)
    return items


def _takes_argument(step: Callable[..., Any]) -> bool:
    try:
        inspect.signature(step).bind()
    except TypeError:
        return True
    except ValueError:
        return False
    return False


def _matched(low: list[Result], wide: list[Result], dtype: torch.dtype) -> pd.DataFrame:
    """The results of the two runs beside each other, casts left out; a result is known by its line, operator and count."""
    counts: dict[Any, int] = {}
    reference: dict[Any, Result] = {}
    for result in wide:
        key = (result.phase, result.op, result.site)
        counts[key] = counts.get(key, 0) + 1
        reference[(*key, counts[key])] = result
    rows, counts = [], {}
    for result in low:
        key = (result.phase, result.op, result.site)
        counts[key] = counts.get(key, 0) + 1
        twin = reference.get((*key, counts[key]))
        if (
            result.op != "_to_copy"
            and twin is not None
            and twin.value.shape == result.value.shape
            and result.value.numel()
        ):
            rows.append(_row(result, twin, counts[key], dtype))
    columns = [*_KEYS, "dtype", "error", "ulps", "flushed", "overflowed", "site"]
    return pd.DataFrame(rows, columns=columns)


def _row(result: Result, twin: Result, call: int, dtype: torch.dtype) -> dict[str, Any]:
    got, wanted = result.value, twin.value
    known = torch.isfinite(wanted)
    both = known & torch.isfinite(got)
    gap = torch.where(both, (got - wanted).abs(), torch.zeros_like(got)).double()
    size = float(torch.where(both, wanted, torch.zeros_like(wanted)).double().norm())
    limits = format_of(dtype)
    ulp = 2.0 ** torch.floor(torch.log2(wanted.abs().clamp_min(limits.smallest_normal))) * limits.ulp
    numel = wanted.numel()
    return {
        "phase": result.phase,
        "op": result.op,
        "file": result.shown[0],
        "line": result.shown[1],
        "call": call,
        "dtype": result.dtype,
        "error": float(gap.norm()) / size if size else float(gap.norm()),
        "ulps": float((gap / ulp).max()),
        "flushed": int((known & (wanted != 0) & (got == 0)).sum()) / numel,
        "overflowed": int((known & ~torch.isfinite(got)).sum()) / numel,
        "site": result.site,
    }


def _first_lost(table: pd.DataFrame) -> dict[str, Any] | None:
    """The first result that overflowed, or that was flushed for the most part and is far from its twin for it."""
    lost = table[(table.overflowed > 0) | ((table.flushed > 0.5) & (table.error > TOLERANCE))]
    return None if not len(lost) else {str(k): v for k, v in lost.iloc[0].drop("site").items()}
