"""Statements in another form: results taken apart, layers registered, branches chosen."""

from __future__ import annotations

import ast
import difflib
import io
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from nanlab.explanations.edits.gradients import is_cut
from nanlab.explanations.edits.writes import written_into
from nanlab.explanations.site import (
    MISSING,
    Candidate,
    Function,
    Place,
    Site,
    Tensor,
    bound_by,
    bound_value,
    callee,
    first_line,
    function_around,
    is_return,
    lines_as,
    names_in,
    own_nodes,
    rows_of,
    spelled,
    spliced,
    swapped,
)
from nanlab.explanations.trial import Source
from nanlab.findings.rule import Edit

_AHEAD = 8  # statements after one, where another may be meant to come before it
_CHAIN = 4  # statements that are computed anew
_MOVED = (ast.Expr, ast.Assign, ast.AugAssign, ast.FunctionDef, ast.ClassDef, ast.Import)


def joined_lists(site: Site, place: Place) -> Iterator[Candidate]:
    """Sequences of different kinds in one list, where they were added."""
    for node in place.parts() if "operand type" in site.text else ():
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            both = f"[*{place.text(node.left)}, *{place.text(node.right)}]"
            yield place.replaced(0.5, (node, both))


def without_repeated(site: Site, place: Place) -> Iterator[Candidate]:
    """Without a statement that does again what was done, or takes a name that is taken."""
    if "has already been" in site.text:
        if isinstance(place.statement, ast.Expr):
            yield place.written(0.6, "" if len(place.block) > 1 else "pass")
        yield from _in_branch(place)
    for other in site.statements() if "already exists" in site.text else ():
        names = (name.removeprefix("self.") for name in bound_by(other.statement))
        if any(f"'{name}'" in site.text for name in names):
            yield other.replaced(1.0, (other.statement, "pass"))


def _in_branch(place: Place) -> Iterator[Candidate]:
    """The statement and those after it within the next branch that goes on with its object."""
    rows = place.block[place.block.index(place.statement) :]
    at = next((at for at, row in enumerate(rows) if not isinstance(row, ast.Expr)), 0)
    branch, function = rows[at], getattr(getattr(place.statement, "value", None), "func", None)
    owner = spelled(getattr(function, "value", place.statement))
    if isinstance(branch, ast.If) and owner and owner in names_in(branch):
        lines, first = place.source.lines, place.statement.lineno
        body = branch.body[0].lineno
        inner = (" " * 4 + line for line in lines[first - 1 : branch.lineno - 1])
        text = "\n".join((*lines[branch.lineno - 1 : body - 1], *inner))
        yield Candidate(0.4, (lines_as(place.source, first, body - 1, text),))


def earlier(site: Site, place: Place) -> Iterator[Candidate]:
    """A later statement of the block before this one, where it reads nothing that is bound
    between them."""
    if place.frame.f_code.co_name == "<lambda>":  # it ran elsewhere
        return
    cut = is_cut(site)  # by what was switched off before it was computed
    if place.distance > 0.5 or not (cut or place.statement is site.raising[0].statement):
        return
    rows = place.block[place.block.index(place.statement) :]
    read = names_in(place.statement)
    for at, later in enumerate(rows[1:_AHEAD], 1):
        needs = names_in(later)
        if isinstance(later, _MOVED) and not needs & _all_bound(rows[:at]):
            near = bool(read & (needs | _all_bound([later])))
            cost = 0.9 - 0.3 * near + 0.02 * at + place.distance
            own, middle = first_line(place.statement), first_line(later)
            edit = swapped(place.source, own, middle, later.end_lineno or 0)
            yield Candidate(cost, (edit,))


def set_before(site: Site) -> Iterator[Candidate]:
    """What reads an attribute moved behind the statements of its block that set it, and those of
    the same object after it: the call of a base, which calls a method of the class."""
    lacking = getattr(site.error, "name", None)
    for place in site.raising if isinstance(site.error, AttributeError) else ():
        block = place.block
        rows = block[block.index(place.statement) + 1 :] if place.statement in block else []
        bound = [[name for name in bound_by(row) if name.startswith("self.")] for row in rows]
        setting = [at for at, names in enumerate(bound) if names]
        own = [at for at in setting if f"self.{lacking}" in bound[at]]
        for far, at in enumerate((setting[-1], own[0]) if own else ()):
            first, middle = first_line(place.statement), first_line(rows[0])
            edit = swapped(place.source, first, middle, rows[at].end_lineno or 0)
            yield Candidate(0.25 + 0.02 * far, (edit,))


def _all_bound(rows: list[ast.stmt]) -> set[str]:
    """The names that statements bind, those within them too."""
    return {name for row in rows for part in ast.walk(row) for name in bound_by(part)}


def computed_anew(site: Site, place: Place) -> Iterator[Candidate]:
    """What the statement that raised reads, computed right before it: what is between has changed
    or used up what it was computed from. It is moved there where nothing between reads it."""
    changed = "modified by an inplace" in site.text
    rows = place.block
    rows = rows[: rows.index(place.statement)] if changed or "second time" in site.text else []
    needed, chain = names_in(place.statement), list[ast.stmt]()
    for at in reversed(range(len(rows))):
        if not (isinstance(rows[at], ast.Assign) and needed.intersection(bound_by(rows[at]))):
            continue
        chain.insert(0, rows[at])
        needed |= names_in(rows[at])
        between = [row for row in rows[at:] if row not in chain]
        if not between or len(chain) > _CHAIN:
            continue
        if changed and _written_in(between) & needed:
            continue  # it would undo what the program writes there
        lines, first = place.source.lines, rows[at].lineno
        again = "\n".join(_lines_of(place.source, chain))
        cost = 0.5 + 0.1 * len(chain)
        for n, reader in enumerate(chain[1:], 1):  # what reads it comes after the change, too
            if changed and chain[n - 1] is not rows[rows.index(reader) - 1]:
                head = textwrap.dedent("\n".join(_lines_of(place.source, chain[:n])))
                own = replace(place, statement=reader)
                yield own.written(0.45 + 0.1 * n, f"{head}\n{{}}")
        if changed and not any(_all_bound(chain) & names_in(row) for row in between):
            kept = lines[first - 1 : place.statement.end_lineno]
            for row in reversed(chain):
                del kept[row.lineno - first : (row.end_lineno or 0) - first + 1]
            count = (place.statement.end_lineno or 0) - place.statement.lineno + 1
            text = "\n".join((*kept[:-count], again, *kept[-count:]))
            edit = lines_as(place.source, first, place.statement.end_lineno or 0, text)
            yield Candidate(cost, (edit,))
        elif changed or (len(between) > 1 and ast.dump(place.statement) in map(ast.dump, between)):
            yield place.written(cost, f"{textwrap.dedent(again)}\n{{}}")


