"""A hand-made trace: what views need of a Trace, over numbers computed here with numpy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from nanlab.rules import Fix
from nanlab.trace import Place, Selection, culprit_place, place_at, position_of
from nanlab.trace.frames import shadow_frame
from nanlab.trace.ranks import ranks_frame
from nanlab.trace.recording import Recording

OPS = (
    "step position phase op module output shape dtype device numel nan posinf neginf zero subnormal"
    " min max absmin mean rms fp16_zero fp16_subnormal fp16_inf node file line source site_file"
    " site_line status"
).split()
BACKWARD = (
    "step order node name op module file line source grad_in_nan grad_in_inf grad_in_zero"
    " grad_in_rms grad_in_max grad_out_nan grad_out_inf grad_out_zero grad_out_rms grad_out_max"
    " fp16_zero gain status backward_pass position_in position_out"
).split()
FLOATS = [
    "min",
    "max",
    "absmin",
    "mean",
    "rms",
    "gain",
    *(f"grad_{d}_{s}" for d in ("in", "out") for s in ("rms", "max")),
]
FLOATS += ["loss", "gradient_norm", "loss_scale", "seconds"]
TEXTS = {
    "phase",
    "op",
    "module",
    "shape",
    "dtype",
    "device",
    "file",
    "source",
    "site_file",
    "status",
    "name",
}
LINES = [
    "import torch",
    "",
    "def forward(self, x):",
    "    h = self.encoder(x)",
    "    scores = h @ self.keys.T",
    "    distance = torch.sqrt(((a - b) ** 2).sum(-1))",
    "    loss = distance.mean()",
    "    return loss",
]


def source_line(line: int) -> str:
    return LINES[line - 1].strip() if 0 < line <= len(LINES) else ""


def statistics(values: np.ndarray) -> dict[str, Any]:
    """The columns of trace.ops that are counted over a tensor's values, computed anew."""
    wide = values.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    nonzero = np.abs(finite[finite != 0])
    half = nonzero.astype(np.float32).astype(np.float16).astype(np.float64)

    def number(f: Any, of: np.ndarray) -> float | None:
        return float(f(of)) if of.size else None

    return {
        "numel": wide.size,
        "nan": int(np.isnan(wide).sum()),
        "posinf": int((wide == np.inf).sum()),
        "neginf": int((wide == -np.inf).sum()),
        "zero": int((wide == 0).sum()),
        "subnormal": int((nonzero < 2.0**-126).sum()),
        "min": number(np.min, finite),
        "max": number(np.max, finite),
        "absmin": number(np.min, nonzero),
        "mean": number(np.mean, finite),
        "rms": number(lambda v: np.sqrt(np.mean(v * v)), finite),
        "fp16_zero": int((half == 0).sum()),
        "fp16_subnormal": int(((half > 0) & (half < 2.0**-14)).sum()),
        "fp16_inf": int(np.isinf(half).sum()),
    }


def exponent_histogram(values: np.ndarray) -> pd.Series:
    wide = np.abs(values.astype(np.float64))
    wide = wide[np.isfinite(wide) & (wide > 0)]
    exponents, counts = np.unique(np.frexp(wide)[1] - 1, return_counts=True)
    return pd.Series(
        counts.astype("int64"),
        index=pd.Index(exponents.astype("int64"), name="exponent"),
        name="count",
    )


def frame(rows: list[dict[str, Any]], columns: list[str]) -> pd.DataFrame:
    """Counts Int64, floats Float64, "no value" <NA>."""
    table = pd.DataFrame(rows, columns=columns)
    for name in columns:
        if name not in TEXTS and name not in {"skipped"}:
            table[name] = table[name].astype("Float64" if name in FLOATS else "Int64")
    return table


@dataclass
class Finding:
    cause: str
    severity: str
    title: str
    explanation: str
    phase: str = "backward"
    op: str = "sqrt"
    node: int | None = 7
    module: str = "loss"
    step: int = 2
    file: str = "train.py"
    line: int = 6
    source: str = field(default_factory=lambda: source_line(6))
    symptom: str = "grad-nan"
    evidence: pd.DataFrame = field(default_factory=pd.DataFrame)
    samples: list[int] = field(default_factory=list)
    path: list[dict[str, Any]] = field(default_factory=list)
    fixes: list[Fix] = field(default_factory=list)
    position: int = -1
    rank: int | None = None
    library: tuple[str, int, str] | None = None

    @property
    def when(self) -> str:
        return f"step {self.step}"


