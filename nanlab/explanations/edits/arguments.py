"""Arguments in another form, another order or for another parameter."""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from nanlab.explanations.site import (
    MISSING,
    Candidate,
    Place,
    Site,
    Tensor,
    bound_value,
    callee,
    elements,
    is_whole,
    number_of,
    signature,
    spliced,
)
from nanlab.explanations.trial import Source
from nanlab.operators import having


def weighted(site: Site) -> Iterator[Candidate]:
    """The loss of each sample times its weight, where a weight was given for each class."""
    told = re.search(r"weight tensor should be defined .* of shape: \[(\d+)\]", site.text)
    raised = site.raising[0]
    for place, call in site.calls if told is not None else ():
        own = [k for k in call.keywords if k.arg == "weight"]
        weights = place.value(own[0].value) if own else MISSING
        if told is None or getattr(weights, "shape", ()) != (int(told[1]),):
            continue
        rest = list(map(place.text, call.args))
        rest += [place.text(k) for k in call.keywords if k.arg not in ("weight", "reduction")]
        rest.append('reduction="none"')
        each = f"{place.text(call.func)}({', '.join(rest)})"
        form = f"({{}} * {place.text(own[0].value)})"
        form += "" if any(k.arg == "reduction" for k in call.keywords) else ".mean()"
        if place.statement is raised.statement:
            yield raised.replaced(0.3, (call, form.format(each)))
        for use in raised.calls() if place.statement is not raised.statement else ():
            if isinstance(raised.value(use.func), nn.modules.loss._Loss):
                edits = [replace(place, distance=0.0).replaced(0.3, (call, each))]
                edits.append(raised.replaced(0.3, (use, form.format(raised.text(use)))))
                yield Candidate(0.3, tuple(edit for one in edits for edit in one.edits))


def of_each_sample(site: Site) -> Iterator[Candidate]:
    """The weight of each sample, where a sampler was given one for each class and cannot draw as
    many: drawn with replacement, as samples of a rare class come more than once."""
    drawn = "without replacement" in site.text
    for place, call in site.calls if drawn else ():
        given = dict(zip(signature(place.value(call.func)), call.args, strict=False))
        given |= {k.arg: k.value for k in call.keywords if k.arg}
        node, again = given.get("weights"), given.get("replacement")
        weights = place.value(node) if node is not None else MISSING
        count = len(weights) if isinstance(weights, (Tensor, np.ndarray, list)) else 0
        for at, (name, labels) in enumerate(_labels(site) if count else ()):
            numbers = elements(labels)
            if len(labels) > count and numbers and numbers <= {*range(count)} and node is not None:
                own = place.text(node)
                own = f"torch.tensor({own})" if isinstance(weights, list) else own
                pairs = [(node, f"{own}[{name}]")]
                pairs += [(again, "True")] if again is not None else []
                near = replace(place, distance=0.02 * at)
                yield near.replaced(0.35 + 0.3 * (max(numbers) < count - 1), *pairs)


def _labels(site: Site) -> Iterator[tuple[str, Tensor]]:
    """Whole numbers in one dimension among the names of a program, and what its datasets hold."""
    names = {n: v for n, v in site.frames[-1][0].known.items() if n[:1] != "_"}
    sets = {n: v for n, v in names.items() if isinstance(v, Dataset)}
    names |= {f"{n}.{k}": v for n, each in sets.items() for k, v in vars(each).items()}
    parts = {n: v for n, v in names.items() if isinstance(v, tuple)}  # of a TensorDataset
    names |= {f"{n}[{at}]": v for n, each in parts.items() for at, v in enumerate(each)}
    for name, value in names.items():
        listed = isinstance(value, list) and {*map(type, value)} == {int}
        whole = isinstance(value, np.ndarray) and value.dtype.kind in "iu"
        rows = torch.tensor(value) if listed or whole else value
        if isinstance(rows, Tensor) and rows.dim() == 1 and is_whole(rows):
            yield name, rows


