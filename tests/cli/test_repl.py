"""`pvml sample MODEL` without a prompt: a conversation through a pipe, and at a terminal."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pvml.cli import repl as repl_ends
from pvml.cli.main import main
from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir
from pvml.sampling.args import SamplingArgs
from pvml.sampling.beam_args import BeamArgs
from pvml.sampling.beams import beam_search
from pvml.sampling.sampler import Sampler
from pvml.sampling.settings import Settings

CPU = ["--device", "cpu"]
HEADER = """
runs/small
  {parameters:,} parameters, 2 layers, d_model 11
  {settings}
  a prompt generates, :help for commands, :q to quit

"""
Talk = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run runs/small in it."""
    folder = tmp_path_factory.mktemp("home")
    tokenizer = Tokenizer.train(["the cat sat on the mat"], 260)
    cfg = Config(d_model=11, n_heads=1, n_layers=2, n_ctx=7, d_vocab=tokenizer.d_vocab)
    run = RunDir.create(folder / "runs" / "small", cfg=cfg, tokenizer=tokenizer, args={})
    run.save_checkpoint(1, Transformer(cfg, seed=3), {})
    return folder


@pytest.fixture
def sampler(home: Path) -> Sampler:
    run = RunDir.open(home / "runs" / "small")
    return Sampler(run.load_model("cpu"), run.tokenizer())


@pytest.fixture
def header(sampler: Sampler) -> str:
    size = sum(x.numel() for x in sampler.model.parameters())
    return HEADER.format(parameters=size, settings="temp 0.7, top_p 0.95, 50 tokens")


@pytest.fixture
def talk(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Talk:
    """Give `pvml sample runs/small` lines as a file on standard input; exit code and output."""

    def run(lines: bytes, *flags: str) -> tuple[int, str]:
        monkeypatch.chdir(home)
        (tmp_path / "lines").write_bytes(lines)
        with open(tmp_path / "lines", encoding="utf-8") as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            code = main(["sample", "runs/small", *flags, *CPU])
        out, err = capsys.readouterr()
        assert err == ""
        return code, out

    return run


def test_a_conversation_through_a_pipe(talk: Talk, header: str, sampler: Sampler) -> None:
    """It reads as at a terminal: each line behind its prompt, what it brings about below, and 0."""
    code, out = talk(b":seed 1\nthe cat\n:greedy\r\nthe\n:topp 2\n\nthe")

    warm = SamplingArgs(temperature=0.7, top_p=0.95, seed=1)
    greedy = sampler.sample("the", SamplingArgs(temperature=0.0))
    assert code == 0
    assert out == (
        f"{header}"
        f"pvml> :seed 1\n  temp 0.7, top_p 0.95, 50 tokens, seed 1\n"
        f"pvml> the cat\n{sampler.sample('the cat', warm)}\n\n"
        f"pvml> :greedy\n  greedy, 50 tokens\n"
        f"pvml> the\n{greedy}\n\n"
        f"pvml> :topp 2\n"
        f"  :topp takes a probability from 0 to 1 (0 is no limit), got '2': it stays 0.95\n"
        f"pvml> \n"
        f"pvml> the\n{greedy}\n\n"
    )
    assert "\x1b" not in out


def test_quitting_leaves_the_rest_unread(talk: Talk, header: str) -> None:
    """Nothing behind :q is done; no line at all is a conversation, too."""
    assert talk(b":q\nthe cat\n") == (0, f"{header}pvml> :q\n")
    assert talk(b"") == (0, header)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--temperature", "1"], "temp 1, top_p 0.95, 50 tokens"),
        (["--top-k", "4"], "temp 0.7, top_k 4, 50 tokens"),
        (["--top-p", "0", "--max-new-tokens", "9"], "temp 0.7, 9 tokens"),
        (["--seed", "3", "--stop", "x"], "temp 0.7, top_p 0.95, 50 tokens, seed 3, stop 'x'"),
        (["--beams", "3", "--n-best", "2"], "3 beams, best 2, 50 tokens"),
    ],
)
def test_flags_are_what_it_begins_with(talk: Talk, flags: list[str], told: str) -> None:
    """What a flag says holds, and where none does, the REPL's own defaults."""
    code, out = talk(b":temp .5\n:reset\n", *flags)

    assert code == 0
    assert out.splitlines()[3] == f"  {told}"
    assert out.splitlines()[-1] == f"  {told}"


def test_beams_answer_with_the_best_text(talk: Talk, sampler: Sampler) -> None:
    """:beams N gives the best text; explained, the tree of the search as well."""
    args = BeamArgs(num_beams=3, max_new_tokens=4)
    best = beam_search(sampler.model, sampler.tokenizer, "the", args)[0].text
    code, out = talk(b":len 4\n:beams 3\nthe\n:explain\nthe\n")

    assert code == 0
    assert out.count(f"pvml> the\n{best}\n\n") == 2
    assert f"{best}\n\n'the': 3 beams, 4 steps, " in out


