"""Running code -> Trace."""

from nanlab.capture.exception_frames import without_ours
from nanlab.capture.watching import FaultFound, StepsDone, Stop, announce, in_notebook, watch

__all__ = ["FaultFound", "StepsDone", "Stop", "announce", "in_notebook", "watch", "without_ours"]
