"""Weights that are computed from others: what they are set to, read from and optimised by."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from nanlab.explanations.site import (
    Candidate,
    Function,
    Site,
    Tensor,
    callee,
    is_return,
    lines_as,
    names_in,
    spliced,
)
from nanlab.operators import card

# Inverses that the cards do not have: a value of these functions may be their bound.
_UNDONE = {"sigmoid": "result.logit()", "tanh": "result.atanh()"}
_SIGNS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}
_PLAIN = re.compile(r"[a-z]\w*[a-z0-9]$")  # a function that writes into nothing


def with_inverse(site: Site) -> Iterator[Candidate]:
    """What a parametrization computes from, given a value that its weight is set to: by undoing
    its operations, or the value itself where it would stay as it is."""
    told = re.search(r"parametrization (\w+) does not implement right_inverse", site.text)
    given = [f.f_locals.get("value") for f in site.inner if f.f_code.co_name == "right_inverse"]
    kinds = [(s, n) for s in site.program.texts for n in s.nodes if isinstance(n, ast.ClassDef)]
    for source, kind in kinds if told is not None and given else ():
        forward: Any = next((n for n in kind.body if getattr(n, "name", "") == "forward"), None)
        if told is None or kind.name != told[1] or not isinstance(forward, Function):
            continue
        rows = [row for row in forward.body if not isinstance(row, ast.Expr)]
        names = [each.arg for each in forward.args.args]
        if not rows or not is_return(rows[-1]) or len(names) != 2:
            continue
        value = _in_one(rows)
        if value is None:
            continue
        undone = _undone(value, names[1], names[1])
        copied = f"{names[1]}.clone()"  # else the parameter would be the tensor that is given
        for own in dict.fromkeys(filter(None, (undone, copied))):
            if not _comes_back(site, value, names, own, given[-1]):
                continue
            pad, more = " " * forward.col_offset, " " * forward.body[0].col_offset
            text = f"{pad}def right_inverse({', '.join(names)}):\n{more}return {own}"
            first, last = forward.lineno, forward.end_lineno or 0
            whole = "\n".join(source.lines[first - 1 : last])
            yield Candidate(0.2, (lines_as(source, first, last, f"{whole}\n\n{text}"),))
            return


class _Inlined(ast.NodeTransformer):
    """Names in an expression, as what they were bound to."""

    def __init__(self, bound: dict[str, ast.expr]) -> None:
        self.bound = bound

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.bound.get(node.id, node)


def _in_one(rows: list[ast.stmt]) -> Any:
    """What a function returns, as one expression; None where its statements are others."""
    bound: dict[str, ast.expr] = {}
    for row in rows[:-1]:
        target = row.targets[0] if isinstance(row, ast.Assign) else None
        if not isinstance(row, ast.Assign) or not isinstance(target, ast.Name):
            return None
        value = ast.parse(ast.unparse(row.value), mode="eval").body
        bound[target.id] = _Inlined(bound).visit(value)
    last: Any = rows[-1]
    return _Inlined(bound).visit(ast.parse(ast.unparse(last.value), mode="eval").body)


def _undone(node: Any, name: str, value: str) -> str | None:
    """The expression that gives ``name`` where ``node`` is ``value``; None: it is not known."""
    if isinstance(node, ast.Name):
        return value if node.id == name else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _undone(node.operand, name, f"(-{value})")
    if isinstance(node, ast.BinOp):
        left, right = name in names_in(node.left), name in names_in(node.right)
        sign = _SIGNS.get(type(node.op))
        if left and not right and sign:
            return _undone(node.left, name, f"({value} {sign} {_loose(node.right)})")
        if right and not left and isinstance(node.op, (ast.Add, ast.Mult)):
            return _undone(node.right, name, f"({value} {sign} {_loose(node.left)})")
        if right and not left and isinstance(node.op, ast.Sub):
            return _undone(node.right, name, f"({_loose(node.left)} - {value})")
        if left and isinstance(node.op, ast.Pow) and getattr(node.right, "value", 0) == 2:
            return _undone(node.left, name, f"{value}.sqrt()")
        return None
    form = _UNDONE.get(callee(node)) or card(callee(node)).from_result
    if not form or node.keywords or len(node.args) > 1:
        return None
    inner = node.args[0] if node.args else node.func.value
    text = form.replace("result", value)
    return _undone(inner, name, text if text[-1] == ")" and " " not in form else f"({text})")


def _loose(node: ast.expr) -> str:
    text = ast.unparse(node)
    return f"({text})" if isinstance(node, ast.BinOp) else text


def _comes_back(site: Site, node: ast.AST, names: list[str], inverse: str, value: Any) -> bool:
    """Whether an expression of torch's functions gives a value again from its inverse."""
    called = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    if not isinstance(value, Tensor) or not all(_PLAIN.match(callee(n)) for n in called):
        return False
    own = [f.f_locals.get("self") for f in site.inner + [f for f, _ in site.frames]]
    known = [m for each in own if isinstance(each, nn.Module) for m in each.modules()]
    kinds = [m for m in known if type(m).__name__ in site.text]
    torchs: dict[str, Any] = {
        "torch": torch,
        "F": nn.functional,
        "nn": nn,
        names[0]: kinds[-1] if kinds else None,
    }
    reads = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    if not reads <= {*torchs, names[1]}:
        return False
    with suppress(Exception), torch.no_grad():
        start = eval(inverse, {**torchs, names[1]: value.detach().clone()})
        again = eval(ast.unparse(node), {**torchs, names[1]: start})
        return torch.allclose(again, value, rtol=1e-3, atol=1e-5)
    return False


