"""What others do with the same work; what cannot be installed is left out and says why."""

import asyncio
from pathlib import Path

import pytest

from worker.bench.peers import comparison, installing, postgres
from worker.bench.peers.installing import NotInstalled


@pytest.mark.bench
@pytest.mark.timeout(1_800)
async def test_each_peer_is_measured_or_left_out_with_the_reason() -> None:
    found = await comparison.run(100, print)
    print(found)
    assert found["tidegate_always"]["lateness"]["p50_ms"] >= 0
    for name, one in found.items():
        if name == "work":
            continue
        assert one.get("skipped") or one["durability"]
        assert "skipped" in one or one["lateness" if "lateness" in one else "done_per_s"]


@pytest.mark.bench
async def test_an_environment_that_cannot_be_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(NotInstalled, match="cannot be installed"):
        await installing.environment("none", ("./no-such-folder",))
    assert not list(await asyncio.to_thread(lambda: list(installing.cache_dir().iterdir())))


def test_a_machine_without_postgresql_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(postgres, "INSTALLED", Path("/nonexistent"))
    with pytest.raises(NotInstalled, match="no PostgreSQL"):
        postgres.programs()
