"""Alerts, dashboard and runbook name metrics, labels, checks and commands that exist."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import ProcessCollector

from worker import metrics
from worker.admission import sampling
from worker.doctor.findings import Check
from worker.ledger import errors as ledger_errors

DOCS = Path(__file__).parents[2] / "docs"
RUNBOOK = (DOCS / "runbook.md").read_text(encoding="utf-8")
PROCESS: Any = next(
    one for one in metrics.REGISTRY._collector_to_names if isinstance(one, ProcessCollector)
)
COLLECTORS: list[Any] = [one for one in metrics.REGISTRY._collector_to_names if one is not PROCESS]
SCRAPED = frozenset({"instance", "job"})
_NAME = re.compile(r"\btidegate_[a-z_]+\b")
_MATCHER = re.compile(r"(tidegate_[a-z_]+)(?:\{([^}]*)\})?")
_LABEL = re.compile(r'(\w+)\s*(=~|!=|=|!~)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")


def labels_by_sample() -> dict[str, frozenset[str]]:
    """Every name that a scrape can show, with the labels it has."""
    found: dict[str, frozenset[str]] = {}
    for collector in COLLECTORS:
        labels = frozenset(collector._labelnames)
        (family,) = collector.describe()
        names = {
            "counter": [f"{family.name}_total"],
            "gauge": [family.name],
            "histogram": [f"{family.name}_{part}" for part in ("bucket", "count", "sum")],
        }[family.type]
        for name in names:
            more = {"le"} if name.endswith("_bucket") else set()
            found[name] = labels | more
    return found


SAMPLES = labels_by_sample()
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DOCS / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((DOCS / "dashboard.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
EXPRESSIONS = {rule["alert"]: rule["expr"] for rule in RULES} | {
    f"{panel['title']} {target['refId']}": target["expr"]
    for panel in PANELS
    for target in panel.get("targets", ())
}


def test_names_and_units_follow_the_conventions() -> None:
    for collector in COLLECTORS:
        (family,) = collector.describe()
        assert family.name.startswith("tidegate_")
        assert family.documentation.endswith(".")
        if family.type == "histogram":
            assert family.name.endswith(("_seconds", "_commands")), family.name
        assert not re.search(r"_(ms|millis|minutes|mb|kb)(_|$)", family.name)
    for labels in SAMPLES.values():
        assert not labels & {"id", "token", "endpoint", "principal", "uid", "user", "request_id"}


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_every_expression_names_what_is_shown(where: str) -> None:
    expression = EXPRESSIONS[where]
    named = _NAME.findall(expression)
    assert named, "an expression without a metric of ours"
    for name, matchers in _MATCHER.findall(expression):
        assert name in SAMPLES, f"{name} does not exist"
        for label, _, value in _LABEL.findall(matchers):
            assert label in SAMPLES[name] | SCRAPED, f"{name} has no label {label}"
            assert value.startswith("$") or value in known_values(label), (
                f"{label} is never {value}"
            )
    allowed = SCRAPED.union(*(SAMPLES[name] for name in named))
    for group in _GROUPING.findall(expression):
        for label in filter(None, map(str.strip, group.split(","))):
            assert label in allowed, f"nothing here has the label {label}"


def known_values(label: str) -> set[str]:
    """Values of labels as the code gives them; the closed sets behind the metrics."""
    known: dict[str, set[str]] = {
        "status": {"ok", "refused", "failed"},
        "plane": {"cp", "adm", "cap", "sys"},
        "verb": {"authorize", "stop"},
        "verdict": set(words(metrics.TIMER_FIRES)),
        "outcome": set(words(metrics.TIMER_ARMS)),
        "repair": {"status-restored", "expired", "rearmed", "fact-published", "timer-cancelled"},
        "block": set(map(str, sampling.BLOCKS)),
    }
    return known[label]


def words(metric: Any) -> list[str]:
    """The values that a metric's own description lists."""
    (family,) = metric.describe()
    return re.split(r"[,.:]\s*", family.documentation)[1:-1]


def test_every_metric_is_on_the_dashboard_or_in_an_alert() -> None:
    used = {name for expression in EXPRESSIONS.values() for name in _NAME.findall(expression)}
    families = {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in SAMPLES}
    used_families = {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in used}
    assert families - used_families == set()


def test_what_is_said_of_the_process_is_what_this_system_tells() -> None:
    used = {
        name
        for expression in EXPRESSIONS.values()
        for name in re.findall(r"process_\w+", expression)
    }
    assert used == {"process_open_fds", "process_max_fds"}
    assert used <= {family.name for family in PROCESS.collect()}


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_every_alert_says_what_it_is_and_where_to_look(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
    notes = rule["annotations"]
    assert notes["summary"].endswith(".")
    assert notes["description"].endswith(".")
    page, _, anchor = notes["runbook_url"].partition("#")
    assert page == "docs/runbook.md"
    assert anchor == rule["alert"].lower()
    assert f"\n### {rule['alert']}\n" in RUNBOOK


def sections(title: str) -> list[str]:
    """The headings below one heading of the runbook."""
    part = RUNBOOK.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"^### (.+)$", part, re.MULTILINE)


def test_the_runbook_has_a_section_for_each_alert_and_each_check_and_no_other() -> None:
    assert sections("Alerts") == [rule["alert"] for rule in RULES]
    assert set(sections("Findings of tidegate doctor")) == {check.value for check in Check}


def test_the_runbook_knows_every_reason_for_which_the_fold_stops() -> None:
    part = RUNBOOK.split("### TidegateFoldStopped\n")[1].split("\n### ")[0]
    reasons = {
        kind.reason
        for kind in vars(ledger_errors).values()
        if isinstance(kind, type)
        and issubclass(kind, ledger_errors.LedgerError)
        and kind not in (ledger_errors.LedgerError, ledger_errors.LogGap)
    }
    listed = set(re.findall(r"^\| `([a-z-]+)` \|", part, re.MULTILINE))
    assert reasons <= listed


def test_links_within_the_runbook_lead_somewhere() -> None:
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", RUNBOOK, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", RUNBOOK):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        else:
            assert (DOCS / target).is_file(), target


def test_every_command_that_the_runbook_names_exists() -> None:
    import typer

    from worker.cli.main import app

    group = typer.main.get_command(app)
    for words_ in re.findall(r"`?tidegate ((?:[a-z]+)(?: [a-z]+)?)", RUNBOOK):
        name, _, verb = words_.partition(" ")
        commands: Any = group.commands  # type: ignore[attr-defined] # a group has them
        assert name in commands, f"tidegate {words_}"
        inner = getattr(commands[name], "commands", None)
        if inner is not None and verb:
            assert verb in inner, f"tidegate {words_}"


def test_the_dashboard_can_be_loaded() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} covers another panel"
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["description"].endswith(".")
    assert {one["name"] for one in DASHBOARD["templating"]["list"]} == {"datasource", "space"}
