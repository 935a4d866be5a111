"""Distributions and matrices: parameters, values and events that they take."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Any

import torch

from nanlab.explanations.site import (
    MISSING,
    Candidate,
    Place,
    Site,
    Tensor,
    bound_by,
    bound_value,
    callee,
    names_in,
    number_of,
    signature,
    spelled,
)
from nanlab.operators import having


def allowed(site: Site, place: Place) -> Iterator[Candidate]:
    """A parameter of a distribution mapped into what the distribution takes."""
    drawn = [c for c in place.calls() if callee(c) == "multinomial" and c.args]
    for node in (c.args[0] for c in drawn if "invalid multinomial" in site.text):
        yield place.replaced(0.3, (node, f"{place.text(node)} + 1e-6"))
    for node in (c.args[0] for c in drawn if "probability tensor" in site.text):
        scores, logs = place.value(node), callee(node) == "log_softmax"
        yield from _left_out(site, place, scores)
        if logs or (isinstance(scores, Tensor) and bool((scores < math.inf).all())):
            logs = logs or bool((scores <= 0).all())
            form = "exp()" if logs else "softmax(-1)"
            loose = place.whole(node)
            yield place.replaced(0.3, (node, f"{loose}.{form}"))
    refused = re.search(r"Expected parameter (\w+) (?s:.*)the constraint (\w+)", site.text)
    refused = refused or re.search(r"(\w+) has (negative) entr", site.text)
    whole = "\n".join(source.text for source in site.program.texts)
    logarithms = re.search(_LOGARITHM, whole)  # by their names
    half = logarithms is not None and "var" in logarithms[1].lower() and "stddev" not in whole
    for call in place.calls() if refused is not None else ():
        keywords = {id(each.value): each for each in call.keywords}
        others = signature(place.value(call.func))
        for node in (*call.args, *(each.value for each in call.keywords)):
            name, text = site.roles.get(id(node)), place.text(node)
            if refused is None or name != refused[1]:
                continue
            own, made = _made_not_negative(site, place, node)
            if refused[2].startswith(("Greater", "negative")) and made is not None:
                yield own.replaced(0.4, (made, _positive(own, made)))
            elif refused[2].startswith(("Greater", "negative")):
                yield from _exponent(site, place, node, half)
                new = _root(refused[1], place.whole(node), half)
                yield place.replaced(0.3 if logarithms or "log" in text else 0.5, (node, new))
                yield place.replaced(0.4, (node, f"torch.nn.functional.softplus({text})"))
            elif name == "probs" and "logits" in others:
                yield from _left_out(site, place, place.value(node))
                yield place.replaced(0.3, (keywords.get(id(node), node), f"logits={text}"))
        if refused is not None and refused[1] not in others and "Greater" in site.text:
            texts = [f"torch.nn.functional.softplus({place.text(node)})" for node in call.args]
            if any(isinstance(place.value(node), Tensor) for node in call.args):
                yield place.replaced(0.5, *zip(call.args, texts, strict=True))


def _made_not_negative(site: Site, place: Place, node: ast.AST) -> tuple[Place, ast.Call | None]:
    """The call that gives a parameter, if it gives no negative number, and where it stands."""
    bound = site.binding(place, node)
    if bound is not None and bound.function is place.function:
        place, node = replace(bound, distance=0.0), bound_value(bound, spelled(node))
    known = isinstance(node, ast.Call) and callee(node) in having("non_negative")
    return place, node if known and isinstance(node, ast.Call) else None


def _positive(place: Place, made: ast.Call) -> str:
    """What gives positive numbers instead of such as may be 0: softplus in place of relu."""
    given = made.args or ([made.func.value] if isinstance(made.func, ast.Attribute) else [])
    if callee(made) == "relu" and given:
        return f"torch.nn.functional.softplus({place.text(given[0])})"
    return f"{place.text(made)} + 1e-6"


_LOGARITHM = re.compile(r"(?i)log_?\w*(std|sigma|scale|dev|var|rate)")
# Half of a logarithm: that of a root, as of a standard deviation by that of a variance.
_HALVED = re.compile(
    r"(?i)0?\.5 ?\* ?\S*log|log\w*(\(.*\))?( ?/ ?2| ?\* ?0?\.5|\.mul\(0?\.5\)|\.div\(2\))"
)


def _root(name: str, text: str, variances: bool) -> str:
    """The exponential of a logarithm, as the parameter of this name takes it."""
    halved = variances and name == "scale" and not _HALVED.search(text)
    return f"(0.5 * {text}).exp()" if halved else f"{text}.exp()"


def _exponent(site: Site, place: Place, node: ast.expr, variances: bool) -> Iterator[Candidate]:
    """A parameter that is a logarithm by its parts, not by its name, in place of it where it was
    bound: ``std = 0.5 * logvar``."""
    bound, name = site.binding(place, node), spelled(node)
    value = bound_value(bound, name) if bound is not None and "log" not in name.lower() else None
    if bound is not None and isinstance(value, ast.expr) and bound.function is place.function:
        text = bound.text(value)
        part = value is bound_value(bound, "") and len(bound_by(bound.statement)) > 1
        if re.search(_LOGARITHM, text) and not part and not re.search(r"exp_?\(|softplus", text):
            own = replace(bound, distance=0.0)
            form = _root(site.roles.get(id(node), ""), bound.whole(value), variances)
            yield own.replaced(0.26 if _HALVED.search(text) else 0.29, (value, form))


def _are_weights(values: Tensor) -> bool:
    """Whether numbers are probabilities or counts, not scores that happen to be positive."""
    return bool((values >= 0).all()) and bool(
        (values <= 1).all() or (values == values.round()).all()
    )


def as_drawn(site: Site, place: Place) -> Iterator[Candidate]:
    """A sample as it was drawn, where it was scored after it had been scaled, squashed or looked
    up."""
    known = [f.f_locals for f in site.inner if f.f_code.co_name == "_validate_sample"]
    if not known or "support" not in site.text:
        return
    scored, own = known[0].get("value"), known[0].get("self")
    for call in place.calls():
        for node in (*call.args, *(k.value for k in call.keywords)):
            if place.value(node) is not scored or not spelled(node):
                continue
            others = {n: v for n, v in place.names().items() if _supports(own, v) and n[0] != "_"}
            like = [n for n, v in others.items() if v.shape == scored.shape]
            for far, name in enumerate(n for n in like if not others[n].requires_grad):
                yield replace(place, distance=0.02 * far).replaced(0.3, (node, name))
            seen, todo = {spelled(node)}, [(site.binding(place, node), 0)]
            while todo:
                bound, depth = todo.pop(0)
                value = bound_value(bound, "") if bound is not None else None
                if bound is None or value is None:
                    continue
                drawn = [n for n in ast.walk(value) if callee(n) in ("sample", "rsample")]
                if drawn and drawn[0] is not value and isinstance(bound.statement, ast.Assign):
                    yield from _drawn_first(place, node, bound, drawn[0])
                for part in (n for n in ast.walk(value) if spelled(n) and spelled(n) not in seen):
                    seen.add(spelled(part))
                    if _supports(own, found := bound.value(part)) and found.shape == scored.shape:
                        at = replace(place, distance=0.0)
                        yield at.replaced(0.2 + 0.02 * depth, (node, spelled(part)))
                    todo.append((site.binding(bound, part), depth + 1))


def without_support(site: Site) -> Iterator[Candidate]:
    """A distribution that is not asked whether it has a value: where it gives what it has not the
    probability 0, as a flat prior does."""
    known = [f.f_locals for f in site.inner if f.f_code.co_name == "_validate_sample"]
    own, value = (known[0].get("self"), known[0].get("value")) if known else (None, None)
    if "the support" not in site.text or not isinstance(value, Tensor):
        return
    unasked: Any = copy(own)
    unasked._validate_args = False
    impossible = False
    with suppress(Exception):  # what it cannot be asked for has no probability 0
        outside = unasked.log_prob(value)[~unasked.support.check(value)]
        impossible = bool((outside == -math.inf).all())
    for place in site.statements() if impossible else ():
        for call in place.calls():
            if callee(call) == type(own).__name__ and "validate_args" not in place.text(call):
                yield place.added(0.6, call, "validate_args=False")


def _supports(kind: Any, value: Any) -> bool:
    """Whether all values of a tensor are values of a distribution."""
    with suppress(Exception):
        return isinstance(value, Tensor) and bool(kind.support.check(value).all())
    return False


def _drawn_first(place: Place, node: ast.expr, bound: Place, drawn: ast.AST) -> Iterator[Candidate]:
    """A sample that is drawn within an expression, drawn before it and kept."""
    name = next(n for n in ("raw", "drawn", "unscaled") if n not in bound.names())
    row = bound.text(bound.statement).replace(bound.text(drawn), name, 1)
    kept = replace(bound, distance=0.0).written(0.0, f"{name} = {bound.text(drawn)}\n{row}")
    if bound.source is place.source and bound.function is place.function:
        scored = replace(place, distance=0.0).replaced(0.0, (node, name))
        yield Candidate(0.22, (*kept.edits, *scored.edits))


# functions of a matrix, by their last names
_TAKEN_APART = {name.removeprefix("linalg_") for name in having("matrix_function")}
_NOT_POSITIVE = re.compile("not positive-definite|PositiveDefinite|singular|invertible")


def with_jitter(site: Site, place: Place, call: ast.Call) -> Iterator[Candidate]:
    """A little on the diagonal of a matrix that is to be positive-definite: the noise that the
    module learns and nothing reads, else as little as lets the program run."""
    if not _NOT_POSITIVE.search(site.text):
        return
    given: list[Any] = [k.value for k in call.keywords if k.arg in _MATRICES]
    plain = isinstance(place.value(getattr(call.func, "value", call)), Tensor)
    if callee(call) in _TAKEN_APART:
        given += [call.func.value] if plain else call.args[:1]  # type: ignore[attr-defined]
    elif callee(call) == "MultivariateNormal":
        given += call.args[1:2]
    for node in given:
        value, name = place.value(node), spelled(node)
        single = not isinstance(value, Tensor) or value.dtype == torch.float32
        own, matrix = replace(place, distance=min(place.distance, 0.3)), name or "matrix"
        eye = f"torch.eye({matrix}.shape[-1]{'' if single else f', dtype={matrix}.dtype'})"
        for at, noise in enumerate((*_noises(site), *(f"1e-{n}" for n in (5, 4, 3, 2)))):
            new, cost = f"{matrix} + {noise} * {eye}", 0.2 + 0.03 * at
            new = f"({new})" if plain and callee(call) in _TAKEN_APART else new
            if name:
                yield own.replaced(cost, (node, new))
            else:  # it is computed once
                row = place.text(place.statement).replace(place.text(node), new, 1)
                yield own.written(cost, f"{matrix} = {place.text(node)}\n{row}")


def on_the_diagonal(site: Site) -> Iterator[Candidate]:
    """Noise that is added to all of a matrix, on its diagonal alone: else it is shared by all."""
    if not _NOT_POSITIVE.search(site.text):
        return
    for place in site.statements():
        sums = (n for n in place.parts() if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Add))
        for node in sums if not isinstance(place.statement, ast.For) else ():
            whole = getattr(place.statement, "value", None) is node
            value, more = place.value(node.left), place.whole(node.right)
            value = place.result() if value is MISSING and whole else value
            sizes = value.shape[-2:] if isinstance(value, Tensor) else ()
            square = len(sizes) == 2 and sizes[0] == sizes[1]
            names = {name.removeprefix("self.") for name in names_in(node.right)}
            told = any(map(_OF_NOISE.search, names)) and value is MISSING
            if not (square or told) or not _is_number(site, place, node.right):
                continue
            at, name = replace(place, distance=0.0), spelled(node.left) or "matrix"
            new = f"{more} * torch.eye({name}.shape[-1])"
            if spelled(node.left):
                yield at.replaced(0.15, (node, f"{name} + {new}"))
            else:
                row = place.text(place.statement).replace(place.text(node), f"{name} + {new}", 1)
                yield at.written(0.15, f"{name} = {place.text(node.left)}\n{row}")


def _is_number(site: Site, place: Place, node: ast.expr) -> bool:
    """Whether an expression may be one number, by the names and the calls that it has."""
    owners = [vars(each) for each in site.modules]
    for each in filter(spelled, ast.walk(node)):
        name = spelled(each).removeprefix("self.")
        known = [o.get(name, o.get("_parameters", {}).get(name)) for o in owners]
        values = known if "." in spelled(each) else [place.value(each)]
        if any(isinstance(value, Tensor) and value.numel() > 1 for value in values):
            return False
    return re.search(r"eye\(|diag|@|rand", place.text(node)) is None


_MATRICES = ("covariance_matrix", "precision_matrix", "scale_tril")


def _noises(site: Site) -> Iterator[str]:
    """The parameters of running modules that nothing reads and whose names speak of noise."""
    for module in site.modules:
        for name, value in module.named_parameters(recurse=False):
            uses = (source.text.count(f"self.{name}") for source in site.program.texts)
            if sum(uses) == 1 and value.numel() == 1 and _OF_NOISE.search(name):
                log = "exp() ** 2" if re.search("(?i)s(td|ig|d|n)", name) else "exp()"
                yield f"self.{name}" + f".{log}" * ("log" in name)


_OF_NOISE = re.compile("(?i)noise|jitter|nugget|sn|sigma|std|eps|lik")


def estimated(site: Site) -> Iterator[Candidate]:
    """An entropy or a divergence that has no formula, by the logarithm of the density of a sample:
    of one that the function draws already, else of another."""
    asked = [f.f_locals for f in site.inner if f.f_code.co_name in ("entropy", "kl_divergence")]
    if not isinstance(site.error, NotImplementedError) or not asked:
        return
    place = replace(site.raising[0], distance=0.0)
    for call in place.calls():
        owner: Any = getattr(call.func, "value", None)
        if callee(call) == "entropy" and owner is not None and not call.args:
            own = place.text(owner)
            drawn = _drawn(place, own) or f"{own}.{_draws(asked[-1].get('self'))}()"
            text = f"-{own}.log_prob({drawn})"
            parts = (getattr(n, "value", getattr(n, "left", None)) for n in place.parts())
            inner = any(n is call for n in parts)  # of a sum, or a power
            yield place.replaced(0.2, (call, f"({text})" if inner else text))
        elif callee(call) == "kl_divergence" and len(call.args) == 2 and spelled(call.args[0]):
            p, q = map(place.text, call.args)
            drawn = _drawn(place, p)
            name = drawn or next(n for n in ("sample", "z", "drawn") if n not in place.names())
            text = f"({p}.log_prob({name}) - {q}.log_prob({name}))"
            if drawn:
                yield place.replaced(0.4, (call, text))
            else:
                row = place.text(place.statement).replace(place.text(call), text, 1)
                made = f"{name} = {p}.{_draws(asked[-1].get('p'))}()"
                yield place.written(0.45, f"{made}\n{row}")


def _drawn(place: Place, owner: str) -> str:
    """The name of a sample that the block before a statement draws from a distribution."""
    for row in reversed(place.block[: place.block.index(place.statement)]):
        value: Any = getattr(row, "value", None)
        drawn = callee(value) in ("sample", "rsample") and not value.args
        if isinstance(row, ast.Assign) and drawn and spelled(row.targets[0]):
            if place.text(value.func.value) == owner:
                return spelled(row.targets[0])
    return ""


def _draws(kind: Any) -> str:
    return "rsample" if getattr(kind, "has_rsample", False) else "sample"


def of_shares(site: Site) -> Iterator[Candidate]:
    """A distribution of numbers between 0 and 1, where data that is grey was scored by one that has
    black and white alone; else that one, not asked whether it has them."""
    known = [f.f_locals for f in site.inner if f.f_code.co_name == "_validate_sample"]
    own, value = (known[0].get("self"), known[0].get("value")) if known else (None, None)
    inner = getattr(own, "base_dist", own)
    if not isinstance(inner, torch.distributions.Bernoulli) or not isinstance(value, Tensor):
        return
    if value.requires_grad or not bool(((value >= 0) & (value <= 1)).all()):
        return
    for place in site.statements():
        for call in (c for c in place.calls() if callee(c) == "Bernoulli"):
            kind = _kind(place, "ContinuousBernoulli")
            yield place.replaced(0.3, (call.func, kind))
            if "validate_args" not in place.text(call):
                yield place.added(0.35, call, "validate_args=False")


def with_all_masked(site: Site) -> Iterator[Candidate]:
    """Scores that a mask leaves out with minus infinity, left out with the least number instead: a
    row without any score has no probabilities else."""
    if not re.search("constraint.*|invalid multinomial", site.text) or "nan" not in site.text:
        return
    for place in (*site.raising, *site.bindings):
        for call in place.calls():
            named = callee(call) in ("masked_fill", "masked_fill_") and len(call.args) == 2
            owner: Any = getattr(call.func, "value", None)
            if named and owner is not None and _MINUS_INFINITY.fullmatch(place.text(call.args[1])):
                least = f"torch.finfo({place.text(owner)}.dtype).min"
                yield replace(place, distance=0.0).replaced(0.2, (call.args[1], least))


def of_scaled_column(site: Site) -> Iterator[Candidate]:
    """A column scaled back by the numbers of its own, where the whole table was scaled and a column
    of it was predicted."""
    for place in site.raising[:1]:
        for call in (c for c in place.calls() if callee(c) == "inverse_transform" and c.args):
            owner, node = getattr(call.func, "value", call), call.args[0]
            scaler, value = place.value(owner), place.value(node)
            count = getattr(scaler, "n_features_in_", 0)
            shape = getattr(value, "shape", (0,))
            if count < 2 or (len(shape) > 1 and shape[-1] != 1):
                continue
            name, given = place.text(owner), place.whole(node)
            for column in dict.fromkeys(_columns(site, count)):
                if hasattr(scaler, "data_min_"):
                    text = f"({given} - {name}.min_[{column}]) / {name}.scale_[{column}]"
                elif hasattr(scaler, "mean_"):
                    text = f"{given} * {name}.scale_[{column}] + {name}.mean_[{column}]"
                else:
                    continue
                yield replace(place, distance=0.0).replaced(0.2, (call, text))


def _columns(site: Site, count: int) -> Iterator[str]:
    """The columns that the program takes out of scaled tables."""
    for place in site.statements():
        for node in (n for n in place.parts() if isinstance(n, ast.Subscript)):
            last = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) else None
            number = place.value(last) if last is not None else None
            if isinstance(last, ast.UnaryOp):
                number = -1 if place.text(last) == "-1" else None
            table = place.value(node.value)
            made = bound_value(site.binding(place, node.value), spelled(node.value))
            scaled = made is not None and any(
                callee(n) in ("fit_transform", "transform") for n in ast.walk(made)
            )
            if last is not None and type(number) is int and -count <= number < count:
                if scaled and getattr(table, "shape", ())[-1:] == (count,):
                    yield place.text(last)


def unscaled(site: Site) -> Iterator[Candidate]:
    """A column of a table as it was, where the whole table was standardised: a distribution of
    counts, or a loss of classes, takes no other."""
    if not re.search("support|between 0 and 1|Long|class|Target", site.text):
        return
    places = {id(place.statement): place for place in (*site.bindings, *site.statements())}
    for place in places.values():
        for node in (n for n in place.parts() if isinstance(n, ast.Subscript)):
            table = spelled(node.value)
            made = site.binding(place, node.value)
            raw = _standardised(bound_value(made, table)) if made is not None else None
            column = isinstance(node.ctx, ast.Load) and not isinstance(node.slice, ast.Slice)
            if made is None or raw is None or not column:
                continue
            if spelled(raw) and spelled(raw) != table:
                yield replace(place, distance=0.0).replaced(0.3, (node.value, spelled(raw)))
            elif spelled(raw) and bound_by(made.statement) == [table]:
                value = made.text(bound_value(made, table))
                kept = replace(made, distance=0.0).written(0.3, f"raw, {table} = {table}, {value}")
                read = replace(place, distance=0.0).replaced(0.3, (node.value, "raw"))
                yield Candidate(0.3, (*kept.edits, *read.edits))


def _standardised(value: Any) -> Any:
    """What an expression standardises, ``x`` of ``(x - mean) / std``; None: it does not."""
    if callee(value) in ("fit_transform", "normalize", "zscore", "scale") and value.args:
        return value.args[0]
    inner = value.left if isinstance(value, ast.BinOp) else None
    divided = inner is not None and isinstance(value.op, ast.Div)
    if divided and isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub):
        return inner.left
    return None


def as_diagonal(site: Site, place: Place) -> Iterator[Candidate]:
    """A number for each dimension as the diagonal of the matrix that a distribution takes."""
    for call in place.calls():
        for node in (*call.args, *(k.value for k in call.keywords)):
            value = place.value(node)
            matrix = site.roles.get(id(node), "") in _MATRICES and site.roles[id(node)] in site.text
            plain = not isinstance(value, Tensor) or value.shape[-2:-1] != value.shape[-1:]
            if matrix and plain:
                yield place.replaced(0.3, (node, f"torch.diag_embed({place.text(node)})"))


def as_one_event(site: Site, place: Place) -> Iterator[Candidate]:
    """The distributions that a divergence is computed of, or a mixture of, each of events of the
    same dimensions."""
    made = [f.f_locals for f in site.inner if "component_distribution" in f.f_locals]
    for node in (n for c in place.calls() if made for n in (*c.args[1:2], *c.keywords)):
        mixed, component = (made[-1][f"{n}_distribution"] for n in ("mixture", "component"))
        more = len(component.batch_shape) - len(mixed.batch_shape) - 1
        value = getattr(node, "value", node)
        if more > 0 and getattr(node, "arg", "component_distribution")[0] == "c":
            yield place.replaced(
                0.3, (value, f"{_kind(place, 'Independent')}({place.text(value)}, {more})")
            )
    known = [f.f_locals for f in site.inner if f.f_code.co_name == "kl_divergence"]
    kinds = torch.distributions
    for call in (c for c in place.calls() if known and callee(c) == "kl_divergence"):
        own = [(node, known[-1].get(name)) for node, name in zip(call.args, "pq", strict=False)]
        for (node, plain), (_, other) in (own, own[::-1]) if len(own) == 2 else ():
            text, base = place.text(node), getattr(plain, "base_dist", plain)
            if isinstance(other, kinds.MultivariateNormal) and isinstance(base, kinds.Normal):
                name, given = (
                    "MultivariateNormal",
                    f"{text}.mean, torch.diag_embed({text}.variance)",
                )
            elif isinstance(other, kinds.Independent) and type(base) is type(other.base_dist):
                count = other.reinterpreted_batch_ndims
                if getattr(plain, "reinterpreted_batch_ndims", 0) > count:
                    continue
                inner = text if base is plain else f"{text}.base_dist"
                name, given = "Independent", f"{inner}, {count}"
            else:
                continue
            yield place.replaced(0.3, (node, f"{_kind(place, name)}({given})"))


def _kind(place: Place, name: str) -> str:
    """A class of distributions, as the program names it."""
    return name if name in place.names() else f"torch.distributions.{name}"


def _left_out(site: Site, place: Place, given: Any) -> Iterator[Candidate]:
    """What is left out of probabilities, as 0: minus infinity, or a very low number, leaves it out
    of scores."""
    known, low = isinstance(given, Tensor), -math.inf
    if known:
        low = float(given.min()) if given.numel() else 0.0
        left = given[given > low]
        if not low < 0 or not left.numel() or not _are_weights(left):
            return
    called = {callee(n) for n in ast.walk(place.function or place.source.tree)}
    for other in site.statements():
        if other.function is place.function or getattr(other.function, "name", "") in called:
            for node in (n for n in other.parts() if isinstance(n, ast.expr)):
                number: Any = number_of(node) if isinstance(node, ast.UnaryOp) else MISSING
                lowest = -math.inf if _MINUS_INFINITY.fullmatch(other.text(node)) else number
                if lowest is not MISSING and (lowest == low if known else lowest < _VERY_LOW):
                    yield replace(other, distance=0.0).replaced(0.25, (node, "0.0"))


_VERY_LOW = -1e3  # what is written for a score that is to have no share


_MINUS_INFINITY = re.compile(r"""-float\(['"]inf['"]\)|float\(['"]-inf['"]\)|-\w+\.inf""")
