"""Options switched, given or left out, and how often something is called."""

from __future__ import annotations

import ast
import inspect
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from types import ModuleType
from typing import Any

import torch
from torch import nn

from nanlab.explanations.edits.arguments import near_parameters, without_keys
from nanlab.explanations.edits.forms import IGNORED, ignored
from nanlab.explanations.site import (
    MISSING,
    Candidate,
    Place,
    Site,
    Tensor,
    bound_by,
    bound_value,
    callee,
    elements,
    function_around,
    is_whole,
    number_of,
    signature,
    spelled,
    spliced,
    with_more,
)

# A checkpoint that fits, but for layers that it or the module has and the other has not.
_PARTIAL = re.compile(
    r"(?s)^Error\(s\) in loading(?!.*size mismatch)(?!.*Missing.*Unexpected|.*Unexpected.*Missing)"
)


# Complex numbers that are read as two numbers each.
_PARTS = re.compile(r"\[\.\.\., 0\]|(sum|norm|unbind)\((dim=)?-1")


# Switches that silence an error and leave its cause, or are out of use.
_NO_CURES = (
    "bias enabled requires_grad create_graph materialize_grads strict size_average reduce affine"
    " retain_graph track_running_stats training is_grads_batched full_graph drop_last"
    " differentiable capturable maximize foreach fused recurse raise_exception groups"
    " elementwise_affine descending largest sorted reverse stable is_reference"
).split()


# A switch that is on for good: off, it recomputes without looking whether it is the same.
_ALONE = ("use_reentrant", False)


# Sizes that do not fit because one of two tensors has a dimension less.
_RANKS = r"must match the size|unbatched|\d-?D\b"


