"""Options switched, keywords left out, arguments added, functions of the same family."""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from nanlab.explanations.edits.batches import padded
from nanlab.explanations.edits.values import IGNORED, ignored
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
    number_of,
    signature,
    spelled,
    spliced,
)
from nanlab.operators import having

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
    " elementwise_affine"
).split()


# Sizes that do not fit because one of two tensors has a dimension less.
_RANKS = r"must match the size|unbatched|\d-?D\b"


def options(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """A call with other options."""
    function = place.value(call.func)
    if function is MISSING:
        return
    own = {k.arg: k for k in call.keywords}
    others = (k for n in place.source.nodes if isinstance(n, ast.Call) for k in n.keywords)
    elsewhere = {k.arg: place.text(k.value) for k in others if isinstance(k.value, ast.Constant)}
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
        given = own.get(name)
        lacks = name == "create_graph" and "does not require grad" in site.text
        lacks = lacks or (name == "strict" and _PARTIAL.search(site.text) is not None)
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
            elif isinstance(given.value, ast.Constant):
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
            for near in difflib.get_close_matches(keyword.arg, list(signature(function)), 2, 0.5):
                if near != keyword.arg and "keyword" in site.text:
                    yield place.replaced(0.4, (keyword, f"{near}={place.text(keyword.value)}"))


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
            size = known[name] if name in known else getattr(made, name, None)
            size = getattr(made, name, size) if size is inspect.Parameter.empty else size
            if name in own or type(size) is not int or size < 2:
                continue
            numbers = [n for n in site.sizes[:8] if n > size and n not in site.batch]
            for at, number in enumerate(numbers):
                if size in site.told or name not in known:
                    more = f"{name}={number}"
                    yield place.added(0.9 + 0.02 * at, call, more)


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


def reduced(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """One loss of all samples, where that of each sample was compared or differentiated."""
    for keyword in call.keywords if "Boolean value of Tensor" in site.text else ():
        if keyword.arg == "reduction":
            yield place.replaced(-0.3, (keyword, 'reduction="mean"'))
    if "scalar outputs" not in site.text or ".backward(" not in site.raised:
        return
    function = place.value(call.func)
    learned = isinstance(function, nn.Module) and any(True for _ in function.parameters())
    if learned or len(call.args) + len(call.keywords) < 2:
        return
    for node in place.source.nodes:  # elsewhere it is to give one for each sample
        if callee(node) in ("mean", "sum") and f"{place.text(call.func)}(" in place.source.part(
            node
        ):
            return
    for other in site.returns(function):
        value: Any = getattr(other.statement, "value", None)
        if not isinstance(value, ast.Tuple):
            loose = other.whole(value)
            yield other.replaced(0.3, (value, f"{loose}.mean()"))


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


def mapped_axes(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """An argument of what ``vmap`` gives that is the same for all."""
    function = place.value(call.func)
    if "in_dims" not in signature(function) or "mapped" not in site.text:
        return
    own = next((k.value for k in call.keywords if k.arg == "in_dims"), None)
    names = bound_by(place.statement)
    calls = [each for other in site.raising for each in other.calls()]
    for each in (c for c in calls if c.func is call or spelled(c.func) in names):
        count = len(each.args)
        axes = list(map(place.text, getattr(own, "elts", [own or ast.Constant(0)] * count)))
        axes = axes if all(axes) and len(axes) == count else ["0"] * count
        ranks = [getattr(site.raising[0].value(given), "ndim", 9) for given in each.args]
        for far, at in enumerate(sorted(range(count), key=ranks.__getitem__)):
            text = ", ".join("None" if n == at else axis for n, axis in enumerate(axes))
            if axes[at] != "None" and own is not None:
                yield place.replaced(0.2 + 0.02 * far, (own, f"({text})"))
            elif own is None:
                yield place.added(0.2 + 0.02 * far, call, f"in_dims=({text})")


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
    asks for."""
    for pattern, kind, left_out, more in _BESIDE:
        if not re.search(pattern, site.text):
            continue
        for source in site.program.texts:
            pairs: list[tuple[ast.AST, str]] = []
            for call in (n for n in source.nodes if isinstance(n, ast.Call)):
                names = [*signature(site.raising[0].value(call.func))]
                given = dict(zip(names, call.args, strict=False))
                named: dict[Any, Any] = {k.arg: k for k in call.keywords}
                refused = {*left_out.split()} & {*given, *named}
                lacks = more and more.partition("=")[0] in {*names} - {*given, *named}
                other = kind not in ("", callee(call)) or len(given) < len(call.args)
                if other or not (refused or lacks):
                    continue
                first = min((names.index(n) for n in refused & {*given}), default=len(names))
                kept = [(n, source.part(a)) for n, a in given.items() if n not in refused]
                texts = [f"{n}={s}" if names.index(n) > first else s for n, s in kept]
                texts += [source.part(k) for n, k in named.items() if n not in refused]
                texts += [more.format(*map(source.part, call.args))] * bool(lacks)
                pairs.append((call, f"{source.part(call.func)}({', '.join(texts)})"))
            yield Candidate(0.35, spliced(source, pairs))


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


def near_words(site: Site) -> Iterator[Candidate]:
    """A word that is refused as one that is known, wherever the program gives it."""
    known = {word for f in site.inner for word in _texts(f.f_code.co_consts)}
    known |= set(re.findall(r"[A-Za-z_]\w+", site.text))
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


def told_instead(site: Site) -> Iterator[Candidate]:
    """The function that the message names in the place of another."""
    names = [*re.findall(r"(?i)use `?([\w.]+)(?:\(\))?`? instead of `?([\w.]+)", site.text)]
    consider = re.findall(r"(\w+) does not support .*consider (\w+) instead", site.text)
    for new, old in [*names, *(pair[::-1] for pair in consider)]:
        for source in site.program.texts:
            calls = [node for node in source.nodes if isinstance(node, ast.Call)]
            heads = ((call.func, source.part(call.func)) for call in calls)
            ends = [(f, text) for f, text in heads if text.split(".")[-1] == old or text == old]
            pairs = [(f, text[: len(text) - len(old)] + new) for f, text in ends]
            yield Candidate(0.3, spliced(source, pairs))


# Layers that compute their weight anew each time, which a copy cannot take along.
_RENEWED = ("weight_norm", "spectral_norm")


def parametrized(site: Site) -> Iterator[Candidate]:
    """A weight that is computed anew, in the form that can be copied."""
    for source in site.program.texts if "deepcopy protocol" in site.text else ():
        pairs: list[tuple[ast.AST, str]] = []
        for node in source.nodes:
            if isinstance(node, ast.ImportFrom) and node.module == "torch.nn.utils":
                taken = [a for a in node.names if a.name in _RENEWED]
                rest = [a for a in node.names if a.name not in _RENEWED]
                froms = [(f"{node.module}.parametrizations", taken), (node.module, rest)]
                rows = [ast.unparse(ast.ImportFrom(name, of, 0)) for name, of in froms if of]
                pairs += [(node, "\n".join(rows))] * bool(taken)
            elif isinstance(node, ast.Attribute) and node.attr in _RENEWED:
                if source.part(node.value).endswith("utils"):
                    new = f"{source.part(node.value)}.parametrizations.{node.attr}"
                    pairs.append((node, new))
        yield Candidate(-0.1, spliced(source, pairs))


def by_sample(site: Site) -> Iterator[Candidate]:
    """Layers that normalise the batch as ones that normalise each sample, where ``vmap`` takes the
    samples one by one."""
    kind = nn.modules.batchnorm._BatchNorm
    counting = "mutate a captured" in site.text  # the batches, of which it keeps the number
    counting = counting and any(isinstance(each, kind) for each in site.running)
    if not counting and "Batch norm got a batched tensor" not in site.text:
        return
    for source in site.program.texts:
        pairs: list[tuple[ast.AST, str]] = []
        for call in (n for n in source.nodes if isinstance(n, ast.Call) and n.args):
            if re.fullmatch(r"BatchNorm\dd", callee(call)):
                head = source.part(call.func)[: -len(callee(call))]
                kept = [k for k in call.keywords if k.arg in ("eps", "affine")]
                more = "".join(f", {source.part(k)}" for k in kept)
                pairs.append((call, f"{head}GroupNorm(1, {source.part(call.args[0])}{more})"))
        if pairs:
            yield Candidate(0.3, spliced(source, pairs))
    for place in site.statements():
        made = place.result()
        if isinstance(made, nn.Module) and any(isinstance(m, kind) for m in made.modules()):
            name = "".join(bound_by(place.statement))
            new = f"torch.func.replace_all_batch_norm_modules_({name})"
            yield place.written(0.4, f"{{}}\n{new}")


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
    losses = [f.f_locals for f in site.inner if {"input", "target"} <= f.f_locals.keys()]
    scores, target = (losses[-1][name] if losses else None for name in ("input", "target"))
    labels = elements(target) if isinstance(target, Tensor) else set()
    classes = max(getattr(scores, "shape", ())[1:2], default=0)
    for number in dict.fromkeys(site.told) if "ignore_index" in known else ():
        constants = [n for n, v in numbers.items() if v == number and n.isupper()]
        apart = number > max(labels - {number}, default=number) + 1
        if number < 0 or (apart and (constants or number >= 2 * classes)):
            yield own.added(0.5, call, f"ignore_index={(*constants, number)[0]}")


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


# What makes one tensor, or array, of several; what joins its first dimensions.
_OF_SEVERAL = ("stack", "tensor", "array")
_JOINS = having("sized") | {"flatten"}
# Functions that are taken for each other.
_FAMILIES = (
    ("stack", "tensor", "cat"),
    ("view", "reshape"),
    ("matmul", "mm"),
    ("matmul", "bmm"),
    ("matmul", "mul"),
    ("mm", "mul"),
    ("kaiming_normal_", "zeros_"),
    ("kaiming_uniform_", "zeros_"),
    ("xavier_uniform_", "zeros_"),
    ("xavier_normal_", "zeros_"),
    ("orthogonal_", "zeros_"),
    ("binary_cross_entropy", "binary_cross_entropy_with_logits"),
    ("BCELoss", "BCEWithLogitsLoss"),
    ("Conv1d", "Conv2d", "Conv3d"),
    ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"),
    ("MaxPool1d", "MaxPool2d", "MaxPool3d"),
    ("AvgPool1d", "AvgPool2d", "AvgPool3d"),
    ("sample", "rsample"),
    ("from_numpy", "tensor"),
    ("append", "extend"),
    ("named_parameters", "parameters"),
    ("split", "chunk"),
)


def siblings(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """Another function called."""
    function = place.value(call.func)
    name = callee(call)
    head = place.text(call.func)[: -len(name)]
    parts: Any = place.value(call.args[0]) if name in _OF_SEVERAL and call.args else None
    known = isinstance(parts, (list, tuple)) and not any(each is MISSING for each in parts)
    if known and len({getattr(each, "shape", 0) for each in parts}) > 1:
        text = padded(list(parts), place.text(call.args[0]))
        yield place.replaced(0.6, (call, text))
        shapes = [getattr(each, "shape", ()) for each in parts]
        joins = (n for n in place.parts() if getattr(n, "attr", "") in _JOINS)
        joined = any(getattr(n, "value", n) is call for n in joins)
        several = joined or len(shapes) > 2 or len(shapes[-1]) > 1
        if several and len({*shapes[:-1]}) == 1 and shapes[0][1:] == shapes[-1][1:]:
            joining = "concatenate" if isinstance(parts[0], np.ndarray) else "cat"
            yield place.replaced(0.5, (call.func, f"{head}{joining}"))  # the last is smaller
    elif isinstance(parts, list) and parts and all(isinstance(each, list) for each in parts):
        rows = f"[{place.text(call.func)}(row) for row in {place.text(call.args[0])}]"
        yield place.replaced(0.6, (call, padded([torch.ones(len(r)) for r in parts], rows)))
    if "of square matrices" in site.text and name in ("solve", "inv"):
        least = f"{place.text(call).replace('solve(', 'lstsq(', 1)}.solution"
        yield place.replaced(0.4, (call, least) if name == "solve" else (call.func, f"{head}pinv"))
    if name == "ModuleList" and "ModuleList" in site.text and call.args:  # it was called
        yield place.replaced(0.4, (call, f"{head}Sequential(*{place.text(call.args[0])})"))
    yield from _turned(site, place, call, function)
    made = place.value(call.func.func) if isinstance(call.func, ast.Call) else function
    if isinstance(made, type) and issubclass(made, torch.autograd.Function):
        kind = call.func.func if isinstance(call.func, ast.Call) else call.func
        yield place.replaced(0.4, (call.func, f"{place.text(kind)}.apply"))
    if isinstance(function, type) and issubclass(function, nn.Module) and call.args:
        read = any(isinstance(place.value(node), Tensor) for node in call.args)
        made = [f.f_locals for f in site.inner if isinstance(f.f_locals.get("self"), function)]
        read = read or any(isinstance(v, Tensor) for names in made for v in names.values())
        read = read or re.search(rf"not {name}\b|'{name}' object", site.text) is not None
        if isinstance(call.func, ast.Attribute) and read:  # a name was bound without being built
            yield place.replaced(0.5, (call.func, f"{place.text(call.func)}()"))
    given = place.value(call.args[0]) if isinstance(function, nn.Embedding) and call.args else None
    if isinstance(given, Tensor) and given.requires_grad:  # how much of each row
        rows = f"{place.text(call.args[0])} @ {place.text(call.func)}.weight"
        yield place.replaced(0.5, (call, rows))
    for family in _FAMILIES:
        if "elements of target" in site.text:  # another loss would take them, and learn nothing
            break
        for other in family if name in family else ():
            if other != name:
                cost = 0.35 if "unpack" in site.text else 1.0
                yield place.replaced(cost, (call.func, f"{head}{other}"))
                same = [each for each in place.calls() if callee(each) == name]
                if len(same) > 1 and same[0] is call:
                    texts = (place.text(each.func)[: -len(name)] + other for each in same)
                    pairs = zip((each.func for each in same), texts, strict=True)
                    yield place.replaced(cost + 0.02, *pairs)
    if name == "next" and "not an iterator" in site.text:
        for given in call.args[:1]:
            yield place.replaced(0.3, (given, f"iter({place.text(given)})"))
    if name == "rsample":  # the gradient of the probabilities for that of what is drawn
        drawn = f"{head}sample() + {head}probs - {head}probs.detach()"
        yield place.replaced(0.8, (call, f"({drawn})"))
    if function is not MISSING and not callable(function):  # an attribute, not a method
        if isinstance(function, (torch.optim.Optimizer, LRScheduler)):
            yield place.replaced(0.4, (call.func, f"{place.text(call.func)}.step"))
            return
        given = ", ".join(map(place.text, call.args))
        text = place.text(call.func)
        yield place.replaced(0.6, (call, f"{text}[{given}]" if given else text))
        if len(call.args) == 1 and (type(function) in (int, float) or _is_scale(function)):
            factor = f"({given})" if isinstance(call.args[0], ast.BinOp) else given
            yield place.replaced(0.5, (call, f"{text} * {factor}"))
    if name in ("numpy", "item", "tolist"):
        yield place.replaced(0.8, (call.func, f"{head}detach().{name}"))
    if name == "item":
        count = isinstance(getattr(call.func, "value", None), ast.Compare)
        yield place.replaced(0.9, (call.func, f"{head}{'sum' if count else 'mean'}().{name}"))
    if name == "permute" and len(call.args) > 2:
        rank = 4 if len(call.args) == 3 else 3
        turned = (0, rank - 1, *range(1, rank - 1)) if rank == 4 else (0, 2, 1)
        yield place.replaced(0.9, (call, f"{place.text(call.func)}{turned}"))


def _is_scale(value: Any) -> bool:
    """Whether a value is a tensor to multiply with."""
    return isinstance(value, Tensor) and value.is_floating_point()


def _turned(site: Site, place: Place, call: ast.Call, function: Any) -> Iterator[Candidate]:
    """A layer that keeps the shape, given its channels where it looks for them, and its result
    turned back."""
    if not isinstance(function, nn.Module) or len(call.args) != 1:
        return
    text = place.text(call.args[0])
    given = place.value(call.args[0])
    if getattr(function, "num_features", 0) in getattr(given, "shape", ())[2:]:
        turned = f"{place.text(call.func)}({text}.movedim(-1, 1)).movedim(1, -1)"
        yield place.replaced(0.5, (call, turned))
    told = re.search(r"normalized_shape=\[(\d+)\].*size\[(\d+, (\d+), [\d, ]+)\]", site.text)
    if told is not None and told[1] == told[3] and isinstance(function, nn.LayerNorm):
        rank = len(told[2].split(", "))
        there, back = (0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))
        loose = place.whole(call.args[0])
        whole = f"{place.text(call.func)}({loose}.permute{there}).permute{back}"
        yield replace(place, distance=0.0).replaced(0.3, (call, whole))


def norms_of_channels(site: Site) -> Iterator[Candidate]:
    """A layer that normalises the channels of each sample where they come second, for one that
    takes them last."""
    told = re.search(r"normalized_shape=\[(\d+)\].*size\[\d+, (\d+), [\d, ]+\]", site.text)
    for source in site.program.texts if told is not None and told[1] == told[2] else ():
        calls = [n for n in source.nodes if isinstance(n, ast.Call) and len(n.args) == 1]
        own = [n for n in calls if callee(n) == "LayerNorm"]
        heads = [source.part(n.func)[: -len("LayerNorm")] for n in own]
        texts = [
            f"{h}GroupNorm(1, {source.part(n.args[0])})" for h, n in zip(heads, own, strict=True)
        ]
        yield Candidate(0.38, spliced(source, [*zip(own, texts, strict=True)]))


def equations(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """An equation of ``einsum`` with the dimensions that it lacks, or other letters."""
    equation = place.value(call.args[0]) if callee(call) == "einsum" and call.args else None
    if not isinstance(equation, str) or "->" not in equation:
        return
    left, _, right = equation.replace(" ", "").partition("->")
    parts, texts = left.split(","), list[str]()
    if "number of subscripts" in site.text:
        given = [v for v in map(place.value, call.args[1:]) if isinstance(v, Tensor)]
        pairs = [(p, v.shape) for p, v in zip(parts, given, strict=False) if len(p) == v.ndim]
        sizes = {c: n for part, shape in pairs for c, n in zip(part, shape, strict=True)}
        for part, node in zip(parts, call.args[1:], strict=False):
            value = place.value(node)
            fits = isinstance(value, Tensor) and value.ndim < len(part) and {*part} <= {*sizes}
            if fits and math.prod(sizes[c] for c in part) == value.numel():
                rest = [place.named_number(sizes[c]) for c in part[1:]]
                yield place.replaced(0.3, (node, f"{place.text(node)}.view(-1, {', '.join(rest)})"))
        ranks = [(part, value.ndim) for part, value in zip(parts, given, strict=False)]
        more = ["..." * (n > len(part)) + part for part, n in ranks]
        texts.append(f"{','.join(more)}->...{right}")
    for at in range(len(right)):
        for other in sorted({*left} - {*right, ",", "."}):
            texts.append(f"{left}->{right[:at]}{other}{right[at + 1 :]}")
    shapes = [getattr(place.value(given), "shape", ()) for given in call.args[1:]]
    texts += (f"{','.join(each)}->{right}" for each in _other_letters(parts, right, shapes))
    rank = len(parts[0]) if len({*map(len, parts)}) == 1 else 0
    for a, b in itertools.combinations(range(rank), 2):
        order = list(range(rank))
        order[a], order[b] = b, a  # the dimensions of all operands in another order
        texts.append(f"{','.join(''.join(part[n] for n in order) for part in parts)}->{right}")
    for at, text in enumerate(texts):
        yield place.replaced(0.5 + 0.02 * at, (call.args[0], repr(text)))


def _other_letters(parts: list[str], right: str, shapes: list[Any]) -> Iterator[list[str]]:
    """The subscripts of operands with one other letter or two that changed places, where each
    letter then stands for one size; those of the last operand first."""
    for at, part in reversed(list(enumerate(parts))):
        lacking = sorted({*right} - {*"".join(parts)})
        others = [part[:n] + c + part[n + 1 :] for n in range(len(part)) for c in lacking]
        for a, b in itertools.combinations(range(len(part)), 2):
            swap = {part[a]: part[b], part[b]: part[a]}
            others.append("".join(swap.get(c, c) for c in part))
        for other in others:
            new = [*parts[:at], other, *parts[at + 1 :]]
            named = [(p, s) for p, s in zip(new, shapes, strict=False) if len(p) == len(s)]
            pairs = {pair for p, s in named for pair in zip(p, s, strict=True)}
            if len(pairs) == len({c for c, _ in pairs}) and {*right} <= {*"".join(new)}:
                yield new


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
        near = difflib.get_close_matches(told[1], [*known], 1, 0.7)
        for source in site.program.texts if near else ():
            dicts = [n for n in source.nodes if isinstance(n, ast.Dict)]
            keys = [k for n in dicts for k in n.keys if getattr(k, "value", None) == told[1]]
            yield Candidate(0.3, spliced(source, [(k, f'"{near[0]}"') for k in keys if k]))
        text = place.text(whole[-1])
        rest = f'{{k: v for k, v in {text}.items() if k != "{told[1]}"}}'
        yield replace(place, distance=0.0).replaced(0.5, (whole[-1], rest))


def alone(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """A share of the data for each process, where there is one process."""
    known = signature(place.value(call.func))
    if "process group" in site.text and {"num_replicas", "rank"} <= {*known}:
        yield place.added(0.3, call, "num_replicas=1, rank=0")


def picked(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """One element of each row, by an index that has a number for each row."""
    at, index = call.args[-2:] if len(call.args) > 1 else (call, call)
    number, given = place.value(at), place.value(index)
    if callee(call) != "gather" or "number of dimensions" not in site.text:
        return
    if type(number) is int and isinstance(given, Tensor) and number in (given.ndim, -1):
        d, text = place.text(at), place.text(index)
        head = place.text(call)[: -len(text) - 1]
        whole = f"{head}{text}.unsqueeze({d}))"
        squeezed = any(isinstance(n, ast.Attribute) and n.value is call for n in place.parts())
        yield place.replaced(0.3, (call, whole if squeezed else f"{whole}.squeeze({d})"))


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
    if not 0 < at < len(known) or isinstance(call.args[at], ast.Starred) or place.distance:
        return
    names, text = [*known], place.text(call.args[at])
    words, refused = re.findall("[a-z]{3,}", text.lower()), "positional argument" in site.text
    for name in names[at:] if refused else names[at + 1 :] if known[names[at]] is None else ():
        if (refused or known[name] is None) and name not in taken:
            cost = 0.3 if refused or any(word in name for word in words) else 0.9
            yield place.replaced(cost, (call.args[at], f"{name}={text}"))


_ALIKE = 0.6  # names that have less in common have nothing to do with each other
_BETTER = 0.5  # how much better two arguments fit the names of two parameters, if they are swapped


def _named_alike(text: str, name: str) -> float:
    """How much an argument has in common with the name of a parameter."""
    like = difflib.SequenceMatcher(None, text.rpartition(".")[2].lower(), name).ratio()
    return like * (like > _ALIKE)


def uncalled(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """A function given to a call, for what it returns: ``checkpoint(f, x)``, ``vmap(f)(x)``."""
    keywords = [keyword.value for keyword in call.keywords]
    for given in (*call.args, *keywords) if "not callable" in site.text else ():
        if isinstance(given, ast.Call):
            yield place.replaced(0.45 - 0.1 * (given in keywords), (given, place.text(given.func)))
        if isinstance(given, ast.Call) and given not in keywords:
            name, inner = place.text(given.func), [*given.args, *given.keywords]
            more = ", ".join(map(place.text, inner))
            yield place.replaced(0.35, (given, f"{name}, {more}" if more else name))
            rest = [place.text(n) for n in (*call.args, *call.keywords) if n is not given]
            made = f"{place.text(call.func)}({', '.join((name, *rest))})"
            yield place.replaced(0.4, (call, f"{made}({more})"))


def exchanged(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """Two arguments, each of which is named as the parameter of the other is."""
    names = [name for name in signature(place.value(call.func)) if name != "self"]
    pairs = zip(call.args, names, strict=False)
    for (a, x), (b, y) in itertools.combinations(pairs, 2):
        first, second = place.text(a), place.text(b)
        now = _named_alike(first, x) + _named_alike(second, y)
        if _named_alike(second, x) + _named_alike(first, y) > now + _BETTER:
            sure = (first, second) == (y, x)
            cost = -0.05 if sure else 0.35
            yield replace(place, distance=0.0).replaced(cost, (a, second), (b, first))


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


def of_one_number(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """The sum of what a model gives, where ``grad`` asks for one number."""
    asked = "to return a scalar" in site.text and callee(call).split("_")[0] in ("grad", "value")
    for given in call.args[:1] if asked else ():
        if isinstance(place.value(given), nn.Module):
            text = place.text(given)
            yield place.replaced(0.3, (given, f"lambda *args: {text}(*args).sum()"))
        for other in site.returns(place.value(given)):
            value: Any = getattr(other.statement, "value", None)
            if not isinstance(value, (ast.Tuple, ast.BinOp)):
                text = f"{other.text(value)}.mean()"
                yield replace(other, distance=0.0).replaced(0.3, (value, text))


def of_other_widths(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """The width of what attention looks at, told where it is not that of what asks."""
    frames = [f.f_locals for f in site.inner if hasattr(f.f_locals.get("self"), "embed_dim")]
    known = [names for names in frames if {"query", "key", "value"} <= names.keys()]
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
    for argument in call.args if re.search(r"num|size|length|count", lacking[1]) else ():
        if hasattr(place.value(argument), "__len__"):
            yield place.added(0.9, call, f"{lacking[1]}=len({place.text(argument)})")
    order = {name: at for at, name in enumerate(place.frame.f_locals)}
    taken = set(map(place.text, call.args))
    for name, value in place.frame.f_locals.items():
        if (
            name.startswith("_")
            or name in taken
            or inspect.ismodule(value)
            or isinstance(value, type)
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
