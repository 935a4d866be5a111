"""Faults inside installed packages: place, what to pass instead, a patch, a report."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import linecache
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from types import MappingProxyType

import torch

from nanlab.analysis.options import Option, options_at
from nanlab.program.callee import classes_of, makers_of, meant, objects_of, objects_passed
from nanlab.program.edit_text import argument_of
from nanlab.program.expression import (
    assigned_pairs,
    functions_around,
    last_name,
    lines_of,
    names_in,
    names_of,
    nodes_of,
    parsed,
    replaced,
    root_of,
    sides_of,
    span_of,
    stored_in,
)
from nanlab.program.patched import function_at, parsed_file
from nanlab.program.terms import added_by
from nanlab.trace.chunk import Span
from nanlab.trace.op import Op, as_imported, walk
from nanlab.trace.recording import Recording

# Where inside an installed package, or inside torch, an operation stands that the user's line
# led to.

Place = tuple[str, int, str]  # file, line, function


def library_of(recording: Recording, position: int) -> Place | None:
    """(file, line, function) in a library where a row was computed; None where it is the user's own
    line.

    Of a backward row it is that of the forward operation of its node, but for a line of a custom
    Function's backward.
    """
    made, row = recording.made_by(position), recording.at(position)
    own, site = (row.place, row.site) if made.custom else (made.line, made.site)
    shown, line, real = recording.places[site]
    if line and site != own:
        return shown, line, function_at(real, line)
    return recording.inside_torch.get(made.position)


def asked_at(recording: Recording, position: int) -> int | None:
    """Place of the user's line that gave a library the operands of a row for later use, from within
    a function that the library called.

    A probabilistic program is such a function: the densities of its samples are computed after it.
    """
    given = recording.given.get(recording.at(position).call, ())
    if not given:
        return None
    made = recording.made_by(position)
    outer = recording.places[made.line][:2]

    def inner(at: int) -> bool:
        row = recording.at(at)
        return at == made.position or (bool(row) and (row.file, row.line) == outer)

    reached = walk([made.position], lambda at: recording.parents(at) if inner(at) else ())
    operands = [at for at in reached if not inner(at)]
    # rows of those functions that made or read the operands
    near = {number for at in operands for number in (at, *recording.readers(at))}
    found = [at for at in near if at < made.position and _is_in(recording.at(at), given)]
    return recording.at(max(found)).place if found else None


def scripted_at(recording: Recording, position: int, op: str) -> tuple[str, int] | None:
    """(file, line) of an operator in a function that torch.jit compiled; None if ambiguous."""
    known = recording.scripted.get(recording.at(position).call, ())
    if not known:
        return None
    place = recording.made_by(position).line
    span, (_, _, real) = recording.spans[place], recording.places[place]
    text = "" if span is None else linecache.getline(real, span[0])[span[1] :]
    lines = {(file, line) for name, kind, file, line in known if kind == op and f"{name}(" in text}
    return lines.pop() if len(lines) == 1 else None


def is_told_elsewhere(recording: Recording, position: int, op: str) -> bool:
    """Whether a finding names another line than that of its row."""
    return bool(scripted_at(recording, position, op) or asked_at(recording, position))


def _is_in(row: Op, functions: tuple[tuple[str, int, int], ...]) -> bool:
    """Whether a row was computed by a line of one of these functions."""
    _, line, real = row.recording.places[row.place]
    return any(real == file and first <= line <= last for file, first, last in functions)


# The user's side of a fault inside a library: what the call could be given instead.

# What libraries name the numbers that keep a function away from its pole, and a value to try.
GUARDS = {
    "eps": "1e-6",
    "epsilon": "1e-6",
    "tiny": "1e-6",
    "smooth": "1.0",
    "smoothing": "1e-3",
    "jitter": "1e-4",
    "temperature": "0.07",
    "tau": "0.07",
    "p": "2.0",
}
SETTINGS = {"zero_infinity": "an infeasible target costs nothing"}  # that are to be True
TINY = 1e-4  # of a default, below which it is one of those under another name
FLOOR = "1e-3"  # what is tried for such
AWAY_FROM_ZERO = ("{x}.clamp_min(1e-6)", "{x} + 1e-6")
FURTHER = ("{x}.clamp_min(1e-3)",)
FAR = ("{x}.clamp_min(1e-2)",)  # whose inverse powers leave float32 some digits
SHRUNK = ("{x} * (1 - 1e-6)",)  # off the edge of a symmetric domain
_TENSORS = ("Tensor", "FloatTensor", "Parameter")  # classes that make tensors
APART = ("{x} + 1e-3 * torch.randn_like({x})",)
OF_LISTS = {FURTHER[0]: "[max(each, 1e-3) for each in {x}]"}  # which have none of these methods
INSIDE = ("{x}.clamp(1e-6, 1 - 1e-6)", "{x}.clamp(-1 + 1e-6, 1 - 1e-6)")
BELOW_ONE = ("{x}.clamp_max(1 - 1e-6)",)  # 1 - x is computed
UNSATURATED = ("{x}.clamp(-8.0, 8.0)",)  # tanh and sigmoid are not yet rounded to 1
# of a mean over nothing, and of a maximum
EMPTY = ("{x}.nan_to_num(0.0, torch.inf)", "{x}.nan_to_num(0.0, torch.inf, 0.0)")
MASKS = ("{x} | ~{x}.any()",)  # a mask in which something is True
WIDER = ("{x}.double()",)  # what leaves the range of float32 is mostly far inside that of float64
# off a point at which float32 has no neighbour, as the cosine of an angle of 1e-6 is 1
BESIDE = ("{x}.double() + 1e-6",)
SMALLER = ("{x}.clamp(-30.0, 30.0)", "torch.nn.functional.normalize({x}, dim=-1)")
UNLIKELY = "infeasible-likelihood"
FORMS = {
    "log-of-zero": (*AWAY_FROM_ZERO, *WIDER, *INSIDE, *UNSATURATED, *APART),
    "log-of-negative": (*AWAY_FROM_ZERO, *BELOW_ONE),
    "div-by-zero": (*FURTHER, *SHRUNK, *AWAY_FROM_ZERO, *WIDER, *APART, *MASKS),
    "div-by-tiny": AWAY_FROM_ZERO,
    "eps-underflow": (*WIDER, *AWAY_FROM_ZERO),
    "norm-at-zero": AWAY_FROM_ZERO[::-1],
    "sqrt-at-zero": (*AWAY_FROM_ZERO[::-1], *APART),
    "sqrt-of-negative": (*AWAY_FROM_ZERO, *BELOW_ONE),
    "pow-fraction-at-zero": (*AWAY_FROM_ZERO, *FAR, *BELOW_ONE, *UNSATURATED, *APART),
    "pow-negative-base": (*AWAY_FROM_ZERO, *BELOW_ONE),
    UNLIKELY: (*AWAY_FROM_ZERO, *INSIDE),
    "inverse-function-at-edge": (*INSIDE[::-1], *BESIDE, *APART),
    "inverse-function-domain": (*INSIDE[::-1], *APART),
    "degenerate-matrix": APART,
    "std-of-constant": APART,
    "exp-overflow": (*WIDER, *SMALLER),
    "custom-backward": (*WIDER, *AWAY_FROM_ZERO, *SMALLER),
    "dtype-overflow": ("{x}.float()", *WIDER, *SMALLER),
    "where-grad-trap": (*AWAY_FROM_ZERO, *WIDER),
    "zero-times-inf": AWAY_FROM_ZERO,
    "empty-reduction": MASKS,
}
# where a call has something to compute with: a mask in which something is True, other data
ANY, VARIED = "{x}.any()", "{x}.amax() > {x}.amin()"
WHERE = {
    "empty-reduction": (ANY,),
    "div-by-zero": (ANY, VARIED),
    "std-of-constant": (VARIED,),
}
# what a function names that it is given logarithms of probabilities
LOGARITHMS = frozenset({"log_prob", "log_probs", "log_input", "log_target"})
# of a batch, which samples a library's function has a derivative for
ROWS = "{x}.flatten(1).any(1)"
_AT_ZERO = ("sqrt-at-zero", "norm-at-zero", "div-by-zero", "pow-fraction-at-zero")
_FOR_ALL = (*AWAY_FROM_ZERO, *FURTHER, *WIDER, *SMALLER)  # which other calls may want, too
_SCORES = ("log_prob", "icdf")  # of a value, by a distribution
PASS = "pass "  # what the title of another argument begins with
MOST = 6  # arguments of a call that are tried
MOST_FORMS = 6  # of what the program made before it


@dataclass(frozen=True)
class Rewriting:
    """Lines ``first`` to ``last`` of the user's file as they could be."""

    title: str
    first: int
    last: int
    text: str  # without indentation
    last_resort: bool = False  # worth its line only where no other is right
    also: tuple[tuple[int, int, str], ...] = ()  # other lines, each as these