def _written_in(rows: Sequence[ast.stmt]) -> set[str]:
    """The names of the tensors that statements write into."""
    return {name for row in rows for part in ast.walk(row) if (name := written_into(part))}


def gradient_for_each(site: Site) -> Iterator[Candidate]:
    """A gradient for each argument of a function: those that were computed and never read, and none
    for the others that had been forgotten."""
    for place in site.statements() if "gradients" in site.text else ():
        value: Any = getattr(place.statement, "value", None)
        if is_return(place.statement) and getattr(place.function, "name", "") == "backward":
            lacking = abs(site.told[0] - site.told[1]) if len(site.told) == 2 else 1
            yield place.replaced(0.5, (value, place.text(value) + lacking * ", None"))
            given = value.elts if isinstance(value, ast.Tuple) else [value]
            arguments = _differentiated(place, len(given) + lacking)
            known = [n for n in ast.walk(place.function or value) if isinstance(n, ast.Name)]
            read = {n.id for n in known if isinstance(n.ctx, ast.Load)}
            unread = dict.fromkeys(n.id for n in known if n.id not in read)
            computed = [n for n in unread if any(_is_gradient(n, of) for of in arguments)]
            if 0 < len(computed) <= lacking and len(arguments) == len(given) + lacking:
                texts = _in_order([*map(place.text, given), *computed], arguments)
                yield place.replaced(0.3, (value, ", ".join(texts)))


def _differentiated(place: Place, count: int) -> list[str]:
    """The arguments of ``forward`` of the autograd function around a place, without its context."""
    kinds = [n for n in place.source.nodes if isinstance(n, ast.ClassDef)]
    rows = [row for kind in kinds if place.function in kind.body for row in kind.body]
    found = (row for row in rows if isinstance(row, Function) and row.name == "forward")
    return [each.arg for function in found for each in function.args.args[-count:]]


def _is_gradient(name: str, of: str) -> bool:
    return re.fullmatch(rf"(g|d|grad)_?{re.escape(of)}", name) is not None


def _in_order(gradients: list[str], arguments: list[str]) -> list[str]:
    """Gradients in the order of the arguments that they are named for, the others where there is
    room; None where there is none."""
    own = {of: n for of in arguments for n in gradients if _is_gradient(n, of)}
    left = [n for n in gradients if n not in own.values()]
    return [own[of] if of in own else left.pop(0) if left else "None" for of in arguments]


def module_initialised(site: Site) -> Iterator[Candidate]:
    """Modules that call their base before anything else, and register what they learn."""
    for source in site.program.texts:
        for node in source.nodes:
            if isinstance(node, ast.ClassDef) and "Module" in "".join(map(ast.unparse, node.bases)):
                yield from _initialised(source, node, site)


def with_closure(site: Site, place: Place) -> Iterator[Candidate]:
    """What an optimizer computes several times in one step, as a function that it is given."""
    call: Any = getattr(place.statement, "value", place.statement)
    owner = spelled(getattr(getattr(call, "func", call), "value", call))
    if "'closure'" not in site.text or callee(call) != "step" or not owner:
        return
    rows = place.block[: place.block.index(place.statement)]
    texts = [place.text(row) for row in rows]
    last = max((at for at, text in enumerate(texts) if ".backward(" in text), default=None)
    loss = texts[last].partition(".backward(")[0] if last is not None else ""
    if last is None or not loss.isidentifier():
        return
    needed, inside = {loss}, {last}
    for at in reversed(range(last)):
        bound = _all_bound([rows[at]])
        known = (place.names().get(name) for name in bound)
        if needed & bound and any(isinstance(v, Tensor) and v.requires_grad for v in known):
            needed |= names_in(rows[at])
            inside.add(at)
    inside |= {at for at, text in enumerate(texts) if "zero_grad(" in text or "clip_grad" in text}
    again = [rows[at] for at in sorted(inside)]
    others = [row for row in rows if row not in again and row.lineno > again[0].lineno]
    reading = [row for row in others if _all_bound(again) & names_in(row)]
    indent = place.statement.col_offset * " "
    cleared = [] if "zero_grad(" in "".join(texts) else [f"{indent}{owner}.zero_grad()"]
    body = [*cleared, *_lines_of(place.source, again), f"{indent}return {loss}"]
    text = [
        *_lines_of(place.source, [row for row in others if row not in reading]),
        f"{indent}def closure():",
        *("    " + line for line in body),
        f"{indent}{loss} = {place.text(call)[:-1]}closure)",
        *_lines_of(place.source, reading),
    ]
    last_line = place.statement.end_lineno or 0
    edit = lines_as(place.source, again[0].lineno, last_line, "\n".join(text))
    yield Candidate(0.3, (edit,))


def _lines_of(source: Source, rows: list[ast.stmt]) -> list[str]:
    """The lines of statements, one after the other."""
    return [line for row in rows for line in source.lines[row.lineno - 1 : row.end_lineno]]


def built_alike(site: Site) -> Iterator[Candidate]:
    """An optimizer with the groups of another, whose state it loads."""
    loads = (c for c in site.raising[0].calls() if callee(c) == "load_state_dict")
    owners = [getattr(c.func, "value", c) for c in loads if "parameter group" in site.text]
    for bound in (site.binding(site.raising[0], owner) for owner in owners):
        own: Any = getattr(bound.statement, "value", None) if bound is not None else None
        for place in site.statements():
            other: Any = getattr(place.statement, "value", None)
            known = place.result()
            made = isinstance(known, torch.optim.Optimizer) and type(known).__name__ == callee(own)
            if bound is None or other is own or not (made or callee(other) == callee(own)):
                continue
            models, theirs = _models(bound, own), _models(place, other)
            if len(models) == len(theirs) == 1:
                text = re.sub(rf"(?<![\w.]){theirs.pop()}\b", models.pop(), place.text(other))
                yield bound.replaced(0.0, (own, text))


