"""What came of checking a reader's module, and how it is told."""

from dataclasses import dataclass

from pvml.config import Config
from pvml.parity.check import Report, Row
from pvml.parity.own_code import OwnClass

GRADIENT = "grad "
"""What stands before the name of what a row has the gradient by."""


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
        return f"{self.says}, {self.dtype}: {good} of {len(self.rows)} tensors agree, {verdict}"


@dataclass(frozen=True, kw_only=True)
class ModuleReport:
    """A class in all its trials."""

    own: OwnClass
    cfg: Config
    problems: tuple[str, ...] = ()
    """What is wrong before anything is run: the constructor, the parameters."""
    trials: tuple[TrialReport, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the parameters are as they should be and every trial passed."""
        return bool(self.trials) and not self.problems and all(trial.ok for trial in self.trials)

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
            f"d_vocab {cfg.d_vocab}",
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

    def verdict(self) -> str:
        """Right or wrong, what is wrong first, and the likely cause."""
        if self.ok:
            return (
                f"{self.own.cls.__name__} is right: {len(self.trials)} of {len(self.trials)} trials"
            )
        lines = [f"{self.own.cls.__name__} is wrong"]
        bad = self.first_bad
        if bad is not None and bad.report.first_bad is not None:
            lines[0] += f"; first wrong: {bad.report.first_bad.name} ({bad.says}, {bad.dtype})"
        if bad is not None:
            lines += [
                f"{'likely cause' if i == 0 else 'or'}: {cause}"
                for i, cause in enumerate(bad.causes[:3])
            ]
            lines += [] if bad.causes else self._where_to_look(bad)
        return "\n".join(lines)

    def _where_to_look(self, bad: TrialReport) -> list[str]:
        """What to try where no cause could be named."""
        if bad.hint and {trial.hint for trial in self.trials if not trial.ok} == {bad.hint}:
            return [f"only trials like this one fail: {bad.hint}"]
        first = bad.report.first_bad
        if first is None or bad.problems:
            return []
        if first.name.startswith(GRADIENT):
            return [
                "the output is right, the way back is not: is there a .detach() or .data on one of "
                "several ways, a hook, or a backward of its own?"
            ]
        return [
            "no mistake that is known here gives these numbers: tap what is on the way, "
            "self.tap.at(NAME, tensor), to see what is wrong first"
        ]


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")
