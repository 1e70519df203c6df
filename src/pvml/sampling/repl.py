"""A conversation with a model: lines in, text out. A line that begins with `:` changes a setting.

It needs no terminal and no torch: the model is a `Voice`, and who reads the lines and shows the
text is the caller's business (`pvml.cli.repl`).
"""

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pvml.errors import PvmlError
from pvml.sampling.args import SamplingArgs, allowed
from pvml.sampling.beam_args import MOST_BEAMS
from pvml.sampling.settings import Settings, number

PROMPT = "pvml> "
START = Settings(sampling=SamplingArgs(temperature=0.7, top_p=0.95, max_new_tokens=50))
HINT = "a prompt generates, :help for commands, :q to quit"

COMMANDS = {
    "temp": ("X", "divide the logits by X: below 1 bolder, above 1 wilder, 0 is greedy"),
    "greedy": ("", "always the likeliest token; :temp X draws again"),
    "topk": ("K", "draw from the K likeliest tokens only"),
    "topp": ("P", "draw from the fewest tokens whose probabilities reach P"),
    "minp": ("P", "draw from tokens at least P times as likely as the likeliest"),
    "len": ("N", "write at most N tokens"),
    "seed": ("S", "the same seed and prompt give the same text; off: a new one every time"),
    "penalty": ("X", "take X off a logit for each time that the text has the token"),
    "beams": ("N", "search for the likeliest text with N beams; 0 draws again"),
    "stop": (
        "TEXT",
        "end before TEXT, too: \\n is a line's end, 'quotes' keep blanks; alone: none",
    ),
    "explain": ("", "say of each token how it was chosen, or draw the beams' tree; again: off"),
    "model": ("MODEL", "go on with another model"),
    "reset": ("", "the settings as they were at first"),
    "help": ("", "this list"),
    "q": ("", "quit"),
}
"""Each command's argument, and what it does."""

_MORE_HELP = (
    ":penalty takes the name of another one, too: `repetition X` divides such logits, `ngram N`",
    "lets no N tokens come twice. off turns a limit or a penalty off. A command without its value",
    "tells what is allowed. Any other line is a prompt, also one that begins with a blank.",
)

_FIELDS: dict[str, tuple[str, type[int] | type[float]]] = {
    "temp": ("temperature", float),
    "topk": ("top_k", int),
    "topp": ("top_p", float),
    "minp": ("min_p", float),
    "len": ("max_new_tokens", int),
    "seed": ("seed", int),
    "penalty": ("frequency_penalty", float),
    "penalty frequency": ("frequency_penalty", float),
    "penalty repetition": ("repetition_penalty", float),
    "penalty ngram": ("no_repeat_ngram_size", int),
}
"""Commands that set a number: of which field of SamplingArgs, and of which kind."""
_LIMITS = ("top_k", "top_p", "min_p")
_NEVER_OFF = ("temperature", "max_new_tokens")
_LONGEST_SHOWN = 40
_QUITTING = ("q", "quit", "exit")


@dataclass(frozen=True)
class Voice:
    """A model that can be talked to."""

    name: str
    about: str
    """Its size, in a line."""
    write: Callable[[str, Settings], Iterator[str]]
    """A prompt and what follows it, in pieces as they come."""


