"""What an exception's frames say: the user's line, the operation, its operands, the module."""

from __future__ import annotations

import inspect
import linecache
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload

from nanlab.capture.dispatch import OpRecorder
from nanlab.capture.places import display_name, is_torch, is_user
from nanlab.capture.plans import IndexGuard, IndexOutOfRangeError, bad_indices
from nanlab.trace.escapes import BadIndices, Failure, Operand
from nanlab.trace.recording import Recording

Tensor = torch.Tensor
Step = tuple[FrameType, int]  # a frame of the traceback, and the line in it
_DISPATCH = OpRecorder.__torch_dispatch__.__code__
_OPERATOR = OpOverload.__call__.__code__
_HERE = os.path.dirname(_DISPATCH.co_filename)
_OURS = (
    _HERE,
    os.path.join(os.path.dirname(_HERE), "guards"),
)  # folders of frames that are left out
# Python functions of torch.nn.functional and the arguments of the operation that they end in.
_FUNCTIONS = {
    "embedding": ("embedding", ("weight", "input")),
    "cross_entropy": ("nll_loss", ("input", "target", "weight", "reduction", "ignore_index")),
    "nll_loss": ("nll_loss", ("input", "target", "weight", "reduction", "ignore_index")),
}
_SIZES = (
    "in_features out_features num_embeddings embedding_dim in_channels out_channels"
    " normalized_shape num_features input_size hidden_size embed_dim kernel_size padding_idx"
    " ignore_index"
).split()
POSITIONS = re.compile(r"(?i)(^|_)(w?pe|pos|posit\w*)(_|$)")  # names of tables of positions
_AFTER_DEATH = re.compile(
    r"device-side assert|CUBLAS_STATUS|CUDA error|illegal memory access|CUDNN_STATUS"
)


def failure_of(
    error: BaseException, guard: IndexGuard | None = None, root: nn.Module | None = None
) -> Failure:
    """An exception as plain data.

    guard: asked for the indices it copied to the host when a device has failed.
    root: the watched model, which the module's path starts from.
    """
    steps = list(_steps(error.__traceback__))
    file, line, real = _place(steps)
    modules = [
        frame.f_locals["self"]
        for frame, _ in steps
        if isinstance(own := frame.f_locals.get("self"), nn.Module) and "_modules" in vars(own)
    ]
    op, operands, bad = _operation(steps)
    module = _path(modules, root)
    if isinstance(error, IndexOutOfRangeError):
        bad = error.bad
    if (
        bad is None
        and guard is not None
        and _AFTER_DEATH.search(str(error))
        and (suspect := guard.suspect()) is not None
    ):
        bad, module, number = suspect
        file, line, real = guard.place(number)
        op = bad.op
    return Failure(
        kind=type(error).__name__,
        text=str(error),
        file=file,
        line=line,
        source=linecache.getline(real, line).strip() if line else "",
        op=op,
        operands=operands,
        module=module,
        module_type=type(modules[-1]).__name__ if modules else "",
        facts=_facts(steps, modules, guard),
        bad=bad,
    )


def recording_of(error: BaseException) -> Recording | None:
    """The recording of the watch in which an exception was raised, by an operation or backward."""
    for frame, _ in _steps(error.__traceback__):
        owner = frame.f_locals.get("self")
        ops = inspect.getattr_static(owner, "ops", owner)  # the program's own may raise
        if isinstance(ops, OpRecorder):
            return ops.recording
    return None


def mark(error: BaseException, recording: Recording) -> None:
    """Note on an exception which run it ended, as a number: exceptions may be pickled."""
    with suppress(AttributeError, TypeError):
        error._nanlab_run = recording.escapes.number  # type: ignore[attr-defined]


def ended(error: BaseException, recording: Recording) -> bool:
    """Whether an exception ended this run."""
    return getattr(error, "_nanlab_run", 0) == recording.escapes.number