def test_a_paste_of_thousands_of_tokens(talk: Talk, sampler: Sampler) -> None:
    """A line far beyond the window is a prompt like any other."""
    paste = "the cat sat " * 1000
    assert len(sampler.tokenizer.encode(paste)) > 5000
    code, out = talk(f":greedy\n:len 3\n{paste}\n".encode())

    assert code == 0
    expected = sampler.sample(paste, SamplingArgs(temperature=0.0, max_new_tokens=3))
    assert out.endswith(f"pvml> {paste}\n{expected}\n\n")


def test_a_line_in_another_encoding_is_told(talk: Talk, header: str) -> None:
    """Bytes that are no UTF-8 are refused as a prompt, and the next line is answered."""
    code, out = talk(b"caf\xe9\n:greedy\n")

    assert code == 0
    assert "character 3 of the text is the byte 0xE9, which is not UTF-8" in out
    assert out.endswith("pvml> :greedy\n  greedy, 50 tokens\n")


def test_another_model_may_be_none(talk: Talk) -> None:
    """A MODEL that cannot be opened is told, and the one before goes on."""
    code, out = talk(b":model gtp2\n:model runs/small\n:len 2\n")

    assert code == 0
    assert "  MODEL 'gtp2' is not known: did you mean gpt2?" in out
    assert "  (the model is still runs/small)\n" in out
    assert out.endswith("  temp 0.7, top_p 0.95, 2 tokens\n")


@pytest.mark.parametrize(
    ("error", "told"),
    [(KeyboardInterrupt(), "stopped by Ctrl-C"), (MemoryError(), "does not fit into the memory")],
)
def test_what_stops_an_answer_stops_no_more(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, error: BaseException, told: str
) -> None:
    """Ctrl-C or too little memory in the middle of an answer: told, and the next line is done."""
    stream = Sampler.stream

    def cut(self: Sampler, *given: Any) -> Iterator[str]:
        yield next(stream(self, *given))
        raise error

    monkeypatch.setattr(Sampler, "stream", cut)
    code, out = talk(b":greedy\nthe\n:len 3\n")

    assert code == 0
    assert told in out
    assert out.endswith("pvml> :len 3\n  greedy, 3 tokens\n")


def test_a_mistake_of_ours_is_not_dressed_up(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that no user can cause ends the session with its traceback."""

    def broken(*given: Any) -> Iterator[str]:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Sampler, "stream", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        talk(b"the\n")


def test_ctrl_c_while_a_pipe_is_silent_ends(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nobody types and no line comes, Ctrl-C ends the command."""

    def interrupted() -> str:
        raise KeyboardInterrupt

    monkeypatch.chdir(home)
    monkeypatch.setattr(repl_ends, "_piped_line", interrupted)
    with pytest.raises(KeyboardInterrupt):
        repl_ends.converse("runs/small", Settings(), "cpu")


class Terminal:
    """A command at a pseudo-terminal."""

    def __init__(self, home: Path, *arguments: str) -> None:
        ours, theirs = pty.openpty()
        # a suite that was started in the background ignores SIGINT, and children inherit that
        code = (
            "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
            "from pvml.cli.main import main; sys.exit(main(sys.argv[1:]))"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            cwd=home,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
            start_new_session=True,
        )
        os.close(theirs)
        self.ours, self.seen = ours, ""

    def until(self, text: str, within_s: float = 60.0) -> str:
        """What has been printed since the last time, up to a text."""
        deadline = time.monotonic() + within_s
        while text not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} did not come: {self.seen!r}"
            if select.select([self.ours], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.ours, 65536).decode(errors="replace")
                except OSError:  # the other end is closed
                    break
        found, _, self.seen = self.seen.partition(text)
        return found + text

    def type(self, keys: str) -> None:
        """Press keys at the next prompt."""
        self.until("pvml>")
        os.write(self.ours, keys.encode())

    def close(self) -> int:
        code = self.process.wait(timeout=30)
        os.close(self.ours)
        return code


def test_at_a_terminal(home: Path) -> None:
    """Lines are edited and called back, Ctrl-C stops an answer only, and Ctrl-D quits with 0."""
    terminal = Terminal(home, "sample", "runs/small", *CPU)
    try:
        terminal.until("a prompt generates, :help for commands, :q to quit")
        terminal.type(":greedx\x7fy\r")  # a wrong letter, backspace, the right one
        terminal.until("  greedy, 50 tokens")
        terminal.type(":len 1000000\r")
        terminal.until("  greedy, 1,000,000 tokens")
        terminal.type("the cat\r")
        terminal.until("\x1b[?2004lthe cat")  # the line is taken, the answer begins
        time.sleep(0.3)
        terminal.process.send_signal(signal.SIGINT)
        terminal.until("stopped by Ctrl-C")
        terminal.type("\x03")  # Ctrl-C while a line is typed
        terminal.until("Ctrl-D or :q quits")
        terminal.type("\x1b[A\x1b[A\r")  # two lines back: :len 1000000
        terminal.until("  greedy, 1,000,000 tokens")
        terminal.type(":le\t")
        terminal.until("n")  # completed
        os.write(terminal.ours, b" 7\r")
        terminal.until("  greedy, 7 tokens")
        terminal.type("\x04")
        assert terminal.close() == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()
