"""What an iteration begins with besides its batch: random states, buffers, Python state."""

from __future__ import annotations

import copy
import functools
import math
import random
import signal
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn

from nanlab.capture.places import codes_in, is_user_code
from nanlab.capture.training import write
from nanlab.stats.memory import PLAIN, local_part

# Whether many tensors are finite, in one number; whether two of them have the same bits.

# tensors up to which they are summed singly, which is faster than their norms together
ONE_BY_ONE = 16
_HALF = (torch.float16, torch.bfloat16)

Tensor = torch.Tensor


def total(tensors: list[Tensor], losses: Sequence[Tensor]) -> float:
    """A number that is finite if all elements are, unless their sum or squares overflow."""
    try:
        if not PLAIN.issuperset(map(type, tensors)):
            tensors = [local_part(t) for t in tensors]
        if len(tensors) <= ONE_BY_ONE and all(t.is_cpu for t in tensors):
            result = sum([torch.sum(t).item() for t in tensors])
        else:
            wide = (2, torch.float32) if any(t.dtype in _HALF for t in tensors) else ()
            result = _sum_of(torch._foreach_norm(tensors, *wide))
    except (RuntimeError, NotImplementedError, TypeError):  # sparse, nested, or of another kind
        result = 0.0 if are_finite(tensors) else math.nan
    return float(abs(result) + sum([loss.item() for loss in losses]))


def _sum_of(norms: Sequence[Tensor]) -> float:
    by_device: dict[torch.device, list[Tensor]] = {}
    for norm in norms:
        by_device.setdefault(norm.device, []).append(
            norm.float() if norm.dtype != torch.float32 else norm
        )
    return sum(float(torch.stack(group).sum()) for group in by_device.values())


def values_of(tensor: Tensor) -> Tensor:
    """What a tensor holds: of a sparse one what it stores, of a distributed one the local part."""
    return tensor.coalesce().values() if tensor.is_sparse else local_part(tensor)


def are_finite(tensors: Sequence[Tensor]) -> bool:
    for tensor in tensors:
        value = values_of(tensor)
        if not bool(torch.isfinite(value.float() if value.dtype.itemsize == 1 else value).all()):
            return False
    return True


