"""What ``tidegate status`` shows a person."""

from worker.cli.status import rows_of


def test_what_a_plane_says_is_shown_without_json() -> None:
    said = {
        "halted": None,
        "publishes": True,
        "rulesets": [2, 3],
        "peers": [],
        "lag": 0,
        "lag_ms": 1_500,
        "log_time_ms": 1_790_000_000_000,
        "due_at_ms": None,
        "nothing_at_ms": 0,
        "snapshot": {"name": "s", "watermark": 4},
        "reaper": {"host": "h", "last": {"inspected": 0}, "totals": {"inspected": 3, "failed": 0}},
    }
    assert rows_of("x", said) == [
        ("x halted", "-"),
        ("x publishes", "yes"),
        ("x rulesets", "2, 3"),
        ("x peers", "-"),
        ("x lag", "0"),
        ("x lag time", "1.5s"),
        ("x log time", "2026-09-21T14:13:20.000Z"),
        ("x due", "-"),
        ("x nothing", "-"),
        ("x snapshot name", "s"),
        ("x snapshot watermark", "4"),
        ("x reaper host", "h"),
        ("x reaper last", "-"),
        ("x reaper totals", "inspected 3"),
    ]
