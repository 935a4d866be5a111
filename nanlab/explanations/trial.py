"""The program run again in a process of its own, with other lines: whether it then raises."""

from __future__ import annotations

import ast
import builtins
import ctypes
import difflib
import dis
import gc
import io
import itertools
import linecache
import math
import multiprocessing
import os
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import tokenize
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, wraps
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, NoReturn

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from nanlab.capture.places import display_name, is_user
from nanlab.findings.rule import Edit

# Seconds of the processor, so that the answer does not depend on what else runs.
SECONDS = 20.0  # for all that is tried for one exception; as a rule it takes a few
_LONGEST = 6.0  # for one run: the first step of an optimizer imports for seconds
_CELLS = 2.0  # for the cells of a notebook: a training in one of them is not waited for
_SHORT = 0.5  # that a program took to raise: one that takes long with an edit does not end
_SIFTING = 0.4  # the share of the time for what is tried from where a slow program raised
_COMPARING = 4.0  # for the edits that are compared with the first that lets the program run
_PATIENCE = 5  # seconds of the clock for each: other programs run, too
_IDLE = 3.0  # seconds of the clock in which a run computes nothing: it waits for something
_MEMORY = 2 << 30  # bytes that it may ask for
_NUMBERS = re.compile(r"[-\d., x]+")
# Warnings that an edit hides what is wrong.
_WARNED = "(?s).*(target size .* different to the input size|discards the imaginary part)"
# Statements by the function that they call: what is sent or shown is left out, what cannot be
# written is passed, and so is what cannot be sent by a function of the program's own.
_SENT = re.compile(r"(^|_)(export|upload|push|log|show|nanwatch)|^run_line_magic$|^system$")
_WRITTEN = re.compile(r"(^|_)(save|dump|write)|^to_")
_DERIVES = re.compile(r"\b(backward|grad|step|update)\(")
_SAME = 1e-3  # how far the same loss may be from itself, computed in another order
Look = Callable[[BaseException], list[Any]]  # what is to be known of an exception
# What the process may not do: audit events of Python.
_REFUSED = (
    "os.mkdir os.remove os.rename os.rmdir os.system os.truncate os.exec os.posix_spawn os.fork"
    " os.kill os.chmod os.link os.symlink shutil. socket.connect socket.bind socket.sendto"
    " subprocess.Popen ftplib. smtplib. urllib.Request"
)


