"""Values cut from a graph or left in it, graphs kept, writes without gradient."""

from __future__ import annotations

import ast
import itertools
import random
import re
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from nanlab.explanations.edits.optimizers import negated
from nanlab.explanations.site import (
    MISSING,
    Candidate,
    Place,
    Site,
    Tensor,
    bound_by,
    bound_value,
    callee,
    function_around,
    innermost,
    is_return,
    lines_as,
    names_in,
    number_of,
    rows_of,
    spelled,
    spliced,
    swapped,
    with_more,
)
from nanlab.explanations.trial import Source


def is_cut(site: Site) -> bool:
    """Whether the error says that nothing leads back to what should learn."""
    told = (
        "does(n't| not) require grad|inf checks|empty parameter list|have been used in the graph"
        "|'float' object has no attribute 'backward'"
    )
    return bool(re.search(told, site.text))


def in_graph(site: Site, place: Place) -> Iterator[Candidate]:
    """Values cut from a graph, graphs kept, a write without gradient."""
    if re.search(r"grad|backward|in-?place|leaf|graph|inf checks|empty param", site.text):
        block = place.function or place.source.tree
        loops = [
            n
            for n in ast.walk(block)
            if isinstance(n, (ast.For, ast.While))
            and n.lineno <= place.statement.lineno <= (n.end_lineno or 0)
        ]
        around = min(loops, key=lambda n: (n.end_lineno or 0) - n.lineno) if loops else block
        carried = _carried(around) if loops else set()
        for statement in ast.walk(around):
            if not isinstance(statement, (ast.Assign, ast.Expr, ast.AugAssign)):
                continue
            own = Place(place.source, statement, place.frame, 0.0)
            for call in own.calls():
                if getattr(call.func, "attr", "") == "backward":
                    cost = 0.75 if statement is not place.statement else 1.3
                    yield own.added(cost, call, "retain_graph=True")
            for argument in own.parts():
                name = spelled(argument)
                given = isinstance(argument, ast.Name) and isinstance(argument.ctx, ast.Load)
                if given and name and isinstance(value := own.value(argument), Tensor):
                    cost = 0.7 if name in carried else 1.0
                    later = 0.3 * (statement.lineno >= place.statement.lineno - 1)
                    later += 0.5 * (not value.requires_grad)
                    text = (
                        ast.unparse(statement)
                        + ast.unparse(around).partition(ast.unparse(statement))[2]
                    )
                    if re.search(rf"(\w+)\({name}\)(?s:.*)\.backward\((?s:.*)\b\1\({name}\)", text):
                        later = -0.35  # a network judges it, and later again
                    yield own.replaced(cost + later, (argument, f"{name}.detach()"))
        if "second time" in site.text and loops:
            yield from _moved_into(place, around, carried)
        rows = list(itertools.takewhile(_writes, place.block[place.block.index(place.statement) :]))
        last = (rows or [place.statement])[-1].end_lineno or 0
        lines = place.source.lines[place.statement.lineno - 1 : last]
        text = "\n".join(" " * 4 + line for line in lines)
        indent = " " * place.statement.col_offset
        text = f"{indent}with torch.no_grad():\n{text}"
        cost = 0.3 if "leaf Variable" in site.text and _is_parameter(place) else 1.2
        yield Candidate(cost, (lines_as(place.source, place.statement.lineno, last, text),))


def _is_parameter(place: Place) -> bool:
    """Whether a statement writes into a parameter, or a part of one, as an average or an update by
    hand does."""
    root: Any = getattr(place.statement, "target", getattr(place.statement, "value", None))
    while not spelled(root) and isinstance(root, (ast.Call, ast.Attribute, ast.Subscript)):
        root = root.func if isinstance(root, ast.Call) else root.value
    value: Any = place.value(root) if root is not None else MISSING
    whole = value._base if isinstance(value, Tensor) and value._is_view() else value
    return isinstance(whole, nn.Parameter)


def _writes(statement: ast.stmt) -> bool:
    """Whether a statement only writes into what is there."""
    called = callee(getattr(statement, "value", None) or statement)
    written = called.endswith("_") and not called.startswith("_")
    return isinstance(statement, ast.AugAssign) or (isinstance(statement, ast.Expr) and written)


def as_the_result(site: Site, place: Place) -> Iterator[Candidate]:
    """Ones in the shape of what is differentiated, where they were made in another."""
    calls = place.calls() if "grad_output[0] has a shape" in site.text else []
    for call in (c for c in calls if callee(c) in ("backward", "grad")):
        of: Any = getattr(call.func, "value", call) if callee(call) == "backward" else call.args[0]
        for given in (*call.args, *(k.value for k in call.keywords)):
            if callee(given) == "ones":
                yield place.replaced(0.3, (given, f"torch.ones_like({place.text(of)})"))


def with_graph_kept(site: Site) -> Iterator[Candidate]:
    """The graph kept by all calls of a function that ask for gradients, where one of them freed
    it: those of data with a graph of their own, for they may be part of a loss."""
    for source in site.program.texts if "second time" in site.text else ():
        groups: dict[int, list[tuple[ast.AST, str]]] = {}
        for call in (n for n in source.nodes if isinstance(n, ast.Call)):
            taken = {k.arg for k in call.keywords} & {"create_graph", "retain_graph"}
            if callee(call) == "grad" and len(call.args) > 1 and not taken:
                learned = "param" in source.part(call.args[1])
                kept = f"{'retain' if learned else 'create'}_graph=True"
                pair = (call, f"{source.part(call)[:-1]}, {kept})")
                groups.setdefault(id(function_around(source, call)), []).append(pair)
        for pairs in groups.values():
            yield Candidate(0.4, spliced(source, pairs))


def carried_on(site: Site) -> Iterator[Candidate]:
    """What each round takes from the one before, cut from its graph when it was computed."""
    if not re.search("second time|in-?place", site.text):
        return
    for place in site.statements():
        statement = place.statement
        if not isinstance(statement, ast.Assign):
            continue
        for name in {spelled(n) for n in ast.walk(statement.value)}.intersection(
            bound_by(statement)
        ):
            attribute = name.removeprefix("self.")
            held = [{**vars(m), **vars(m)["_buffers"]} for m in site.modules]
            own = [each[attribute] for each in held if attribute in each]
            value = own[-1] if own else place.names().get(name)
            node = next(n for n in ast.walk(statement.value) if spelled(n) == name)
            text = place.text(node)
            if isinstance(value, Tensor):
                cut = f"{text} = {text}.detach()"
            elif isinstance(value, tuple) and all(isinstance(each, Tensor) for each in value):
                cut = f"{text} = tuple(each.detach() for each in {text})"
            else:
                continue
            if own:  # where it is read: it may be what is returned
                yield place.replaced(0.8, (node, cut.partition(" = ")[2]))
            after = place.block[place.block.index(statement) + 1 :]
            read = [row for row in after if name in names_in(row)]
            if attribute == name and read:  # the loss may be computed with it
                place = replace(place, statement=after[-1])
            simple = isinstance(value, Tensor) and not own  # where it is read
            yield place.written(0.72 + 0.4 * simple, f"{{}}\n{cut}")


def of_before(site: Site) -> Iterator[Candidate]:
    """What was computed once before a loop that differentiates, cut from its graph where the loop
    reads it, as what a policy gave when its actions were taken."""
    for at, place in enumerate(site.raising if "second time" in site.text else ()):
        around = innermost_loop(place)
        if around is None and not any(map(innermost_loop, site.raising[at + 1 :])):
            continue
        whole = around or place.function or place.source.tree
        bound = {name for row in ast.walk(whole) for name in bound_by(row)}
        heads = [n for n in ast.walk(whole) if isinstance(n, ast.For)]
        bound -= {name for n in heads for name in bound_by(n)}  # they go through what was before
        pairs: dict[str, list[tuple[ast.AST, str]]] = {}
        shared = False
        for node in ast.walk(whole):
            kinds = ast.Name, ast.Attribute, ast.Subscript
            if not isinstance(node, kinds) or not isinstance(node.ctx, ast.Load):
                continue
            value, text = place.value(node), place.text(node)
            if isinstance(value, Tensor) and value.grad_fn is not None:
                known = names_in(node)
                shared |= bool(known and not known & bound)
                if known and not known & bound and _learns_again(site, place, node, whole):
                    pairs.setdefault(text, []).append((node, f"{text}.detach()"))
        terms, more = _terms_of_losses(whole), 0.0
        for candidate in _in_one_step(place, around) if shared else ():
            more = 0.6  # of rounds that are one step, what is cut takes the gradient from its part
            yield candidate
        for each in pairs.values():
            alone = all(id(node) in terms for node, _ in each)  # the loss would not change by it
            yield Candidate(0.45 + 0.4 * alone + more, spliced(place.source, each))
        if len(pairs) > 1:
            every = [pair for each in pairs.values() for pair in each]
            yield Candidate(0.5 + more, spliced(place.source, every))


