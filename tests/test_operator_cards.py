"""What is known of ATen's operators stands on their cards, and nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed._functional_collectives  # with the operators of its own namespaces

import nanlab
from nanlab.operators import CARDS, FACTS, base_name, card, having, in_place, with_forms

PACKAGE = Path(__file__).parent.parent / "nanlab"
ATEN = {
    name.split("::")[1].split(".")[0]
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("aten::")
}
# columns and methods bear these names too
STATISTICS = {"min", "max", "mean", "numel", "zero", "size", "std", "item"}
OWN = (
    "operators.py",  # the cards
    "safe/",  # functions of nanlab's own that bear the names of torch's
)
MOST = 2  # operators that a place may name without a card
FILES = sorted(
    p for p in PACKAGE.rglob("*.py") if not p.relative_to(PACKAGE).as_posix().startswith(OWN)
)


def words_of(node: ast.AST) -> list[str]:
    """The words of a literal: of a set, list or tuple, the keys of a dict, a string that is
    split."""
    if isinstance(node, ast.Set | ast.List | ast.Tuple):
        return [
            e.value for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)
        ]
    if isinstance(node, ast.Dict):
        return [
            e.value for e in node.keys if isinstance(e, ast.Constant) and isinstance(e.value, str)
        ]
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "split"
    ):
        value = node.func.value
        return (
            value.value.split()
            if isinstance(value, ast.Constant) and isinstance(value.value, str)
            else []
        )
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "with_forms"
    ):
        return [a.value for a in node.args if isinstance(a, ast.Constant)]
    return []


def words_of_union(node: ast.AST) -> list[str]:
    """The words of all pieces that a set is put together of."""
    if isinstance(node, ast.BinOp):
        added = [node.right] if isinstance(node.op, ast.BitOr) else []
        return [word for each in (node.left, *added) for word in words_of_union(each)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("in_place", "frozenset", "set"):
            return [word for each in node.args for word in words_of_union(each)]
    return words_of(node)


def tables(tree: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """(line, words) of each literal that is a set of operator names."""
    for node in ast.walk(tree):
        union = isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
        words = words_of_union(node) if union else words_of(node)
        named = [w for w in words if w in ATEN and w not in STATISTICS]
        if len(named) > MOST and 2 * len(named) >= len(words):
            yield node.lineno, words  # type: ignore[attr-defined]


def test_a_table_of_operators_is_seen() -> None:
    assert [line for line, _ in tables(ast.parse('A = frozenset("exp log sqrt".split())'))] == [1]
    assert [line for line, _ in tables(ast.parse('A = {"exp": 1, "log": 2, "sqrt": 3}'))] == [1]
    assert [line for line, _ in tables(ast.parse('\nx in ("exp", "log", "sqrt")'))] == [2]
    assert [line for line, _ in tables(ast.parse('A = {"exp", "log"} | B | {"sqrt"}'))] == [1]
    assert not list(tables(ast.parse('A = ("min", "max", "mean"), ("exp", "log")')))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_sets_of_operators_are_queries_on_the_cards(path: Path) -> None:
    assert [
        f"line {line}: {' '.join(words)}" for line, words in tables(ast.parse(path.read_text()))
    ] == []


def test_every_card_is_of_an_operator_that_torch_has() -> None:
    forms = (
        {base_name(name) for name in ATEN}
        | {name.removeprefix("special_") for name in ATEN}
        | set(dir(torch))
    )
    forms |= {
        name.split("::")[1].split(".")[0].rstrip("_")
        for name in torch._C._dispatch_get_all_op_names()
    }
    forms |= (
        set(dir(torch.Tensor))
        | set(dir(torch._refs))
        | {f"linalg_{name}" for name in dir(torch.linalg)}
        | {*dir(torch.linalg), *dir(torch.nn.functional)}
    )
    gone = {
        name for name in CARDS if name.rstrip("_") not in forms and not name.startswith("_linalg")
    }
    # parts of names; younger than torch 2.6; of torch.distributed.fsdp
    assert gone <= {"linalg_householder", "linalg_ldl", "_fused_rms_norm", "all_gather_copy_in"}


def test_every_fact_is_true_of_some_operator() -> None:
    assert set(FACTS) == {fact for one in CARDS.values() for fact in one.facts}


def test_a_query_with_a_fact_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown facts: squareroot"):
        having("squareroot")


def test_forms_in_place_and_on_lists_are_named_as_torch_names_them() -> None:
    assert with_forms("add", in_place=True, lists=True) == {
        "add",
        "add_",
        "_foreach_add",
        "_foreach_add_",
    }
    assert with_forms("add", in_place=True, lists=True) <= ATEN
    assert in_place(frozenset({"mul"})) == {"mul_"}
    assert {base_name(n) for n in ("add_", "_foreach_add_", "_softmax")} == {"add", "_softmax"}


@pytest.mark.parametrize(
    "name", sorted(n for n, one in CARDS.items() if one.domain != (-float("inf"), float("inf")))
)
def test_beyond_its_domain_an_operator_has_no_finite_derivative(name: str) -> None:
    torch_name = name.removeprefix("special_")
    function = getattr(torch, torch_name, None) or getattr(torch.special, torch_name)
    low, high = card(name).domain
    healthy = max(low, -3) / 2 + min(high, 3) / 2 + 0.1
    inside = torch.tensor(healthy, dtype=torch.float64, requires_grad=True)
    function(inside).backward()
    assert torch.isfinite(inside.grad)
    for edge in (low, high):
        if abs(edge) != float("inf"):
            x = torch.tensor(float(edge), dtype=torch.float64, requires_grad=True)
            value = function(x)
            value.backward()
            assert not (torch.isfinite(value) and torch.isfinite(x.grad))


@pytest.mark.parametrize("name", sorted(n for n, one in CARDS.items() if one.benign is not None))
def test_the_benign_argument_is_harmless(name: str) -> None:
    function = {
        "pow": lambda x: x**0.5,
        "div": lambda x: 1 / x,
        "linalg_vector_norm": torch.linalg.vector_norm,
    }.get(name) or getattr(torch, name)
    x = torch.tensor(float(card(name).benign or 0.0), dtype=torch.float64, requires_grad=True)
    value = function(x)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(x.grad)


@pytest.mark.parametrize(
    "name", sorted(n for n, one in CARDS.items() if one.domain[0] > -float("inf"))
)
def test_an_operator_whose_card_has_a_domain_has_a_rule_and_a_fix_at_its_edge(
    name: str, tmp_path: Path
) -> None:
    function = (
        f"torch.special.{name.removeprefix('special_')}"
        if name.startswith("special_")
        else f"torch.{name}"
    )
    path = tmp_path / "program.py"
    low = card(name).domain[0]
    path.write_text(
        f"x = torch.tensor([{low}, {low} + 0.4])\nx.requires_grad_()\ny ="
        f" {function}(x)\ny.sum().backward()\n"
    )
    with nanlab.watch(on_fault="record") as trace:
        exec(compile(path.read_text(), str(path), "exec"), {"torch": torch})
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.line) != ("unknown", 3)
    assert any(fix.verified for fix in trace.culprit.fixes)
