"""The blocks of the README and the docs: run them, compare what they print, or write it back.

A page is run from top to bottom in a folder of its own:

- ```python blocks share one namespace; a ```text block right after one is what it printed;
- ```console blocks hold `$ command` lines, each followed by what it printed;
- `...` in an expected text stands for anything, as in doctest;
- `decimals vary` after the language compares numbers with a decimal point by their presence only:
  they depend on the machine's rounding; `numbers vary` does so for all numbers: on its speed, too;
- a ```text block that is `from make demo` is held against the demo's own output by .ci/run, with
  `python tests/documents.py --demo LOG README.md`: its numbered headings and the commands it ends
  with, since what a machine has time to learn is not the same everywhere.

`python tests/documents.py README.md docs` writes current outputs into the pages (`make docs`).
"""

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

FROM_DEMO = "from make demo"
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.M | re.S)
NUMBERS = {
    "decimals vary": re.compile(r"[-+]?\d[\d,]*\.\d+(?:[eE][-+]?\d+)?%?"),
    "numbers vary": re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?%?"),
}

SAME_EVERYWHERE = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "HF_HUB_OFFLINE": "1"}
"""Pages print the same with or without a wide terminal and a hub."""


@dataclass
class Step:
    """One thing to run, and what it should print."""

    kind: str
    code: str
    expected: str | None
    vary: str
    """Which numbers need not agree: a key of NUMBERS, or nothing."""
    span: tuple[int, int] = field(default=(0, 0))
    """Where in the page the expected text stands."""


def steps_of(page: str) -> list[Step]:
    """Everything on a page that runs, in its order."""
    steps: list[Step] = []
    for block in FENCE.finditer(page):
        language, options, body = block.groups()
        if options.strip() == FROM_DEMO:
            continue
        vary = options.strip() if options.strip() in NUMBERS else ""
        if language == "python":
            steps.append(Step("python", body, None, vary))
        elif language == "text" and steps and steps[-1].kind == "python":
            steps[-1].expected, steps[-1].span = body, block.span(3)
            steps[-1].vary = vary
        elif language == "console":
            steps += _commands(body, block.start(3), vary)
    return steps


def _commands(body: str, start: int, vary: str) -> list[Step]:
    steps = []
    for command in re.finditer(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", body, re.M):
        span = (start + command.start(2), start + command.end(2))
        steps.append(Step("console", command[1], command[2], vary, span))
    return steps


def run(step: Step, folder: Path, names: dict[str, object]) -> str:
    """What a step prints. A command that fails, or code that raises, is an error."""
    if step.kind == "python":
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.chdir(folder):
            exec(compile(step.code, "<page>", "exec"), names)
        return printed.getvalue()
    tools = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", step.code],
        cwd=folder,
        env={**os.environ, **tools, **SAME_EVERYWHERE, "HF_HOME": str(folder / "no-hub")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise AssertionError(f"$ {step.code}\nexit code {done.returncode}\n{done.stderr}")
    return done.stdout


def agrees(step: Step, printed: str) -> bool:
    """Whether a step printed what its page says."""
    if step.expected is None:
        return True
    want, got = (_tidy(text, step.vary) for text in (step.expected, printed))
    return doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS)


def _tidy(text: str, vary: str) -> str:
    if vary:
        # widths follow the numbers, so runs of blanks and rules count as one
        text = re.sub(r"[ ─━═-]+", " ", NUMBERS[vary].sub("N", text))
    return "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"


def written_back(page: str, folder: Path) -> str:
    """The page with each block's output as it is now, unless it is elided with `...`."""
    names: dict[str, object] = {"__name__": "__page__"}
    pieces, at = [], 0
    for step in steps_of(page):
        printed = run(step, folder, names)
        if step.expected is not None and "..." not in step.expected:
            tidy = "\n".join(line.rstrip() for line in printed.splitlines()) + "\n"
            pieces += [page[at : step.span[0]], tidy if printed else ""]
            at = step.span[1]
    return "".join([*pieces, page[at:]])


def lines_of_a_demo(text: str) -> list[str]:
    """What every demo prints alike: its headings and the commands that it ends with."""
    # with the folder of the environment in front where that is not on the PATH
    command = r"  (?:\S*/)?((?:pvml|python) .*)"
    found = re.findall(rf"^(?:(\d+\. [^─\n]*?) ─|(Done in)|{command})", text, re.M)
    return ["".join(groups) for groups in found]


def require_same_demo(page: str, log: str) -> None:
    """Nothing, if the page's picture of the demo has the lines of the log.

    Raises: AssertionError that shows both.
    """
    shown = [body for _, options, body in FENCE.findall(page) if options.strip() == FROM_DEMO]
    for body in shown:
        told, printed = lines_of_a_demo(body), lines_of_a_demo(log)
        assert told == printed and told, f"the page says\n{told}\nthe demo printed\n{printed}"
    assert shown, "the page has no block from make demo"


if __name__ == "__main__":
    import tempfile

    if sys.argv[1] == "--demo":
        require_same_demo(Path(sys.argv[3]).read_text(), Path(sys.argv[2]).read_text())
        sys.exit()
    for given in map(Path, sys.argv[1:]):
        for path in sorted(given.rglob("*.md")) if given.is_dir() else [given]:
            with tempfile.TemporaryDirectory() as folder:
                path.write_text(written_back(path.read_text(), Path(folder)))
            print(path)