def _in_one_step(place: Place, loop: ast.AST | None) -> Iterator[Candidate]:
    """The graph kept from round to round of a loop, after which the optimizer steps."""
    row, call = place.statement, getattr(place.statement, "value", None)
    if not isinstance(loop, ast.For) or row not in loop.body or not isinstance(call, ast.Call):
        return
    calls = {callee(n) for n in ast.walk(loop) if isinstance(n, ast.Call)}
    steps = [n for n in place.source.nodes if callee(n) == "step" and isinstance(n, ast.Call)]
    later = any(n.lineno > (loop.end_lineno or 0) for n in steps)
    if callee(call) == "backward" and later and not calls & {"step", "zero_grad"}:
        yield replace(place, distance=0.0).added(0.42, call, "retain_graph=True")


def _learns_again(site: Site, place: Place, node: ast.expr, loop: ast.AST) -> bool:
    """Whether the modules that computed a value before a loop are called in the loop again, as far
    as is known: where they are not, they would learn no more."""
    todo, called, seen = [(place, node)], set[tuple[int, str]](), set[int]()
    while todo:
        at, part = todo.pop()
        for each in ast.walk(part):
            called |= _called(at, each)
            bound = site.binding(at, each)
            value = getattr(bound.statement, "value", None) if bound is not None else None
            if bound is not None and value is not None and id(value) not in seen:
                seen.add(id(value))
                todo.append((bound, value))
    return not called or any(called & _called(place, each) for each in ast.walk(loop))


def _called(place: Place, node: ast.AST) -> set[tuple[int, str]]:
    """The module that an expression calls, and the method of it; none of anything else."""
    function = node.func if isinstance(node, ast.Call) else None
    owner, method = getattr(function, "value", None), getattr(function, "attr", "")
    for of, name in ((function, ""), (owner, method)):
        value = place.value(of) if of is not None else MISSING
        if isinstance(value, nn.Module):
            return {(id(value), name)}
    return set()


def _terms_of_losses(block: ast.AST) -> set[int]:
    """The nodes that are added to what a block differentiates, or a number of times each."""
    calls = [n for n in ast.walk(block) if isinstance(n, ast.Call) and callee(n) == "backward"]
    todo: list[Any] = [getattr(call.func, "value", call) for call in calls]
    rows = [row for row in ast.walk(block) if isinstance(row, (ast.Assign, ast.AugAssign))]
    found = set[int]()
    while todo:
        node = todo.pop()
        if id(node) in found:
            continue
        found.add(id(node))
        if isinstance(node, ast.BinOp):
            sides = [node.left, node.right]
            times = isinstance(node.op, (ast.Mult, ast.Div))
            plain = [n for n in sides if isinstance(n, (ast.Constant, ast.Name, ast.Attribute))]
            todo += plain if times else sides
        todo += (row.value for row in rows if spelled(node) in bound_by(row))
    return found


def innermost_loop(place: Place) -> ast.AST | None:
    """The innermost loop around a statement, in its function."""
    rows = [n for n in ast.walk(place.function or place.source.tree) if isinstance(n, _LOOPS)]
    line = place.statement.lineno
    around = [n for n in rows if n.lineno < line <= (n.end_lineno or 0)]
    own = [n for n in around if function_around(place.source, n) is place.function]
    return own[-1] if own else None


_LOOPS = (ast.For, ast.While)


def given_to_others(site: Site) -> Iterator[Candidate]:
    """What a round computes once and two functions differentiate, cut from its graph for the first
    of them."""
    for place in site.raising[1:] if "second time" in site.text else ():
        read = names_in(place.statement)
        block = place.block or [place.statement]
        for row in block[: block.index(place.statement)]:
            own = Place(place.source, row, place.frame, 0.0)
            code = [getattr(own.value(c.func), "__code__", None) for c in own.calls()]
            outer = [c for c, k in zip(own.calls(), code, strict=True) if k is not None]
            for node in (a for c in outer for a in (*c.args, *(k.value for k in c.keywords))):
                value = own.value(node) if spelled(node) in read else MISSING
                if isinstance(value, Tensor) and value.grad_fn is not None:
                    yield own.replaced(0.3, (node, f"{own.text(node)}.detach()"))


def kept_from_before(site: Site) -> Iterator[Candidate]:
    """A list of results emptied after they were differentiated: those of the round before are in
    it still."""
    again = "second time" in site.text
    for place in site.raising if again or "must match the size" in site.text else ():
        block = innermost_loop(place) or place.function or place.source.tree
        rows = [row for row in place.block if not isinstance(row, (ast.Return, ast.Continue))]
        for text in dict.fromkeys(_lists_of_results(place, block)):
            own = replace(place, distance=0.0)
            emptied: list[Any] = [row for row in ast.walk(block) if _empties(row)]
            for row in emptied:
                old = own.source.part(row)
                list_: Any = getattr(row, "targets", [getattr(row, "value", None)])[0]
                of = getattr(list_, "func", list_)  # ``x.clear()``, ``del x[:]``, ``x = []``
                of = of.value if isinstance(row, (ast.Expr, ast.Delete)) else of
                new = old.replace(own.source.part(of), text, 1)
                yield replace(own, statement=row).written(0.3, f"{{}}\n{new}")
            last = rows and place.block[-1]
            read = isinstance(last, ast.Return) and text in place.source.part(last)
            if rows and not emptied and again and not read:
                yield replace(own, statement=rows[-1]).written(0.32, f"{{}}\n{text}.clear()")


def _lists_of_results(place: Place, block: ast.AST) -> Iterator[str]:
    """The lists that a program reads and a block does not make, of tensors with a graph."""
    made = {spelled(n) for n in ast.walk(block) if isinstance(getattr(n, "ctx", None), ast.Store)}
    for node in place.source.nodes:
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            value = place.value(node)
            held = value if isinstance(value, list) and place.text(node) not in made else ()
            parts = [p for each in held for p in (each if isinstance(each, tuple) else (each,))]
            if any(isinstance(p, Tensor) and p.grad_fn is not None for p in parts):
                yield place.text(node)


def _empties(row: Any) -> bool:
    """Whether a statement empties a list: ``x = []``, ``x.clear()``, ``del x[:]``."""
    value = getattr(row, "value", None)
    if isinstance(row, ast.Delete):
        return all(isinstance(getattr(t, "slice", None), ast.Slice) for t in row.targets)
    empty = isinstance(row, ast.Assign) and isinstance(value, ast.List) and not value.elts
    kinds = ast.Attribute, ast.Subscript
    cleared = isinstance(row, ast.Expr) and callee(value or row) == "clear"
    return cleared or (empty and isinstance(row.targets[0], kinds))


def copied_on(site: Site) -> Iterator[Candidate]:
    """What each round takes from the one before, cut from its graph where it was copied: a copy is
    computed from it."""
    for source in site.program.texts if "second time" in site.text else ():
        again = {callee(row.value) for row in source.nodes if _binds_anew(row)}  # type: ignore
        groups: dict[tuple[str, bool], list[tuple[ast.AST, str]]] = {}
        for node in source.nodes:
            if isinstance(node, ast.Call) and callee(node) == "clone":
                row = innermost(source, node.lineno)
                around = getattr(function_around(source, node), "name", "")
                carried = around in again or _binds_anew(row)
                given = node.args[0] if node.args else getattr(node.func, "value", node)
                text = source.part(given)
                loose = f"({text})" if isinstance(given, ast.BinOp) else text
                pair = (node, f"{loose}.detach().clone()")
                groups.setdefault((around, carried), []).append(pair)
        for (_, carried), pairs in groups.items():
            yield Candidate(0.4 if carried else 0.8, spliced(source, pairs))