def near_words(site: Site) -> Iterator[Candidate]:
    """A word that is refused as one that is known, wherever the program gives it; a dtype as that
    of what is quantized."""
    known = {word for f in site.inner for word in _texts(f.f_code.co_consts)}
    known |= set(re.findall(r"[A-Za-z_]\w{2,}", site.text))
    known |= {*dir(site.error.obj)} if isinstance(site.error, AttributeError) else set()
    for source in site.program.texts if "device string" not in site.text else ():
        calls = [n for n in source.nodes if isinstance(n, ast.Call)]
        named = {id(k.value): k.arg for call in calls for k in call.keywords}
        for node in (n for n in source.nodes if isinstance(n, ast.Constant)):
            word, text = str(node.value), source.part(node)
            none = node.value is None and f"valid value for {named.get(id(node))}" in site.text
            quoted = isinstance(node.value, str) and word and text[:1] in ("'", '"')
            if not (none or quoted) or not _has_word(site.text, word):
                continue
            near = {each.lower(): each for each in known - {word}}
            close = [near[w] for w in difflib.get_close_matches(word.lower(), near, 3, 0.55)]
            meant = [_SAID_FOR[word.lower()]] if word.lower() in _SAID_FOR else []
            far = 0.0 if node in site.raising[0].parts() else 0.04
            for at, other in enumerate(w for w in (*meant, *close) if w in known):
                yield Candidate(0.2 + 0.02 * at + far, spliced(source, [(node, f'"{other}"')]))
        for dtype in source.nodes if _QUANTIZES.search(site.text) else ():
            name = getattr(dtype, "attr", "")
            if source.part(dtype) == f"torch.{name}" and hasattr(torch, f"q{name}"):
                yield Candidate(0.3, spliced(source, [(dtype, f"torch.q{name}")]))


_QUANTIZES = re.compile("qtensor|to quantize")  # what takes a dtype of its own alone


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None


# Words that are said for those that torch knows.
_SAID_FOR = {"avg": "mean", "average": "mean", "total": "sum"}


def _texts(constants: Any) -> Iterator[str]:
    """The words among the constants of a function."""
    for each in constants if isinstance(constants, (tuple, frozenset)) else (constants,):
        if isinstance(each, str) and each.isidentifier():
            yield each
        elif isinstance(each, (tuple, frozenset)):
            yield from _texts(each)


def _to_construction(
    site: Site, place: Place, call: ast.Call, keyword: ast.keyword
) -> Iterator[Candidate]:
    """An argument of a call, given where what is called was built."""
    bound = site.binding(place, call.func)
    built: Any = call.func if isinstance(call.func, ast.Call) else None
    if bound is not None and isinstance(bound.statement, ast.Assign):
        built = bound.statement.value
    owner = bound or place
    if isinstance(built, ast.Call) and keyword.arg in signature(owner.value(built.func)):
        rest = [place.text(n) for n in (*call.args, *call.keywords) if n is not keyword]
        head = owner.text(built)[:-1] + ", " * bool(built.args or built.keywords)
        made = f"{head}{place.text(keyword)})"
        own = made if built is call.func else place.text(call.func)
        pairs = [(call, f"{own}({', '.join(rest)})")]
        if built is not call.func and owner.source is place.source:
            pairs.append((built, made))
        yield place.replaced(0.4, *pairs)


def told_counts(site: Site) -> Iterator[Candidate]:
    """How many there are, where data that lacks the last of them was counted."""
    for place in site.statements() if _OF_COUNTS.search(site.text) else ():
        calls = [c for c in place.calls() if any(each[0] == callee(c) for each in _COUNTED)]
        names = {n: v for n, v in place.names().items() if n[0] != "_"} if calls else {}
        parameters = place.function.args.args if place.function is not None else []
        own = [n.arg for n in parameters if type(names.get(n.arg, 0)) is int]
        sizes = {n: names.get(n, MISSING) for n in own}
        sizes |= {n: v for n, v in names.items() if type(v) is int}
        lists = {n: v for n, v in names.items() if isinstance(v, (list, tuple, dict))}
        sizes |= {f"len({n})": len(v) for n, v in lists.items()}
        sizes |= {str(n): n for n in site.told if n > 1}
        for call in calls:
            count, form = next(each[1:] for each in _COUNTED if each[0] == callee(call))
            few = len(call.args) in (max(count, 1), int(callee(call) != "bincount"))
            if form.partition("=")[0] in {k.arg for k in call.keywords} or not few:
                continue
            some = [n for n, v in sizes.items() if count > 1 or v is MISSING or v in site.told]
            for at, each in enumerate(itertools.product(some[:12], repeat=count)):
                if any(sizes[n] is MISSING or sizes[n] in site.told for n in each):
                    yield place.added(0.4 + 0.01 * at, call, form.format(*each))
            for whole in place.calls() if count == 1 else ():  # as many as it is shaped into
                of = getattr(whole.func, "value", None)
                if of is call and callee(whole) in ("reshape", "view") and len(whole.args) > 1:
                    product = " * ".join(map(place.whole, whole.args))
                    yield place.added(0.3, call, form.format(product))


