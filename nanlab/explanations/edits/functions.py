"""Another function called, or a function called in another way."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from nanlab.explanations.edits.batches import padded
from nanlab.explanations.edits.texts import Read, chain
from nanlab.explanations.site import (
    MISSING,
    Candidate,
    Place,
    Site,
    Tensor,
    bound_by,
    bound_value,
    callee,
    is_return,
    signature,
    spelled,
    spliced,
)
from nanlab.operators import having


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
    made = type(function).__name__ if isinstance(function, nn.Module) else callee(call)
    uses = [(p, c) for p in site.statements() for c in p.calls() if callee(c) == made]
    options = {pair for p in site.returns(function) for pair in _choices(p.function)}
    for (own, use), (name, word) in itertools.product(uses, sorted(options)):
        given = dict(zip(signature(own.value(use.func)), use.args, strict=False))
        given |= {k.arg: k.value for k in use.keywords}  # type: ignore[misc]
        old, cost = given.get(name), 0.27 - 0.02 * ("mean" in word)
        yield own.replaced(cost, (old, word)) if old else own.added(cost, use, f"{name}={word}")
    for other in site.returns(function):
        value: Any = getattr(other.statement, "value", None)
        if not isinstance(value, ast.Tuple):
            loose = other.whole(value)
            yield other.replaced(0.3, (value, f"{loose}.mean()"))


def _choices(function: Any) -> Iterator[tuple[str, str]]:
    """The parameters by which a function chooses, each with a value that it knows."""
    for node in (n for n in ast.walk(function) if isinstance(n, (ast.If, ast.IfExp))):
        test: Any = node.test
        words = getattr(test, "comparators", [])
        word = getattr(words[0], "value", None) if words else True
        if (name := spelled(getattr(test, "left", test))) and isinstance(word, (str, bool)):
            yield name.removeprefix("self."), f'"{word}"' if words else "True"


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
    counting = "mutate a captured" in site.text  # the batches, whose number it keeps
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
        if not isinstance(parts[0], np.ndarray):
            yield place.replaced(0.6, (call, padded(list(parts), place.text(call.args[0]))))
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
    if name == "ModuleList" and "ModuleList" in site.text:  # it was called
        parts_of = f"*{place.text(call.args[0])}" if call.args else ""
        yield place.replaced(0.4, (call, f"{head}Sequential({parts_of})"))
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
        if read:
            yield from _made_where_bound(site, place, call.func)
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
                told = "unpack" in site.text or f".{other}(" in site.text
                cost = 0.3 if told else 1.0
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


def _made_where_bound(site: Site, place: Place, function: ast.expr) -> Iterator[Candidate]:
    """An instance where a class was bound to a name, chosen from a table or given as an argument:
    as far back as it is not said to be a class."""
    _, *later = chain(site, [Read(place, function)])
    own = [Read(place, function)]
    for read in later:
        written = read.node in ast.walk(read.place.statement)  # no default of a parameter
        written = written and not isinstance(read.place.statement, ast.AnnAssign)  # nor of a field
        if not written or _OF_CLASSES.search(own[-1].place.text(own[-1].node).lower()):
            break
        own.append(read)
    at, node = own[-1].place, own[-1].node
    if len(own) > 1:
        kinds = [n for n in ast.walk(node) if isinstance(n, ast.IfExp)]
        ends: list[ast.AST] = [n for kind in kinds for n in (kind.body, kind.orelse)] or [node]
        ends = [n for n in ends if n not in kinds]
        pairs = [(n, f"{at.text(n)}()") for n in ends]
        yield replace(at, distance=0.0).replaced(0.3, *pairs)
    rows = [each for each in site.statements() if is_return(each.statement)]
    named = [each for each in rows if getattr(each.function, "name", "") == (callee(node) or None)]
    given = named if len({id(each.function) for each in named}) == 1 else []
    results = [(each, each.statement.value) for each in given]  # type: ignore[attr-defined]
    made = [each.replaced(0.0, (n, f"{each.text(n)}()")) for each, n in results]
    if made and not any(isinstance(n, (ast.Call, ast.Tuple)) for _, n in results):
        yield Candidate(0.28, tuple(edit for each in made for edit in each.edits))


def instances_kept(site: Site) -> Iterator[Candidate]:
    """An instance where an object keeps a class, which its methods call with data."""
    held = [value for frame, _ in site.frames for value in frame.f_locals.values()]
    pairs = [pair for o in (*held, *site.modules) for pair in getattr(o, "__dict__", {}).items()]
    told = {*re.findall(r"\b[A-Z]\w+", site.text)}
    kept = {name for name, v in pairs if isinstance(v, type) and v.__name__ in told}
    for place in site.statements() if kept else ():
        for call in place.calls():
            if spelled(call.func).removeprefix("self.") in kept and call.args:
                yield from _made_where_bound(site, place, call.func)


_OF_CLASSES = re.compile(r"(cls|class|type|ctor|factory|constructor)$")


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
    for each in _letters_of_sizes(parts, right, shapes):
        text = f"{','.join(each)}->{right}"
        yield place.replaced(0.45, (call.args[0], repr(text)))
    texts += (f"{','.join(each)}->{right}" for each in _other_letters(parts, right, shapes))
    rank = len(parts[0]) if len({*map(len, parts)}) == 1 else 0
    for a, b in itertools.combinations(range(rank), 2):
        order = list(range(rank))
        order[a], order[b] = b, a  # the dimensions of all operands in another order
        texts.append(f"{','.join(''.join(part[n] for n in order) for part in parts)}->{right}")
    for at, text in enumerate(texts):
        yield place.replaced(0.5 + 0.02 * at, (call.args[0], repr(text)))


def _letters_of_sizes(parts: list[str], right: str, shapes: list[Any]) -> Iterator[list[str]]:
    """The subscripts of operands in which a letter that stands for two sizes is, for one of them,
    the letter that has that size in another operand alone."""
    known = [(p, s) for p, s in zip(parts, shapes, strict=False) if len(p) == len(s)]
    pairs = {pair for p, s in known for pair in zip(p, s, strict=True)}
    letters = [c for c, _ in pairs]
    for at, (part, shape) in enumerate(known if len(known) == len(parts) else ()):
        others = "".join(parts[:at] + parts[at + 1 :])
        for n, (letter, size) in enumerate(zip(part, shape, strict=True)):
            alone = (c for c, m in sorted(pairs) if m == size and letters.count(c) == 1)
            for c in alone if letters.count(letter) > 1 and letter in others else ():
                if c not in part and others.count(c) == 1 and c not in right:
                    yield [*parts[:at], part[:n] + c + part[n + 1 :], *parts[at + 1 :]]


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


def encoder_alone(site: Site) -> Iterator[Candidate]:
    """The encoder of a model, where its decoder was given nothing."""
    running = [f.f_locals.get("self") for f in site.inner]
    for place in site.raising:
        for call in place.calls():
            model = place.value(call.func)
            if not isinstance(model, nn.Module):
                continue
            parts: dict[str, Any] = vars(model)["_modules"]
            text = f"{place.text(call.func)}.encoder"
            if "encoder" not in parts and hasattr(model, "get_encoder"):
                own: Any = model
                parts = {"encoder": own.get_encoder(), "decoder": own.get_decoder()}
                text = f"{place.text(call.func)}.get_encoder()"
            asked = any(each is parts.get("decoder") for each in running if each is not None)
            if "encoder" in parts and (asked or re.search("'tgt'|decoder_input", site.text)):
                yield replace(place, distance=0.0).replaced(0.35, (call.func, text))


def reduced_before(site: Site) -> Iterator[Candidate]:
    """Groups of different sizes, each reduced before they are stacked: filled up they would give
    another mean."""
    place = site.raising[0]
    stacks = [c for c in place.calls() if callee(c) == "stack" and len(c.args) == 1]
    for stack in stacks if "equal size" in site.text else ():
        names = bound_by(place.statement) if bound_value(place, "") is stack else []
        for use in ast.walk(place.function or place.source.tree):
            if not isinstance(use, ast.Call) or callee(use) not in _REDUCING:
                continue
            given: list[Any] = [getattr(use.func, "value", use), *use.args, *use.keywords]
            own = [n for n in given if n is stack or spelled(n) in names]
            rest = [n for n in given[1:] if n not in own]
            first = getattr(rest[0], "value", rest[0]) if rest and len(own) == 1 else use
            dim = place.value(first if isinstance(first, ast.expr) else rest[0])
            if type(dim) is not int or dim == 0:
                continue
            more = "".join(f", {place.text(n)}" for n in rest[1:])
            call = f".{callee(use)}(dim={dim - (dim > 0)}{more})"
            listed: Any = stack.args[0]
            each = getattr(listed, "elt", None)
            text = f"[each{call} for each in {place.text(listed)}]"
            if each is not None:
                text = place.text(listed).replace(place.text(each), place.whole(each) + call, 1)
            text = f"{place.text(stack.func)}({text})"
            pairs = [(use, text)] if own == [stack] else [(stack, text), (use, place.text(own[0]))]
            yield Candidate(0.2, spliced(place.source, pairs))


_REDUCING = having("reduces")


def picked(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """One element of each row, by an index that has a number for each row."""
    if callee(call) != "gather" or "number of dimensions" not in site.text:
        return
    named = {k.arg: k.value for k in call.keywords}
    plain = isinstance(place.value(getattr(call.func, "value", call)), ModuleType)
    rest = call.args[plain:]
    of = named.get("input") or (call.args[0] if plain else call.func.value)  # type: ignore
    at = named.get("dim") or next(iter(rest), call)
    index = named.get("index") or rest[-1]
    number, given = place.value(at), _computed(place, index)
    yield from _of_vectors(place, call, of, number, index)
    if type(number) is int and isinstance(given, Tensor) and number in (given.ndim, -1):
        d, text = place.text(at), place.text(index)
        head = place.text(call)[: -len(text) - 1]
        whole = f"{head}{text}.unsqueeze({d}))"
        squeezed = any(isinstance(n, ast.Attribute) and n.value is call for n in place.parts())
        yield place.replaced(0.3, (call, whole if squeezed else f"{whole}.squeeze({d})"))


def _computed(place: Place, node: ast.AST) -> Any:
    """What an expression stands for, if all that is computed for it are indices."""
    kinds = (ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Subscript, ast.Slice, ast.Tuple)
    value = place.value(node)
    parts = [n for n in ast.walk(node) if isinstance(n, (ast.expr, ast.slice))]
    names = {n.id: place.value(n) for n in parts if isinstance(n, ast.Name)}
    known = all(isinstance(v, (Tensor, int)) for v in names.values())
    if value is MISSING and known and all(isinstance(n, kinds) for n in parts):
        with suppress(Exception):
            return eval(ast.unparse(node), {"__builtins__": {}}, names)
    return value


def _of_vectors(
    place: Place, call: ast.Call, of: ast.expr, dim: Any, index: ast.expr
) -> Iterator[Candidate]:
    """Whole vectors gathered by an index that has a number for each of them: one of each sequence,
    or several."""
    whole, given = _computed(place, of), _computed(place, index)
    if type(dim) is not int or not isinstance(whole, Tensor) or not isinstance(given, Tensor):
        return
    dim, rank = dim % whole.dim(), given.dim()
    if given.shape[:dim] != whole.shape[:dim] or not dim <= rank < whole.dim():
        return
    one = rank == dim  # a number alone for each: the dimension is lost
    if one and rank == whole.dim() - 1:
        return
    text, loose = place.text(of), place.whole(index)
    more = (whole.dim() - rank) * ", None"
    sizes = [f"{text}.size({n})" for n in range(max(rank, dim + 1), whole.dim())]
    spread = ", ".join(["-1"] * (whole.dim() - len(sizes)) + sizes)
    head = f"[{', '.join(rank * ':')}{more}]" if rank < 3 else f"[...{more}]"
    new = f"{loose}{head}.expand({spread})"
    squeezed = any(isinstance(n, ast.Attribute) and n.value is call for n in place.parts())
    at = replace(place, distance=0.0)
    if not one or squeezed:
        yield at.replaced(0.25, (index, new))
    if one and not squeezed:
        own = place.text(call)
        start = own.rindex(place.text(index))
        gathered = own[:start] + new + own[start + len(place.text(index)) :]
        yield at.replaced(0.25, (call, f"{gathered}.squeeze({dim})"))


def uncalled(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """A function given to a call, for what it returns: ``checkpoint(f, x)``, ``vmap(f)(x)``; a
    class for its instance."""
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
    options = [place.value(node) for node in (*call.args, *keywords)]
    plain = not any(each is MISSING or isinstance(each, Tensor) for each in options)
    if place is site.raising[0] and plain and _OF_INSTANCE.search(site.text):
        yield from _built_where_kept(site, call)


# What an instance says that is called as its class would be.
_OF_INSTANCE = re.compile(r"\w+\.(forward|__call__)\(\) (got an unexp|takes|missing)|not callable")


def _built_where_kept(site: Site, call: ast.Call) -> Iterator[Candidate]:
    """Classes in place of their instances, where what is looked up in a dict, or has a name, is
    called with options."""
    looked_up = isinstance(call.func, ast.Subscript)
    name = spelled(getattr(call.func, "value", call) if looked_up else call.func)
    for place in site.statements() if name and (looked_up or call.args or call.keywords) else ():
        value: Any = getattr(place.statement, "value", None)
        targets = [getattr(n, "value", n) for n in getattr(place.statement, "targets", [])]
        kept = value.values if isinstance(value, ast.Dict) else [value]
        built = [v for v in kept if isinstance(v, ast.Call) and not (v.args or v.keywords)]
        if name in map(spelled, targets):
            pairs = [(each, place.text(each.func)) for each in built]
            yield replace(place, distance=0.0).replaced(0.25, *pairs)


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


def layer_by_layer(site: Site, place: Place) -> Iterator[Candidate]:
    """Layers of several arguments called one after the other: a Sequential hands on one alone."""
    if "Sequential.forward() takes" not in site.text:
        return
    for call in place.calls():
        if not isinstance(place.value(call.func), nn.Sequential) or not call.args:
            continue
        first, name = call.args[0], place.text(call.args[0])
        given = ", ".join(place.text(each) for each in (*call.args, *call.keywords))
        kept = name if isinstance(first, ast.Name) else "hidden"
        head = "" if kept == name else f"{kept} = {name}\n"
        given = kept + given[len(name) :]
        loop = f"for layer in {place.text(call.func)}:\n    {kept} = layer({given})\n"
        row = place.text(place.statement).replace(place.text(call), kept, 1)
        yield place.written(0.25 - place.distance, f"{head}{loop}{row}")


def of_two_dimensions(site: Site) -> Iterator[Candidate]:
    """Parameters of fewer dimensions than an initialiser needs passed over, where each of a model
    is initialised: biases, and what norms scale with."""
    place = site.raising[0]
    needed = re.search(r"fewer than 2 dimensions|with 2( or more)? dimensions", site.text)
    for call in place.calls() if needed is not None else ():
        given = call.args[0] if call.args else None
        value = place.value(given) if given is not None else MISSING
        if given is None or not isinstance(value, Tensor) or value.dim() > 1:
            continue
        text = place.text(given)
        if isinstance(given, ast.Attribute) and given.attr == "bias":  # it never has more
            continue
        for each in place.parts():
            for loop in getattr(each, "generators", []):
                if spelled(loop.target) == text:
                    more = f"{place.text(loop.iter)} if {text}.dim() > 1"
                    yield place.replaced(0.2, (loop.iter, more))
        if isinstance(place.statement, ast.Expr) and place.statement.value is call:
            inner = f"if {text}.dim() > 1:\n    {place.text(call)}"
            line = place.source.lines[place.statement.lineno - 1]
            if line[: place.statement.col_offset].strip():  # on the line of what it belongs to
                heads = [n for n in place.source.nodes if place.statement in _body(n)]
                for head in heads:
                    first = line[: place.statement.col_offset].strip()
                    rows = "\n".join("    " + row for row in inner.splitlines())
                    if isinstance(head, ast.stmt) and head.lineno == place.statement.lineno:
                        own = replace(place, statement=head)
                        yield own.written(0.2, f"{first}\n{rows}")
            else:
                yield place.written(0.2, inner)


def _body(node: ast.AST) -> list[ast.stmt]:
    body = getattr(node, "body", [])
    return body if isinstance(body, list) else []


_INVERSES = {"irfft": ("rfft", "n={}.size({})"), "irfft2": ("rfft2", "s={}.shape[-2:]")}


def of_the_length(site: Site) -> Iterator[Candidate]:
    """A transform undone to the length that it was made of: without, an odd one becomes even."""
    sized = [
        (place, call)
        for place in site.statements()
        for call in place.calls()
        if callee(call) in _INVERSES and len(call.args) == 1
    ]
    for place, call in sized if re.search(r"size|shape", site.text) else ():
        forward, option = _INVERSES[callee(call)]
        own = {k.arg: place.text(k.value) for k in call.keywords}
        if not own.keys() <= ({"dim", "norm"} if "{}.size" in option else {"norm"}):
            continue
        around = place.function or place.source.tree
        made = [n for n in ast.walk(around) if isinstance(n, ast.Call) and callee(n) == forward]
        for name in dict.fromkeys(spelled(n.args[0]) for n in made if n.args):
            if name:
                more = option.format(name, own.get("dim", "-1"))
                yield replace(place, distance=0.0).added(0.3, call, more)


def states_in_one(site: Site) -> Iterator[Candidate]:
    """Parameters and buffers together, as ``torch.func.functional_call`` takes them."""
    for place in site.raising:
        for call in (c for c in place.calls() if callee(c) == "functional_call"):
            if len(call.args) > 3 and all(isinstance(place.value(a), dict) for a in call.args[1:3]):
                rest = ", ".join(map(place.text, call.args[3:]))
                rest = f"({rest},)" if len(call.args) == 4 else f"({rest})"
                module, parameters, buffers = map(place.text, call.args[:3])
                new = f"{module}, ({parameters}, {buffers}), {rest}"
                text = f"{place.text(call.func)}({new})"
                yield replace(place, distance=0.0).replaced(0.2, (call, text))


_LISTED = re.compile(r"parameter_and_buffer_dicts|'(list|tuple)' object has no attribute|dict-like")


def by_their_names(site: Site) -> Iterator[Candidate]:
    """What is computed of each parameter, as a dict with the names of the parameters."""
    for source in site.program.texts if _LISTED.search(site.text) else ():
        calls = [n for n in source.nodes if isinstance(n, ast.Call) and n.args]
        around = {id(n.args[0]): n for n in calls if callee(n) in ("list", "tuple")}
        lists = [n for n in source.nodes if isinstance(n, (ast.ListComp, ast.GeneratorExp))]
        for node in (n for n in lists if len(n.generators) == 1):
            head: Any = node.generators[0]
            rows = head.iter
            zipped = callee(rows) == "zip" and isinstance(head.target, ast.Tuple)
            first = rows.args[0] if zipped and rows.args else rows
            new = _NAMED.get(callee(first))
            if new is None:
                continue
            target = head.target.elts[0] if zipped else head.target
            text = f"name, {source.part(target)}"
            whole = source.part(rows).replace(f".{callee(first)}(", f".{new}(", 1)
            each = source.part(head.target)[len(source.part(target)) :] if zipped else ""
            inner = f"({text}){each}" if zipped else text
            tests = "".join(f" if {source.part(test)}" for test in head.ifs)
            made = f"{{name: {source.part(node.elt)} for {inner} in {whole}{tests}}}"
            yield Candidate(0.2, spliced(source, [(around.get(id(node), node), made)]))


# What gives the parts of a dict, or parameters, without their names, and what gives both.
_NAMED = {"values": "items", "parameters": "named_parameters", "buffers": "named_buffers"}