def _wraps(module: Any, name: str) -> bool:
    """Whether a module computes an attribute by a parametrization."""
    own = getattr(module, "parametrizations", None)
    return isinstance(module, nn.Module) and own is not None and name in own


def of_parametrized(site: Site) -> Iterator[Candidate]:
    """What a weight is computed from, where that is looked up in it or is to be optimised."""
    lacking = getattr(site.error, "name", None) if isinstance(site.error, AttributeError) else None
    for place in site.raising[:1] if lacking else ():
        for node in place.parts():
            inner = getattr(node, "value", None)
            named = isinstance(inner, (ast.Attribute, ast.Name))
            if getattr(node, "attr", "") != lacking or not named or inner is None:
                continue
            old = re.fullmatch(r"(\w+)_(orig|[gv])", str(lacking))
            if old and _wraps(place.value(inner), old[1]):  # as they were named before
                part = {"orig": "original", "g": "original0", "v": "original1"}[old[2]]
                text = f"{place.text(inner)}.parametrizations.{old[1]}.{part}"
                yield place.replaced(0.2, (node, text))
            if isinstance(inner, ast.Attribute):
                owner, name = place.value(inner.value), inner.attr
                if _wraps(owner, name) and hasattr(owner.parametrizations[name], str(lacking)):
                    text = f"{place.text(inner.value)}.parametrizations.{name}.{lacking}"
                    yield place.replaced(0.2, (node, text))
    for source in site.program.texts if "non-leaf" in site.text else ():
        pairs: list[tuple[ast.AST, str]] = []
        for whole in (n for n in source.nodes if isinstance(n, ast.List)):
            for node in (n for n in whole.elts if isinstance(n, ast.Attribute)):
                if _wraps(site.raising[-1].value(node.value), node.attr):
                    head = source.part(node.value)
                    pairs.append((node, f"*{head}.parametrizations.{node.attr}.parameters()"))
        if pairs:
            yield Candidate(0.2, spliced(source, pairs))


_GIVES_BACK = re.compile("not found in|not parametrized|is not (pruned|wrapped)")


def never_wrapped(site: Site) -> Iterator[Candidate]:
    """Nothing removed from a layer that nothing was added to."""
    for place in site.raising[:1] if _GIVES_BACK.search(site.text) else ():
        call = getattr(place.statement, "value", place.statement)
        if isinstance(place.statement, ast.Expr) and callee(call).startswith("remove"):
            yield place.written(0.3, "" if len(place.block) > 1 else "pass")


def loaded_before(site: Site) -> Iterator[Candidate]:
    """A state loaded before its module is changed, as by layers that compute their weights."""
    place = site.raising[-1] if site.raising else None
    call: Any = getattr(place.statement, "value", None) if place is not None else None
    if place is None or callee(call) != "load_state_dict" or "Error(s) in loading" not in site.text:
        return
    owner = place.text(call.func.value)
    rows = place.block[: place.block.index(place.statement)]
    text, needed = "\n".join(place.text(place.statement).splitlines()), names_in(call)
    for at in reversed(range(len(rows))):
        row = rows[at]
        targets = [place.text(t) for t in getattr(row, "targets", [])]
        value: Any = getattr(row, "value", row)
        if owner in targets and owner not in {place.text(n) for n in ast.walk(value)}:
            return  # it is made there
        bound = {n.id for n in ast.walk(row) if isinstance(n, ast.Name) and not _loads(n)}
        if bound & (needed - {owner}):
            return
        if re.search(rf"(?<![\w.]){re.escape(owner)}(?!\w)", place.text(row)):
            first, last = row.lineno, place.statement.end_lineno or 0
            lines = place.source.lines[first - 1 : place.statement.lineno - 1]
            pad = " " * place.statement.col_offset
            new = "\n".join([pad + text, *lines])
            edit = lines_as(place.source, first, last, new)
            yield Candidate(0.3 + 0.02 * (len(rows) - at), (edit,))


def _loads(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def taken_off(site: Site) -> Iterator[Candidate]:
    """A parametrization taken off as parametrizations are, where the older function found none."""
    told = re.search(r"(weight|spectral)_norm of '(\w+)' not found in Parametrized", site.text)
    for source in site.program.texts if told is not None else ():
        pairs: list[tuple[ast.AST, str]] = []
        for call in (n for n in source.nodes if isinstance(n, ast.Call) and n.args):
            own = isinstance(call.func, ast.Attribute) and "utils" not in source.part(call.func)
            if told is not None and callee(call) == f"remove_{told[1]}_norm" and not own:
                layer = source.part(call.args[0])
                new = "torch.nn.utils.parametrize.remove_parametrizations"
                pairs.append((call, f'{new}({layer}, "{told[2]}")'))
        if pairs:
            yield Candidate(0.2, spliced(source, pairs))


def pruned_for_good(site: Site) -> Iterator[Candidate]:
    """Weights that are pruned for good before they are saved, where what loads them has none that
    are computed from masks."""
    told = re.search(r'Unexpected key\(s\) in state_dict: [^.]*?"[\w.]*?(\w+)_orig"', site.text)
    for place in site.statements() if told is not None else ():
        for call in (c for c in place.calls() if callee(c) == "state_dict"):
            model = place.text(call.func.value)  # type: ignore[attr-defined]
            name = told[1] if told is not None else ""
            rows = f'for layer in {model}.modules():\n    if hasattr(layer, "{name}_orig"):\n'
            rows += f'        torch.nn.utils.prune.remove(layer, "{name}")\n{{}}'
            yield place.written(0.3, rows)