def rewritings(
    text: str,
    line: int,
    library: Place,
    real: str,
    cause: str,
    probable: bool = False,
    masked: bool = False,
    span: Span | None = None,
    kept: Sequence[str] = (),
    dtypes: Mapping[str, torch.dtype] = MappingProxyType({}),
) -> list[Rewriting]:
    """What the user could pass to a library, the most promising first.

    text: of the user's file; line: of the call in it; real: the library's file on the disk.
    probable: whether data of the step lies between 0 and 1; masked: whether a mask is among it.
    span: of the call; those in it are taken, too, and without it all of the line. kept: forms in
    which an operand of the library's operation is within its domain, see :func:`forms_between`.
    dtypes: of what the program's function has under a name.
    """
    try:
        tree = parsed(text)
    except SyntaxError:
        return []
    calls = [n for n in nodes_of(tree) if isinstance(n, ast.Call) and line in lines_of(n)]
    own = next((call for call in calls if span_of(call) == span), None)
    if own is not None and cause == UNLIKELY and last_name(own.func) in _SCORES:
        calls = [own]  # the model may give what it likes: what it is held against counts
    elif own is not None:
        calls = [node for node in ast.walk(own) if isinstance(node, ast.Call)]
    every = [*calls, *(maker for call in calls for maker in _makers(tree, call.func))]
    zeros = ((call, k.arg or "") for call in every for k in call.keywords if _is_off(k))
    off = frozenset(name for call, name in zeros if float(_default(text, call, name, library)) > 0)
    guards = guards_at(real, library[1], off)
    packages = frozenset({_package_of(library)})
    nothing = {"empty-reduction": EMPTY, "div-by-zero": EMPTY[:1]}.get(cause, ())
    forms = [form for form in FORMS.get(cause, ()) if masked or form not in MASKS]
    forms = [*dict.fromkeys((*kept, *forms))]
    if probable and cause == UNLIKELY:
        forms = [INSIDE[0]]
    made = [*calls, *_made_of(calls, text, cause, packages)]
    without_data = partial(_without_data, tree, text, cause, dtypes)
    found = [
        *_guarded(tree, text, calls, guards, library),
        *(_settings(text, calls[0], library) if calls else ()),
        *_with_options(text, calls, every, library, real),
        *(_as_logarithms(tree, text, calls[0], library) if calls else ()),
        *(_by_rows(tree, text, calls[0]) if calls and cause in _AT_ZERO else ()),
        *_fed(_Passed(tree, text, packages, dtypes), made, forms, probable),
        *(_where_defined(_Passed(tree, text, packages, dtypes), calls[0], cause) if calls else ()),
        *(_widened(tree, text, call, library) for call in calls[:1] if WIDER[0] in forms),
        *(each for form in nothing if calls for each in without_data(calls[0], form)),
    ]
    return list({(r.first, r.text, r.also): r for r in found if r is not None}.values())


