"""How checkpoints look in a terminal."""

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from schemas.results import Result
from schemas.strict_json import JsonObject
from schemas.subjects import Checkpoint
from schemas.views import CheckpointDetail, CheckpointView
from worker.showing import columns as side_by_side
from worker.showing.columns import columns
from worker.showing.instants import show_duration, show_instant
from worker.showing.text import escaped, visible_lines

if TYPE_CHECKING:
    from worker.checkpoints.lost import Lost

NOT_SHOWN: Final = "there is one; only its minter, its holder and operators may see it"


def result_lines(target: Checkpoint, result: Result, now_ms: int) -> list[str]:
    """A verb's result: its word, and the checkpoint if it shows one."""
    data = dict(result.data)
    repairs = data.pop("repairs", None)
    rows = [("outcome", result.outcome), ("checkpoint", f"{target.endpoint} {target.token}")]
    if repairs is not None:
        rows.append(("repairs", ", ".join(map(_words, repairs)) or "none needed"))
    if "state" in data:
        rows += _view_rows(CheckpointView.from_object(data), now_ms)
    return columns(rows)


def detail_lines(detail: CheckpointDetail, now_ms: int) -> list[str]:
    """Everything about one checkpoint."""
    view = detail.checkpoint
    rows = [("checkpoint", f"{view.endpoint} {view.token}"), *_view_rows(view, now_ms)]
    if detail.prompt is not None:
        rows.append(("title", _words(detail.prompt.get("title"))))
        if choices := detail.prompt.get("choices"):
            rows.append(("choices", ", ".join(map(_words, choices))))
        rows.append(("prompt digest", detail.prompt_digest or ""))
    if detail.answer is None and view.answer_id is not None:
        rows.append(("answer", NOT_SHOWN))
    if detail.answer is not None:
        rows.append(("answer", _words(detail.answer.get("value"))))
        rows.append(("answered by", _words(detail.answer.get("by"))))
    lines = columns(rows)
    if detail.prompt is not None and (body := detail.prompt.get("body")):
        lines += ["", *visible_lines(str(body))]
    return lines


def table(items: Sequence[CheckpointView], now_ms: int) -> list[str]:
    """A list of checkpoints, one a line."""
    if not items:
        return ["no checkpoint waits"]
    return side_by_side.table(
        ("ENDPOINT", "TOKEN", "STATE", "GEN", "DEADLINE", "DUE", "HOLDER"),
        [
            (
                item.endpoint,
                item.token,
                item.state,
                str(item.generation),
                show_instant(item.deadline_at_ms),
                _due(item, now_ms),
                item.holder.id if item.holder else "-",
            )
            for item in items
        ],
    )


def lost_lines(items: "Sequence[Lost]", now_ms: int) -> list[str]:
    """What was lost, and below each what brings it back."""
    if not items:
        return ["nothing is known to be lost"]
    lines: list[str] = []
    for one in items:
        what = "mint" if one.stands_at is None else f"extension to generation {one.generation}"
        due = show_instant(one.deadline_at_ms)
        lines.append(f"{one.endpoint} {one.token}: {what}, deadline {due}")
        if one.deadline_at_ms <= now_ms:
            lines.append("  too late: its deadline has passed")
        elif one.stands_at is not None:
            lines.append(
                f"  tidegate cp heartbeat {one.endpoint} {one.token} -d {one.deadline_at_ms}"
                f" -g {one.stands_at}"
            )
        elif one.holder_id is None:
            lines.append("  its holder is not known: mint it as before")
        else:
            lines.append(
                f"  tidegate cp mint {one.endpoint} {one.token} -d {one.deadline_at_ms}"
                f" --holder {shlex.quote(f'{one.holder_id}.{one.holder_uid}')}"
            )
    if any(one.stands_at is None for one in items):
        lines.append("A prompt, a goal and obligations are to be given anew, as they were.")
    return lines


def settled_lines(view: CheckpointView, answer: JsonObject | None, now_ms: int) -> list[str]:
    """A settlement, as ``cp wait`` prints it."""
    rows = [("checkpoint", f"{view.endpoint} {view.token}"), *_view_rows(view, now_ms)]
    if answer is not None:
        rows.append(("answer", _words(answer.get("value"))))
    elif view.answer_id is not None:
        rows.append(("answer", NOT_SHOWN))
    return columns(rows)


def _view_rows(view: CheckpointView, now_ms: int) -> list[tuple[str, str]]:
    rows = [
        ("state", view.state),
        ("generation", str(view.generation)),
        ("deadline", f"{show_instant(view.deadline_at_ms)}{_due_note(view, now_ms)}"),
    ]
    if view.holder is not None:
        rows.append(("holder", f"{view.holder.id}.{view.holder.lifecycleUid}"))
    if view.settled_at_ms is not None:
        rows.append(("settled", show_instant(view.settled_at_ms)))
    if view.settled_holder is not None:
        by = view.settled_holder
        rows.append(("resumed by", f"{by.id}.{by.lifecycleUid}"))
    return rows


def _due_note(view: CheckpointView, now_ms: int) -> str:
    return f" ({_due(view, now_ms)})" if view.state == "waiting" else ""


def _due(view: CheckpointView, now_ms: int) -> str:
    ahead = view.deadline_at_ms - now_ms
    return f"in {show_duration(ahead)}" if ahead >= 0 else f"{show_duration(-ahead)} ago"


def _words(value: object) -> str:
    """A value from elsewhere: words as they are, anything else as JSON."""
    return value if isinstance(value, str) else escaped(json.dumps(value, ensure_ascii=False))
