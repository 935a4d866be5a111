"""The line to change for an exception, perhaps not the one that raised it, written anew."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from nanlab.capture.places import display_name
from nanlab.explanations.explanation import Explanation
from nanlab.findings.rule import Edit, Fix
from nanlab.trace.history import Failure

_OFF = ("no_grad", "inference_mode", "set_grad_enabled")
_SWITCH = re.compile(rf"(torch\.)?({'|'.join(_OFF)})\([^)]*\)")


@dataclass(frozen=True)
class _Program:
    """The file in which an exception was raised."""

    shown: str
    lines: list[str]
    tree: ast.Module
    line: int  # that raised

    def statements(self) -> Iterator[ast.stmt]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.stmt))

    def at(self, line: int) -> ast.stmt | None:
        """The innermost statement around a line."""
        found = [s for s in self.statements() if s.lineno <= line <= (s.end_lineno or s.lineno)]
        return max(found, key=lambda s: s.lineno, default=None)

    def around(self, line: int) -> list[ast.stmt]:
        """The statements around a line, innermost first."""
        found = [s for s in self.statements() if s.lineno <= line <= (s.end_lineno or s.lineno)]
        return sorted(found, key=lambda s: s.lineno, reverse=True)

    def text(self, statement: ast.stmt) -> str:
        return self.lines[statement.lineno - 1].strip()

    def binding(self, name: str) -> ast.Assign | None:
        """The last assignment to a name or ``self.name`` before the line that raised."""
        found = [
            s
            for s in self.statements()
            if isinstance(s, ast.Assign)
            and any(name == _spelled(t) for target in s.targets for t in _targets(target))
        ]
        before = [
            s
            for s in found
            if s.lineno < self.line and (name.startswith("self.") or self._shares(s))
        ]
        return max(before or found, key=lambda s: s.lineno, default=None)

    def _shares(self, statement: ast.stmt) -> bool:
        """Whether a statement's function is around the line that raised, or none is."""
        functions = [
            s
            for s in self.around(statement.lineno)
            if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]
        return not functions or (functions[0].end_lineno or 0) >= self.line

    def edit(self, statement: ast.stmt, text: str) -> Edit:
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        return Edit(self.shown, first, last, text, "\n".join(self.lines[first - 1 : last]))

    def rewritten(
        self, statement: ast.stmt, change: Callable[[str], str]
    ) -> tuple[ast.stmt, Edit | None]:
        """A statement and its changed text, where that fits on one line and parses."""
        old = self.text(statement)
        head = isinstance(statement, (ast.With, ast.For, ast.If, ast.FunctionDef))
        if not head and (statement.end_lineno or statement.lineno) != statement.lineno:
            return statement, None
        new = change(old)
        try:
            ast.parse(new + ("\n    pass" if head else ""))
        except SyntaxError:
            return statement, None
        line = Edit(
            self.shown, statement.lineno, statement.lineno, new, self.lines[statement.lineno - 1]
        )
        return statement, line if new != old else None


Found = tuple[ast.stmt, "Edit | None"]


def with_change(explanation: Explanation, failure: Failure) -> Explanation:
    """The explanation, with the line to change written anew among its fixes where known."""
    program = _program(explanation.file or failure.file, explanation.line or failure.line)
    if program is None:
        return explanation
    explanation = replace(explanation, fixes=_named(program, explanation))
    for each in (program, *_earlier(program, explanation)):
        if (found := _found(each, explanation, failure)) is not None:
            break
    else:
        return explanation
    statement, edit = found
    if edit is None and statement is program.at(program.line):  # nothing that was not said
        return explanation
    change = (each.shown, statement.lineno, each.text(statement))
    fixes = list(explanation.fixes)
    if edit is not None:
        where = f"line {edit.first}" if each is program else f"{each.shown}:{edit.first}"
        fixes = [fix for fix in fixes if "=..." not in fix.code]  # which the edit says better
        fixes.insert(0, Fix(f"change {where}", edit.text, edits=(edit,)))
    return replace(explanation, change=change, fixes=fixes)


