"""How caps look in a terminal."""

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from schemas.caps import RESERVED, CapDetail, CapView, ImportView, ListedCap
from schemas.results import Result
from worker.showing import columns as side_by_side
from worker.showing.columns import columns
from worker.showing.instants import show_duration, show_instant

if TYPE_CHECKING:
    from worker.caps.leftovers import Leftovers


def result_lines(key: tuple[str, ...], result: Result, now_ms: int) -> list[str]:
    """A verb's result: its word, and what it shows."""
    rows = [("outcome", result.outcome)]
    data = result.data
    if "state" in data:
        return columns([*rows, *_cap_rows(CapView.from_object(data), now_ms)])
    if key:
        rows.append(("user", key[0]))
    if "generation" in data:
        rows.append(("generation", str(data["generation"])))
    if "quiet_after_ms" in data:
        rows.append(("quiet after", show_instant(data["quiet_after_ms"])))
    if "expires_at_ms" in data:
        rows.append(("ended grant of", show_instant(data["expires_at_ms"])))
    if data.get("known") is False:
        rows.append(("note", "nobody ever had a cap under this name; the barrier stands"))
    elif result.outcome == "stopped" and "known" in data and "expires_at_ms" not in data:
        rows.append(("note", "nothing was active"))
    if "permit_ms" in data:
        rows.append(("permits valid for", show_duration(data["permit_ms"])))
    return columns(rows)


def near_lines(user: str, users: Sequence[str]) -> list[str]:
    """Names like one under which nobody was found, for whoever may see them."""
    by_plain = {name.casefold(): name for name in users}
    near = difflib.get_close_matches(user.casefold(), by_plain, n=3)
    return [f"did you mean {' or '.join(by_plain[name] for name in near)}?"] if near else []


def permit_lines(user: str, result: Result, left_ms: int) -> list[str]:
    """A permit, and how much of it is left."""
    return columns(
        [
            ("outcome", result.outcome),
            ("user", user),
            ("valid for", f"{show_duration(left_ms)} more"),
            ("cap", str(result.data["cap"])),
            ("expires", show_instant(result.data["expires_at_ms"])),
        ]
    )


def detail_lines(detail: CapDetail, now_ms: int) -> list[str]:
    """Everything about one person's cap."""
    authority = detail.authority
    rows = [
        ("user", detail.user),
        ("authorizes", "yes" if authority.authorizes else f"no: {authority.reason}"),
        ("generation", str(detail.generation)),
    ]
    lines = columns(rows)
    if detail.active is not None:
        lines += ["", "active grant", *_indented(_cap_rows(detail.active, now_ms))]
    if detail.reservation is not None:
        lines += ["", "reservation", *_indented(_cap_rows(detail.reservation, now_ms))]
    settings = detail.settings
    minting = "on" if settings.enabled else "off"
    permits = f"permits valid for {show_duration(settings.permit_ms)}"
    return [*lines, "", f"minting is {minting}, {permits}"]


def table(caps: Sequence[ListedCap], now_ms: int, *, ended: bool = False) -> list[str]:
    """A list of caps, one a line."""
    if not caps:
        return ["no cap ended" if ended else "no cap is in force"]
    return side_by_side.table(
        ("USER", "CAP", "STATE", "EXPIRES", "IN"),
        [
            (
                one.cap.user,
                str(one.cap.cap),
                "stopped" if one.stopped else one.cap.state,
                show_instant(one.cap.expires_at_ms),
                _left(one.cap, now_ms),
            )
            for one in caps
        ],
    )


def _left(cap: CapView, now_ms: int) -> str:
    left_ms = cap.expires_at_ms - now_ms
    return show_duration(left_ms) if left_ms > 0 and cap.ended_at_ms is None else "-"


def leftover_lines(found: "Leftovers") -> list[str]:
    """What was read from a predecessor's folder."""
    return columns(
        [
            ("files read", str(found.files)),
            ("records read", str(len(found.records))),
            ("malformed, skipped", str(len(found.malformed))),
        ]
    )


def import_lines(view: ImportView) -> list[str]:
    """What came of an import."""
    return columns(
        [
            ("imported", str(view.imported)),
            ("duplicates", str(view.duplicates)),
            ("seconds shared", str(view.shared_seconds)),
            ("keys shared", str(view.shared_keys)),
            ("import", view.import_id),
        ]
    )


def _indented(rows: list[tuple[str, str]]) -> list[str]:
    return [f"  {line}" for line in columns(rows)]


def _cap_rows(cap: CapView, now_ms: int) -> list[tuple[str, str]]:
    rows = [
        ("user", cap.user),
        ("mint key", cap.mint_key),
        ("state", cap.state),
        ("expires", f"{show_instant(cap.expires_at_ms)} ({_due(cap, now_ms)})"),
    ]
    if cap.state == RESERVED:
        rows.append(("mint with expiry", cap.wire_expires_at))
    rows += [("cap", str(cap.cap)), ("reserved", show_instant(cap.reserved_at_ms))]
    if cap.generation is not None:
        rows.insert(3, ("generation", str(cap.generation)))
    if cap.confirmed_at_ms is not None:
        rows.append(("confirmed", show_instant(cap.confirmed_at_ms)))
    if cap.ended_at_ms is not None:
        rows.append(("ended", show_instant(cap.ended_at_ms)))
    return rows


def _due(cap: CapView, now_ms: int) -> str:
    ahead = cap.expires_at_ms - now_ms
    return f"in {show_duration(ahead)}" if ahead >= 0 else f"{show_duration(-ahead)} ago"