def options(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """A call with other options."""
    function = place.value(call.func)
    if function is MISSING:
        return
    own = {k.arg: k for k in call.keywords}
    others = (k for n in place.source.nodes if isinstance(n, ast.Call) for k in n.keywords)
    plain = (k for k in others if isinstance(k.value, ast.Constant) or _is_told(site, place, k))
    elsewhere = {k.arg: place.text(k.value) for k in plain}
    for at, (name, default) in enumerate(signature(function).items()):
        if name not in own and at >= len(call.args):
            for value in _handed_on(site, place, function, name) if default is None else ():
                yield place.added(0.2 - place.distance / 2, call, f"{name}={value}")
            for value in _given(site, place, name, default is None and isinstance(function, type)):
                yield place.added(0.8, call, f"{name}={value}")
            other = elsewhere.get(name)
            if other not in (None, repr(default)) and name not in _NO_CURES:
                asked = other.isdigit() and (int(other), default) in site.confronted
                yield place.added(0.6 - 0.2 * asked, call, f"{name}={other}")
                if _is_named(site, name):
                    yield from _in_all_alike(place, call, f"{name}={other}")
        given = own.get(name)
        lacks = name == "create_graph" and "does not require grad" in site.text
        partial = _PARTIAL.search(site.text) is not None or "strict=False" in site.text
        lacks = lacks or (name == "strict" and partial)
        alone = len(call.args) > 1 and isinstance(place.value(call.args[1]), Tensor)
        if name == "allow_unused" and alone:  # of nothing else would there be a gradient
            continue
        switch = given is not None and isinstance(getattr(given.value, "value", None), bool)
        told = re.search(rf"\b{re.escape(name)}\W*(=|set to )\W*(True|False)\b", site.text)
        apart = given is None and not isinstance(default, bool) and name not in _NO_CURES
        if told is not None and apart:
            yield place.added(0.3, call, f"{name}={told[2]}")
            if name == "return_complex" and _PARTS.search(place.source.text):
                more = f"{place.text(call)[:-1]}, {name}=True)"
                yield place.replaced(0.25, (call, f"torch.view_as_real({more})"))
        elif (isinstance(default, bool) or switch) and (lacks or name not in _NO_CURES):
            kept = name == "keepdim" and re.search(_RANKS, site.text) is not None
            named = 0.6 if name in site.text else 0.45 * kept
            if given is None:
                yield place.added(0.9 - named, call, f"{name}={not default}")
            elif isinstance(given.value, ast.Constant) and (name, given.value.value) != _ALONE:
                yield place.replaced(1.5 - named, (given.value, repr(not given.value.value)))
        elif isinstance(default, str) and re.search(rf"\b{name}\b", site.text) and name not in own:
            for word in reversed(re.findall(r"'(\w+)'", site.text)):
                yield place.added(0.5, call, f"{name}={word!r}")
        elif default == 0 and name.endswith("padding") and name not in own:
            if re.search("size|shape|dimension", site.text):
                cost = 0.9 - 0.1 * (name != "padding") + 0.7 * bool(site.running)
                yield place.added(cost, call, f"{name}=1")
        elif name == "dim" and default == 0 and name not in own and at >= len(call.args):
            stacked = 0.2 * (callee(call) == "stack")
            at_stack = replace(place, distance=0.0) if stacked else place
            for far, number in enumerate((-1, 1) if "size" in site.text else ()):
                yield at_stack.added(0.7 - stacked + 0.05 * far, call, f"dim={number}")
    yield from _larger(site, place, call)
    for keyword in call.keywords:
        if keyword.arg is not None and keyword.arg in site.text:
            parts = set(keyword.arg.split("_"))
            for other, default in signature(function).items():
                if default is None and parts & set(other.split("_")) and other not in own:
                    shown = ignored(place, keyword.value) if IGNORED.search(other) else ""
                    text = f"{other}={shown[1:-1] or place.text(keyword.value)}"
                    yield place.replaced(0.8, (keyword, text))
            rest = [place.text(a) for a in call.args]
            rest += [place.text(k) for k in call.keywords if k is not keyword]
            text = f"{place.text(call.func)}({', '.join(rest)})"
            cost = 1.3 if not place.distance else 2.0
            purpose = isinstance(place.value(keyword.value), (Tensor, list, dict))
            cost += 1.5 * purpose
            yield place.replaced(cost, (call, text))
            for near in near_parameters(keyword.arg, signature(function), 0.5):
                if near != keyword.arg and "keyword" in site.text:
                    yield place.replaced(0.4, (keyword, f"{near}={place.text(keyword.value)}"))


def _is_named(site: Site, name: str) -> bool:
    """Whether the message has the name of an option."""
    return re.search(rf"\b{name}\b", site.text) is not None


def _is_told(site: Site, place: Place, given: ast.keyword) -> bool:
    """Whether the message has the option of another call, which can be given here as it is there: a
    number, or a name of the same function."""
    if given.arg is None or not _is_named(site, given.arg):
        return False
    value = place.value(given.value)
    around = place.function is not None and function_around(place.source, given) is place.function
    return type(value) is int or (around and value is MISSING and bool(spelled(given.value)))


def _in_all_alike(place: Place, call: ast.Call, more: str) -> Iterator[Candidate]:
    """All calls of a function that give it as many arguments, with one more."""
    calls = [n for n in place.source.nodes if isinstance(n, ast.Call)]
    alike = [n for n in calls if ast.dump(n.func) == ast.dump(call.func)]
    alike = [n for n in alike if len(n.args) == len(call.args)]
    if len(alike) > 1:
        pairs = [with_more(place.source, n, more) for n in alike]
        yield replace(place, distance=0.0).replaced(0.5, *pairs)


def _plain_attribute(made: object, name: str) -> Any:
    """An attribute, or a property of what only holds settings; those of modules may do anything."""
    value = inspect.getattr_static(made, name, None)
    if isinstance(value, property) and not isinstance(made, nn.Module):
        with warnings.catch_warnings(), suppress(Exception):
            warnings.simplefilter("ignore")
            return value.__get__(made)
    return value


def _larger(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """A size that need not be given, as large as what the operands need."""
    function, own = place.value(call.func), {k.arg for k in call.keywords}
    if isinstance(function, type) and "self" not in place.names():
        made, known = place.result(), signature(function)
        plain = isinstance(made, function) and not isinstance(made, Tensor)
        if isinstance(made, nn.Module):
            plain = plain and "_modules" in vars(made)  # it was initialised
        more_names = dir(made) if plain else ()
        for name in dict.fromkeys([*known, *(n for n in more_names if n[0] != "_")]):
            size = known.get(name, inspect.Parameter.empty)
            if size is inspect.Parameter.empty:
                size = _plain_attribute(made, name) if plain else None
            if name in own or type(size) is not int or size < 2:
                continue
            own_place = replace(place, distance=0.0)
            for at, number in enumerate(n for n in site.sizes[:8] if n > size):
                if (size, number) in site.looked_up:
                    yield own_place.added(0.7, call, f"{name}={number}")
                    for words in _words(place, call, number):
                        yield own_place.added(0.65, call, f"{name}=len({words})")
                elif number not in site.batch and (size in site.told or name not in known):
                    yield place.added(0.9 + 0.02 * at, call, f"{name}={number}")


def _words(place: Place, call: ast.Call, least: int) -> Iterator[str]:
    """The names of what has a word for each of at least so many classes, and of which the call is
    told no other number: not those of a vocabulary."""
    given = [keyword.value for keyword in call.keywords]
    counts = {n for n in map(place.value, given) if type(n) is int}
    for name, value in place.names().items():
        words = (*value, *value.values()) if isinstance(value, dict) else value
        listed = isinstance(words, (list, tuple)) and any(isinstance(word, str) for word in words)
        told = f"len({name})" in map(place.text, given)
        if name[0] != "_" and listed and len(value) >= least and len(value) not in counts:
            yield from () if told else (name,)


def counted(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """How often the program's loops run, for an argument that the message speaks of: where that
    was counted, if its name says so, else where it is given."""
    for keyword in call.keywords:
        words = [word for word in (keyword.arg or "").split("_") if len(word) > 4]
        name, made = spelled(keyword.value), site.binding(place, keyword.value)
        steps = site.all_rounds if "total" in words else []
        for text in (*steps, *site.rounds) if any(word in site.text for word in words) else ():
            value = bound_value(made, name)
            if made is not None and value is not None and any(word in name for word in words):
                yield replace(made, distance=place.distance).replaced(0.55, (value, text))
            yield place.replaced(0.6, (keyword.value, text))


def both_ways(site: Site) -> Iterator[Candidate]:
    """A switch of a transform that cannot be inverted so, in the transform and in its inverse."""
    told = re.match(r"i(\w+)\(", site.text)
    for place in site.raising[:1] if told is not None else ():
        calls = [c for c in place.source.nodes if isinstance(c, ast.Call)]
        pair = [c for c in calls if told is not None and callee(c) in (told[1], f"i{told[1]}")]
        for keyword in (k for c in place.calls() if c in pair for k in c.keywords):
            value = getattr(keyword.value, "value", None)
            alike = [k for c in pair for k in c.keywords if k.arg == keyword.arg]
            same = [k for k in alike if getattr(k.value, "value", None) is value]
            if isinstance(value, bool) and len(same) > 1:
                yield place.replaced(0.4, *((k.value, repr(not value)) for k in same))


def trusted(site: Site) -> Iterator[Candidate]:
    """A file that the program itself has written, loaded with all that is in it."""
    told = "Weights only load failed" in site.text
    for place in site.raising if told else ():
        for call in (c for c in place.calls() if callee(c) == "load"):
            own = [k for k in call.keywords if k.arg == "weights_only"]
            for keyword in own:
                yield place.replaced(0.3, (keyword.value, "False"))
            if not own:
                yield place.added(0.3, call, "weights_only=False")


def methods_called(site: Site) -> Iterator[Candidate]:
    """A method of a tensor called, where it was only named, and kept in the place of what it
    gives."""
    values = [v for frame, _ in site.frames for v in frame.f_locals.values()]
    kept = any(inspect.isbuiltin(each) for v in values if isinstance(v, list) for each in v[:1])
    for source in site.program.texts if kept or _NAMED in site.text else ():
        called = {id(node.func) for node in source.nodes if isinstance(node, ast.Call)}
        for node in (n for n in source.nodes if isinstance(n, ast.Attribute)):
            loads = isinstance(node.ctx, ast.Load) and id(node) not in called
            if not loads or not callable(getattr(Tensor, node.attr, None)):
                continue
            owner = site.raising[0].value(node.value)
            if spelled(node.value) != "self" and not isinstance(owner, (ModuleType, nn.Module)):
                yield Candidate(0.25, spliced(source, [(node, f"{source.part(node)}()")]))


_NAMED = "builtin_function_or_method"  # what a method of a tensor is said to be


def of_largest(site: Site) -> Iterator[Candidate]:
    """One more than the largest index, where the different ones were counted."""
    for place in site.statements() if _OUTSIDE.search(site.text) else ():
        pairs = [(n, f"{text} + 1") for n in place.parts() if (text := _largest(place, n))]
        chosen = [pairs, *([pair] for pair in pairs)] if len(pairs) > 1 else [pairs]
        for some in chosen if pairs else ():
            yield replace(place, distance=0.0).replaced(0.35, *some)


_OUTSIDE = re.compile("out of range|out of bounds")


def _largest(place: Place, node: Any) -> str:
    """The largest of what an expression counts, each but once; "" where it counts nothing so, or
    what it counts begins at one: counted from zero, that fits."""
    form, counted = _counted(node)
    if not form:
        return ""
    given = counted
    if callee(given) == "unique":
        given = given.args[0] if given.args else given.func.value
    numbers = _each_once(place.value(given))
    from_one = numbers and numbers == {*range(1, len(numbers) + 1)}
    return "" if from_one else form.format(place.text(counted))


def _counted(node: Any) -> tuple[str, Any]:
    """What an expression counts, each but once, and how the largest of it is written."""
    if callee(node) == "nunique" and not node.args:
        return "{}.max()", node.func.value
    if callee(node) == "numel" and callee(node.func.value) == "unique":
        return "int({}.max())", node.func.value
    given = node.args if callee(node) == "len" else []
    if len(given) == 1 and callee(given[0]) == "set" and len(given[0].args) == 1:
        return "int(max({}))", given[0].args[0]
    return ("int({}.max())", given[0]) if given and callee(given[0]) == "unique" else ("", None)


def _each_once(values: Any) -> set[Any]:
    """The numbers of a tensor, a column or a list, each once; none where these are not known."""
    with suppress(TypeError):
        return elements(values) if isinstance(values, Tensor) else {*values}
    return set()


def mapped_axes(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """An argument of what ``vmap`` gives that is the same for all."""
    function = place.value(call.func)
    apart = "in_dims is not compatible with the structure" in site.text
    if "in_dims" not in signature(function) or not (apart or "mapped" in site.text):
        return
    own = next((k.value for k in call.keywords if k.arg == "in_dims"), None)
    names = bound_by(place.statement)
    calls = [each for other in site.raising for each in other.calls()]
    for each in (c for c in calls if c.func is call or spelled(c.func) in names):
        count = len(each.args)
        if apart and own is not None:
            given = [site.raising[0].value(node) for node in each.args]
            told = list(map(place.text, getattr(own, "elts", ())))
            text = ", ".join(_axes(given, told))
            yield replace(place, distance=0.0).replaced(0.15, (own, f"({text})"))
        axes = list(map(place.text, getattr(own, "elts", [own or ast.Constant(0)] * count)))
        axes = axes if all(axes) and len(axes) == count else ["0"] * count
        ranks = [getattr(site.raising[0].value(given), "ndim", 9) for given in each.args]
        for far, at in enumerate(sorted(range(count), key=ranks.__getitem__)):
            text = ", ".join("None" if n == at else axis for n, axis in enumerate(axes))
            if axes[at] != "None" and own is not None:
                yield place.replaced(0.2 + 0.02 * far, (own, f"({text})"))
            elif own is None:
                yield place.added(0.2 + 0.02 * far, call, f"in_dims=({text})")


def of_other_arguments(site: Site) -> Iterator[Candidate]:
    """The number of the argument by which a function is differentiated, as that of another one,
    where what came of it is not what it is taken for."""
    raised = [at.statement for at in site.raising]
    about = re.search(r"argnum|floating", site.text) is not None
    made = [(p, c) for p in site.statements() for c in p.calls()]
    made = [(p, c) for p, c in made if "argnums" in signature(p.value(c.func))]
    for place, call in made:
        written = [k.value for k in call.keywords if k.arg == "argnums"] + call.args[1:2]
        own = written[0] if written else None
        told, names = number_of(own) if own is not None else 0, bound_by(place.statement)
        for at in site.statements() if type(told) is int else ():
            used = [c for c in at.calls() if _applies(c, call, names)]
            for other in used if about or at.statement not in raised else ():
                for n, given in enumerate(other.args):
                    value = at.value(given)
                    learns = isinstance(value, dict) or getattr(value, "requires_grad", False)
                    cost = 0.25 + 0.1 * (not learns) + 0.1 * (own is None) + 0.01 * n
                    near = replace(place, distance=0.0)
                    if own is not None and n != told:
                        yield near.replaced(cost, (own, str(n)))
                    elif n != told:
                        yield near.added(cost, call, f"argnums={n}")


def _applies(call: ast.Call, made: ast.Call, names: list[str]) -> bool:
    """Whether a call applies the function that another one made, or what ``vmap`` makes of it."""
    of = [call.func, *getattr(call.func, "args", ())]
    return made in of or any(spelled(each) in names for each in of)


def _axes(given: list[Any], told: list[str]) -> list[str]:
    """The axis that is gone through of each argument: the first, where it has the size of most;
    none of parameters that have several.

    told: the axes that the program names, where one is lacking or one too many.
    """
    parts = [[*each.values()] if isinstance(each, dict) else [each] for each in given]
    sizes = [{v.shape[:1] for v in each if isinstance(v, Tensor)} for each in parts]
    apart = [own for own, axis in zip_longest(sizes, told) if own and axis != "None"]
    most = Counter(next(iter(own)) for own in apart if len(own) == 1).most_common(1)
    return ["0" if most and own == {most[0][0]} else "None" for own in sizes]


def not_in_place(site: Site) -> Iterator[Candidate]:
    """Layers that compute in place as ones that do not, where what they are given is a view that a
    hook looks at: one, or all."""
    hooked = "is a view and is being modified inplace" in site.text
    for source in site.program.texts if hooked else ():
        pairs: list[tuple[ast.AST, str]] = []
        for call in (n for n in source.nodes if isinstance(n, ast.Call)):
            given = dict(zip(signature(site.raising[0].value(call.func)), call.args, strict=False))
            given |= {k.arg: k.value for k in call.keywords if k.arg}
            switch = given.get("inplace")
            if isinstance(switch, ast.Constant) and switch.value is True:
                pairs.append((switch, "False"))
                yield Candidate(0.3, spliced(source, pairs[-1:]))
        yield Candidate(0.32, spliced(source, pairs))


def near_options(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """An option that nearly is one that the function knows."""
    sizes = [*(k.value for k in call.keywords if k.arg == "kernel_size"), *call.args[2:3]]
    for given in (*call.args, *(keyword.value for keyword in call.keywords)):
        old = getattr(given, "value", None)
        if old == "same" and sizes and "not supported for strided" in site.text:
            half = type(number_of(sizes[0])) is int and number_of(sizes[0]) // 2
            yield place.replaced(0.2, (given, str(half or f"{place.text(sizes[0])} // 2")))
        if isinstance(old, str) and re.fullmatch(r"[-+]?(inf|nan|\d+(\.\d*)?)", old):
            yield place.replaced(0.3, (given, f'float("{old}")'))


def without_options(site: Site) -> Iterator[Candidate]:
    """Calls without the arguments that the message refuses beside others, and with those that it
    asks for: the one that raised, and others that are given the same."""
    for pattern, kind, left_out, more in _BESIDE:
        if not re.search(pattern, site.text):
            continue
        refused = {*left_out.split()}
        calls = [(at, call) for at in site.raising for call in at.calls()]
        yield from _without_entries(site, refused if kind == "DataLoader" else set())
        raised = [id(call) for at, call in calls if callee(call) == kind]
        for source in site.program.texts:
            pairs: list[tuple[ast.AST, str]] = []
            for call in (n for n in source.nodes if isinstance(n, ast.Call)):
                names = [*signature(site.raising[0].value(call.func))]
                given = dict(zip(names, call.args, strict=False))
                named: dict[Any, Any] = {k.arg: k for k in call.keywords}
                leaves = refused & {*given, *named}
                lacks = more and more.partition("=")[0] in {*names} - {*given, *named}
                other = kind not in ("", callee(call)) or len(given) < len(call.args)
                if other or not (leaves or lacks):
                    continue
                first = min((names.index(n) for n in leaves & {*given}), default=len(names))
                kept = [(n, source.part(a)) for n, a in given.items() if n not in refused]
                texts = [f"{n}={s}" if names.index(n) > first else s for n, s in kept]
                texts += [source.part(k) for n, k in named.items() if n not in refused]
                texts += [more.format(*map(source.part, call.args))] * bool(lacks)
                pairs.append((call, f"{source.part(call.func)}({', '.join(texts)})"))
            own = [pair for pair in pairs if id(pair[0]) in raised]
            yield Candidate(0.33, spliced(source, own))
            yield Candidate(0.35, spliced(source, pairs))


def _without_entries(site: Site, refused: set[str]) -> Iterator[Candidate]:
    """Options without those that are refused, where they are handed on: in a dict, by a partial
    function or as a switch of a function around."""
    calls = [(at, call) for at in site.raising for call in at.calls()] if refused else []
    for place, call in calls:
        whole = [k.value for k in call.keywords if k.arg is None]
        known = [place.value(each) for each in whole]
        known += [getattr(place.value(call.func), "keywords", None)]  # of a partial function
        held = [each for each in known if isinstance(each, dict) and refused & {*each}]
        for options in held:
            for source in site.program.texts:
                pairs = [
                    (node, text)
                    for node in source.nodes
                    if (text := without_keys(source, node, refused, {*options}))
                    and (isinstance(node, ast.Dict) or callee(node) != callee(call))
                ]
                yield from (Candidate(0.28, spliced(source, [pair])) for pair in pairs)
        for node, value in zip(whole, known, strict=False):
            uses = [n for s in site.program.texts for n in s.nodes if isinstance(n, ast.keyword)]
            shared = [n for n in uses if n.arg is None and ast.dump(n.value) == ast.dump(node)]
            own = [name for name in sorted(refused) if name in value]
            if own and len(shared) > 1:  # others are given them too
                text = place.text(node)
                left = f"k != {own[0]!r}" if len(own) == 1 else f"k not in {own!r}"
                left = left.replace("'", '"')
                rest = f"{{k: v for k, v in {text}.items() if {left}}}"
                yield replace(place, distance=0.0).replaced(0.27, (node, rest))
        if place.function is not None:
            yield from _switched_off(site, place, call, refused)


def _switched_off(
    site: Site, place: Place, call: ast.Call, refused: set[str]
) -> Iterator[Candidate]:
    """A switch that a function of the program hands on to a call that refuses it: off where the
    function is called, else where it is handed on beside what refuses it."""
    named = {k.arg: k.value for k in call.keywords}
    rival = next((named[n] for n in ("sampler", "batch_sampler") if n in named), None)
    taken = (
        {each.arg for each in ast.walk(place.function) if isinstance(each, ast.arg)}
        if (place.function is not None)
        else set()
    )
    for name in sorted(refused & {*named}):
        handed = spelled(named[name])
        if handed not in taken or type(place.value(named[name])) is not bool:
            continue
        for above in site.raising[1:]:
            for each in above.calls():
                for given in each.keywords:
                    if given.arg == handed and callee(each) == getattr(place.function, "name", ""):
                        near = replace(above, distance=0.0)
                        yield near.replaced(0.26, (given.value, "False"))
        if rival is not None and spelled(rival) in taken:
            text = f"{handed} and {place.text(rival)} is None"
            yield replace(place, distance=0.0).replaced(0.3, (named[name], text))


def in_other_mode(site: Site) -> Iterator[Candidate]:
    """A model in the mode that what it is given to asks for."""
    told = re.search(r"(train|eval)\w* mode|only for (eval)", site.text)
    places = site.raising if told is not None and "mode (" not in site.text else ()
    wanted = (told[1] or told[2]) if told is not None else ""
    for place, call in [(at, call) for at in places for call in at.calls()]:
        for node in call.args[:1]:
            text, value = place.text(node), place.value(node)
            if not isinstance(value, nn.Module) or value.training is (wanted == "train"):
                continue
            other = "eval" if wanted == "train" else "train"
            for row in site.statements():
                own: Any = getattr(row.statement, "value", None)
                if isinstance(row.statement, ast.Expr) and row.text(own) == f"{text}.{other}()":
                    yield replace(row, distance=0.0).replaced(0.25, (own, f"{text}.{wanted}()"))
            yield replace(place, distance=0.0).written(0.3, f"{text}.{wanted}()\n{{}}")


# Messages with the function that refuses, the arguments that are left out, and one that is given
# if it is lacking.
_BESIDE = (
    ("Nesterov momentum requires", "", "dampening", "momentum=0.9"),
    ("batch_sampler option is mutually", "DataLoader", "batch_size shuffle sampler drop_last", ""),
    ("IterableDataset: expected unspecified", "DataLoader", "sampler batch_sampler shuffle", ""),
    ("sampler option is mutually exclusive with shuffle", "DataLoader", "shuffle", ""),
    ("prefetch_factor option could only", "DataLoader", "prefetch_factor", ""),
    ("multiprocessing_context can only", "DataLoader", "multiprocessing_context", ""),
    ('Only ["`]zeros["`] padding', "", "padding_mode", ""),
    ("Either `probs` or `logits`", "", "probs", ""),
    ("Either `probs` or `logits`", "", "logits", ""),
    (
        "Exactly one of covariance_m",
        "MultivariateNormal",
        "",
        "covariance_matrix=torch.eye({0}.shape[-1])",
    ),
    ("Exactly one of covariance_m", "MultivariateNormal", "covariance_matrix", ""),
    ("sparse (gradients|weights)", "", "sparse", ""),
    ("not compatible with sparse gradients", "", "weight_decay", ""),
    ("proj_size argument is only supported", "", "proj_size", ""),
    ("ignore_index cannot be specified", "", "ignore_index", ""),
    ("Anti-alias option is restricted", "", "antialias", ""),
    ("align_corners option can only", "", "align_corners", ""),
    ("recompute_scale_factor is not", "", "recompute_scale_factor", ""),
    ("only one of size or scale_factor", "", "scale_factor", ""),
    ("`fused` does not support|`fused` and `foreach`", "", "foreach differentiable", ""),
    (
        "Need attn_mask if specifying the is_causal",
        "",
        "",
        "attn_mask=torch.nn.Transformer.generate_square_subsequent_mask({0}.size(1))",
    ),
)


def _handed_on(site: Site, place: Place, function: Any, name: str) -> Iterator[str]:
    """The tensors that the program has by the name of a parameter of its own function: as a name,
    or in a dict."""
    own = getattr(function, "forward", function)
    code = getattr(own, "__code__", None)
    known = place.frame.f_locals if code and site.program.source(code.co_filename) else {}
    if isinstance(known.get(name), Tensor):
        yield name
    for owner, value in known.items():
        if isinstance(value, dict) and isinstance(value.get(name), Tensor):
            yield f'{owner}["{name}"]'


def _given(site: Site, place: Place, name: str, builds: bool) -> list[str]:
    """What may be given for an argument: what the function around has by its name; where the
    message asks for it, how often the program's loops run."""
    arguments = place.function.args.args if place.function is not None else []
    asked = builds and re.search(rf"\b{name}\b", site.text)
    rounds = [*(site.all_rounds if "total" in name else ()), *site.rounds] if asked else []
    return [name] * (name in {a.arg for a in arguments[1:]}) + rounds


def told_by_data(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """Arguments that need not be given, and that the data or names of the program tell."""
    taken = {each.arg for each in call.keywords}
    known = signature(place.value(call.func)).keys() - taken
    own = replace(place, distance=0.0)
    parameters = place.function.args.args if place.function is not None else []
    given = {each.arg: place.frame.f_locals.get(each.arg) for each in parameters}
    for name, value in given.items() if "total_length" in known else ():
        if isinstance(value, Tensor) and value.dim() > 1 and value.size(1) in site.told:
            yield own.added(0.4, call, f"total_length={name}.size(1)")
    numbers = {n: v for n, v in place.names().items() if type(v) is int and n[0] != "_"}
    losses = [f.f_locals for f in site.inner if {"input", "target"} <= {*f.f_locals}]
    scores, target = (losses[-1][name] if losses else None for name in ("input", "target"))
    labels = elements(target) if isinstance(target, Tensor) else set()
    classes = max(getattr(scores, "shape", ())[1:2], default=0)
    for number in dict.fromkeys(site.told) if "ignore_index" in known else ():
        constants = [n for n, v in numbers.items() if v == number and n.isupper()]
        apart = number > max(labels - {number}, default=number) + 1
        if number < 0 or (apart and (constants or number >= 2 * classes)):
            yield own.added(0.5, call, f"ignore_index={(*constants, number)[0]}")


def with_padding(site: Site) -> Iterator[Candidate]:
    """The number that the program pads with, or compares with to find its padding, in the settings
    of a model that know none."""
    told: dict[str, ast.expr] = {}
    for source in site.program.texts if _NO_PADDING.search(site.text) else ():
        for node in source.nodes:
            both = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq)
            given = [node.comparators[0]] if both else []  # type: ignore[attr-defined]
            given += [k.value for k in getattr(node, "keywords", ()) if k.arg == "padding_value"]
            given += [node] if getattr(node, "attr", "") == "pad_token_id" else []
            told |= {source.part(each): each for each in given}
    for place in site.statements() if told else ():
        made = place.result()
        settings = getattr(made, "config", made) if made is not MISSING else made
        if getattr(settings, "pad_token_id", 0) is not None:
            continue
        numbers = [text for text, node in told.items() if type(place.value(node)) is int]
        for far, number in enumerate(sorted(numbers, key=lambda text: "pad" not in text.lower())):
            for call in (c for c in place.calls() if callee(c).endswith("Config")):
                yield place.added(0.2 + 0.02 * far, call, f"pad_token_id={number}")
            if settings is not made:
                own = place.text(place.statement.targets[0])  # type: ignore[attr-defined]
                text = f"{{}}\n{own}.config.pad_token_id = {number}"
                yield place.written(0.3 + 0.02 * far, text)


_NO_PADDING = re.compile("no padding token|pad_token")


def both_masks(site: Site) -> Iterator[Candidate]:
    """What comes later left out by the mask that attention was given, where it takes a mask or the
    switch: off where that mask leaves it out already."""
    place = site.raising[0]
    for call in place.calls() if "should not be set when is_causal" in site.text else ():
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = dict(zip(names, call.args, strict=False)) | {k.arg: k.value for k in call.keywords}
        if not {"query", "key", "attn_mask", "is_causal"} <= given.keys():
            continue
        mask, query, key = (place.whole(given[n]) for n in ("attn_mask", "query", "key"))
        if _leaves_out_later(place.value(given["attn_mask"])):
            yield place.replaced(0.1, (given["is_causal"], "False"))
            continue
        sizes = f"{query}.size(-2), {key}.size(-2)"
        forms = (
            f" & {query}.new_ones({sizes}).tril().bool()",
            f' + {query}.new_full(({sizes}), float("-inf")).triu(1)',
        )
        for far, form in enumerate(forms):
            pairs = (given["attn_mask"], mask + form), (given["is_causal"], "False")
            yield place.replaced(0.1 + 0.02 * far, *pairs)


def _leaves_out_later(mask: Any) -> bool:
    """Whether a mask of attention leaves out what comes later, for each that asks."""
    if not isinstance(mask, Tensor) or mask.dim() < 2 or mask.shape[-2] < 2:
        return False
    later = mask[..., torch.ones(mask.shape[-2:]).triu(1) > 0]
    return not bool((later if is_whole(later) else later > -math.inf).any())


def alone(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """A share of the data for each process, where there is one process."""
    known = signature(place.value(call.func))
    if "process group" in site.text and {"num_replicas", "rank"} <= {*known}:
        yield place.added(0.3, call, "num_replicas=1, rank=0")
