"""A call into a library, made again from its source line with the recorded arguments."""

from __future__ import annotations

import ast
import copy
import gc
import inspect
import itertools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from types import FunctionType, ModuleType
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from nanlab.errors import NotReplayable
from nanlab.program.edit_text import local_makers, passed_makers
from nanlab.program.expression import (
    SHAPES,
    Code,
    Following,
    Made,
    ValueAt,
    aliases_of,
    as_operand,
    assigned_pairs,
    autocast,
    casts,
    imports_of,
    inside,
    is_silent,
    key_of,
    last_name,
    namespace_of,
    nodes_of,
    numbers_in,
    parsed,
    reads_of,
    replaced,
    sides_of,
    span_of,
)
from nanlab.program.rerun import Get, seed_first
from nanlab.stats.memory import has_storage
from nanlab.trace.chunk import Span
from nanlab.trace.op import as_imported
from nanlab.trace.program import Ref, Segment, refs_in
from nanlab.trace.recording import Recording

Tensor = torch.Tensor
MOST_TRIES = 200  # assignments of recorded values to the arguments of a call
MOST_WAYS = 2000  # of them that are put in order
MOST_NUMBERED = 40  # with numbers among them: of each the object that is called is copied
MOST_OBJECTS = 20  # without tensors, of a class, that may be the one that was called
MOST_VALUES = 16  # of a name that is given constants by conditions
_PLAIN = (bool, int, float, str, type(None), torch.dtype)
_DEPTH = 3  # objects that hold each other

# where a setting stands in an object: names of attributes, the last of them its own
Settings = dict[tuple[str, ...], Any]
Differences = dict[tuple[str, ...], tuple[Any, Any]]  # of two objects, by the same


@dataclass(frozen=True)
class Live:
    """An object of the running program: each call gets a copy of it, with recorded tensors."""

    object: Any
    tensors: tuple[tuple[Tensor, Ref | None], ...]  # those it holds, and what calls read them as
    settings: Settings = field(default_factory=dict)  # to set in the copy

    def copied(self, get: Get) -> Any:
        """A copy that holds the tensors of the replay."""
        memo: dict[int, Any] = {}
        for held, ref in self.tensors:
            own = held.detach().clone().requires_grad_(held.requires_grad)
            memo[id(held)] = own if ref is None else get(ref)
        try:
            made = copy.deepcopy(self.object, dict(memo))
        except TypeError:  # a module with a way of its own to be copied wants parameters
            made = self._with_parameters(memo)
        for path, value in self.settings.items():
            owner = made
            for name in path[:-1]:
                owner = vars(owner)[name] if name in vars(owner) else getattr(owner, name)
            setattr(owner, path[-1], value)
        return made

    def _with_parameters(self, values: dict[int, Any]) -> Any:
        memo, standing = dict(values), dict[int, Any]()
        for held, _ in self.tensors:
            if isinstance(held, nn.Parameter):
                own = memo[id(held)] = nn.Parameter(held.detach(), held.requires_grad)
                standing[id(own)] = values[id(held)]
        made = copy.deepcopy(self.object, memo)
        for module in made.modules() if isinstance(made, nn.Module) else ():
            parameters = module._parameters
            parameters.update({n: standing.get(id(p), p) for n, p in parameters.items()})
        return made


@dataclass(frozen=True)
class Run:
    """One run of an expression that calls into a library."""

    calls: tuple[int, ...]  # indices of its calls in the segment
    out: Any  # Ref of its value, or a tuple of them
    parts: dict[str, Any]  # key of a part -> Ref, Live or a plain value
    cast: torch.dtype | None  # of the autocast that it ran under
    # which of the tensors that its value, an object, holds; None: it is a tensor, or several alone
    kept: tuple[int, ...] | None = None


