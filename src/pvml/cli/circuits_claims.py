"""`pvml circuits MODEL induction | report | check`: what can be claimed, and whether it holds."""

from collections import Counter
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from pvml.cli.circuits_output import print_json, say, told, waiting
from pvml.cli.circuits_subject import CommonFlags, RowsFlags, Subject, written
from pvml.errors import PvmlError

if TYPE_CHECKING:
    from pvml.circuits.induction.study import InductionStudy
    from pvml.circuits.induction.workbench import Worth


@dataclass(frozen=True, kw_only=True)
class InductionFlags(RowsFlags):
    """Look for the induction circuit: its two heads, what joins them, and what each is worth.

    Heads are ablated by their mean at each position; beside each is what other heads are worth.
    """

    search: float | None = None
    """Also look for a small set of heads that alone keeps this share of the repeated-token
    advantage, such as 0.9."""
    n_random: int | None = None
    """Random heads in the place of each (at least 100); 0 leaves them out. Unset: 200."""


@dataclass(frozen=True, kw_only=True)
class ReportFlags(CommonFlags):
    """Write all that can be claimed of a model's heads, with the evidence, as JSON and as a page.

    Made on the built-in stories, so that `check` can make the same rows again.
    """

    out: Path | None = None
    """The folder for claims.json, claims.md and claims.html. Unset: circuits/NAME."""
    seed: int = 0
    """Draws random sequences, random heads and whatever else is drawn."""
    circuit: bool = True
    """Also study the induction circuit."""


@dataclass(frozen=True, kw_only=True)
class CheckFlags(CommonFlags):
    """Measure the claims of a report again, on this model. Exit code 1 if one does not hold.

    Nor does a report of another model. A claim holds if these are its weights, its score is beyond
    its nulls again, and its sentence and every figure in the file are what is measured, but for
    rounding.
    """

    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """The claims.json that `report` wrote, or its folder."""


def induction(word: str, flags: InductionFlags) -> int:
    """Print the induction circuit; the exit code."""
    from pvml.circuits.heads.random_heads import N_RANDOM
    from pvml.circuits.induction.study import LEGEND, study_induction

    if flags.search is not None and not 0 < flags.search <= 1:
        raise PvmlError(f"--search must be a share above 0 and up to 1, got {flags.search}")
    subject = Subject(word, flags.device)
    subject.require_layers("an induction circuit")
    rows = subject.rows(flags)
    with waiting("taking heads out, one after the other"):
        study = study_induction(
            subject.model,
            rows.tokens,
            natural=rows.natural,
            search=flags.search,
            n_random=N_RANDOM if flags.n_random is None else flags.n_random,
            seed=flags.seed,
        )
    if flags.json:
        found = {
            **subject.told("induction"),
            "text": rows.told(),
            "seed": flags.seed,
            **_study_json(study),
        }
        print_json(found)
        return 0
    say(subject.title)
    say(told(str(rows)))
    say()
    say(told(str(study)))
    say()
    say(told(LEGEND))
    if flags.search is not None and study.searched is None:
        say(told("Nothing was searched for: the order of repeated tokens is of no use here."))
    return 0


def report(word: str, flags: ReportFlags) -> int:
    """Write the report, and print what is in it and where; the exit code."""
    from pvml.circuits.claims.inputs import ClaimSettings
    from pvml.circuits.claims.report import RULES, report_claims

    subject = Subject(word, flags.device)
    out = flags.out or Path("circuits") / subject.loaded.name
    if out.exists() and not out.is_dir():
        raise PvmlError(f"{out} is a file: give --out the name of a folder")
    with waiting("measuring all that can be claimed"):
        made = report_claims(
            subject.opened, settings=ClaimSettings(seed=flags.seed), circuit=flags.circuit
        )
    files = made.write(out)
    kinds = {
        misses.kind: (sum(c.kind == misses.kind for c in made.claims), misses.n_scores)
        for misses in made.misses
    }
    if flags.json:
        print_json(
            {
                **subject.told("report"),
                "claims": len(made.claims),
                "kinds": {kind: {"claims": n, "scores": of} for kind, (n, of) in kinds.items()},
                "written": [str(file) for file in files],
            }
        )
        return 0
    say(f"{subject.title}\n")
    for kind, (n, of) in kinds.items():
        say(f"{kind:<15}{n:>5} of {of:,} scores are claimed")
    say()
    say(told(RULES))
    say()
    for file in files:
        say(f"written: {file}")
    say(told(f"measured again by: pvml circuits {word} check {files[0]}"))
    return 0


def check(word: str, flags: CheckFlags) -> int:
    """Print what came of every claim; the exit code, 1 if one does not hold."""
    from pvml.circuits.claims.report import JSON, ClaimReport

    made = ClaimReport.read(flags.file / JSON if flags.file.is_dir() else flags.file)
    subject = Subject(word, flags.device)
    if not flags.json:
        say(f"{subject.title}\n")
    checks, failed, verdicts = [], 0, Counter[str]()
    n, same_model = len(made.claims), made.is_about(subject.opened)
    with waiting(f"measuring {n} claim{'' if n == 1 else 's'} again"):
        results = made.check(subject.opened)
        first = list(islice(results, 1))
    for found in chain(first, results):
        failed += not found.holds
        verdicts[found.verdict] += 1
        checks.append(
            {
                "says": found.claim.says,
                "kind": found.claim.kind,
                "heads": [written(head) for head in found.claim.heads],
                "verdict": found.verdict,
                "holds": found.holds,
                "same_model": found.same_model,
                "difference": found.difference,
                "amiss": list(found.amiss),
            }
        )
        if not flags.json:
            say(told(str(found)))
    if flags.json:
        print_json(
            {
                **subject.told("check"),
                "same_model": same_model,
                "claims": len(checks),
                "failed": failed,
                "checks": checks,
            }
        )
    elif not checks:
        whose = "this model" if same_model else f"{made.model}, which is another model"
        say(told(f"the report claims nothing of {whose}"))
    else:
        others = [f"; {word}: {n:,}" for word, n in verdicts.items() if word != "holds"]
        say(told(f"\n{len(checks) - failed:,} of {len(checks):,} claims hold{''.join(others)}"))
    return 1 if failed or not same_model else 0


def _study_json(study: "InductionStudy") -> dict[str, Any]:
    from pvml.cli.circuits_heads import composition_json, score_json

    context, alone = study.context, study.context_alone
    repeats = study.repeats
    return {
        "repeats": {
            **asdict(repeats),
            "advantage": repeats.advantage,
            "null_advantage": repeats.null_advantage,
            "beyond": repeats.beyond,
        },
        "context": context
        and {
            **asdict(context),
            "score": context.score,
            "null_score": context.null_score,
            "gain": context.gain,
            "beyond": context.beyond,
        },
        "previous_token_heads": [score_json(score) for score in study.previous],
        "induction_heads": [score_json(score) for score in study.induction],
        "nearest": [score_json(score) for score in study.nearest],
        "compositions": [composition_json(score) for score in study.compositions],
        "lost": [_worth_json(worth) for worth in study.lost],
        "cut": [_worth_json(worth) for worth in study.cut],
        "circuit": [written(head) for head in study.circuit],
        "kept": study.kept and _worth_json(study.kept),
        "context_gain_alone": alone and alone.gain,
        "context_kept": study.context_kept,
        "searched": study.searched and _worth_json(study.searched),
    }


def _worth_json(worth: "Worth") -> dict[str, Any]:
    return {
        **asdict(worth),
        "heads": [written(head) for head in worth.heads],
        "ahead": worth.ahead,
    }