def _models(place: Place, call: ast.AST) -> set[str]:
    """The names of what an optimizer is given parameters of."""
    names = [n for n in ast.walk(call) if isinstance(n, ast.Name)]
    return {n.id for n in names if isinstance(place.value(n), nn.Module)}


def with_none(site: Site, place: Place) -> Iterator[Candidate]:
    """What is computed with a gradient that may be None, left as it was where it is."""
    for node in place.parts() if "'NoneType'" in site.text else ():
        for side in [node.left, *node.comparators] if isinstance(node, ast.Compare) else []:
            if place.value(side) is None:  # nothing was there before
                text = f"{place.text(side)} is None or {place.text(node)}"
                joined = any(isinstance(n, ast.BoolOp) for n in place.parts())
                yield place.replaced(0.35, (node, f"({text})" if joined else text))
    if "NoneType" not in site.text or "allow_unused=True" not in place.source.text:
        return
    for node in place.parts():
        if isinstance(node, ast.BinOp) and spelled(node.left):
            own, whole = place.text(node.left), place.text(node)
            for name in sorted(names_in(node.right)):
                value = place.value(ast.Name(name))
                if name != own and (value is None or value is MISSING):
                    text = f"({own} if {name} is None else {whole})"
                    yield place.replaced(0.4, (node, text))
    if isinstance(place.statement, (ast.AugAssign, ast.Expr)):
        for name in sorted(names_in(place.statement)):
            if place.value(ast.Name(name)) is None:
                first = " " * 4 + place.text(place.statement).replace("\n", "\n" + " " * 4)
                yield place.written(0.4, f"if {name} is not None:\n{first}")


def called(site: Site) -> Iterator[Candidate]:
    """A function that a statement only names, or binds anew, called."""
    for place in site.statements():
        value: Any = getattr(place.statement, "value", None)
        named = isinstance(place.statement, ast.Expr) and isinstance(value, ast.Attribute)
        if named and not isinstance(place.value(value), (Tensor, nn.Module)):
            yield place.replaced(0.3, (value, f"{place.text(value)}()"))
        for target in getattr(place.statement, "targets", []):
            owner = place.value(target.value) if isinstance(target, ast.Attribute) else MISSING
            if isinstance(owner, (Tensor, nn.Module)) and callable(
                getattr(type(owner), target.attr, None)
            ):
                new = f"{place.text(target)}({place.text(value)})"
                yield place.replaced(0.4, (place.statement, new))


def state_kept(site: Site) -> Iterator[Candidate]:
    """The state of a model as it is then, where its method was kept or saved in place of it."""
    told = re.search("'method'|Weights only load failed", site.text)
    saved = {
        name
        for place in site.statements()
        for call in place.calls()
        if callee(call) == "save"
        for name in names_in(call)
    }
    for place in site.statements() if told else ():
        called = {id(call.func) for call in place.calls()}
        own = [n for n in place.parts() if getattr(n, "attr", "") == "state_dict"]
        texts = [(node, place.text(node)) for node in own if id(node) not in called]
        kept = isinstance(place.statement, ast.Assign) and not saved & {*bound_by(place.statement)}
        form = "{{n: v.clone() for n, v in {}().items()}}" if kept else "{}()"
        if texts:  # one that is left is refused as well
            pairs = [(node, form.format(text)) for node, text in texts]
            yield replace(place, distance=0.0).replaced(0.28, *pairs)


def returned(site: Site) -> Iterator[Candidate]:
    """What a function computed or defined last, returned: it gave None. Of what decorates, what it
    was given."""
    near = (*site.raising, *site.bindings)
    asked = [place.value(call.func) for place in near for call in place.calls()]
    known = {id(place.function) for one in asked for place in site.returns(one)}
    for source in site.program.texts if "NoneType" in site.text else ():
        marks = {mark for node in source.nodes for mark in getattr(node, "decorator_list", [])}
        names = {callee(mark) or getattr(mark, "attr", spelled(mark)) for mark in marks}
        for node in (n for n in source.nodes if isinstance(n, ast.FunctionDef)):
            last, row = site.place(source, node.body[-1], 0.0), node.body[-1]
            inner = [each.name for each in node.body if isinstance(each, Function)]
            around = function_around(source, node)
            given = [a.arg for a in node.args.args if a.arg != "self"][:1]
            decorates = names & {node.name, getattr(around, "name", node.name)}
            meant = inner[-1:] or (given if decorates else [])
            used = {n for each in own_nodes(node) if callee(each) for n in names_in(each)}
            gives = any(map(is_return, own_nodes(node)))
            if meant and not gives:
                cost = 0.3 + 0.15 * (meant == inner[-1:] and meant[0] in used)
                yield last.written(cost, f"{{}}\nreturn {meant[0]}")
            value = getattr(row, "value", None)
            if value is None or isinstance(row, ast.Return):
                continue
            unused = isinstance(row, ast.Expr) and not isinstance(value, ast.Constant)
            plain = unused and not isinstance(value, ast.Call)  # it does nothing there
            gives = gives and id(node) not in known  # else on another path
            if plain or (unused and not gives):
                yield last.replaced(0.45 - 0.1 * plain, (row, f"return {last.text(value)}"))
            bound = [bound_by(each) for each in node.body[::-1] if not isinstance(each, ast.Expr)]
            made = bound[0] if bound else []
            if made and not gives and not made[0].startswith("self."):
                shown = 0.1 * (unused and callee(value) != "print")
                yield last.written(0.35 + shown, f"{{}}\nreturn {', '.join(made)}")


_NO_RESULT = ("NoneType", "_IncompatibleKeys")  # of what a call gives that changes something