def runs_of(
    node: ast.expr,
    text: str,
    packages: frozenset[str],
    made: Sequence[Made],
    segment: Segment,
    device: str,
    value: ValueAt,
    stored: Mapping[Any, str],
) -> list[Run]:
    """Every run of an expression, tried: made again from the source, it makes the recorded calls
    with the recorded results. Raises NotReplayable where it does not.

    packages: that the program ran through; made: the calls of the expression; stored: the names of
    parameters and buffers, by their storages.
    """
    leaves, objects = _parts(node, text, packages, {each.span for each in made})
    code = Code(node, [*leaves, *objects], known_in(text))
    code.check()
    named: dict[str, set[Any]] = {key: set() for key in leaves}
    for part in ast.walk(node):
        if isinstance(part, ast.expr) and (key := key_of(part)) in leaves:
            ends = f".{last_name(part)}"
            named[key] = {at for at, name in stored.items() if f".{name}".endswith(ends)}
    found: list[Run] = []
    computed = (n for n in ast.walk(node) if isinstance(n, ast.Call | ast.Subscript))
    opaque = [span_of(n) for n in computed if key_of(n) in leaves]
    rest = [each for each in made if not any(inside(each.span, span) for span in opaque)]
    while rest:
        found.append(_first(code, leaves, objects, rest, segment, device, value, named))
        rest = rest[len(found[-1].calls) :]
    return found


def enters_library(node: ast.expr, text: str, packages: frozenset[str]) -> bool:
    """Whether an expression calls anything but torch and the methods of tensors."""
    known = namespace_of(text)

    def of_tensor(function: ast.expr) -> bool:
        named = isinstance(function, ast.Attribute) and hasattr(Tensor, function.attr)
        return named and not any(classes_of(each, text, packages) for each in _paths(function))

    return any(
        isinstance(call, ast.Call) and _root(call.func) not in known and not of_tensor(call.func)
        for call in ast.walk(node)
    )


def run_with(code: Code, run: Run, segment: Segment, device: str) -> Callable[[Get], Any]:
    """A function that makes the call by new code, with tensors in place of references."""

    def result(get: Get) -> Any:
        parts = {key: _given(part, get) for key, part in run.parts.items()}
        seed_first(segment, run.calls[0], run.calls[-1] + 1)
        with autocast(device, run.cast):
            made = code(parts)
        if run.kept is None or isinstance(made, Tensor):
            return made
        held = _tensors_of(made)
        return tuple(held[i] for i in run.kept if i < len(held))

    return result


def with_settings(run: Run, key: str, settings: Differences) -> Run:
    """The run with other settings of an object. Raises NotReplayable for one that does not have
    those that are to be others."""
    live = run.parts[key]
    for path, (was, _) in settings.items():
        if _at(live.object, path) != was:
            raise NotReplayable(f"the object has another {path[-1]} than its line gives it")
    now = {path: value for path, (_, value) in settings.items()}
    changed = {**run.parts, key: Live(live.object, live.tensors, now)}
    return replace(run, parts=changed)


def _at(held: Any, path: tuple[str, ...]) -> Any:
    """An attribute of an object, or of one in it."""
    for name in path:
        held = vars(held)[name] if name in getattr(held, "__dict__", ()) else getattr(held, name)
    return held


def settings_between(
    old: ast.expr, new: ast.expr, text: str, packages: frozenset[str]
) -> Differences:
    """The attributes in which objects differ that two expressions make. Raises NotReplayable where
    they cannot be made here."""
    made = []
    if isinstance(old, ast.IfExp) and isinstance(new, ast.IfExp):
        sides = zip(sides_of(old), sides_of(new), strict=False)
        differ = [(a, b) for a, b in sides if a and b and key_of(a) != key_of(b)]
        others = [each for each in sides_of(old) if each and each not in [a for a, _ in differ]]
        if len(differ) == 1 and len(others) == 1:  # the other object is to be told from it
            ((was, now),) = differ
            apart = settings_between(was, others[0], text, packages)
            if not apart:
                raise NotReplayable("both sides make the same object")
            same = {path: (value, value) for path, (value, _) in apart.items()}
            return same | settings_between(was, now, text, packages)
    for node in (_as_it_was(old, new), new):
        known = {key_of(n): v for n in ast.walk(node) for v in _literal(n, text)}
        if isinstance(node, ast.Call) and (found := meant(node.func, text, packages)):
            known[key_of(node.func)] = found[0]
        code = Code(node, known, known_in(text))
        code.check()
        try:
            with torch.random.fork_rng(devices=[]), _disable_current_modes():
                torch.manual_seed(0)
                made.append(code(known))
        except Exception as error:
            raise NotReplayable(f"{ast.unparse(node)} raises {type(error).__name__}") from None
    return dict(_differing(made[0], made[1], (), 0))


