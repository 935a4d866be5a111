"""What an optimizer and its schedule are given: parameters, their groups and gradients, a state."""

from __future__ import annotations

import ast
import difflib
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from nanlab.explanations.edits.arguments import near_parameters
from nanlab.explanations.site import (
    Candidate,
    Function,
    Place,
    Site,
    bound_by,
    bound_value,
    callee,
    own_nodes,
    rows_of,
    spelled,
    spliced,
    unread,
    with_more,
)
from nanlab.explanations.trial import Source


def in_one_group(site: Site) -> Iterator[Candidate]:
    """The parameters of a whole model without those of its parts that have a group of their own."""
    if "more than one parameter group" not in site.text:
        return
    nodes = [(p, n) for p in site.statements() for n in p.parts()]
    owners = [(p, n) for p, n in nodes if callee(n) == "parameters"]
    modules = [(p, n, p.value(n.func.value)) for p, n in owners]  # type: ignore[attr-defined]
    for place, node, whole in modules:
        others = {id(module) for _, _, module in modules if module is not whole}
        parts = [*whole.named_children()] if isinstance(whole, nn.Module) else []
        parts = [(name, part) for name, part in parts if any(True for _ in part.parameters())]
        left = [name for name, part in parts if id(part) not in others]
        if len(left) < len(parts):
            head = place.text(node)[: -len(".parameters()")]
            heads = (f"{head}[{n}]" if n.isdigit() else f"{head}.{n}" for n in left)
            lists = (f"*{text}.parameters()" for text in heads)
            many = f"[{', '.join(lists)}]"
            yield place.replaced(0.4, (node, many if len(left) != 1 else many[2:-1]))


def chosen_by_name(site: Site) -> Iterator[Candidate]:
    """The word by which a program chooses parameters, as a part of the model is called: none of
    them has it in its name."""
    if not re.search("more than one parameter group|empty parameter list", site.text):
        return
    models = [v for v in site.frames[-1][0].known.values() if isinstance(v, nn.Module)]
    models += [v for f, _ in site.frames for v in f.f_locals.values() if isinstance(v, nn.Module)]
    known = {name for model in models for name, _ in model.named_parameters()}
    parts = dict.fromkeys(n for m in models for n, p in m.named_children() if [*p.parameters()])
    for source in site.program.texts:
        named = [n for n in source.nodes if isinstance(n, ast.Attribute) and n.attr in parts]
        of_model = [n for n in named if spelled(n.value) != "self"]
        put = [n.attr for n in of_model if isinstance(n.ctx, ast.Store)]
        read = [n.attr for n in of_model]
        # the part that the program has put there is its own; else the last, mostly a head
        last = [*reversed(parts)]
        likely = sorted(last, key=lambda n: (n not in put, n not in read))
        for node in source.nodes:
            words: list[ast.expr] = []
            if callee(node) == "startswith":
                words = node.args  # type: ignore[attr-defined]
            elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
                words = [node.left]
            for word in words:
                text = getattr(word, "value", None)
                if isinstance(text, str) and not any(text in name for name in known):
                    for at, name in enumerate(likely):
                        dot = "." * text.endswith(".")
                        pair = (word, f'"{name}{dot}"')
                        yield Candidate(0.25 + 0.02 * at, spliced(source, [pair]))


def listed_once(site: Site, place: Place) -> Iterator[Candidate]:
    """A list of what an iterator gives that is read more than once, where it is made."""
    value, iterator = getattr(place.statement, "value", None), place.result()
    names = bound_by(place.statement) if isinstance(iterator, Iterator) else []
    if isinstance(value, (ast.Call, ast.GeneratorExp)) and len(names) == 1:
        block = place.function or place.source.tree
        read = [n for n in ast.walk(block) if spelled(n) == names[0]]
        if len(read) > 2:  # where it is bound, too
            text = place.text(value).strip()
            own = replace(place, distance=0.0)
            inner = text[1:-1] if isinstance(value, ast.GeneratorExp) else text
            yield own.replaced(0.3, (value, f"list({inner})"))


