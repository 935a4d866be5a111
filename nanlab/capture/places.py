"""Where an operation runs: the user's own line, and the running module."""

from __future__ import annotations

import linecache
import os
import re
import stat
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from types import CodeType, FrameType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from nanlab.errors import TypeMismatchError
from nanlab.trace.chunk import Names, Span
from nanlab.trace.op import is_installed

# The user's own line behind an operation.

_TORCH, _LIBRARY, _USER = 0, 1, 2
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH_ROOT = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
# code that reads samples and makes batches of them
_LOADER = os.path.join(_TORCH_ROOT, "utils", "data") + os.sep
# of a tensor type: whoever computes with it calls them
_PROTOCOL = ("__torch_function__", "__torch_dispatch__")
_STDLIB = tuple(
    {os.path.abspath(sysconfig.get_paths()[k]) + os.sep for k in ("stdlib", "platstdlib")}
)


def _kind(code: CodeType, names: dict[str, Any]) -> int:
    """Author of code with these globals: torch (or nanlab), an installed package, or the user."""
    name = code.co_filename
    if name.startswith("<"):
        known = name.startswith(("<stdin", "<ipython", "<timed"))
        typed = known or names.get("__name__") == "__main__"
        return _USER if typed else _LIBRARY
    path = os.path.abspath(name)
    if path.startswith((_TORCH_ROOT, _OURS)):
        return _TORCH
    if code.co_name in _PROTOCOL:
        return _LIBRARY
    installed = is_installed(path) or path.startswith(_STDLIB) or _is_generated(names)
    return _LIBRARY if installed else _USER


def _is_generated(names: dict[str, Any]) -> bool:
    """Whether a package generated a module in a file elsewhere, as torch_geometric does for the
    ``propagate`` of each class; told by its globals."""
    root = str(names.get("__name__", "")).partition(".")[0]
    # a package may run the program, as ``python -m pytest`` does
    package = sys.modules.get(root) if root != "__main__" else None
    return is_installed(getattr(package, "__file__", None) or "")


def is_user(frame: FrameType) -> bool:
    return _kind(frame.f_code, frame.f_globals) == _USER


def is_user_code(code: CodeType, names: dict[str, Any]) -> bool:
    """Whether a function, whose globals are ``names``, is the user's own."""
    return _kind(code, names) == _USER


def is_torch(frame: FrameType) -> bool:
    """Whether a frame runs torch's code, or ours."""
    return _kind(frame.f_code, frame.f_globals) == _TORCH


# Torch's own functions that only hand a call on to its kernels.
_HANDS_ON = tuple(
    "_ autograd functional.py overrides.py utils fx jit nn/modules testing library compiler".split()
)


def torch_frame(frame: FrameType | None) -> tuple[str, int, str] | None:
    """(file, line, function) of the innermost frame if torch's Python code computes; else None."""
    found = torch_caller(frame)
    return None if found is None else frame_of(*found)


def in_loader(frame: FrameType | None) -> bool:
    """Whether torch's data loader runs: it reads a sample, or makes a batch of samples."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_LOADER):
            return True
        frame = frame.f_back
    return False


def torch_caller(frame: FrameType | None) -> tuple[CodeType, int] | None:
    """Code and instruction of the frame that ``torch_frame`` describes, by a look-up alone."""
    while frame is not None:
        code = frame.f_code
        kind, _ = _KINDS.get(id(code)) or _learned(code)
        if kind == _COMPUTES:
            return code, frame.f_lasti
        if kind == _ENDS:
            return None
        frame = frame.f_back
    return None


def frame_of(code: CodeType, instruction: int) -> tuple[str, int, str]:
    """(file, line, function) of an instruction, as ``torch_caller`` returns it."""
    line = next((n for a, b, n in code.co_lines() if a <= instruction < b and n is not None), 0)
    return os.path.abspath(code.co_filename), line, code.co_qualname


_COMPUTES, _PASSES, _ENDS = range(3)
# id of a code object -> its kind, and it: to hash one takes as long as to dispatch a call
_KINDS: dict[int, tuple[int, CodeType]] = {}


def _learned(code: CodeType) -> tuple[int, CodeType]:
    found = _KINDS[id(code)] = _kind_of(code), code
    return found


def _kind_of(code: CodeType) -> int:
    name = os.path.abspath(code.co_filename)
    if name.startswith(_TORCH_ROOT):
        inside = name[len(_TORCH_ROOT) :].replace(os.sep, "/")
        return _PASSES if inside.startswith(_HANDS_ON) else _COMPUTES
    return _PASSES if name.startswith(_OURS) else _ENDS


def functions_given(frame: FrameType | None) -> tuple[tuple[str, int, int], ...]:
    """(file, first, last line) of the user's functions in the variables of library frames above."""
    found: dict[tuple[str, int, int], None] = {}
    while frame is not None and (kind := _kind(frame.f_code, frame.f_globals)) != _USER:
        for value in frame.f_locals.values() if kind == _LIBRARY else ():
            if isinstance(value, torch.nn.Module):
                value = type(value).forward
            value = getattr(value, "__func__", value)
            if isinstance(value, FunctionType) and is_user_code(value.__code__, value.__globals__):
                code = value.__code__
                found[code.co_filename, code.co_firstlineno, _last_line(code)] = None
        frame = frame.f_back
    return tuple(found)