def _as_it_was(old: ast.expr, new: ast.expr) -> ast.expr:
    """A call in which an argument that another call gives as a constant, and whose value is not
    known, is what that is not: the object will tell."""
    if not isinstance(old, ast.Call) or not isinstance(new, ast.Call):
        return old
    given = ([*each.args, *(k.value for k in each.keywords)] for each in (old, new))
    values: dict[ast.expr, ast.expr] = {}
    for was, now in zip(*given, strict=False):
        if isinstance(was, ast.Name | ast.Attribute) and isinstance(now, ast.Constant):
            values[was] = ast.Constant(not now.value if isinstance(now.value, bool) else None)
    found: ast.expr = replaced(old, values.get)
    return found


def _differing(
    old: Any, new: Any, path: tuple[str, ...], depth: int
) -> Iterator[tuple[tuple[str, ...], tuple[Any, Any]]]:
    """(path, both values) of each plain attribute in which two objects of one class differ."""
    if type(old) is not type(new) or not hasattr(old, "__dict__") or depth > _DEPTH:
        return
    for name, value in _attributes(new):
        before = dict(_attributes(old)).get(name)
        if isinstance(value, _PLAIN) and isinstance(before, _PLAIN):
            if before != value:
                yield (*path, name), (before, value)
        elif not isinstance(value, Tensor | FunctionType | ModuleType | type):
            yield from _differing(before, value, (*path, name), depth + 1)


def _attributes(held: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object; of a module, its child modules too."""
    yield from vars(held).items()
    if isinstance(held, nn.Module):
        yield from held.named_children()


# The names of an expression: tensors that were recorded, and objects of the running program.


def _parts(
    node: ast.expr, text: str, packages: frozenset[str], spans: set[Span]
) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """(plain values that each part of a call may have, by key, none for a tensor; objects that it
    may call, by key)."""
    names = known_in(text)
    leaves: dict[str, list[Any]] = {}
    objects: dict[str, list[Any]] = {}

    def visit(part: Any) -> None:
        if isinstance(part, ast.Lambda | ast.comprehension | ast.NamedExpr | ast.Starred):
            raise NotReplayable("the call is not written plainly")
        if isinstance(part, ast.Name | ast.Attribute | ast.Subscript):
            if _root(part) in names:
                return
            if isinstance(part, ast.Attribute) and part.attr in SHAPES:
                visit(part.value)
                return
            if isinstance(part, ast.Subscript) and span_of(part) in spans and _is_plain(part.slice):
                visit(part.value)
                return
            leaves.setdefault(key_of(part), [*_possible(part, text)])
            return
        if isinstance(part, ast.Call):
            if not called(part.func) and part is not node:
                leaves.setdefault(key_of(part), [])  # of the program's own: its value was recorded
                return
            for name, default in _flags(part, text, packages):
                leaves.setdefault(key_of(name), [*_literal(name, text)] or [default, not default])
            for each in (*part.args, *part.keywords):
                visit(each)
            return
        for child in ast.iter_child_nodes(part):
            visit(child)

    def called(function: Any) -> bool:
        """Whether the function can be called here."""
        if _root(function) in names:
            return True
        if isinstance(function, ast.Call):  # `Norm(3)(x)`
            visit(function)
            return True
        for owner in _paths(function):  # `norm(x)`, `norm.inverse(x)`, `ball.metric.dist(x)`
            if found := objects_of(owner, text, packages):
                objects[key_of(owner)] = found
                return True
        method = isinstance(function, ast.Attribute)
        if not (method and hasattr(Tensor, function.attr)):
            if found := meant(function, text, packages):
                objects[key_of(function)] = found
                return True
            if not method or not isinstance(function.value, ast.Call):
                return False
        visit(function.value)
        return True

    visit(node)
    return leaves, objects


def _flags(call: ast.Call, text: str, packages: frozenset[str]) -> Iterator[tuple[ast.Name, bool]]:
    """(name, default) of each flag that a call passes by a name."""
    given = [k for k in call.keywords if isinstance(k.value, ast.Name)]
    for function in meant(call.func, text, packages)[:1] if given else ():
        with suppress(TypeError, ValueError):
            parameters = inspect.signature(function).parameters
            for each in given:
                default = parameters[each.arg or ""].default if each.arg in parameters else None
                if isinstance(default, bool) and isinstance(each.value, ast.Name):
                    yield each.value, default


def _is_plain(index: ast.expr) -> bool:
    """Whether an index holds no name; the result of any other index was recorded."""
    return not any(isinstance(each, ast.Name) for each in ast.walk(index))


def _literal(node: ast.AST, text: str) -> Iterator[Any]:
    """The constants that a file may give to a name, where it gives it nothing else; of a
    dictionary of constants, dictionaries."""
    if isinstance(node, ast.Name):
        given = _assigned(text).get(key_of(ast.Name(node.id, ast.Load())), ())
        only = given[0] if len(given) == 1 else None
        yield from _constants(only) if only is not None else ()


def _possible(node: ast.AST, text: str) -> Iterator[Any]:
    """The constants that a file may give to a name, and an ellipsis for any tensor where it gives
    it anything else."""
    given = _assigned(text).get(key_of(node), ()) if isinstance(node, ast.Name) else ()
    found = [*_literal(node, text)]
    if len(given) > 1:
        every = (_constants(each) for each in given if each is not None)
        found = [*dict.fromkeys(value for each in every for value in each)]
        found += [...] if found else []
    yield from found


class _Constants(dict[Any, Any]):
    """A dictionary of constants that nobody changes."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


def _constants(node: ast.expr) -> list[Any]:
    """What an expression of constants may be, by the sides that its conditions choose; nothing for
    any other expression."""
    found: list[Any] = []
    for side in sides_of(node):
        match side:
            case ast.Constant(value):
                found.append(value)
            case ast.Dict(keys, values) if all(isinstance(k, ast.Constant) for k in keys):
                names = [k.value for k in keys if isinstance(k, ast.Constant)]
                each = itertools.islice(itertools.product(*map(_constants, values)), MOST_VALUES)
                found += [_Constants(zip(names, chosen, strict=True)) for chosen in each]
            case _:
                return []
    return found[:MOST_VALUES]


@lru_cache(maxsize=16)
def _assigned(text: str) -> dict[str, list[ast.expr | None]]:
    """The expressions assigned to each name or attribute; None for a value from elsewhere."""
    found: dict[str, list[ast.expr | None]] = {}
    for node in nodes_of(parsed(text)):
        pairs: list[tuple[ast.AST, ast.expr | None]] = []
        if isinstance(node, ast.Assign):
            pairs += assigned_pairs(node)
        elif isinstance(node, ast.AnnAssign):
            pairs.append((node.target, node.value))
        elif isinstance(node, ast.For | ast.AugAssign | ast.comprehension):
            pairs.append((node.target, None))
        elif isinstance(node, ast.arg):
            pairs.append((ast.Name(node.arg, ast.Store()), None))
        for path, value in pairs:
            if isinstance(path, ast.Name | ast.Attribute):
                key = key_of(ast.parse(ast.unparse(path), mode="eval").body)
                found.setdefault(key, []).append(value)
                for held, part in _parts_given(path, value):
                    found.setdefault(held, []).append(part)
    return found


def _parts_given(path: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr]]:
    """(key, value) of each item of a dictionary assigned to a path, as ``path['a']``; also of a
    ``ModuleDict`` made of one."""
    if isinstance(value, ast.Call) and len(value.args) == 1:
        value = value.args[0]
    for name, part in zip(value.keys, value.values, strict=True) if _is_dict(value) else ():
        if isinstance(name, ast.Constant):
            whole = f"{ast.unparse(path)}[{name.value!r}]"
            yield key_of(ast.parse(whole, mode="eval").body), part