def without_others(site: Site) -> Iterator[Candidate]:
    """The parameters of a group without those that another has too: those that a test chooses, by
    that of the other; a list, by the list of the other."""
    if "more than one parameter group" not in site.text:
        return
    for source in site.program.texts:
        tests = list(_choosing(source))
        for (names, a), (same, b) in itertools.combinations(tests, 2):
            if names != same:
                continue
            first, second = (source.part(each) for each in (a, b))
            open_ = [each for each in (a, b) if _isnegated(each)]
            if len(open_) == 1:  # the exceptions are written out in the other
                rest = first if open_[0] is b else second
                yield Candidate(0.25, spliced(source, [(open_[0], negated(rest))]))
            text = f"{_loose(b, second)} and {negated(first)}"
            yield Candidate(0.35, spliced(source, [(b, text)]))
        dicts = [n for n in source.nodes if isinstance(n, ast.Dict)]
        chosen = [n for n in source.nodes if isinstance(n, ast.ListComp) and n.generators[0].ifs]
        keys = [pair for n in dicts for pair in zip(n.keys, n.values, strict=True)]
        lists = [v for key, v in keys if getattr(key, "value", "") == "params" and spelled(v)]
        whole = [v for key, v in keys if getattr(key, "value", "") == "params" and _is_whole(v)]
        for own, listed in itertools.product(whole, chosen):
            old = source.part(listed.generators[0].ifs[0])
            text = source.part(listed).replace(f"if {old}", f"if {negated(old)}")
            yield Candidate(0.3, spliced(source, [(own, text)]))
        for own, other in itertools.combinations(lists, 2):
            apart = f"all(p is not q for q in {source.part(other)})"
            kept = f"[p for p in {source.part(own)} if {apart}]"
            yield Candidate(0.4, spliced(source, [(own, kept)]))


def without_tied(site: Site) -> Iterator[Candidate]:
    """The parameters that two modules share in the first of their groups alone; without the group
    of the other where nothing is left of it."""
    for source in site.program.texts if "more than one parameter group" in site.text else ():
        for whole in (n for n in source.nodes if isinstance(n, ast.List)):
            rows = [n for n in whole.elts if isinstance(n, ast.Dict) or callee(n) == "dict"]
            own = [next((v for k, v in _items(n) if k == "params"), None) for n in rows]
            known = [_module_of(site.raising, n) for n in own]
            for (_, a, x), (row, b, y) in itertools.combinations(
                zip(rows, own, known, strict=True), 2
            ):
                if x is None or y is None or a is None or b is None:
                    continue
                first, second = ({id(p) for p in m.parameters()} for m in (x, y))
                nested = x is not y and ({x} & {*y.modules()} or {y} & {*x.modules()})
                if nested or not first & second:
                    continue
                if second <= first:
                    kept = [n for n in whole.elts if n is not row]
                    inner = source.part(whole)
                    text = inner.replace(source.part(row), "", 1)
                    text = re.sub(r",\s*(?=,)|(?<=\[),\s*", "", text)
                    yield Candidate(0.25, spliced(source, [(whole, text)] * bool(kept)))
                else:
                    apart = f"all(p is not q for q in {source.part(a)})"
                    kept_of = f"[p for p in {source.part(b)} if {apart}]"
                    yield Candidate(0.25, spliced(source, [(b, kept_of)]))


def _items(node: ast.expr) -> list[tuple[Any, ast.expr]]:
    """The keys of a dict as it is written, with their values."""
    if not isinstance(node, ast.Dict):
        return [(k.arg, k.value) for k in getattr(node, "keywords", [])]
    pairs = zip(node.keys, node.values, strict=True)
    return [(getattr(key, "value", None), value) for key, value in pairs]


def _module_of(places: list[Place], node: Any) -> nn.Module | None:
    """The module whose parameters an expression gives, also as a list; None: it gives others."""
    while callee(node) in ("list", "tuple") and len(node.args) == 1:
        node = node.args[0]
    owners = [p.value(node.func.value) for p in places if callee(node) == "parameters"]
    return next((owner for owner in owners if isinstance(owner, nn.Module)), None)


def of_those_that_learn(site: Site) -> Iterator[Candidate]:
    """An optimizer of what is not frozen, where a group of what was frozen is added to it."""
    place = site.raising[0]
    if "more than one parameter group" not in site.text:
        return
    for call in (c for c in place.calls() if callee(c) == "add_param_group"):
        owner = getattr(call.func, "value", call)
        bound = site.binding(place, owner)
        made: Any = bound_value(bound, spelled(owner))
        for node in ast.walk(made) if made is not None else ():
            if (
                bound is not None
                and callee(node) == "parameters"
                and _FROZEN.search(place.source.text)
            ):
                text = f"[p for p in {bound.text(node)} if p.requires_grad]"
                yield replace(bound, distance=0.0).replaced(0.28, (node, text))