def forms_between(old: ast.AST, new: ast.AST) -> Iterator[str]:
    """The forms by which one part of some code is changed: ``{x}.clamp_min(1e-6)``. Empty where two
    trees differ in any other way."""
    if isinstance(old, ast.expr) and isinstance(new, ast.expr) and type(old) is not ast.Constant:
        own = ast.dump(old)
        inner = [n for n in ast.walk(new) if isinstance(n, ast.expr) and ast.dump(n) == own]
        if inner and ast.dump(new) != own:
            taken = replaced(new, lambda n: ast.Name("{x}", ast.Load()) if n in inner else None)
            # `max({x}, 0.01)` is for Python's numbers
            if not (isinstance(taken, ast.Call) and isinstance(taken.func, ast.Name)):
                yield re.sub(r"e-0(\d)", r"e-\1", ast.unparse(taken))  # as one types it: 1e-6
            return
    if type(old) is type(new):
        parts = [[*ast.iter_child_nodes(each)] for each in (old, new)]
        pairs = [(a, b) for a, b in zip(*parts, strict=False) if ast.dump(a) != ast.dump(b)]
        if len(parts[0]) == len(parts[1]) and len(pairs) == 1:
            yield from forms_between(*pairs[0])


def bounded_where_made(
    text: str, spans: Sequence[Span], cause: str, kept: Sequence[str] = ()
) -> list[Rewriting]:
    """The program's expressions that made the operands of a library's operation, each bounded so
    that the operation has a value and a derivative. spans: of these expressions."""
    if cause == UNLIKELY:  # the support says nothing of parameters
        return []
    try:
        tree = parsed(text)
    except SyntaxError:
        return []
    forms = [f for f in dict.fromkeys((*kept, *FORMS.get(cause, ()))) if f not in (*MASKS, *APART)]
    found = []
    for statement in nodes_of(tree):
        if not isinstance(statement, ast.Assign | ast.Return) or statement.value is None:
            continue
        for node in ast.walk(statement.value):
            if isinstance(node, ast.expr) and span_of(node) in spans:
                for form in forms[:MOST_FORMS]:
                    shown = _in_form(form, node)
                    title = f"give the library {shown}"
                    found.append(_in_place(text, title, statement, node, shown))
    return found


@lru_cache(maxsize=256)
def guards_at(
    file: str, line: int, off: frozenset[str] = frozenset()
) -> tuple[tuple[str, bool], ...]:
    """(name, whether an attribute of self) of the guards that a library's function reads, those of
    the given line first. off: names that the program sets to 0, which count as guards, too."""
    around = functions_around(parsed_file(file), line)
    if not around:
        return ()
    function = around[-1]
    statements = (node for node in ast.walk(function) if isinstance(node, ast.stmt))
    here = [s for s in statements if not hasattr(s, "body") and line in lines_of(s)]
    classes = [n for n in ast.walk(parsed_file(file)) if isinstance(n, ast.ClassDef)]
    own = [each for n in classes if line in lines_of(n) for each in n.body]
    makers = [n for n in own if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    names = {arg.arg for arg in (*function.args.args, *function.args.kwonlyargs)}
    names &= GUARDS.keys() | off | _tiny_by_default(function)
    kept = GUARDS.keys() | off | {name for maker in makers for name in _tiny_by_default(maker)}
    found: dict[tuple[str, bool], None] = {}
    for part in (*here, function):
        for node in ast.walk(part):
            if isinstance(node, ast.Name) and node.id in names:
                found.setdefault((node.id, False))
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
                and node.attr.lstrip("_") in kept
            ):
                found.setdefault((node.attr.lstrip("_"), True))
    return tuple(found)


def _is_off(keyword: ast.keyword) -> bool:
    """Whether a call gives 0 for a number."""
    value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
    return type(value) in (int, float) and not value


