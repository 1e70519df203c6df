"""`pvml`: which commands there are, what help costs, and how each way of ending is told."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

import pvml
from pvml.cli.main import COMMANDS, main
from pvml.errors import CheckFailed, HubUnavailable, PvmlError
from pvml.training.interrupt import TrainingStopped

Ends = Callable[[], Any]


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, **options
    )


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Callable[[Ends], int]:
    """The exit code of a command that ends in a given way."""

    def run(act: Ends) -> int:
        module = ModuleType("pvml_ending")
        module.main = lambda arguments: act()  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "pvml_ending", module)
        monkeypatch.setitem(COMMANDS, "act", ("pvml_ending", "ends in a given way"))
        return main(["act"])

    return run


def raising(error: BaseException) -> Ends:
    def act() -> None:
        raise error

    return act


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """--help gives a line for each command, on stdout, and 0."""
    assert main(["--help"]) == 0

    out, err = capsys.readouterr()
    listed = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert listed[: len(COMMANDS)] == list(COMMANDS)
    listed_here = (
        "demo train sample compare trace verify import models data runs evaluate plot patch "
        "attribute lens circuits export profile"
    )
    assert " ".join(COMMANDS) == listed_here
    assert err == ""


def test_no_command_is_bad_use(capsys: pytest.CaptureFixture[str]) -> None:
    """`pvml` alone shows the help where errors go, and 2."""
    assert main([]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: pvml COMMAND")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [("trian", "did you mean train?"), ("smaple", "did you mean sample?"), ("xyz", "demo, train")],
)
def test_an_unknown_command_is_bad_use(
    capsys: pytest.CaptureFixture[str], typed: str, hint: str
) -> None:
    """A misspelt command suggests the nearest; one like none is told what there is."""
    assert main([typed]) == 2

    assert f"pvml: there is no command '{typed}': " in (err := capsys.readouterr().err)
    assert hint in err


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version_is_told(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    """-V prints name and version."""
    assert main([flag]) == 0
    assert capsys.readouterr().out == f"pvml {pvml.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_file_and_help(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Each command's --help ends with 0, names the command and hides what is for programmers."""
    assert main([command, "--help"]) == 0

    out = capsys.readouterr().out
    assert out.startswith(f"usage: pvml {command} ")
    assert "Raises:" not in out
    assert callable(import_module(COMMANDS[command][0]).main)


@pytest.mark.parametrize(
    "command",
    [
        ["demo"],
        ["train"],
        ["sample", "gpt2"],
        ["trace", "gpt2", "text"],
        ["data"],
        ["plot"],
        ["profile"],
    ],
)
def test_a_misspelt_flag_is_bad_use(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    """A flag that does not exist is named on stderr, and 2; nothing is loaded first."""
    assert main([*command, "--no-such-flag"]) == 2
    assert "--no-such-flag" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (CheckFailed("13 of 14 tensors agree"), 1, "pvml: 13 of 14 tensors agree\n"),
        (PvmlError("n_ctx must be 2"), 2, "pvml: n_ctx must be 2\n"),
        (HubUnavailable("no hub"), 2, "pvml: no hub\n"),
        (PermissionError(13, "Permission denied", "/x/y"), 2, "pvml: /x/y: Permission denied\n"),
        (OSError("disk on fire"), 2, "pvml: disk on fire\n"),
        (PvmlError("no \x1b[31mred\x07 é\ntensor"), 2, "pvml: no \\x1b[31mred\\x07 é\ntensor\n"),
        (KeyboardInterrupt(), 130, "pvml: stopped by Ctrl-C\n"),
        (TrainingStopped("saved at step 7"), 130, "pvml: saved at step 7\n"),
    ],
)
def test_every_failure_is_one_message(
    capsys: pytest.CaptureFixture[str],
    ending: Callable[[Ends], int],
    error: BaseException,
    code: int,
    message: str,
) -> None:
    """What a user can cause is told in one line on stderr, without a traceback, by exit code."""
    assert ending(raising(error)) == code

    out, err = capsys.readouterr()
    assert (out, err) == ("", message)