def _is_dict(node: Any) -> TypeGuard[ast.Dict]:
    return isinstance(node, ast.Dict)


def objects_of(path: ast.expr, text: str, packages: frozenset[str]) -> list[Any]:
    """The objects of this process that a path may stand for."""
    kinds = classes_of(path, text, packages)
    return [o for o in gc.get_objects() if type(o) in kinds] if kinds else []


def _paths(path: ast.expr) -> Iterator[ast.expr]:
    """A dotted name and its prefixes, the longest first: ``a.b.c``, ``a.b``, ``a``."""
    yield path
    while isinstance(path, ast.Attribute):
        path = path.value
        yield path


def classes_of(path: ast.expr, text: str, packages: frozenset[str]) -> list[type]:
    """The classes whose calls the file assigns to a path."""
    keys = {key_of(ast.parse(ast.unparse(path), mode="eval").body)}
    if isinstance(path, ast.Attribute):  # `self.norm` is `model.norm` elsewhere
        keys.add(key_of(ast.Attribute(ast.Name("self", ast.Load()), path.attr, ast.Load())))
    return [
        kind
        for key in keys
        for each in _assigned(text).get(key, ())
        for given in sides_of(each)
        if isinstance(given, ast.Call)
        for kind in meant(given.func, text, packages)
        if isinstance(kind, type) and not issubclass(kind, Tensor)
    ]