def _tiny_by_default(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Parameters of a function whose defaults are close to 0: guards, whatever their names."""
    given = function.args
    every = [*given.posonlyargs, *given.args]
    pairs = [*zip(every[::-1], given.defaults[::-1], strict=False)]
    pairs += [(a, d) for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d]
    return {
        each.arg
        for each, default in pairs
        if isinstance(default, ast.Constant)
        and isinstance(default.value, float)
        and 0 < default.value < TINY
    }


def _guarded(
    tree: ast.Module,
    text: str,
    calls: list[ast.Call],
    guards: tuple[tuple[str, bool], ...],
    library: Place,
) -> Iterator[Rewriting]:
    """The call with a positive guard, where the program passes none, 0, or a much smaller one."""
    owner, _, name = library[2].rpartition(".")
    made_for = owner.rpartition(".")[2]
    makers = [maker for call in calls for maker in _makers(tree, call.func)]
    given = [(k.arg, True) for maker in makers for k in maker.keywords if k.arg in GUARDS]
    for guard, of_self in dict.fromkeys((*guards, *given)):
        value = GUARDS.get(guard, FLOOR)
        owned = made_for if name.startswith("_") else name
        title = f"give {owned or 'the library'} its `{guard}`"
        passed = [
            (call, keyword.value, keyword.value.value or 0.0)
            for call in nodes_of(tree)
            if isinstance(call, ast.Call)
            for keyword in call.keywords
            if keyword.arg == guard
            and isinstance(keyword.value, ast.Constant)
            and isinstance(keyword.value.value, int | float | None)
        ]
        near = [
            each
            for each in passed
            if last_name(each[0].func) == made_for or each[0] in calls or each[0] in makers
        ]
        low = [each for each in near if each[2] < float(value) / 2]
        for call, node, held in low or [each for each in passed if not each[2]][:1]:
            default = _default(text, call, guard, library)
            # what is small beside the default changes less of what was right
            near_it = [value] if guard in GUARDS or not float(default) else [default, value]
            for better in [max(value, default, key=float)] if held else near_it:
                yield _in_place(text, f"{title}: {better}", call, node, better)
        if near or not all(held for _, _, held in passed):
            continue
        for call in calls:
            if not of_self and last_name(call.func) == name:
                if _is_given(text, call, guard, library):
                    continue
                changed = _given_too(call, guard, value)
                yield _in_place(text, f"{title}: {value}", call, call, changed)
            elif any(
                last_name(maker.func) == made_for
                if of_self and name == "forward"
                else last_name(maker.func)[:1].isupper()  # which hands a guard of its own on
                for maker in _makers(tree, call.func)
            ):
                kinds = classes_of(call.func, text, frozenset({_package_of(library)}))
                if not (of_self or any(_is_made_with(kind, guard) for kind in kinds)):
                    continue
                row = text.splitlines()[call.lineno - 1].strip()
                new = f"{ast.unparse(call.func)}.{guard} = {value}\n{row}"
                yield Rewriting(f"{title}: {value}", call.lineno, call.lineno, new)


def _is_made_with(kind: type, name: str) -> bool:
    """Whether a class takes a parameter."""
    with suppress(TypeError, ValueError):
        return name in inspect.signature(kind).parameters
    return False


def _is_given(text: str, call: ast.Call, name: str, library: Place) -> bool:
    """Whether a call passes something for a parameter by its place."""
    for function in meant(call.func, text, frozenset({_package_of(library)})):
        with suppress(TypeError, ValueError):
            places = [*inspect.signature(function).parameters]
            return name in places and argument_of(call, name, places.index(name)) is not None
    return False


def _settings(text: str, call: ast.Call, library: Place) -> Iterator[Rewriting]:
    """A setting of the called object, or of an object in it such as a model's configuration, that a
    library's line reads."""
    file, line, _ = library
    calls = (n for n in ast.walk(parsed_file(file)) if isinstance(n, ast.Call))
    given = {each.arg for n in calls if line in lines_of(n) for each in n.keywords}
    for name in given & SETTINGS.keys():
        # other objects of what the path stands for elsewhere, or stood for, may live, too
        known = objects_of(call.func, text, frozenset({_package_of(library)}))
        paths = dict.fromkeys(path for held in known for path in _where_off(held, name or ""))
        for path in (f"{ast.unparse(call.func)}.{each}" for each in paths):
            row = text.splitlines()[call.lineno - 1].strip()
            title = f"let {path} be True: {SETTINGS[name or '']}"
            yield Rewriting(title, call.lineno, call.lineno, f"{path} = True\n{row}")


def _with_options(
    text: str, calls: Sequence[ast.Call], every: Sequence[ast.Call], library: Place, real: str
) -> Iterator[Rewriting]:
    """What the program calls or makes with another option of the library, by which its line is not
    reached, or computes with a number instead of with none."""
    package, last = _package_of(library), library[2].rpartition(".")[2]
    packages = frozenset({package})
    inner = {span_of(n): n for each in every for n in ast.walk(each) if isinstance(n, ast.Call)}
    for call in inner.values():
        # what is called, and the function whose parameters it takes
        named = [(each, each) for each in meant(call.func, text, packages)]
        named += [(each, _called(each)) for each in classes_of(call.func, text, packages)]
        for kind, function in named:
            if str(getattr(kind, "__module__", "")).partition(".")[0] != package:
                continue
            places = [(real, library[1]), *_calls_of(last, kind)]
            for option in dict.fromkeys(o for place in places for o in options_at(*place)):
                made = isinstance(function, type)
                if made is bool(option.owner) and option.name not in LOGARITHMS:
                    yield from _with_option(text, call, function, option)


def _called(kind: type) -> object:
    """The function that a call of a class's objects runs."""
    methods = (getattr(kind, each, None) for each in ("forward", "__call__"))
    return next(filter(None, methods), kind)


def _calls_of(name: str, within: object) -> Iterator[tuple[str, int]]:
    """(file, line) of the calls of a function in another, or in what a class's objects do."""
    function = _called(within) if isinstance(within, type) else within
    with suppress(TypeError, OSError):
        function = inspect.unwrap(function)  # type: ignore[arg-type]
        file = inspect.getsourcefile(function) or ""
        rows, first = inspect.getsourcelines(function)
        for node in nodes_of(parsed_file(file)):
            if isinstance(node, ast.Call) and first <= node.lineno < first + len(rows):
                if last_name(node.func) == name:
                    yield file, node.lineno


def _with_option(text: str, call: ast.Call, called: object, option: Option) -> Iterator[Rewriting]:
    """A call with a value of an option, where it has another."""
    title = f"{last_name(call.func)} with {option.name}={option.value}"
    with suppress(TypeError, ValueError):
        parameters = inspect.signature(called).parameters  # type: ignore[arg-type]
        places = [name for name in parameters if name != "self"]
        if option.name not in places or any(isinstance(a, ast.Starred) for a in call.args):
            return
        default = parameters[option.name].default
        if option.value in ("True", "False") and not isinstance(default, bool | type):
            return  # another option of this name
        given = argument_of(call, option.name, places.index(option.name))
        rest = [k.value for k in call.keywords if k.arg is None]
        shown = repr(default) if given is None else ast.unparse(given)
        if shown == option.value:
            return
        if given is not None:
            yield _in_place(text, title, call, given, option.value)
        elif rest:  # it may be among these
            other = f"{{**{ast.unparse(rest[-1])}, {option.name!r}: {option.value}}}"
            yield _in_place(text, title, call, rest[-1], other)
        else:
            whole = _given_too(call, option.name, option.value)
            yield _in_place(text, title, call, call, whole)


def _where_off(held: object, name: str, depth: int = 2) -> Iterator[str]:
    """The paths of attributes of an object that are False and whose names end so."""
    for key, value in getattr(held, "__dict__", {}).items():
        if key.endswith(name) and value is False:
            yield key
        elif depth and not isinstance(value, type):
            yield from (f"{key}.{inner}" for inner in _where_off(value, name, depth - 1))


def _package_of(library: Place) -> str:
    return (as_imported(library[0]) or "").partition("/")[0]


@dataclass(frozen=True)
class _Passed:
    """What is known of the arguments that a file passes."""

    tree: ast.Module
    text: str
    packages: frozenset[str]
    dtypes: Mapping[str, torch.dtype]  # by name
    known: dict[Span, list[ast.expr]] = field(default_factory=dict)  # of calls: what may be bounded

    def of(self, call: ast.Call, form: str) -> list[ast.expr]:
        """The arguments of a call that a form makes sense of."""
        span = span_of(call)
        if span not in self.known:
            self.known[span] = [*self._of_tensors(call)]
        every = self.known[span]
        masks = form in (*MASKS, ANY) and any(map(self._is_mask, every))
        return [
            each for each in every if (self._is_mask(each) if masks else self._suits(each, form))
        ][:MOST]

    def _of_tensors(self, call: ast.Call) -> Iterator[ast.expr]:
        """The arguments but for constants, objects, and those whose defaults are flags, names or
        counts."""
        flags, objects = dict[str, int](), objects_passed(call, self.text, self.packages)
        for function in meant(call.func, self.text, self.packages)[:1]:
            with suppress(TypeError, ValueError):
                parameters = inspect.signature(function).parameters.items()
                for place, (name, parameter) in enumerate(parameters):
                    if isinstance(parameter.default, bool | int | str):
                        flags[name] = place
        given = [a for place, a in enumerate(call.args) if place not in flags.values()]
        named = (k.value for k in call.keywords if k.arg and k.arg not in flags)
        for each in (*given, *named):
            name = ast.unparse(each)
            if not isinstance(each, ast.Starred) and names_in(each) and name not in objects:
                if not name.startswith("torch."):
                    yield each

    def _suits(self, argument: ast.expr, form: str) -> bool:
        name = ast.unparse(argument)
        if _is_object(self.tree, argument):
            return False
        values = _assigned(self.tree).get(name, [])
        if values and all(isinstance(each, ast.Constant) for each in values):
            if not any(n.arg == name for n in nodes_of(self.tree) if isinstance(n, ast.arg)):
                return form == AWAY_FROM_ZERO[1] and all(_is_number(each) for each in values)
        root = argument
        while isinstance(root, ast.Subscript):
            root = root.value
        dtype = self.dtypes.get(ast.unparse(root))
        if form in (*MASKS, ANY):
            unknown = dtype is None and isinstance(argument, ast.Name | ast.Attribute)
            return unknown or (form == ANY and dtype is not None)
        numbers = dtype is None or dtype.is_floating_point or dtype.is_complex
        return numbers and not self._is_mask(argument)

    def _is_mask(self, argument: ast.expr, depth: int = 3) -> bool:
        """Whether an argument is of booleans, such as a comparison gives."""
        if self.dtypes.get(ast.unparse(argument)) is torch.bool:
            return True
        match argument:
            case ast.Compare() | ast.UnaryOp(op=ast.Invert()):
                return True
            case ast.Call(func=ast.Attribute(attr="bool")):
                return True
            case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr(), right=right):
                return self._is_mask(left, depth) or self._is_mask(right, depth)
            case ast.Subscript(value=value) if not isinstance(argument.slice, ast.Constant):
                return self._is_mask(value, depth)
        values = _assigned(self.tree).get(ast.unparse(argument), []) if depth else []
        return bool(values) and all(self._is_mask(each, depth - 1) for each in values)


