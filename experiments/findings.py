"""What held and what did not: each sentence is computed from runs, next to what the notes found.

Everything is told of runs of one kind, originals or twins. A claim is judged by held-out bits per
byte; `judging.py` says how.
"""

from statistics import fmean

from definitions import load_experiments
from judging import Finding, Gap, Runs, Verdict, against, bits_of, finding_of, gap, mean_of

FLAT = -0.005
"""Nats: a run whose loss falls by less over its last window falls no more, as the notes count."""
PAST_BEST = 0.005
"""Bits per byte: a run that ends so much above its best evaluation has got worse."""

SMALL, MEDIUM, LARGE = "d32-l4-h16-ctx128", "d128-l6-h4-ctx128", "d256-l8-h8-ctx128"
LONG_WINDOW, COSINE = "d128-l6-h4-ctx512-40k", f"{LARGE}-5k-cosine"
WIDE_HEADS = "d32-l4-h4-ctx128-20k"
FIVE = (f"{SMALL}-5k", f"{MEDIUM}-5k", f"{LARGE}-5k", f"{SMALL}-20k", f"{MEDIUM}-20k")
"""The notes' runs at n_ctx 128, whose losses they compare."""


def findings(runs: Runs) -> list[Finding]:
    """Every claim, judged by these runs; what lacks runs is open and says which."""
    return [tell(runs) for tell in _CLAIMS]


def _published(name: str, key: str) -> float:
    return load_experiments()[name].published[key]


def _loss(name: str) -> str:
    return f"{_published(name, 'loss'):.3f}"


def more_capacity(runs: Runs) -> Finding:
    """d128 against d32 at the same steps."""
    a, b = f"{MEDIUM}-5k", f"{SMALL}-5k"
    return finding_of(
        runs,
        "More capacity helps at the same steps",
        f"yes: {_loss(a)} nats per token against {_loss(b)}",
        (a, b),
        lambda runs: (gap(runs, a, b).judged, against(runs, a, b)),
    )


def size_or_steps(runs: Runs) -> Finding:
    """What d32 gains by four times the steps, against what it lacks to d128 at as many."""
    short, a, medium = f"{SMALL}-5k", f"{SMALL}-20k", f"{MEDIUM}-20k"

    def tell(runs: Runs) -> tuple[Verdict, str]:
        gained, lacking = gap(runs, a, short).by_seed, gap(runs, medium, a).by_seed
        beyond = Gap({seed: lacking[seed] - gained[seed] for seed in gained})
        return beyond.judged, f"{against(runs, a, short)} {against(runs, medium, a)}"

    return finding_of(
        runs,
        "d32 is limited more by its size than by its steps",
        f"yes: four times the steps bring {_loss(short)} down to {_loss(a)} nats per token; at as "
        f"many steps d128 reaches {_loss(medium)}",
        (short, a, medium),
        tell,
    )


def no_ceiling_yet(runs: Runs) -> Finding:
    """d128 with four times the steps against d128."""
    a, b = f"{MEDIUM}-20k", f"{MEDIUM}-5k"
    return finding_of(
        runs,
        "Four times the steps still help d128",
        f"yes: {_loss(a)} nats per token against {_loss(b)}, and falling still at the end",
        (a, b),
        lambda runs: (gap(runs, a, b).judged, against(runs, a, b)),
    )


def capacity_against_steps(runs: Runs) -> Finding:
    """d128 against d32 with four times the steps: better, and sooner."""
    a, b = f"{MEDIUM}-5k", f"{SMALL}-20k"

    def tell(runs: Runs) -> tuple[Verdict, str]:
        minutes = [
            mean_of(runs, name, lambda run: run.steps * run.step_seconds / 60) for name in (a, b)
        ]
        verdict = gap(runs, a, b).judged
        if verdict == "held" and minutes[0] >= minutes[1]:
            verdict = "did not hold"
        times = f"Its steps took {minutes[0]:.1f} minutes, those of the other {minutes[1]:.1f}."
        return verdict, f"{against(runs, a, b)} {times}"

    return finding_of(
        runs,
        "Capacity beats steps: d128 is better than d32 with four times its steps, and sooner done",
        f"yes: {_loss(a)} nats per token in {_published(a, 'minutes'):.1f} minutes against "
        f"{_loss(b)} in {_published(b, 'minutes'):.1f}",
        (a, b),
        tell,
    )