def makers_of(
    code: ast.stmt | ast.expr, text: str, packages: frozenset[str]
) -> dict[str, ast.Call]:
    """The calls that make the objects that some code calls, or passes to what it calls, by the
    objects' names."""
    return objects_passed(code, text, packages) | local_makers(code, text)


def objects_passed(
    code: ast.stmt | ast.expr, text: str, packages: frozenset[str]
) -> dict[str, ast.Call]:
    """The calls that make what some code passes by a name, where that is no tensor."""
    return {
        name: maker
        for name, maker in passed_makers(code, text).items()
        if any(
            isinstance(kind, type) and not issubclass(kind, Tensor)
            for kind in meant(maker.func, text, packages)
        )
    }


def meant(path: ast.expr, text: str, packages: frozenset[str]) -> list[Any]:
    """The objects that a dotted name may stand for: by the file's imports, else objects of that
    last name in the packages at hand."""
    first, *rest = ast.unparse(path).split(".")
    names = known_in(text)
    if first in names:
        found = reached(path, names)
        return [] if found is None else [found]
    last = rest[-1] if rest else first
    held = {
        id(each): each
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in packages
        and (each := getattr(module, "__dict__", {}).get(last)) is not None
    }
    return [each for each in held.values() if callable(each)]


def packages_of(recording: Recording) -> frozenset[str]:
    """The installed packages other than torch in which a program ran."""
    files = (as_imported(real) for _, _, real in recording.places)
    found = {file.partition("/")[0].removesuffix(".py") for file in files if file}
    return frozenset(found - {"torch"})


def known_in(text: str) -> dict[str, Any]:
    """What a file imports, by the names that it gives to it, as far as this process has it."""
    found = dict(namespace_of(text))
    for given, module, name, _ in imports_of(text):
        held = sys.modules.get(module)
        if name:
            held = getattr(held, name, sys.modules.get(f"{module}.{name}"))
        if held is not None:
            found[given] = held
    for alias, value in aliases_of(text):
        held = reached(value, found)
        if alias not in found and held is not None:
            found[alias] = held
    return found


def reached(path: ast.expr, names: Mapping[str, Any]) -> Any:
    """What a dotted name stands for among these; None where it stands for nothing."""
    first, *rest = ast.unparse(path).split(".")
    found = names.get(first)
    with suppress(Exception):  # what a package loads late may not be there
        for name in rest:
            found = getattr(found, name, None)
        return found
    return None


def _root(node: Any) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


# The first run: which values stand behind the names.


def _first(
    code: Code,
    leaves: dict[str, list[Any]],
    objects: dict[str, list[Any]],
    made: Sequence[Made],
    segment: Segment,
    device: str,
    value: ValueAt,
    stored: Mapping[str, Collection[Any]],
) -> Run:
    at = made[0].index
    read: dict[Any, Ref] = {}
    inner: set[Any] = set()  # what the calls made themselves
    for each in made:
        own = each.call.read
        shown = {ref.view for ref in own}
        for ref in own:
            if ref.view not in inner:
                read.setdefault((ref.view, ref.tracked), ref)
        inner |= {ref.view for ref in refs_in(each.call.out)} - shown
    numbers = [*{n: 0 for each in made for n in numbers_in(each.call.args) if _is_number(n)}]
    tries, found, chosen = 0, None, [key for key, each in leaves.items() if len(each) > 1]
    alive = (_alive(held, segment, [*read.values()]) for held in objects.values())
    for lives in itertools.product(*alive):
        taken = {ref for live in lives for _, ref in live.tensors}
        pool = [ref for ref in read.values() if ref not in taken]
        named = [each or [r for r in pool if r.storage in stored[k]] for k, each in leaves.items()]
        named = [[*each[:-1], *pool] if each and each[-1] is ... else each for each in named]
        for given in _ways(named, pool, numbers):
            parts = dict(zip([*leaves, *objects], [*given, *lives], strict=True))
            if found is not None and any(
                parts[key] is not part for key, part in found.parts.items() if key not in chosen
            ):
                continue
            tries += 1
            if tries > MOST_TRIES:
                raise NotReplayable("the arguments of the call could not be told apart")
            for cast in casts(made):
                run = _followed(code, parts, cast, made, segment, device, partial(value, at))
                if run is not None and not chosen:
                    return run
                # with another flag it may do a part of what it did
                if run is not None and (found is None or len(run.calls) > len(found.calls)):
                    found = run
    if found is not None:
        return found
    raise NotReplayable("the call, made again, does not do what it did")