def _binds_anew(row: Any) -> bool:
    """Whether a statement computes what it binds from what that was."""
    return isinstance(row, ast.Assign) and not names_in(row.value).isdisjoint(bound_by(row))


def on_last_round(site: Site, place: Place) -> Iterator[Candidate]:
    """The loss of a round differentiated, not the sum of all rounds."""
    call: Any = getattr(place.statement, "value", place.statement)
    if "second time" in site.text and callee(call) == "backward":
        whole = call.func.value
        for row in place.block[: place.block.index(place.statement)]:
            value = getattr(row, "value", None)
            added = value if isinstance(row, ast.AugAssign) else getattr(value, "right", None)
            first = getattr(value, "left", whole)
            if spelled(whole) in bound_by(row) and spelled(first) == spelled(whole) and added:
                loose = place.whole(added)
                yield place.replaced(0.5, (whole, loose))


GRADIENTS_OFF = re.compile(r"(torch\.)?(no_grad|inference_mode|set_grad_enabled)\([^)]*\)")


_LEAVES = "detach requires_grad_ item tolist numpy float long int bool round sign cpu".split()


_ANEW = "tensor as_tensor from_numpy array asarray".split()


def _inside(node: ast.AST) -> ast.expr | None:
    """What an expression was computed from that has no gradient of its own."""
    if isinstance(node, ast.Call) and callee(node) in _LEAVES and not node.args:
        return getattr(node.func, "value", None)
    if isinstance(node, ast.Call) and callee(node) in _ANEW and node.args:
        return node.args[0]
    if isinstance(node, ast.Attribute) and node.attr == "data":
        return node.value
    if callee(node) in ("to", "type"):
        own: Any = getattr(node.func, "value", node.func)  # type: ignore[attr-defined]
        return own if _inside(own) is not None else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        sides = (node.left, node.right), (node.right, node.left)
        return next((a for a, b in sides if _is_chosen(a) and isinstance(b, ast.Constant)), None)
    if callee(node) == "where" and len(node.args) == 3:  # type: ignore[attr-defined]
        condition, *both = node.args  # type: ignore[attr-defined]
        return condition if _is_chosen(condition) and all(map(_is_constant, both)) else None
    return node.left if isinstance(node, ast.Compare) else None


def _is_chosen(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare)


def _is_constant(node: ast.AST) -> bool:
    return number_of(node) is not MISSING or callee(node) in ("zeros_like", "ones_like")


def uncut(site: Site, place: Place) -> Iterator[Candidate]:
    """An expression without what cuts it from its graph."""
    for node in place.parts() if is_cut(site) else ():
        inner, count = node, 0
        while (deeper := _inside(inner)) is not None:
            inner, count = deeper, count + 1
            yield place.replaced(0.5 - 0.05 * count, (node, place.text(inner)))
        if count:
            yield place.replaced(0.6, (node, f"torch.stack(list({place.text(inner)}))"))
            for call in place.source.nodes:  # a list of what was cut before
                listed = getattr(getattr(call, "func", None), "value", None)
                if callee(call) == "append" and spelled(listed or call) == (spelled(inner) or None):
                    new = f"torch.stack({place.text(inner)})"
                    for given in call.args[:1]:  # type: ignore[attr-defined]
                        if (whole := _inside(given)) is not None:
                            yield place.replaced(0.45, (given, place.text(whole)), (node, new))
        name = callee(node)
        if name == "sample":
            head = place.text(node.func)[: -len(name)]  # type: ignore[attr-defined]
            yield place.replaced(0.5, (node, f"{head}rsample()"))
        elif (
            name == "argmax" and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        ):
            of, d = place.text(node.func.value), place.text(node.args[0]) if node.args else "-1"
            yield place.replaced(
                0.9, (node, f"({of}.softmax({d}) * torch.arange({of}.shape[{d}])).sum({d})")
            )


def scores(site: Site, place: Place) -> Iterator[Candidate]:
    """A loss of the scores, where it was given the choice that was made by them; the choice is left
    where it is counted, too."""
    for name in sorted(names_in(place.statement)) if is_cut(site) else ():
        same = [n for n in place.parts() if spelled(n) == name]
        bound = site.binding(place, same[0]) if same else None
        whole = made = bound_value(bound, name) if bound is not None else None
        while made is not None and (deeper := _inside(made)) is not None:
            made = deeper
        if bound is None or made is None or made is whole:
            continue
        known = spelled(made) or any(map(_is_chosen, bound.parts()))
        if known and _is_read_besides(site, place, name):
            scored = [(node, place.whole(made)) for node in same]
            yield replace(place, distance=0.0).replaced(0.3, *scored)
    for call in place.calls() if is_cut(site) else ():
        for argument in call.args:
            inner: ast.AST = argument
            while (deeper := _inside(inner)) is not None:
                inner = deeper
            bound = site.binding(place, inner)
            chosen: Any = getattr(bound.statement, "value", inner) if bound is not None else inner
            while (deeper := _inside(chosen)) is not None:
                chosen = deeper
            second = bound_by(bound.statement)[1:] if bound is not None else []
            by_index = callee(chosen) in ("max", "topk") and spelled(inner) in second
            if not by_index and callee(chosen) != "argmax":
                continue
            of = getattr(chosen.func, "value", None)
            if of is None or isinstance(place.value(of), ModuleType):
                of = (*chosen.args, None)[0]
            if of is None:
                continue
            plain = [(a, w) for a in call.args if a is not argument and (w := _inside(a))]
            own = (argument, place.text(of))
            yield place.replaced(0.3, own, *((a, place.text(whole)) for a, whole in plain))
            yield place.replaced(0.32, own)
            target = [place.text(_inside(a) or a) for a in call.args if a is not argument]
            if len(target) == 1 and isinstance(site.raising[0].value(of), Tensor):
                loss = f"torch.nn.functional.cross_entropy({place.text(of)}, {target[0]})"
                yield place.replaced(0.34, (call, loss))


def _is_read_besides(site: Site, place: Place, name: str) -> bool:
    """Whether a round reads a name for something else than what is differentiated."""
    block = innermost_loop(place) or place.function or place.source.tree
    own = {id(node) for each in (place, *site.bound) for node in each.parts()}
    read = (n for n in ast.walk(block) if isinstance(getattr(n, "ctx", None), ast.Load))
    return any(spelled(node) == name and id(node) not in own for node in read)


def before_it_was_kept(site: Site) -> Iterator[Candidate]:
    """A result itself, where its number was read back from the list that it was put into."""
    for place in site.statements() if is_cut(site) else ():
        kept = [c.args[0] for c in place.calls() if callee(c) == "append" and c.args]
        whole = _inside(kept[0]) if kept else None
        for row in place.block[place.block.index(place.statement) + 1 :] if whole else ():
            for node in (n for n in ast.walk(row) if isinstance(n, ast.Subscript)):
                if place.source.part(node.slice) == "-1" and spelled(whole or node):
                    yield place.replaced(0.3, (node, place.text(whole or node)))


def numbers_kept(site: Site) -> Iterator[Candidate]:
    """The number of a loss, where a list that is later read as an array kept the loss itself."""
    if not re.search(r"numpy\(\) on Tensor that requires grad", site.text):
        return
    for place in site.statements():
        for call in (c for c in place.calls() if callee(c) == "append" and len(c.args) == 1):
            value = place.value(call.args[0])
            if isinstance(value, Tensor) and value.numel() == 1 and value.grad_fn is not None:
                yield place.replaced(0.3, (call.args[0], f"{place.text(call.args[0])}.item()"))


def all_uncut(site: Site) -> Iterator[Candidate]:
    """The numbers that a function reads of tensors, all left in the graph."""
    for source in site.program.texts if is_cut(site) else ():
        groups: dict[int, list[tuple[ast.AST, str]]] = {}
        for node in source.nodes:
            if callee(node) == "item" and (inner := _inside(node)) is not None:
                around = function_around(source, node)
                groups.setdefault(id(around), []).append((node, source.part(inner)))
        for pairs in groups.values():
            yield Candidate(0.6, spliced(source, pairs))


