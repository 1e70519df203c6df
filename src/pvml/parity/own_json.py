"""What came of checking a reader's module as JSON, for whoever judges many of them by program."""

from typing import Any

from pvml.parity.check import Row
from pvml.parity.own_report import ModuleReport, TrialReport


def as_json(report: ModuleReport, *, only_wrong: bool = False) -> dict[str, Any]:
    """The verdict, what is wrong first and why, and all trials; ready for JSON.

    only_wrong: leave out trials that passed, and rows that agree.
    """
    bad = report.first_bad
    row = None if bad is None else bad.report.first_bad
    return {
        "kind": report.own.kind,
        "agrees": report.ok,
        "verdict": report.verdict(),
        "first_wrong": None if row is None else row.name,
        "causes": [] if bad is None else [*bad.causes],
        "problems": [*report.problems, *([] if bad is None else bad.problems), *report.unknown],
        "trials": [
            _trial(trial, only_wrong) for trial in report.trials if not (only_wrong and trial.ok)
        ],
    }


def not_executed(why: str) -> dict[str, Any]:
    """The same of a file that could not be executed, and so of no class."""
    return {
        "kind": None,
        "agrees": False,
        "verdict": why,
        "first_wrong": None,
        "causes": [],
        "problems": [why],
        "trials": [],
    }


def _trial(trial: TrialReport, only_wrong: bool) -> dict[str, Any]:
    return {
        "says": trial.says,
        "dtype": trial.dtype,
        "agrees": trial.ok,
        "problems": [*trial.problems],
        "rows": [_row(row) for row in trial.rows if not (only_wrong and row.ok)],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "shape": row.shape,
        "absolute": row.max_abs_diff,
        "relative": row.relative,
        "ulps": row.ulps,
        "allowed": row.allowed,
        "verdict": "ok" if row.ok else row.problem or "WRONG",
    }
