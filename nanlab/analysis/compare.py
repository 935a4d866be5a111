"""A training step in low precision and in float32: where they part, which lines to widen."""

from __future__ import annotations

import copy
import functools
import inspect
import random
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from nanlab.capture.places import SourceLines
from nanlab.errors import TypeMismatchError, UsageError
from nanlab.formats import format_of
from nanlab.operators import having

MOST_OBJECTS = 2000  # that are looked through for models and optimizers


def held_by(step: Callable[..., Any]) -> list[Any]:
    """Models, optimizers, scalers, schedulers, generators and tensors that a step can reach."""
    found: list[Any] = []
    seen: set[int] = set()
    waiting: list[tuple[Any, int]] = [(step, 0)]
    for value, depth in waiting:
        if id(value) in seen or len(seen) > MOST_OBJECTS:
            continue
        seen.add(id(value))
        if isinstance(value, (nn.Module, torch.Generator, torch.Tensor)) or _stateful(value):
            found.append(value)
        elif depth < 4:
            waiting.extend((part, depth + 1) for part in _parts(value))
    return found


def _stateful(value: Any) -> bool:
    return (
        hasattr(value, "state_dict")
        and hasattr(value, "load_state_dict")
        and not isinstance(value, (type, types.ModuleType))
    )


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, types.MethodType):
        yield value.__self__
        value = value.__func__
    if isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.FunctionType):
        closed = inspect.getclosurevars(value)
        yield from closed.nonlocals.values()
        yield from (
            v for v in closed.globals.values() if not isinstance(v, (types.ModuleType, type))
        )
    elif isinstance(value, (list, tuple, set)):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    elif hasattr(value, "__dict__") and not isinstance(value, (types.ModuleType, type)):
        yield from vars(value).values()