def mapped(site: Site, place: Place) -> Iterator[Candidate]:
    """Numbers that are read of tensors within ``vmap``, left as tensors; as an index, of one
    element."""
    if "calling .item()" not in site.text:
        return
    parts = place.parts()
    indexed = {id(node.slice): node for node in parts if isinstance(node, ast.Subscript)}
    pairs: list[tuple[ast.AST, str]] = []
    for call in (node for node in parts if callee(node) in ("item", "int", "float")):
        of: Any = [*call.args, getattr(call.func, "value", None)][0]  # type: ignore[attr-defined]
        if of is not None and (whole := indexed.get(id(call))) is not None:
            one = f"{place.text(whole.value)}[{place.text(of)}.unsqueeze(0)].squeeze(0)"
            pairs.append((whole, one))
        elif of is not None:
            pairs.append((call, place.text(of)))
    pairs = pairs or [
        each for node in indexed.values() for each in _counted_from(site, place, node)
    ]
    if pairs:
        yield place.replaced(0.3, *pairs)


def mapped_memory(site: Site, place: Place) -> Iterator[Candidate]:
    """What is written into within ``vmap``, made for each of what is mapped: as new memory of an
    argument that is."""
    function = place.function
    for call in place.calls() if "vmap: inplace" in site.text and function is not None else ():
        kind = re.fullmatch(r"torch\.(zeros|ones|full|empty)", place.text(call.func))
        for each in function.args.args if kind is not None and function is not None else ():
            if isinstance(place.frame.f_locals.get(each.arg), Tensor) and kind is not None:
                yield place.replaced(0.3, (call.func, f"{each.arg}.new_{kind[1]}"))


def _counted_from(site: Site, place: Place, whole: ast.Subscript) -> Iterator[tuple[ast.AST, str]]:
    """A part ``x[i:i + n]`` that begins at a tensor, by the numbers of its elements."""
    part: Any = whole.slice
    lower, upper = getattr(part, "lower", None), getattr(part, "upper", None)
    bound = site.binding(place, upper) if upper is not None else None
    end = bound_value(bound, spelled(part.upper)) if bound is not None else upper
    if lower is not None and isinstance(end, ast.BinOp) and isinstance(end.op, ast.Add):
        if place.text(end.left) == place.text(lower):
            index = f"{place.text(lower)} + torch.arange({place.text(end.right)})"
            yield whole, f"{place.text(whole.value)}[{index}]"


def switched(site: Site) -> Iterator[Candidate]:
    """Gradients left on where they were switched off, for a block or for parameters."""
    if not is_cut(site):
        return
    seen = set[int]()
    for at, place in enumerate((*site.bound, *site.statements())):
        far = 0.15 * (at >= len(site.bound))  # of a function that has returned
        for node in place.source.nodes:
            line, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
            parts = [item.context_expr for item in getattr(node, "items", [])]
            parts += getattr(node, "decorator_list", [])
            if line <= place.statement.lineno <= last:
                for part in parts:
                    if id(part) not in seen and GRADIENTS_OFF.search(place.text(part)):
                        seen.add(id(part))
                        if part in getattr(node, "decorator_list", []):  # the caller may want it
                            edit = lines_as(place.source, part.lineno, part.end_lineno or 0, "")
                            yield Candidate(0.43 + far, (edit,))
                        own = Place(place.source, place.statement, place.frame, far)
                        yield own.replaced(0.45, (part, "torch.enable_grad()"))
    yield from _switched_above(site)
    for place in site.statements():
        for node in place.parts():
            if isinstance(node, ast.Attribute) and node.attr == "parameters":
                whole = place.value(node.value)
                for name, value in place.names().items():
                    if isinstance(value, nn.Module) and name != place.text(node.value):
                        if place.frame is site.frames[-1][0]:
                            inside = isinstance(whole, nn.Module) and value in whole.children()
                            yield place.replaced(0.9 - 0.2 * inside, (node.value, name))
            if isinstance(node, ast.Constant) and node.value is False:
                if "requires_grad" in place.text(place.statement):
                    yield place.replaced(0.8, (node, "True"))
        made, known = place.result(), place.names().values()
        if isinstance(made, torch.optim.Optimizer):  # the rest is to stay as it is
            learned = {p for group in made.param_groups for p in group["params"]}
            whole = {p for v in known if isinstance(v, nn.Module) for p in v.parameters()}
            if whole - learned and not any(p.requires_grad for p in learned):
                rows = f"for group in {bound_by(place.statement)[0]}.param_groups:\n"
                rows += '    for p in group["params"]:\n        p.requires_grad = True'
                yield place.written(0.6, f"{{}}\n{rows}")


def _switched_above(site: Site) -> Iterator[Candidate]:
    """Gradients on for a call of a function that differentiates, where they were off for its
    caller."""
    for place in site.raising[1:]:
        heads = list(getattr(place.function, "decorator_list", []))
        for node in (n for n in place.source.nodes if isinstance(n, ast.With)):
            if node.lineno <= place.statement.lineno <= (node.end_lineno or 0):
                heads += [item.context_expr for item in node.items]
        if any(GRADIENTS_OFF.search(place.text(head)) for head in heads):
            rows = textwrap.indent(place.text(place.statement), "    ")
            own = replace(place, distance=0.0)
            yield own.written(0.41, f"with torch.enable_grad():\n{rows}")
            return


def switched_for_rest(site: Site) -> Iterator[Candidate]:
    """Gradients off for the rest of a block alone, where a call switched them off for good; where
    it did so in one case, for what follows in that case."""
    for place in site.statements() if is_cut(site) else ():
        if not re.search(r"set_grad_enabled\(False\)$", place.text(place.statement)):
            continue
        choices = (n for n in place.source.nodes if isinstance(n, ast.If))
        for choice in (n for n in choices if place.block in (n.body, n.orelse)):
            whole = replace(place, statement=choice)
            test = place.text(choice.test)
            first, last = choice.lineno, whole.block[-1].end_lineno or 0
            lines = place.source.lines[first - 1 : last]
            at, end = place.statement.lineno - first, (choice.end_lineno or 0) - first + 1
            lines[at] = "" if len(place.block) > 1 else lines[at].replace(lines[at].strip(), "pass")
            flag = negated(test) if place.block is choice.body else test
            head = " " * choice.col_offset + f"with torch.set_grad_enabled({flag}):"
            kept = lines[:end] if len(choice.body + choice.orelse) > 1 else []
            text = "\n".join((*filter(None, kept), head, *(" " * 4 + line for line in lines[end:])))
            yield Candidate(0.35, (lines_as(place.source, first, last, text),))
        rows = place.block[place.block.index(place.statement) + 1 :]
        rows = list(itertools.takewhile(lambda row: ".backward(" not in ast.unparse(row), rows))
        for count in range(len(rows), 0, -1) if isinstance(place.statement, ast.Expr) else ():
            first, last = place.statement.lineno, rows[count - 1].end_lineno or 0
            lines = place.source.lines[rows[0].lineno - 1 : last]
            head = " " * place.statement.col_offset + "with torch.no_grad():"
            text = "\n".join((head, *(" " * 4 + line for line in lines)))
            cost = 0.36 - 0.01 * count / len(rows)
            yield Candidate(cost, (lines_as(place.source, first, last, text),))


def ordered(site: Site) -> Iterator[Candidate]:
    """What names the parameters of a model, after the model has its last layer."""
    for source in site.program.texts if is_cut(site) else ():
        for block in source.nodes:
            rows = rows_of(block) if isinstance(block, (ast.Module, ast.FunctionDef)) else []
            for a, first in enumerate(rows):
                for later in rows[a + 1 :]:
                    pair = [(first, later), (later, first)]
                    if any(_names_parameters(x) & _gives_layers(source, y) for x, y in pair):
                        middle, last = (first.end_lineno or 0) + 1, later.end_lineno or 0
                        yield Candidate(0.3, (swapped(source, first.lineno, middle, last),))


def _names_parameters(statement: ast.stmt) -> set[str]:
    text = ast.unparse(statement)
    return set(re.findall(r"([\w.]+?)(?:\.\w+)?\.(?:parameters|requires_grad_)\(", text)) | set(
        re.findall(r"([\w.]+)\.(?:parameters|requires_grad_)\(", text)
    )


