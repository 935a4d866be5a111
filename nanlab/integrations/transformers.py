"""Callback for transformers: ``Trainer(..., callbacks=[NanlabCallback()])``."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from nanlab.errors import UsageError
from nanlab.guards.window import Turn
from nanlab.integrations import Mode, Training
from nanlab.trace import Trace


class NanlabCallback(TrainerCallback):
    """Stops the training before a bad gradient reaches the weights, and names its origin.

    mode: "guard" (next to no cost; the failing step is run again under a watch) or "watch" (every
    operation).
    save: a folder for nanlab.txt, nanlab.html and nanlab.nanlab.
    `trace` is that of the fault, None as long as there is none.
    """

    def __init__(self, mode: Mode = "guard", save: str | Path | None = None) -> None:
        self._training = Training(mode, save, self._repeat, self._ended)
        self._trainer: Any = None
        self._control: Any = None
        self._step: Any = None  # the trainer's own training_step

    @property
    def trace(self) -> Trace | None:
        """The trace of the fault."""
        return self._training.trace

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wrap the training loop, so that everything is undone if it raises."""
        trainer = _trainer(self)
        train = trainer.train

        def trained(*args: Any, **kwargs: Any) -> Any:
            try:
                return train(*args, **kwargs)
            finally:
                self.close()

        trainer.train = trained

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin, and wrap ``training_step``, as no event carries its batch."""
        self.close()
        self._trainer, self._control = _trainer(self), control
        self._training.start(kwargs["model"])
        self._step = self._trainer.training_step
        self._trainer.training_step = self._stepped

    def _stepped(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self._training.begin((model, copy.copy(inputs), args, kwargs))
        try:
            result = self._step(model, inputs, *args, **kwargs)
        except BaseException as error:
            self._training.raised(error)
            self.close()
            raise
        accelerator = self._trainer.accelerator
        if accelerator.sync_gradients and getattr(accelerator, "scaler", None) is None:
            # here, for clipping spreads one bad gradient to all
            self._training.look(self._trainer.optimizer)
        return result

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the training after a fault, without saving or evaluating."""
        if self._training.is_stopped:
            control.should_training_stop = True
            control.should_save = control.should_evaluate = False

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Clear the gradients after a fault."""
        if self._training.is_stopped:
            self._training.look(kwargs["optimizer"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End."""
        self.close()

    def close(self) -> None:
        """Undo everything."""
        self._training.stop()
        if self._step is not None:
            vars(self._trainer).pop("training_step", None)
            self._step = None

    def _ended(self) -> None:
        self._control.should_training_stop = True

    def _repeat(self, turn: Turn) -> None:
        model, inputs, args, kwargs = turn.item
        self._step(model, copy.copy(inputs), *args, **kwargs)


def _trainer(callback: NanlabCallback) -> Any:
    """The trainer whose event is being handled, found on the stack."""
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        handler = getattr(owner, "callback_handler", None)
        if (
            handler is not None
            and hasattr(owner, "training_step")
            and callback in handler.callbacks
        ):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    raise UsageError("NanlabCallback works with transformers.Trainer and its subclasses")