@dataclass
class FakeTrace:
    ops: pd.DataFrame
    backward: pd.DataFrame
    parameters: pd.DataFrame
    steps: pd.DataFrame
    edges: pd.DataFrame
    histograms: dict[int, pd.Series]
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    shadow: pd.DataFrame = field(default_factory=lambda: shadow_frame(Recording()))
    selection: Selection = field(default_factory=Selection)
    recording: Recording = field(default_factory=Recording)
    guarded: None = None
    cure: None = None

    @property
    def ranks(self) -> pd.DataFrame:
        return ranks_frame(self.recording)

    def kept(self, position: int) -> None:
        """No operands were held."""

    @property
    def at(self) -> Place | None:
        chosen = self.selection.place
        return culprit_place(self) if chosen is None else chosen

    @at.setter
    def at(self, what: Any) -> None:
        self.selection.select(place_at(self, position_of(what)))

    @property
    def own_findings(self) -> list[Finding]:
        return self.findings

    @property
    def culprit(self) -> Finding | None:
        return next((f for f in self.findings if f.severity == "error"), None)

    def histogram(self, position: int, *, replays: bool = True) -> pd.Series:
        return self.histograms[position]

    def source(self, file: str, line: int, context: int = 2) -> list[tuple[int, str]]:
        low, high = max(1, line - context), min(len(LINES), line + context)
        return [(n, LINES[n - 1]) for n in range(low, high + 1)]


class Builder:
    """Appends rows to a trace; the numbers of a row are those of the values given."""

    def __init__(self) -> None:
        self.ops: list[dict[str, Any]] = []
        self.backward: list[dict[str, Any]] = []
        self.edges: list[dict[str, Any]] = []
        self.histograms: dict[int, pd.Series] = {}

    def op(self, values: np.ndarray, **columns: Any) -> int:
        position = len(self.ops)
        line = columns.get("line", 4)
        row = {
            "output": 0,
            "shape": str(values.shape),
            "dtype": "float32",
            "device": "cpu",
            "file": "train.py",
        }
        row |= {
            "line": line,
            "source": source_line(line),
            "site_file": "train.py",
            "site_line": line,
            "status": "ok",
        }
        self.ops.append(row | statistics(values) | {"position": position} | columns)
        self.histograms[position] = exponent_histogram(values)
        return position

    def node(self, grad_in: np.ndarray, grad_out: np.ndarray, **columns: Any) -> None:
        """A backward node; its incoming gradient is the row before it where that has the same
        values."""
        order = sum(r["step"] == columns["step"] for r in self.backward)
        common = {k: columns[k] for k in ("step", "module", "line", "node") if k in columns} | {
            "phase": "backward"
        }
        common["op"] = columns.get("op", columns["name"])
        position_in = self.op(grad_in, **common)
        position_out = self.op(grad_out, **common | {"status": columns.get("status", "ok")})
        side = {}
        for name, values in (("in", grad_in), ("out", grad_out)):
            numbers = statistics(values)
            peak = max(
                (abs(numbers[k]) for k in ("min", "max") if numbers[k] is not None), default=None
            )
            side |= {
                f"grad_{name}_nan": numbers["nan"],
                f"grad_{name}_inf": numbers["posinf"] + numbers["neginf"],
            }
            side |= {
                f"grad_{name}_zero": numbers["zero"],
                f"grad_{name}_rms": numbers["rms"],
                f"grad_{name}_max": peak,
            }
        gain = (
            side["grad_out_rms"] / side["grad_in_rms"]
            if side["grad_in_rms"] and side["grad_out_rms"]
            else None
        )
        row = {
            "order": order,
            "file": "train.py",
            "source": source_line(columns["line"]),
            "gain": gain,
            "status": "ok",
        }
        row |= {
            "fp16_zero": statistics(grad_out)["fp16_zero"],
            "op": columns["name"],
            "backward_pass": 0,
        }
        self.backward.append(
            row | side | {"position_in": position_in, "position_out": position_out} | columns
        )

    def trace(self, steps: list[dict[str, Any]], findings: list[Finding]) -> FakeTrace:
        names = "step loss gradient_norm loss_scale skipped seconds".split()
        return FakeTrace(
            ops=frame(self.ops, OPS),
            backward=frame(self.backward, BACKWARD),
            parameters=pd.DataFrame({"step": pd.array([2], "Int64"), "name": ["encoder.0.weight"]}),
            steps=frame(steps, names),
            edges=pd.DataFrame(
                self.edges, columns=["step", "backward_pass", "source", "target"]
            ).astype("Int64"),
            histograms=self.histograms,
            findings=findings,
        )