def _gives_layers(source: Source, statement: ast.stmt) -> set[str]:
    """What a statement gives layers, itself or by a function of the program."""
    call: Any = getattr(statement, "value", None)
    function = next((n for n in source.nodes if getattr(n, "name", "") == callee(call)), None)
    if function is not None and callee(call) and "setattr(" in source.part(function):
        return {spelled(each) for each in call.args}
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {
        ast.unparse(t.value) for t in targets if isinstance(t, (ast.Attribute, ast.Subscript))
    } - {"self"}


def out_of_place(site: Site, place: Place) -> Iterator[Candidate]:
    """A write into a tensor as a new tensor; all those of its function as well."""
    if "inplace" not in site.text.replace("-", ""):
        return
    around = place.function or place.source.tree
    rows = [n for n in ast.walk(around) if isinstance(n, (ast.Assign, ast.AugAssign, ast.Expr))]
    written = {id(row): new_tensor(replace(place, statement=row)) for row in rows}
    own = written.get(id(place.statement))
    looped = [n.target for n in place.source.nodes if isinstance(n, (ast.For, ast.comprehension))]
    bound = {n.id for each in looped for n in ast.walk(each) if isinstance(n, ast.Name)}
    if own is not None and own.edits[0].text.partition(" = ")[0] in bound and _is_parameter(place):
        return  # bound anew, the parameter would stay as it is
    if own is not None and not ("leaf" in site.text and ".clone()" in own.edits[0].text):
        yield own
        edits = [edit for each in written.values() if each is not None for edit in each.edits]
        if len(edits) > 1:
            yield Candidate(own.cost + 0.4, tuple(edits))


def new_tensor(place: Place) -> Candidate | None:
    statement = place.statement
    if isinstance(statement, ast.AugAssign) and not isinstance(statement.target, ast.Subscript):
        name, value = place.text(statement.target), place.text(statement.value)
        sign = re.search(r"(\S+)=$", place.text(statement)[len(name) :].split(value)[0].rstrip())
        if sign is not None:
            loose = isinstance(statement.value, (ast.BinOp, ast.BoolOp, ast.IfExp, ast.Compare))
            value = f"({value})" if loose else value
            return place.written(0.4, f"{name} = {name} {sign[1]} {value}")
    elif isinstance(statement, (ast.Assign, ast.AugAssign)):
        target = [*getattr(statement, "targets", []), getattr(statement, "target", None)][0]
        if isinstance(target, ast.Subscript) and (name := spelled(target.value)):
            return place.written(0.4, f"{name} = {name}.clone()\n{{}}")
    elif isinstance(statement, ast.Expr) and callee(statement.value).endswith("_"):
        call = place.text(statement.value)
        name, _, method = call.partition("(")[0].rpartition(".")
        root: Any = statement.value
        while not spelled(root) and isinstance(root, (ast.Call, ast.Attribute, ast.Subscript)):
            root = root.func if isinstance(root, ast.Call) else root.value
        own = spelled(root)
        other = own == name and hasattr(Tensor, method[:-1])
        if not other:  # it writes into a part, or there is no such function
            return place.written(0.4, f"{own} = {own}.clone()\n{{}}") if own else None
        new = call.replace(f"{name}.{method}", f"{name}.{method[:-1]}", 1)
        return place.written(0.4, f"{name} = {new}")
    return None


def with_gradient(site: Site, place: Place) -> Iterator[Candidate]:
    """A tensor that has no gradient, and whose gradient is read or that an optimizer changes."""
    made = place.result()
    if not isinstance(made, Tensor) or not (is_cut(site) or "NoneType" in site.text):
        return
    known = [v for frame, _ in site.frames for v in frame.f_locals.values()]
    groups = [g for v in known if isinstance(v, torch.optim.Optimizer) for g in v.param_groups]
    learned = any(made is each for group in groups for each in group["params"])
    for name in bound_by(place.statement):
        read = any(re.search(rf"(?<![\w.]){name}\.grad\b", s.text) for s in site.program.texts)
        if made.requires_grad and not made.is_leaf and read:
            yield place.written(0.2, f"{{}}\n{name}.retain_grad()")
        elif (
            made.is_floating_point()
            and not made.requires_grad
            and (read or learned or "register a hook" in site.text)
        ):
            value = place.statement.value  # type: ignore[attr-defined]
            yield place.replaced(0.2, (value, f"{place.text(value)}.requires_grad_()"))


def leaves(site: Site) -> Iterator[Candidate]:
    """Gradients asked for what an expression gives, not for a part of it: only leaves have one."""
    read = "NoneType" in site.text and ".grad" in site.raising[0].text(site.raising[0].statement)
    blocks: dict[Any, list[tuple[ast.AST, str]]] = {}
    for place in site.statements() if read or "non-leaf" in site.text else ():
        value: Any = getattr(place.statement, "value", None)
        for whole in getattr(value, "elts", [getattr(value, "elt", value)]):
            calls = (n for n in ast.walk(whole or ast.Pass()) if n is not whole)
            for part in (n for n in calls if isinstance(n, ast.Call)):
                plain = [n for n in (*part.args, *part.keywords) if not _asks(n)]
                texts = list(map(place.text, plain))
                if callee(part) == "Parameter" and texts:
                    inner, new = texts[0], f"{place.text(part.func)}({{}})"
                elif len(plain) < len(part.args) + len(part.keywords):
                    inner = f"{place.text(part.func)}({', '.join(texts)})"
                    loose = isinstance(whole, ast.BinOp)
                    new = f"{'({})' if loose else '{}'}.requires_grad_()"
                else:
                    continue
                text = new.format(place.text(whole).replace(place.text(part), inner, 1))
                blocks.setdefault((place.source, place.function), []).append((whole, text))
                yield place.replaced(0.15, (whole, text))
                break
    for (source, _), pairs in blocks.items():
        yield Candidate(0.14, spliced(source, pairs))


# What a statement does with a tensor that it only looks at.
_LOOKS = re.compile(r"\.(detach|item|tolist|numpy)\(|^print\(")


def held_results(site: Site, place: Place) -> Iterator[Candidate]:
    """What a module that is copied holds of its last call, cut before that from its graph: the
    program reads it, as a loss may."""
    for call in place.calls() if "deepcopy protocol" in site.text else ():
        whole, text = place.value([*call.args, call][0]), place.text([*call.args, call][0])
        named = whole.named_modules() if isinstance(whole, nn.Module) else ()
        held = [
            (f"{text}.{prefix}.{name}".replace("..", "."), name)
            for prefix, module in named
            for name, value in vars(module).items()
            if isinstance(value, Tensor) and value.grad_fn is not None
        ]
        rows = [other.statement for other in site.statements()]
        rows = [row for row in rows if not _LOOKS.search(ast.unparse(row))]
        nodes = [n for row in rows for n in ast.walk(row) if isinstance(n, ast.Attribute)]
        read = {n.attr for n in nodes if isinstance(n.ctx, ast.Load)}
        for other in site.statements():  # where it is kept, if nothing reads it
            names = {*bound_by(other.statement)} & {f"self.{name}" for _, name in held}
            if names and not any(name.removeprefix("self.") in read for name in names):
                value = bound_value(other, "")
                yield other.replaced(0.3, (value, f"{other.text(value)}.detach()"))
        cuts = [f"{path} = {path}.detach()" for path, name in held if name in read]
        if cuts and not any(re.search(r"\.\d", cut) for cut in cuts):
            yield place.written(0.25, "\n".join((*cuts, "{}")))


