"""The judge of the target `references` sees every opened file, by whatever means, and every executed one."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

from safetensors import safe_open

from tests.fuzz.opened_files import opened_files
from tests.fuzz.references import lay_bait


def test_files_that_are_opened_are_seen(tmp_path: Path) -> None:
    bait = lay_bait(tmp_path / "outside", tmp_path / "mark")
    with opened_files(tmp_path / "outside") as opened:
        assert (bait[0].exists(), bait[0].stat().st_size > 0) == (True, True)
    assert (opened.watched, opened.code) == ([], []), "to look at a name opens nothing"
    with opened_files(tmp_path / "outside") as opened:
        (tmp_path / "outside" / "secret.txt").read_bytes()
        with safe_open(tmp_path / "outside" / "model.safetensors", "np"):  # which Python does not see
            pass
        os.close(os.open(tmp_path / "outside" / "pipe", os.O_RDONLY | os.O_NONBLOCK))
    assert {"secret.txt", "model.safetensors", "pipe"} <= {*opened.watched}
    assert str(tmp_path / "outside" / "secret.txt") in opened.paths
    (tmp_path / "outside" / "secret.txt").read_bytes()
    assert len(opened.paths) <= 3, "outside of the block nothing is recorded"


def test_code_that_is_executed_is_seen(tmp_path: Path) -> None:
    lay_bait(tmp_path / "outside", tmp_path / "mark")
    data = (tmp_path / "outside" / "evil.pt2").read_bytes()
    with opened_files(tmp_path / "outside") as opened:
        pickle.loads(data)
    assert (tmp_path / "mark").exists()
    assert opened.code
    assert opened.code[0].startswith("pickle.find_class")