def _is_object(tree: ast.Module, argument: ast.expr) -> bool:
    """Whether an argument is a module or a record of several tensors: the function around calls it,
    makes it by a class, or reads what no tensor has of it."""
    around = functions_around(tree, argument.lineno) if isinstance(argument, ast.Name) else ()
    return ast.unparse(argument) in _objects_in(around[-1] if around else tree)


@lru_cache(maxsize=64)
def _objects_in(code: ast.AST) -> frozenset[str]:
    """The names and paths in some code that stand for no tensor."""
    found: set[str] = set()
    for node in ast.walk(code):
        match node:
            case ast.Call(func=called):
                found.add(ast.unparse(called))
            case ast.Attribute(value=owner, attr=attr) if not hasattr(torch.Tensor, attr):
                found.add(ast.unparse(owner))
        match node:
            case ast.Assign(targets=[target], value=ast.Call(func=made)):
                kind = last_name(made)
                if kind[:1].isupper() and kind not in _TENSORS:
                    found.add(ast.unparse(target))
    return frozenset(found)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is float


def _fed(
    passed: _Passed, calls: list[ast.Call], forms: list[str], probable: bool
) -> Iterator[Rewriting]:
    """Arguments of the call, bounded so that the library's function has value and derivative."""
    tree, text = passed.tree, passed.text
    kept, alike = [INSIDE[0]] if probable and INSIDE[0] in forms else [], list[Rewriting]()
    for form in (*kept, *(each for each in forms if each != INSIDE[0])):
        for call in calls:
            if ast.unparse(call.func).startswith("torch."):
                continue
            for argument in passed.of(call, form):
                name = ast.unparse(argument)
                if _is_list(tree, argument):
                    if form not in OF_LISTS:
                        continue
                    shown = _in_form(OF_LISTS[form], argument)
                else:
                    shown = _in_form(form, argument)
                if form in APART and any(isinstance(n, ast.Call) for n in ast.walk(argument)):
                    taken = names_of(text)  # what is called is called once
                    once = next((n for n in ("out", "made", "given") if n not in taken), "_out")
                    shown = form.replace("{x}", f"({once} := {name})", 1).format(x=once)
                made = _in_place(text, PASS + shown, call, argument, shown)
                if isinstance(argument, ast.Name) and _is_given_twice(call, argument):
                    row = textwrap.dedent("\n".join(text.splitlines()[made.first - 1 : made.last]))
                    made = replace(made, text=f"{name} = {shown}\n{row}")
                yield replace(made, last_resort=form in APART)  # noise where data is alike
                if call is calls[0] and form in _FOR_ALL:
                    alike += _alike(tree, text, call, argument, form, made)
    yield from alike