def in_its_place(site: Site) -> Iterator[Candidate]:
    """What a call changed in place, where a name was bound to what the call gave."""
    known = [(at, at, type(at.result()).__name__) for at in (*site.raising, *site.bindings)]
    known += [
        (made, last, kind)
        for at, _, kind in known
        if kind in _NO_RESULT
        and isinstance(value := getattr(at.statement, "value", None), ast.Call)
        for last in site.returns(at.value(value.func))
        for made in (last, site.binding(last, last.statement.value))  # type: ignore[attr-defined]
        if made is not None and made.function is last.function
    ]
    for place, last, kind in known:
        call: Any = getattr(place.statement, "value", None)
        if not isinstance(call, ast.Call) or kind not in _NO_RESULT or kind not in site.text:
            continue
        if place is last and is_return(place.statement):
            yield from _returned_itself(place, call)
            continue
        (target,) = place.statement.targets  # type: ignore[attr-defined]
        name, text, near = place.text(target), place.text(call), replace(place, distance=0.0)
        owner = getattr(call.func, "value", None)
        own = place.text(owner) if owner is not None else ""
        if owner is None or isinstance(place.value(owner), ModuleType):
            for changed in call.args[:1]:
                own = place.text(changed)
                rows = f"{text}\n{name} = {own}" if own != name else text
                if not spelled(changed):  # it is made there, and would be made again
                    rows = f"{name} = {own}\n{text.replace(own, name, 1)}"
                yield near.written(0.4 + 0.1 * any(site.returns(place.value(call.func))), rows)
        elif own == name:
            yield near.written(0.3, text)
        elif isinstance(owner, ast.Call):
            yield near.written(0.35, f"{name} = {own}\n{name}{text[len(own) :]}")
        elif callee(call) == "sort":
            options = ", ".join(("", *map(place.text, call.keywords)))
            yield near.replaced(0.3, (call, f"sorted({own}{options})"))
        else:
            yield near.written(0.35, f"{text}\n{name} = {own}")


def _returned_itself(place: Place, call: ast.Call) -> Iterator[Candidate]:
    """What a call changed in place returned, where what the call gave was returned."""
    near, text = replace(place, distance=0.0), place.text(call)
    owner: Any = getattr(call.func, "value", None)
    outside = not isinstance(owner, ast.Call) and place.value(owner) if owner is not None else None
    if isinstance(outside, ModuleType):
        owner = call.args[0] if call.args else None
    if owner is None:
        return
    own = place.text(owner)
    if spelled(owner):
        yield near.written(0.35, f"{text}\nreturn {own}")
    else:  # it is made there, and would be made again
        name = next(n for n in ("result", "changed", "made") if n not in place.names())
        yield near.written(0.35, f"{name} = {own}\n{text.replace(own, name, 1)}\nreturn {name}")


def fitting(site: Site, place: Place) -> Iterator[Candidate]:
    """A state of a part of the module; what fits of one whose layer at the end has another size."""
    wrong = re.findall(r"size mismatch for (\S+):", site.text)
    for call in place.calls():
        of = getattr(call.func, "value", call)
        own = place.value(of)
        if callee(call) != "load_state_dict" or not isinstance(own, nn.Module) or not call.args:
            continue
        given = place.value(call.args[0])
        if isinstance(given, (str, os.PathLike)) or callee(call.args[0]) == "Path":
            yield place.replaced(0.3, (call.args[0], f"torch.load({place.text(call.args[0])})"))
        loading = [f for f in site.inner if f.f_code.co_name == "load_state_dict"]
        state: Any = loading[-1].f_locals.get("state_dict") if loading else None
        for name, inner in own.named_modules() if isinstance(state, dict) else ():
            if name and inner.state_dict().keys() == state.keys():
                text = f"{place.text(of)}.{name}.load_state_dict"
                yield place.replaced(0.4, (call.func, text))
        if wrong and _is_turned(state, own.state_dict()):  # as another library has them
            text = f"v.t() if v.ndim == 2 else v for n, v in {place.text(call.args[0])}.items()"
            yield place.replaced(0.3, (call.args[0], f"{{n: {text}}}"))
        for text in _states(place.text(call.args[0]), state, own.state_dict()):
            yield place.replaced(0.3, (call.args[0], text))
        for source, old, prefix in _prefixes(site, state, own.state_dict()):
            yield Candidate(-0.05, spliced(source, [(old, prefix)]))
        computed = {name for name, _ in own.named_buffers()}
        if wrong and {*wrong} <= computed:
            yield from _not_saved(site, {name.rpartition(".")[2] for name in wrong})
        if wrong and "key(s)" not in site.text:
            last = list(own.state_dict())[-1].rpartition(".")[0]
            if {name.rpartition(".")[0] for name in wrong} == {last}:
                text, model = place.text(call.args[0]), place.text(call.func)[: -len(callee(call))]
                fits = f"v.shape == {model}state_dict()[n].shape"
                part = f"{{n: v for n, v in {text}.items() if {fits}}}"
                yield place.replaced(0.5, (call, f"{place.text(call.func)}({part}, strict=False)"))


def of_what_was_saved(site: Site, place: Place) -> Iterator[Candidate]:
    """The state of a model, an optimizer or a schedule, where the object itself was given for it:
    saved whole, it is read from the file so."""
    loading = (f.f_locals for f in site.inner if f.f_code.co_name == "load_state_dict")
    taken = next((names.get("state_dict") for names in loading), MISSING)
    for call in (c for c in place.calls() if callee(c) == "load_state_dict" and c.args):
        given = place.value(call.args[0])
        if given is MISSING and not place.distance:  # it is read there
            given = taken
        if callable(getattr(given, "state_dict", None)) and not isinstance(given, type):
            text = f"{place.whole(call.args[0])}.state_dict()"
            yield place.replaced(0.3, (call.args[0], text))


def _is_turned(state: Any, wanted: dict[str, Tensor]) -> bool:
    """Whether the matrices of a checkpoint have their rows and columns the other way round."""
    shapes = {n: getattr(v, "shape", ()) for n, v in state.items()} if state else {}
    return shapes == {n: v.shape[::-1] if v.ndim == 2 else v.shape for n, v in wanted.items()}


def _not_saved(site: Site, names: set[str]) -> Iterator[Candidate]:
    """Buffers that a module computes for its own size, left out of its state."""
    edits: list[Edit] = []
    for place in site.statements():
        for call in (c for c in place.calls() if callee(c) == "register_buffer"):
            if getattr(call.args[0], "value", None) in names and len(call.args) == 2:
                edits += place.added(0.0, call, "persistent=False").edits
    yield Candidate(0.25, tuple(edits))