def same(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


def same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return a is b
    if a.is_sparse:
        a, b = a.to_dense(), b.to_dense()
    a, b = local_part(a), local_part(b)
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


# Interrupts that wait until everything is put back.


@contextmanager
def held() -> Iterator[None]:
    """Delay an interrupt (Ctrl-C, the stop button) in the block until its end."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        before(*came[-1])


# What an iteration of a loop begins with, besides its batch: random states, buffers, and the
# Python state that its body reaches.

MOST_ITEMS = 64  # of a container that is kept; a longer one is a log
MOST_OBJECTS = 2000  # that are walked through from the names of a loop's body
MOST_KEPT = 200  # objects and containers that are copied each iteration
DEPTH = 6
# iterations between two looks at whether the body draws from Python's or NumPy's generator
LOOK_EVERY = 256
_PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    range,
)
_CONTAINERS = (list, dict, set, deque)
# Packages whose objects are not walked through: what a trainer counts belongs to the trainer.
_FOREIGN = frozenset(
    "torch nanlab lightning lightning_fabric pytorch_lightning transformers accelerate".split()
)
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


class RandomStates:
    """States of the generators: torch's, those the body names, Python's and NumPy's if drawn."""

    def __init__(self, generators: Iterable[Any], devices: Iterable[torch.device]) -> None:
        self.generators = list(generators)
        self.devices = [d for d in devices if d.type == "cuda"]
        self.turns = 0
        self.host_is_used = False

    def take(self) -> tuple[Any, ...]:
        """The states now; of Python and NumPy if the body uses them, and sometimes to see that."""
        turn, self.turns = self.turns, self.turns + 1
        look = self.host_is_used or turn < 2 or turn % LOOK_EVERY == 0
        own = [_state_of(g) for g in self.generators] if self.generators else ()
        cuda = [torch.cuda.get_rng_state(d) for d in self.devices] if self.devices else ()
        return torch.default_generator.get_state(), cuda, own, _host_state() if look else None

    def put(self, taken: tuple[Any, ...]) -> None:
        cpu, cuda, own, host = taken
        torch.set_rng_state(cpu)
        for device, state in zip(self.devices, cuda, strict=True):
            torch.cuda.set_rng_state(state, device)
        for generator, state in zip(self.generators, own, strict=True):
            _put_state(generator, state)
        if host is not None:
            _put_host_state(host)

    def look(self, taken: tuple[Any, ...]) -> None:
        """Notice whether the body has drawn from Python's or NumPy's generator since ``take``."""
        if taken[3] is not None and not self.host_is_used:
            self.host_is_used = not _same_host_state(taken[3], _host_state())


def _host_state() -> tuple[Any, Any]:
    numpy = sys.modules.get("numpy.random")
    return random.getstate(), numpy.get_state() if numpy is not None else None


def _same_host_state(a: tuple[Any, Any], b: tuple[Any, Any]) -> bool:
    if a[0] != b[0] or (a[1] is None) != (b[1] is None):
        return False
    return a[1] is None or (a[1][2] == b[1][2] and bool((a[1][1] == b[1][1]).all()))


def _put_host_state(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    if state[1] is not None:
        sys.modules["numpy.random"].set_state(state[1])


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state


def _put_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.bit_generator.state = state


class Tensors:
    """Copies of the tensors that a program writes to and that no optimizer owns: buffers, averages,
    banks of examples.

    A buffer is copied from the start; another tensor once it was seen to change.
    """

    def __init__(
        self,
        buffers: Iterable[Tensor],
        others: Iterable[Tensor],
        owned: Callable[[], Iterable[Tensor]],
    ) -> None:
        self.owned = owned  # what optimizers write to
        self.kept = list(buffers)
        self.copies = [b.detach().clone() for b in self.kept]
        self.versions = [b._version for b in self.kept]
        # batch norm writes to its statistics, vectors, without a new version
        self.vectors = [i for i, b in enumerate(self.kept) if b.dim() == 1]
        self.others = [(t, t._version) for t in others]
        self.turns = 0

    def take(self) -> None:
        """Bring the copies up to date."""
        self.turns += 1
        if self.others and (self.turns < 4 or self.turns % LOOK_EVERY == 0):
            self._look()
        if self.vectors:
            with torch.no_grad():
                copies, now = ([each[i] for i in self.vectors] for each in (self.copies, self.kept))
                torch._foreach_copy_(copies, now)
        for i, tensor in enumerate(self.kept):
            if tensor._version != self.versions[i]:
                write(self.copies[i], tensor)
                self.versions[i] = tensor._version

    def _look(self) -> None:
        owned = {id(p) for p in self.owned()}
        self.others = [
            (tensor, version) for tensor, version in self.others if id(tensor) not in owned
        ]
        for tensor, version in self.others:
            if tensor._version != version:
                self.kept.append(tensor)
                self.copies.append(tensor.detach().clone())
                self.versions.append(tensor._version)
        kept = {id(tensor) for tensor in self.kept}
        self.others = [
            (tensor, version) for tensor, version in self.others if id(tensor) not in kept
        ]

    def put(self, spoilt_only: bool = False) -> None:
        """Restore the copies; spoilt_only: of the tensors that are not finite."""
        kept = zip(self.kept, self.copies, strict=True)
        self.put_back([t if spoilt_only and are_finite([t]) else copy for t, copy in kept])

    def put_back(self, values: list[Tensor]) -> None:
        for i, (tensor, value) in enumerate(zip(self.kept, values, strict=True)):
            write(tensor, value)
            self.versions[i] = -1


class PythonState:
    """The Python state that a step may change: attributes, short containers, variables of closures,
    and which parameters are frozen and which modules train."""

    def __init__(
        self,
        holders: Iterable[Any],
        cells: Iterable[types.CellType],
        parameters: Iterable[Tensor] = (),
        modules: Iterable[nn.Module] = (),
    ) -> None:
        self.holders = list(holders)
        self.cells = list(cells)
        self.parameters = [p for p in parameters if p.is_leaf]
        self.modules = list(modules)

    def take(self) -> tuple[list[Any], ...]:
        """Shallow copies as of now; None for a container that has grown long."""
        return (
            [h.copy() if len(h) <= MOST_ITEMS else None for h in self.holders],
            [_content(c) for c in self.cells],
            [p.requires_grad for p in self.parameters],
            [m.training for m in self.modules],
        )

    def put(self, taken: tuple[list[Any], ...]) -> None:
        for parameter, required in zip(self.parameters, taken[2], strict=True):
            parameter.requires_grad = required
        for module, training in zip(self.modules, taken[3], strict=True):
            module.training = training
        for holder, content in zip(self.holders, taken[0], strict=True):
            if content is None:
                continue
            if isinstance(holder, list):
                holder[:] = content
            elif holder != content if isinstance(holder, set) else True:
                holder.clear()
                (holder.extend if isinstance(holder, deque) else holder.update)(content)
        for cell, content in zip(self.cells, taken[1], strict=True):
            _fill(cell, content)


_EMPTY = object()


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def _fill(cell: types.CellType, content: Any) -> None:
    if content is not _EMPTY:
        cell.cell_contents = content
    elif _content(cell) is not _EMPTY:
        del cell.cell_contents


class Reached:
    """All that can be reached from some values, and its state before an iteration."""

    def __init__(
        self, values: Iterable[Any], owned: Callable[[], Iterable[Tensor]] = lambda: ()
    ) -> None:
        self.modules: list[nn.Module] = []
        self.generators: list[Any] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.holders: list[Any] = []
        self.cells: list[types.CellType] = []
        self.stateful: list[Any] = []  # scalers, and what else can be put into a checkpoint
        self.loose: list[Tensor] = []
        self.global_names: set[str] = set()
        self._seen: dict[int, Any] = {}
        for value in values:
            self._walk(value, 0)
        stepped = {id(p): p for o in self.optimizers for g in o.param_groups for p in g["params"]}
        known = {id(t) for t in owned()} | set(stepped)
        buffers = {id(b): b for m in self.modules for b in m.buffers()}
        parameters = {id(p): p for m in self.modules for p in m.parameters()}
        plain = [t for t in buffers.values() if _is_plain(t)]
        others = [
            t
            for t in [*parameters.values(), *self.loose]
            if _is_plain(t) and id(t) not in known | set(buffers)
        ]
        devices = {t.device for t in [*parameters.values(), *buffers.values()]}
        self.parameters = list(parameters.values())
        self.random = RandomStates(self.generators, devices)
        self.tensors = Tensors(plain, others, owned)
        self.python = PythonState(
            self.holders[:MOST_KEPT],
            self.cells[:MOST_KEPT],
            {**parameters, **stepped}.values(),
            {id(m): m for root in self.modules for m in root.modules()}.values(),
        )
        self._seen.clear()
        self.loose.clear()

    def _walk(self, value: Any, depth: int) -> None:
        if (
            isinstance(value, _PLAIN)
            or depth > DEPTH
            or len(self._seen) > MOST_OBJECTS
            or id(value) in self._seen
        ):
            return
        self._seen[id(value)] = value
        for part in self._parts(value):
            self._walk(part, depth + 1)

    def _parts(self, value: Any) -> Iterable[Any]:
        """The values to visit next; notes the value itself by its kind."""
        numpy = sys.modules.get("numpy.random")
        if isinstance(value, Tensor):
            self.loose.append(value)
        elif isinstance(value, (torch.Generator, random.Random)) or (
            numpy and isinstance(value, numpy.Generator)
        ):
            self.generators.append(value)
        elif isinstance(value, nn.Module):
            return self._module(value)
        elif isinstance(value, torch.optim.Optimizer):
            # some stand in wrappers
            self.optimizers.append(getattr(value, "optimizer", value))
        elif isinstance(value, types.MethodType):
            return value.__self__, value.__func__
        elif isinstance(value, types.FunctionType):
            return self._function(value)
        elif isinstance(value, functools.partial):
            return value.func, value.args, value.keywords
        elif isinstance(value, tuple):
            return value[:MOST_ITEMS]
        elif isinstance(value, _CONTAINERS):
            self.holders.append(value)
            items = value.values() if isinstance(value, dict) else value
            return list(items) if len(value) <= MOST_ITEMS else ()
        elif _is_object(value):
            self.holders.append(vars(value))
            return list(vars(value).values())
        elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            self.stateful.append(value)
        return ()

    def _module(self, module: nn.Module) -> Iterable[Any]:
        self.modules.append(module)
        found = []
        for each in module.modules():
            self._seen[id(each)] = each
            if not type(each).__module__.startswith("torch."):
                self.holders += [vars(each), *([each._buffers] if each._buffers else ())]
                found += [v for k, v in vars(each).items() if k not in _OF_EVERY_MODULE]
        return found

    def _function(self, function: types.FunctionType) -> Iterable[Any]:
        if not is_user_code(function.__code__, function.__globals__):
            return ()
        cells = [c for c in function.__closure__ or () if id(c) not in self._seen]
        self._seen.update((id(c), c) for c in cells)
        self.cells += cells
        names = all_names(function.__code__)
        self.global_names |= names
        inside = [_content(c) for c in cells]
        return [*inside, *(function.__globals__[n] for n in names if n in function.__globals__)]

    def take(self) -> tuple[Any, ...]:
        """The state before a step's first iteration; random states are taken every iteration."""
        self.tensors.take()
        return self.python.take()


class Rewind:
    """What a step begins with, to go back to: parameters, gradients and optimizers too."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self.reached = reached = Reached([step])
        others = [t for t, _ in reached.tensors.others]
        every = [*reached.parameters, *reached.tensors.kept, *others]
        every += [p for o in reached.optimizers for g in o.param_groups for p in g["params"]]
        self._tensors = [
            (t, t.detach().clone(), t.grad.clone() if t.is_leaf and t.grad is not None else None)
            for t in {id(t): t for t in every}.values()
        ]
        held = [*reached.optimizers, *reached.stateful]
        self._states = [(each, copy.deepcopy(each.state_dict())) for each in held]
        self._random, self._python = reached.random.take(), reached.python.take()

    def back(self) -> None:
        self.reached.python.put(self._python)
        for tensor, value, gradient in self._tensors:
            if tensor.dtype != value.dtype or tensor.shape != value.shape:
                tensor.grad, tensor.data = None, value.clone()  # the step has converted it
            elif not same_bits(tensor.detach(), value):
                write(tensor, value)
            if tensor.is_leaf:
                tensor.grad = None if gradient is None else gradient.clone()
        for each, state in self._states:
            each.load_state_dict(copy.deepcopy(state))
        self.reached.random.put(self._random)


def all_names(code: types.CodeType) -> set[str]:
    """The globals and attributes that a function names, inner functions included."""
    return set().union(*(each.co_names for each in codes_in(code)))


def _is_plain(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, nn.Parameter, nn.Buffer)
        and tensor.layout is torch.strided
        and not tensor.is_meta
    )


def is_put_back(value: Any) -> bool:
    """Whether a replay restores a value: a short container, torch's own, or an object of a class of
    the program."""
    if isinstance(value, _CONTAINERS):
        return len(value) < MOST_ITEMS
    if value is None or isinstance(value, (Tensor, nn.Module)):
        return True
    kind = type(value)
    package = getattr(value, "__name__", "") if kind is types.ModuleType else kind.__module__
    if package.partition(".")[0] == "torch":
        return "tensorboard" not in package
    functions = [f for f in vars(kind).values() if isinstance(f, types.FunctionType)]
    users = any(is_user_code(f.__code__, f.__globals__) for f in functions)
    return users and _is_object(value)


def _is_object(value: Any) -> bool:
    """Whether an object's attributes may be put back: not torch's, a trainer's, a thread's."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    if not isinstance(getattr(value, "__dict__", None), dict) or package in _FOREIGN:
        return kind.__module__ == "torch.optim.lr_scheduler"
    return not isinstance(value, (threading.Thread, torch.optim.Optimizer)) and not hasattr(
        kind, "__next__"
    )
