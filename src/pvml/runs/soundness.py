"""Whether the rows of a run's logs are what a training wrote, asked before it goes on."""

from pvml.errors import RunDirError
from pvml.runs.jsonlines import JsonLines, Row

_LOSS, _GRADES = "loss", ("accuracy", "held_out_loss", "bits_per_byte")
_LARGEST = 3.4028235e38
"""float32's largest number: no loss is larger, whatever it was added up in."""


def require_sound(metrics: JsonLines, samples: JsonLines, step: int) -> None:
    """Nothing, if every row up to this step can be gone on from.

    Steps are whole numbers, those with a loss follow one another from 1 on, and losses and grades
    are numbers that the run's summary can be made of.

    Raises: RunDirError naming file and line, and what is wrong with it.
    """
    before = 0
    for log in (metrics, samples):
        for number, row in enumerate(log, start=1):
            fault = _fault(row)
            if fault is None and row.get("step", 0) > step:
                break  # what comes now is cut
            if fault is None and _LOSS in row:
                if row["step"] != before + 1:
                    fault = f"it is of step {row['step']:,}, and follows step {before:,}"
                before = row["step"]
            if fault is not None:
                raise RunDirError(
                    f"{log.path} is damaged: line {number}: {fault}. Mend that line, put the file "
                    f"back from a copy, or start the run anew with --overwrite"
                )


def _fault(row: Row) -> str | None:
    step = row.get("step", None if _LOSS in row else 0)
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        return f"its step is {_shown(step)}, which is no whole number"
    for name in (_LOSS, *_GRADES):
        value = row.get(name, 0)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        # compared, not converted: a whole number may be too large for a float
        if not good or not -_LARGEST <= value <= _LARGEST:
            return f"its {name} is {_shown(value)}, which no training gives"
    return None


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**20 else "a huge number"
    return text if len(text) < 40 else f"{text[:40]}..."