def _states(text: str, state: Any, wanted: dict[str, Tensor]) -> Iterator[str]:
    """The parts of a checkpoint that have the names of a module, with or without a prefix, or with
    other names of layers."""
    if isinstance(state, dict) and all(isinstance(name, str) for name in state):
        if {*state} == {*wanted}:
            yield text
        for prefix in sorted({name.partition(".")[0] + "." for name in state}):
            own = [name for name in state if name.startswith(prefix)]
            part = f" if n.startswith({prefix!r})" * (len(own) < len(state))
            if {name.removeprefix(prefix) for name in (own if part else state)} == {*wanted}:
                yield f"{{n.removeprefix({prefix!r}): v for n, v in {text}.items(){part}}}"
        renamed = _renamed(state, wanted)
        if renamed:
            changes = "".join(f'.replace("{old}", "{new}")' for old, new in renamed)
            yield f"{{n{changes}: v for n, v in {text}.items()}}"
        for name, inner in state.items():
            yield from _states(f"{text}[{name!r}]", inner, wanted)


def _renamed(state: dict[str, Any], wanted: dict[str, Tensor]) -> list[tuple[str, str]]:
    """The layers of a checkpoint that a module has under another name, each with that: what they
    hold has the same names and shapes in the same order; empty where another one is left."""
    pairs = [each for each in zip([*state], [*wanted], strict=False) if each[0] != each[1]]
    heads = [
        (f"{old.rpartition('.')[0]}.", f"{new.rpartition('.')[0]}.")
        for old, new in pairs
        if old.rpartition(".")[2] == new.rpartition(".")[2]
    ]
    found = [*dict.fromkeys(heads)]
    names: dict[str, Any] = {}
    for name, value in state.items():
        for old, new in found:
            name = name.replace(old, new)
        names[name] = getattr(value, "shape", None)
    fits = names == {name: value.shape for name, value in wanted.items()}
    return found if fits and all(len(new) > 1 for _, new in found) else []


def _prefixes(
    site: Site, state: Any, wanted: dict[str, Tensor]
) -> Iterator[tuple[Source, ast.expr, str]]:
    """Texts of the program by which a prefix is looked for that no name of a checkpoint has, each
    with one that is nearly so, or with what is left of it; how much is cut, as all of it."""
    names = [name for name in state if isinstance(name, str)] if isinstance(state, dict) else []
    heads = {name.partition(".")[0] + "." for name in names}
    left = [name.removesuffix(own) for name, own in zip(names, wanted, strict=False)]
    rest = left[0] if len({*left}) == 1 and len(names) == len(wanted) else ""
    for source in site.program.texts:
        for node in source.nodes:
            asked = callee(node) in ("replace", "removeprefix", "startswith", "lstrip", "len")
            for text in node.args[:1] if asked and isinstance(node, ast.Call) else ():
                old = text.value if isinstance(text, ast.Constant) else None
                if isinstance(old, str) and not any(old in name for name in names):
                    close = difflib.get_close_matches(old, heads, 2, 0.7)
                    for near in (*close, *[old + rest] * bool(rest)):
                        yield source, text, f'"{near}"'
        for node in (n for n in source.nodes if isinstance(n, ast.Slice) and rest):
            number = getattr(node.lower, "value", None)
            if node.lower is not None and type(number) is int:
                yield source, node.lower, str(number + len(rest))


def within_sequence(site: Site, place: Place) -> Iterator[Candidate]:
    """A sequence of layers where one gives several parts or too many dimensions."""
    for frame in site.inner:
        whole, layer = frame.f_locals.get("self"), frame.f_locals.get("module")
        if not isinstance(whole, nn.Sequential) or frame.f_code.co_name != "forward":
            continue
        at = [id(each) for each in whole].index(id(layer))
        given = frame.f_locals.get("input")
        for call in place.calls() if isinstance(given, tuple) else ():
            if place.value(call.func) is whole:
                name, more = place.text(call.func), ", ".join(map(place.text, call.args))
                text = f"{name}[{at}:]({name}[:{at}]({more})[0])"
                yield place.replaced(0.5, (call, text))
        kinds = [type(each).__name__ for each in whole]
        for other in site.statements():
            for call in other.calls():
                if callee(call) != "Sequential" or list(map(callee, call.args)) != kinds:
                    continue
                part = call.args[at]
                if isinstance(given, tuple) and isinstance(whole[at - 1], nn.RNNBase):
                    yield _of_output(other.source, call.args[at - 1])
                elif isinstance(given, Tensor) and given.dim() > 2:
                    text = other.text(call.func)[: -len("Sequential")] + "Flatten()"
                    yield other.replaced(0.7, (part, f"{text}, {other.text(part)}"))


def of_functions(site: Site) -> Iterator[Candidate]:
    """Functions among the layers of a sequence, each in a module that calls it."""
    for source in site.program.texts if "is not a Module subclass" in site.text else ():
        calls = [n for n in source.nodes if isinstance(n, ast.Call)]
        calls = [n for n in calls if callee(n) in ("Sequential", "ModuleList")]
        parts = [a for call in calls for given in call.args for a in ast.walk(given)]
        pairs = [(n, f"Lambda({source.part(n)})") for n in parts if isinstance(n, ast.Lambda)]
        if pairs:
            yield Candidate(0.4, _with_class(source, _LAMBDA, *pairs))


_LAMBDA = """class Lambda(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


"""


def _of_output(source: Source, layer: Any) -> Candidate:
    """A layer as one of a class of its own, which gives the first of its parts alone."""
    name, kind = f"{callee(layer)}Output", source.part(layer.func)
    rows = (f"class {name}({kind}):", "    def forward(self, x):")
    head = "\n".join((*rows, "        return super().forward(x)[0]\n\n\n"))
    return Candidate(0.45, _with_class(source, head, (layer.func, name)))


def _with_class(source: Source, head: str, *pairs: tuple[Any, str]) -> tuple[Edit, ...]:
    """Nodes with another text, and a class before the first statement that holds one."""
    line = min(node.lineno for node, _ in pairs)
    top = next(row for row in source.tree.body if (row.end_lineno or 0) >= line)
    first = first_line(top)
    edits = spliced(source, pairs)
    if edits[0].first == first:
        return (replace(edits[0], text=head + edits[0].text), *edits[1:])
    return (*edits, lines_as(source, first, first, head + source.lines[first - 1]))


