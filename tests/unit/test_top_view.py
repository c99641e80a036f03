"""What keys do to the screen of ``tidegate top``."""

from rich.console import Console

from schemas.admission import SeatView
from schemas.views import CheckpointView
from worker.top import plain, screen
from worker.top.look import Look, Waiting
from worker.top.view import View, keys


def look() -> Look:
    waiting = tuple(
        Waiting(
            CheckpointView(
                endpoint="runs", token=f"t{number:03d}", state="waiting", generation=1,
                deadline_at_ms=60_000_000,
            ),
            "",
        )
        for number in range(90)
    )  # fmt: skip
    seats = tuple(
        SeatView.from_object(
            {
                "request_id": f"turn-{number}", "state": state, "lease_id": "l", "generation": 1,
                "owner": {"principal": "conn", "uid": "u" * 26}, "agent_id": "writer",
                "provider": "acme", "model": "large", "admitted_at_ms": 1_000,
                "frees": ["operator"],
            }
        )
        for number, state in enumerate(("active", "recovery_required"))
    )  # fmt: skip
    return Look(3_601_000, "main", waiting=waiting, seats=seats)


def drawn(view: View | None, width: int = 80, height: int = 30) -> list[str]:
    console = Console(width=width, height=height, force_terminal=False, color_system=None)
    with console.capture() as captured:
        one = look()
        console.print(screen.draw(one, one.at_ms, width, height, view))
    lines = captured.get().rstrip("\n").split("\n")
    assert len(lines) <= height or height < 24
    return lines


def after(*pressed: str) -> View:
    view = View()
    for key in pressed:
        view = view.pressed(key, view.sections(look(), 0))
    return view


def tokens(lines: list[str]) -> list[str]:
    return [word for line in lines for word in line.split() if word.startswith("t0")]


def test_what_a_terminal_sends_is_read_key_by_key() -> None:
    assert list(keys(b"\x1b[Bj\x1b[5~\tx\x1b[Ztq")) == [
        "down", "down", "page up", "next", "turns", "quit",
    ]  # fmt: skip


def test_a_list_that_is_longer_than_the_screen_can_be_seen_to_its_end() -> None:
    first = tokens(drawn(after()))
    assert first[0] == "t000"
    assert tokens(drawn(after("down")))[0] == "t001"
    assert tokens(drawn(after("down", "up", "up")))[0] == "t000"
    last = drawn(after(*["page down"] * 20))
    assert tokens(last)[-1] == "t089"
    assert any("above" in line for line in last)
    assert tokens(drawn(after(*["page down"] * 20, "top")))[0] == "t000"
    seen = {token for at in range(90) for token in tokens(drawn(after(*["down"] * at)))}
    assert len(seen) == 90


def test_only_the_list_that_has_the_keys_scrolls() -> None:
    assert tokens(drawn(after("next", "down", "down")))[0] == "t000"
    assert tokens(drawn(after("next", "next", "next", "next", "down")))[0] == "t001"


def test_turns_are_shown_by_name() -> None:
    assert not any("turn-1" in line for line in drawn(after()))
    for lines in (drawn(after("turns")), drawn(after("turns"), 160)):
        row = next(line for line in lines if "turn-1" in line)
        for word in ("recovery_required", "writer", "1h", "an operator"):
            assert word in row
    assert any("turn-0" in line for line in plain.lines(look(), 3_601_000))


def test_the_keys_are_told_where_there_is_room_and_somebody_to_press_them() -> None:
    assert drawn(after())[-1].startswith("q quit")
    assert not any("q quit" in line for line in drawn(None))
    assert not any("q quit" in line for line in drawn(after(), 40, 10))
