"""What ``--help`` and completion tell of every command, on a terminal of 80 columns."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.support.process import environment
from worker.cli.main import app

WIDTH = 80


def walk(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    yield " ".join(path), command
    for name, below in getattr(command, "commands", {}).items():
        yield from walk(below, *path, name)


ROOT = get_command(app)
COMMANDS = dict(walk(ROOT, "tidegate"))
GROUPS = [path for path, command in COMMANDS.items() if hasattr(command, "commands")]
LEAVES = [path for path in COMMANDS if path not in GROUPS]


def shown(path: str) -> str:
    """The help of a command on a terminal of 80 columns."""
    with COMMANDS[path].make_context(
        path, [], resilient_parsing=True, terminal_width=WIDTH, max_content_width=WIDTH
    ) as context:
        text: str = COMMANDS[path].get_help(context)
        return text


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_and_option_has_a_help_text(path: str) -> None:
    command = COMMANDS[path]
    assert command.help, f"{path} says nothing"
    for parameter in command.params:
        assert parameter.help, f"{path} says nothing about {parameter.name}"
        assert parameter.help.rstrip()[-1] in ".!", f"{path} {parameter.name}: {parameter.help!r}"


@pytest.mark.parametrize("path", COMMANDS)
def test_help_fits_a_terminal_and_names_what_a_value_is(path: str) -> None:
    text = shown(path)
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    unnamed = re.findall(r"^ +-.*<(?:str|int|list|float|path).*>", text, re.MULTILINE)
    assert unnamed == [], "give them a metavar"


@pytest.mark.parametrize("path", GROUPS)
def test_the_list_of_commands_cuts_no_sentence_off(path: str) -> None:
    listed = shown(path).partition("Commands:")[2]
    assert listed
    assert "..." not in listed


def examples() -> Iterator[tuple[str, str]]:
    for path, command in COMMANDS.items():
        for line in (command.epilog or "").splitlines():
            if line.startswith("  tidegate "):
                yield path, line.strip()


@pytest.mark.parametrize(("path", "line"), list(examples()))
def test_examples_are_right_usage(path: str, line: str) -> None:
    words = shlex.split(re.split(r" (?:&&|>|\|) ", line)[0])
    command, used = ROOT, words.pop(0)
    while hasattr(command, "commands"):
        command, used = command.commands[words[0]], f"{used} {words.pop(0)}"
    assert path in ("tidegate", used), "it is an example of something else"
    with command.make_context(used, words) as context:
        assert context.command is command


def script(shell: str, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """A shell's completion script, and an environment where ``tidegate`` is on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "tidegate"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m worker.cli.main "$@"\n')
    program.chmod(0o755)
    env = {**environment(), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [str(program), "completion", shell], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout, env


def test_bash_completes_commands_options_and_choices(tmp_path: Path) -> None:
    _, env = script("bash", tmp_path)
    asked = r"""
        set -eu
        eval "$(tidegate completion bash)"
        complete -p tidegate
        try() {
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
            "$(complete -p tidegate | sed 's/.*-F \([^ ]*\).*/\1/')" tidegate
            echo "${COMPREPLY[*]}"
        }
        try tidegate cp m
        try tidegate cp resume --a
        try tidegate adm resolve req-1 c
    """
    done = subprocess.run(
        ["bash", "-c", asked], env=env, capture_output=True, text=True, check=True
    )
    registered, commands, options, choices = done.stdout.splitlines()
    assert registered.startswith("complete ")
    assert commands == "mint"
    assert options == "--answer --artifact --as"
    assert choices == "confirmed_not_dispatched confirmed_completed"


def test_zsh_gets_a_script_of_its_own(tmp_path: Path) -> None:
    text, env = script("zsh", tmp_path)
    assert text.lstrip().startswith("#compdef tidegate")
    if zsh := shutil.which("zsh"):
        asked = 'autoload -Uz compinit; compinit -u -D; eval "$(tidegate completion zsh)"; '
        asked += "print -r -- $_comps[tidegate]"
        done = subprocess.run(
            [zsh, "-f", "-c", asked], env=env, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "_tidegate_completion"


def test_fish_gets_a_script_of_its_own(tmp_path: Path) -> None:
    text, env = script("fish", tmp_path)
    assert text.startswith("complete --command tidegate")
    if fish := shutil.which("fish"):
        asked = 'tidegate completion fish | source; complete -C "tidegate cp m"'
        done = subprocess.run(
            [fish, "--no-config", "-c", asked], env=env, capture_output=True, text=True, check=True
        )
        assert done.stdout.startswith("mint\t")


def test_an_unknown_shell_is_wrong_usage(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "worker.cli.main", "completion", "tcsh"],
        env=environment(data_dir=tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "tcsh" in done.stderr
