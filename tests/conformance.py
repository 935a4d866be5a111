"""Transparency against torch's own databases: the same bits with and without a watch, forward and
backward."""

from __future__ import annotations

import copy
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import nanlab
from nanlab.program.replay import check_rebuilt
from nanlab.program.rerun import window

UNDEFINED = (
    "empty",
    "new_empty",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "new_empty_strided",
)  # whatever was in memory
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64)


@dataclass
class Tally:
    """What became of the samples."""

    run: int = 0
    replayed: int = 0
    rebuilt: int = 0  # run again above autograd, with which fixes are tried
    skipped: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)  # why a sample cannot be run again
    failed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        reasons = ", ".join(f"{n} {why}" for why, n in self.skipped.most_common())
        refusals = ", ".join(f"{n} {why}" for why, n in self.refused.most_common())
        return (
            f"{self.run} samples run, {sum(self.skipped.values())} skipped ({reasons or 'none'}),"
            f" {self.replayed} replayed, {self.rebuilt} above autograd,"
            f" {sum(self.refused.values())} cannot be"
            f" ({refusals or 'none'}), {len(self.failed)} failed"
        )


def _clone(value: Any, grad: bool) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return value.detach().clone().requires_grad_(value.requires_grad and grad)
        copied = value.detach().clone(memory_format=torch.preserve_format)
        return copied.requires_grad_(value.requires_grad and grad)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_clone(v, grad) for v in value)
    if isinstance(value, dict):
        return {k: _clone(v, grad) for k, v in value.items()}
    return value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _bits(value: torch.Tensor) -> Any:
    """Something that is equal where the bits are; NaN equals NaN of the same payload."""
    value = value.detach()
    if value.layout is not torch.strided:
        value = value.to_dense()
    if value.is_quantized:
        value = value.int_repr()
    value = value.resolve_conj().resolve_neg().contiguous()
    return (
        value.dtype,
        tuple(value.shape),
        value.view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"",
    )


def _differentiable(tensor: torch.Tensor) -> bool:
    return (
        tensor.requires_grad
        and tensor.grad_fn is not None
        and (tensor.is_floating_point() or tensor.is_complex())
    )


def run(function: Callable[[], Any], leaves: list[torch.Tensor], backward: bool) -> list[Any]:
    """Bits of the results and of the gradients."""
    torch.manual_seed(7)
    result = function()
    outputs = list(_tensors(result))
    roots = (
        [t for t in outputs if _differentiable(t) and t.layout is torch.strided] if backward else []
    )
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(r) for r in roots])
    return [_bits(t) for t in outputs] + [
        _bits(leaf.grad) for leaf in leaves if leaf.grad is not None
    ]


def compare(
    name: str,
    make: Callable[[], tuple[Callable[[], Any], list[torch.Tensor]]],
    backward: bool,
    tally: Tally,
) -> None:
    """Run once bare and once watched."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function, leaves = make()
            bare = run(function, leaves, backward)
            function, leaves = make()
            again = run(function, leaves, backward)
        except Exception as error:
            tally.skipped[f"torch itself raises {type(error).__name__}"] += 1
            return
        if bare != again:
            tally.skipped["not repeatable without a watch"] += 1
            return
        tally.run += 1
        function, leaves = make()
        try:
            with nanlab.watch(on_fault="record") as trace:
                watched = run(function, leaves, backward)
        except Exception as error:
            tally.failed.append(f"{name}: raised {type(error).__name__}: {str(error)[:200]}")
            return
        if trace.notes:
            tally.failed.append(f"{name}: {trace.notes[0]}")
        elif watched != bare and _repeats(make, backward, bare):
            if _differs_under_any_mode(make, backward, bare):
                tally.skipped[f"other bits under any dispatch mode: {name}"] += 1
            else:
                tally.failed.append(f"{name}: other bits")
        else:
            _readable(name, trace, tally)
            _replays(name, trace, tally, lambda: _repeats(make, backward, bare))


def _repeats(
    make: Callable[[], tuple[Callable[[], Any], list[torch.Tensor]]],
    backward: bool,
    bare: list[Any],
) -> bool:
    """Whether torch gives the same bits again and again (some LAPACK results depend on where memory
    lies)."""
    held = []
    for size in range(12):
        held.append(torch.empty(3 * size + 1))  # so that it lies elsewhere each time
        function, leaves = make()
        if run(function, leaves, backward) != bare:
            return False
    return True


class _PassThrough(TorchDispatchMode):
    """A dispatch mode that does nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _differs_under_any_mode(
    make: Callable[[], tuple[Callable[[], Any], list[torch.Tensor]]],
    backward: bool,
    bare: list[Any],
) -> bool:
    """Whether torch takes another path, with other rounding, as soon as anybody looks (complex pinv
    and lstsq in torch 2.13)."""
    function, leaves = make()
    with _PassThrough():
        return run(function, leaves, backward) != bare


