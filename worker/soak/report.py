"""The report: a minute's figures, and what grew by design."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from schemas.names import Names
from schemas.strict_json import JsonObject
from worker.soak import drift, series
from worker.soak.drift import Point

MB: Final = 2**20
PROCESSES: Final = ("worker", "broker", "client")


def minute(
    number: int,
    verbs: Mapping[str, JsonObject],
    now: Mapping[str, float],
    before: Mapping[str, float],
) -> JsonObject:
    """One minute: what was done, what there is, and how much of it came in that minute.

    Args:
        number: Which, from 1.
        verbs: Count, rate and latencies by verb.
        now: The latest value of each series.
        before: Those at the end of the minute before; empty for the first.
    """
    shown = {name: round(value, 2) for name, value in sorted(now.items())}
    grown = {
        name: round(value - before[name], 2)
        for name, value in sorted(now.items())
        if name in before and value != before[name]
    }
    return {"minute": number, "verbs": verbs, "now": shown, "grown": grown}


def minute_lines(one: JsonObject) -> list[str]:
    """A minute for a person."""
    now, grown = one["now"], one["grown"]
    lines = [f"minute {one['minute']}"]
    lines += [
        f"  {verb:<24}{figures['count']:>7,} {figures['per_s']:>8.1f} /s"
        f"   p50 {figures['p50_ms']:>8.2f} ms   p99 {figures['p99_ms']:>8.2f} ms"
        for verb, figures in one["verbs"].items()
    ]
    lines += [
        f"  {who:<8}{_with(now, grown, f'{who}.memory', ' MB', 1)},"
        f" {_with(now, grown, f'{who}.open_files', ' open files')},"
        f" {_with(now, grown, f'{who}.tasks', ' tasks')},"
        f" {_with(now, grown, f'{who}.threads', ' threads')}"
        for who in PROCESSES
    ]
    files = ", ".join(
        f"{name} {_with(now, grown, f'files.{name}', ' MB', 2)}"
        for name in ("ledger", "wal", "index", "journal")
    )
    lines.append(f"  files   {files}")
    lines += [f"  {line}" for line in _stream_lines(now, grown)]
    return lines


def growth_by_design(
    found: Mapping[str, Sequence[Point]], names: Names, length_s: float
) -> list[JsonObject]:
    """What grows for a reason: how fast, and the reason."""
    skip_s = drift.warm_up_s(length_s)

    def slope(name: str) -> float:
        points = found.get(name, ())
        # Of a run that ended within its warm-up there is nothing else to tell.
        kept = [point for point in points if point[0] >= skip_s] or points
        return drift.slope_per_min(drift.thin(kept, drift.SPANS))

    streams: list[JsonObject] = [
        {
            "what": name,
            "messages_per_min": round(slope(f"stream.{name}.messages"), 1),
            "kb_per_min": round(slope(f"stream.{name}.bytes") / 1024, 1),
            "why": why,
        }
        for name, why in series.growing_streams(names).items()
    ]
    files: list[JsonObject] = [
        {"what": name, "kb_per_min": round(slope(name) * 1024, 1), "why": why}
        for name, why in series.GROWING_FILES.items()
    ]
    return streams + files


def text(report: JsonObject) -> list[str]:
    """The end of the report for a person; the minutes were told as they passed."""
    lines = [
        f"{report['ended']} after {report['minutes']:g} minutes,"
        f" {report['stories']:,} stories, {report['late']:,} late"
    ]
    lines += [_judged_line(one) for one in report["judged"]]
    lines += [
        f"  {one['what']:<32} grows {one['kb_per_min']:,.1f} KB/min by design: {one['why']}"
        for one in report["grows_by_design"]
    ]
    lines += [f"wrong, {one['count']} times: {one['what']}" for one in report["faults"]]
    if report["drifts"]:
        lines.append(f"drifts: {', '.join(report['drifts'])}")
    elif any(one["verdict"] == "too-short" for one in report["judged"]):
        lines.append("too short to judge drift; nothing else" if report["ok"] else "not ok")
    else:
        lines.append("nothing drifts" if report["ok"] else "not ok")
    return lines


def _judged_line(one: JsonObject) -> str:
    return (
        f"  {one['series']:<40} {one['verdict']:<9} {one['first']:>10,.1f} to {one['last']:>10,.1f}"
        f" {one['unit']}, {one['slope_per_min']:+.2f} /min, later {one['late_slope_per_min']:+.2f},"
        f" may {one['allowance_per_min']:.2f}"
    )


def _stream_lines(now: Mapping[str, float], grown: Mapping[str, float]) -> list[str]:
    names = sorted(name.removesuffix(".messages") for name in now if name.endswith(".messages"))
    return [
        f"{name.removeprefix('stream.'):<36}"
        f"{_with(now, grown, f'{name}.messages', ' messages')},"
        f" {now[f'{name}.bytes'] / MB:,.2f} MB"
        for name in names
    ]


def _with(
    now: Mapping[str, Any], grown: Mapping[str, Any], name: str, unit: str, digits: int = 0
) -> str:
    if name not in now:
        return f"-{unit}"
    change = grown.get(name, 0)
    more = f" ({change:+,.{digits}f})" if change else ""
    return f"{now[name]:,.{digits}f}{unit}{more}"