def _where_defined(passed: _Passed, call: ast.Call, cause: str) -> Iterator[Rewriting]:
    """The statement that adds the call's result to a sum, only where an argument has something for
    the call to compute with."""
    holding = (s for s in nodes_of(passed.tree) if added_by(s) is not None and call in ast.walk(s))
    statement, rows = next(holding, None), passed.text.splitlines()
    if not isinstance(statement, ast.stmt):
        return
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    if rows[first - 1][: statement.col_offset].strip():  # behind a colon
        return
    row = textwrap.indent(textwrap.dedent("\n".join(rows[first - 1 : last])), "    ")
    for form in WHERE.get(cause, ()):
        for argument in passed.of(call, form):
            if isinstance(argument, ast.Name | ast.Attribute):
                test = form.format(x=ast.unparse(argument))
                title = f"leave the term out where not {test}"
                yield Rewriting(title, first, last, f"if {test}:\n{row}")


def _made_of(
    calls: Sequence[ast.Call], text: str, cause: str, packages: frozenset[str]
) -> list[ast.Call]:
    """The calls that make the objects called or passed here; none where data is outside of a
    distribution's support, which says nothing of its parameters."""
    known = (makers_of(call, text, packages).values() for call in calls if cause != UNLIKELY)
    return list({span_of(maker): maker for each in known for maker in each}.values())


def _as_logarithms(
    tree: ast.Module, text: str, call: ast.Call, library: Place
) -> Iterator[Rewriting]:
    """The call with logarithms of probabilities, where the function takes these as well:
    ``log_softmax`` is finite where softmax is rounded to 0."""

    def logarithm(argument: ast.expr) -> ast.expr | None:
        if argument not in call.args:
            return None
        makers = _makers(tree, argument)
        made = makers[0] if len(makers) == 1 else argument
        if isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute):
            if made.func.attr == "softmax":
                named = ast.Attribute(made.func.value, "log_softmax", ast.Load())
                return ast.Call(named, made.args, made.keywords)
        return ast.Call(ast.Attribute(argument, "log", ast.Load()), [], [])

    new = replaced(call, logarithm)
    if "log_softmax" not in ast.unparse(new):
        return
    for function in meant(call.func, text, frozenset({_package_of(library)})):
        with suppress(TypeError, ValueError):
            names = LOGARITHMS & inspect.signature(function).parameters.keys()
            for name in names - {each.arg for each in call.keywords}:
                title = f"give {last_name(call.func)} logarithms: {name}=True"
                yield _in_place(text, title, call, call, _given_too(new, name, "True"))