def _named(program: _Program, explanation: Explanation) -> list[Fix]:
    """The fixes with the program's own name of what indexes."""
    raising = program.at(program.line)
    if explanation.cause != "index-out-of-range" or raising is None:
        return explanation.fixes
    made = []
    for fix in explanation.fixes:
        for word in ("input_ids", "target"):
            if f"{word}.min()" in fix.code:
                own = next(iter(_arguments(raising, last=word == "target")), word)
                fix = replace(fix, code=fix.code.replace(word, own))
        made.append(fix)
    return made


def _earlier(program: _Program, explanation: Explanation) -> Iterator[_Program]:
    """Cells that ran before the one that raised, latest first: they may make its layers."""
    cell = re.fullmatch(r"In\[(\d+)\]", program.shown)
    if cell is None or explanation.cause not in ("index-out-of-range", "shape-mismatch"):
        return
    shown = {display_name(name) for name in list(linecache.cache)}
    for number in range(int(cell[1]) - 1, 0, -1):
        if (name := f"In[{number}]") in shown and (one := _program(name, 1)) is not None:
            yield replace(one, line=len(one.lines))


def _program(shown: str, line: int) -> _Program | None:
    names = [shown, *(name for name in list(linecache.cache) if display_name(name) == shown)]
    lines = next((found for name in names if (found := linecache.getlines(name))), None)
    if lines is None or not 0 < line <= len(lines):
        return None
    try:
        return _Program(
            shown, [text.rstrip("\n") for text in lines], ast.parse("".join(lines)), line
        )
    except SyntaxError:
        return None


def _found(program: _Program, explanation: Explanation, failure: Failure) -> Found | None:
    told = f"{explanation.title} {explanation.explanation}"
    raising = program.at(program.line)
    if raising is None:
        return None
    if explanation.rewrite:
        return program.rewritten(raising, lambda text: _first(text, explanation.rewrite))
    if explanation.cause == "graph-cut" and "gradients are switched off" in told:
        if (block := _switched_off(program)) is not None:
            return block
    if explanation.cause == "graph-cut" and "requires_grad=False" in told:
        return _frozen(program)
    if explanation.cause == "graph-freed":
        return _freed(program, explanation)
    if explanation.cause == "graph-cut":
        return program.rewritten(raising, lambda text: _first(text, _CUTS))
    if explanation.cause == "inplace-modification":
        return program.rewritten(raising, lambda text: _first(text, _IN_PLACE))
    if explanation.cause == "loss-not-scalar":
        return _bound(
            program, _receivers(raising, "backward"), lambda text: _append(text, ".mean()")
        )
    if explanation.cause == "numpy-of-graph":
        return program.rewritten(raising, lambda text: text.replace(".numpy(", ".detach().numpy("))
    if explanation.cause == "dtype-mismatch":
        return _dtype(program, raising, told, failure)
    if explanation.cause == "index-out-of-range":
        return _too_few(program, raising, failure)
    if explanation.cause == "target-of-two-dimensions":
        return _bound(
            program, _arguments(raising, last=True), lambda text: _append(text, ".squeeze(1)")
        )
    if explanation.cause == "empty-reduction" and "batch norm" in told:
        pattern = r"BatchNorm[123]d\(\s*(?:num_features\s*=\s*)?(\w+)[^()]*\)"
        norm = _constructed(program, pattern, "", "")
        return norm and program.rewritten(
            norm[0], lambda text: _first(text, ((pattern, r"GroupNorm(1, \1)"),))
        )
    if explanation.cause == "shape-mismatch" and "key_padding_mask" in told:
        return _bound(
            program,
            [_spelled(k.value) for c in _calls(raising) for k in c.keywords if k.arg in _PADDINGS],
            lambda text: _append(text, ".T"),
        )
    if explanation.cause == "shape-mismatch" and (
        sizes := re.search(r"takes (\d+) (?:features|channels), its input.* has (\d+)", told)
    ):
        wants, has = sizes.groups()
        layer = r"(Linear|LSTM|GRU|RNN|LSTMCell|GRUCell|RNNCell|LayerNorm|Conv[123]d)"
        named = r"(in_features|input_size|in_channels|normalized_shape)"
        return _constructed(program, rf"{layer}\(\s*({named}\s*=\s*)?{wants}\b", wants, has)
    if explanation.cause == "shape-mismatch" and "matrix product" in told:
        return program.rewritten(raising, lambda text: _transposed(text, failure))
    if explanation.cause == "unequal-sizes":
        return program.rewritten(raising, lambda text: _first(text, _JOINS))
    return None


