"""What others wrote is shown so that nothing in it is unseen, in every view where people decide."""

import json
import unicodedata

import pytest

from schemas.admission import QueueView, SeatView
from schemas.records import Holder
from schemas.views import CheckpointDetail, CheckpointView
from worker.cli import adm_views, common, cp_views
from worker.showing.text import MARK, escaped, visible
from worker.top import plain
from worker.top.look import Look, Waiting

IGNORABLE = (
    "AD 34F 61C 115F-1160 17B4-17B5 180B-180F 200B-200F 202A-202E 2060-206F 3164 FE00-FE0F FEFF "
    "FFA0 FFF0-FFF8 1BCA0-1BCA3 1D173-1D17A E0000-E0FFF"
)
"""Unicode's property Default_Ignorable_Code_Point (DerivedCoreProperties.txt)."""

BLANK = "9 A D 1B 7F 85 9B A0 1680 2000-200A 2028 2029 202F 205F 2800 3000 FFFC 16FE4 E000 D800"
"""What leaves no ink besides, or is obeyed by a terminal."""


def points(ranges: str) -> list[str]:
    """The characters of a list of hexadecimal code points and ranges."""
    found: list[str] = []
    for part in ranges.split():
        first, _, last = part.partition("-")
        found += map(chr, range(int(first, 16), int(last or first, 16) + 1))
    return found


@pytest.mark.parametrize("ranges", [IGNORABLE, BLANK], ids=["ignorable", "blank"])
def test_what_leaves_no_ink_is_marked(ranges: str) -> None:
    unmarked = [f"{ord(c):X}" for c in points(ranges) if visible(f"a{c}b") != f"a{MARK}b"]
    assert unmarked == []


def test_what_sits_on_no_letter_is_marked() -> None:
    acute = "\u0301"
    for before in ("", " ", "\u3164", "(", "\u200d"):
        shown = visible(f"{before}{acute}x")
        assert acute not in shown, before
    assert visible(f"e{acute}{acute}") == f"e{acute}{acute}"


@pytest.mark.parametrize(
    "text",
    [
        "Deploy build 42?",
        "Straße über Köln, „ja“ … ≤ 5 €",
        unicodedata.normalize("NFD", "Đặt hàng Việt Nam"),
        "本番環境へデプロイしますか",
        "배포할까요",
        "क्या हम आगे बढ़ें",
        "ต้องการดำเนินการต่อหรือไม่",
        "هل نتابع؟",
        "בְּרֵאשִׁית",
        "🚀 ship 👍🏽 🇩🇪",
        "x ≠ y, a≠b",
    ],
)
def test_what_people_write_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


def test_a_document_of_json_means_the_same_and_hides_nothing() -> None:
    hidden = "".join(points(f"{IGNORABLE} 9 A 7F 85 9B A0 202E 2800")) + "\U000e0041"
    value = {"title": f"yes{hidden}", hidden: ["\u0301", "Köln 🚀"]}
    document = escaped(json.dumps(value, ensure_ascii=False))
    assert json.loads(document) == value
    assert visible(document) == document
    assert "Köln 🚀" in document


SLY = "ok\u3164\u115f\ufe0f\u2800\u202e\x1b\x9b\n\u0301end"
SHOWN = f"ok{MARK * 9}end"
UID = "u" * 26


def view(holder: str = "maria") -> CheckpointView:
    return CheckpointView(
        endpoint="runs", token="t", state="waiting", generation=1, deadline_at_ms=60_000,
        holder=Holder(id=holder, lifecycleUid=UID),
    )  # fmt: skip


def seat() -> SeatView:
    return SeatView.from_object(
        {
            "request_id": "r", "state": "active", "lease_id": "l", "generation": 1,
            "owner": {"principal": "conn", "uid": UID}, "agent_id": "agent\u202e\u3164x",
            "provider": "acme\u2800x", "model": "m\u3164x", "admitted_at_ms": 1, "frees": [],
        }
    )  # fmt: skip


def test_every_view_of_a_checkpoint_shows_what_hides() -> None:
    prompt = {"v": 1, "title": SLY, "choices": [SLY], "body": "one\r\ntwo\u3164\x0bthree"}
    detail = CheckpointDetail(
        checkpoint=view(), spec={}, status={}, prompt=prompt, prompt_digest="0" * 64,
        answer={"value": SLY, "by": SLY},
    )  # fmt: skip
    lines = cp_views.detail_lines(detail, 0)
    assert sum(SHOWN in line for line in lines) == 4
    assert lines[-2:] == ["one", f"two{MARK}{MARK}three"]
    lines = cp_views.settled_lines(view(), {"value": [SLY]}, 0)
    assert lines == list(map(visible, lines))
    look = Look(0, "main", waiting=(Waiting(view(), SLY),), seats=(seat(),))
    lines = plain.lines(look, 0)
    assert any(SHOWN in line for line in lines)
    assert lines == list(map(visible, lines))


def test_every_view_of_admission_shows_what_hides() -> None:
    queue = QueueView.from_object(
        {
            "queued": 1, "blocks": [], "cooldowns": [],
            "turns": [
                {
                    "position": 1, "request_id": "r", "state": "queued", "priority": 0,
                    "agent_id": "a\u3164x",
                    "provider": "p\u202ex", "model": "m\u2800x", "waited_ms": 1, "blocks": [],
                }
            ],
        }
    )  # fmt: skip
    for lines in (adm_views.seat_table([seat()], 2), adm_views.queue_lines(queue, 2)):
        assert lines == list(map(visible, lines))
        assert MARK in "\n".join(lines)


def test_nothing_printed_is_unseen(capsys: pytest.CaptureFixture[str]) -> None:
    common.emit({"title": SLY}, True, "")
    document = capsys.readouterr().out.rstrip("\n")
    assert document == visible(document)
    assert json.loads(document) == {"title": SLY}
    common.emit({}, False, [f"rests {SLY}"])
    common.say(f"tidegate: {SLY}")
    shown = capsys.readouterr()
    assert shown.out == f"rests {SHOWN}\n"
    assert shown.err == f"tidegate: {SHOWN}\n"
