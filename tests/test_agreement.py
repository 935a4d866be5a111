"""How processes agree on stopping; here as threads over one store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import HashStore

from nanlab.capture import ranks
from nanlab.capture.ranks import Agreement


@pytest.fixture(autouse=True)
def not_lonely() -> Iterator[None]:
    ranks._lonely.clear()
    yield
    ranks._lonely.clear()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all come, nobody gives up on a slow machine."""
    monkeypatch.setattr(ranks, "PATIENCE", 60.0)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where somebody does not come, nobody waits for long."""
    monkeypatch.setattr(ranks, "PATIENCE", 0.05)
    monkeypatch.setattr(ranks, "WANTED", 0.1)


def members(world: int) -> list[Agreement]:
    store, found = HashStore(), [Agreement("train.py:1") for _ in range(world)]
    for rank, member in enumerate(found):
        member.connect(store, rank, world)
    return found


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(acts)) as pool:
        return [future.result() for future in [pool.submit(act) for act in acts]]


def votes(group: list[Agreement], wishes: list[bool]) -> list[str]:
    return at_once(
        *(lambda m=m, w=w: m.vote("optimizer", w) for m, w in zip(group, wishes, strict=True))  # type: ignore[misc]
    )


@pytest.mark.parametrize("world", [2, 4, 7])
def test_all_go_on_until_one_wants_to_stop_and_then_all_stop(world: int, patient: None) -> None:
    group = members(world)
    for _ in range(3):
        assert votes(group, [False] * world) == ["go"] * world
    assert votes(group, [False] * (world - 1) + [True]) == ["stop"] * world


def test_nobody_stops_alone_and_a_fault_is_put_to_the_next_vote(
    hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = members(2)
    monkeypatch.setattr(ranks, "PATIENCE", 60.0)
    assert votes([first, second], [False, False]) == ["go", "go"]
    monkeypatch.setattr(ranks, "PATIENCE", 0.05)
    first._patience.clear()
    assert first.vote("optimizer", False) == "go"  # it has waited long enough
    assert second.vote("optimizer", True) == "go"  # it comes late, with a fault
    monkeypatch.setattr(ranks, "PATIENCE", 60.0)
    first._patience.clear()
    assert votes([first, second], [False, True]) == ["stop", "stop"]


def test_processes_may_judge_more_often_than_others_between_two_updates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = members(2)
    monkeypatch.setattr(ranks, "PATIENCE", 60.0)
    assert votes([first, second], [False, False]) == ["go", "go"]
    first._patience["step"] = 0.01
    # it evaluates; the other waits elsewhere
    assert [first.vote("step", False) for _ in range(5)] == ["go"] * 5
    assert votes([first, second], [False, True]) == ["stop", "stop"]


def test_where_not_all_watch_nobody_stops_and_only_the_first_vote_waits(hasty: None) -> None:
    first, _ = members(2)
    assert first.vote("optimizer", False) == "go"
    began = time.monotonic()
    assert [first.vote("optimizer", True) for _ in range(100)] == ["go"] * 100
    assert time.monotonic() - began < 100 * 0.05  # less than one wait each


def test_a_process_that_has_left_is_waited_for_once(
    patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = members(2)
    assert votes([first, second], [False, False]) == ["go", "go"]
    second.leave()
    monkeypatch.setattr(ranks, "PATIENCE", 0.05)
    first._patience.clear()
    assert first.vote("optimizer", True) == "go"
    assert first._left


def test_while_one_works_out_what_it_found_the_others_wait(
    patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = members(2)
    assert votes([first, second], [False, False]) == ["go", "go"]
    monkeypatch.setattr(ranks, "PATIENCE", 0.05)
    first._patience.clear()
    second.diagnosing(True)

    def diagnosed() -> str:
        time.sleep(0.3)  # several times the others' patience
        verdict = second.vote("optimizer", True)
        second.diagnosing(False)
        return verdict

    assert at_once(lambda: first.vote("optimizer", False), diagnosed) == ["stop", "stop"]


def test_where_the_store_is_gone_each_is_alone_and_asks_no_more() -> None:
    class Gone:
        asked = 0

        def add(self, key: str, amount: int) -> int:
            Gone.asked += 1
            raise RuntimeError("connection closed")

    member = Agreement("train.py:1")
    member.connect(Gone(), 0, 2)
    assert [member.vote("optimizer", True) for _ in range(3)] == ["alone"] * 3 and Gone.asked == 1
    assert member.tell(None, None, True) is None


def test_each_hears_where_it_began(patient: None) -> None:
    group = members(3)
    told = {"rank": 1, "step": 3, "title": "log of 1 zero"}
    heard = at_once(
        lambda: group[0].tell(None, {"rank": 0}, True),
        lambda: group[1].tell(told, None, True),
        lambda: group[2].tell(None, None, True),
    )
    assert [(r.rank, r.world, r.told, r.heard, r.struck) for r in heard] == [
        (i, 3, [told], 3, []) for i in range(3)
    ]


def test_decided_votes_are_deleted() -> None:
    store = HashStore()
    member = Agreement("train.py:1")
    member.connect(store, 0, 1)
    for _ in range(50):
        assert member.vote("optimizer", False) == "go"
    assert store.num_keys() < 10


def test_after_an_agreed_stop_the_one_that_is_slow_to_tell_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = members(2)
    monkeypatch.setattr(ranks, "PATIENCE", 60.0)
    assert votes(group, [False, True]) == ["stop", "stop"]
    monkeypatch.setattr(ranks, "PATIENCE", 0.05)
    first = ThreadPoolExecutor(1).submit(group[0].tell, None, True, True)
    time.sleep(0.3)  # longer than the two times 0.05 s that nobody is waited for
    culprit = {"rank": 1}
    second = group[1].tell(culprit, None, True)
    heard = first.result()
    assert heard is not None and second is not None
    assert heard.told == second.told == [culprit]