def levels_off(runs: Runs) -> Finding:
    """d256 against d128 at the same few steps."""
    a, b = f"{LARGE}-5k", f"{MEDIUM}-5k"

    def tell(runs: Runs) -> tuple[Verdict, str]:
        slopes = [mean_of(runs, name, lambda run: run.slope) for name in (a, b)]
        window = next(iter(runs[a].values())).window
        return gap(runs, b, a).judged, (
            f"{against(runs, a, b)} Over their last {window} steps their losses change by "
            f"{slopes[0]:+.3f} and {slopes[1]:+.3f} nats."
        )

    return finding_of(
        runs,
        "At few steps d256 is worse than d128",
        f"yes: {_loss(a)} nats per token against {_loss(b)}, and falling faster at its end "
        f"({_published(a, 'slope'):+.3f} against {_published(b, 'slope'):+.3f})",
        (a, b),
        tell,
    )


def schedule_helps(runs: Runs) -> Finding:
    """d256 with warm-up and cosine against d256 without."""
    a, b, medium = COSINE, f"{LARGE}-5k", f"{MEDIUM}-5k"

    def tell(runs: Runs) -> tuple[Verdict, str]:
        beside = ""
        if medium in runs:
            beside = f" Beside {medium} ({bits_of(runs, medium)}) it is {gap(runs, a, medium)}."
        return gap(runs, a, b).judged, against(runs, a, b) + beside

    return finding_of(
        runs, "Warm-up and cosine help d256", "not run, the first thing to try", (a, b), tell
    )


def overtakes(runs: Runs) -> Finding:
    """d256 against d128 with four times the steps."""
    a, b = f"{LARGE}-20k", f"{MEDIUM}-20k"
    return finding_of(
        runs,
        "With four times the steps d256 overtakes d128",
        "not run; a hypothesis from the slopes",
        (a, b),
        lambda runs: (gap(runs, a, b).judged, against(runs, a, b)),
    )


def only_the_smallest_converged(runs: Runs) -> Finding:
    """Whose loss falls no more in the last window."""
    small = f"{SMALL}-20k"

    def slope(name: str) -> float:
        return mean_of(runs, name, lambda run: run.slope)

    def tell(runs: Runs) -> tuple[Verdict, str]:
        told = ", ".join(
            f"{name} {slope(name):+.3f} in {next(iter(runs[name].values())).window} steps"
            for name in FIVE
        )
        flat = [name for name in FIVE if slope(name) > FLAT]
        verdict: Verdict = "held" if flat == [small] else "did not hold"
        return verdict, (
            f"The losses at the end change by: {told}. "
            f"Falling no more, by less than {-FLAT} nats: {', '.join(flat) or 'none'}."
        )

    slopes = ", ".join(f"{name} {_published(name, 'slope'):+.3f}" for name in FIVE)
    return finding_of(
        runs, "Of the five at n_ctx 128 only d32 with 20k steps has converged", slopes, FIVE, tell
    )


def narrow_heads(runs: Runs) -> Finding:
    """d32 with 4 heads against d32 with 16."""
    a, b, medium = WIDE_HEADS, f"{SMALL}-20k", f"{MEDIUM}-20k"

    def tell(runs: Runs) -> tuple[Verdict, str]:
        share = ""
        if medium in runs:
            all_of_it = gap(runs, medium, b).mean
            share = (
                f" That is {gap(runs, a, b).mean / all_of_it:.0%} of the {all_of_it:.3f} that lie "
                f"between {b} and {medium}."
            )
        return gap(runs, a, b).judged, against(runs, a, b) + share

    return finding_of(
        runs, "d32 is held back by heads of 2 numbers", "not run; a doubt about d32", (a, b), tell
    )