def scripted_lines(frame: FrameType | None) -> tuple[tuple[str, str, str, int], ...]:
    """(name in the user's line, operator, file, line) of torch.jit code called there."""
    while frame is not None and _kind(frame.f_code, frame.f_globals) != _USER:
        frame = frame.f_back
    found: dict[tuple[str, str, str, int], None] = {}
    code = frame.f_code if frame is not None else None
    for name in (*code.co_names, *code.co_varnames, *code.co_freevars) if code is not None else ():
        value = frame.f_locals.get(name, frame.f_globals.get(name))  # type: ignore[union-attr]
        if isinstance(value, (torch.jit.ScriptFunction, torch.jit.ScriptModule)):
            for kind, file, line in _compiled(value.inlined_graph):
                found[name, kind, file, line] = None
    return tuple(found)


def _compiled(block: Any) -> Iterator[tuple[str, str, int]]:
    """(operator, file, line) of the user's operations in a graph of torch.jit."""
    for node in block.nodes():
        place = re.search(r'File "(.+)", line (\d+)', node.sourceRange())
        if node.kind().startswith("aten::") and place and not place[1].startswith(_TORCH_ROOT):
            yield node.kind().removeprefix("aten::"), place[1], int(place[2])
        for inner in node.blocks():
            yield from _compiled(inner)


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """A code object, and those of the functions inside of it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes_in(each)


def _last_line(code: CodeType) -> int:
    lines = (n for each in codes_in(code) for *_, n in each.co_lines() if n is not None)
    return max(lines, default=0)


# what the code of a cell is called that another magic compiles, as %%time does: its cell
cell_names: dict[str, str] = {}


def display_name(filename: str) -> str:
    """A file's name as the user knows it: ``In[7]`` for a notebook cell, else the path."""
    if filename in cell_names:
        return cell_names[filename]
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return filename
    if not hasattr(shell.compile, "format_code_name"):
        return _cell_in_history(shell, filename) or filename
    named = shell.compile.format_code_name(filename)
    if named is not None and named[0] == "Cell":
        return str(named[1]).replace("In [", "In[")
    return filename


def _cell_in_history(shell: Any, filename: str) -> str | None:
    """The cell of this file name in IPython 7, which keeps no table of its hashed names."""
    if named := re.match(r"<ipython-input-(\d+)-", filename):
        return f"In[{named[1]}]"
    history = shell.history_manager
    inputs = list(zip(history.input_hist_raw, history.input_hist_parsed, strict=False))
    for number in range(len(inputs) - 1, 0, -1):
        if shell.compile.get_code_name(*inputs[number], number) == filename:
            return f"In[{number}]"
    return None


def _span(code: CodeType, instruction: int) -> Span | None:
    """The expression that an instruction evaluates; None: compiled without columns."""
    line, last, column, end = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    if line is None or last is None or column is None or end is None:
        return None
    return line, column, last, end