@dataclass(frozen=True)
class Source:
    """A text of the program that runs at its top level: a script, a cell, a module's file."""

    filename: str  # as its code has it
    text: str
    tree: ast.Module

    @property
    def shown(self) -> str:
        return display_name(self.filename)

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of its tree, in the order of ``ast.walk``."""
        return list(ast.walk(self.tree))

    @cached_property
    def holding(self) -> dict[int, list[ast.stmt]]:
        """The statements that hold a line, by its number."""
        found: dict[int, list[ast.stmt]] = {}
        for node in (n for n in self.nodes if isinstance(n, ast.stmt)):
            for line in range(node.lineno, (node.end_lineno or 0) + 1):
                found.setdefault(line, []).append(node)
        return found

    @cached_property
    def decorated(self) -> dict[int, ast.stmt]:
        """Functions and classes by the lines of their decorators."""
        own: list[Any] = [node for node in self.nodes if hasattr(node, "decorator_list")]
        marks = [(node, mark) for node in own for mark in node.decorator_list]
        return {line: n for n, m in marks for line in range(m.lineno, m.end_lineno + 1)}

    @cached_property
    def _rows(self) -> list[bytes]:
        return [row.encode() for row in re.split("(?<=\n)", self.text)]

    def part(self, node: Any) -> str:
        """The text of a node; empty for one that has no position."""
        if (end := getattr(node, "end_lineno", None)) is None:
            return ""
        rows = self._rows[node.lineno - 1 : end]
        rows[-1] = rows[-1][: node.end_col_offset]
        rows[0] = rows[0][node.col_offset :]
        return b"".join(rows).decode()


@dataclass(frozen=True, eq=False)
class Frame:
    """A frame of the program, with its local names as they were."""

    f_code: CodeType
    f_globals: dict[str, Any]
    f_locals: dict[str, Any]
    known: dict[str, Any]  # the global names that the program's texts have, and modules


Step = tuple[Frame, int]  # a frame of the traceback, and the line in it


class Explained(BaseException):
    """A run of which is asked what its exception means: it ends there, as if nobody caught it."""

    passes: Callable[[BaseException], bool] | None = None  # while a program is run again

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


@dataclass(frozen=True)
class Outcome:
    """What became of a run: ``ran``, ``raised``, ``late`` (it was still running), ``refused``,
    ``evades`` (it ran without what had raised)."""

    kind: str
    error: str = ""  # type and text
    lines: tuple[int, ...] = ()  # of the program's, as it is without edits, the innermost last
    seconds: float = 0.0
    seen: list[Any] = field(default_factory=list)  # by who looked at the exception
    result: str = ""  # the numbers that the program ended with
    begun: Sequence[int] = ()  # derivatives, and steps of optimizers
    idle: int = 0  # optimizers whose parameters never had a gradient other than 0
    losses: Sequence[float] = ()  # what it differentiated, each summed
    # the statement at the top level that had raised, and the loops that it had raised in
    reached: bool = True

    def judged(self, other: Outcome, edits: Sequence[Edit]) -> Outcome:
        """The outcome, as one that evades what raised if the program differentiates less often
        than before it did, or nothing that an optimizer changes; or something else, where
        only a write in place stood in the way, and no step of an optimizer."""
        named = any(_DERIVES.search(edit.old + edit.text) for edit in edits)
        fewer = any(a < b for a, b in zip(self.begun, other.begun, strict=False)) and not named
        idle = self.idle > other.idle and self.begun[0] > 0
        written = "modified by an inplace" in other.error and not any(other.begun[1:])
        other_loss = written and not self._has_losses(other)
        evades = self.kind == "ran" and (fewer or idle or other_loss or not self.reached)
        return replace(self, kind="evades") if evades else self

    def _has_losses(self, other: Outcome) -> bool:
        """Whether what the other run differentiated was differentiated here, with its numbers."""
        pairs = zip(self.losses, other.losses, strict=False)
        return all(a != a or math.isclose(a, b, rel_tol=_SAME, abs_tol=1e-6) for a, b in pairs)

    def moved_on(self, other: Outcome) -> float | None:
        """How doubtful it is that the program came further than where the other run raised;
        None: it did not."""
        own, past = self.lines, other.lines
        if not own:  # it cannot be read, or ran
            return None
        at = next((at for at, (a, b) in enumerate(zip(own, past, strict=False)) if a != b), None)
        if at is not None:
            return 0.0 if own[at] > past[at] else None
        if own != past:  # a call returned, or took its arguments
            return 0.0
        same = _NUMBERS.sub("", self.error) == _NUMBERS.sub("", other.error)
        return None if same or re.match("AttributeError|TypeError", self.error) else 0.6


Run = Callable[[], Outcome]


@dataclass
class Program:
    """The sources that ran in one namespace, in their order; the last of them raised."""

    sources: list[Source]
    modules: dict[str, Source]  # of the user's that it imported, by file
    names: dict[str, Any]
    error: BaseException
    line: int  # that raised, in whichever source
    top: int  # that raised or called it, in the last source
    left: float = field(default_factory=lambda: SECONDS)
    deadline: float = field(default_factory=lambda: time.monotonic() + _PATIENCE * SECONDS)
    # runs without an edit, by where they start; None: it did not raise as it had
    controls: dict[tuple[int, int], Outcome | None] = field(default_factory=dict)
    # of edits that moved the exception on, by their number: how doubtful that is, and what came
    onward: dict[int, tuple[float, Outcome]] = field(default_factory=dict)
    # what became of the edit that was found, and of those near it
    compared: list[Outcome] = field(default_factory=list)

    @property
    def texts(self) -> list[Source]:
        """The sources, and the modules' after them."""
        return [*self.sources, *self.modules.values()]

    @cached_property
    def _bound_anew(self) -> set[str]:
        """The names that the sources bind before they read them."""
        bound, read = set[str](), set[str]()
        for source in self.sources:
            own, needed = _names(source.tree)
            read |= needed - bound
            bound |= own
        return bound - read

    @cached_property
    def _rounds(self) -> list[tuple[Source, int]]:
        """Where the rounds of the loops begin in which the program raised, and what called it."""
        found: list[tuple[Source, int]] = []
        for frame, line in traceback.walk_tb(self.error.__traceback__):
            source = self.source(frame.f_code.co_filename)
            loops = source.nodes if source is not None and source in self.sources else []
            for body in (loop.body for loop in loops if isinstance(loop, ast.For)):
                if source is not None and body[0].lineno <= line <= (body[-1].end_lineno or 0):
                    found.append((source, body[0].lineno))
        return found

    def source(self, filename: str) -> Source | None:
        """The source with this file name, as code has it or as it is shown."""
        for one in self.texts:
            if filename in (one.filename, one.shown):
                return one
        return None

    @property
    def is_over(self) -> bool:
        return self.left <= 0 or time.monotonic() > self.deadline

    def first(
        self, tries: Sequence[Sequence[Edit]], near: Callable[[int], range] = lambda at: range(0)
    ) -> int | None:
        """The number of the first of these edits with which the program no longer raises: that
        ends; where none does, one that runs for much longer than it took to raise.

        near: those to compare with it, by its number.
        """
        control = self._control((0, 0))
        later = self._hopeless(tries) if control is not None and control.seconds > _SHORT else []
        order = [n for n in range(len(tries)) if n not in later] + later
        turn, late = 0, None
        self.onward = {}
        while turn < len(tries) and not self.is_over:
            at = order[turn]
            start = (0, 0) if control is not None else min(self._start(e) for e in tries[at])
            own = control or self._control(start)
            if own is None:  # what the cell has used up, as a graph, it makes anew
                start = (start[0], 0)
                own = self._control(start)
            if own is None:
                turn += 1
                continue
            limit = min(_LONGEST, 3 * own.seconds + 4)
            ended = None
            if control is not None:  # all from the beginning: many in one process
                runs = [partial(self._execute, tries[n], start) for n in order[turn:]]
                for ended in apart(runs, limit):
                    self.left -= ended.seconds
                    ended = ended.judged(own, tries[order[turn]])
                    if ended.kind not in ("raised", "evades") or self.is_over:
                        break
                    if (doubt := ended.moved_on(own)) is not None:
                        self.onward[order[turn]] = doubt, ended
                    turn += 1
            if turn < len(tries) and not self.is_over:
                at = order[turn]
                again = [tries[n] for n in (at, *near(at))] if control is not None else [tries[at]]
                if ended is None or ended.kind != "late":  # in a process of its own
                    found = zip(self._outcomes(again, start, limit), again, strict=False)
                    self.compared = [each.judged(own, edits) for each, edits in found]
                    ended = self.compared[0]
                outcome = ended
                if outcome.kind == "ran":
                    return at
                if outcome.kind == "late" and late is None and own.seconds > _SHORT:
                    late = at
            turn += 1
        return late

    def _hopeless(self, tries: Sequence[Sequence[Edit]]) -> list[int]:
        """The numbers of edits after which what is run again from where the program raised raises
        as it had: the whole takes long."""
        starts = [min((self._start(edit) for edit in edits), default=(0, 0)) for edits in tries]
        top = len(self.sources) - 1, _begun(self.sources[-1], self.top)
        own = self._control(top)
        near = [n for n, start in enumerate(starts) if start >= top] if own is not None else []
        runs = [partial(self._execute, tries[n], top) for n in near]
        hopeless: list[int] = []
        least = self.left * (1 - _SIFTING)
        for n, outcome in zip(near, apart(runs, _LONGEST) if runs else (), strict=False):
            self.left -= outcome.seconds
            if own is not None and outcome.kind == "raised" and outcome.moved_on(own) is None:
                hopeless.append(n)
            if self.left < least or (own and outcome.judged(own, tries[n]).kind == "ran"):
                break
        return hopeless

    def _outcomes(
        self, tries: Sequence[Sequence[Edit]], start: tuple[int, int], limit: float
    ) -> list[Outcome]:
        """What becomes of the first of these runs, and of the others while there is time."""
        found: list[Outcome] = []
        left = _COMPARING
        for outcome in apart([partial(self._execute, e, start) for e in tries], limit):
            found.append(outcome)
            left -= outcome.seconds
            if left < 0:
                break
        self.left -= sum(each.seconds for each in found[:1])
        return found or [Outcome("refused")]

    def after(self, edits: Sequence[Edit], look: Look) -> list[Any]:
        """What is seen where the program raises with these edits."""
        if self.is_over or self.controls.get((0, 0)) is None:
            return []
        return self._run(edits, (0, 0), _LONGEST, look).seen

    def _start(self, edit: Edit) -> tuple[int, int]:
        """The source and the statement of it that an edit is in."""
        for at, source in enumerate(self.sources):
            if source.shown == edit.file:
                return at, _begun(source, edit.first)
        return 0, 0

    def _control(self, start: tuple[int, int]) -> Outcome | None:
        """The run without an edit, where it raises what was raised, at the same line."""
        if start not in self.controls:
            several = start == (0, 0) and len(self.sources) > 1
            found = self._run((), start, _CELLS if several else _LONGEST)
            same = found.kind == "raised" and found.lines[-1:] == (self.line,)
            same = same and found.error.split(":")[0] == type(self.error).__name__
            self.controls[start] = found if same else None
        return self.controls[start]

    def _run(
        self, edits: Sequence[Edit], start: tuple[int, int], limit: float, look: Look | None = None
    ) -> Outcome:
        run = partial(self._execute, edits, start, look)
        outcome = next(apart([run], limit), Outcome("refused"))
        self.left -= outcome.seconds
        return outcome

    def _execute(
        self, edits: Sequence[Edit], start: tuple[int, int], look: Look | None = None
    ) -> Outcome:
        names = dict(self.names)
        if start == (0, 0):  # names that it binds are not known yet, Python's are what they were
            gone = {n for n in names if n in self._bound_anew or hasattr(builtins, n)}
            names = {n: v for n, v in names.items() if n[:2] == "__" or n not in gone}
        torch.default_generator.manual_seed(0)
        learning, reached = _Learning(), list[int]()
        Explained.passes = partial(self._is_raised_again, edits=edits)
        names[_REACHED] = reached.append
        raised, top = self.sources[-1], self.top
        skips = start[0] == len(self.sources) - 1 and _begun(raised, top) < start[1]
        lines = [(raised, top)] * (not skips) + self._rounds * (start == (0, 0))
        marks = {
            (source.shown, _now(line, source, edits))
            for source, line in lines
            if not any(e.file == source.shown and e.first <= line <= e.last for e in edits)
        }
        try:
            for file, source in self.modules.items():
                if any(edit.file == source.shown for edit in edits):
                    module = next(m for m in sys.modules.values() if _file(m) == file)
                    exec(_code(source, edits), vars(module))
            if edits:
                warnings.filterwarnings("error", _WARNED)
            *before, last = self.sources[start[0] :]
            for at, source in enumerate((*before, last)):
                # a notebook goes on after a cell that raised
                changed = any(edit.file == source.shown for edit in edits)
                with nullcontext() if changed or source is last else suppress(Exception):
                    own = [line for shown, line in marks if shown == source.shown]
                    exec(_code(source, edits, start[1] if not at else 0, own), names)
        except BaseException as ended:
            error = ended.error if isinstance(ended, Explained) else ended
            told = f"{type(error).__name__}: {error}"
            kind = "refused" if "nanlab tries" in told else "raised"
            passed = [
                _unedited(number, known, edits)
                for frame, number in traceback.walk_tb(error.__traceback__)
                if (known := self.source(frame.f_code.co_filename)) is not None
            ]
            seen = look(error) if look is not None else []
            outcome = Outcome(kind, told[:300], tuple(passed), seen=seen)
        else:
            missed = {line for _, line in marks}.difference(reached)
            outcome = Outcome("ran", result=_numbers(names), reached=not missed)
        finally:
            *begun, idle = learning.end()
        return replace(outcome, begun=begun, idle=idle, losses=learning.losses)

    def _is_raised_again(self, error: BaseException, edits: Sequence[Edit]) -> bool:
        """Whether an exception passed the function that the program's own passed first, or was
        raised in the same statement at the top level."""
        own, other = (self._passed(each) for each in (self.error, error))
        if len(own) > 1 or len(other) > 1:
            return [name for _, _, name in own[1:2]] == [name for _, _, name in other[1:2]]
        begun = [_begun(at, line) for at, line, _ in own]
        return begun == [_begun(at, _unedited(line, at, edits)) for at, line, _ in other]

    def _passed(self, error: BaseException) -> list[tuple[Source, int, str]]:
        """The program's lines that an exception passed, each with the name of its function."""
        steps = [(f.f_code, line) for f, line in traceback.walk_tb(error.__traceback__)]
        known = [(self.source(code.co_filename), line, code.co_qualname) for code, line in steps]
        return [(source, line, name) for source, line, name in known if source is not None]