# Patterns of a line, and what stands there instead; the first that is found is taken.
_CUTS = (
    (r"torch\.(?:as_)?tensor\((.+)\.(?:item|tolist)\(\)\)", r"\1"),
    (r"torch\.(?:as_)?tensor\(([\w.]+)\)", r"torch.stack(list(\1))"),
    (r"\.detach\(\)|\.data\b", ""),
    (r"\.sample\(", ".rsample("),
)
_PADDINGS = ("key_padding_mask", "src_key_padding_mask", "memory_key_padding_mask")
_IN_PLACE = (
    (r"^(\w[\w.]*)(\[.+\]\s*(?:[-+*/@]|\*\*|//)?=[^=].*)$", r"\1 = \1.clone()\n\1\2"),
    (r"^(\w[\w.]*)\s*(\*\*|//|[-+*/@])=\s*(.+?)(\s*#.*)?$", r"\1 = \1 \2 (\3)\4"),
    (r"^(\w[\w.]*)\.(\w+?)_\((.*)\)", r"\1 = \1.\2(\3)"),
    (r"inplace=True", "inplace=False"),
)
_JOINS = (
    (r"torch\.stack\((\w+)\)", r"nn.utils.rnn.pad_sequence(\1, batch_first=True)"),
    (r"torch\.cat\((\[[^\]]*\]|\w+)(?:,\s*(?:dim\s*=\s*)?0)?\)", r"torch.cat(\1, dim=-1)"),
)


def _first(text: str, rewrite: Sequence[tuple[str, str]]) -> str:
    """A line by the first of these patterns that is found in it; the line itself where none is."""
    for pattern, new in rewrite:
        if re.search(pattern, text):
            return re.sub(pattern, new, text, count=1)
    return text


def _freed(program: _Program, explanation: Explanation) -> Found | None:
    """The first of two backward calls, which must keep the graph; in a loop what it carries."""
    lines = re.findall(r"backward at [^\s,]*?:(\d+)", explanation.title)
    if len(lines) != 2:
        return None
    second, first = (program.at(int(line)) for line in lines)
    if first is None or second is None:
        return None
    if first is not second:
        return program.rewritten(
            first, lambda text: _first(text, ((r"backward\(\)", "backward(retain_graph=True)"),))
        )
    loop = next(
        (s for s in program.around(first.lineno) if isinstance(s, (ast.For, ast.While))), None
    )
    for statement in ast.walk(loop) if loop is not None else ():
        if isinstance(statement, ast.Assign) and statement.lineno <= first.lineno:
            targets = {
                name for t in statement.targets for x in _targets(t) if (name := _spelled(x))
            }
            read = {_spelled(node) for node in ast.walk(statement.value)}
            for name in sorted(targets & read - {""}):
                own = rf"(?<![\w.]){re.escape(name)}(?![\w.(])(?!\s*=[^=])"

                def detached(text: str, own: str = own, name: str = name) -> str:
                    head, sign, value = text.partition("=")
                    return head + sign + re.sub(own, f"{name}.detach()", value)

                return program.rewritten(statement, detached)
    return None