def test_our_own_mistakes_keep_their_traceback(ending: Callable[[Ends], int]) -> None:
    """An error that no user can cause is not dressed up as one."""
    with pytest.raises(ZeroDivisionError):
        ending(lambda: 1 // 0)


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 1), (2, 2), (None, 0)])
def test_a_commands_exit_is_returned(
    ending: Callable[[Ends], int], code: int | None, expected: int
) -> None:
    """main returns the command's code, also where the command exits by itself."""
    assert ending(raising(SystemExit(code))) == expected
    assert ending(lambda: expected) == expected


def test_python_m_pvml_is_pvml() -> None:
    """`python -m pvml` speaks and ends like `pvml`."""
    good, bad = python("-m", "pvml", "--version"), python("-m", "pvml", "trian")

    assert (good.returncode, good.stdout) == (0, f"pvml {pvml.__version__}\n")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "pvml: there is no command 'trian': did you mean train?\n"


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_loads_little(arguments: list[str]) -> None:
    """Help imports nothing heavy, and few modules in all: that is what makes it answer at once."""
    heavy = ["torch", "numpy", "matplotlib", "tokenizers", "transformers", "datasets", "einops"]
    code = (
        "import sys; from pvml.cli.main import main; code = main(sys.argv[1:]);"
        f"print(code, set({heavy}) & set(sys.modules), len(sys.modules))"
    )
    done = python("-c", code, *arguments)
    told, _, n_modules = done.stdout.splitlines()[-1].rpartition(" ")

    assert told == "0 set()"
    assert int(n_modules) < 450  # with rich and tyro some 380; torch alone would bring 1,100


def test_a_closed_pipe_is_silent() -> None:
    """`pvml ... | head -0`: no traceback, and the code of a program that a closed pipe ended."""
    code = (
        "import sys, time; from pvml.cli import main as m; import types;"
        "f = types.ModuleType('f'); f.main = lambda a: [print('x' * 9999) for _ in range(99)];"
        "sys.modules['f'] = f; m.COMMANDS['f'] = ('f', ''); sys.exit(m.main(['f']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stderr
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()

    assert (process.wait(timeout=30), err) == (141, "")


def test_ctrl_c_has_no_traceback() -> None:
    """Ctrl-C in the middle of a command ends it with 130 and one line."""
    code = (
        # a suite that was started in the background ignores SIGINT, and children inherit that
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "import sys, time, types; from pvml.cli import main as m;"
        "f = types.ModuleType('f'); f.main = lambda a: (print('on', flush=True), time.sleep(60));"
        "sys.modules['f'] = f; m.COMMANDS['f'] = ('f', ''); sys.exit(m.main(['f']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "on\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        err = process.stderr.read()

    assert (process.returncode, err) == (130, "pvml: stopped by Ctrl-C\n")


def test_a_character_that_the_terminal_lacks_is_escaped() -> None:
    """A story with an accent is printed even where the terminal knows ASCII only."""
    code = (
        "import sys, types; from pvml.cli import main as m; f = types.ModuleType('f');"
        "f.main = lambda a: print('caf\\u00e9') or 0;"
        "sys.modules['f'] = f; m.COMMANDS['f'] = ('f', ''); sys.exit(m.main(['f']))"
    )
    done = python("-c", code, env={"PYTHONIOENCODING": "ascii"})

    assert (done.returncode, done.stdout, done.stderr) == (0, "caf\\xe9\n", "")


@pytest.mark.parametrize("columns", ["1", "5", "7"])
def test_help_ends_in_the_narrowest_terminal(columns: str) -> None:
    """However narrow the terminal, help is printed and ends."""
    done = subprocess.run(
        [sys.executable, "-m", "pvml", "sample", "--help"],
        env={**os.environ, "COLUMNS": columns},
        capture_output=True,
        text=True,
        timeout=10,
    )

    assert (done.returncode, done.stdout[:11]) == (0, "usage: pvml")


@pytest.mark.parametrize("closing", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_is_no_failure(closing: str) -> None:
    """Without a place for output, or for errors, the command still ends as it would."""
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -m pvml --version {closing}'],
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_a_pipe_closed_on_the_progress_bar_is_a_closed_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bar's library ends the program with 1, which would say that a check failed."""

    def lost(arguments: list[str]) -> int:
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            raise SystemExit(1)  # noqa: B904  # as rich does

    monkeypatch.setattr(import_module("pvml.cli.plot"), "main", lost)
    with open(os.devnull, "w") as nowhere:
        monkeypatch.setattr(sys, "stdout", nowhere)

        assert main(["plot"]) == 141
