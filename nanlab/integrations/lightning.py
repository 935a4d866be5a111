"""Callback for Lightning: ``Trainer(callbacks=[NanlabCallback()])``."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    from pytorch_lightning import Callback  # type: ignore[assignment,no-redef,unused-ignore]

from nanlab.errors import NotReplayable
from nanlab.guards.window import Turn
from nanlab.integrations import Mode, Training
from nanlab.trace import Trace


class NanlabCallback(Callback):
    """Stops the training before a bad gradient reaches the weights, and names its origin.

    mode: "guard" (next to no cost; the failing step is run again under a watch) or "watch" (every
    operation).
    save: a folder for nanlab.txt, nanlab.html and nanlab.nanlab.
    `trace` is that of the fault, None as long as there is none.
    """

    def __init__(self, mode: Mode = "guard", save: str | Path | None = None) -> None:
        self._trainer: Any = None
        self._module: Any = None
        self._training = Training(mode, save, self._repeat, self._ended)

    @property
    def trace(self) -> Trace | None:
        """The trace of the fault."""
        return self._training.trace

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin."""
        self._trainer, self._module = trainer, pl_module
        self._training.start(pl_module)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep the state at the start of the step."""
        self._training.begin((batch, batch_idx))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Check the gradients before they are clipped."""
        guard = self._training.guard
        if guard is not None and guard.is_replaying:
            guard.replay_steps()
        else:
            self._training.look(optimizer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End."""
        self._training.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the guard or watch when the program raised."""
        self._training.raised(exception)
        self._training.stop()

    def _ended(self) -> None:
        self._trainer.should_stop = True

    def _repeat(self, turn: Turn) -> None:
        """Run a turn's step again: forward and backward, or all of it with manual optimization."""
        module, trainer = self._module, self._trainer
        batch, number = turn.item
        names = inspect.signature(module.training_step).parameters
        if "dataloader_iter" in names:
            raise NotReplayable("the training step takes its batches from an iterator by itself")
        args = (batch, number)[: 2 if "batch_idx" in names or len(names) > 1 else 1]
        with _unlogged(module):
            result = trainer.strategy.training_step(*args)
            loss = result.get("loss") if isinstance(result, dict) else result
            if module.automatic_optimization and loss is not None:
                module.backward(loss / trainer.accumulate_grad_batches)


@contextlib.contextmanager
def _unlogged(module: Any) -> Iterator[None]:
    """Ignore the logging of a step that runs again."""

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    was = {name: vars(module).get(name) for name in ("log", "log_dict")}
    vars(module).update(log=nothing, log_dict=nothing)
    try:
        yield
    finally:
        for name, value in was.items():
            if value is None:
                vars(module).pop(name, None)
            else:
                vars(module)[name] = value