class _Learning:
    """What a run differentiates, and which of its optimizers change something."""

    def __init__(self) -> None:
        self.derived = self.steps = 0
        self.losses: list[float] = []
        self.learns: dict[Optimizer, bool] = {}
        self.functions = torch.autograd.backward, torch.autograd.grad
        self.hook = register_optimizer_step_pre_hook(self.step_begins)
        torch.autograd.backward, torch.autograd.grad = map(self.counted, self.functions)

    def counted(self, function: Any) -> Any:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            self.derived += 1
            with suppress(Exception):  # of what is no tensor
                given: Any = args[0] if isinstance(args[0], torch.Tensor) else args[0][0]
                self.losses.append(float(given.detach().double().sum()))
            return function(*args, **kwargs)

        return called

    def step_begins(self, optimizer: Optimizer, args: Any, kwargs: dict[str, Any]) -> None:
        self.steps += 1
        own = (p.grad for group in optimizer.param_groups for p in group["params"])
        known = self.learns.get(optimizer, len(args) + len(kwargs) > 1)  # with a closure
        self.learns[optimizer] = known or any(map(_is_given, own))

    def end(self) -> tuple[int, int, int]:
        """How often the run differentiated, how many steps there were, and for how many
        optimizers no parameter ever had a gradient other than 0."""
        torch.autograd.backward, torch.autograd.grad = self.functions
        self.hook.remove()
        return self.derived, self.steps, sum(not each for each in self.learns.values())