def _readable(name: str, trace: nanlab.Trace, tally: Tally) -> None:
    """The tables can be made, and the counts add up."""
    try:
        ops = trace.ops
        counted = ops["numel"] - ops["nan"] - ops["posinf"] - ops["neginf"]
        assert (counted.dropna() >= 0).all()
        assert len(trace.backward) >= 0
    except Exception as error:
        tally.failed.append(f"{name}: tables: {type(error).__name__}: {str(error)[:200]}")


def _replays(name: str, trace: nanlab.Trace, tally: Tally, repeats: Callable[[], bool]) -> None:
    """Run again, every result has the bits that were recorded; or the reason is told."""
    try:
        again = trace.replay()
    except nanlab.NotReplayable as error:
        tally.refused[str(error)] += 1
        return
    except Exception as error:
        tally.failed.append(f"{name}: replay: {type(error).__name__}: {str(error)[:200]}")
        return
    tally.replayed += 1
    if again.identical is not True and repeats():
        tally.failed.append(f"{name}: the replay has other bits")
    try:
        check_rebuilt(window(trace.recording, None))
        tally.rebuilt += 1
    except nanlab.NotReplayable as error:
        tally.refused[f"{error}, above autograd"] += 1


def operators(samples: int, keep: Callable[[int, int], bool] = lambda i, d: True) -> Tally:
    """Every operator of torch's database, every dtype it supports among ``DTYPES``; keep: which,
    by the numbers of both."""
    os.environ.setdefault("PYTORCH_TESTING_DEVICE_ONLY_FOR", "cpu")
    from torch.testing._internal.common_methods_invocations import op_db

    tally = Tally()
    for number, op in enumerate(op_db):
        dtypes = [dtype for d, dtype in enumerate(DTYPES) if keep(number, d)]
        if not dtypes:
            continue
        if op.name in UNDEFINED:
            tally.skipped["uninitialised result"] += 1
            continue
        supported = op.supported_dtypes("cpu")
        backwards = op.supported_backward_dtypes("cpu")
        for dtype in dtypes:
            if dtype not in supported:
                tally.skipped[f"no {str(dtype).removeprefix('torch.')}"] += 1
                continue
            grad = op.supports_autograd and dtype in backwards
            _operator(op, dtype, grad, samples, tally)
    return tally


def _operator(op: Any, dtype: torch.dtype, grad: bool, samples: int, tally: Tally) -> None:
    torch.manual_seed(0)
    try:
        inputs = []
        for sample in op.sample_inputs("cpu", dtype, requires_grad=grad):
            inputs.append(sample)
            if len(inputs) >= samples:
                break
    except Exception as error:
        tally.skipped[f"no samples: {type(error).__name__}"] += 1
        return
    for i, sample in enumerate(inputs):

        def make(sample: Any = sample) -> tuple[Callable[[], Any], list[torch.Tensor]]:
            first, args, kwargs = (
                _clone(sample.input, grad),
                _clone(sample.args, grad),
                _clone(sample.kwargs, grad),
            )
            leaves = [t for t in _tensors((first, args, kwargs)) if t.requires_grad]
            return (lambda: op(first, *args, **kwargs)), leaves

        compare(
            f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''} {dtype}"
            f" sample {i}",
            make,
            grad,
            tally,
        )


def modules(samples: int, keep: Callable[[int], bool] = lambda i: True) -> Tally:
    """Every module of torch's database."""
    from torch.testing._internal.common_modules import module_db

    tally = Tally()
    for number, info in enumerate(module_db):
        if not keep(number):
            continue
        for dtype in DTYPES:
            if dtype not in info.supported_dtypes("cpu"):
                tally.skipped[f"no {str(dtype).removeprefix('torch.')}"] += 1
                continue
            try:
                inputs = list(
                    info.module_inputs_func(
                        info, device="cpu", dtype=dtype, requires_grad=True, training=True
                    )
                )[:samples]
            except Exception as error:
                tally.skipped[f"no samples: {type(error).__name__}"] += 1
                continue
            for i, sample in enumerate(inputs):
                compare(
                    f"{info.name} {dtype} sample {i}", _module(info, sample, dtype), True, tally
                )
    return tally


def _module(
    info: Any, sample: Any, dtype: torch.dtype
) -> Callable[[], tuple[Callable[[], Any], list[torch.Tensor]]]:
    def make() -> tuple[Callable[[], Any], list[torch.Tensor]]:
        torch.manual_seed(3)
        build, call = copy.deepcopy(sample.constructor_input), sample.forward_input
        module = info.module_cls(*build.args, **build.kwargs).to(dtype)
        args, kwargs = _clone(call.args, True), _clone(call.kwargs, True)
        leaves = [*module.parameters(), *(t for t in _tensors((args, kwargs)) if t.requires_grad)]
        return (lambda: module(*args, **kwargs)), leaves

    return make