def saved_numbers(site: Site) -> Iterator[Candidate]:
    """Numbers that a function of its own keeps for its backward, as attributes of its context."""
    refused = re.search(r"can only save variables, but argument (\d+)", site.text)
    for place in site.statements() if refused is not None else ():
        call: Any = getattr(place.statement, "value", None)
        if callee(call) != "save_for_backward" or refused is None:
            continue
        known = _given_to(site, place.function)
        values = [known.get(spelled(given)) for given in call.args]
        plain = {at for at, v in enumerate(values) if isinstance(v, (bool, int, float, str, tuple))}
        plain.add(int(refused[1]))
        kinds = [n for n in place.source.nodes if isinstance(n, ast.ClassDef)]
        rows = [n for kind in kinds if place.function in kind.body for n in ast.walk(kind)]
        for row in (n for n in rows if isinstance(n, ast.Assign)):
            names, taken = bound_by(row), place.text(row.value)
            if taken.endswith(".saved_tensors") and len(names) == len(values):
                apart = place.text(call.func).rpartition(".")[0]
                own = [f"{apart}.{names[n]} = {place.text(call.args[n])}" for n in sorted(plain)]
                kept = [place.text(a) for n, a in enumerate(call.args) if n not in plain]
                if kept:
                    own.insert(0, f"{place.text(call.func)}({', '.join(kept)})")
                others = ", ".join(name for n, name in enumerate(names) if n not in plain)
                apart = taken.removesuffix("saved_tensors")
                back = [f"{names[n]} = {apart}{names[n]}" for n in sorted(plain)]
                if kept:
                    back.insert(0, f"{others if len(kept) > 1 else f'({others},)'} = {taken}")
                first = place.written(0.3, "\n".join(own))
                second = replace(place, statement=row).written(0.3, "\n".join(back))
                yield replace(first, edits=(*first.edits, *second.edits))


def _given_to(site: Site, function: Any) -> dict[str, Any]:
    """What the line that raised gave for the parameters of an autograd function."""
    names = [each.arg for each in function.args.args[1:]] if function is not None else []
    calls = [call for call in site.raising[0].calls() if callee(call) == "apply"]
    given = [site.raising[0].value(each) for call in calls for each in call.args]
    return dict(zip(names, given, strict=False))


def _asks(argument: ast.AST) -> bool:
    """Whether an argument of a call asks for gradients."""
    value = argument.value if isinstance(argument, ast.keyword) else argument
    return getattr(argument, "arg", "") == "requires_grad" and getattr(value, "value", 0) is True


def transformed(site: Site) -> Iterator[Candidate]:
    """An autograd function as transformations take it: what it keeps is kept by
    ``setup_context``, and ``vmap`` makes its own rule."""
    over = re.search(r"tried to vmap over (\w+), but", site.text)
    apart = "must override the setup_context" in site.text
    for source in site.program.texts if over or apart else ():
        for kind in (n for n in source.nodes if isinstance(n, ast.ClassDef)):
            rule = over is not None and kind.name == over[1]
            first = kind.body[ast.get_docstring(kind) is not None :][0]
            if rule:
                line = " " * first.col_offset + "generate_vmap_rule = True"
                at = min(getattr(d, "lineno", first.lineno) for d in _heads(first)) - 1
                rows = f"{source.lines[at - 1]}\n{line}"
                yield Candidate(0.3, (lines_as(source, at, at, rows),))
            forward = next((n for n in kind.body if getattr(n, "name", "") == "forward"), None)
            if apart and isinstance(forward, ast.FunctionDef) and ".apply" in source.text:
                yield from _without_context(source, forward)


def _heads(node: ast.stmt) -> list[ast.AST]:
    return [node, *getattr(node, "decorator_list", [])]


def _without_context(source: Source, forward: ast.FunctionDef) -> Iterator[Candidate]:
    """A forward whose statements that keep something for the backward stand in a function of
    their own."""
    context, *inputs = [each.arg for each in forward.args.args]
    kept = [row for row in forward.body if context in names_in(row)]
    last = forward.body[-1]
    if not kept or not isinstance(last, ast.Return) or last in kept:
        return
    named = spelled(last.value) if last.value is not None else ""
    made = {n for row in forward.body if row not in kept for n in bound_by(row)} - {named}
    if made & {n for row in kept for n in names_in(row)}:
        return
    pad, more = " " * forward.col_offset, " " * forward.body[0].col_offset
    parts = [source.part(each) for each in forward.args.args[1:]]
    begin, end = forward.lineno, forward.end_lineno or 0
    gone = {n for row in kept for n in range(row.lineno, (row.end_lineno or 0) + 1)}
    rest = [source.lines[n - 1] for n in range(forward.body[0].lineno, end + 1) if n not in gone]
    rows = [f"{pad}def forward({', '.join(parts)}):", *rest, "", f"{pad}@staticmethod"]
    rows += [f"{pad}def setup_context({context}, inputs, output):"]
    rows += [f"{more}{', '.join(inputs)}{',' * (len(inputs) == 1)} = inputs"]
    rows += [f"{more}{named} = output"] * bool(named and named not in inputs)
    rows += [source.lines[n - 1] for n in sorted(gone)]
    yield Candidate(0.3, (lines_as(source, begin, end, "\n".join(rows)),))


def differentiated(site: Site) -> Iterator[Candidate]:
    """The loss differentiated, where that was forgotten."""
    raised = site.raising[0].text(site.raising[0].statement)
    scaler = re.search(r"\b([\w.]+)\.(?:step|unscale_)\(", raised)
    scaled = scaler is not None and re.search("No inf checks|_scale is None", site.text)
    if not scaled and not ("NoneType" in site.text and ".grad" in raised):
        return
    forgotten = not any(".backward(" in source.text for source in site.program.texts)
    for other in site.statements():
        value: Any = getattr(other.statement, "value", None)
        of = value.func.value if callee(value) == "backward" else None
        if scaler is not None and scaled and of is not None and callee(of) != "scale":
            yield other.replaced(0.25, (of, f"{scaler[1]}.scale({other.text(of)})"))
        if isinstance(other.statement, ast.Expr) and callee(value) == "scale":  # and thrown away
            yield other.replaced(0.2, (value, f"{other.text(value)}.backward()"))
        made = other.result() if forgotten else None
        if isinstance(made, Tensor) and made.grad_fn is not None and made.numel() == 1:
            (name,) = bound_by(other.statement)
            loss = f"{scaler[1]}.scale({name})" if scaler is not None and scaled else name
            yield other.written(0.3, f"{{}}\n{loss}.backward()")


_LEARNS = re.compile(r"detach|no_grad|requires_grad|backward\(|loss")


def idle_for_now(site: Site, place: Place) -> Iterator[Candidate]:
    """A step of a scaler taken where its optimizer has gradients, as in one phase of a training."""
    for call in place.calls() if "No inf checks" in site.text else ():
        given = place.text(call.args[0]) if callee(call) == "step" and call.args else ""
        choices = [n for n in place.source.nodes if isinstance(n, (ast.If, ast.IfExp))]
        asked = [n for n in place.source.nodes if callee(n) == "requires_grad_"]
        given_to = [a for each in asked for a in getattr(each, "args", [])]
        varying = [a for a in given_to if not isinstance(a, ast.Constant)]
        varies = varying or any(_LEARNS.search(place.text(n)) for n in choices)
        if given:  # else its parameters may be those of another model
            some = f'p.grad is not None for group in {given}.param_groups for p in group["params"]'
            row = place.text(place.statement)
            yield place.written(0.35 if varies else 1.2, f"if any({some}):\n    {row}")


_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


_OPPOSITE = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}


def derivative(site: Site) -> Iterator[Candidate]:
    """A derivative that is written by hand and was found wrong, with another sign."""
    for place in site.statements() if type(site.error).__name__ == "GradcheckError" else ():
        for node in place.parts() if getattr(place.function, "name", "") == "backward" else ():
            if isinstance(node, ast.BinOp) and (other := _OPPOSITE.get(type(node.op))):
                new = ast.BinOp(node.left, other(), node.right)
                yield place.replaced(0.8, (node, ast.unparse(new)))


def in_place(site: Site) -> Iterator[Candidate]:
    """Tensors that an update by hand bound anew, as leaves with a gradient: written in place
    where their gradient is set to zero, else as new leaves."""
    if not is_cut(site) and not ("NoneType" in site.text and ".grad" in site.raised):
        return
    for place in site.statements():
        value = getattr(place.statement, "value", None)
        whole = getattr(value, "elt", value)
        left = place.text(whole.left) if isinstance(whole, ast.BinOp) else ""
        if not left or f"{left}.grad" not in place.text(whole.right):  # type: ignore[union-attr]
            continue
        zeroed = 0.3 * (".grad.zero_(" in place.source.text)
        sign = _SIGNS.get(type(whole.op))  # type: ignore[union-attr]
        if left in bound_by(place.statement) and sign:
            text = f"{left} {sign}= {place.text(whole.right)}"  # type: ignore[union-attr]
            yield place.written(0.4 - zeroed, text)
            yield place.written(0.42 - zeroed, f"with torch.no_grad():\n    {text}")
        text = f"({place.text(whole)}).detach().requires_grad_()"  # type: ignore[arg-type]
        yield place.replaced(0.15, (whole, text))  # type: ignore[arg-type]