def chosen(site: Site, place: Place) -> Iterator[Candidate]:
    """A branch on a tensor as a choice between its elements."""
    if not re.search(
        r"data-dependent|Boolean value of Tensor|traced|calling \.item\(\)", site.text
    ):
        return
    branch = place.statement
    if isinstance(branch, ast.If) and len(branch.body) == 1:
        (one,) = branch.body
        after = place.block[place.block.index(branch) + 1 :]
        last = (*branch.orelse, *(after if isinstance(one, ast.Return) else []), branch)[0]
        head, value = _result(place, one)
        kept = bound_by(one) if last is branch else []
        other = (head, kept[0]) if kept else _result(place, last)
        if head == other[0] and len(branch.orelse) < 2:
            choice = f"torch.where({_of_tensors(place, branch.test)}, {value}, {other[1]})"
            text, end = f"{branch.col_offset * ' '}{head}{choice}", last.end_lineno or 0
            yield Candidate(0.4, (lines_as(place.source, branch.lineno, end, text),))
    if isinstance(branch, (ast.If, ast.While, ast.Assert)):
        test = branch.test.operand if isinstance(branch.test, ast.UnaryOp) else branch.test
        yield place.replaced(0.6, (test, f"({place.text(test)}).any()"))
    for node in place.parts():
        if isinstance(node, ast.IfExp):
            parts = ", ".join(_of_tensors(place, n) for n in (node.test, node.body, node.orelse))
            yield place.replaced(0.4, (node, f"torch.where({parts})"))


def kept(site: Site) -> Iterator[Candidate]:
    """A size that a method reads and that is another for what it builds next, kept: the name that
    it was read into, or an argument, times a number of the class that is built."""
    for place in site.statements() if re.search("channels|shape|size", site.text) else ():
        function, row = place.function, place.statement
        if function is None or function.name[:2] == "__" or is_return(row):
            continue
        rows = [n for n in ast.walk(function) if isinstance(n, ast.Assign)]
        bound = [name for each in rows for name in bound_by(each)]
        known = [name for m in site.running for name, v in vars(m).items() if type(v) is int]
        for name in dict.fromkeys(f"self.{name}" for name in known):
            if name in bound or name not in names_in(function):
                continue
            read = [own for each in rows if spelled(each.value) == name for own in bound_by(each)]
            copies = [own for own in read if own in bound_by(row) and bound.count(own) > 1]
            texts = copies if isinstance(row, ast.Assign) and spelled(row.value) != name else []
            if name in names_in(row) and not read:
                arguments = [each.arg for each in function.args.args[1:]]
                texts = difflib.get_close_matches(name, arguments, 2, 0.5)
                kinds = [(c.func, place.value(c.func)) for c in place.calls()]
                own = [(k, n) for k, v in kinds if isinstance(v, type) for n in vars(v).items()]
                numbers = [f"{place.text(k)}.{n}" for k, (n, v) in own if type(v) is int]
                texts += [f"{text} * {number}" for text in texts for number in numbers]
            for at, text in enumerate(texts):
                yield place.written(0.4 + 0.05 * at, f"{{}}\n{name} = {text}")


def also_branched(site: Site) -> Iterator[Candidate]:
    """A branch of a constructor taken too where an argument that it reads is not the default."""
    for source in site.program.texts if re.search("size|shape", site.text) else ():
        functions = [n for n in source.nodes if getattr(n, "name", "") == "__init__"]
        for function in (n for n in functions if isinstance(n, ast.FunctionDef)):
            names = [a.arg for a in function.args.args][-len(function.args.defaults) or None :]
            defaults = dict(zip(names, function.args.defaults, strict=False))
            for branch in (n for n in ast.walk(function) if isinstance(n, ast.If)):
                read = {name for row in branch.body for name in names_in(row)}
                for name in sorted((read & {*defaults}) - names_in(branch.test)):
                    if isinstance(branch.test, ast.Compare):
                        test = f"{source.part(branch.test)} or {name} != "
                        text = test + source.part(defaults[name])
                        yield Candidate(0.6, spliced(source, [(branch.test, text)]))


def _of_tensors(place: Place, node: ast.expr) -> str:
    """The text of an expression, its tensors not read as numbers."""
    return place.text(node).replace(".item()", "")


def _result(place: Place, statement: ast.stmt) -> tuple[str, str]:
    """What a statement begins with, up to the value that it returns or binds, and that value."""
    value: Any = getattr(statement, "value", None)
    if isinstance(statement, ast.AugAssign):
        name = place.text(statement.target)
        return f"{name} = ", ast.unparse(ast.BinOp(ast.Name(name), statement.op, value))
    text = place.text(value) if value is not None else ""
    return place.text(statement).removesuffix(text), text


def listed(site: Site, place: Place) -> Iterator[Candidate]:
    """What can be gone through once, as a list, where its length or a part of it is asked for."""
    if not re.search(r"has no len\(\)|not subscriptable", site.text):
        return
    for node in place.parts():
        asked = [*getattr(node, "args", [])[:1]] if callee(node) == "len" else []
        asked += [node.value] if isinstance(node, ast.Subscript) else []
        for each in asked:
            value = place.value(each)
            bound = site.binding(place, each)
            made = bound_value(bound, spelled(each))
            if value is not MISSING and not isinstance(value, Iterator):
                continue
            if bound is not None and made is not None:
                text = f"list({bound.text(made)})"
                yield replace(bound, distance=0.0).replaced(0.3, (made, text))
            elif isinstance(each, ast.Call):
                yield place.replaced(0.35, (each, f"list({place.text(each)})"))


def gone_through_as_it_was(site: Site) -> Iterator[Candidate]:
    """A list of what a loop goes through, which changes in its body."""
    place, changed = site.raising[0], r"(changed|mutated)\b.* during iteration"
    head = getattr(place.statement, "iter", None)
    if head is not None and re.search(changed, site.text):
        yield place.replaced(0.2, (head, f"list({place.text(head)})"))