_OF_COUNTS = re.compile("size|shape|class|out of|number|index")


# Calls that need not be told a size, which the largest index of the data then is: how many sizes
# there are, and how they are given.
_COUNTED = (
    ("sparse_coo_tensor", 2, "size=({}, {})"),
    ("bincount", 1, "minlength={}"),
    ("one_hot", 1, "num_classes={}"),
)


def _turned_sizes(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """The sizes of a new tensor in another order, where the message has two shapes that differ by
    it."""
    shape = call.args[0] if call.args else call
    bound = site.binding(place, shape)
    named = getattr(bound_value(bound, ""), "elts", None)
    own = bound if bound is not None and named else place
    sizes = named or getattr(shape, "elts", call.args)
    turned = {(b, a) for a, b in site.confronted} & site.confronted
    if callee(call) in having("makes") and len(sizes) > 1 and turned:
        for a, b in itertools.combinations(sizes, 2):
            yield own.replaced(0.4, (a, own.text(b)), (b, own.text(a)))


def given_by_key(site: Site) -> Iterator[Candidate]:
    """The keys of what is given as ``**batch``, as the parameters are named, or without one that
    is none of them."""
    told = re.search(r"unexpected keyword argument '(\w+)'", site.text)
    calls = [(p, c) for p in site.raising for c in p.calls() if told is not None]
    for place, call in calls:
        known = signature(place.value(call.func))
        whole = [k.value for k in call.keywords if k.arg is None]
        if told is None or not whole or told[1] in {k.arg for k in call.keywords}:
            continue
        for at, near in enumerate(near_parameters(told[1], known, 0.7)):
            for source in site.program.texts:
                pairs = [*_keys_as(source, told[1], near)]
                yield Candidate(0.3 + 0.02 * at, spliced(source, pairs))
        text = place.text(whole[-1])
        rest = f'{{k: v for k, v in {text}.items() if k != "{told[1]}"}}'
        yield replace(place, distance=0.0).replaced(0.5, (whole[-1], rest))
        options = place.value(whole[-1])
        for source in site.program.texts if isinstance(options, dict) else ():
            for node in source.nodes:
                if shorter := without_keys(source, node, {told[1]}, {*options}):
                    yield Candidate(0.35, spliced(source, [(node, shorter)]))


def without_keys(source: Source, node: ast.AST, left_out: set[str], known: set[Any]) -> str:
    """A dict of these keys, as it is written, or a call that is given them, without some of them;
    empty for another node."""
    if isinstance(node, ast.Dict):
        keys = [getattr(each, "value", None) for each in node.keys]
        parts = [
            f"{source.part(k)}: {source.part(v)}" if k is not None else f"**{source.part(v)}"
            for k, v in zip(node.keys, node.values, strict=True)
        ]
        head, tail = "{", "}"
    elif isinstance(node, ast.Call):
        keys = [*(None for _ in node.args), *(each.arg for each in node.keywords)]
        parts = [source.part(each) for each in (*node.args, *node.keywords)]
        head, tail = f"{source.part(node.func)}(", ")"
    else:
        return ""
    named = {each for each in keys if each is not None}
    fits = left_out & named and (named <= known or callee(node) not in ("dict", ""))
    rest = [part for part, each in zip(parts, keys, strict=True) if each not in left_out]
    return f"{head}{', '.join(rest)}{tail}" if fits else ""


def near_parameters(word: str, known: Iterable[str], cutoff: float) -> list[str]:
    """The parameters that a word may stand for: those that nearly are written so, and those whose
    long or short form it is, ``learning_rate`` for ``lr``."""
    names = [*known]
    alike = difflib.get_close_matches(word, names, 2, cutoff)
    return [*alike, *(n for n in names if n in _initials(word) or word in _initials(n))]


def _initials(name: str) -> list[str]:
    """What a name of several words is written as in short."""
    words = [word for word in name.lower().split("_") if word]
    return ["".join(word[0] for word in words)] if len(words) > 1 else []


def _keys_as(source: Source, old: str, new: str) -> Iterator[tuple[ast.AST, str]]:
    """The keys of dicts, where they are written and where they are looked up, as another word."""
    nodes: list[Any] = source.nodes
    for node in nodes:
        keys = [*node.keys] if isinstance(node, ast.Dict) else []
        keys += [node.slice] if isinstance(node, ast.Subscript) else []
        keys += node.args[:1] if callee(node) in ("get", "pop") else []
        yield from ((key, f'"{new}"') for key in keys if key and getattr(key, "value", None) == old)
        for each in node.keywords if callee(node) == "dict" else ():
            if each.arg == old:
                yield each, f"{new}={source.part(each.value)}"


def told_shapes(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """Arguments in the shape that the message wants, ``Nx2x3``."""
    one = r"(?:[A-Z*]|\d+)"
    told = re.findall(rf"(?<![\w.]){one}(?:(?: ?x ?|, ?){one})+(?![\w.])", site.text)
    wanted = [[int(n) if n.isdigit() else -1 for n in re.findall(one, each)] for each in told]
    for given in call.args:
        value = place.value(given)
        for sizes in wanted if isinstance(value, Tensor) else ():
            size = -math.prod(sizes)
            if sizes.count(-1) == 1 and len(sizes) != value.ndim and size > 1:
                if value.numel() % size == 0 and str([*value.shape]) in site.text:
                    text = f"{place.text(given)}.view({', '.join(map(str, sizes))})"
                    yield place.replaced(0.3, (given, text))


def by_name(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """The last argument, given to another parameter than its place means."""
    function = place.value(call.func)
    known = signature(getattr(Tensor, callee(call), None) if function is MISSING else function)
    at, taken = len(call.args) - 1, {keyword.arg for keyword in call.keywords}
    twice = re.search(r"multiple values for argument '(\w+)'", site.text)
    least = 1 if twice is None else 0
    if not least <= at < len(known) or isinstance(call.args[at], ast.Starred) or place.distance:
        return
    names, text = [*known], place.text(call.args[at])
    words = re.findall("[a-z]{3,}", text.lower())
    taken |= {twice[1]} if twice is not None else set()
    refused = twice is not None or "positional argument" in site.text
    for name in names[at:] if refused else names[at + 1 :] if known[names[at]] is None else ():
        if (refused or known[name] is None) and name not in taken:
            named = any(word in name for word in words)
            cost = 0.3 if named else 0.35 if refused else 0.9
            yield place.replaced(cost, (call.args[at], f"{name}={text}"))


def by_keyword(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """The last argument by the name that the message has for a value of its kind, where a function
    of torch takes it by name alone."""
    _, behind, told = site.text.partition("*, ")
    last = call.args[-1] if len(call.args) > 1 else None
    if not behind or last is None or isinstance(last, ast.Starred) or place.distance:
        return
    kind = type(place.value(last)).__name__
    known = re.findall(r"(?:\w+\.)*(\w+) (\w+)", told.partition(")")[0])
    for name in (name for each, name in known if each == kind and name != "out"):
        if name not in {keyword.arg for keyword in call.keywords}:
            yield place.replaced(0.3, (last, f"{name}={place.text(last)}"))


def of_longer_name(site: Site) -> Iterator[Candidate]:
    """An argument given to another parameter of the call, whose name says more: the batches of a
    ``batch_sampler``, given as its ``sampler``."""
    function, known = site.raising[0].function, site.raising[0].frame.f_locals
    taken = function.args.args[1:2] if function and function.name == "__getitem__" else []
    several = any(isinstance(known.get(each.arg), list) for each in taken)
    for place in site.statements():
        for call in place.calls():
            names = [*signature(place.value(call.func))] if call.keywords else []
            own_names = {keyword.arg for keyword in call.keywords}
            for keyword in call.keywords:
                own = keyword.arg or ""
                for name in names if len(own) > _SHORT else ():
                    if name.endswith(f"_{own}") and name not in own_names:
                        text = f"{name}={place.text(keyword.value)}"
                        # of a size that is given, the default then takes the place
                        cost = 1.8 if type(place.value(keyword.value)) is int else 0.8
                        cost = 0.25 if several and callee(call) == "DataLoader" else cost
                        yield replace(place, distance=0.0).replaced(cost, (keyword, text))


_SHORT = 3  # letters of a name that many others end in


_ALIKE = 0.6  # names that have less in common have nothing to do with each other


_BETTER = 0.5  # how much better two arguments fit the names of two parameters, if they are swapped


def _named_alike(text: str, name: str) -> float:
    """How much an argument has in common with the name of a parameter."""
    like = difflib.SequenceMatcher(None, text.rpartition(".")[2].lower(), name).ratio()
    return like * (like > _ALIKE)


def exchanged(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """Two arguments, each named as the parameter of the other."""
    names = [name for name in signature(place.value(call.func)) if name != "self"]
    given = (node for node in call.args if place.text(node) != "self")  # of a class above
    pairs = zip(given, names, strict=False)
    for (a, x), (b, y) in itertools.combinations(pairs, 2):
        first, second = place.text(a), place.text(b)
        now = _named_alike(first, x) + _named_alike(second, y)
        if _named_alike(second, x) + _named_alike(first, y) > now + _BETTER:
            sure = (first, second) == (y, x)
            cost = -0.05 if sure else 0.35
            yield replace(place, distance=0.0).replaced(cost, (a, second), (b, first))


def by_kind(site: Site) -> Iterator[Candidate]:
    """Arguments for which parameters have defaults of another type, by the names of those that
    have defaults of theirs: one that need not be given was passed over, or two changed places."""
    for place in site.statements():
        for call in place.calls():
            known = {n: d for n, d in signature(place.value(call.func)).items() if n != "self"}
            names, types = [*known], [*map(type, known.values())]
            kinds = [_kind(site, place, node) for node in call.args]
            near, taken = replace(place, distance=0.0), {k.arg for k in call.keywords}
            both = [*zip(kinds, types, strict=False)]
            odd = [at for at, pair in enumerate(both) if len({*pair}) == 2 and {*pair} <= _PLAIN]
            for a, b in itertools.combinations(odd, 2):
                if both[a] == both[b][::-1]:
                    one, other = call.args[a], call.args[b]
                    pairs = (one, place.text(other)), (other, place.text(one))
                    yield near.replaced(0.35, *pairs)
            rest = len(names) - len(kinds)
            for first in (odd[0] + more for more in range(1, rest + 1) if odd):
                given = call.args[odd[0] :]
                words = names[first : first + len(given)]
                if types[first : first + len(given)] == kinds[odd[0] :] and not taken & {*words}:
                    texts = (
                        f"{name}={place.text(a)}" for name, a in zip(words, given, strict=True)
                    )
                    yield near.replaced(0.35, *zip(given, texts, strict=True))
                    break


_PLAIN = {bool, int, float, str}


def _kind(site: Site, place: Place, node: ast.expr) -> type:
    """The type of what is given for an argument."""
    value = place.value(node)
    return type(value if value is not MISSING else site.size(place, node))


def sides_exchanged(site: Site) -> Iterator[Candidate]:
    """The size of what a layer takes and that of what it gives, one for the other: it was given
    what it gives, or has the weight of a layer that is built so."""
    costs = {type(m).__name__: cost for m in site.running if (cost := _exchanging(site, m))}
    for place in site.builders if costs else ():
        for call in (c for c in place.calls() if callee(c) in costs):
            given = dict(zip(signature(place.value(call.func)), call.args, strict=False))
            given |= {k.arg: k.value for k in call.keywords if k.arg}
            sides = [node for name, node in given.items() if _SIDE.fullmatch(name)]
            if len(sides) == 2:
                texts = map(place.text, sides[::-1])
                written = any(isinstance(side, ast.Constant) for side in sides)
                cost = costs[callee(call)] + 0.4 * written  # many numbers are the same by chance
                own = replace(place, distance=0.0)
                yield own.replaced(cost, *zip(sides, texts, strict=True))


_SIDE = re.compile("(in|out)_(features|channels)|input_size|hidden_size")


def _exchanging(site: Site, layer: nn.Module) -> float:
    """How unusual it is that the two sizes of a layer are meant the other way round; 0: nothing
    says that they are."""
    sizes = tuple(size for name, size in vars(layer).items() if _SIDE.fullmatch(name))
    numbers = len(sizes) == 2 and {*map(type, sizes)} == {int}
    if not numbers or sizes[0] == sizes[1] or 0 in sizes:  # not known yet
        return 0.0
    weight = vars(layer).get("_parameters", {}).get("weight")
    if isinstance(layer, nn.Linear) and tuple(getattr(weight, "shape", ())) == sizes:
        return 0.3
    whole = max(site.modules, key=lambda each: len([*each.modules()]), default=layer)
    layers = [each for each in whole.modules() if [*each.parameters(recurse=False)]]
    last = not layers or layers[-1] is layer  # no other will take what it gives
    return 0.3 + 0.4 * last if sizes in site.refused else 0.0


def tensors(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """Numbers as tensors, where a function takes these alone; what an optimizer changes, as one
    list of them."""
    refused = re.search("must be (a )?Tensor|invalid combination of arguments", site.text)
    arrays = [n for n in call.args if isinstance(place.value(n), np.ndarray)]
    if len(arrays) > 1 and not place.distance:
        pairs = [(n, f"torch.as_tensor({place.text(n)})") for n in arrays]
        yield place.replaced(0.5, *pairs)
    numbers = [*call.args, *(k.value for k in call.keywords if "=Tensor" in site.text)]
    for node in numbers if refused and not place.distance else ():
        if type(number_of(node)) in (int, float):
            yield place.replaced(0.6, (node, f"torch.tensor({place.text(node)})"))
    made = [f.f_locals for f in site.inner if f.f_code.co_name == "__new__"]
    for node in call.args[:1] if made and callee(call) in ("Parameter", "Buffer") else ():
        given = made[-1].get("data")
        if type(given) in (int, float, list) and "object has no attribute" in site.text:
            text = place.text(node)
            new = text if type(given) is not int else f"float({text})"
            yield replace(place, distance=0.0).replaced(0.2, (node, f"torch.tensor({new})"))
    several = [n for n in call.args if callee(n) == "parameters"]
    if len(several) > 1 and re.search("multiple values for argument|'generator'", site.text):
        both = ", ".join(f"*{place.text(each)}" for each in several)
        rest = [
            f"[{both}]",
            *(place.text(n) for n in (*call.args, *call.keywords) if n not in several),
        ]
        yield place.replaced(0.3, (call, f"{place.text(call.func)}({', '.join(rest)})"))
    for given in call.args[:1] if re.search("iterable of|only optimize", site.text) else ():
        if isinstance(place.value(given), Tensor):
            yield place.replaced(0.3, (given, f"[{place.text(given)}]"))
        if callee(given) == "state_dict":
            head = place.text(given)[: -len("state_dict()")]
            yield place.replaced(0.3, (given, f"{head}parameters()"))
        elif isinstance(place.value(given), dict):
            yield place.replaced(0.3, (given, f"{place.text(given)}.values()"))
        parts = [n for n in getattr(given, "elts", []) if not isinstance(n, ast.Dict)]
        modules = {id(n) for n in parts if isinstance(place.value(n), nn.Module)}
        texts = (f"*{place.text(n)}" + ".parameters()" * (id(n) in modules) for n in parts)
        pairs = [*zip(parts, texts, strict=True)]
        yield place.replaced(
            0.3, *(pair for pair in pairs if not isinstance(place.value(pair[0]), Tensor))
        )


def whole_numbers(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """A number that is to be whole, where a text or one with a fraction was given for it."""
    told = re.findall(r"(\w+) should be (?:a positive integer|of type int)", site.text)
    told += re.findall(r"integer (\w+),? but got", site.text)
    for node in (*call.args, *(k.value for k in call.keywords)) if told else ():
        if site.roles.get(id(node)) in told and type(place.value(node)) is not int:
            text = place.text(node)
            yield place.replaced(0.42, (node, f"int({text})"))


def of_other_widths(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """The width of what attention looks at, told where it is not that of what asks."""
    frames = [f.f_locals for f in site.inner if hasattr(f.f_locals.get("self"), "embed_dim")]
    known = [names for names in frames if {"query", "key", "value"} <= {*names}]
    if callee(call) == "MultiheadAttention" and known:
        own, query, key, value = (known[-1][n] for n in ("self", "query", "key", "value"))
        if all(isinstance(each, Tensor) and each.dim() for each in (query, key, value)):
            fits = query.shape[-1] == own.embed_dim
            more = f"kdim={key.shape[-1]}, vdim={value.shape[-1]}"
            if fits and key.shape[-1] != own.embed_dim:
                yield replace(place, distance=0.0).added(0.35, call, more)


def in_bounds(site: Site, place: Place) -> Iterator[Candidate]:
    """A number that is refused, with another sign; a percentage, or how many times less, as a
    share."""
    told = {float(n) for n in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", site.text)}
    share = re.search(r"between 0 and 1|range \[0, 1\]", site.text)
    less = "should be < 1" in site.text
    for node in place.parts() if share or less or "Invalid" in site.text else ():
        number: Any = number_of(node) if isinstance(node, (ast.Constant, ast.UnaryOp)) else None
        role = site.roles.get(id(node), "")
        named = number in told or (role and role in site.text.lower())
        if type(number) not in (int, float) or not named:
            continue
        if number < 0 and "Invalid" in site.text:
            yield place.replaced(0.4, (node, f"{-number}"))
        elif number > 1 and (share or less):
            yield place.replaced(0.4, (node, f"{number / 100 if share else 1 / number:g}"))


def _annotated(function: Any, name: str) -> str:
    """The kind of value that a function says it takes for a parameter; empty if it says none."""
    with suppress(Exception):  # of one that is written in C
        kind = inspect.signature(function).parameters[name].annotation
        return str(getattr(kind, "__name__", kind))
    return ""


def arguments(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """A call with other arguments."""
    function = place.value(call.func)
    yield from _turned_sizes(site, place, call)
    for keyword in call.keywords:
        if f"keyword argument '{keyword.arg}'" in site.text:
            yield from _to_construction(site, place, call, keyword)
    if 1 < len(call.args) < 5 and not place.distance:
        for a, b in itertools.combinations(call.args, 2):
            yield place.replaced(1.5, (a, place.text(b)), (b, place.text(a)))
    plain = re.search("tuple of ints|not callable|not iterable", site.text)
    for node in (*call.args, *(k.value for k in call.keywords)) if plain else ():
        value = place.value(node)
        if "tuple" in site.text and type(value) is int:
            yield place.replaced(0.5, (node, f"({place.text(node)},)"))
        elif "not iterable" in site.text and type(value) in (int, float):
            yield place.replaced(0.5, (node, f"[{place.text(node)}]"))
        elif "float" in site.text and type(value) is float and isinstance(function, type):
            yield place.replaced(0.5, (node, f"lambda epoch: {place.text(node)} ** epoch"))
    if re.search(r"takes .*positional arguments? but \d+ w", site.text):
        rest = [place.text(each) for each in call.keywords]
        for whole in (each for each in call.args if isinstance(each, ast.Starred)):
            yield place.replaced(0.5, (whole, place.text(whole.value)))
        for at, left_out in reversed(list(enumerate(call.args))):
            given = [place.text(each) for each in call.args if each is not left_out]
            text = f"{place.text(call.func)}({', '.join((*given, *rest))})"
            yield place.replaced(1.0 - 0.02 * at, (call, text))
    lacking = re.search(r"missing \d+ required .*?argument.*?: '(\w+)'", site.text)
    if lacking is None or place.distance:
        return
    counted = re.search("num|size|length|count", lacking[1])
    for argument in call.args if counted else ():
        if hasattr(place.value(argument), "__len__"):
            yield place.added(0.9, call, f"{lacking[1]}=len({place.text(argument)})")
    number_alone = counted or _annotated(function, lacking[1]) in ("int", "float")
    order = {name: at for at, name in enumerate(place.frame.f_locals)}
    taken = set(map(place.text, call.args))
    for name, value in place.frame.f_locals.items():
        if (
            name.startswith("_")
            or name in taken
            or inspect.ismodule(value)
            or isinstance(value, type)
            or (number_alone and not isinstance(value, (Tensor, int, float)))
        ):
            continue
        like = difflib.SequenceMatcher(None, name, lacking[1]).ratio()
        like *= like > _ALIKE
        number = isinstance(value, float) or (isinstance(value, Tensor) and value.numel() == 1)
        judged = lacking[1] == "metrics" and re.search("val|dev|eval|test", name) is not None
        late = order[name] / len(order)
        cost = (
            1.6
            - 0.5 * like
            - 0.3 * late
            - (0.4 + 0.4 * judged if number else 0)
            + (0 if isinstance(value, (Tensor, int, float)) else 0.5)
        )
        yield place.added(cost, call, name)
