"""`pvml circuits MODEL skips`: skip-trigrams, and what a text says to them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pvml.cli.circuits_output import print_json, progress, say, told, waiting
from pvml.cli.circuits_subject import HeadWords, RowsFlags, Subject, Tokens, written
from pvml.errors import PvmlError

if TYPE_CHECKING:
    from pvml.circuits.skips.bugs import SkipBug
    from pvml.circuits.skips.evidence import CorpusEvidence
    from pvml.circuits.skips.losses import OccurrenceLoss
    from pvml.circuits.skips.reading import Competition
    from pvml.circuits.skips.trigrams import SkipTrigram

_ABOVE = (
    "note   heads above layer 0 are read as if no layer below had written to the stream. What they "
    "read there is left out: the attention and effects below are not those of an induction head at "
    "work, nor of any other that lives on what lower heads write."
)
_PER_SOURCE = 20
"""Skip-trigrams of each source that bugs are looked for between."""


@dataclass(frozen=True, kw_only=True)
class SkipsFlags(RowsFlags):
    """Show what heads promote most: [source] ... [destination] -> [output], read off the weights.

    With `--data`, which should be held-out text: whether the text does so, what the loss is there
    without the head, and what the head cannot help but promote as well (the paper's "bugs").
    """

    data: str | None = None
    """The text: a file or folder, storybook:N, tinystories:validation (from the hub), ... Unset:
    none, the weights alone."""
    limit: int | None = 2000
    """Read at most so many documents of --data."""
    head: HeadWords = ()
    """Only these heads: layer.head, such as 0.3. Unset: all."""
    top: int = 10
    """How many of each head."""
    per_source: int = 1
    """How many of each head and source, at most."""
    source: Tokens = ()
    """Only these tokens as sources, such as ' cat' ' dog'."""
    destination: Tokens = ()
    """Only these tokens as destinations."""
    output: Tokens = ()
    """Only these tokens as outputs."""


def skips(word: str, flags: SkipsFlags) -> int:
    """Print the strongest skip-trigrams; the exit code."""
    from pvml.circuits.skips.reading import Competition
    from pvml.circuits.skips.trigrams import find_skip_trigrams
    from pvml.circuits.weights.maps import bigram
    from pvml.circuits.weights.scales import what_is_left_out

    for flag, number in (("--top", flags.top), ("--per-source", flags.per_source)):
        if number < 1:
            raise PvmlError(f"{flag} must be at least 1, got {number}")
    subject = Subject(word, flags.device)
    subject.require_layers("skip-trigrams")
    heads = subject.heads(flags.head) or None
    sources = subject.tokens_of(flags.source, "--source") or None
    destinations = subject.tokens_of(flags.destination, "--destination") or None
    outputs = subject.tokens_of(flags.output, "--output") or None
    rows = subject.rows(flags) if flags.data is not None else None
    cfg = subject.model.cfg
    if rows is None:
        bos = subject.tokenizer.bos_token_id
        competition = Competition(n_others=max(1, cfg.n_ctx // 2), always=(bos,))
    else:
        competition = Competition.of_text(rows.tokens, cfg.d_vocab)
    with progress() as tell:
        mined = find_skip_trigrams(
            subject.model,
            heads,
            top=flags.top,
            per_source=flags.per_source,
            sources=sources,
            destinations=destinations,
            outputs=outputs,
            competition=competition,
            tokenizer=subject.tokenizer,
            tell=tell,
        )
    evidence, losses, bugs = None, None, None
    if rows is not None:
        from pvml.circuits.skips.evidence import find_evidence
        from pvml.circuits.skips.losses import loss_on_occurrences

        eos = subject.tokenizer.eos_token_id
        with waiting("reading the text"):
            evidence = find_evidence(mined.found, rows.tokens, document_end=eos)
            losses = loss_on_occurrences(subject.model, mined.found, rows.tokens, document_end=eos)
            bugs = _bugs(subject, mined.found, rows.tokens, competition, flags.top)
    # ln_final's 1/std is what a skip-trigram leaves out, and all that the direct path does
    final = bigram(subject.model)
    scale = subject.typical_scale(final)
    if flags.json:
        found = {
            **subject.told("skips"),
            "text": None if rows is None else rows.told(),
            "competition": mined.competition,
            "holds": list(mined.holds),
            "typical_scale": None if scale is None else asdict(scale),
            "skip_trigrams": [
                {
                    **_trigram_json(trigram),
                    "evidence": None if evidence is None else _evidence_json(evidence[i]),
                    "ablation": None if losses is None else _loss_json(losses[i]),
                }
                for i, trigram in enumerate(mined.found)
            ],
            "bugs": None if bugs is None else [_bug_json(bug) for bug in bugs],
        }
        print_json(found)
        return 0
    say(subject.title)
    if rows is not None:
        say(told(str(rows)))
    if any(layer > 0 for layer, _ in (trigram.head for trigram in mined.found)):
        say(told(_ABOVE))
    say()
    for i, trigram in enumerate(mined.found):
        say(told(str(trigram)))
        if evidence is not None and losses is not None:
            say(told(_beside(evidence[i]), 4))
            say(told(_beside(losses[i]), 4))
    if not mined.found:
        say("no head promotes any skip-trigram of these tokens")
    if bugs is not None:
        say("\nwhat these heads promote besides, and the text does not have:")
        say(told("\n".join(map(str, bugs)) or "nothing that was found", 2))
    say()
    say(told(f"Competition: {mined.competition}."))
    say(told(f"Holds: {'; '.join(mined.holds)}."))
    if left_out := what_is_left_out(final, scale):
        say(told(left_out))
    if rows is None:
        say("Whether a text does so: --data CORPUS.")
    other = "with --data tokens are drawn as the text has them"
    if rows is not None:
        other = "without --data tokens are drawn evenly"
    say(told(f"Another competition gives other effects and another order: {other}."))
    return 0


def _bugs(
    subject: Subject,
    found: "Sequence[SkipTrigram]",
    tokens: Any,
    competition: "Competition",
    top: int,
) -> "list[SkipBug]":
    """Between the strongest of the same sources, mined deeper than they are told."""
    from pvml.circuits.skips.bugs import find_skip_bugs
    from pvml.circuits.skips.trigrams import find_skip_trigrams

    deeper: list[SkipTrigram] = []
    for head in dict.fromkeys(trigram.head for trigram in found):
        sources = sorted({trigram.source for trigram in found if trigram.head == head})
        deeper += find_skip_trigrams(
            subject.model,
            [head],
            top=_PER_SOURCE * len(sources),
            per_source=_PER_SOURCE,
            sources=sources,
            competition=competition,
            tokenizer=subject.tokenizer,
        ).found
    return find_skip_bugs(deeper, tokens, top=top, document_end=subject.tokenizer.eos_token_id)


def _beside(found: "CorpusEvidence | OccurrenceLoss") -> str:
    """A finding without the name that stands above it, and whether it is beyond chance."""
    short = str(found).removeprefix(found.trigram.name).lstrip(": ")
    return short if found.beyond or found.untested else f"{short}: not beyond chance"


def _trigram_json(trigram: "SkipTrigram") -> dict[str, Any]:
    source, destination, output = trigram.texts or ("", "", "")
    return {
        "head": written(trigram.head),
        "source": source,
        "destination": destination,
        "output": output,
        "ids": [trigram.source, trigram.destination, trigram.output],
        "effect": trigram.effect,
        "attention": trigram.attention,
        "logit": trigram.logit,
        "unit": trigram.unit,
    }


def _evidence_json(evidence: "CorpusEvidence") -> dict[str, Any]:
    told = asdict(evidence)
    del told["trigram"]
    return {
        **told,
        "lift": evidence.lift,
        "most": evidence.most,
        "tested": not evidence.untested,
        "beyond": evidence.beyond,
    }


def _loss_json(loss: "OccurrenceLoss") -> dict[str, Any]:
    told = asdict(loss)
    del told["trigram"]
    return {**told, "tested": not loss.untested, "beyond": loss.beyond}


def _bug_json(bug: "SkipBug") -> dict[str, Any]:
    return {
        **_trigram_json(bug.trigram),
        "evidence": _evidence_json(bug.evidence),
        "forced_by": [_trigram_json(parent.trigram) for parent in bug.parents],
        "sure": bug.sure,
    }