def as_group(site: Site) -> Iterator[Candidate]:
    """A dict of what a group has, where an optimizer was given its parameters alone."""
    place = site.raising[0]
    refused = "param_group must be a dict" in site.text or "add_param_group() got" in site.text
    for call in (c for c in place.calls() if callee(c) == "add_param_group") if refused else ():
        given = call.args[0] if call.args else None
        rows = getattr(given, "elts", [])
        if len(rows) == 1 and isinstance(rows[0], ast.Dict):  # it is one already
            yield place.replaced(0.2, (given or call, place.text(rows[0])))
        elif given is not None and not isinstance(given, ast.Dict):
            items = [("params", given), *((k.arg, k.value) for k in call.keywords)]
            text = ", ".join(f'"{name}": {place.text(value)}' for name, value in items)
            yield place.replaced(0.2, (call, f"{place.text(call.func)}({{{text}}})"))


_FROZEN = re.compile(r"requires_grad(_\(| = )False|requires_grad_\(")


def with_key_of_others(site: Site) -> Iterator[Candidate]:
    """A key that a group lacks and others of its list have: with their value, or as it is nearly
    written there."""
    key = site.error.args[0] if isinstance(site.error, KeyError) and site.error.args else None
    for source in site.program.texts if isinstance(key, str) else ():
        for whole in (n for n in source.nodes if isinstance(n, (ast.List, ast.Tuple))):
            rows = [n for n in whole.elts if isinstance(n, ast.Dict)]
            having = [v for n in rows for k, v in _items(n) if k == key]
            lacking = [n for n in rows if n.keys and key not in dict(_items(n))]
            pairs: list[tuple[ast.AST, str]] = []
            near: list[tuple[ast.AST, str]] = []
            for row in lacking if having else ():
                words = [k for k in row.keys if isinstance(getattr(k, "value", None), str)]
                names = [k.value for k in words]  # type: ignore[union-attr]
                close = difflib.get_close_matches(str(key), names, 1, 0.6)
                known = [k for k in words if getattr(k, "value", None) in close]
                near += [(k, f'"{key}"') for k in known if k is not None]
                head = source.part(row)[:-1].rstrip().rstrip(",")
                pairs.append((row, f'{head}, "{key}": {source.part(having[0])}}}'))
            yield Candidate(0.28, spliced(source, near))
            if all(isinstance(each, ast.Constant) for each in having):
                yield Candidate(0.32, spliced(source, pairs))


def with_parameter(site: Site) -> Iterator[Candidate]:
    """A parameter of a function in the dict that it makes, which lacked it where it was looked up:
    likely one that nothing reads, under its name or a like one."""
    key = site.error.args[0] if isinstance(site.error, KeyError) and site.error.args else None
    for source in site.program.texts if isinstance(key, str) else ():
        for function in (n for n in source.nodes if isinstance(n, Function)):
            idle = unread(function)
            taken = {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}
            names = [str(key)] if key in taken else near_parameters(str(key), idle, 0.6)
            for node in (n for n in own_nodes(function) if isinstance(n, ast.Dict | ast.Call)):
                known = dict(_items(node)) if callee(node) in ("", "dict") else {}
                for name in names[:1] if known and key not in known else ():
                    more = f'"{key}": {name}' if isinstance(node, ast.Dict) else f"{key}={name}"
                    pair = with_more(source, node, more)
                    yield Candidate(0.4 - 0.15 * (name in idle), spliced(source, [pair]))


def _choosing(source: Source) -> Iterator[tuple[str, ast.expr]]:
    """The tests by which parameters are put into lists, with what they choose among."""
    for node in source.nodes:
        if isinstance(node, ast.ListComp):
            (head, *more) = node.generators
            if len(head.ifs) == 1 and not more and _goes_through(source, head.iter):
                yield f"{ast.unparse(head.target)} of {ast.unparse(head.iter)}", head.ifs[0]
        if isinstance(node, ast.For) and _goes_through(source, node.iter):
            for row in rows_of(node):
                if isinstance(row, ast.If) and not row.orelse and ".append(" in ast.unparse(row):
                    yield f"{ast.unparse(node.target)} of {ast.unparse(node.iter)}", row.test


