"""What ``tidegate status`` shows a person."""

from worker.cli.status import rows_of


def test_what_a_plane_says_is_shown_without_json() -> None:
    said = {
        "halted": None,
        "publishes": True,
        "rulesets": [2, 3],
        "peers": [],
        "lag": 0,
        "snapshot": {"name": "s", "watermark": 4},
        "reaper": {"host": "h", "last": {"inspected": 0}, "totals": {"inspected": 3, "failed": 0}},
    }
    assert rows_of("x", said) == [
        ("x.halted", "-"),
        ("x.publishes", "yes"),
        ("x.rulesets", "2, 3"),
        ("x.peers", "-"),
        ("x.lag", "0"),
        ("x.snapshot.name", "s"),
        ("x.snapshot.watermark", "4"),
        ("x.reaper.host", "h"),
        ("x.reaper.last", "-"),
        ("x.reaper.totals", "inspected 3"),
    ]