def _is_given(grad: torch.Tensor | None) -> bool:
    """Whether there is a gradient other than 0, as far as it can be read."""
    with suppress(Exception):
        return grad is not None and bool(grad.detach().abs().sum() != 0)
    return True


def _numbers(names: dict[str, Any]) -> str:
    """The numbers and tensors among names, shortened."""
    found = []
    for name, value in names.items():
        with suppress(Exception):
            if isinstance(value, torch.nn.Module):
                value = torch.stack([p.detach().double().sum() for p in value.parameters()])
            if isinstance(value, (int, float, torch.Tensor)) and name[:1] != "_":
                whole = torch.as_tensor(value).detach().double()
                found.append(f"{name} {(*whole.shape,)} {whole.sum():.5g} {(whole**2).sum():.5g}")
    return ", ".join(found)


def program_of(error: BaseException) -> tuple[Program, list[Step], list[FrameType]] | None:
    """The program in which an exception was raised, the steps to it in the user's own code, the
    innermost first, and the frames below them; None where it cannot be run again."""
    steps = list(traceback.walk_tb(error.__traceback__))
    mine = [at for at, (frame, _) in enumerate(steps) if is_user(frame) and not _is_made(frame)]
    tops = [at for at in mine if steps[at][0].f_code.co_name[:5] in ("<modu", "<cell")]
    alone = hasattr(os, "fork") and sys.platform == "linux"
    spread = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not tops or not alone or spread:
        return None
    top = steps[tops[-1]][0]  # what called it is no part of the program
    own = [steps[at] for at in reversed(mine) if at >= tops[-1]]
    lines = [(frame.f_code, line) for frame, line in own]
    own = [step for at, step in enumerate(own) if not at or lines[at] != lines[at - 1]]  # recursion
    last = _source(top.f_code.co_filename)
    if last is None:
        return None
    imported = {
        frame.f_code.co_filename: source
        for frame, _ in own
        if frame.f_globals is not top.f_globals
        and (source := _source(frame.f_code.co_filename)) is not None
    }
    program = Program(
        [*_cells_before(last, top.f_globals), last],
        imported,
        top.f_globals,
        error,
        own[0][1],
        own[-1][1],
    )
    words = {word for source in program.texts for word in re.findall(r"\w+", source.text)}
    frames = [(_frame(frame, words), line) for frame, line in own]
    return program, frames, [frame for frame, _ in steps[mine[-1] + 1 :]]


