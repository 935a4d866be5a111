"""A changed step under a watch of its own: what nanlab would have said of the program written
so."""

from __future__ import annotations

import threading
from typing import Any

from nanlab.capture.watching import running, watch
from nanlab.errors import NotReplayable
from nanlab.program.change import Change, check_rebuilt
from nanlab.program.edit import Edited
from nanlab.program.rebuild import Graph, rebuild
from nanlab.program.settings import joined, watched_steps
from nanlab.program.window import Window
from nanlab.trace import Trace
from nanlab.trace.op import OPTIMIZER
from nanlab.trace.program import Call, refs_in


def observed(where: Window, change: Change | Edited | None = None) -> Trace:
    """The trace of the step with these changes, at the lines of the recorded one.

    Raises NotReplayable where the step cannot be run above autograd, or while another watch is
    running.
    """
    if running() is not None or threading.current_thread() is not threading.main_thread():
        raise NotReplayable("a watch is running")
    check_rebuilt(where)
    if change is None or isinstance(change, Edited):
        change = Change(where.segments, change)
    steps = joined(watched_steps(where, change.segments, change.settings), change.skipped)
    recording = where.recording
    watcher = watch(on_fault="record")
    lines, ops = watcher._lines, watcher._ops
    lines.places[:], lines.spans[:] = recording.places, recording.spans
    names = recording.program.names

    def about_to_call(segment: int, index: int, call: Call, graph: Graph) -> None:
        row = recording.op(call.position)
        if row is not None:
            lines.forced = row.place, row.site
            ops.module = watcher.recording.modules(row.module)
            ops.in_optimizer = int(row.phase == OPTIMIZER and (segment, index) not in steps)
        for ref in refs_in(call.args):
            name = names.get(ref.storage)
            if name is not None and ref.storage not in known:
                known.add(ref.storage)
                kind: Any = "parameter" if ref.tracked else "buffer"
                with ops.quiet():
                    watcher._training._register(graph.get(ref), name, kind)

    known: set[int] = set()
    lines.forced = 0, 0
    watcher.is_last = False
    try:
        with watcher as trace:
            rebuild(change.segments, change.patches, about_to_call, steps, change.batch)
    finally:
        lines.forced = None
    return trace
