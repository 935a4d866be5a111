"""What the processes of a distributed run agree on: whether to stop, and where the fault began.

They write to the store by which the process group was set up, over a connection of their own: no
collective, so that nothing is mixed with those of the program, and each wait has an end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Literal

from nanlab.trace.ranks import Ranks

Verdict = Literal["alone", "go", "stop"]
# what is judged: gradients about to be used, a training step that has ended
Kind = Literal["optimizer", "step"]

PATIENCE = 1.0  # seconds to wait for the others where nobody has found anything
LEAST = 0.01  # ... where they did not come before
DIAGNOSIS = 60.0  # ... while one of them works out what it found
WANTED = 5.0  # ... once one wants to stop
# of a count of votes: added by who wants to stop, by who has waited long enough
_STOP, _VOID = 1 << 20, 1 << 40
_MOST_TOLD = 16  # culprits that are read
# Watches begun at each place of the program, by which processes know the one that they share.
_watches: dict[str, int] = {}
_lonely: list[bool] = []  # whether the last watch of this process found the others not watching


class Agreement:
    """This process among the others during one watch; of no effect where there is one process only.

    A rank stops only where all agree in the same vote: a fault that nobody else was there to hear
    of is put to the next vote. So no process waits in a collective for one that has left.
    """

    def __init__(self, place: str) -> None:
        number = _watches[place] = _watches.get(place, 0) + 1
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._name = f"nanlab/{attempt}/{place}/{number}"
        self._store: Any = None
        self._gone = False  # whether the store is out of reach
        self.rank, self.world = 0, 1
        self._joined = False  # whether this process has said that it votes
        self._complete = False  # whether all do
        self._left = False  # whether one has ended its watch
        self._patience: dict[str, float] = {}
        self._updates, self._turns = 0, 0  # optimizer steps judged, and other votes since the last
        self._decided = ""  # the last vote that all took part in
        self._wants = False
        self.all_stop = False  # whether that is agreed

    # -- who is there
    # ------------------------------------------------------------

    def attach(self) -> bool:
        """Whether there are other processes, with which this one may share collectives; opens a
        connection to them."""
        distributed = sys.modules.get("torch.distributed.distributed_c10d")
        if distributed is None or not distributed.is_initialized():
            return False
        if not self.connected and not self._gone and distributed.get_world_size() > 1:
            store = distributed.PrefixStore(self._name, _own_connection(distributed))
            self.connect(store, distributed.get_rank(), distributed.get_world_size())
        return self.connected

    def connect(self, store: Any, rank: int, world: int) -> None:
        """Use this store, which all processes of the run share."""
        self._store, self.rank, self.world = store, rank, world

    @property
    def connected(self) -> bool:
        """Whether the others can be reached; also when the program has left its process group."""
        return self._store is not None

    @property
    def _all_watch(self) -> bool:
        """Whether all processes vote; at the first question those that are late are waited for."""
        if not self._joined:
            self._joined = True
            if self._store.add("joined", 1) == self.world:
                self._store.set("complete", "1")
            self._complete = self._wait("complete", 0.2 if _lonely else 2 * PATIENCE)
            _lonely[:] = [] if self._complete else [True]
        elif not self._complete:
            self._complete = self._store.check(["complete"])
        return self._complete and not self._left

    def _wait(self, key: str, seconds: float) -> bool:
        """Whether a key is written within some seconds.

        Asks again and again: where a ``wait`` of the store times out, torch 2.13 prints warnings.
        """
        end, pause = time.monotonic() + seconds, 1e-4
        while not self._store.check([key]):
            if time.monotonic() > end:
                return False
            time.sleep(pause)
            pause = min(1.5 * pause, 0.02)
        return True

    # -- whether to stop
    # ------------------------------------------------------------

    def diagnosing(self, begins: bool) -> None:
        """Say that this process works out what it found, so that the others wait for it."""
        if self._store is not None:
            self._guarded(lambda: self._store.add("diagnosing", 1 if begins else -1))

    def vote(self, kind: Kind, stop: bool) -> Verdict:
        """Whether all processes end here."""
        verdict = self._guarded(lambda: self._vote(kind, stop))
        # the store is gone, and with it who would wait
        return "alone" if verdict is None else verdict

    def _vote(self, kind: Kind, stop: bool) -> Verdict:
        store, key = self._store, self._next(kind)
        if not self._all_watch:
            return "go"
        if stop and not self._wants:
            self._wants = True
            store.add("wanted", 1)
        votes = store.add(key, 1 + _STOP * stop)
        if votes < _VOID and votes % _STOP == self.world:
            store.set(f"{key}/done", "stop" if votes >= _STOP else "go")
            self._forget()
        elif votes >= _VOID or not self._heard(key, kind):
            self._patience[kind] = max(LEAST, self._patience.get(kind, PATIENCE) / 4)
            return "go"
        self._patience[kind], self._decided = PATIENCE, key
        self.all_stop = store.get(f"{key}/done") == b"stop"
        return "stop" if self.all_stop else "go"

    def _next(self, kind: Kind) -> str:
        """The name of the vote that comes now. It goes by optimizer steps, for processes need not
        judge equally often."""
        if kind == "optimizer":
            self._updates, self._turns = self._updates + 1, 0
        else:
            self._turns += 1
        return f"{self._updates}.{self._turns}"

    def _heard(self, key: str, kind: Kind) -> bool:
        """Whether all came to this vote while it was waited for."""
        store, began, seconds = self._store, time.monotonic(), self._patience.get(kind, PATIENCE)
        while not self._wait(f"{key}/done", seconds):
            waited = time.monotonic() - began
            if store.add("left", 0):
                self._left = True
            elif (waited < DIAGNOSIS and store.add("diagnosing", 0) > 0) or (
                waited < WANTED and store.add("wanted", 0)
            ):
                seconds = PATIENCE
                continue
            return store.add(key, _VOID) % _STOP == self.world and self._wait(
                f"{key}/done", PATIENCE
            )
        return True

    def _forget(self) -> None:
        """Delete the vote before the last one: all have heard of it."""
        if self._decided:
            for key in (self._decided, f"{self._decided}/done"):
                self._store.delete_key(key)

    # -- where it began
    # ------------------------------------------------------------

    def tell(self, culprit: dict[str, Any] | None, struck: bool, wait: bool) -> Ranks | None:
        """Tell the others of the culprit that began here, and hear of theirs; None where there are
        no others.

        struck: whether something bad came from another rank.
        wait: for those that have not told, for a short while.
        """
        if self._store is None:
            return None
        told: Ranks | None = self._guarded(lambda: self._tell(culprit, struck, wait))
        return told

    def _tell(self, culprit: dict[str, Any] | None, struck: bool, wait: bool) -> Ranks:
        store = self._store
        if culprit is not None:
            store.set(f"culprit/{store.add('culprits', 1)}", json.dumps(culprit))
        elif struck:
            store.add("struck", 1)
        if store.add("told", 1) == self.world:
            store.set("all told", "1")
        elif wait:
            seconds = 0.2 if _lonely else 2 * PATIENCE
            heard, began = self._wait("all told", seconds), time.monotonic()
            while not heard and time.monotonic() - began < DIAGNOSIS and self._is_one_at_work():
                heard = self._wait("all told", PATIENCE)
        ranks = Ranks(
            self.rank, self.world, heard=store.add("told", 0), struck=store.add("struck", 0)
        )
        for number in range(1, min(store.add("culprits", 0), _MOST_TOLD) + 1):
            if self._wait(f"culprit/{number}", PATIENCE):
                ranks.told.append(json.loads(store.get(f"culprit/{number}")))
        return ranks

    def _is_one_at_work(self) -> bool:
        """Whether a process that has not told yet will: it works out what it found, or is on the
        way there after an agreed stop."""
        store = self._store
        return bool(store.add("diagnosing", 0) > 0 or (self.all_stop and not store.add("left", 0)))

    def leave(self) -> None:
        """Say that this process votes no more."""
        if self._store is not None and self._joined:
            self._guarded(lambda: self._store.add("left", 1))

    def _guarded(self, act: Any) -> Any:
        """What a call to the store returns; None, and no other call, where the store is gone."""
        try:
            return act()
        except Exception:
            self._store, self._gone = None, True
            return None


def _own_connection(distributed: Any) -> Any:
    """The store of the default process group, over a connection of our own where it has such.

    Uses ``distributed_c10d._get_default_store``; tried with torch 2.13.
    """
    store = distributed._get_default_store()
    try:
        return store.clone()
    except Exception:
        return store
