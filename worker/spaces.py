"""Spaces as the worker meets them: created once on demand, recognised at every start.

The id that setup stamped on a space's streams is remembered in the data directory, so that a worker
whose broker was replaced by another one (or whose data directory belongs to another) refuses.
"""

import errno
import secrets
from pathlib import Path

from schemas import headers, subjects
from schemas.commands.sys import Ruleset
from schemas.names import Names
from schemas.roles import WORKER_PREFIX
from schemas.subjects import Speaker
from worker import files, identity, logs
from worker.bus.adoption import Adoption
from worker.bus.connection import Connection
from worker.bus.jetstream import JetStream
from worker.bus.messages import Outgoing
from worker.bus.topology import Difference, SpaceTopology, TopologySettings
from worker.errors import StartRefused
from worker.ledger import rulesets
from worker.settings import Settings

LEDGER_FILE = "ledger.db"

log = logs.get()


def space_dir(data_dir: Path, space: str) -> Path:
    """Where a worker keeps what belongs to one space."""
    return data_dir / space


def topology_of(conn: Connection, names: Names, settings: Settings) -> SpaceTopology:
    """The streams of a space as the settings want them."""
    return SpaceTopology(JetStream(conn), names, _wanted(settings))


def _wanted(settings: Settings) -> TopologySettings:
    return TopologySettings(
        replicas=settings.replicas,
        res_max_age_ms=settings.res_max_age_ms,
        ack_wait_ms=settings.ack_wait_ms,
    )


async def create_space(conn: Connection, names: Names, settings: Settings) -> str:
    """Make the streams of a space that does not exist yet.

    Returns:
        The id stamped on them.

    Raises:
        StartRefused: It exists, or a ledger of it does.
    """
    topology = topology_of(conn, names, settings)
    ledger = space_dir(settings.data_dir, names.space) / LEDGER_FILE
    if ledger.exists() and not (await topology.survey()).found:
        raise StartRefused(
            f"{ledger} is the ledger of a space {names.space!r} whose streams are gone; "
            "restore them; for another broker use another TIDEGATE_DATA_DIR; "
            "or move the file away to begin anew"
        )
    return await topology.create(secrets.token_hex(16), first_command(names))


def adoption_of(conn: Connection, names: Names, settings: Settings) -> Adoption:
    """How a live space of the predecessor is taken over; see ``worker.bus.adoption``."""
    return Adoption(JetStream(conn), names, _wanted(settings))


async def check_space(
    conn: Connection, names: Names, settings: Settings, *, may_create: bool = False
) -> None:
    """Prove that a space is there, as it must be, and the one it was last time.

    Args:
        conn: A connection in the workers' account.
        names: The space.
        settings: The settings.
        may_create: Whether a space of which nothing exists is made, and one of an earlier version
            is brought up to date; an embedded broker's is.

    Raises:
        StartRefused: Something is missing or could lose data, or it is another space.
        Unavailable: The broker cannot answer now.
    """
    topology = topology_of(conn, names, settings)
    survey = await topology.survey()
    known = remembered_id(settings.data_dir, names.space)
    if not survey.found:
        if not may_create or known is not None:
            raise StartRefused(_nothing_there(names.space, known))
        survey_id = await create_space(conn, names, settings)
        _remember(settings.data_dir, names.space, survey_id)
        return
    if may_create and not survey.complete and survey.untouched(names) and known is None:
        # Our own setup was interrupted before anything was stored.
        await topology.create(secrets.token_hex(16), first_command(names))
        survey = await topology.survey()
    if known is not None and survey.space_ids and survey.space_ids != {known}:
        raise StartRefused(
            f"the broker's space {names.space!r} is not the one this data directory knows: "
            f"its id is {', '.join(sorted(survey.space_ids))}, not {known}"
        )
    differences = await topology.refuse_danger(known)
    if may_create:
        await topology.let_out_results()
    for difference in differences:
        log.info("stream_differs", space=names.space, difference=str(difference))
    if changed := await topology.shorten_waits():
        log.warning("durables_changed", space=names.space, durables=changed, setting="ack_wait")
    made = await topology.remake_durables()
    if made:
        log.warning("durables_remade", space=names.space, durables=made)
    if known is None and len(survey.space_ids) == 1:
        (found,) = survey.space_ids
        _remember(settings.data_dir, names.space, found)


async def verify_space(conn: Connection, names: Names, settings: Settings) -> list[Difference]:
    """Every difference between a space's streams and what they have to be; changes nothing.

    Raises:
        StartRefused: There is no such space.
    """
    topology = topology_of(conn, names, settings)
    if not (await topology.survey()).found:
        raise StartRefused(_nothing_there(names.space, None))
    return await topology.verify(remembered_id(settings.data_dir, names.space))


def first_command(names: Names) -> Outgoing:
    """What a new log begins with: the newest ruleset, so that an older worker refuses it."""
    body = Ruleset(v=1, version=rulesets.NEWEST)
    speaker = Speaker(WORKER_PREFIX, identity.new_uid())
    subject = subjects.command(names, speaker, body.PLANE, body.VERB)
    return Outgoing(subject, body.to_bytes(), {headers.COMMAND: identity.new_uid()})


def _nothing_there(space: str, known: str | None) -> str:
    if known is not None:
        return (
            f"the streams of space {space!r} are gone: restore the broker's store, "
            "or use another data directory to begin anew"
        )
    return f"the space {space!r} is not set up; run: tidegate setup --new --space {space}"


def remembered_id(data_dir: Path, space: str) -> str | None:
    """The id of a space that this data directory knows; ``None`` if it knows none."""
    try:
        raw = (space_dir(data_dir, space) / "space-id").read_bytes()
        return raw.decode("utf-8", "replace").strip() or None
    except FileNotFoundError:
        return None


def _remember(data_dir: Path, space: str, space_id: str) -> None:
    path = space_dir(data_dir, space) / "space-id"
    try:
        files.replace_private(path, f"{space_id}\n".encode())
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # It is noted at the next start; checkpoints need not wait for that.
        log.warning("space_id_not_noted", space=space, path=str(path), error=error.strerror)