def _by_rows(tree: ast.Module, text: str, call: ast.Call) -> Iterator[Rewriting]:
    """The call for only those samples of an argument that are not all zeros; the result for the
    other samples is 0."""
    statements = (n for n in nodes_of(tree) if isinstance(n, ast.stmt) and not hasattr(n, "body"))
    if not any(each.lineno == call.lineno for each in statements):
        return
    taken = names_of(text)
    kept, made = ("kept", "made") if not taken & {"kept", "made"} else ("_kept", "_made")
    for argument in (each for each in call.args[:MOST] if isinstance(each, ast.Name)):
        if _is_object(tree, argument):
            continue
        inner = replaced(call, lambda n: _picked(n, kept) if n in call.args else None)
        whole = f"{made}.new_zeros(len({kept}), *{made}.shape[1:]).index_put(({kept},), {made})"
        title = f"give {last_name(call.func)} the samples of {argument.id} that are not all zeros"
        found = _in_place(text, title, call, call, whole)
        rows = f"{kept} = {ROWS.format(x=argument.id)}\n{made} = {ast.unparse(inner)}\n{found.text}"
        yield replace(found, text=rows)


def _picked(argument: ast.expr, rows: str) -> ast.expr | None:
    """The rows of an argument that is a name."""
    named = isinstance(argument, ast.Name)
    return ast.Subscript(argument, ast.Name(rows, ast.Load()), ast.Load()) if named else None


def _is_list(tree: ast.Module, argument: ast.expr) -> bool:
    """Whether an argument is a list of the program."""
    made = _assigned(tree).get(ast.unparse(argument), [])
    lists = (ast.List, ast.ListComp)
    return any(
        isinstance(value, lists)
        or (isinstance(value, ast.Call) and last_name(value.func) == "tolist")
        for value in (*made, argument)
    )


def _is_given_twice(call: ast.Call, name: ast.Name) -> bool:
    """Whether a call is given a name more than once, as a kernel's both sides."""
    return [ast.unparse(each) for each in call.args].count(name.id) > 1


def _widened(tree: ast.Module, text: str, call: ast.Call, library: Place) -> Rewriting | None:
    """The call of a library's module with its parameters in float64; None of anything else."""
    owner, _, name = library[2].rpartition(".")
    made_for, path = owner.rpartition(".")[2], ast.unparse(call.func)
    makers = (m for m in _makers(tree, call.func) if last_name(m.func) == made_for)
    kinds = (k for m in makers for k in meant(m.func, text, frozenset({_package_of(library)})))
    own = any(isinstance(kind, type) and issubclass(kind, torch.nn.Module) for kind in kinds)
    if name != "forward" or not own or call.keywords or not call.args:
        return None
    given = ", ".join(_in_form(WIDER[0], each) for each in call.args)
    wide = f"{{n: p.double() for n, p in {path}.named_parameters()}}"
    new = f"torch.func.functional_call({path}, {wide}, ({given},))"
    return _in_place(text, f"call {path} with its parameters in float64", call, call, new)


def _alike(
    tree: ast.Module, text: str, call: ast.Call, argument: ast.expr, form: str, made: Rewriting
) -> Iterator[Rewriting]:
    """The same form for other calls on the same object in the function: of the argument's name, or
    of what these calls are given in its place."""
    around = functions_around(tree, call.lineno)
    path, root = ast.unparse(call.func), root_of(call.func)
    others = [
        other
        for other in ast.walk(around[-1] if around else ast.Module([], []))
        if isinstance(other, ast.Call) and root and root_of(other.func) == root
        if other.end_lineno < call.lineno or call.end_lineno < other.lineno  # type: ignore
    ]
    if isinstance(argument, ast.Name):
        same = (each.id for o in others for each in o.args if isinstance(each, ast.Name))
        first = _first_reader(around[-1], argument.id) if argument.id in same else None
        if first is not None:
            shown = form.format(x=argument.id)
            row = textwrap.dedent("\n".join(text.splitlines()[first[0] - 1 : first[1]]))
            title = f"{PASS}{shown} in all lines that read it"
            yield Rewriting(title, *first, f"{argument.id} = {shown}\n{row}")
            return
    place = call.args.index(argument) if argument in call.args else len(call.args)
    twins = [o for o in others if ast.unparse(o.func) == path and len(o.args) > place]
    given = [o.args[place] for o in twins]
    if given and not any(isinstance(each, ast.Constant | ast.Starred) for each in given):
        also = [
            _in_place(text, "", twin, each, _in_form(form, each))
            for twin, each in zip(twins, given, strict=True)
        ]
        rows = [row for each in also for row in range(each.first, each.last + 1)]
        if len({*rows}) == len(rows):
            lines = ", ".join(str(each.first) for each in also)
            title = f"{made.title}; the same in line {lines}"
            yield replace(made, title=title, also=tuple((e.first, e.last, e.text) for e in also))


