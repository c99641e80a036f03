"""``tidegate keys`` in the terminal."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from worker.cli import keys
from worker.sealing import keyfiles
from worker.sealing.errors import KeyRefused

runner = CliRunner()


def run(tmp_path: Path, *words: str) -> tuple[int, Any, str]:
    done = runner.invoke(keys.app, [*words, "--data-dir", str(tmp_path), "--json"])
    if isinstance(done.exception, KeyRefused):
        raise done.exception
    return done.exit_code, json.loads(done.stdout)["data"], done.output


def test_keys_are_made_rotated_and_listed_without_being_shown(tmp_path: Path) -> None:
    code, made, _ = run(tmp_path, "init")
    assert (code, made["version"], made["created"]) == (0, 1, True)
    code, again, _ = run(tmp_path, "init")
    assert (code, again["id"], again["created"]) == (0, made["id"], False)
    code, rotated, _ = run(tmp_path, "rotate", "--from", "1")
    assert (code, rotated["version"], rotated["created"]) == (0, 2, True)
    code, repeated, _ = run(tmp_path, "rotate", "--from", "1")
    assert (code, repeated["version"], repeated["created"]) == (0, 2, False)
    code, third, _ = run(tmp_path, "rotate")
    assert (code, third["version"]) == (0, 3)
    code, listed, output = run(tmp_path, "show")
    assert code == 0
    assert [key["id"] for key in listed["keys"]] == [made["id"], rotated["id"], third["id"]]
    assert [key["current"] for key in listed["keys"]] == [False, False, True]
    folder = keyfiles.default_dir(tmp_path)
    for version in (1, 2, 3):
        assert keyfiles.read(folder, version).hex() not in output


def test_show_names_every_damaged_key_and_fails(tmp_path: Path) -> None:
    run(tmp_path, "init")
    run(tmp_path, "rotate")
    path = keyfiles.path_of(keyfiles.default_dir(tmp_path), 1)
    path.chmod(0o644)
    code, listed, _ = run(tmp_path, "show")
    assert code == 1
    assert listed["keys"][0]["refused"]["reason"] == "key-wrong-mode"
    assert "id" in listed["keys"][1]
    text = runner.invoke(keys.app, ["show", "--data-dir", str(tmp_path)])
    assert text.exit_code == 1
    assert f"chmod 600 {path}" in text.stdout


@pytest.mark.parametrize("words", [("rotate",), ("show",)])
def test_without_a_key_the_remedy_is_named(tmp_path: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(KeyRefused, match="tidegate keys init"):
        run(tmp_path, *words)
