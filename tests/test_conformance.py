"""Watching changes no bit: torch's own operator and module databases."""

from __future__ import annotations

import conformance
import pytest


def _judge(tally: conformance.Tally, capsys: pytest.CaptureFixture[str], what: str) -> None:
    with capsys.disabled():
        print(f"\n{what}: {tally}")
    assert tally.run > 0
    assert tally.replayed >= 0.9 * tally.run
    assert tally.rebuilt >= 0.9 * tally.run
    assert not tally.failed, "\n".join(tally.failed[:40])


@pytest.mark.examples(every=4)
@pytest.mark.parametrize("part", range(4))
def test_a_sample_of_torchs_operators_gives_the_same_bits_under_a_watch(
    part: int, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = conformance.operators(1, lambda i, d: (i + 3 * d) % 72 == 18 * part)
    _judge(sample, capsys, "operators, every 72nd in each dtype")


def test_a_sample_of_torchs_modules_gives_the_same_bits_under_a_watch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _judge(conformance.modules(1, lambda i: i % 5 == 0), capsys, "modules, every fifth")


@pytest.mark.slow
@pytest.mark.conformance
def test_every_operator_of_torch_gives_the_same_bits_under_a_watch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _judge(conformance.operators(4), capsys, "operators")


@pytest.mark.slow
@pytest.mark.conformance
def test_every_module_of_torch_gives_the_same_bits_under_a_watch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _judge(conformance.modules(6), capsys, "modules")