def _in_form(form: str, argument: ast.expr) -> str:
    """The text of a form with an argument in it."""
    plain = isinstance(argument, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    name = ast.unparse(argument)
    return form.format(x=name if plain else f"({name})")


def _first_reader(
    function: ast.FunctionDef | ast.AsyncFunctionDef, name: str
) -> tuple[int, int] | None:
    """Lines of the statement of a function that is the first to read a name, given to it once."""
    arguments = [n.arg for n in ast.walk(function) if isinstance(n, ast.arg)]
    readers = [s for s in function.body if name in names_in(s) and name not in stored_in(s)]
    if [*arguments, *stored_in(function)].count(name) != 1 or not readers:
        return None
    first = readers[0]
    return None if hasattr(first, "body") else (first.lineno, first.end_lineno or first.lineno)


def _without_data(
    tree: ast.Module,
    text: str,
    cause: str,
    dtypes: Mapping[str, torch.dtype],
    call: ast.Call,
    form: str,
) -> Iterator[Rewriting]:
    """The call, a part indexed from its result or one of several results, with 0 in place of a NaN
    from no data."""
    does = "divides by 0" if cause == "div-by-zero" else "averages over nothing"
    title = f"let {last_name(call.func)} give 0 where it {does}"
    assigned = (n for n in nodes_of(tree) if isinstance(n, ast.Assign) and n.value is call)
    target = next((n.targets[0] for n in assigned), None)
    if isinstance(target, ast.Tuple):  # `index, weight = laplacian(points)`
        first, last = target.lineno, call.end_lineno or call.lineno
        lines = text.splitlines()[first - 1 : last]
        if lines[0][: target.col_offset].strip():  # behind a colon
            return
        rows = textwrap.dedent("\n".join(lines))
        for name in (each.id for each in target.elts if isinstance(each, ast.Name)):
            if (known := dtypes.get(name)) is None or known.is_floating_point:
                row = f"{name} = {form.format(x=name)}"
                yield Rewriting(title, first, last, f"{rows}\n{row}", last_resort=True)
        return
    picked = (
        n
        for n in nodes_of(tree)
        if isinstance(n, ast.Subscript | ast.Attribute) and n.value is call
        if not hasattr(torch.Tensor, getattr(n, "attr", ""))
    )
    whole: ast.expr = next(picked, call)  # `model(ids, labels=labels).loss`
    given = ast.get_source_segment(text, whole) or ast.unparse(whole)
    made = _in_place(text, title, whole, whole, form.format(x=given))
    yield replace(made, last_resort=True)  # it hides any other NaN, too


def _in_place(text: str, title: str, call: ast.AST, node: ast.expr, new: str) -> Rewriting:
    """The lines of a call with one of its parts written anew."""
    rows = text.splitlines()
    first, _, last, _ = span_of(call)
    at, begin, end, stop = span_of(node)
    head, tail = rows[at - 1].encode()[:begin].decode(), rows[end - 1].encode()[stop:].decode()
    made = [*rows[first - 1 : at - 1], head + new + tail, *rows[end:last]]
    indent = len(made[0]) - len(made[0].lstrip())
    return Rewriting(title, first, last, "\n".join(row[indent:] for row in made))


def with_keyword(text: str, made: str, keyword: str, value: str) -> Rewriting | None:
    """The lines of the one call of a class with a keyword of this value; None where the text has
    none, or several."""
    try:
        calls = [node for node in nodes_of(parsed(text)) if isinstance(node, ast.Call)]
    except SyntaxError:
        return None
    own = [call for call in calls if last_name(call.func) == made]
    given = next((k.value for c in own for k in c.keywords if k.arg == keyword), None)
    if len(own) != 1 or (given is None and len(own[0].args) > 2):  # it may be among these
        return None
    if given is not None:
        return _in_place(text, "", own[0], given, value)
    return _in_place(text, "", own[0], own[0], _given_too(own[0], keyword, value))


def _given_too(call: ast.Call, keyword: str, value: str) -> str:
    """A call with one more keyword."""
    comma = ", " if call.args or call.keywords else ""
    return f"{ast.unparse(call)[:-1]}{comma}{keyword}={value})"


def _makers(tree: ast.Module, path: ast.expr) -> list[ast.Call]:
    """The calls whose results the file gives to a name."""
    given = _assigned(tree).get(ast.unparse(path), [])
    sides = (side for value in given for side in sides_of(value))
    return [value for value in sides if isinstance(value, ast.Call)]


@lru_cache(maxsize=16)
def _assigned(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """What a file gives to each name or path."""
    found: dict[str, list[ast.expr]] = {}
    for node in nodes_of(tree):
        for target, value in assigned_pairs(node) if isinstance(node, ast.Assign) else ():
            found.setdefault(ast.unparse(target), []).append(value)
    return found


def _default(text: str, call: ast.Call, name: str, library: Place) -> str:
    """The default of a called function for a numeric parameter; "0" if unknown."""
    for function in meant(call.func, text, frozenset({_package_of(library)})):
        with suppress(TypeError, ValueError):
            parameter = inspect.signature(function).parameters.get(name)
            if parameter is not None and isinstance(parameter.default, float):
                return str(parameter.default)
    return "0"


# The report to a library's authors.


def text_of_library(library: Place) -> str:
    """The source of the library's file; empty where there is none."""
    return "".join(linecache.getlines(library[0]))


def report(library: Place, title: str, explanation: str, evidence: str, patches: list[str]) -> str:
    """What to write to the authors of a library: versions, place, cause, values, and the patch."""
    file, line, function = library
    shown = as_imported(file) or file
    package = shown.split("/", 1)[0]
    row = (text_of_library(library).splitlines()[line - 1 : line] or [""])[0].strip()
    parts = [
        f"{package}: {title}",
        f"`{shown}`, line {line}, in `{function}`:\n\n    {row}",
        explanation,
        f"Values that show it:\n\n{textwrap.indent(evidence, '    ')}" if evidence else "",
        "What mends it:\n\n" + textwrap.indent(patches[0], "    ") if patches else "",
        f"{package} {_version(package)}, torch {torch.__version__}, Python"
        f" {sys.version.split()[0]}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _version(package: str) -> str:
    names = importlib.metadata.packages_distributions().get(package, [package])
    try:
        return importlib.metadata.version(names[0])
    except importlib.metadata.PackageNotFoundError:
        return "(unknown version)"
