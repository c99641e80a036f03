"""What every command carries beside its body: the id of its intent, and perhaps a trace context."""

from collections.abc import Mapping

from schemas import headers, tokens
from schemas.codes import BadInput


def command_id_of(given: Mapping[str, str]) -> str | None:
    """The command id in a command's headers; ``None`` if it has none.

    Args:
        given: The headers; names that stand more than once are in an attribute ``repeated``.

    Raises:
        BadInput: It stands more than once, or does not match its grammar.
    """
    command_id = given.get(headers.COMMAND)
    if command_id is None:
        return None
    if headers.COMMAND in getattr(given, "repeated", ()):
        raise BadInput(
            headers.COMMAND, "repeated-header", f"header {headers.COMMAND} is given more than once"
        )
    if not tokens.is_command_id(command_id):
        raise BadInput(
            headers.COMMAND,
            "bad-command-id",
            f"header {headers.COMMAND} does not match {tokens.COMMAND_ID_PATTERN}",
        )
    return command_id


def traceparent_of(given: Mapping[str, str]) -> str | None:
    """The W3C trace context in a message's headers, to be carried on or continued.

    Args:
        given: The headers; names that stand more than once are in an attribute ``repeated``.

    Returns:
        The value of the header ``traceparent``; ``None`` if there is none, or none that can be
        used: a trace never decides what becomes of its message.
    """
    trace = given.get(headers.TRACEPARENT)
    if trace is None or headers.TRACEPARENT in getattr(given, "repeated", ()):
        return None
    return trace if tokens.is_traceparent(trace) else None