class SourceLines:
    """Places in the user's program, each known by a small number.

    ``places[i]`` is ``(shown file, line, real file)``, ``spans[i]`` the expression there; number 0
    is "no such line".
    """

    def __init__(self) -> None:
        learn_program_text()
        self.places: list[tuple[str, int, str]] = [("", 0, "")]
        self.spans: list[Span | None] = [None]
        # of what is run again: the line where it ran first
        self.forced: tuple[int, int] | None = None
        self._ids: dict[tuple[int, int], int] = {}
        self._kinds: dict[int, int] = {}
        self._names: dict[int, str] = {}
        # keeps the code objects alive, so that their id() stays theirs
        self._codes: list[CodeType] = []

    def _learn(self, frame: FrameType) -> int:
        code = frame.f_code
        self._codes.append(code)
        self._names[id(code)] = display_name(code.co_filename)
        kind = self._kinds[id(code)] = _kind(code, frame.f_globals)
        return kind

    def _place(self, frame: FrameType) -> int:
        code = frame.f_code
        key = (id(code), frame.f_lasti)
        found = self._ids.get(key)
        if found is None:
            self.places.append((self._names[id(code)], frame.f_lineno, code.co_filename))
            self.spans.append(_span(code, frame.f_lasti))
            found = self._ids[key] = len(self.places) - 1
        return found

    def _kind(self, frame: FrameType) -> int:
        kind = self._kinds.get(id(frame.f_code), -1)
        return kind if kind >= 0 else self._learn(frame)

    def torch_code(self, frame: FrameType | None) -> bool:
        """Whether a frame runs torch's own code (or ours)."""
        return frame is not None and self._kind(frame) == _TORCH

    def shown(self, code: CodeType) -> str:
        """The file of a known function, as tables show it."""
        return self._names.get(id(code), "")

    def user_code(self, frame: FrameType) -> bool:
        return self._kind(frame) == _USER

    def here(self, frame: FrameType | None) -> tuple[int, int]:
        """(the user's innermost line, the innermost line outside torch) at and above ``frame``."""
        if self.forced is not None:
            return self.forced
        kinds, site = self._kinds, 0
        while frame is not None:
            kind = kinds.get(id(frame.f_code), -1)
            if kind < 0:
                kind = self._learn(frame)
            if kind:
                if kind == _USER:
                    place = self._place(frame)
                    return place, site or place
                if not site:
                    site = self._place(frame)
            frame = frame.f_back
        return site, site

    def outside(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame at and above ``frame`` that is not torch's (nor ours)."""
        while frame is not None and self._kind(frame) == _TORCH:
            frame = frame.f_back
        return frame


def learn_program_text() -> None:
    """Tell ``linecache`` a program's text that is no file: ``python -c``, redirected stdin."""
    main = sys.modules.get("__main__")
    if getattr(main, "__file__", None) not in (None, "<stdin>"):
        return
    given = getattr(sys, "orig_argv", [])[1:]
    if "-c" in given[:-1]:
        name, text = "<string>", given[given.index("-c") + 1]
    else:
        name, text = "<stdin>", _redirected()
    if text and name not in linecache.cache:
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def _redirected() -> str:
    """The text of a file that stdin was redirected from; empty for a terminal or a pipe."""
    try:
        if not stat.S_ISREG(os.fstat(0).st_mode):
            return ""
        return os.pread(0, os.fstat(0).st_size, 0).decode()
    except (OSError, ValueError, AttributeError):
        return ""


Path = list[tuple[int, int, str]]


def call_path(frame: FrameType | None) -> Path:
    """Where the program stands: (code, instruction, module's file) of all frames, outer first."""
    path = []
    while frame is not None:
        code = frame.f_code
        path.append(
            (id(code), frame.f_lasti, code.co_filename if code.co_name == "<module>" else "")
        )
        frame = frame.f_back
    path.reverse()
    return path


def shares_step(before: Path, now: Path, again: bool = False) -> bool:
    """Whether a loop came round between two moments: the program stands at or before where it
    stood.

    again: calling a function a second time from a later line counts too (a loop written out by
    hand). IPython makes each statement of a cell a code of its own, and runs them in order: another
    one of the same cell is a later line.
    """
    shared = list(zip(before, now, strict=False))
    for level, ((code, at, module), (code_now, at_now, module_now)) in enumerate(shared):
        if code != code_now and (not module or module != module_now):
            return False
        if code != code_now or at_now > at:
            deeper = level + 1 < len(shared)
            return again and deeper and shares_step(before[level + 1 :], now[level + 1 :], again)
        if at_now < at:
            return True
    return len(before) == len(now)


# Which module is running, by its attribute path.


Models = nn.Module | Mapping[str, nn.Module]  # one to watch, or several by name


def joined(model: object, call: str) -> nn.Module | None:
    """Several models as the children of one, which is never called; a model as it is.

    call: what to type, for the message of the TypeMismatchError where it is neither."""
    if model is None or isinstance(model, nn.Module):
        return model
    if not isinstance(model, Mapping):
        several = isinstance(model, Sequence) and all(isinstance(m, nn.Module) for m in model)
        seen = f"a {type(model).__name__} of modules" if several else type(model).__name__
        given = '{"G": G, "D": D}' if several else "model"
        raise TypeMismatchError(
            f"expected a torch.nn.Module to watch, or a dict of them by name, got {seen}; try:"
            f" {call.replace('model', given)}"
        )
    for name, each in model.items():
        if not isinstance(name, str):
            named = call.replace("model", '{"G": G, "D": D}')
            raise TypeMismatchError(
                f"expected a dict of models by name, got the key {name!r}; try: {named}"
            )
        if not isinstance(each, nn.Module):
            raise TypeMismatchError(
                f"expected a torch.nn.Module to watch, got {type(each).__name__} for {name!r}"
            )
    whole = nn.Module()
    whole._modules.update(model)  # names with dots too, as trainer.model
    return whole


class ModuleRecorder:
    """Keeps the path of the running module, through global forward hooks that live as long as the
    watch.

    A module called inside another is named by the path below that one, so a shared module bears the
    name of the place it is called from. The watched model is the root and has the empty path; any
    other outermost module is named by its class.
    """

    def __init__(
        self,
        model: nn.Module | None,
        names: Names,
        on_call: Callable[[nn.Module], None],
        on_module: Callable[[str, nn.Module], bool],
        on_return: Callable[[Any], None],
    ) -> None:
        self._names = names
        self._on_call = on_call
        self._on_module = on_module
        self._on_return = on_return
        self._stack: list[tuple[nn.Module, str, int]] = []
        self._below: WeakKeyDictionary[nn.Module, dict[int, str]] = WeakKeyDictionary()
        # By id of a module and number of the path that it was called below: the module, its path,
        # the path's number.
        self._known: dict[tuple[int, int], tuple[ref[nn.Module], str, int]] = {}
        self._handles: list[Any] = []
        self._filter: Any = None  # of a warning that torch means for the program
        self.model = model
        self.failed: Callable[[Exception], None] = lambda error: None
        self.watched: Callable[[], bool] = lambda: True  # whether this thread is
        # number of the running module's path, depth
        self.moved: Callable[[int, int], None] = lambda path, depth: None
        self.current = 0  # number of the running module's path; 0 outside of every module

    def start(self) -> None:
        # The hooks of a compiled module firing once more does no harm here, and the program has no
        # global hooks that torch could mean.
        if not _has_global_hooks():
            warnings.filterwarnings(
                "ignore", message="Using `torch.compile.module.` when there are global hooks"
            )
            self._filter = warnings.filters[0]
        self._handles = [
            register_module_forward_pre_hook(self._guarded(self._enter)),
            register_module_forward_hook(self._guarded(self._leave), always_call=True),
        ]

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._stack = [], []
        if self._filter in warnings.filters:
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]

    def _guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        def run(*args: Any) -> None:
            if not self.watched():
                return
            try:
                function(*args)
                self.moved(self.current, len(self._stack))
            except Exception as error:
                self.failed(error)

        return run

    def _path(self, module: nn.Module) -> str:
        if module is self.model:
            return ""
        for parent, path, _ in reversed(self._stack):
            name = self._name_below(parent, module)
            if name:
                return f"{path}.{name}" if path else name
        if self.model is not None and (name := self._name_below(self.model, module)):
            return name
        return type(module).__name__

    def _name_below(self, parent: nn.Module, module: nn.Module) -> str:
        for name, child in parent._modules.items():
            if child is module:
                return name
        below = self._below.get(parent)
        if below is None or id(module) not in below:
            below = self._below[parent] = {
                id(m): n for n, m in parent.named_modules(remove_duplicate=False)
            }
        return below.get(id(module), "")

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not self._stack:
            self._on_call(module)
        here = (id(module), self.current)
        known = self._known.get(here)
        if known is None or known[0]() is not module:
            path = self._path(module)
            known = (ref(module), path, self._names(path))
            if self._on_module(path, module):  # all its parameters exist by now
                self._known[here] = known
        self.current = known[2]
        self._stack.append((module, known[1], self.current))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        while self._stack:
            if self._stack.pop()[0] is module:
                break
        self.current = self._stack[-1][2] if self._stack else 0
        if not self._stack:
            self._on_return(output)


def _has_global_hooks() -> bool:
    """Whether the program has global module hooks; private tables, as in torch 2.6 to 2.13."""
    return any(
        getattr(torch_module, f"_global_{kind}")
        for kind in ("backward_pre_hooks", "backward_hooks", "forward_hooks", "forward_pre_hooks")
    )