def exchanged_names(site: Site, place: Place) -> Iterator[Candidate]:
    """Two names of a batch that changed places: class numbers and what has fractions."""
    target: Any = getattr(place.statement, "target", None)
    parts = target.elts if isinstance(target, ast.Tuple) else []
    values = [place.names().get(spelled(part)) for part in parts]
    if len(parts) == 2 and all(isinstance(each, Tensor) for each in values):
        whole, other = (value.dtype for value in values)  # type: ignore[union-attr]
        if whole == torch.int64 and other.is_floating_point:
            a, b = map(place.text, parts)
            yield replace(place, distance=0.0).replaced(0.6, (target, f"{b}, {a}"))


def unpacked(site: Site, place: Place) -> Iterator[Candidate]:
    """Results of several parts taken apart."""
    statement = place.statement
    if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
        if len(statement.value.elts) == 1 and "tuple" in site.text:
            yield place.replaced(0.4, (statement.value, place.text(statement.value.elts[0])))
        gradients = getattr(place.function, "name", "") == "backward"  # one for each argument
        for at, part in enumerate(statement.value.elts if not gradients else ()):
            yield place.replaced(0.9 + 0.1 * at, (statement.value, place.text(part)))
    loops = [n for n in ast.walk(statement) if isinstance(n, (ast.For, ast.comprehension))]
    for loop in loops if "'int' object is not iterable" in site.text else ():
        if type(place.value(loop.iter)) is int or callee(loop.iter) == "len":
            yield place.replaced(0.3, (loop.iter, f"range({place.text(loop.iter)})"))
    around = [p for p in site.raising if p.statement is statement] or [place]
    for loop in loops if "to unpack" in site.text else ():
        for node in (loop.iter, *getattr(loop.iter, "args", ())):  # of `zip`, `enumerate`
            known = any(isinstance(p.value(node), dict) for p in around)
            if known and isinstance(loop.target, ast.Tuple):
                yield place.replaced(0.2, (node, f"{place.text(node)}.items()"))
    target: ast.expr | None = None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.For):
        target = statement.target
    if isinstance(target, ast.Tuple) and "too many values to unpack" in site.text:
        parts, whole = [place.text(part) for part in target.elts], getattr(statement, "value", None)
        rows = place.value(whole) if whole is not None else MISSING
        for d, size in enumerate(rows.shape if isinstance(rows, Tensor) else ()):
            if whole is not None and size == len(parts):
                yield place.replaced(0.2, (whole, f"{place.text(whole)}.unbind({d})"))
        yield place.replaced(0.4 + place.distance, (target, f"{', '.join(parts)}, *_"))
        if not place.distance:
            read = dict.fromkeys(n for row in rows_of(statement) for n in _data_in(place, row))
            for name in (*(n for n in read if n not in parts), "_"):
                for at in reversed(range(len(parts))):
                    text = ", ".join((*parts[:at], name, *parts[at:]))
                    yield place.replaced(0.3 + 0.2 * (name == "_"), (target, text))
    if isinstance(target, ast.Tuple) and not place.distance:
        one = re.search("over a 0-d tensor|cannot unpack non-iterable", site.text)
        few = "not enough values" in site.text and site.told[-1]
        yield from _without_unread(place, target, 1 if one else int(few))
    nested = [e for e in getattr(target, "elts", []) if isinstance(e, ast.Tuple)]
    if isinstance(target, ast.Tuple) and nested and "to unpack" in site.text:
        each = [e.elts if isinstance(e, ast.Tuple) else [e] for e in target.elts]
        flat = ", ".join(place.text(part) for inner in each for part in inner)
        yield place.replaced(0.35, (target, flat))
        if isinstance(statement, ast.For) and len(each) == 2 and len(each[0]) == 1:
            text = f"enumerate({place.text(statement.iter)})"
            yield place.replaced(0.3, (statement.iter, text))
    called = callee(getattr(statement, "value", statement))  # an LSTM's state has two parts
    lstm = any(isinstance(vars(m)["_modules"].get(called), nn.LSTM) for m in site.modules)
    named = isinstance(target, ast.Tuple) and spelled(target.elts[-1]) not in ("", "_")
    if isinstance(target, ast.Tuple) and lstm and named:
        text = place.text(target.elts[-1])
        yield place.replaced(0.4, (target.elts[-1], f"({text}, _)"))
    if isinstance(target, ast.Tuple) and len(target.elts) > 2:  # a part has parts of its own
        first, *rest = map(place.text, target.elts)
        yield place.replaced(0.5, (target, f"{first}, ({', '.join(rest)})"))
    if target is None or not spelled(target) or spelled(target).startswith("self."):
        return
    value = place.value(ast.copy_location(ast.Name(spelled(target), ast.Load()), target))
    listed = isinstance(value, list) and isinstance(statement, ast.For)
    parted = re.search(rf"(?<![\w.]){spelled(target)}\[\d\]", place.source.text)
    named = hasattr(value, "_fields") or hasattr(value, "n_fields")  # as what `max` gives
    plain = listed or (isinstance(value, tuple) and not named)
    if plain and len(value) <= 4 and not parted:
        kinds = (Tensor, float) if "'tuple'" in site.text else Tensor
        if len(value) == 1 and isinstance(value[0], Tensor):  # a loader of one tensor
            text = f"({spelled(target)},)"
            yield replace(place, distance=0.0).replaced(0.3, (target, text))
        elif any(isinstance(each, kinds) for each in value):
            yield place.replaced(0.3, (target, spelled(target) + ", _" * (len(value) - 1)))


def in_rows(site: Site) -> Iterator[Candidate]:
    """Pairs that a tensor is made of, one below the other, as two rows, which are taken apart."""
    told = re.search(r"too many values to unpack \(expected (\d+)", site.text)
    calls = [(p, c) for p in site.statements() for c in p.calls() if told is not None and c.args]
    for place, call in calls:
        given = place.value(call.args[0])
        rows = given if isinstance(given, _LISTS) else []
        widths = {len(row) if isinstance(row, _LISTS) and len(row) else 0 for row in rows}
        if told is not None and widths == {int(told[1])}:
            cost = 0.35 - 0.2 * (place.function is not site.raising[0].function)
            yield replace(place, distance=0.0).replaced(cost, (call, f"{place.text(call)}.T"))


_LISTS = list, tuple, np.ndarray


