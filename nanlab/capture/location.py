"""Where the program is when a call runs: its phase, autograd node, line and module."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType

import torch

from nanlab.capture.places import SourceLines
from nanlab.capture.plans import LEAF
from nanlab.capture.steps import StepClock
from nanlab.trace.op import BACKWARD, FORWARD, OPTIMIZER, RECOMPUTE
from nanlab.trace.recording import Recording

Place = tuple[int, int, int, int, int]  # phase, node, line, site, module
_node = torch._C._current_autograd_node  # tried with torch 2.6 to 2.13
_sequence = torch._C._autograd._get_sequence_nr  # the number that the next autograd node gets


class Locator:
    """Finds the place of each call, and the training steps that begin with one.

    ``step_began`` is called with the position at which a training step begins.
    """

    def __init__(self, recording: Recording, lines: SourceLines, clock: StepClock) -> None:
        self.recording, self.lines, self.clock = recording, lines, clock
        self.module = 0  # number of the running module's path
        self.depth = 0  # how many modules are running inside each other
        self.backward_pass = -1  # number of the running backward pass
        self.in_backward = 0
        # node of an operation in the backward of a Function that is differentiated again
        self.made_in_function = -1
        self.creates_graph = False  # whether the running backward pass is differentiated again
        self.ran_python = False  # whether code of the program ran in the last run of the engine
        self.in_optimizer = 0
        # line and site of the running step of an optimizer of torch's
        self.step_place: tuple[int, int] | None = None
        self.engine_codes: set[int] = set()  # ids of the code that runs the engine
        self.sequence = _sequence()
        # position at which each function was first seen at work, before the first backward
        self.opening: dict[int, int] = {}
        self.first_call = 1 << 62  # position at which an outermost module was first called
        self.step_began: Callable[[int], None] = lambda position: None

    def place(self, frame: FrameType | None) -> Place:
        """The place of the operation about to run; it may begin a new training step."""
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
        """Begin a new training step if the program's loop has begun a new iteration."""
        position = self.recording.end
        opened = frame if not self.recording.passes else None
        while opened is not None:
            self.opening.setdefault(id(opened.f_code), position)
            opened = opened.f_back
        # Not _sequence(): the node of the operation that is about to run is made already, and
        # belongs to the new step.
        if self.clock.operation(frame, position, self.sequence, not torch.is_grad_enabled(), line):
            self.step_began(position)

    def training_began(self, frame: FrameType | None, oldest: int) -> int:
        """Position at which training begins, as judged at the first backward.

        It is where the function began that calls backward, the first call of a module, or the first
        operation of the graph, whichever came first. A cell or script that does all in one place
        shows only the latter two.
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

    def _new_nodes(
        self, now: int, grad: bool, frame: FrameType | None, line: int, site: int
    ) -> int:
        """Tie autograd nodes made since the last operation to it; its own node, or -1."""
        own = now - 1 if grad else -1
        if own == self.sequence:  # no other was made
            self.sequence = now
            return own
        nodes, position = self.recording.nodes, self.recording.end
        for number in range(max(self.sequence, now - 64), now):
            if number == own:
                continue
            # Made without an operation of its own: a torch.autograd.Function, whose forward runs
            # under no_grad.
            here, there = self._apply_line(frame) if not grad else (line, site)
            if not here and not grad:
                # a hook packs what the next operation's node saves: the node is that operation's
                return -1
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

    def _backward_place(self, frame: FrameType | None) -> Place:
        self.made_in_function = -1
        node = _node()
        number = node._sequence_nr() if node is not None else -1
        info = self.recording.nodes.rows.get(number)
        now = _sequence()
        python = frame is not None and id(frame.f_code) not in self.engine_codes
        where = self._python_in_backward(frame) if python else ""
        self.ran_python |= python
        if where == "recompute" or (where and torch.is_grad_enabled() and where != "custom"):
            line, site = self.lines.here(frame)
            made = now - 1 if now > self.sequence and torch.is_grad_enabled() else -1
            self.sequence = now
            return (RECOMPUTE if where == "recompute" else BACKWARD), made, line, site, self.module
        if now > self.sequence:  # create_graph: the backward operation has a node of its own
            for made in range(max(self.sequence, now - 64), now):
                if info is not None:
                    self.recording.nodes.rows[made] = (self.recording.end, *info[1:])
            self.made_in_function = now - 1 if where == "custom" else -1
            self.sequence = now
        if info is not None and where == "custom" and (inside := self._line_in_function(frame)):
            return BACKWARD, number, *inside, info[4]
        if info is not None and not where:
            return BACKWARD, number, info[2], info[3], info[4]
        line, site = self.lines.here(frame)
        if info is not None and where == "custom":  # of a library, whose backward it is
            return BACKWARD, number, info[2], site if site != line else info[3], info[4]
        return BACKWARD, number if 0 <= number < LEAF else -1, line, site, 0

    def _python_in_backward(self, frame: FrameType | None) -> str:
        """Whose Python code runs inside the engine: "custom", "hook" or "recompute"."""
        found = "hook"
        while frame is not None and id(frame.f_code) not in self.engine_codes:
            name = frame.f_code.co_filename
            if name.endswith("checkpoint.py") and "torch" in name:
                return "recompute"
            if name.endswith("function.py") and frame.f_code.co_name == "apply":
                # What computes with a graph of its own, though none is made of this backward pass,
                # computes anew.
                found = (
                    "recompute" if torch.is_grad_enabled() and not self.creates_graph else "custom"
                )
            frame = frame.f_back
        return found

    def _line_in_function(self, frame: FrameType | None) -> tuple[int, int] | None:
        """The user's line in the running Function's backward; None in a library's."""
        if self.lines.forced is not None:  # that of the recorded call
            return self.lines.forced
        caller = frame
        while caller is not None and id(caller.f_code) not in self.engine_codes:
            if self.lines.user_code(caller):
                return self.lines.here(frame)
            caller = caller.f_back
        return None
