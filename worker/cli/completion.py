"""``tidegate completion``: what makes a shell complete commands and options."""

import os
from enum import StrEnum
from typing import Annotated

import typer

from worker.cli import common

PROGRAM = "tidegate"
VARIABLE = "_TIDEGATE_COMPLETE"
"""Tells the program, in its environment, that a shell asks for its script or for completions."""


class Shell(StrEnum):
    """A shell whose completion is known."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(
        epilog=common.examples(
            """echo 'eval "$(tidegate completion bash)"' >> ~/.bashrc""",
            """echo 'eval "$(tidegate completion zsh)"' >> ~/.zshrc""",
            "tidegate completion fish > ~/.config/fish/completions/tidegate.fish",
            more="In .zshrc it goes below: autoload -Uz compinit; compinit.",
        )
    )
    def completion(
        context: typer.Context,
        shell: Annotated[Shell, typer.Argument(help="For which shell.", metavar="SHELL")],
    ) -> None:
        """Print the script that makes a shell complete."""
        os.environ[VARIABLE] = f"source_{shell.value}"
        context.find_root().command(args=[], prog_name=PROGRAM)
