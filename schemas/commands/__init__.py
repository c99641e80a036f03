"""The bodies of every command, one module per plane, and the table that finds them."""

from schemas.commands import adm, cap, cp, sys
from schemas.model import Body

BODIES: dict[tuple[str, str], type[Body]] = {
    (body.PLANE, body.VERB): body for module in (cp, adm, cap, sys) for body in module.BODIES
}
"""``(plane, verb)`` to the model of its body."""

LEDGER_PLANES = frozenset({"adm", "cap", "sys"})
"""Planes whose commands are folded; ``cp`` is served by compare-and-set."""
