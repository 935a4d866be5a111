"""A place in the user's program, as people read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanlab.trace.op import location


def test_a_file_below_the_current_folder_is_named_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert location(str(tmp_path / "train.py"), 3) == "train.py:3"
    assert (
        location(str(tmp_path / "models" / "net.py"), 41) == str(Path("models", "net.py")) + ":41"
    )


def test_any_other_file_keeps_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert location(str(tmp_path / "train.py"), 3) == f"{tmp_path / 'train.py'}:3"
    assert location("In[7]", 2) == "In[7]:2"
    assert location("", 0) == ""