def without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """A copy of a traceback as it would be without a watch; the frames serve ``explain``."""
    kept: list[TracebackType] = []
    calls_operator = False  # whether the frame before handed an operation on to torch
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if os.path.dirname(code.co_filename) not in _OURS and not (
            calls_operator and code is _OPERATOR
        ):
            kept.append(traceback)
        calls_operator, traceback = code is _DISPATCH, traceback.tb_next
    copy = None
    for step in reversed(kept):
        copy = TracebackType(copy, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return copy


def _steps(traceback: TracebackType | None) -> Iterator[Step]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno or 0
        traceback = traceback.tb_next


def _place(steps: list[Step]) -> tuple[str, int, str]:
    """(file as shown, line, real file) of the innermost line: the user's, else outside torch."""
    for mine in (is_user, lambda frame: not is_torch(frame)):
        for frame, line in reversed(steps):
            if mine(frame):
                return display_name(frame.f_code.co_filename), line, frame.f_code.co_filename
    return "", 0, ""


def _path(modules: list[nn.Module], root: nn.Module | None) -> str:
    """The innermost module by attribute path; outside the watched model, the outermost by class."""
    if not modules:
        return ""
    own = _name_below(root, modules[-1]) if root is not None else None
    if own is not None:
        return own
    top = type(modules[0]).__name__
    name = _name_below(modules[0], modules[-1])
    return f"{top}.{name}" if name else top


def _name_below(root: nn.Module, module: nn.Module) -> str | None:
    with suppress(TypeError):  # a module that has no hash
        return next((name for name, each in root.named_modules() if each is module), None)
    return None


def _operation(steps: list[Step]) -> tuple[str, tuple[Operand, ...], BadIndices | None]:
    """The operation that raised: as dispatched, else as called in ``torch.nn.functional``."""
    for frame, _ in reversed(steps):
        if frame.f_code is _DISPATCH:
            return _dispatched(frame.f_locals)
    for frame, _ in reversed(steps):
        if (
            frame.f_code.co_filename.endswith("functional.py")
            and frame.f_code.co_name in _FUNCTIONS
            and is_torch(frame)
        ):
            op, names = _FUNCTIONS[frame.f_code.co_name]
            values = [frame.f_locals.get(name) for name in names]
            return op, tuple(_operands(names, values, [])), _indices(op, values)
    return "", (), None


def _dispatched(local: dict[str, Any]) -> tuple[str, tuple[Operand, ...], BadIndices | None]:
    func, args, plan = local["func"], local["args"], local.get("plan")
    if plan is None:
        return "", (), None
    names = [argument.name for argument in func._schema.arguments]
    return (
        plan.name,
        tuple(_operands(names, args, list(local.get("sources", [])))),
        _indices(plan.name, args),
    )


def _indices(op: str, args: Any) -> BadIndices | None:
    """The bad indices of a call that failed on the CPU; a failed device must not be read."""
    try:
        on_cpu = all(value.is_cpu for value in args if isinstance(value, Tensor))
        return bad_indices(op, args) if on_cpu else None
    except Exception:
        return None


def _operands(names: Any, values: Any, sources: list[int]) -> Iterator[Operand]:
    rows = iter(sources)
    for name, value in zip(names, values, strict=False):
        if isinstance(value, Tensor):
            yield operand_of(name, value, next(rows, None))
        elif isinstance(value, (list, tuple)):
            for i, item in enumerate(value):
                if isinstance(item, Tensor):
                    yield operand_of(f"{name}[{i}]", item, next(rows, None))


def operand_of(name: str, tensor: Tensor, source: int | None = None) -> Operand:
    """A tensor without its values."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Operand(
        name, tuple(tensor.shape), dtype, str(tensor.device), bool(tensor.requires_grad), source
    )


def _facts(steps: list[Step], modules: list[nn.Module], guard: IndexGuard | None) -> dict[str, Any]:
    """Sizes and inputs of the innermost module, the stepping optimizer, samples of a batch."""
    facts: dict[str, Any] = {}
    if modules:
        facts |= {name: own for name, own in vars(modules[-1]).items() if name in _SIZES}
        tables = [m for n, m in modules[-1].named_children() if POSITIONS.search(n)]
        rows = [m.num_embeddings for m in tables if isinstance(m, nn.Embedding)]
        named = modules[-1].named_parameters(recurse=False)
        rows += [p.shape[-2] for n, p in named if p.dim() > 1 and POSITIONS.search(n)]
        facts |= {"positions": rows[0]} if rows else {}
        if own := list(modules[-1].parameters(recurse=False)):
            dtypes = {str(p.dtype).removeprefix("torch.") for p in own}
            facts["parameter_devices"] = sorted({str(p.device) for p in own})
            facts["parameter_dtypes"] = sorted(dtypes)
    for frame, _ in steps:
        local = frame.f_locals
        if isinstance(local.get("optimizer"), torch.optim.Optimizer):
            facts |= _optimizer_facts(local["optimizer"], guard)
        if frame.f_code.co_name == "forward" and local.get("self") is (
            modules[-1] if modules else None
        ):
            facts["inputs"] = [
                operand_of(name, v) for name, v in local.items() if isinstance(v, Tensor)
            ]
        if frame.f_code.co_name == "__init__" and modules and local.get("self") is modules[-1]:
            plain = type(modules[-1]).__module__.startswith("torch.nn.")
            if plain and any(isinstance(v, Tensor) for v in local.values()):
                facts["made_of_tensors"] = True  # its class was called as the module would be
        if frame.f_code.co_name == "_make_grads" and isinstance(local.get("out"), Tensor):
            facts["loss_shape"] = tuple(local["out"].shape)
        if frame.f_code.co_name == "persistent_load" and isinstance(local.get("location"), str):
            facts["saved_from"] = local["location"]
        batch = local.get("batch")
        if isinstance(batch, list) and batch and isinstance(batch[0], (dict, tuple, list)):
            pairs = batch[0].items() if isinstance(batch[0], dict) else enumerate(batch[0])
            facts.setdefault("sample", {name: type(value).__name__ for name, value in pairs})
        if (
            isinstance(batch, (list, tuple))
            and batch
            and all(isinstance(item, Tensor) for item in batch)
        ):
            facts["batch"] = [tuple(item.shape) for item in batch]
    return facts


def _optimizer_facts(optimizer: torch.optim.Optimizer, guard: IndexGuard | None) -> dict[str, Any]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        "optimizer": type(optimizer).__name__,
        "optimizer_parameters": len(parameters),
        "optimizer_gradients": sum(p.grad is not None for p in parameters),
        "optimizer_rows": (
            frozenset(guard.row_of(p) for p in parameters) if guard is not None else frozenset()
        ),
    }