def _goes_through(source: Source, node: ast.expr) -> bool:
    """Whether an expression gives parameters: itself, or by what its name was bound to."""
    rows = [n for n in source.nodes if isinstance(n, ast.Assign) and spelled(node)]
    made = [source.part(n.value) for n in rows if spelled(n.targets[0]) == spelled(node)]
    return any("parameters()" in text for text in (source.part(node), *made))


def _is_whole(node: ast.expr) -> bool:
    """Whether an expression names all parameters of a module."""
    comprehension = isinstance(node, ast.ListComp) and not node.generators[0].ifs
    return comprehension or callee(node) == "parameters"


def _isnegated(test: ast.expr) -> bool:
    inner = isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.NotIn, ast.IsNot))
    return inner or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))


def negated(text: str) -> str:
    """The opposite of a test."""
    if text[:4] == "not ":
        return text[4:]
    return f"not {_loose(ast.parse(text, mode='eval').body, text)}"


def _loose(test: ast.expr, text: str) -> str:
    return f"({text})" if isinstance(test, (ast.BoolOp, ast.Compare, ast.IfExp)) else text


def without_groups(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """The parameters of all groups in one list, for an optimizer that takes no groups."""
    for given in call.args[:1] if "per-parameter options" in site.text else ():
        dicts = [n for n in getattr(given, "elts", []) if isinstance(n, ast.Dict)]
        pairs = [pair for each in dicts for pair in zip(each.keys, each.values, strict=True)]
        own = [v for key, v in pairs if getattr(key, "value", "") == "params"]
        text = ", ".join(f"*{place.text(each)}" for each in own)
        yield place.replaced(0.3, (given, f"[{text}]"))


def in_single_precision(site: Site) -> Iterator[Candidate]:
    """Models and data left in single precision, where a scaler refuses half of it."""
    for source in site.program.texts if "unscale FP16" in site.text else ():
        calls = [n for n in source.nodes if callee(n) == "half" and isinstance(n, ast.Call)]
        pairs = [(n, source.part(n.func)[: -len(".half")]) for n in calls]
        yield Candidate(0.3, spliced(source, [*pairs]))


def that_have_one(site: Site, place: Place) -> Iterator[Candidate]:
    """Gradients read where there are some: of each parameter that has one."""
    owners = [n.value for n in place.parts() if isinstance(n, ast.Attribute) and n.attr == "grad"]
    for node in owners if "'NoneType'" in site.text else ():
        test, row = f"{place.text(node)}.grad is not None", place.statement
        heads = [n for p in place.parts() for n in getattr(p, "generators", [])]
        own = [n for n in heads if spelled(n.target) == spelled(node)]
        some = any(p.grad is not None for m in site.modules for p in m.parameters())
        if own and not own[-1].ifs and some:  # else the loss has not reached the model
            text = f"{place.text(own[-1].iter)} if {test}"
            yield replace(place, distance=0.0).replaced(0.6, (own[-1].iter, text))
        elif "zero_()" in place.text(row) and isinstance(row, ast.Expr):
            yield place.written(0.45, f"if {test}:\n    {place.text(row)}")


def given_to_its_schedule(site: Site) -> Iterator[Candidate]:
    """An optimizer that the program has, where a schedule was given something else."""
    place = site.raising[0]
    own = getattr(place.frame.f_locals.get("self"), "__dict__", {})
    known = {**place.names(), **{f"self.{name}": value for name, value in own.items()}}
    names = [name for name, value in known.items() if isinstance(value, torch.optim.Optimizer)]
    for call in place.calls() if "is not an Optimizer" in site.text else ():
        named = [k.value for k in call.keywords if k.arg == "optimizer"]
        for node in (named or call.args)[:1]:
            for later, name in enumerate(reversed(names)):
                if not isinstance(place.value(node), torch.optim.Optimizer):
                    yield place.replaced(0.3 + 0.02 * later, (node, name))


_LENGTHS = ("total_iters", "T_max", "T_0")  # how many steps a schedule takes


def one_after_the_other(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """The steps at which each of several schedules ends, by how many it takes."""
    ends = [k.value for k in call.keywords if k.arg == "milestones"] or call.args[2:3]
    if "milestone" not in site.text or callee(call) != "SequentialLR" or not ends:
        return
    given = [k.value for k in call.keywords if k.arg == "schedulers"] or call.args[1:2]
    for whole in given:
        parts = getattr(
            bound_value(site.binding(place, whole), spelled(whole)) or whole, "elts", []
        )
        made = [bound_value(site.binding(place, n), spelled(n)) or n for n in parts]
        told = [{k.arg: k.value for k in getattr(n, "keywords", [])} for n in made]
        steps = [next((k[n] for n in _LENGTHS if n in k), None) for k in told[:-1]]
        texts = [place.text(n) for n in steps if n is not None]
        if texts and len(texts) == len(steps):
            sums = (" + ".join(texts[: at + 1]) for at in range(len(texts)))
            yield place.replaced(0.3, (ends[0], f"[{', '.join(sums)}]"))


def resumed(site: Site) -> Iterator[Candidate]:
    """The state of an optimizer, loaded before a schedule goes on with it; without one, the rate
    that the schedule begins with."""
    place = site.raising[0]
    for call in place.calls() if "'initial_lr' is not specified" in site.text else ():
        given = [*call.args, *(k.value for k in call.keywords if k.arg == "optimizer")][:1]
        optimizer = place.text(given[0]) if given else "optimizer"
        for text in _states_in(place):
            yield place.written(0.25, f"{optimizer}.load_state_dict({text})\n{{}}")
        rates = 'group.setdefault("initial_lr", group["lr"])'
        yield place.written(0.45, f"for group in {optimizer}.param_groups:\n    {rates}\n{{}}")


def of_each_batch(site: Site) -> Iterator[Candidate]:
    """The steps of a schedule that is stepped after each batch, where it was told the epochs, or
    the batches of one of them."""
    for place in site.statements() if "number of total steps is" in site.text else ():
        for call in (c for c in place.calls() if "OneCycleLR" in callee(c)):
            given = {k.arg: k.value for k in call.keywords}
            for at, loader in enumerate(_loaders(site, place)):
                own = replace(place, distance=0.02 * at)
                if (steps := given.get("total_steps")) is not None:
                    made = bound_value(site.binding(place, steps), spelled(steps))
                    known = [ast.unparse(n) for n in (steps, made) if n is not None]
                    counted = any(f"len({loader})" in text for text in known)
                    whole = [f"{place.whole(steps)} * len({loader})"]
                    for text in site.all_rounds if counted else whole:
                        yield own.replaced(0.3, (steps, text))
                if (steps := given.get("steps_per_epoch")) is not None:
                    bound = site.binding(place, steps)
                    made = bound_value(bound, spelled(steps))
                    if bound is not None and isinstance(made, ast.BinOp):  # they were counted
                        own, steps = replace(bound, distance=own.distance), made
                    yield own.replaced(0.3, (steps, f"len({loader})"))


def _loaders(site: Site, place: Place) -> Iterator[str]:
    """The loaders that a statement can read: of the function around it, of its object, of all."""
    around = place.function
    name, frames = getattr(around, "name", ""), [frame for frame, _ in site.frames]
    for each in around.args.args if around is not None else ():
        own = [at.value(given) for at, given in site.handed(place, each.arg)]
        own += [f.f_locals.get(each.arg) for f in frames if f.f_code.co_name == name]
        if any(isinstance(value, DataLoader) for value in own):
            yield each.arg
    for frame in frames:
        for name, value in getattr(frame.f_locals.get("self"), "__dict__", {}).items():
            if isinstance(value, DataLoader) and around is not None:
                yield f"self.{name}"
    for name, value in site.frames[-1][0].known.items():
        if isinstance(value, DataLoader):
            yield name


def of_other_groups(site: Site, place: Place) -> Iterator[Candidate]:
    """A state of other parameters left out: it says nothing of those that there are."""
    called = callee(getattr(place.statement, "value", place.statement))
    if "loaded state dict" in site.text and called == "load_state_dict":
        yield place.written(1.2, "pass" if len(place.block) == 1 else "")


def _states_in(place: Place) -> Iterator[str]:
    """The states of optimizers among the names that a statement sees, and in their dicts."""

    def seen(text: str, value: Any, depth: int) -> Iterator[str]:
        if isinstance(value, dict) and {"state", "param_groups"} <= value.keys():
            yield text
        elif isinstance(value, dict) and depth:
            for key, inner in value.items():
                quoted = f'"{key}"' if isinstance(key, str) else repr(key)
                yield from seen(f"{text}[{quoted}]", inner, depth - 1)

    for name, value in place.names().items():
        if name[0] != "_":
            yield from seen(name, value, 2)
