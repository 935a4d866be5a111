"""Where an operation runs: its phase, its autograd node, the user's line, the module."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from nanlab.capture.source import SourceLines
from nanlab.capture.steps import StepClock
from nanlab.trace.recording import BACKWARD, FORWARD, OPTIMIZER, RECOMPUTE, Recording

_node = torch._C._current_autograd_node  # tried with torch 2.6 to 2.13
_sequence = torch._C._autograd._get_sequence_nr  # the number that the next autograd node gets
_LEAF = 1 << 63  # AccumulateGrad nodes bear a sequence number above this
Place = tuple[int, int, int, int, int]  # phase, node, line, site, module


class Placing:
    """The part of the recorder that knows where the program stands."""

    recording: Recording
    lines: SourceLines
    clock: StepClock
    module: int
    depth: int
    in_backward: int
    in_optimizer: int
    step_place: (
        tuple[int, int] | None
    )  # line and site of the running optimizer step, where the optimizer is torch's own
    engine_codes: set[Any]
    sequence: int
    opening: dict[int, int]
    first_call: int
    step_began: Callable[[int], None]
    _flags: int
    _grad: bool

    def place(self, frame: FrameType | None) -> Place:
        """Of the operation that is about to run. A new training step may begin with it."""
        if self.in_backward:
            return self._backward_place(frame)
        grad = torch.is_grad_enabled()
        if self.in_optimizer and not grad:
            here = self.step_place
            if here is None or not self.lines.torch_code(frame):
                here = self.lines.here(frame)
            return OPTIMIZER, -1, *here, 0
        line, site = self.lines.here(frame)
        if not self.depth and not self.in_optimizer and line not in self.clock.checked:
            if line not in self.clock.openers:
                self.clock.checked.add(line)
            self.notice_loop(frame, line)
        now, node = _sequence(), -1
        if now > self.sequence:
            node = self._new_nodes(now, grad, frame, line, site)
        return FORWARD, node, line, site, self.module

    def notice_loop(self, frame: FrameType | None, line: int = 0) -> None:
        """Begin a new training step if the program's loop came round."""
        position = self.recording.end
        if not self.recording.passes:
            self._note_opening(frame, position)
        # Not _sequence(): the node of the operation that is about to run is made already, and belongs to the new step.
        if self.clock.operation(frame, position, self.sequence, not torch.is_grad_enabled(), line):
            self.step_began(position)

    def _note_opening(self, frame: FrameType | None, position: int) -> None:
        """Before the first backward: at which position each function was first seen at work."""
        while frame is not None:
            self.opening.setdefault(id(frame.f_code), position)
            frame = frame.f_back

    def training_began(self, frame: FrameType | None, oldest: int) -> int:
        """Where building the program ends and training begins, told at the first backward.

        That is with the function that calls backward, the first call of a module, or the first operation of the graph, whichever
        came first. In a cell or script that does all in one place the function tells nothing.
        """
        node = self.recording.nodes.get(oldest)
        found = [self.recording.end, self.first_call]
        if node is not None:
            found.append(node.position)
        caller = self.lines.outside(frame)
        if caller is not None and caller.f_code.co_name != "<module>":
            found.append(self.opening.get(id(caller.f_code), found[0]))
        self.opening.clear()
        return min(found)

    def _new_nodes(self, now: int, grad: bool, frame: FrameType | None, line: int, site: int) -> int:
        """Tie the autograd nodes made since the last operation to it; the node of this operation itself, or -1."""
        nodes, position = self.recording.nodes, self.recording.end
        own = now - 1 if grad else -1
        for number in range(max(self.sequence, now - 64), now):
            if number == own:
                continue
            # Made without an operation of its own: a torch.autograd.Function, whose forward runs under no_grad.
            here, there = self._apply_line(frame) if not grad else (line, site)
            if not here and not grad:
                return -1  # a hook packs what the next operation's node saves: the node is that operation's
            nodes.rows[number] = (position, -1, here, there, self.module, not grad)
        self.sequence = now
        return own

    def _apply_line(self, frame: FrameType | None) -> tuple[int, int]:
        """The line that applied the running torch.autograd.Function."""
        while frame is not None:
            code = frame.f_code
            if code.co_name == "apply" and code.co_filename.endswith("function.py"):
                return self.lines.here(frame.f_back)
            frame = frame.f_back
        return 0, 0

    def _backward_place(self, frame: FrameType | None) -> tuple[int, int, int, int, int]:
        node = _node()
        number = node._sequence_nr() if node is not None else -1
        info = self.recording.nodes.rows.get(number)
        now = _sequence()
        python = frame is not None and frame.f_code not in self.engine_codes
        where = self._python_in_backward(frame) if python else ""
        if where == "recompute" or (where and torch.is_grad_enabled() and where != "custom"):
            line, site = self.lines.here(frame)
            made = now - 1 if now > self.sequence and torch.is_grad_enabled() else -1
            self.sequence = now
            return (RECOMPUTE if where == "recompute" else BACKWARD), made, line, site, self.module
        if now > self.sequence:  # create_graph: the backward operation has a node of its own
            for made in range(max(self.sequence, now - 64), now):
                if info is not None:
                    self.recording.nodes.rows[made] = (self.recording.end, *info[1:])
            self.sequence = now
        if info is not None and (where in ("", "custom")):
            return BACKWARD, number, info[2], info[3], info[4]
        line, site = self.lines.here(frame)
        return BACKWARD, number if 0 <= number < _LEAF else -1, line, site, 0

    def _python_in_backward(self, frame: FrameType | None) -> str:
        """Whose Python code runs inside the engine: "recompute" of a checkpoint, a "custom" Function, or a "hook"."""
        found = "hook"
        while frame is not None and frame.f_code not in self.engine_codes:
            name = frame.f_code.co_filename
            if name.endswith("checkpoint.py") and "torch" in name:
                return "recompute"
            if name.endswith("function.py") and frame.f_code.co_name == "apply":
                found = "custom"
            frame = frame.f_back
        return found