def gradient(seed: int, exponent: int, size: int = 512, spread: float = 3.0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (
        random.standard_normal(size) * 2.0 ** (exponent + spread * random.standard_normal(size))
    ).astype(np.float32)


CHAIN = [  # name, op, module, line; in the engine's order
    ("MeanBackward0", "mean", "", 7),
    ("SqrtBackward0", "sqrt", "loss", 6),
    ("SumBackward1", "sum", "loss", 6),
    ("PowBackward0", "pow", "loss", 6),
    ("SubBackward0", "sub", "loss", 6),
    ("MmBackward0", "mm", "", 5),
    *[
        (name, op, f"encoder.{layer}", 4)
        for layer in (2, 1, 0)
        for name, op in (
            ("ReluBackward0", "relu"),
            ("AddmmBackward0", "addmm"),
            ("TBackward0", "t"),
            ("AccumulateGrad", ""),
        )
    ],
]


def fake_trace(faulty: bool = True) -> FakeTrace:
    """Three steps of a small encoder; in the last one a root of zero spoils the gradient (if
    ``faulty``)."""
    build = Builder()
    for step in (1, 2):
        bad = faulty and step == 2
        add_forward(build, step, bad)
        add_backward(build, step, bad)
    norms = [3.1, 2.4, 2.2]
    steps = [
        {
            "step": i,
            "loss": 1.0 / (i + 1),
            "gradient_norm": norms[i],
            "loss_scale": 65536.0,
            "seconds": 0.01,
            "skipped": False,
        }
        for i in range(3)
    ]
    made = build.trace(steps, [sqrt_finding()] if faulty else [])
    if faulty:
        born = made.backward["status"] == "born"
        made.findings[0].position = int(made.backward[born]["position_out"].item())
        made.steps["gradient_norm"] = pd.arrays.FloatingArray(
            np.array([3.1, 2.4, np.nan]), np.zeros(3, dtype=bool)
        )
    return made


def add_forward(build: Builder, step: int, bad: bool) -> None:
    for i, (_, op, module, line) in enumerate(reversed(CHAIN)):
        if op:
            values = gradient(100 * step + i, -2)
            if op == "sum" and bad:
                values[:3] = 0.0
            build.op(
                values,
                step=step,
                phase="forward",
                op=op,
                module=module,
                line=line,
                node=node_number(step, len(CHAIN) - 1 - i),
            )


def node_number(step: int, row: int) -> int:
    return 100 * step + len(CHAIN) - row


def add_backward(build: Builder, step: int, bad: bool) -> None:
    incoming, status = gradient(step, -9), "ok"
    for row, (name, op, module, line) in enumerate(CHAIN):
        outgoing = gradient(10 * step + row, -9 - 2 * row)
        if bad and name == "SqrtBackward0":
            incoming, status = incoming.copy(), "born"
            incoming[:3] = 0.0
            outgoing[:3] = np.nan
        elif bad and row > 1:
            status = "carried"
            outgoing[: 3 * row] = np.nan
        node = node_number(step, row)
        build.node(
            incoming,
            outgoing,
            step=step,
            node=node,
            name=name,
            op=op,
            module=module,
            line=line,
            status=status,
        )
        if row:
            build.edges.append(
                {
                    "step": step,
                    "backward_pass": 0,
                    "source": node_number(step, max(0, parent(row))),
                    "target": node,
                }
            )
        incoming = outgoing


def parent(row: int) -> int:
    """The row that passes its gradient to ``row``: a leaf and the transpose before it hang on their
    addmm."""
    name = CHAIN[row][0]
    return row - 3 if name == "ReluBackward0" and row > 8 else row - 1


def sqrt_finding() -> Finding:
    return Finding(
        cause="sqrt-at-zero",
        severity="error",
        title="The derivative of sqrt at 0 is infinite, and 0 × inf is NaN",
        explanation=(
            "Three distances are exactly zero. There d√x/dx = 1/(2√x) is infinite; the incoming"
            " gradient is 0, and 0 × inf is NaN. The NaN reached the gradient of encoder.0.weight."
        ),
        node=node_number(2, 1),
        evidence=pd.DataFrame(
            {"index": ["[0]", "[1]", "[2]"], "input": [0.0, 0.0, 0.0], "result": ["nan"] * 3}
        ),
        samples=[0, 1, 2],
        path=[
            {
                "position": 40,
                "op": "sqrt",
                "phase": "backward",
                "module": "loss",
                "file": "train.py",
                "line": 6,
                "nonfinite": 3,
            },
            {
                "position": 44,
                "op": "pow",
                "phase": "backward",
                "module": "loss",
                "file": "train.py",
                "line": 6,
                "nonfinite": 9,
            },
            {
                "position": 50,
                "op": "addmm",
                "phase": "backward",
                "module": "encoder.2",
                "file": "train.py",
                "line": 4,
                "nonfinite": 21,
            },
        ],
        fixes=[
            Fix(
                "nanlab.safe.sqrt, whose gradient at 0 is 0",
                "distance = nanlab.safe.sqrt(square)",
                "verified",
                distortion=0.0,
                gradient_max=12.5,
            ),
            Fix(
                "an epsilon under the root",
                "distance = torch.sqrt(square + 1e-12)",
                "verified",
                distortion=3e-7,
                gradient_max=5e5,
            ),
            Fix(
                "nan_to_num on the result",
                "distance = torch.sqrt(square).nan_to_num()",
                "fails",
                "the gradient stays NaN",
            ),
            Fix("compute the loss in float64", "square = square.double()"),
        ],
    )


def big_trace(nodes: int = 10_000) -> FakeTrace:
    """A backward pass of many nodes over a deep encoder, its numbers drawn at random; one NaN is
    born halfway."""
    random, per_layer = np.random.default_rng(0), 20
    parts = [
        "norm1",
        "attention.query",
        "attention.key",
        "attention.softmax",
        "attention.out",
        "norm2",
        "mlp.up",
        "mlp.down",
    ]
    layers = nodes // per_layer
    order = np.arange(nodes)
    modules = [
        f"encoder.layers.{layers - 1 - i // per_layer}.{parts[::-1][i % per_layer * len(parts) // per_layer]}"
        for i in order
    ]
    bad = order >= nodes // 2
    status = np.where(bad, "carried", "ok")
    status[nodes // 2] = "born"
    rms = np.exp(random.normal(-9, 2, nodes))
    columns = {
        "step": 1, "order": order, "node": nodes - order, "name": "AddmmBackward0", "op": "addmm", "module": modules,
        "file": "model.py", "line": 1 + order % 8, "source": [source_line(1 + i % 8) for i in order],
        "grad_in_nan": np.where(bad, 7, 0), "grad_in_inf": 0, "grad_in_zero": 3, "grad_in_rms": rms,
        "grad_in_max": 5 * rms, "grad_out_nan": np.where(bad, 7, 0), "grad_out_inf": 0, "grad_out_zero": 3,
        "grad_out_rms": rms, "grad_out_max": 5 * rms,
        "fp16_zero": random.integers(0, 500, nodes), "gain": np.exp(random.normal(0, 1, nodes)), "status": status,
        "backward_pass": 0, "position_in": 0, "position_out": 0,
    }  # fmt: skip
    edges = [(1, 0, nodes - i, nodes - i - 1) for i in range(nodes - 1)]
    edges += [
        (1, 0, nodes - i, nodes - i - per_layer) for i in range(0, nodes - per_layer, per_layer)
    ]
    small = fake_trace(faulty=False)
    return FakeTrace(
        ops=big_ops(2_000, small.ops),
        backward=frame(
            [
                dict(zip(columns, row, strict=True))
                for row in zip(*broadcast(columns, nodes), strict=True)
            ],
            BACKWARD,
        ),
        parameters=small.parameters,
        steps=small.steps,
        edges=pd.DataFrame(edges, columns=["step", "backward_pass", "source", "target"]).astype(
            "Int64"
        ),
        histograms=dict.fromkeys(range(2_000), exponent_histogram(gradient(0, -9))),
    )


def broadcast(columns: dict[str, Any], size: int) -> list[list[Any]]:
    return [list(v) if np.ndim(v) else [v] * size for v in columns.values()]


def big_ops(rows: int, pattern: pd.DataFrame) -> pd.DataFrame:
    table = pd.concat([pattern] * (rows // len(pattern) + 1), ignore_index=True).iloc[:rows].copy()
    table["position"] = pd.array(range(rows), "Int64")
    return table