def _frame(frame: FrameType, words: set[str]) -> Frame:
    """A frame without what ``import *`` brought and no text has, for to look at it may import it,
    and without what stands for a tensor that is traced: to compare it raises."""
    names = frame.f_globals.items()
    known = {n: v for n, v in names if n in words or issubclass(type(v), ModuleType)}
    own = {n: v for n, v in frame.f_locals.items() if not issubclass(type(v), torch.fx.Proxy)}
    own = known if frame.f_locals is frame.f_globals else own
    return Frame(frame.f_code, frame.f_globals, own, known)


def _is_made(frame: FrameType) -> bool:
    """Whether a frame is of a method that ``dataclass`` made: nobody wrote it."""
    return frame.f_code.co_filename == "<string>" and frame.f_code.co_name[:2] == "__"


def _cells_before(last: Source, names: dict[str, Any]) -> list[Source]:
    """The cells of a notebook that ran before one, and on which it depends: what a later cell made
    anew is left out."""
    number = re.fullmatch(r"In\[(\d+)\]", last.shown)
    if number is None:
        return []
    shown = {display_name(name): name for name in list(linecache.cache)}
    found = [
        _source(shown[name]) for n in range(1, int(number[1])) if (name := f"In[{n}]") in shown
    ]
    cells = [(cell, *_names(cell.tree)) for cell in found if cell is not None]
    own = set().union(*(bound for _, bound, _ in cells))
    needed, kept = _names(last.tree)[1] & own, []
    for cell, bound, read in reversed(cells):
        used = {one for one in read if bound and isinstance(names.get(one), ModuleType)}
        if (bound | read - used) & needed:
            needed = (needed - bound) | (read & own)
            kept.append(cell)
    return kept[::-1]