def update_ended(site: Site) -> Iterator[Candidate]:
    """A step of a scaler ended after its last optimizer, so that the next may begin."""
    told = re.search(r"(unscale_|step)\(\) (is being called|has already been called)", site.text)
    owners = [
        place.text(call.func)[: -len(callee(call)) - 1]
        for place in site.raising[:1]
        for call in place.calls()
        if callee(call) in ("unscale_", "step")
    ]
    for owner in owners[:1] if told is not None else ():
        if not any(f"{owner}.update(" in source.text for source in site.program.texts):
            steps = [
                place
                for place in site.statements()
                if place.text(place.statement).startswith(f"{owner}.step(")
            ]
            for at, place in enumerate(reversed(steps)):
                yield place.written(0.1 + 0.02 * at, f"{{}}\n{owner}.update()")


def before_its_step(site: Site) -> Iterator[Candidate]:
    """What is done with the gradients of several rounds, moved under the test for the update."""
    found = site.raising if "unscale_() has already been called" in site.text else []
    for place in found[:1]:
        rows = place.block[place.block.index(place.statement) :] if place.block else []
        at = next((n for n, row in enumerate(rows) if isinstance(row, ast.If)), 0)
        test: Any = rows[at] if at else None
        lines = place.source.lines
        if at and "step" in map(callee, ast.walk(test)) and not test.orelse:
            first, head, inner = rows[0].lineno, test.lineno, test.body[0]
            deeper = " " * (inner.col_offset - rows[0].col_offset)
            moved = textwrap.indent("\n".join(lines[first - 1 : head - 1]), deeper)
            text = "\n".join((*lines[head - 1 : inner.lineno - 1], moved))
            yield Candidate(0.25, (lines_as(place.source, first, inner.lineno - 1, text),))


def ended_after_steps(site: Site) -> Iterator[Candidate]:
    """An update of a scaler right after its step, where it came once after several of them."""
    told = re.search(r"(unscale_|step)\(\) (is being called|has already been called)", site.text)
    places = [(p, c) for p in site.statements() for c in p.calls() if told is not None]
    alone = [(p, c) for p, c in places if getattr(p.statement, "value", None) is c]
    updates = [(p, c) for p, c in alone if callee(c) == "update"]
    for update, call in updates:
        owner = update.text(call.func)[: -len(".update")]
        steps = [p for p, c in places if p.text(c.func) == f"{owner}.step"]
        if len(steps) == 1 and steps[0].block is not update.block:
            rest = "" if len(update.block) > 1 else "pass"
            edits = (*steps[0].written(0.0, f"{{}}\n{update.text(call)}").edits,)
            yield Candidate(0.45, (*edits, *update.written(0.0, rest).edits))


def recomputed_alike(site: Site) -> Iterator[Candidate]:
    """The gradients computed before a module's mode is changed, where a part of it is computed
    again for them."""
    if type(site.error).__name__ != "CheckpointError":
        return
    for place in site.raising:
        rows = place.block[: place.block.index(place.statement)]
        needed = names_in(place.statement)
        for at in reversed(range(len(rows))):
            row = rows[at]
            if not isinstance(place.statement, ast.Expr) or needed & {*bound_by(row)}:
                break
            if any(callee(n) in ("eval", "train") for n in ast.walk(row)):
                first, last = row.lineno, place.statement.end_lineno or 0
                edit = swapped(place.source, first, place.statement.lineno, last)
                yield Candidate(0.3, (edit,))


def drawn_alike(site: Site) -> Iterator[Candidate]:
    """Random numbers drawn by torch in what is computed again: it restores its own generator
    alone."""
    for source in site.program.texts if type(site.error).__name__ == "CheckpointError" else ():
        pairs: list[tuple[ast.AST, str]] = []
        for call in (n for n in source.nodes if isinstance(n, ast.Call)):
            function = site.raising[-1].value(call.func)
            maker = getattr(function, "__self__", None)
            known = isinstance(maker, (random.Random, np.random.RandomState, np.random.Generator))
            around = function_around(source, call)
            form = _DRAWN.get(getattr(function, "__name__", "")) if known else None
            if form is not None and around is not None and not call.keywords:
                ends = 1 * (isinstance(maker, random.Random) and callee(call) == "randint")
                with suppress(IndexError):
                    text = form.format(*map(source.part, call.args), more=" + 1" * ends)
                    pairs.append((call, text))
        yield Candidate(0.25, spliced(source, pairs))


# What Python and NumPy draw, drawn by torch.
_DRAWN = {
    **dict.fromkeys(("random", "rand", "random_sample"), "torch.rand(()).item()"),
    **dict.fromkeys(("gauss", "normal", "normalvariate"), "torch.normal({0}, {1}, ()).item()"),
    "uniform": "torch.empty(()).uniform_({0}, {1}).item()",
    "randn": "torch.randn(()).item()",
    **dict.fromkeys(("randint", "randrange"), "torch.randint({0}, {1}{more}, ()).item()"),
    "integers": "torch.randint({0}, {1}, ()).item()",
    "choice": "{0}[torch.randint(len({0}), ()).item()]",
}


def not_reentrant(site: Site) -> Iterator[Candidate]:
    """All parts that are computed again, in the way in which their parameters learn whatever
    their input is."""
    for source in site.program.texts if "does not require grad" in site.text else ():
        pairs: list[tuple[ast.AST, str]] = []
        for call in (n for n in source.nodes if isinstance(n, ast.Call)):
            function = site.raising[-1].value(call.func)
            known = getattr(function, "__module__", "") == "torch.utils.checkpoint"
            given = next((k for k in call.keywords if k.arg == "use_reentrant"), None)
            if not known or getattr(getattr(given, "value", None), "value", 0) is False:
                continue
            if given is not None:
                pairs.append((given, "use_reentrant=False"))
            else:
                pairs.append(with_more(source, call, "use_reentrant=False"))
        yield Candidate(0.15, spliced(source, pairs))


def with_memory(site: Site) -> Iterator[Candidate]:
    """Parameters that were built without memory, given that of the state which is loaded."""
    if not re.search(r"\bmeta\b", site.text):
        return
    filled = 0
    for place in site.statements():
        for call in place.calls():
            if callee(call) == "load_state_dict":
                filled = max(filled, call.lineno)
                if "assign" not in {k.arg for k in call.keywords}:
                    yield place.added(0.2, call, "assign=True")
            elif callee(call) in ("apply", "reset_parameters"):
                filled = max(filled, call.lineno)
    for place in site.raising:
        for call in place.calls():
            if callee(call) in ("to", "cpu") and call.lineno < filled:
                owner = place.text(call.func).rpartition(".")[0]
                device = place.text(call.args[0]) if call.args else '"cpu"'
                yield place.replaced(0.3, (call, f"{owner}.to_empty(device={device})"))


def counts_copied(site: Site, place: Place) -> Iterator[Candidate]:
    """An average of a state, whose whole numbers (how many batches there were) are copied."""
    if not re.search("can't be cast to the desired output type|lerp", site.text):
        return
    at = place.block.index(place.statement)
    rows = list(itertools.takewhile(_writes, place.block[at:])) or [place.statement]
    target: Any = getattr(rows[0], "target", [*getattr(rows[0], "targets", []), None][0])
    target = target or getattr(rows[0], "value", None)
    while isinstance(target, ast.Call):
        target = getattr(target.func, "value", None)
    own = place.value(target) if target is not None else None
    loops = [n for n in place.source.nodes if isinstance(n, ast.For)]
    around = [n for n in loops if n.lineno < place.statement.lineno <= (n.end_lineno or 0)]
    turns = {name for loop in around for name in bound_by(loop)}
    if not isinstance(own, Tensor) or own.is_floating_point() or not turns & names_in(target):
        return
    name = place.text(target)
    parts = [n for row in rows for n in ast.walk(row) if isinstance(n, (ast.Name, ast.Subscript))]
    others = [
        place.text(n)
        for n in parts
        if isinstance(v := place.value(n), Tensor) and (v.shape, v.dtype) == (own.shape, own.dtype)
    ]
    lines = place.source.lines[rows[0].lineno - 1 : rows[-1].end_lineno]
    indent = " " * place.statement.col_offset
    text = [f"{indent}if {name}.is_floating_point():", *("    " + line for line in lines)]
    for other in [each for each in others if each != name][:1]:
        text += [f"{indent}else:", f"{indent}    {name}.copy_({other})"]
    edit = lines_as(place.source, rows[0].lineno, rows[-1].end_lineno or 0, "\n".join(text))
    yield Candidate(0.2, (edit,))


