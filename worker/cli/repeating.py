"""How to repeat a command exactly: what was relative, looked up or made up is written out.

A command with an id is carried out once, but only if it is the same command again. ``+30m`` has
moved on by then, a token that was made up would be another one, and a life made for one command is
gone; so what is told to be repeated holds them all as they were sent.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from schemas.results import Result
    from schemas.subjects import Speaker
    from worker.client import Client

ADDRESS = "--nats"
"""The one option that may hold a password."""


@dataclass(slots=True)
class _Sent:
    """The command of this process.

    Attributes:
        context: Its parameters, once they are read.
        fixed: What each is sent as, by its option or its argument's name.
        unanswered: The command id of what was sent, until there is a result.
    """

    context: typer.Context | None = None
    fixed: dict[str, str] = field(default_factory=dict)
    unanswered: str | None = None


_sent = _Sent()


def begin(context: typer.Context) -> None:
    """A command that takes a command id begins."""
    _sent.context = context
    _sent.fixed.clear()


def fix(parameter: str, value: str) -> None:
    """A parameter is sent as this value.

    Args:
        parameter: The option, or the argument's name in capitals.
        value: As it could have been given.
    """
    _sent.fixed[parameter] = value


def speaks(speaker: "Speaker") -> None:
    """This life sends it."""
    fix("--as", f"{speaker.principal}.{speaker.uid}")


async def send(
    client: "Client",
    plane: str,
    verb: str,
    key: Sequence[str],
    body: Mapping[str, Any],
    command_id: str | None,
) -> "Result":
    """As ``Client.send``; whatever ends this process meanwhile, it is known what to repeat."""
    from worker.client import new_command_id

    _sent.unanswered = command_id or new_command_id()
    result = await client.send(plane, verb, key, body, command_id=_sent.unanswered)
    _sent.unanswered = None
    return result


def unanswered() -> str | None:
    """The line that repeats what was sent and not answered; ``None`` if there is nothing."""
    return None if _sent.unanswered is None else line(_sent.unanswered)


def arguments(command_id: str) -> list[str] | None:
    """The command line that sends the same again, word by word; ``None`` if none was begun."""
    context = _sent.context
    if context is None:
        return None
    fixed = {**_sent.fixed, "--command-id": command_id}
    options: list[str] = []
    values: list[str] = []
    for parameter in context.command.params:
        name = _name_of(parameter)
        if name in fixed:
            given: Any = fixed[name]
        elif _is_given(context, parameter):
            given = context.params.get(parameter.name or "")
        else:
            continue
        if name.startswith("-"):
            options += _option(parameter, name, given)
        else:
            values.append(str(given))
    dashes = ["--"] if any(value.startswith("-") for value in values) else []
    path = context.command_path.split()
    return [*path, *options, *dashes, *values] if dashes else [*path, *values, *options]


def line(command_id: str) -> str | None:
    """The same as one line for a shell."""
    words = arguments(command_id)
    return None if words is None else shlex.join(words)


def _is_given(context: typer.Context, parameter: Any) -> bool:
    source = context.get_parameter_source(parameter.name)
    return source is not None and source.name == "COMMANDLINE"


def _name_of(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.name).upper()
    return str(max(parameter.opts, key=len))


def _option(parameter: Any, name: str, given: Any) -> list[str]:
    if getattr(parameter, "is_flag", False):
        return [name] if given else []
    if name == ADDRESS:
        from worker.settings import redacted, split_urls

        given = ",".join(map(redacted, split_urls(str(given))))
    return [
        word for one in (given if parameter.multiple else (given,)) for word in (name, str(one))
    ]