def _transposed(text: str, failure: Failure) -> str:
    """The right factor turned around, where the sizes meet then."""
    shapes = [tuple(o.shape) for o in failure.operands[-2:]]
    if len(shapes) == 2 and shapes[0][-1:] == shapes[1][-1:]:
        return _first(
            text,
            (
                (r"(@\s*\w[\w.]*)(?![\w.(\[])", r"\1.mT"),
                (r"(matmul|mm)\(([^,]+),\s*(\w+)\)", r"\1(\2, \3.mT)"),
            ),
        )
    return text


def _switched_off(program: _Program) -> Found | None:
    """The ``with`` block, or the decorator, that switched gradients off."""
    for statement in program.around(program.line):
        if isinstance(statement, ast.With) and any(
            name in program.text(statement) for name in _OFF
        ):
            return program.rewritten(
                statement, lambda text: _SWITCH.sub("torch.enable_grad()", text)
            )
        for decorator in getattr(statement, "decorator_list", []):
            if any(name in ast.unparse(decorator) for name in _OFF):
                line = ast.Expr(decorator)
                line.lineno = decorator.lineno
                line.end_lineno = decorator.end_lineno or decorator.lineno
                old = program.text(line)
                text = _SWITCH.sub("torch.enable_grad()", old)
                return line, program.edit(line, text) if text != old else None
    return None


def _frozen(program: _Program) -> Found | None:
    """The statement that last took ``requires_grad`` from a parameter."""
    pattern = r"requires_grad_\(\s*False\s*\)|requires_grad\s*=\s*False"
    found = [
        s
        for s in program.statements()
        if re.search(pattern, program.text(s)) and s.lineno <= program.line
    ]
    simple = [s for s in found if isinstance(s, (ast.Expr, ast.Assign))]
    if not simple:
        return None
    last = max(simple, key=lambda s: s.lineno)
    return program.rewritten(
        last, lambda text: re.sub(pattern, lambda m: m[0].replace("False", "True"), text)
    )


def _dtype(program: _Program, raising: ast.stmt, told: str, failure: Failure) -> Found | None:
    """Where the operand of the wrong dtype was made."""
    if "class indices must be int64" in told:
        names, wanted = _arguments(raising, last=True), ".long()"
    elif "cross_entropy_with_logits" in program.text(raising):
        names, wanted = _arguments(raising, last=True), ".float()"
    elif "must be integers" in told:
        names, wanted = _indices(raising) or _arguments(raising, last=True), ".long()"
    elif halves := re.search(r"float32 met (float16|bfloat16)", told):
        names = _factors(raising, failure, "float32") or _arguments(raising, last=False)
        wanted = {"float16": ".half()", "bfloat16": ".bfloat16()"}[halves[1]]
    elif any(o.dtype == "float64" for o in failure.operands) or "float64" in told:
        names, wanted = _arguments(raising, last=False), ".float()"
    elif "one_hot takes" in told:
        names, wanted = _arguments(raising, last=False), ".long()"
    else:
        return None
    return _bound(program, names, lambda text: _append(text, wanted))


def _too_few(program: _Program, raising: ast.stmt, failure: Failure) -> Found | None:
    """The constructor whose size is too small for the indices."""
    bad = failure.bad
    if bad is None or not bad.values:
        return None
    if min(bad.values) < bad.low:
        if "nll_loss" in bad.op and len(set(bad.values)) == 1:
            ignored = rf"\1, ignore_index={bad.values[0]})"
            return program.rewritten(
                raising,
                lambda text: _first(text, ((r"(cross_entropy\(.*|nll_loss\(.*)\)", ignored),)),
            )
        return _bound(
            program, _arguments(raising, last=True), lambda text: _append(text, ".clamp(min=0)")
        )
    need = str(bad.largest + 1)
    old = str(bad.high)
    if "embedding" in bad.op:
        found = _constructed(program, rf"Embedding\(\s*(num_embeddings\s*=\s*)?{old}\b", old, need)
        if found is not None or program.shown != failure.file:
            return found
        return _bound(program, _callees(raising), lambda text: text)
    linear = rf"Linear\([^,()]+,\s*(out_features\s*=\s*)?{old}\b"
    return _constructed(program, linear, old, need)