class Repl:
    """What a session knows: the settings in force, and the model that answers.

    open_voice: from the word MODEL to a model; it raises PvmlError for a word that is none.

    Raises: PvmlError for a first model that cannot be opened.
    """

    def __init__(
        self, open_voice: Callable[[str], Voice], model: str, start: Settings = START
    ) -> None:
        self.settings = self._start = start
        self.ended = False
        """Whether `:q` was said."""
        self._open, self._voice = open_voice, open_voice(model)

    def greeting(self) -> str:
        """What is said first: the model, the settings, and how to go on."""
        return f"\n{self._introduction()}  {HINT}\n\n"

    def answer(self, line: str) -> Iterator[str]:
        """What a line brings about, in pieces as they come; a line that is wrong is told so."""
        if not line.strip():
            return
        if line.startswith(":"):
            word, _, value = line[1:].strip().partition(" ")
            yield "".join(f"  {told}\n" for told in self._command(word.lower(), value.strip()))
            return
        last = "\n"
        try:
            for last in self._voice.write(line, self.settings):
                yield last
        except PvmlError as error:
            yield "\n" * (not last.endswith("\n")) + f"  {error}\n"
        yield "\n"

    def _introduction(self) -> str:
        return f"{self._voice.name}\n  {self._voice.about}\n  {self.settings.told()}\n"

    def _command(self, word: str, value: str) -> list[str]:
        """Do what a command says, and tell it in lines."""
        if word in _QUITTING and not value:
            self.ended = True
            return []
        if word not in COMMANDS:
            return [_unknown(word)]
        if value and not COMMANDS[word][0] and word != "explain":
            return [f":{word} takes no value, got {value!r}"]
        if word in _FIELDS:
            return self._number(word, value)
        act: dict[str, Callable[[str], list[str]]] = {
            "greedy": lambda _: self._sampling(temperature=0.0),
            "beams": self._beams,
            "stop": self._stop,
            "explain": self._explain,
            "model": self._model,
            "reset": lambda _: self._change(self._start),
            "help": lambda _: help_lines(),
        }
        return act[word](value)

    def _number(self, word: str, value: str) -> list[str]:
        """Set a field of SamplingArgs, and take back whatever it excludes."""
        first, _, rest = value.partition(" ")
        if f"{word} {first.lower()}" in _FIELDS:
            word, value = f"{word} {first.lower()}", rest.strip()
        name, kind = _FIELDS[word]
        now = getattr(self.settings.sampling, name)
        off = value.lower() == "off" and name not in _NEVER_OFF
        try:
            new = getattr(SamplingArgs, name) if off else kind(value)
            cleared = self._rivals(name) if new else {}
            changes = {rival: getattr(SamplingArgs, rival) for rival in cleared} | {name: new}
            told = self._sampling(**changes)
        except (ValueError, PvmlError):
            expected = allowed(name).replace("or None for", "or off for")
            if word == "penalty":
                expected += ", or one of frequency X, repetition X, ngram N"
            shown = "off" if now is None else number(now)
            return [self._refusal(word, value, expected, shown)]
        note = "is cleared: one of top_k, top_p and min_p can be in force"
        return told + [f"({rival} {number(was)} {note})" for rival, was in cleared.items()]

    def _rivals(self, name: str) -> dict[str, float | int]:
        """What is in force of that which a field excludes."""
        rivals = [rival for rival in _LIMITS if name in _LIMITS and rival != name]
        values = {rival: getattr(self.settings.sampling, rival) for rival in rivals}
        return {rival: value for rival, value in values.items() if value}

    def _sampling(self, **changes: Any) -> list[str]:
        """Change fields of SamplingArgs, and say so if that does nothing for now."""
        settings = replace(self.settings, sampling=replace(self.settings.sampling, **changes))
        notes = []
        if settings.beams and {"temperature", *_LIMITS} & {*changes}:
            settings = settings.with_beams(0)
            notes = ["(beams are off)"]
        elif settings.beams and {*changes} & {*settings.idle_in_a_search()}:
            notes = ["(a beam search has no use for it; :beams 0 draws again)"]
        idle = {"seed", *_LIMITS} & {*changes} and settings.sampling.temperature == 0
        if idle and not settings.beams:
            notes += ["(greedy has no use for it; :temp X draws again)"]
        return self._change(settings) + notes

    def _change(self, settings: Settings) -> list[str]:
        self.settings = settings
        return [settings.told()]

    def _beams(self, value: str) -> list[str]:
        try:
            beams = 0 if value.lower() == "off" else int(value)
            return self._change(self.settings.with_beams(beams))
        except (ValueError, PvmlError):
            expected = f"a whole number from 0 to {MOST_BEAMS} (0 draws)"
            return [self._refusal("beams", value, expected, str(self.settings.beams))]

    def _stop(self, value: str) -> list[str]:
        if not value:
            return self._sampling(stop=())
        if len(value) > 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        text = value.replace(r"\n", "\n").replace(r"\t", "\t")
        stop = tuple(dict.fromkeys([*self.settings.sampling.stop, text]))
        try:
            return self._sampling(stop=stop)
        except PvmlError:
            return [f":stop takes {allowed('stop')}, got {text!a}: it stays as it was"]

    def _explain(self, value: str) -> list[str]:
        if value.lower() not in ("", "on", "off"):
            return [f":explain takes on, off or nothing, got {value!r}"]
        explain = value.lower() == "on" if value else not self.settings.explain
        return self._change(replace(self.settings, explain=explain))

    def _model(self, value: str) -> list[str]:
        if value:
            try:
                self._voice = self._open(value)
            except PvmlError as error:
                return [f"{error}", f"(the model is still {self._voice.name})"]
        return self._introduction().rstrip("\n").split("\n  ")

    @staticmethod
    def _refusal(word: str, value: str, expected: str, now: str) -> str:
        shown = value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}..."
        got = f"got {shown!r}" if value else "got nothing"
        return f":{word} takes {expected}, {got}: it stays {now}"


def help_lines() -> list[str]:
    """What `:help` prints."""
    return [
        *(f"{f':{name} {sign}':<15}{about}" for name, (sign, about) in COMMANDS.items()),
        *_MORE_HELP,
    ]


def _unknown(word: str) -> str:
    close = difflib.get_close_matches(word, COMMANDS, n=1, cutoff=0.5)
    begun = [name for name in COMMANDS if word and name.startswith(word)]
    meant = (begun or close)[:1]
    hint = f"did you mean :{meant[0]}?" if meant else "there are"
    every = "" if meant else " " + " ".join(f":{name}" for name in COMMANDS)
    return f"there is no command :{word}; {hint}{every}"