def _without_unread(place: Place, target: ast.Tuple, count: int) -> Iterator[Candidate]:
    """A statement that binds as many names as there are values, without those that nothing
    reads."""
    names = (node for node in place.source.nodes if isinstance(node, ast.Name))
    own = (node for node in names if function_around(place.source, node) is place.function)
    read = {node.id for node in own if isinstance(node.ctx, ast.Load)}
    unread = [part for part in target.elts if spelled(part) not in read]
    more = len(target.elts) - count
    kept = [place.text(part) for part in target.elts if part not in unread[-more:]]
    if count and len(unread) >= more > 0:
        yield place.replaced(0.3, (target, ", ".join(kept)))


def _data_in(place: Place, statement: ast.stmt) -> list[str]:
    """The names of tensors without gradient that a statement reads."""
    read = [n.id for n in ast.walk(statement) if isinstance(n, ast.Name)]
    known = place.names()
    return [n for n in read if isinstance(v := known.get(n), Tensor) and not v.requires_grad]


def registered(site: Site, place: Place) -> Iterator[Candidate]:
    """Buffers and lists of layers that their module knows."""
    statement = place.statement
    if not isinstance(statement, ast.Assign):
        return
    target = statement.targets[0]
    made = place.value(target)
    if isinstance(target, ast.Attribute) and isinstance(made, Tensor):
        if not isinstance(made, nn.Parameter) and spelled(target) and _is_left_behind(site, made):
            value = place.text(statement.value)
            text = f'self.register_buffer("{target.attr}", {value})'
            yield place.replaced(0.0, (statement, text))
    listed = isinstance(statement.value, (ast.List, ast.ListComp))
    if listed or isinstance(statement.value, (ast.Dict, ast.DictComp)):
        for kind in ("Module", "Parameter"):
            text = f"torch.nn.{kind}{'List' if listed else 'Dict'}({place.text(statement.value)})"
            yield place.replaced(0.9, (statement.value, text))


def _is_left_behind(site: Site, value: Tensor) -> bool:
    """Whether a tensor may not have come with its module to another device, or dtype."""
    learned = {p.dtype for module in site.modules for p in module.parameters()}
    cast = len(learned) == 1 and value.is_floating_point() and value.dtype not in learned
    return "device" in site.text or (cast and "type" in site.text)


def _initialised(source: Source, node: ast.ClassDef, site: Site) -> Iterator[Candidate]:
    for method in node.body:
        begins = ("__init__", "__post_init__")  # of a dataclass
        if isinstance(method, ast.FunctionDef) and method.name in begins:
            written = "\n".join(map(ast.unparse, method.body))
            if "super()" not in written and "__init__(self" not in written:
                line, column = method.body[0].lineno - 1, method.body[0].col_offset
                text = f"{source.lines[line - 1]}\n{' ' * column}super().__init__()"
                edit = lines_as(source, line, line, text)
                yield Candidate(0.3, (edit,))
            for statement in method.body:
                if isinstance(statement, ast.Assign) and "param" in site.text:
                    own = Place(source, statement, site.raising[0].frame, 0.2)
                    yield from registered(site, own)


def computed_property(site: Site) -> Iterator[Candidate]:
    """No value for an attribute that the class computes."""
    told = re.search(r"property '(\w+)' of .* has no setter", site.text)
    for place in site.raising[:1] if told is not None else ():
        if told is not None and f"self.{told[1]}" in bound_by(place.statement):
            yield place.written(0.25, "" if len(place.block) > 1 else "pass")


def numbered(site: Site) -> Iterator[Candidate]:
    """A name for the number that ``enumerate`` gives with what it goes through, where a loop has
    names for the parts of that alone."""
    places = [p for p in (*site.raising, *site.bindings) if isinstance(p.statement, ast.For)]
    for place in places:
        loop: Any = place.statement
        names = getattr(loop.target, "elts", [])
        if callee(loop.iter) != "enumerate" or len(names) < 2:
            continue
        number, parts = place.value(names[0]), place.value(names[1])
        pair = type(number) is int and isinstance(parts, (list, tuple)) and len(names) == 2
        if (pair and len(parts) == len(names)) or (len(names) > 2 and "to unpack" in site.text):
            read = {n.id for n in place.source.nodes if isinstance(n, ast.Name)}
            name = next((each for each in ("i", "step", "number") if each not in read), "_")
            text = f"{name}, ({', '.join(map(place.text, names))})"
            yield replace(place, distance=0.0).replaced(0.25, (loop.target, text))


def from_the_beginning(site: Site) -> Iterator[Candidate]:
    """A file in memory read from its beginning, after it was written."""
    for place in site.raising[:1] if isinstance(site.error, EOFError) else ():
        for given in (a for call in place.calls() for a in call.args):
            if isinstance(place.value(given), io.IOBase):
                yield place.written(0.2, f"{place.text(given)}.seek(0)\n{{}}")


def gradients_until_the_next(site: Site) -> Iterator[Candidate]:
    """Gradients cleared before the next are computed, not right after the step: they are read
    between."""
    if not re.search(r"'NoneType' object has no|NoneType", site.text) or ".grad" not in site.raised:
        return
    for place in site.statements():
        rows, at = place.block, place.block.index(place.statement)
        if callee(getattr(place.statement, "value", place.statement)) != "zero_grad":
            continue
        before = [row for row in rows[:at] if isinstance(row, ast.Expr) and "value" in row._fields]
        first = next((row for row in before if callee(row.value) == "backward"), None)
        if first is not None and isinstance(place.statement, ast.Expr):
            gone = place.written(0.3, "").edits
            text = f"{place.text(place.statement)}\n{{}}"
            yield Candidate(0.3, (*gone, *replace(place, statement=first).written(0.0, text).edits))


def by_position_again(site: Site) -> Iterator[Candidate]:
    """A layer given its input without the keyword, where a hook reads what came without."""
    hooked = any("hook" in frame.f_code.co_name for frame, _ in site.frames[:1])
    for place in site.raising[1:2] if hooked and isinstance(site.error, IndexError) else ():
        for call in (c for c in place.calls() if c.keywords and not c.args):
            first = call.keywords[0]
            if isinstance(place.value(call.func), nn.Module) and first.arg:
                yield replace(place, distance=0.0).replaced(0.3, (first, place.text(first.value)))