def _constructed(program: _Program, pattern: str, old: str, new: str) -> Found | None:
    """The only statement that makes a layer of these sizes, with the size that fits."""
    found = [
        s
        for s in program.statements()
        if isinstance(s, (ast.Assign, ast.Expr, ast.Return)) and re.search(pattern, program.text(s))
    ]
    if len(found) != 1:
        found = [s for s in found if program._shares(s) and s.lineno <= program.line][-1:]
    if not found:
        return None

    def change(text: str) -> str:
        match = re.search(pattern, text)
        if match is None:
            return text
        call = match[0]
        head, tail = call[: -len(old)], call[len(call) - len(old) :]
        return text[: match.start()] + head + tail.replace(old, new) + text[match.end() :]

    return program.rewritten(found[0], change)


def _bound(program: _Program, names: list[str], change: Callable[[str], str]) -> Found | None:
    for name in names:
        if (statement := program.binding(name)) is not None:
            return program.rewritten(statement, change)
    return None


def _append(text: str, method: str) -> str:
    """``x = f(y)  # note`` with a method called on its right-hand side."""
    tree = ast.parse(text)
    statement = tree.body[0]
    if not isinstance(statement, ast.Assign):
        return text
    value = statement.value
    source = ast.get_source_segment(text, value) or ""
    plain = isinstance(value, (ast.Call, ast.Name, ast.Attribute, ast.Subscript))
    end = value.end_col_offset or len(text)
    return text[: value.col_offset] + (source if plain else f"({source})") + method + text[end:]


def _calls(statement: ast.stmt) -> list[ast.Call]:
    return [node for node in ast.walk(statement) if isinstance(node, ast.Call)]


def _receivers(statement: ast.stmt, method: str) -> list[str]:
    """What a method is called on."""
    called = [
        c.func
        for c in _calls(statement)
        if isinstance(c.func, ast.Attribute) and c.func.attr == method
    ]
    return [name for one in called if (name := _spelled(one.value))]


def _arguments(statement: ast.stmt, last: bool) -> list[str]:
    """Names that calls in a statement are given, the last first where asked."""
    names = [name for call in _calls(statement) for one in call.args if (name := _spelled(one))]
    return names[::-1] if last else names


def _indices(statement: ast.stmt) -> list[str]:
    """The index of gather and scatter, after the dimension."""
    return [
        name
        for c in _calls(statement)
        if isinstance(c.func, ast.Attribute)
        and re.match(r"gather|scatter|index_|take_along", c.func.attr)
        for name in map(_spelled, c.args[1:2])
        if name
    ]


def _factors(statement: ast.stmt, failure: Failure, dtype: str) -> list[str]:
    """Names on either side of ``@`` whose operand has this dtype."""
    products = [
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
    ]
    if len(products) != 1 or len(failure.operands) < 2:
        return []
    sides = zip((products[0].left, products[0].right), failure.operands[-2:], strict=True)
    return [_spelled(side) for side, operand in sides if operand.dtype == dtype]


def _callees(statement: ast.stmt) -> list[str]:
    return [name for call in _calls(statement) if (name := _spelled(call.func))]


def _targets(target: ast.expr) -> list[ast.expr]:
    return list(target.elts) if isinstance(target, (ast.Tuple, ast.List)) else [target]


def _spelled(node: ast.AST) -> str:
    """``x`` or ``self.head``; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    own = (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )
    return f"self.{node.attr}" if own else ""  # type: ignore[attr-defined]
