"""Findings: each verdict follows from the runs, and says how far they go."""

from typing import Any

import pytest

SMALL, MEDIUM, LARGE = "d32-l4-h16-ctx128", "d128-l6-h4-ctx128", "d256-l8-h8-ctx128"


@pytest.fixture
def runs_of(make_outcome: Any) -> Any:
    """Runs by experiment and seed, from bits per byte seed by seed, or from other figures."""

    def make(**bits: list[float]) -> dict[str, dict[int, Any]]:
        return {
            name.replace("_", "-"): {
                seed: make_outcome(name.replace("_", "-"), seed, bits_per_byte=each)
                for seed, each in enumerate(by_seed)
            }
            for name, by_seed in bits.items()
        }

    return make


# The verdict


@pytest.mark.parametrize(
    ("gaps", "verdict", "told"),
    [
        ([0.051], "held", "0.051 better (seed 0 alone)"),
        ([0.049], "open", "0.049 better (seed 0 alone)"),
        ([-0.051], "did not hold", "0.051 worse (seed 0 alone)"),
        ([0.06, 0.04], "open", "0.050 better (seed by seed 0.060, 0.040)"),
        ([0.001, 0.002, 0.003], "held", "0.002 better (seed by seed 0.001, 0.002, 0.003)"),
        (
            [-0.001, -0.002, -0.003],
            "did not hold",
            "0.002 worse (seed by seed 0.001, 0.002, 0.003)",
        ),
        ([0.3, 0.3, -0.03], "open", "0.190 better (seed by seed 0.300, 0.300, -0.030)"),
    ],
)
def test_a_gap_is_judged_by_hand(gaps: list[float], verdict: str, told: str) -> None:
    """Three seeds must agree, fewer must differ clearly; anything else is open."""
    from judging import Gap

    gap = Gap(dict(enumerate(gaps)))

    assert (gap.judged, str(gap)) == (verdict, told)


def test_only_common_seeds_are_compared(runs_of: Any) -> None:
    """A seed that one side lacks enters neither the difference nor the figures beside it."""
    from findings import more_capacity

    runs = runs_of(**{f"{MEDIUM}-5k": [1.0, 9.0], f"{SMALL}-5k": [1.25]})
    found = more_capacity(runs).found

    assert found == (
        f"{MEDIUM}-5k reaches 1.000 bits per byte and {SMALL}-5k 1.250: 0.250 better "
        f"(seed 0 alone)."
    )


def test_without_runs_everything_is_open() -> None:
    """Each claim says which runs it lacks."""
    from findings import findings

    found = findings({})

    assert {one.verdict for one in found} == {"open"}
    assert all("Not run yet" in one.found or "No " in one.found for one in found)
    assert f"{MEDIUM}-5k, {SMALL}-20k" in next(o.found for o in found if "Capacity" in o.claim)


def test_runs_of_different_seeds_share_none(make_outcome: Any) -> None:
    """Where one side has seed 0 and the other seed 1 there is nothing to compare."""
    from findings import more_capacity

    runs = {f"{MEDIUM}-5k": {0: make_outcome("a")}, f"{SMALL}-5k": {1: make_outcome("b", 1)}}

    assert more_capacity(runs).found == "The runs share no seed."


# The claims


def test_the_notes_figures_are_in_their_sentences() -> None:
    """What the notes found is told with their own numbers."""
    from findings import findings

    told = {one.claim: one.notes for one in findings({})}

    assert told["More capacity helps at the same steps"] == (
        "yes: 2.369 nats per token against 2.996"
    )
    assert "2.369 nats per token in 17.0 minutes against 2.782 in 34.6" in " ".join(told.values())
    assert "(-0.064 against -0.036)" in told["At few steps d256 is worse than d128"]


def test_capacity_must_be_quicker_too(make_outcome: Any) -> None:
    """Better bits per byte do not count as beating steps if they took longer."""
    from findings import capacity_against_steps

    a, b = f"{MEDIUM}-5k", f"{SMALL}-20k"
    slow, fast = (make_outcome(a, bits_per_byte=1.0, step_seconds=s) for s in (4.0, 0.5))
    other = make_outcome(b, bits_per_byte=1.5, steps=2000, step_seconds=0.5)

    assert capacity_against_steps({a: {0: fast}, b: {0: other}}).verdict == "held"
    finding = capacity_against_steps({a: {0: slow}, b: {0: other}})
    assert finding.verdict == "did not hold"
    assert "took 33.3 minutes, those of the other 16.7" in finding.found


