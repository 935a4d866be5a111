"""nanlab as it is installed: found from wherever Python is started, beside an older IPython too."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nanlab.capture.places import _cell_in_history
from nanlab.notebook import completion

ROOT = Path(__file__).resolve().parents[1]


def is_installed_from_here() -> bool:
    try:
        told = importlib.metadata.distribution("nanlab").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return False
    return json.loads(told or "{}").get("url") == ROOT.as_uri()


@pytest.mark.skipif(not is_installed_from_here(), reason="nanlab is not installed from this folder")
def test_nanlab_is_found_from_the_folder_above_a_clone(tmp_path: Path) -> None:
    # a clone, whose own package is one folder below
    (tmp_path / "nanlab" / "nanlab").mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", "import nanlab; print(nanlab.watch)"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert "class" in done.stdout, done.stderr


def test_a_cell_is_known_by_its_number_in_ipython_7_which_keeps_no_table_of_file_names() -> None:
    def name(raw: str, transformed: str, number: int) -> str:
        return f"/tmp/ipykernel_1/{hashlib.sha1(raw.encode()).hexdigest()}.py"

    history = SimpleNamespace(
        input_hist_raw=["", "a", "b", "a"], input_hist_parsed=["", "a", "b", "a"]
    )
    shell = SimpleNamespace(history_manager=history, compile=SimpleNamespace(get_code_name=name))
    assert _cell_in_history(shell, name("b", "b", 2)) == "In[2]"
    assert _cell_in_history(shell, name("a", "a", 1)) == "In[3]"  # the latest with the same text
    assert _cell_in_history(shell, "<ipython-input-7-0123456789ab>") == "In[7]"
    assert _cell_in_history(shell, "train.py") is None


def test_completion_gives_words_to_an_ipython_that_knows_no_matchers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(completion.completer, "context_matcher", raising=False)
    matcher = completion.matcher()
    shell = SimpleNamespace(Completer=SimpleNamespace(text_until_cursor="%nanwatch o"))
    monkeypatch.setattr(completion, "get_ipython", lambda: shell)
    monkeypatch.setattr(completion, "completions", lambda line: (["off", "on"], line.split()[-1]))
    assert matcher("o") == ["off", "on"]
