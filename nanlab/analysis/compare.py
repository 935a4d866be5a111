"""A training step in low precision and in float32: where they part, which lines to widen."""

from __future__ import annotations

import inspect
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from typing import Any

import pandas as pd
import torch

from nanlab.analysis.epsilon import check_tolerance
from nanlab.capture.state import Rewind
from nanlab.capture.watching import watch
from nanlab.errors import NotReplayable, TypeMismatchError, UsageError
from nanlab.formats import format_of
from nanlab.operators import having
from nanlab.program.evidence import upcast
from nanlab.program.replay import gradient_runs, loss_of
from nanlab.program.rerun import Memory, Window, operate, rerun
from nanlab.trace.op import RECOMPUTE, Op
from nanlab.trace.program import Call, Ref, refs_in
from nanlab.trace.recording import Recording

LOW = (torch.float16, torch.bfloat16)
Site = tuple[str, int]  # (file, line) of the innermost line outside torch
_CASTS = having("copies") | {"copy_"}
_UNWRITTEN = having("uninitialised")


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


# The recorded step run again below autograd, some of its lines in float32.


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


class _Widened(Memory):
    """A step with these lines in float32 (None: all), until its last gradient is there.

    A result of such a line stays in float32 wherever it is read; an operation that does not take
    it beside half precision rounds it. A derivative is computed in the dtype of its operation.
    """

    def __init__(self, where: Window, lines: frozenset[Site] | None) -> None:
        super().__init__()
        self.where, self.lines = where, lines
        self.gradients: dict[str, torch.Tensor] = {}
        self._wide: set[int] = set()  # storages that are in float32 and were not
        self._nodes: set[int] = set()  # of the graph, whose operations ran in float32
        self._runs = [(at, run) for at, run in gradient_runs(where) if run.last > run.first]

    def run(
        self, visit: Callable[[Call, Op, tuple[Any, ...], Any], None] | None = None
    ) -> dict[str, torch.Tensor]:
        """Loss and gradients. Raises NotReplayable, and what an operator raises."""
        last = max((at, run.last - 1) for at, run in self._runs)
        given: tuple[Any, ...] = ()

        def make(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal given
            given = args
            return self._made(call, args, kwargs)

        def after(at: int, index: int, call: Call, out: Any) -> bool:
            op = self.where.recording.op(call.position)
            if visit is not None and op is not None:
                visit(call, op, given, out)
            self._take(at, index)
            return (at, index) >= last

        rerun(self.where.segments, after, make, self)
        loss = loss_of(self.where, self.tensor)
        found = {} if loss is None else {"loss": torch.tensor([loss])}
        return self.gradients | found

    def tensor(self, ref: Any) -> Any:
        """The tensor of a reference, in the dtype that it has here."""
        if ref.__class__ is Ref and ref.storage in self._wide and ref.dtype in LOW:
            ref = Ref((*ref[:4], torch.float32, *ref[5:]))
        return super().tensor(ref)

    def place(self, ref: Any, made: Any) -> None:
        """Bind what a call returned."""
        if ref.__class__ is Ref and ref.storage not in self.storages:
            if _is_wider(ref, made):
                self._wide.add(ref.storage)
        super().place(ref, made)

    def _take(self, at: int, index: int) -> None:
        """Keep the gradients that a run of the engine has left."""
        names = self.where.recording.program.names
        for segment, run in self._runs:
            if (segment, run.last - 1) != (at, index):
                continue
            pairs = (
                run.after.items() if run.accumulates else zip(run.inputs, run.results, strict=False)
            )
            for leaf, gradient in pairs:
                if leaf.__class__ is Ref and gradient.__class__ is Ref:
                    value = self.tensor(gradient)
                    # a leaf in half precision has a gradient in half precision
                    value = value if self.lines is None else value.to(gradient.dtype)
                    name = names.get(leaf.storage, f"tensor {leaf.storage}")
                    self.gradients[name] = value.float().clone()

    def _made(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        op, refs = self.where.recording.op(call.position), (call.args, call.kwargs)
        given = args, kwargs
        backward = op is not None and op.backward
        wide = self.lines is None or (op is not None and site_of(op) in self.lines)
        if backward and op is not None and op.node >= 0 and not wide:
            wide = op.node in self._nodes
            if not wide:  # the engine rounds what arrives to the dtype of the operation's result
                given = tuple(map(_as_recorded, args, call.args)), kwargs
        mutable = call.func._schema.is_mutable
        if wide and not mutable:
            given = upcast((args, kwargs), {})
        try:
            out = operate(call.func, *given)
        except RuntimeError as error:
            if "type" not in str(error):
                raise
            out = _in_one_dtype(call, args, kwargs)
        if op is not None and not backward:
            casts = op.name in _CASTS
            if _is_wider(call.out, out) or (casts and _is_wider(refs[0], args)):
                self._nodes.add(op.node)
        return out


def _is_wider(ref: Any, made: Any) -> bool:
    """Whether something that was in half precision is in float32."""
    if ref.__class__ is Ref:
        return isinstance(made, torch.Tensor) and ref.dtype in LOW and made.dtype is torch.float32
    if isinstance(ref, tuple | list) and isinstance(made, tuple | list):
        return any(map(_is_wider, ref, made))
    return False


def _as_recorded(value: Any, ref: Any) -> Any:
    """A value in the dtype that it was recorded in."""
    if ref.__class__ is Ref:
        return value.to(ref.dtype) if _is_wider(ref, value) else value
    if isinstance(value, tuple | list):
        return value.__class__([*map(_as_recorded, value, ref)])
    return value


def _in_one_dtype(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Operands that differ in dtype since a line was widened: as recorded, else in float32."""
    narrow = tuple(map(_as_recorded, args, call.args))
    try:
        out = operate(call.func, narrow, kwargs)
    except RuntimeError:
        return operate(call.func, *upcast((args, kwargs), {}))
    for actual, rounded in zip(args, narrow, strict=True):
        if actual is not rounded and isinstance(actual, torch.Tensor) and out is rounded:
            return actual.copy_(rounded)
    return out


def site_of(op: Op) -> Site:
    """The innermost line outside torch, of a derivative that of its operation."""
    _, line, real = op.recording.places[op.site]
    return real, line


def _phase(op: Op) -> str:
    return "backward" if op.backward or op.phase == RECOMPUTE else "forward"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cast(op: Op, operand: torch.Tensor, out: torch.Tensor) -> Cast:
    wide, narrow = operand.detach().double(), out.detach().double()
    place = _phase(op), op.file, op.line, _name(operand.dtype), _name(out.dtype)
    return Cast(*place, wide.numel(), *_lost(narrow, wide))


def _lost(got: torch.Tensor, wanted: torch.Tensor) -> tuple[float, float, float]:
    """Error relative to what was wanted, over the elements that are finite in both; shares of the
    elements that became zero, and that overflowed."""
    known, numel = torch.isfinite(wanted), max(wanted.numel(), 1)
    both = known & torch.isfinite(got)
    gap = float(torch.where(both, got - wanted, 0.0).double().norm())
    size = float(torch.where(both, wanted, 0.0).double().norm())
    flushed = int((known & (wanted != 0) & (got == 0)).sum()) / numel
    overflowed = int((known & ~torch.isfinite(got)).sum()) / numel
    return gap / size if size else gap, flushed, overflowed


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
    trials: int  # replays of the step
    seconds: float
    dtype: str
    # the first row in which signal is lost for good
    first_lost: dict[str, Any] | None = field(default=None)
    finite: bool = True  # whether loss and gradients are in float32

    def told(self) -> str:
        """What was found, in a line."""
        if not self.finite:
            return "the step is not finite in float32 either; watch it first, with nanlab.watch()"
        if self.agrees:
            return f"{self.dtype} agrees with float32"
        lines = (
            ", ".join(f"{file.rsplit('/', 1)[-1]}:{line}" for file, line in self.minimal)
            or "no set of lines"
        )
        return f"{self.dtype} differs from float32; {lines} in float32 makes it agree"

    def __repr__(self) -> str:
        doors = "; try .table, .proof" if self.finite and not self.agrees else ""
        return f"<nanlab.Comparison: {self.told()}{doors}>"

    def plot(self, ax: Any = None) -> Any:
        """Draw the relative error of each result in running order on ``ax``, which is returned."""
        import matplotlib.pyplot as plt

        ax = ax or plt.subplots()[1]
        for phase, part in self.table.groupby("phase"):
            ax.plot(part.index, part.error.clip(lower=1e-8, upper=10.0), ".", label=phase)
        ax.axhline(format_of(self.dtype).ulp, linewidth=1, color="grey")
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
    """Run ``step`` in ``dtype``, and what was recorded of it again in float32, and match the
    results.

    step: one training step, called once without arguments (or with 0); its models, optimizers,
    scalers and generators are found in what it refers to, and put back afterwards. A step that
    uses half precision itself runs as it is; any other a second time, under torch.autocast with
    ``dtype``.
    tolerance: largest relative error of the loss and of each parameter's gradient at which the two
    steps agree.
    search: look for the fewest lines that must stay in float32, by delta debugging (Zeller and
    Hildebrandt 2002).

    Raises TypeMismatchError if ``step`` cannot be called or ``dtype`` is not float16 or bfloat16,
    UsageError if no parameter gets a gradient, NotReplayable if the step cannot be run again.
    """
    if not callable(step):
        raise TypeMismatchError(
            f"expected a function that runs one training step, got {type(step).__name__}"
        )
    if dtype not in LOW:
        raise TypeMismatchError(f"expected torch.float16 or torch.bfloat16, got {dtype!r}")
    check_tolerance(tolerance)
    return _Comparer(step, dtype, tolerance).compare(search)


class _Comparer:
    def __init__(self, step: Callable[..., Any], dtype: torch.dtype, tolerance: float) -> None:
        self.step, self.dtype, self.tolerance = step, dtype, tolerance
        self.trials = 0
        self.where = self._recorded()
        self.reference: dict[str, torch.Tensor] = {}
        self.largest = 0.0, 0.0  # root mean square of the largest gradient; and of that or the loss

    def _recorded(self) -> Window:
        """The step's calls, in low precision. Raises UsageError."""
        for enabled in (False, True):
            rewind = Rewind(self.step)
            modules, parameters = rewind.reached.modules, rewind.reached.parameters
            device = next((p.device.type for p in parameters), "cpu")
            watching = watch(
                modules[0] if len(modules) == 1 else None, on_fault="record", keep=1000
            )
            watching.is_last = False
            try:
                with (
                    watching as trace,
                    autocast(device, self.dtype, enabled),
                ):
                    self.step(0) if _takes_argument(self.step) else self.step()
            finally:
                rewind.back()
            where = _everything(trace.recording)
            if not any(run.last > run.first for _, run in gradient_runs(where)):
                raise UsageError(
                    "no parameter got a gradient in this step; expected a function that calls"
                    " backward"
                )
            calls = (call for segment in where.segments for call in segment.calls)
            if any(ref.dtype in LOW for call in calls for ref in refs_in(call.out)):
                break
        return where

    def compare(self, search: bool) -> Comparison:
        start = time.perf_counter()
        wide: dict[int, list[torch.Tensor]] = {}
        rows: list[dict[str, Any]] = []
        casts: list[Cast] = []
        counts: Counter[Any] = Counter()
        low_sites: dict[Site, None] = {}  # lines on which something was in low precision
        reference, low = _Widened(self.where, None), _Widened(self.where, frozenset())

        def keep(call: Call, op: Op, args: tuple[Any, ...], out: Any) -> None:
            if _is_compared(call, op):
                wide[call.position] = [t.cpu().float().clone() for t in _floats(out)]

        def match(call: Call, op: Op, args: tuple[Any, ...], out: Any) -> None:
            made = _floats(out)
            if any(t.dtype in LOW for t in made):
                low_sites.setdefault(site_of(op))
                if op.name == "_to_copy" and args[0].dtype != out.dtype:
                    casts.append(_cast(op, args[0], out))
            for now, twin in zip(made, wide.pop(call.position, ()), strict=False):
                key = _phase(op), op.name, site_of(op)
                counts[key] += 1
                if twin.shape == now.shape and now.numel():
                    rows.append(_row(op, now, twin, counts[key], self.dtype))

        self.reference, found = self._run(reference, keep), self._run(low, match)
        rms = {name: float(g.double().square().mean().sqrt()) for name, g in self.reference.items()}
        self.largest = (
            max((value for name, value in rms.items() if name != "loss"), default=0.0),
            max(rms.values(), default=0.0),
        )
        columns = [*_KEYS, "dtype", "error", "ulps", "flushed", "overflowed", "site"]
        table = pd.DataFrame(rows, columns=columns)
        agrees = self._error(found) <= self.tolerance
        finite = all(bool(torch.isfinite(value).all()) for value in self.reference.values())
        minimal: list[Site] = []
        if search and finite and not agrees:
            minimal = self._fewest(list(low_sites), table)
        proof = self._proof(minimal)
        places = zip(table.site, table.file, table.line, strict=True)
        shown = {site: (file, line) for site, file, line in places}
        return Comparison(
            table.drop(columns="site"),
            pd.DataFrame(casts, columns=[f.name for f in fields(Cast)]),
            self._gradient_table(found),
            agrees,
            [shown.get(site, site) for site in minimal],
            proof.assign(
                line=[shown.get(s, s)[1] for s in minimal],
                file=[shown.get(s, s)[0] for s in minimal],
            ),
            self.trials,
            time.perf_counter() - start,
            _name(self.dtype),
            _first_lost(table),
            finite,
        )

    def _run(self, trial: _Widened, visit: Any = None) -> dict[str, torch.Tensor]:
        """Loss and gradients of a trial. Raises NotReplayable."""
        self.trials += 1
        try:
            return trial.run(visit)
        except RuntimeError as error:
            raise NotReplayable(
                f"the step cannot be run in another precision: {str(error).splitlines()[0][:160]}"
            ) from error

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
        return self._error_with(sites) <= self.tolerance

    def _error_with(self, sites: list[Site]) -> float:
        """The error with these lines in float32; inf where the step does not run so."""
        try:
            return self._error(self._run(_Widened(self.where, frozenset(sites))))
        except NotReplayable:
            return float("inf")

    def _fewest(self, sites: list[Site], table: pd.DataFrame) -> list[Site]:
        """A set of lines that makes the step agree, and none of them is superfluous."""
        lost = table.loc[(table.flushed + table.overflowed) > 0, "site"].tolist()
        far = table.sort_values("error", ascending=False)["site"].tolist()
        for site in [*dict.fromkeys([*lost, *far])][:8]:
            if self._agrees([site]):
                return [site]
        return delta_debug(sites, self._agrees) if self._agrees(sites) else []

    def _proof(self, minimal: list[Site]) -> pd.DataFrame:
        rows = []
        for site in minimal:
            others = [s for s in minimal if s != site]
            error = self._error_with(others)
            rows.append({"error_without": error, "breaks": error > self.tolerance})
        return pd.DataFrame(rows, columns=["error_without", "breaks"])

    def _gradient_table(self, found: dict[str, torch.Tensor]) -> pd.DataFrame:
        rows = []
        for name, value in self.reference.items():
            got = found.get(name)
            flushed, bad = 1.0, 0.0
            if got is not None:
                flushed = float(((got == 0) & (value != 0)).float().mean())
                bad = float((~torch.isfinite(got) & torch.isfinite(value)).float().mean())
            rows.append((name, self._relative(got, name), flushed, bad))
        return pd.DataFrame(rows, columns=["parameter", "error", "flushed", "overflowed"])


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
        tried = parts > 2 or len(items) == 2
        rest = next((r for r in rests if tried and r and passes(r)), None)
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
    except ValueError:  # a function of C
        pass
    return False


def _everything(recording: Recording) -> Window:
    """All that was recorded, as far as it goes without a gap."""
    if recording.program.reason:
        raise NotReplayable(f"the step was not recorded: {recording.program.reason}")
    runs = recording.program.runs()
    return Window(recording, 0, 0, 1 << 62, runs[-1] if runs else [])


def _is_compared(call: Call, op: Op) -> bool:
    """Whether a call makes a part of the signal: it is no cast, and no part of an update."""
    return (op.backward or call.grad) and op.name not in _UNWRITTEN | _CASTS


def _floats(out: Any) -> list[torch.Tensor]:
    flat = out if isinstance(out, tuple | list) else (out,)
    return [t.detach() for t in flat if isinstance(t, torch.Tensor) and t.is_floating_point()]


def _row(
    op: Op, now: torch.Tensor, wanted: torch.Tensor, call: int, dtype: torch.dtype
) -> dict[str, Any]:
    got, limits = now.cpu().float(), format_of(dtype)
    error, flushed, overflowed = _lost(got, wanted)
    both = torch.isfinite(wanted) & torch.isfinite(got)
    gap = torch.where(both, (got - wanted).abs(), 0.0).double()
    exponent = torch.floor(torch.log2(wanted.abs().clamp_min(limits.smallest_normal)))
    return {
        "phase": _phase(op),
        "op": op.name,
        "file": op.file,
        "line": op.line,
        "call": call,
        "dtype": _name(now.dtype),
        "error": error,
        "ulps": float((gap / (2.0**exponent * limits.ulp)).max()),
        "flushed": flushed,
        "overflowed": overflowed,
        "site": site_of(op),
    }


def _first_lost(table: pd.DataFrame) -> dict[str, Any] | None:
    """The first result that overflowed, or was mostly flushed and so is far from its twin."""
    lost = table[(table.overflowed > 0) | ((table.flushed > 0.5) & (table.error > TOLERANCE))]
    return None if not len(lost) else {str(k): v for k, v in lost.iloc[0].drop("site").items()}