def longer_window(runs: Runs) -> Finding:
    """n_ctx 512 against 128: as a whole, and at the positions that both have."""
    a, b = LONG_WINDOW, f"{MEDIUM}-20k"

    def tell(runs: Runs) -> tuple[Verdict, str]:
        shared = min(len(next(iter(runs[name].values())).loss_by_position) for name in (a, b))
        equal = [
            mean_of(runs, name, lambda run: fmean(run.loss_by_position[:shared])) for name in (a, b)
        ]
        tokens = [mean_of(runs, name, lambda run: run.tokens) / 1e6 for name in (a, b)]
        seconds = [mean_of(runs, name, lambda run: run.step_seconds) for name in (a, b)]
        return gap(runs, a, b).judged, (
            f"{against(runs, a, b)} It read {tokens[0]:.1f} M tokens, the other "
            f"{tokens[1]:.1f} M. At positions 1 to {shared} of a row, where both know equally "
            f"much, their held-out losses are {equal[0]:.3f} and {equal[1]:.3f} nats per token. "
            f"A step took {seconds[0] / seconds[1]:.1f} times as long, for 4 times the tokens."
        )

    return finding_of(
        runs,
        "A longer window predicts the same stories better",
        f"{_loss(a)} nats per token against {_loss(b)}, on other text and after 8 times the "
        f"tokens, so the notes do not compare them",
        (a, b),
        tell,
    )


def repeated_text(runs: Runs) -> Finding:
    """Whether runs that read their text more than once still get better on other text."""
    again = {
        name: list(by_seed.values())
        for name, by_seed in runs.items()
        if next(iter(by_seed.values())).passes > 1
    }
    claim = "Reading the same text two or three times does no harm yet"
    notes = "not asked: five of the six runs read a fifth of the text at most"
    if not again:
        return Finding(
            claim=claim, notes=notes, verdict="open", found="No run has read its text twice."
        )
    worse = [
        run.name
        for each in again.values()
        for run in each
        if run.bits_per_byte > min(run.bits_by_epoch) + PAST_BEST
    ]
    told = "; ".join(
        f"{name} {fmean(run.passes for run in each):.1f} passes, "
        f"{fmean(run.held_out_loss - run.loss for run in each):+.3f}"
        for name, each in again.items()
    )
    once = [
        run.held_out_loss - run.loss
        for by_seed in runs.values()
        for run in by_seed.values()
        if run.passes <= 1
    ]
    beside = f" (in runs of less than a pass {fmean(once):+.3f} on average)" if once else ""
    past = f"Past their best: {', '.join(worse)}." if worse else "None is past its best."
    return Finding(
        claim=claim,
        notes=notes,
        verdict="did not hold" if worse else "held",
        found=f"Held-out loss less training loss at the end, in nats: {told}{beside}. {past}",
    )


def repeating_stories(runs: Runs) -> Finding:
    """Whether the longer window's stories end by themselves, or go in circles."""
    a, b = LONG_WINDOW, f"{MEDIUM}-20k"
    told = {
        name: [run.stories for run in runs.get(name, {}).values() if run.stories] for name in (a, b)
    }
    claim = (
        "With a longer window stories end by themselves, and what still breaks them is repetition"
    )
    notes = "7 of 10 stories ended, the other 3 were stuck in a repetition"
    if not all(told.values()):
        lacking = ", ".join(name for name, each in told.items() if not each)
        return Finding(
            claim=claim, notes=notes, verdict="open", found=f"No stories written yet: {lacking}."
        )
    share = {
        name: {key: fmean(each[key] for each in all_of_it) for key in ("ended", "stuck")}
        for name, all_of_it in told.items()
    }
    n = told[a][0]["stories"]
    cut = 1 - share[a]["ended"]
    holds = share[a]["ended"] > share[b]["ended"] and share[a]["stuck"] >= cut / 2
    sentence = "; ".join(
        f"{name}: {each['ended']:.0%} ended, {each['stuck']:.0%} stuck"
        for name, each in share.items()
    )
    return Finding(
        claim=claim,
        notes=notes,
        verdict="held" if holds else "did not hold",
        found=f"Of {n:.0f} stories each, {sentence}.",
    )


_CLAIMS = (
    more_capacity,
    size_or_steps,
    no_ceiling_yet,
    capacity_against_steps,
    levels_off,
    schedule_helps,
    overtakes,
    only_the_smallest_converged,
    narrow_heads,
    longer_window,
    repeated_text,
    repeating_stories,
)
