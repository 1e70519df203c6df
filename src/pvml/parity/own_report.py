"""What came of checking a reader's module, and how it is told."""

from collections.abc import Iterator
from dataclasses import dataclass

from pvml.config import Config
from pvml.parity.check import Report, Row
from pvml.parity.own_code import OwnClass, parts_in

GRADIENT = "grad "
"""What stands before the name of what a row has the gradient by."""

FEW_DIGITS = 1e-8
"""Gradients that are off by less in float64 are so by a number's last digits, not by a term."""


@dataclass(frozen=True, kw_only=True)
class TrialReport:
    """One setting, with its table."""

    says: str
    dtype: str
    rows: tuple[Row, ...] = ()
    """Outputs, then gradients (`grad NAME`)."""
    problems: tuple[str, ...] = ()
    """What was raised, or done that a module must not do."""
    causes: tuple[str, ...] = ()
    """Mistakes that give the module's own numbers, best fit first."""
    unknown: tuple[str, ...] = ()
    """What was shown by a name that is none, and so compared with nothing."""
    notes: tuple[str, ...] = ()
    """How the result was found."""
    hint: str = ""
    """What is usual if only this trial fails."""

    @property
    def ok(self) -> bool:
        return bool(self.rows) and not self.problems and all(row.ok for row in self.rows)

    @property
    def report(self) -> Report:
        """The rows as `pvml verify` shows them."""
        return Report(rows=self.rows, dtype=self.dtype)

    def line(self) -> str:
        """The trial in one line."""
        if not self.rows:
            return f"{self.says}, {self.dtype}: FAILED"
        good = sum(row.ok for row in self.rows)
        verdict = "ok" if self.ok else "FAILED"
        if good == len(self.rows) and self.problems:
            verdict = f"but FAILED: {self.problems[0].splitlines()[0]}"
        return f"{self.says}, {self.dtype}: {good} of {len(self.rows)} tensors agree, {verdict}"


@dataclass(frozen=True, kw_only=True)
class ModuleReport:
    """A class in all its trials."""

    own: OwnClass
    cfg: Config
    problems: tuple[str, ...] = ()
    """What is wrong before anything is run: the constructor, the parameters."""
    trials: tuple[TrialReport, ...] = ()
    untried: str = ""
    """Which of forward's parameters were not given, in a sentence; empty: all were."""

    @property
    def ok(self) -> bool:
        """Whether the parameters are right, and every trial passed with all that it shows."""
        return self._agrees and not self.unknown

    @property
    def _agrees(self) -> bool:
        return bool(self.trials) and not self.problems and all(trial.ok for trial in self.trials)

    @property
    def unknown(self) -> tuple[str, ...]:
        """What was shown in any trial by a name that is none."""
        return tuple(dict.fromkeys(one for trial in self.trials for one in trial.unknown))

    @property
    def first_bad(self) -> TrialReport | None:
        """The first trial that failed."""
        return next((trial for trial in self.trials if not trial.ok), None)

    def text(self) -> str:
        """The whole of it: parameters, the table of the first trial or the failed one, the rest."""
        cfg, own = self.cfg, self.own
        lines = [
            f"{own.cls.__name__} in {own.file.name} as {own.kind}: d_model {cfg.d_model}, n_heads "
            f"{cfg.n_heads}, d_head {cfg.d_head}, d_mlp {cfg.d_mlp}, n_ctx {cfg.n_ctx}, "
            f"d_vocab {cfg.d_vocab}"
            + (f", n_layers {cfg.n_layers}" if own.kind == "transformer" else ""),
            *(f"- {_indented(problem)}" for problem in self.problems),
        ]
        shown = self.first_bad or (self.trials[0] if self.trials else None)
        if shown is not None:
            lines += ["", f"{shown.says}, {shown.dtype}"]
            if shown.rows:
                lines.append(shown.report.table())
            lines += [f"- {_indented(problem)}" for problem in shown.problems]
            lines += ["", *(trial.line() for trial in self.trials)]
        return "\n".join([*lines, "", self.verdict()])

    def brief(self) -> str:
        """What is wrong, without tables, and the verdict."""
        problems = [*self.problems, *(self.first_bad.problems if self.first_bad else ())]
        return "\n".join([*(f"- {_indented(problem)}" for problem in problems), self.verdict()])

    def verdict(self) -> str:
        """Right or wrong, what is wrong first, and the likely cause."""
        name = self.own.cls.__name__
        if self._agrees:
            n = len(self.trials)
            lines = [f"{name} is right: {n} of {n} trials"]
            if self.unknown:
                lines = [
                    f"{name} gives what it should, {n} of {n} trials; what it shows is misnamed"
                ]
        else:
            lines = list(self._what_is_wrong())
        lines += [f"compared with nothing: {one}" for one in self.unknown]
        if self.trials:
            lines += [*self.trials[0].notes, *filter(None, [self.untried])]
        return "\n".join(lines)

    def _what_is_wrong(self) -> Iterator[str]:
        bad = self.first_bad
        first = None if bad is None else bad.report.first_bad
        where = "" if bad is None or first is None else f"{first.name} ({bad.says}, {bad.dtype})"
        yield f"{self.own.cls.__name__} is wrong" + (f"; first wrong: {where}" if where else "")
        if bad is not None:
            for i, cause in enumerate(bad.causes[:3]):
                yield f"{'likely cause' if i == 0 else 'or'}: {cause}"
            if not bad.causes:
                yield from self._where_to_look(bad)
            yield from self._parts()

    def _parts(self) -> Iterator[str]:
        """Where a whole model is wrong: its parts have causes, and it has not."""
        if self.own.kind == "transformer":
            parts = parts_in(self.own) or ["CLASS"]
            ways = ", ".join(f"{self.own.file.name}:{name}" for name in parts)
            yield f"check its parts first, each with --module: {ways}"

    def _where_to_look(self, bad: TrialReport) -> list[str]:
        """What to try where no cause could be named."""
        if bad.hint and {trial.hint for trial in self.trials if not trial.ok} == {bad.hint}:
            return [f"only trials like this one fail: perhaps {bad.hint}"]
        first = bad.report.first_bad
        if first is None or bad.problems:
            return ["mend first what is told above: " + bad.problems[0].splitlines()[0]]
        if first.name.startswith(GRADIENT):
            if bad.dtype == "float64" and all(row.relative < FEW_DIGITS for row in bad.rows):
                return [
                    "all is right but for the last digits: a constant is written with too few of "
                    "them, or something computes in float32 inside"
                ]
            return [
                "the output is right, the way back is not: is there a .detach() or .data on one of "
                "several ways, a cast to another dtype, a hook, or a backward of its own?"
            ]
        if first.problem:
            return [f"{first.name} has another shape than it should: {first.problem}"]
        return [
            "no mistake that is known here gives these numbers: tap what is on the way, "
            "self.tap.at(NAME, tensor), to see what is wrong first"
        ]


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")