class Rewind:
    """The state before a step, to go back to."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self.held = held_by(step)
        self.modules = [m for m in self.held if isinstance(m, nn.Module)]
        self._tensors = {id(t): t for m in self.modules for t in (*m.parameters(), *m.buffers())}
        self._tensors |= {id(t): t for t in self.held if isinstance(t, torch.Tensor)}
        self._values = [
            (t, t.detach().clone(), None if t.grad is None else t.grad.clone())
            for t in self._tensors.values()
        ]
        others = [h for h in self.held if _stateful(h) and not isinstance(h, nn.Module)]
        self._states = [(h, copy.deepcopy(h.state_dict())) for h in others]
        self._generators = [(g, g.get_state()) for g in self.held if isinstance(g, torch.Generator)]
        self._modes = [(m, m.training) for root in self.modules for m in root.modules()]
        self._random = (
            random.getstate(),
            np.random.get_state(),  # noqa: NPY002  # the user's global state
            torch.get_rng_state(),
        )
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def parameters(self) -> dict[str, torch.Tensor]:
        """The parameters of all models, by name; those outside of a model by number."""
        named = {n: p for m in self.modules for n, p in m.named_parameters()}
        known = {id(p) for p in named.values()}
        loose = [
            t
            for t in self._tensors.values()
            if t.requires_grad and t.is_leaf and id(t) not in known
        ]
        return named | {f"tensor {i}": t for i, t in enumerate(loose)}

    def back(self) -> None:
        """Put everything back."""
        with torch.no_grad():
            for tensor, value, grad in self._values:
                if tensor.dtype != value.dtype or tensor.shape != value.shape:
                    tensor.grad, tensor.data = None, value.clone()  # the step has converted it
                elif not torch.equal(tensor.detach(), value):
                    tensor.detach().copy_(value)
                tensor.grad = None if grad is None else grad.clone()
        for holder, state in self._states:
            holder.load_state_dict(copy.deepcopy(state))
        for generator, state in self._generators:
            generator.set_state(state)
        for module, training in self._modes:
            module.training = training
        random.setstate(self._random[0])
        np.random.set_state(self._random[1])  # noqa: NPY002  # the user's global state
        torch.set_rng_state(self._random[2])
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)

    @contextmanager
    def run(self) -> Iterator[None]:
        """A block after which all is as it was."""
        try:
            yield
        finally:
            self.back()


LOW = (torch.float16, torch.bfloat16)
Site = tuple[str, int]  # (file, line) of the innermost line outside torch
_CASTS = having("copies") | {"copy_"}
_UNWRITTEN = having("uninitialised")
_sequence = torch._C._autograd._get_sequence_nr  # the number that the next autograd node gets
_node = torch._C._current_autograd_node  # tried with torch 2.6 to 2.13


@contextmanager
def autocast(device: str, dtype: torch.dtype, enabled: bool) -> Iterator[None]:
    """torch.autocast around a whole step, but not around its backward pass, as its documentation
    advises.

    ``torch.autograd._engine_run_backward`` is private; it is the entry of every backward in torch
    2.2 to 2.13.
    """
    original = torch.autograd.graph._engine_run_backward

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, enabled=False):
            return original(*args, **kwargs)

    places = [
        m
        for m in (torch.autograd, torch.autograd.graph)
        if getattr(m, "_engine_run_backward", None) is original
    ]
    for place in places if enabled else ():
        setattr(place, "_engine_run_backward", run)  # noqa: B010
    try:
        with torch.autocast(device, dtype=dtype) if enabled else nullcontext():
            yield
    finally:
        for place in places:
            setattr(place, "_engine_run_backward", original)  # noqa: B010


@dataclass(frozen=True, slots=True)
class Result:
    """One output of one operation."""

    op: str
    phase: str
    site: Site
    shown: tuple[str, int]  # the user's own line
    dtype: str
    value: torch.Tensor  # float32 copy, on the CPU


@dataclass(frozen=True, slots=True)
class Cast:
    """One cast to low precision, and what it lost of its own operand."""

    phase: str
    file: str
    line: int
    source: str  # dtype
    target: str
    numel: int
    error: float  # norm of the difference over the norm of the operand, its finite elements
    flushed: float  # share of the elements that became zero
    overflowed: float


class Tap(TorchDispatchMode):
    """Keeps every floating-point result; lines in ``wide`` (None: all) compute in float32."""

    def __init__(self, lines: SourceLines, wide: frozenset[Site] | None, keep: bool = True) -> None:
        super().__init__()
        self.lines, self.wide, self.keep = lines, wide, keep
        self.results: list[Result] = []
        self.casts: list[Cast] = []
        self.low_sites: dict[Site, None] = {}  # lines on which something was in low precision
        self._places: dict[int, tuple[Site, tuple[str, int]]] = {}
        self._sequence = _sequence()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        node = _node()
        site, shown = self._place(node)
        given = args, kwargs
        if self.wide is None or site in self.wide:
            # The engine casts a gradient to the dtype of the forward value that it belongs to, and
            # insists on that.
            widen = _widen if node is None else _widen_tensor
            args, kwargs = tree_map(widen, args), tree_map(widen, kwargs)
        try:
            out = func(*args, **kwargs)
        except RuntimeError as error:
            if "dtype" not in str(error) and "type" not in str(error):
                raise
            out = _in_one_dtype(func, *given)
        self._note(func, out, node is not None, site, shown)
        if (
            self.keep
            and isinstance(out, torch.Tensor)
            and out.dtype in LOW
            and args
            and _is_cast(func, args[0], out)
        ):
            self.casts.append(
                _cast(args[0], out, "backward" if node is not None else "forward", shown)
            )
        return out

    def _place(self, node: Any) -> tuple[Site, tuple[str, int]]:
        if node is not None and (known := self._places.get(node._sequence_nr())) is not None:
            return known
        line, site = self.lines.here(sys._getframe(2))
        places = self.lines.places
        found = (places[site][2], places[site][1]), (places[line][0], places[line][1])
        now = _sequence()
        for made in range(max(self._sequence, now - 64), now):
            self._places[made] = found
        self._sequence = now
        return found

    def _note(
        self, func: Any, out: Any, backward: bool, site: Site, shown: tuple[str, int]
    ) -> None:
        name = func._opname if hasattr(func, "_opname") else str(func)
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                continue
            if value.dtype in LOW:
                self.low_sites.setdefault(site)
            # an optimizer's operations are not the step's signal
            updating = not backward and not torch.is_grad_enabled()
            told = name not in _UNWRITTEN and name not in _CASTS - {"_to_copy"}
            if self.keep and not updating and told and not value.is_meta:
                phase = "backward" if backward else "forward"
                copy = value.detach().to("cpu", torch.float32, copy=True)
                self.results.append(
                    Result(name, phase, site, shown, str(value.dtype).removeprefix("torch."), copy)
                )


def _in_one_dtype(func: Any, args: Any, kwargs: Any) -> Any:
    """Operands that differ in dtype since a line was widened: in the lowest, as before."""
    lows = {
        t.dtype
        for t in torch.utils._pytree.tree_leaves((args, kwargs))
        if isinstance(t, torch.Tensor) and t.dtype in LOW
    }
    dtype = next(iter(lows), torch.float32)

    def narrow(v: Any) -> Any:
        return v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v

    try:
        return func(*tree_map(narrow, args), **tree_map(narrow, kwargs))
    except RuntimeError:
        return func(*tree_map(_widen, args), **tree_map(_widen, kwargs))


def _is_cast(func: Any, operand: Any, out: torch.Tensor) -> bool:
    narrower = isinstance(operand, torch.Tensor) and operand.dtype in (
        torch.float32,
        torch.float64,
        *LOW,
    )
    return getattr(func, "_opname", "") == "_to_copy" and narrower and operand.dtype != out.dtype


def _cast(operand: torch.Tensor, out: torch.Tensor, phase: str, shown: tuple[str, int]) -> Cast:
    wide, narrow = operand.detach().double(), out.detach().double()
    finite, numel = torch.isfinite(wide) & torch.isfinite(narrow), max(wide.numel(), 1)
    size = float(torch.where(finite, wide, 0.0).norm())
    gap = float(torch.where(finite, narrow - wide, 0.0).norm())
    lost = float(((narrow == 0) & (wide != 0)).sum()) / numel
    over = float((torch.isfinite(wide) & ~torch.isfinite(narrow)).sum()) / numel
    dtypes = [str(t.dtype).removeprefix("torch.") for t in (operand, out)]
    return Cast(
        phase, *shown, dtypes[0], dtypes[1], wide.numel(), gap / size if size else gap, lost, over
    )


def _widen(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float32 if value in LOW else value
    return _widen_tensor(value)


def _widen_tensor(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in LOW else value


TOLERANCE = (
    # relative error of a gradient up to which two steps agree; bfloat16 rounding alone makes a few
    # per cent
    0.1
)
FLOOR = 1e-3  # of the largest gradient's rms: what is smaller is rounding
MOST_TRIALS = 300  # runs of the step in the search
_KEYS = ["phase", "op", "file", "line", "call"]


@dataclass(frozen=True)
class Comparison:
    """A step in low precision beside the same step in float32."""

    # a row per matched result: phase, op, file, line, call, error, ulps, flushed, overflowed
    table: pd.DataFrame
    # a row per cast to low precision: phase, file, line, source, target, numel, error, flushed,
    # overflowed
    casts: pd.DataFrame
    gradients: pd.DataFrame  # a row per parameter: error, flushed, overflowed of its gradient
    agrees: bool  # whether loss and gradients agree without any change
    minimal: list[tuple[str, int]]  # the fewest lines which, kept in float32, make the step agree
    # a row per line of ``minimal``: what the largest error is when it alone goes back
    proof: pd.DataFrame
    trials: int  # runs of the step
    seconds: float
    dtype: str
    # the first row in which signal is lost for good
    first_lost: dict[str, Any] | None = field(default=None)
    finite: bool = True  # whether loss and gradients are in float32

    def __repr__(self) -> str:
        if not self.finite:
            return (
                "<nanlab.Comparison: the step is not finite in float32 either; watch it first, with"
                " nanlab.watch()>"
            )
        if self.agrees:
            return f"<nanlab.Comparison: {self.dtype} agrees with float32>"
        lines = (
            ", ".join(f"{file.rsplit('/', 1)[-1]}:{line}" for file, line in self.minimal)
            or "no set of lines"
        )
        return (
            f"<nanlab.Comparison: {self.dtype} differs from float32; {lines} in float32 makes it"
            " agree; try .table, .proof>"
        )

    def plot(self, ax: Any = None) -> Any:
        """Draw the relative error of each result in running order on ``ax``, which is returned."""
        import matplotlib.pyplot as plt

        ax = ax or plt.subplots()[1]
        for phase, part in self.table.groupby("phase"):
            ax.plot(part.index, part.error.clip(lower=1e-8, upper=10.0), ".", label=phase)
        ax.axhline(format_of(getattr(torch, self.dtype)).ulp, linewidth=1, color="grey")
        ax.set(yscale="log", xlabel="operation", ylabel=f"relative error of {self.dtype}")
        ax.legend()
        return ax


def compare_step(
    step: Callable[..., Any],
    dtype: torch.dtype = torch.float16,
    *,
    tolerance: float = TOLERANCE,
    search: bool = True,
) -> Comparison:
    """Run ``step`` in ``dtype`` and in float32 on the same weights, data and random state, and
    match the results.

    step: one training step, called without arguments (or with 0); its models, optimizers, scalers
    and generators are found in what it refers to, and put back afterwards. A step that uses half
    precision itself runs as it is; any other runs under torch.autocast with ``dtype``.
    tolerance: largest relative error of the loss and of each parameter's gradient at which the two
    steps agree.
    search: look for the fewest lines that must stay in float32, by delta debugging (Zeller and
    Hildebrandt 2002).

    Raises TypeMismatchError if ``step`` cannot be called or ``dtype`` is not float16 or bfloat16,
    UsageError if no parameter gets a gradient.
    """
    if not callable(step):
        raise TypeMismatchError(
            f"expected a function that runs one training step, got {type(step).__name__}"
        )
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
            raise UsageError(
                "no parameter got a gradient in this step; expected a function that calls backward"
            )
        rms = {name: float(g.double().square().mean().sqrt()) for name, g in self.reference.items()}
        self.largest = (
            max(value for name, value in rms.items() if name != "loss"),
            max(rms.values()),
        )
        table = _matched(low.results, wide.results, self.dtype)
        agrees = self._error(found) <= self.tolerance
        finite = all(bool(torch.isfinite(value).all()) for value in self.reference.values())
        minimal: list[Site] = []
        if search and finite and not agrees:
            minimal = self._fewest(list(low.low_sites), table)
        proof = self._proof(minimal)
        shown = {r.site: r.shown for r in low.results}
        return Comparison(
            table.drop(columns="site"),
            pd.DataFrame(low.casts, columns=[f.name for f in fields(Cast)]),
            self._gradient_table(found),
            agrees,
            [shown.get(site, site) for site in minimal],
            proof.assign(
                line=[shown.get(s, s)[1] for s in minimal],
                file=[shown.get(s, s)[0] for s in minimal],
            ),
            self.trials,
            time.perf_counter() - start,
            str(self.dtype).removeprefix("torch."),
            _first_lost(table),
            finite,
        )

    def _run(
        self, wide: frozenset[Site] | None, keep: bool = True
    ) -> tuple[Tap, dict[str, torch.Tensor]]:
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
            with (
                self.rewind.run(),
                tap,
                autocast(device, self.dtype, self.autocast and wide is not None),
            ):
                result = self.step(0) if _takes_argument(self.step) else self.step()
        finally:
            for handle in handles:
                handle.remove()
        if isinstance(result, torch.Tensor) and result.numel() == 1:
            taken["loss"] = result.detach().float().reshape(1).clone()
        return tap, taken

    def _error(self, found: dict[str, torch.Tensor]) -> float:
        """Largest relative error of loss and gradients; inf where one is lost or not finite."""
        return max((self._relative(found.get(name), name) for name in self.reference), default=0.0)

    def _relative(self, got: torch.Tensor | None, name: str) -> float:
        """Error of a gradient over its norm, or over a thousandth of that of the largest gradient's
        elements.

        The gradient of a bias before a normalisation or in softmax's keys is zero but for rounding;
        its own norm says nothing.
        """
        wanted = self.reference[name]
        if got is None or got.shape != wanted.shape or not bool(torch.isfinite(got).all()):
            return float("inf")
        size = max(
            float(wanted.double().norm()),
            FLOOR * self.largest[name == "loss"] * wanted.numel() ** 0.5,
        )
        error = float((got.double() - wanted.double()).norm())
        return error / size if size else error

    def _agrees(self, sites: list[Site]) -> bool:
        return self._error(self._run(frozenset(sites), keep=False)[1]) <= self.tolerance

    def _fewest(self, sites: list[Site], table: pd.DataFrame) -> list[Site]:
        """A set of lines that makes the step agree, and none of them is superfluous."""
        suspects = list(
            dict.fromkeys(table.loc[(table.flushed + table.overflowed) > 0, "site"].tolist())
        )
        suspects += [
            s
            for s in dict.fromkeys(table.sort_values("error", ascending=False)["site"].tolist())
            if s not in suspects
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
            if got is None:
                bad = 0.0
            else:
                bad = float((~torch.isfinite(got) & torch.isfinite(value)).float().mean())
            rows.append(
                {
                    "parameter": name,
                    "error": self._relative(got, name),
                    "flushed": flushed,
                    "overflowed": bad,
                }
            )
        return pd.DataFrame(rows)


def delta_debug(items: list[Any], passes: Callable[[list[Any]], bool]) -> list[Any]:
    """A 1-minimal part of ``items`` that still passes: leaving out any one of them fails.

    The algorithm ddmin of Zeller and Hildebrandt, "Simplifying and isolating failure-inducing
    input" (2002).
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
        if parts > 2 or len(items) == 2:
            rest = next((r for r in rests if r and passes(r)), None)
        else:
            rest = None
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
    """Results of the two runs side by side, without casts; known by line, operator, count."""
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
    ulp = (
        2.0 ** torch.floor(torch.log2(wanted.abs().clamp_min(limits.smallest_normal))) * limits.ulp
    )
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
    """The first result that overflowed, or was mostly flushed and so is far from its twin."""
    lost = table[(table.overflowed > 0) | ((table.flushed > 0.5) & (table.error > TOLERANCE))]
    return None if not len(lost) else {str(k): v for k, v in lost.iloc[0].drop("site").items()}
