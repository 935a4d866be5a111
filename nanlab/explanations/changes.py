"""The line to change for an exception, perhaps not the one that raised it, written anew."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from nanlab.capture.places import display_name
from nanlab.explanations.explanation import Explanation, operands_frame
from nanlab.explanations.search import mend
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


def with_change(
    explanation: Explanation | None, failure: Failure, error: BaseException | None = None
) -> Explanation | None:
    """The explanation, with the line to change written anew among its fixes where known.

    What the message suggests is tried first, then other small edits; where the message has no
    meaning, what was found by trying explains it.
    """
    change, edit = None, None
    if explanation is not None:
        explanation, change, edit = _suggested(explanation, failure)
    edits = mend(error, [(edit,)] if edit is not None else []) if error is not None else None
    if edits:
        explanation = explanation or _unknown(failure, edits[0])
        change = (edits[0].file, edits[0].first, edits[0].old.split("\n")[0].strip())
    elif edit is not None:
        edits = (edit,)
    if explanation is None or change is None:
        return explanation
    fixes = list(explanation.fixes)
    if edits:
        lines = ", ".join(_line(each, explanation.file) for each in edits)
        text = "\n".join(each.text for each in edits)
        if edits == (edit,):  # which says better what was left open
            fixes = [fix for fix in fixes if "=..." not in fix.code]
        fixes = [fix for fix in fixes if fix.code not in text]  # it is said once
        fixes.insert(0, Fix(f"change {lines}", text, edits=edits))
    return replace(explanation, change=change, fixes=fixes)


def _line(edit: Edit, file: str) -> str:
    return f"line {edit.first}" if edit.file == file else f"{edit.file}:{edit.first}"


def _unknown(failure: Failure, edit: Edit) -> Explanation:
    """What is said of a message that has no meaning here, where an edit was found."""
    place = "" if (edit.file, edit.first) == (failure.file, failure.line) else " raised here"
    return Explanation(
        "wrong-argument",
        f"{failure.kind}{place}: {failure.text.splitlines()[0] if failure.text else ''}",
        "The program was run again with small changes, without writing files; with this one it"
        " raises no more.",
        failure.file,
        failure.line,
        failure.source,
        operands_frame(failure.operands),
        module=failure.module,
    )


Change = tuple[str, int, str]


def _suggested(
    explanation: Explanation, failure: Failure
) -> tuple[Explanation, Change | None, Edit | None]:
    """The line that the meaning of the message says is to change, and how."""
    program = _program(explanation.file or failure.file, explanation.line or failure.line)
    if program is None:
        return explanation, None, None
    explanation = replace(explanation, fixes=_named(program, explanation))
    for each in (program, *_earlier(program, explanation)):
        if (found := _found(each, explanation, failure)) is not None:
            statement, edit = found
            if edit is None and statement is program.at(program.line):
                break  # nothing that was not said
            return explanation, (each.shown, statement.lineno, each.text(statement)), edit
    return explanation, None, None


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
    if explanation.cause == "optimizer-without-gradients":
        return _optimized(program, raising, "given no parameters" in told)
    if explanation.cause == "scaler-misuse":
        return _unscaled(program, raising)
    if explanation.cause == "optimizer-of-a-result":
        return _bound(program, _listed(raising), _as_leaf)
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
    if explanation.cause in ("empty-reduction", "unequal-sizes") and (
        loader := _loaded(program, raising)
    ):
        more = "drop_last=True" if explanation.cause == "empty-reduction" else _PADDED
        return program.rewritten(loader, lambda text: _first(text, ((_LOADER, rf"\1, {more})"),)))
    if explanation.cause == "empty-reduction" and "batch norm" in told:
        pattern = r"BatchNorm[123]d\(\s*(?:num_features\s*=\s*)?(\w+)[^()]*\)"
        norm = _constructed(program, pattern, "", "")
        return norm and program.rewritten(
            norm[0], lambda text: _first(text, ((pattern, r"GroupNorm(1, \1)"),))
        )
    if explanation.cause == "wrong-argument":
        made = [s for s in program.statements() if isinstance(s, ast.Assign) and _steps(s)]
        names = [_spelled(t) for s in made if s.lineno < program.line for t in s.targets]
        swapped = ((r"\((\w[\w.]*)", rf"({names[-1]}"),) if names else ()
        return program.rewritten(raising, lambda text: _first(text, swapped))
    if explanation.cause == "shape-mismatch" and "into its heads" in told:
        return program.rewritten(raising, _divided)
    if explanation.cause == "shape-mismatch" and explanation.title.startswith("in einsum"):
        return program.rewritten(raising, lambda text: _relettered(text, explanation.title))
    if explanation.cause == "shape-mismatch" and "fewer dimensions" in told:
        return _bound(program, _indices(raising), lambda text: _append(text, ".unsqueeze(1)"))
    if weights := re.match(r"the loss has weights for (\d+) classes, the .* (\d+)", told):
        lacking = int(weights[2]) - int(weights[1])
        names = [_spelled(k.value) for c in _calls(raising) for k in c.keywords]
        return _bound(
            program,
            [*filter(None, names), *_arguments(raising, last=True)],
            lambda text: _around(text, "torch.nn.functional.pad", f"(0, {lacking}), value=1.0"),
        )
    if mask := re.match(r"a mask of shape ([\dx ]+) selects from a .* shape ([\dx ]+)", told):
        pairs = zip(mask[1].split(" x "), mask[2].split(" x "), strict=False)
        unlike = [(has, wants) for has, wants in pairs if has.strip() != wants.strip()]
        names = [
            name
            for node in ast.walk(raising)
            if isinstance(node, ast.Subscript) and (name := _spelled(node.slice))
        ]
        if len(unlike) == 1:
            return _sized(program, names, unlike[0][1].strip(), unlike[0][0].strip())
    if explanation.cause == "shape-mismatch" and "channels are in the last" in told:
        turned = ", ".join(map(str, _channels_first(failure, told)))
        return _bound(
            program,
            _arguments(raising, last=False),
            lambda text: _append(text, f".permute({turned})"),
        )
    if explanation.cause == "shape-mismatch" and (
        met := re.match(r"sizes (\d+) and (\d+) meet", explanation.title)
    ):
        return _sized(program, _arguments(raising, last=True), *met.groups())
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
    (
        r"torch\.(?:from_numpy|(?:as_)?tensor)"
        r"\(([\w.]+?)(?:\.detach\(\))?(?:\.cpu\(\))?\.numpy\(\)\)",
        r"\1",
    ),
    (
        r"([\w.]+)\.argmax\((?:dim=)?(-1|1)\)(?:\.float\(\))?",
        r"(\1.softmax(\2) * torch.arange(\1.shape[\2])).sum(\2)",
    ),
    (r"torch\.(?:as_)?tensor\((.+)\.(?:item|tolist)\(\)\)", r"\1"),
    (r"torch\.(?:as_)?tensor\(([\w.]+)\)", r"torch.stack(list(\1))"),
    (r"\.detach\(\)|\.data\b", ""),
    (r"\.sample\(", ".rsample("),
)
_LOADER = r"^(.*DataLoader\(.*)\)"
_PADDED = "collate_fn=lambda rows: nn.utils.rnn.pad_sequence(rows, batch_first=True)"
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
    made = re.search(r"reached \w+ at [^\s,]*?:(\d+)", explanation.title)
    computed = program.at(int(made[1])) if made is not None and loop is not None else None
    if computed is None or loop is None or not isinstance(computed, ast.Assign):
        return None
    return computed, _moved(program, computed, loop)


def _moved(program: _Program, statement: ast.stmt, loop: ast.For | ast.While) -> Edit | None:
    """A statement that stands before a loop, as the first in it; None where others lie between
    that its names could depend on."""
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    if last >= loop.lineno or loop.body[0].lineno == loop.lineno:
        return None
    between = program.lines[last : loop.body[0].lineno - 1]
    rows = program.lines[first - 1 : last]
    indent = " " * (loop.body[0].col_offset - statement.col_offset)
    own = " " * statement.col_offset
    text = "\n".join(row.removeprefix(own) for row in (*between, *(indent + row for row in rows)))
    end = loop.body[0].lineno - 1
    return Edit(program.shown, first, end, text, "\n".join(program.lines[first - 1 : end]))


def _optimized(program: _Program, raising: ast.stmt, empty: bool) -> Found | None:
    """The statement that makes the optimizer, given parameters that the loss depends on: those of
    a module that is called; a list of an iterator that was used up."""
    if not empty:
        found = [s for s in program.statements() if isinstance(s, ast.Assign) and _steps(s)]
        before = [s for s in found if s.lineno < program.line and program._shares(s)]
        if not before:
            return None
        statement = max(before, key=lambda s: s.lineno)
        own = re.search(r"([\w.]+)\.parameters\(\)", program.text(statement))
        called = [
            name
            for s in program.statements()
            if isinstance(s, ast.Assign) and statement.lineno < s.lineno <= program.line
            for name in _callees(s)
            if (b := program.binding(name)) is not None and isinstance(b.value, ast.Call)
        ]
        if own is None or own[1] in called or len(set(called)) != 1:
            return None
        return program.rewritten(
            statement, lambda text: text.replace(own[0], f"{called[0]}.parameters()")
        )
    for name in _listed(raising):
        bound = program.binding(name)
        if bound is not None and (call := ast.unparse(bound.value)).endswith("parameters()"):
            given = ((rf"(?<![\w.]){name}\b(?=[,)])", call),)
            return program.rewritten(raising, partial(_first, rewrite=given))
    return None


def _unscaled(program: _Program, raising: ast.stmt) -> Found | None:
    """The second ``unscale_`` of a step; where there is but one, the step, which lacks an
    ``update``."""
    calls = [s for s in program.statements() if isinstance(s, ast.Expr)]
    if sum(".unscale_(" in program.text(s) for s in calls) > 1:
        return program.rewritten(
            raising, lambda text: re.sub(r"^.*?\.unscale_\(.*?\)", "# unscaled above", text)
        )
    names = _receivers(raising, "unscale_")
    steps = [s for s in calls if names and program.text(s).startswith(f"{names[0]}.step(")]
    if not steps:
        return None
    return program.rewritten(steps[0], lambda text: f"{text}\n{names[0]}.update()")


def _steps(statement: ast.Assign) -> bool:
    """Whether a statement makes an optimizer of parameters."""
    return ".parameters()" in ast.unparse(statement.value) and "lr" in ast.unparse(statement.value)


def _listed(statement: ast.stmt) -> list[str]:
    """Names that the calls of a statement are given, in lists and dicts too."""
    return [
        name
        for call in _calls(statement)
        for each in (*call.args, *(keyword.value for keyword in call.keywords))
        for node in ast.walk(each)
        if (name := _spelled(node)) and not isinstance(each, ast.Constant)
    ]


def _as_leaf(text: str) -> str:
    """``x = f(y)`` with its value as a leaf of the graph."""
    return _append(_append(text, ".detach()"), ".requires_grad_()")


def _loaded(program: _Program, raising: ast.stmt) -> ast.stmt | None:
    """The statement that makes the DataLoader whose batches a loop around a statement takes."""
    for loop in program.around(raising.lineno):
        if isinstance(loop, ast.For):
            for node in ast.walk(loop.iter):
                made = program.binding(_spelled(node)) if _spelled(node) else None
                if made is not None and re.search(_LOADER, program.text(made)):
                    return made
    return None


def _channels_first(failure: Failure, told: str) -> list[int]:
    """The order of dimensions in which the last one comes after the batch."""
    shape = re.search(r"input of shape ([\dx ]+) has", told)
    count = len(shape[1].split(" x ")) if shape is not None else 4
    return [0, count - 1, *range(1, count - 1)]


def _sized(program: _Program, names: list[str], wanted: str, has: str) -> Found | None:
    """The statement that gave an operand its size by number."""
    pattern = rf"([(\[,]\s*){has}(?=\s*[,)\]])"
    for name in names:
        if (bound := program.binding(name)) is not None:
            found = program.rewritten(
                bound, lambda text: re.sub(pattern, rf"\g<1>{wanted}", text, count=1)
            )
            if found[1] is not None:
                return found
    return None


def _divided(text: str) -> str:
    """``MultiheadAttention(10, 4)`` with the most heads that divide the width."""
    found = re.search(
        r"(Attention\((?:embed_dim\s*=\s*)?(\d+),\s*(?:num_heads\s*=\s*)?)(\d+)", text
    )
    if found is None:
        return text
    width, heads = int(found[2]), int(found[3])
    fitting = max(n for n in range(1, heads + 1) if width % n == 0)
    return f"{text[: found.start()]}{found[1]}{fitting}{text[found.end() :]}"


def _relettered(text: str, title: str) -> str:
    """The equation of an einsum with the last two letters of an operand in the other order."""
    number = re.search(r"operand (\d+)", title)
    equation = re.search(r"[\"']([a-zA-Z]+(?:,[a-zA-Z]+)+)->", text)
    if number is None or equation is None:
        return text
    terms = equation[1].split(",")
    term = terms[int(number[1])]
    terms[int(number[1])] = f"{term[:-2]}{term[:-3:-1]}"
    return text.replace(equation[1], ",".join(terms), 1)


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
    elif "float32 met" in told and re.search(r"loss|entropy", program.text(raising)):
        widened = r"((?:loss\w*|entropy\w*)\()([\w.]+)"
        return program.rewritten(raising, lambda text: _first(text, ((widened, r"\1\2.float()"),)))
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


def _around(text: str, function: str, more: str) -> str:
    """``x = f(y)`` as ``x = function(f(y), more)``."""
    statement = ast.parse(text).body[0]
    if not isinstance(statement, ast.Assign):
        return text
    start, end = statement.value.col_offset, statement.value.end_col_offset or len(text)
    return f"{text[:start]}{function}({text[start:end]}, {more}){text[end:]}"


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
