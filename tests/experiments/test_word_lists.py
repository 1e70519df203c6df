"""Stories and lists: every list goes round, and nothing of a story is lost."""

import json
from pathlib import Path

import pytest

from pvml.errors import PvmlError

STORIES = [f"The cat saw {' '.join(chr(97 + i) * 3 for i in range(26))} and sat." for _ in range(4)]


def test_each_list_goes_round() -> None:
    """Behind each story stands a list whose words come again at one distance, all different before.

    The same seed makes the same lists.
    """
    import word_lists

    told = list(word_lists.documents(STORIES, seed=3))

    assert told[::2] == STORIES and told == list(word_lists.documents(STORIES, seed=3))
    for words in (text.split() for text in told[1::2]):
        period = words[1:].index(words[0]) + 1
        assert word_lists.SHORTEST <= period <= word_lists.LONGEST
        assert word_lists.LEAST <= len(words) <= word_lists.MOST
        assert len(set(words[:period])) == period
        assert words[period:] == words[:-period]
        assert set(words) <= set(STORIES[0].split()) - {"The", "sat."}


def test_too_few_words_are_told(tmp_path: Path) -> None:
    """A text without enough words is an error, and no file is written."""
    import word_lists

    (tmp_path / "short.jsonl").write_text(json.dumps({"text": "only four words here"}))
    args = word_lists.Args(out=tmp_path / "out.jsonl", data=str(tmp_path / "short.jsonl"))
    with pytest.raises(PvmlError, match="need 24 different words.*has 4"):
        word_lists.main(args)
    assert not args.out.exists()