def as_probabilities(site: Site) -> Iterator[Candidate]:
    """The last layer of a model followed by its sigmoid, where the program takes what the model
    gives for probabilities."""
    known = {callee(node).lower() for source in site.program.texts for node in source.nodes}
    if "input should be between 0 and 1" not in site.text or "sigmoid" in known:
        return
    halved: list[Any] = [(s, n) for s in site.program.texts for n in s.nodes if _halved(n)]
    if not any(_given_by_model(site.place(s, n, 0.0), n) for s, n in halved):
        return
    for place in site.statements():
        for call in place.calls():
            if callee(call) == "Sequential" and call.args:
                head = place.text(call.func)[: -len("Sequential")]
                yield place.added(-0.12, call, f"{head}Sigmoid()")
        if is_return(place.statement):
            value: Any = place.statement.value  # type: ignore[attr-defined]
            whole = [*getattr(value, "elts", []), value][0]
            yield place.replaced(-0.1, (whole, f"torch.sigmoid({place.text(whole)})"))


def _halved(node: Any) -> bool:
    """Whether an expression is compared with a half, rounded, or made a grey value."""
    numbers = [getattr(n, "value", None) for n in ast.iter_child_nodes(node)]
    compared = isinstance(node, ast.Compare) and 0.5 in numbers
    scaled = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and 255 in numbers
    return compared or scaled or callee(node) == "round"


def _given_by_model(place: Place, node: Any) -> bool:
    """Whether an expression is computed by a model, as far as it can be seen."""
    root = [*getattr(node, "args", []), node][0]
    while not isinstance(root, ast.Name):
        inner = [getattr(root, name, None) for name in ("left", "func", "value")]
        root = next((each for each in inner if isinstance(each, ast.expr)), None)
        if root is None:
            return False
    value = place.value(root)
    learned = isinstance(value, Tensor) and value.requires_grad
    return learned or value is MISSING or isinstance(value, nn.Module)


def _moved_into(place: Place, loop: ast.AST, carried: set[str]) -> Iterator[Candidate]:
    """What was computed once before a loop, computed in each of its rounds."""
    assigned = [n for n in place.source.nodes if isinstance(n, ast.Assign)]
    for before in (n for n in assigned if function_around(place.source, n) is place.function):
        last = before.end_lineno or before.lineno
        begins = loop.lineno  # type: ignore[attr-defined]
        if last >= begins or carried.intersection(bound_by(before)):
            continue
        value = Place(place.source, before, place.frame, 0.0).result()
        if isinstance(value, Tensor) and value.grad_fn is not None:
            lines, body = place.source.lines, loop.body[0]  # type: ignore[attr-defined]
            pad = " " * (body.col_offset - before.col_offset)
            own = [pad + row for row in lines[before.lineno - 1 : last]]
            text = "\n".join((*lines[last : body.lineno - 1], *own))
            edit = lines_as(place.source, before.lineno, body.lineno - 1, text)
            yield Candidate(0.65, (edit,))


def _carried(loop: ast.AST) -> set[str]:
    """Names that a loop reads before it binds them anew."""
    found = set()
    for statement in ast.walk(loop):
        if isinstance(statement, ast.Assign):
            read = {spelled(n) for n in ast.walk(statement.value)}
            found |= set(bound_by(statement)) & read
    return found


def differentiable_again(site: Site) -> Iterator[Candidate]:
    """A backward of the program's own that can be differentiated, where it was said to be not."""
    for source in site.program.texts if "once_differentiable" in site.text else ():
        for node in source.nodes:
            for mark in getattr(node, "decorator_list", []):
                if source.part(mark).endswith("once_differentiable"):
                    yield Candidate(0.2, (lines_as(source, mark.lineno, mark.lineno, ""),))


def of_what_it_is_asked_for(site: Site, place: Place) -> Iterator[Candidate]:
    """What a result is differentiated by, in the place of another tensor of its shape that the
    result was computed from."""
    calls = place.calls() if "have been used in the graph" in site.text else []
    for call in (c for c in calls if callee(c) == "grad"):
        given = dict(zip(("outputs", "inputs"), call.args, strict=False))
        given |= {k.arg: k.value for k in call.keywords if k.arg}
        by = given.get("inputs", call)
        whole, name = place.value(by), spelled(by)
        first = site.binding(place, by)
        line = first.statement.lineno if first is not None else 0
        own = [p for p in (place, *site.bindings) if p.function is place.function]
        block = [*ast.walk(place.function or place.source.tree)]
        owners = {id(n.value) for n in block if isinstance(n, ast.Attribute)}
        alone = sum(spelled(n) == name and id(n) not in owners and _is_read(n) for n in block) < 2
        later = [p for p in own if isinstance(whole, Tensor) and p.statement.lineno > line]
        read = [(p, n) for p in later for c in p.calls() for n in _arguments_of(site, p, c)]
        for made, node in read:
            value = made.value(node) if name and spelled(node) not in ("", name) else MISSING
            if isinstance(value, Tensor) and value.shape == whole.shape:
                yield replace(made, distance=0.0).replaced(0.25 if alone else 0.5, (node, name))


def _arguments_of(site: Site, place: Place, call: ast.Call) -> list[ast.expr]:
    """What a call of a module, or of a function of the program, is given."""
    code = getattr(place.value(call.func), "__code__", None)
    own = code is not None and site.program.source(code.co_filename) is not None
    return call.args if own or _called(place, call) else []


def _is_read(node: Any) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Load)


def never_learned(site: Site, place: Place) -> Iterator[Candidate]:
    """A parameter of small whole numbers, as a quantised weight: stored, and not learned."""
    for call in place.calls() if "can require gradients" in site.text else ():
        value = place.value(call.args[0]) if call.args else MISSING
        stored = isinstance(value, Tensor) and value.dtype in _STORED
        if stored and place.value(call.func) is nn.Parameter and not call.keywords:
            yield place.added(0.3, call, "requires_grad=False")


_STORED = (torch.int8, torch.uint8, torch.bool)


def columns_joined(site: Site, place: Place) -> Iterator[Candidate]:
    """What a result is differentiated by, given to what computes it: columns that were taken out
    of a table, joined again."""
    if "have been used in the graph" not in site.text:
        return
    rows = [p for p in site.statements() if p.function is place.function]
    tables: dict[str, list[str]] = {}
    for row in (p.statement for p in rows):
        parts = ast.walk(row.value) if isinstance(row, ast.Assign) else ()
        taken = next((n for n in parts if isinstance(n, ast.Subscript)), None)
        if taken is not None and spelled(taken.value) and len(bound_by(row)) == 1:
            tables.setdefault(spelled(taken.value), []).extend(bound_by(row))
    for name, columns in tables.items():
        known = place.names()
        whole = known.get(name)
        held = [known[each] for each in columns if isinstance(known.get(each), Tensor)]
        if not isinstance(whole, Tensor) or len(held) < len(columns):
            continue
        stacked = all(each.dim() == whole.dim() for each in held)
        wide = sum((each.shape[-1] if stacked else 1) for each in held)
        joined = f"torch.{'cat' if stacked else 'stack'}([{', '.join(columns)}], dim=-1)"
        for other in rows if wide == whole.shape[-1] else ():
            for call in other.calls():
                given = [a for a in call.args if spelled(a) == name]
                if given and not any(c in names_in(call) for c in columns):
                    yield replace(other, distance=0.0).replaced(0.3, (given[0], joined))
