"""Records: tuples that are taken apart in the order in which they were put together, and fields
of classes."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from nanlab.explanations.site import Candidate, Site, bound_by, callee, spelled, spliced


def with_types(site: Site) -> Iterator[Candidate]:
    """The fields of a dataclass or a named tuple with their types, where one has a value alone:
    then it is none, and the constructor does not take it."""
    told = set(re.findall(r"'(\w+)'", site.text))
    counted = re.search(r"(\w+)\.__(?:init|new)__\(\) takes", site.text)
    for source in site.program.texts:
        for kind in (n for n in source.nodes if isinstance(n, ast.ClassDef)):
            heads = {callee(n) or getattr(n, "attr", spelled(n)) for n in kind.decorator_list}
            if not heads & {"dataclass"} and not _is_named_tuple(kind):
                continue
            rows = [n for n in kind.body if isinstance(n, ast.Assign) and bound_by(n)]
            every = counted is not None and counted[1] == kind.name
            lacking = [n for n in rows if every or told.intersection(bound_by(n))]
            pairs = [(n.targets[0], f"{bound_by(n)[0]}: {_type_of(n.value)}") for n in lacking]
            if pairs:
                yield Candidate(0.2, spliced(source, pairs))


def _is_named_tuple(kind: ast.ClassDef) -> bool:
    return any(getattr(base, "attr", spelled(base)) == "NamedTuple" for base in kind.bases)


def _type_of(node: Any) -> str:
    """The type of a default as it is written: that of a literal, or what the factory makes."""
    given = {each.arg: each.value for each in getattr(node, "keywords", [])}
    if callee(node) == "field":
        factory = given.get("default_factory")
        inner = factory.body if isinstance(factory, ast.Lambda) else given.get("default")
        name = spelled(factory) if factory is not None else ""
        return name if hasattr(builtins, name) else _type_of(inner)
    with suppress(ValueError, TypeError):  # it is no literal
        value = ast.literal_eval(node)
        return type(value).__name__ if value is not None else "object"
    return "object"


def taken_in_order(site: Site) -> Iterator[Candidate]:
    """Names that a tuple is taken apart into, in the order in which the program puts the same
    together, or in that of the fields of a named tuple."""
    nodes = [node for source in site.program.texts for node in source.nodes]
    orders = dict.fromkeys(tuple(names) for node in nodes if (names := _put_together(node)))
    for source in site.program.texts:
        for node in source.nodes:
            target = getattr(node, "target", (getattr(node, "targets", None) or [None])[0])
            names = _names(getattr(target, "elts", []))
            exchanges = isinstance(getattr(node, "value", None), ast.Tuple)
            if not isinstance(target, ast.Tuple) or not all(names) or exchanges:
                continue
            for order in orders:
                same = _matched(names, order) if len(order) == len(names) else []
                if same and same != names:
                    cost = 0.3 if {*order} == {*names} else 0.4
                    pairs = [(target, ", ".join(same))]
                    yield Candidate(cost + 0.1 * (len(names) < _FEW), spliced(source, pairs))


def split_in_order(site: Site) -> Iterator[Candidate]:
    """Names for what ``train_test_split`` gives: both parts of the first array, then those of the
    next."""
    for source in site.program.texts:
        for row in (n for n in source.nodes if isinstance(n, ast.Assign)):
            if not isinstance(row.value, ast.Call) or callee(row.value) != "train_test_split":
                continue
            target, count = row.targets[0], len(row.value.args)
            names = [source.part(n) for n in getattr(target, "elts", [])]
            if count > 1 and len(names) == 2 * count:
                pairs = zip(names[:count], names[count:], strict=True)
                text = ", ".join(name for pair in pairs for name in pair)
                yield Candidate(0.2, spliced(source, [(target, text)]))


_FEW = 3  # fewer names may stand in either order
_JOINING = ("zip", "TensorDataset")


def _put_together(node: ast.AST) -> list[str]:
    """The names of what a tuple is put together of; none where some have none."""
    names: list[str] = []
    if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
        names = _names(node.elts)
    elif isinstance(node, ast.ClassDef) and _is_named_tuple(node):
        names = [spelled(row.target) for row in node.body if isinstance(row, ast.AnnAssign)]
    elif isinstance(node, ast.Call) and callee(node) == "namedtuple" and len(node.args) == 2:
        fields = node.args[1]
        words = [getattr(each, "value", "") for each in getattr(fields, "elts", [fields])]
        names = " ".join(map(str, words)).replace(",", " ").split()
    elif isinstance(node, ast.Call) and (len(node.args) >= _FEW or callee(node) in _JOINING):
        names = [spelled(each) for each in node.args]
    return names if len(names) > 1 and all(names) and len({*names}) == len(names) else []


def _names(nodes: Sequence[ast.expr]) -> list[str]:
    """The one name of each expression: empty where it has none, or several."""
    found = []
    for node in nodes:
        called = {id(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
        own = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and id(n) not in called}
        found.append(spelled(node) or (own.pop() if len(own) == 1 else ""))
    return found


def _matched(names: Sequence[str], order: Sequence[str]) -> list[str]:
    """Names in an order of others that are written as they are, or more briefly, but for one; none
    where these stand for something else."""
    left, found = [*names], dict.fromkeys(order, "")
    for alike in (str.__eq__, _is_short_for):
        for other in (each for each in order if not found[each]):
            near = [name for name in left if alike(name, other) or alike(other, name)]
            if len(near) == 1:
                found[other] = near[0]
                left.remove(near[0])
    if len(left) == 1 and len(names) > _FEW:  # the only one that it may be
        found[next(other for other in order if not found[other])] = left.pop()
    return [*found.values()] if not left else []


def _is_short_for(name: str, other: str) -> bool:
    """Whether a name is the other one, or what that begins with, as ``s`` for ``states``."""
    one, whole = (each.lower().rstrip("s_") or each.lower() for each in (name, other))
    initials = "".join(word[:1] for word in other.lower().split("_"))
    return whole.startswith(one) or (len(one) > 1 and one == initials)