def _ways(named: Sequence[list[Any]], pool: Sequence[Ref], numbers: Sequence[float]) -> list[Any]:
    """Values to try for some names, of which a few are known: first distinct tensors, which names
    mostly have."""
    tensors, every = (
        dict.fromkeys(itertools.islice(itertools.product(*(n or more for n in named)), MOST_WAYS))
        for more in (pool, [*pool, *numbers])
    )
    others = sorted(
        (way for way in every if way not in tensors),
        key=lambda way: (sum(map(_is_number, way)), -len({*way})),
    )
    return sorted(tensors, key=lambda way: -len({*way})) + others[:MOST_NUMBERED]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _followed(
    code: Code,
    parts: dict[str, Any],
    cast: torch.dtype | None,
    made: Sequence[Made],
    segment: Segment,
    device: str,
    value: Get,
) -> Run | None:
    """The run of the code, if it makes the first of these calls; None where it makes other ones."""
    try:
        with (
            torch.set_grad_enabled(made[0].call.grad),
            _disable_current_modes(),
            torch.random.fork_rng(devices=[]),
        ):
            seed_first(segment, made[0].index, made[-1].index + 1)
            recorded = partial(as_operand, value=value)
            given = {key: _given(part, recorded) for key, part in parts.items()}
            following = Following(made, [(given[key], part) for key, part in parts.items()])
            with autocast(device, cast), following:
                result = code(given)
    except Exception:
        return None
    count = following.count
    while count < len(made) and is_silent(made[count].call.func):
        if not reads_of(made[count], made[:count]):
            break
        count += 1
    one, kept = isinstance(result, Tensor), None
    held = [result] if one else result
    if not isinstance(held, tuple | list) or not all(isinstance(t, Tensor) for t in held):
        held = _tensors_of(result)
        kept = tuple(i for i, each in enumerate(held) if following.ref_of(each))
        held = [held[i] for i in kept]
    outs = [following.ref_of(each) for each in held]
    if not following.count or not outs or None in outs:
        return None
    indices = tuple(each.index for each in made[:count])
    return Run(indices, outs[0] if one else tuple(outs), parts, cast, kept)


def _given(part: Any, get: Get) -> Any:
    return part.copied(get) if isinstance(part, Live) else get(part)


def _alive(held: Sequence[Any], segment: Segment, read: Sequence[Ref]) -> list[Live]:
    """The objects that hold a tensor which the calls read, and a few of those without tensors."""
    found = [Live(each, _recorded(each, segment, read)) for each in held]
    known = [live for live in found if any(ref for _, ref in live.tensors)]
    rest = [live for live in found if not any(ref for _, ref in live.tensors)]
    return [*known, *rest[:MOST_OBJECTS]]


def _recorded(
    held: Any, segment: Segment, read: Sequence[Ref]
) -> tuple[tuple[Tensor, Ref | None], ...]:
    """The tensors that an object holds, and the reference by which the calls read each."""
    found: list[tuple[Tensor, Ref | None]] = []
    for tensor in _tensors_of(held):
        shown = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
        address = tensor.untyped_storage()._cdata
        refs = (
            ref
            for ref in read
            if (ref[1], ref.size, ref[3]) == shown and ref.storage in segment.leaves
            if segment.leaves[ref.storage]._cdata == address
        )
        found.append((tensor, next(refs, None)))
    return tuple(found)


def _tensors_of(held: Any) -> list[Tensor]:
    """The plain tensors that an object and the objects in it hold."""
    found: dict[int, Tensor] = {}
    seen: set[int] = set()
    waiting: list[tuple[Any, int]] = [(held, 0)]
    for each, depth in waiting:
        if id(each) in seen:  # modules may hold each other
            continue
        seen.add(id(each))
        if isinstance(each, Tensor) and has_storage(each):
            found[id(each)] = each
        elif isinstance(each, nn.Module):
            waiting += [(v, 1) for module in each.modules() for v in vars(module).values()]
        elif depth <= _DEPTH and isinstance(each, dict | list | tuple):
            waiting += [(v, depth + 1) for v in (each.values() if isinstance(each, dict) else each)]
        elif depth <= _DEPTH and not isinstance(each, type | ModuleType | FunctionType):
            waiting += [(v, depth + 1) for v in getattr(each, "__dict__", {}).values()]
    return list(found.values())