@pytest.mark.parametrize(("medium", "verdict"), [(1.0, "held"), (1.29, "did not hold")])
def test_size_against_steps(runs_of: Any, medium: float, verdict: str) -> None:
    """d32 gains 0.2 by its steps; it lacks 0.3 to d128, or only 0.01."""
    from findings import size_or_steps

    runs = runs_of(**{f"{SMALL}-5k": [1.5], f"{SMALL}-20k": [1.3], f"{MEDIUM}-20k": [medium]})

    assert size_or_steps(runs).verdict == verdict


def test_converged_is_who_falls_no_more(make_outcome: Any) -> None:
    """The slopes of the notes themselves give the notes' answer; a flat d128 changes it."""
    from definitions import load_experiments
    from findings import FIVE, only_the_smallest_converged

    published = {name: load_experiments()[name].published["slope"] for name in FIVE}
    runs = {name: {0: make_outcome(name, slope=slope)} for name, slope in published.items()}
    found = only_the_smallest_converged(runs)
    assert found.verdict == "held"
    assert found.found.endswith(f"by less than 0.005 nats: {SMALL}-20k.")

    runs[f"{MEDIUM}-20k"] = {0: make_outcome("a", slope=-0.001)}
    assert only_the_smallest_converged(runs).verdict == "did not hold"


def test_narrow_heads_are_a_share_of_the_gap(runs_of: Any) -> None:
    """0.1 of the 0.4 between d32 and d128 goes to the heads."""
    from findings import narrow_heads

    runs = runs_of(**{"d32-l4-h4-ctx128-20k": [1.3], f"{SMALL}-20k": [1.4], f"{MEDIUM}-20k": [1.0]})
    finding = narrow_heads(runs)

    assert finding.verdict == "held" and "That is 25% of the 0.400" in finding.found


def test_windows_are_compared_at_the_same_positions(make_outcome: Any) -> None:
    """Of the longer window's losses only those at positions that both have are averaged."""
    from findings import longer_window

    a, b = "d128-l6-h4-ctx512-40k", f"{MEDIUM}-20k"
    positions = (4.0, 3.0, 2.5, 0.0, 0.0)
    long = make_outcome(a, bits_per_byte=0.9, loss_by_position=positions, step_seconds=1.25)
    finding = longer_window({a: {0: long}, b: {0: make_outcome(b)}})

    assert finding.verdict == "held"
    assert "At positions 1 to 3" in finding.found
    assert "are 3.167 and 3.000 nats" in finding.found
    assert "took 5.0 times as long" in finding.found


def test_a_run_past_its_best_is_named(make_outcome: Any) -> None:
    """Repeated text does harm where a run ends above its best evaluation."""
    from findings import repeated_text

    good = make_outcome("a", passes=2.5, bits_by_epoch=(1.2, 0.996, 1.0))
    bad = make_outcome("b", passes=2.5, bits_by_epoch=(1.2, 0.99, 1.0), held_out_loss=3.5)
    once = make_outcome("c")

    assert repeated_text({"a": {0: good}, "c": {0: once}}).verdict == "held"
    finding = repeated_text({"a": {0: good}, "b": {0: bad}, "c": {0: once}})
    assert finding.verdict == "did not hold" and "Past their best: twin-b-seed0." in finding.found
    assert "b 2.5 passes, +0.500 (in runs of less than a pass +0.125 on average)" in finding.found
    assert repeated_text({"c": {0: once}}).verdict == "open"


@pytest.mark.parametrize(
    ("ended", "stuck", "verdict"),
    [(0.7, 0.3, "held"), (0.7, 0.1, "did not hold"), (0.1, 0.9, "did not hold")],
)
def test_stories_that_go_in_circles(
    make_outcome: Any, ended: float, stuck: float, verdict: str
) -> None:
    """Held: more end than with the short window, and half of the others at least are stuck."""
    from findings import repeating_stories

    a, b = "d128-l6-h4-ctx512-40k", f"{MEDIUM}-20k"
    long = make_outcome(a, stories={"stories": 20, "ended": ended, "stuck": stuck})
    short = make_outcome(b, stories={"stories": 20, "ended": 0.5, "stuck": 0.4})
    finding = repeating_stories({a: {0: long}, b: {0: short}})

    assert finding.verdict == verdict
    assert f"{a}: {ended:.0%} ended, {stuck:.0%} stuck" in finding.found
    without = repeating_stories({a: {0: make_outcome(a)}, b: {0: short}})
    assert without.found == f"No stories written yet: {a}."