def _names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """The names that a cell binds, and those that it reads of the cells before it."""
    bound: set[str] = set()
    read: set[str] = set()
    inner = []
    top = compile(tree, "", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for step in dis.get_instructions(top):
        if step.opname == "LOAD_NAME" and step.argval not in bound:
            read.add(step.argval)
        elif step.opname == "STORE_NAME":
            bound.add(step.argval)
    within = list(top.co_consts)
    while within:  # functions are called when all of the cell has run
        if isinstance(code := within.pop(), CodeType):
            within += code.co_consts
            inner += [
                s for s in dis.get_instructions(code) if "GLOBAL" in s.opname or "NAME" in s.opname
            ]
    return bound, read | {step.argval for step in inner} - bound


def _source(filename: str) -> Source | None:
    text = "".join(linecache.getlines(filename))
    with suppress(SyntaxError, ValueError):
        return Source(filename, text, _with_owners(ast.parse(text))) if text else None
    return None


def _with_owners(tree: ast.Module) -> ast.Module:
    """A tree in which the names of a method's own object are marked, however it calls it."""
    for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for each in kind.body:
            plain = isinstance(each, ast.FunctionDef) and not each.decorator_list
            first = each.args.args[:1] if plain else []  # type: ignore[attr-defined]
            for node in ast.walk(each) if first else ():
                if isinstance(node, ast.Name) and node.id == first[0].arg:
                    node.owner = True  # type: ignore[attr-defined]
    return tree


def _file(module: Any) -> str:
    return getattr(module, "__file__", None) or ""


def _begun(source: Source, line: int) -> int:
    """The number of the statement of a source that holds a line."""
    return sum((node.end_lineno or node.lineno) < line for node in source.tree.body)


def edited(source: Source, edits: Sequence[Edit]) -> str:
    """The text of a source with those edits that are its own."""
    lines = source.lines
    for edit in sorted(edits, key=lambda each: -each.first):
        if edit.file == source.shown:
            lines[edit.first - 1 : edit.last] = edit.rows()
    return "\n".join(lines) + "\n"


def difference(source: Source, text: str) -> list[Edit]:
    """The edits that make this text of a source."""
    old, new, found = source.lines, text.splitlines(), []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
        begins = a and re.search(r":\s*(#.*)?$", old[a - 1])  # with the head of what it begins
        if kind == "insert" and a < len(old) and not begins:  # before a line, written again
            b, d = b + 1, d + 1
        elif kind == "insert":
            a, c = a - 1, c - 1
        parts = [(a, b, new[c:d])]
        if b - a == d - c:  # as many lines: each by itself
            parts = [(at, at + 1, [new[c + at - a]]) for at in range(a, b)]
        found += [_written(source, *part) for part in parts if kind != "equal"]
    return found


def _written(source: Source, first: int, last: int, rows: list[str]) -> Edit:
    """The edit that writes these rows for lines, and for those before them up to the one that is
    indented least."""
    old, least = source.lines, min((_indent(row) for row in rows if row), default=0)
    while first and rows and _indent(old[first]) > least:
        first -= 1
        rows = [old[first], *rows]
    text = "\n".join(row[_indent(old[first]) :] for row in rows)
    return Edit(source.shown, first + 1, last, text, "\n".join(old[first:last]))


def laid_out(source: Source, edits: Sequence[Edit]) -> list[Edit]:
    """Edits that change those lines alone that they have to: what a statement of several lines
    keeps stays in the lines in which it is written."""
    found: list[Edit] = []
    for edit in edits:
        kept = [edit]
        with suppress(SyntaxError, tokenize.TokenError, IndexError):
            rows = _as_spread(edit.old, "\n".join(edit.rows())) if "\n" in edit.old else ""
            text = "\n".join(
                (*source.lines[: edit.first - 1], rows, *source.lines[edit.last :], "")
            )
            same = rows and ast.dump(ast.parse(text)) == ast.dump(ast.parse(edited(source, [edit])))
            less = difference(source, text) if same else []
            apart = all(a.last < b.first for a, b in itertools.pairwise(less))
            kept = less if less and apart else kept
        found += kept
    return found


_Token = tuple[str, int, int]  # its text, and where it begins and ends


def _as_spread(old: str, new: str) -> str:
    """A text of a statement, spread over lines as the old one is; empty where it is of more or
    fewer statements."""
    own, other = _tokens(old), _tokens(new)
    texts = [[token[0] for token in tokens] for tokens in (own, other)]
    if texts[0].count("\n") != texts[1].count("\n"):
        return ""
    spread, last, at = old[: own[0][1]], -1, -1  # what was written last, as numbers of both
    for kind, a, b, c, d in difflib.SequenceMatcher(
        a=texts[0], b=texts[1], autojunk=False
    ).get_opcodes():
        comma = kind == "delete" and own[a][0] == "," and "\n" in old[own[a][2] : own[a + 1][1]]
        if comma and own[b][0] in ")]}":  # it may stay before the bracket
            spread += old[own[last][2] : own[a][2]]
            last = a
        for n in range(c, d):
            gap = new[other[at][2] : other[n][1]] if at >= 0 else ""
            if kind == "equal":
                here = a + n - c
                gaps = [old[own[last][2] : own[last + 1][1]], old[own[here - 1][2] : own[here][1]]]
                opened = own[last][0] in "([{"
                gap = next((g for g in gaps[: 2 - opened] if last >= 0 and "\n" in g), gap)
                gap = gaps[0] if last == here - 1 and last >= 0 else gap
                spread += gap + own[here][0]
                last = here
            else:
                before = old[own[last][2] : own[last + 1][1]] if last >= 0 else ""
                kept = n == c and "\n" in before and own[last + 1][0] not in ")]}"
                spread += (before if kept else gap) + other[n][0]
            at = n
        last = b - 1 if kind == "replace" else last
    return spread.rstrip()


def _tokens(text: str) -> list[_Token]:
    """The tokens of a text, without those that only say how it is laid out."""
    rows = text.splitlines(True)
    starts = [0, *itertools.accumulate(map(len, rows)), len(text), len(text)]
    shape = (tokenize.INDENT, tokenize.DEDENT, tokenize.NL, tokenize.COMMENT, tokenize.ENDMARKER)
    found = []
    for each in tokenize.generate_tokens(io.StringIO(text).readline):
        if each.type not in shape:
            first, last = (starts[row - 1] + column for row, column in (each.start, each.end))
            own = "\n" if each.type == tokenize.NEWLINE else each.string
            found.append((own, first, min(last, len(text))))
    return found


def _indent(row: str) -> int:
    return len(row) - len(row.lstrip())


def _unedited(line: int, source: Source, edits: Sequence[Edit]) -> int:
    """The number that a line of a source has without edits."""
    for edit in sorted(edits, key=lambda each: each.first):
        if edit.file == source.shown and line > edit.first:
            more = len(edit.rows()) - (edit.last - edit.first + 1)
            line = edit.first if line <= edit.last + more else line - more
    return line


def _now(line: int, source: Source, edits: Sequence[Edit]) -> int:
    """The number that a line of a source has with edits."""
    own = [edit for edit in edits if edit.file == source.shown and edit.last < line]
    return line + sum(len(edit.rows()) - (edit.last - edit.first + 1) for edit in own)


_REACHED = "__nanlab_reached__"


def _marked(rows: list[Any], line: int) -> list[Any]:
    """Statements, where the one that holds a line says when it is reached."""
    for at, row in enumerate(rows):
        own = [n.lineno for n in getattr(row, "decorator_list", [])]
        if min([row.lineno, *own]) <= line <= row.end_lineno:
            inner = any(
                n.lineno <= line <= n.end_lineno
                for name in ("body", "orelse", "finalbody", "handlers", "cases")
                for n in getattr(row, name, [])
                if hasattr(n, "lineno")
            )
            if not inner:
                mark = ast.parse(f"{_REACHED}({line})").body[0]
                for node in ast.walk(mark):
                    ast.copy_location(node, row)
                return [*rows[:at], mark, *rows[at:]]
    return rows


def _code(
    source: Source, edits: Sequence[Edit], skipped: int = 0, marks: Sequence[int] = ()
) -> Any:
    """The code of a source with edits, without its first statements and what has effects.

    marks: lines that say whether they were reached.
    """
    text = edited(source, edits)
    tree = ast.parse(text)
    del tree.body[:skipped]
    linecache.cache[source.filename] = len(text), None, text.splitlines(True), source.filename
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    blocks: list[ast.AST] = [tree]
    for block in blocks:
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            rows = getattr(block, name, None)
            if isinstance(rows, list):
                blocks += rows
                if name != "handlers" and name != "cases":
                    for line in marks:
                        rows[:] = _marked(rows, line)
                rows[:] = (_quiet(row, own) for row in rows)
    return compile(tree, source.filename, "exec", dont_inherit=True)


def _quiet(row: ast.AST, own: set[str]) -> ast.AST:
    """A statement, left out if it sends or shows something; one that cannot write is passed.

    own: the names of the program's functions, whose own statements alone are left out.
    """
    called = getattr(row, "value", None) if isinstance(row, ast.Expr) else None
    function = getattr(called, "func", None)
    name = getattr(function, "attr", getattr(function, "id", ""))
    sent = _SENT.search(name)
    if sent and name not in own:
        return ast.copy_location(ast.Pass(), row)
    if not (sent or _WRITTEN.search(name)) or not isinstance(row, ast.Expr):
        return row
    kinds: list[ast.expr] = [ast.Name(name, ast.Load()) for name in _OF_CODE]
    known = ast.ExceptHandler(ast.Tuple(kinds, ast.Load()), None, [ast.Raise()])
    wide = "OSError" if name in own else "Exception"  # what else is raised there is its own
    passed = ast.ExceptHandler(ast.Name(wide, ast.Load()), None, [ast.Pass()])
    whole = ast.copy_location(ast.Try([row], [known, passed], [], []), row)
    return ast.fix_missing_locations(whole)


# What a statement raises for how it is written, not because it cannot write a file.
_OF_CODE = ("AttributeError", "NameError", "TypeError", "LookupError")


# A process of its own, that can leave nothing behind.


def apart(runs: Sequence[Run], limit: float) -> Iterator[Outcome]:
    """Call ``runs`` one after the other, in a fork of this process that writes into a folder of
    its own and reaches no network; no more after one that does not end in ``limit`` seconds."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    folder = tempfile.mkdtemp(prefix="nanlab-")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        process = os.fork()
    if process == 0:
        _child(runs, theirs, limit, folder)
    theirs.close()
    try:
        for _ in runs:
            if not _comes(ours, process, _PATIENCE * limit):
                yield Outcome("late", seconds=limit)
                return
            try:
                outcome = ours.recv()
            except (EOFError, OSError):
                ended = os.waitpid(process, 0)[1]
                process = 0
                if os.WIFSIGNALED(ended) and os.WTERMSIG(ended) == signal.SIGPROF:
                    yield Outcome("late", seconds=limit)
                return
            yield outcome
    finally:
        ours.close()
        if process:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        shutil.rmtree(folder, ignore_errors=True)


def _comes(pipe: Connection, process: int, seconds: float) -> bool:
    """Whether something comes from a process in so many seconds, or while it computes: one that
    waits, as for a lock of a thread that a fork does not have, may wait for ever."""
    end = time.monotonic() + seconds
    used, since = _computed(process), time.monotonic()
    while not pipe.poll(min(0.25, seconds)):
        now = _computed(process)
        if now != used:
            used, since = now, time.monotonic()
        if time.monotonic() > min(end, since + _IDLE):
            return False
    return True


def _computed(process: int) -> str:
    """The time that a process has computed, in ticks of the system; empty where it has ended."""
    with suppress(OSError):
        return " ".join(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13])
    return ""


def _child(runs: Sequence[Run], pipe: Connection, limit: float, folder: str) -> NoReturn:
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        sys.stdin, sys.stdout, sys.stderr = map(os.fdopen, (0, 1, 2), "rww")
        kept = pipe.fileno()
        os.closerange(3, kept)  # files and connections of the program
        os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with the process that started it
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + _MEMORY, size + _MEMORY))
        torch.set_num_threads(1)
        gc.freeze()  # what is never looked at is never copied
        loader: Any = torch.utils.data.DataLoader
        loader._get_iterator = _in_this_process
        _leave_others()
        _lock(folder)
        _Folder(folder).replace_files()
        torch.cuda.is_available = lambda: False
        torch.cuda.device_count = lambda: 0
        warnings.simplefilter("ignore")
        for run in runs:
            start = time.process_time()
            signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process
            signal.setitimer(signal.ITIMER_PROF, limit)
            with _disable_current_modes(), _OnCpu(), torch.enable_grad():
                outcome = run()
            signal.setitimer(signal.ITIMER_PROF, 0)
            pipe.send(replace(outcome, seconds=time.process_time() - start))
    finally:
        os._exit(0)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise PermissionError("nanlab tries the program without writing anything")


def _in_this_process(loader: Any) -> Any:
    vars(loader).update(num_workers=0, timeout=0, prefetch_factor=None, persistent_workers=False)
    return torch.utils.data.dataloader._SingleProcessDataLoaderIter(loader)


def _leave_others() -> None:
    """Let process groups have this process alone, without waiting for others: what is reduced or
    gathered is what each of them was given."""
    dist: Any = torch.distributed
    if not dist.is_available():
        return
    joins = dist.init_process_group

    def joined(*_: Any, world_size: int = -1, rank: int = -1, **__: Any) -> None:
        import_module("torch.testing._internal.distributed.fake_pg")  # it registers itself
        size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", 1))
        own = rank if rank >= 0 else int(os.environ.get("RANK", 0))
        joins("fake", store=dist.HashStore(), world_size=size, rank=own)

    dist.init_process_group = joined
    dist.FileStore = dist.TCPStore = lambda *_, **__: dist.HashStore()


class _OnCpu(TorchFunctionMode):
    """Computes on the CPU what was on a device: a fork cannot go on with one."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not torch.cuda.is_initialized():  # of the process that was forked
            return func(*args, **kwargs or {})
        if getattr(func, "__name__", "") == "cuda":
            return args[0]
        args = [_cpu(each) for each in args]
        return func(*args, **{name: _cpu(each) for name, each in (kwargs or {}).items()})


def _cpu(given: Any) -> Any:
    named = isinstance(given, (str, torch.device)) and str(given).partition(":")[0] == "cuda"
    return "cpu" if named else given


class _Entries:
    """The entries of several directories as `os.scandir` gives those of one, each name once."""

    def __init__(self, parts: Iterable[Any]) -> None:
        found: dict[str, Any] = {}
        for part in parts:
            with part:
                for entry in part:
                    found.setdefault(entry.name, entry)
        self.rest = iter(found.values())

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> Any:
        return next(self.rest)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self.rest = iter(())


class _Folder:
    """Where files go that the process writes; what it did not write is read where it is."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def path(self, path: Any, writes: bool = False) -> Any:
        """Where a path is read, or written."""
        if isinstance(path, int):
            return path
        real = os.path.abspath(os.fsdecode(path))
        if real.startswith(self.folder):
            return path
        own = self.folder + real
        parent = os.path.dirname(real)
        if writes and not _LEXISTS(own) and (_ISDIR(parent) or _ISDIR(self.folder + parent)):
            _MAKEDIRS(os.path.dirname(own), exist_ok=True)
            if os.path.isfile(real):
                shutil.copyfile(real, own)
        return own if writes or _LEXISTS(own) else path

    def both(self, path: Any) -> list[Any]:
        """Where the files of a directory are: as they were, and as this process wrote them."""
        path = "." if path is None else path
        own = self.path(path)
        return [own] if own is path or not _LEXISTS(path) else [own, path]

    def replace_files(self) -> None:
        """Let the functions of Python that open, make or look at files use this folder."""
        opens, makes, stats, saves = io.open, os.mkdir, os.stat, torch.save

        def opened(file: Any, mode: str = "r", *more: Any, **kwargs: Any) -> Any:
            return opens(self.path(file, bool(set(mode) & set("wax+"))), mode, *more, **kwargs)

        def made(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            if os.path.exists(path):
                raise FileExistsError(path)
            makes(self.path(path, True), mode)

        def looked(path: Any, *more: Any, **kwargs: Any) -> Any:
            return stats(self.path(path), *more, **kwargs)

        def saved(value: Any, file: Any, *more: Any, **kwargs: Any) -> None:
            named = isinstance(file, (str, os.PathLike))
            saves(value, self.path(file, True) if named else file, *more, **kwargs)

        def taken(function: Any) -> Any:
            return lambda path, **kwargs: function(
                path if kwargs.get("dir_fd") else self.path(path, True), **kwargs
            )

        def moved(function: Any) -> Any:
            return lambda a, b, **kwargs: function(self.path(a, True), self.path(b, True), **kwargs)

        builtins.open = io.open = opened
        os.mkdir, os.stat, torch.save = made, looked, saved  # type: ignore[assignment]
        names, entries = os.listdir, os.scandir
        os.listdir = lambda path=".": [*dict.fromkeys(n for p in self.both(path) for n in names(p))]
        os.scandir = lambda path=".": _Entries(map(entries, self.both(path)))  # type: ignore
        os.remove, os.unlink, os.rmdir = map(taken, (os.remove, os.unlink, os.rmdir))
        os.rename, os.replace = map(moved, (os.rename, os.replace))
        sys.addaudithook(self.audit)

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """Refuse what would be written elsewhere, sent or started."""
        if event == "open":
            written = os.O_WRONLY | os.O_RDWR | os.O_CREAT
            writes = bool(set(args[1] or "") & set("wax+")) or bool((args[2] or 0) & written)
        else:  # of a tree that is removed each part is asked for
            refused = any(event.startswith(name) for name in _REFUSED_EVENTS)
            writes = refused and event != "shutil.rmtree"
        if writes and not (args and str(args[0]).startswith(self.folder)):
            _refuse()


_REFUSED_EVENTS = tuple(_REFUSED.split())
_LEXISTS, _ISDIR, _MAKEDIRS = os.path.lexists, os.path.isdir, os.makedirs


def _lock(folder: str) -> None:
    """Let the kernel refuse what this process would write elsewhere, where it can (Landlock)."""
    create, add, restrict = range(444, 447)  # the same numbers on all processors
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(create, None, 0, 1)
    if version < 1:
        return
    reads = 0b1101  # execute, read a file, read a directory
    bits = (1 << (13 if version == 1 else 14 if version == 2 else 15)) - 1
    rules = struct.pack("QQ", bits & ~reads, 0b11)[: 16 if version >= 4 else 8]
    ruleset = libc.syscall(create, rules, len(rules), 0)
    own = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    libc.syscall(add, ruleset, 1, struct.pack("=Qi", bits & ~reads, own), 0)
    os.close(own)
    if ruleset >= 0 and libc.prctl(38, 1, 0, 0, 0) == 0:  # no new privileges
        libc.syscall(restrict, ruleset, 0)
