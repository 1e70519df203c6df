"""Reading files: every kind gives the same documents, every fault names file and line."""

import gzip
import json
import lzma
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from pvml.data.files import Tally, read_documents
from pvml.errors import PvmlError

DOCUMENTS = ["One day, a cat.\n\nIt sat.", "Zoë said “hi” 🙂", "The end."]
MARKER = "<|endoftext|>"
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


def read(path: Path, tally: Tally | None = None) -> list[str]:
    return list(read_documents(path, tally or Tally()))


def jsonl(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text, "id": 7}) + "\n" for text in texts).encode()


# By hand


@pytest.mark.parametrize("suffix", PACKERS)
def test_each_compression_gives_the_same_documents(suffix: str, tmp_path: Path) -> None:
    """.txt and .jsonl read the same plain, gzipped, as xz and as zstandard, in either case."""
    text = f"\n{MARKER}\n".join(DOCUMENTS).encode()
    (tmp_path / f"a.txt{suffix}").write_bytes(PACKERS[suffix](text))
    (tmp_path / f"b.JSONL{suffix}").write_bytes(PACKERS[suffix](jsonl(DOCUMENTS)))

    assert read(tmp_path / f"a.txt{suffix}") == DOCUMENTS
    assert read(tmp_path / f"b.JSONL{suffix}") == DOCUMENTS


@pytest.mark.parametrize(
    "text",
    [
        "one\n<|endoftext|>\ntwo\n<|endoftext|>\n",
        "one<|endoftext|>two<|endoftext|>",
        "one\r\n<|endoftext|>\r\ntwo",
        "\ufeffone\n<|endoftext|>two\n",
    ],
)
def test_a_text_file_is_cut_at_its_marks(text: str, tmp_path: Path) -> None:
    """The mark ends a document on its own line or inline; line ends and a BOM do not matter."""
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    tally = Tally()

    assert read(path, tally) == ["one", "two"]
    assert tally.notes() == []


def test_a_text_without_marks_is_cut_at_blank_lines(tmp_path: Path) -> None:
    """A long text without marks becomes documents of about 2,000 characters, and a note says so."""
    paragraph = "word " * 83
    (tmp_path / "a.txt").write_text("\n\n".join([paragraph] * 23))
    tally = Tally()
    documents = read(tmp_path / "a.txt", tally)

    assert len(documents) == 5
    assert [document.count("word") for document in documents] == [5 * 83] * 4 + [3 * 83]
    assert tally.notes() == [
        "Text without <|endoftext|> between its documents (files: 1) was cut at blank lines or "
        "line ends into 5 documents of about 2,000 characters. To keep documents whole, put "
        '<|endoftext|> between them, or give .jsonl, a line {"text": ...} for each.'
    ]


def test_what_the_note_says_keeps_documents_whole(tmp_path: Path) -> None:
    """Stories that were joined to pieces are told apart once its advice is taken, either way."""
    stories = [f"Story {n}. " + "It rained. " * 30 for n in range(23)]
    for name, text in (
        ("joined.txt", "\n\n".join(stories)),
        ("marked.txt", "<|endoftext|>".join(stories)),
        ("lines.jsonl", "\n".join(json.dumps({"text": story}) for story in stories)),
    ):
        (tmp_path / name).write_text(text)
    joined, marked, lines = (
        read(tmp_path / name, Tally()) for name in ("joined.txt", "marked.txt", "lines.jsonl")
    )

    assert len(joined) < 23 and marked == lines == stories


def test_a_folder_is_read_in_sorted_order(tmp_path: Path) -> None:
    """A folder gives its files' documents by path, at any depth; other files are counted."""
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "b" / "1.txt").write_text("second")
    (tmp_path / "a.jsonl").write_bytes(jsonl(["first"]))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"third"))
    for other in ("readme.md", ".hidden/x.txt", "table.csv"):
        (tmp_path / other).write_text("no")
    tally = Tally()

    assert read(tmp_path, tally) == ["first", "second", "third"]
    assert tally.notes() == ["Files of other kinds passed over: 3."]


def test_empty_documents_are_counted(tmp_path: Path) -> None:
    """Documents without a printable character are skipped and counted."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl(["", "one", " \n"]) + b"\n\n")
    tally = Tally()

    assert read(path, tally) == ["one"]
    assert tally.notes() == ["Empty documents skipped: 2."]


def test_parquet(tmp_path: Path) -> None:
    """A parquet file gives its column "text"."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"id": [3, 5, 7], "text": DOCUMENTS}), path)

    assert read(path) == DOCUMENTS


# Laws


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_joined_archives_are_read_to_the_end(suffix: str, tmp_path: Path) -> None:
    """Two archives one after the other, as parallel compressors write them, read as one."""
    pack = PACKERS[suffix]
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(pack(jsonl(DOCUMENTS)) + pack(jsonl(DOCUMENTS[:2])))

    assert read(path) == DOCUMENTS + DOCUMENTS[:2]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.99])
def test_a_truncated_archive_is_never_read_as_whole(
    suffix: str, share: float, tmp_path: Path
) -> None:
    """Wherever an archive is cut, reading it is an error that names the file."""
    whole = PACKERS[suffix](jsonl([f"{n} {n * n} {n**3}" for n in range(2003)]))
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(whole[: max(1, int(len(whole) * share))])

    with pytest.raises(PvmlError, match="is damaged or cut short after line") as error:
        read(path)
    assert str(path) in str(error.value)


# Contracts

BAD_LINES = {
    "bad JSON": (b'{"text": "a"\n', "is not JSON"),
    "no object": (b'["text"]\n', 'is not an object with a "text"'),
    "no text": (b'{"story": "a"}\n', 'is not an object with a "text"'),
    "a number": (b'{"text": 5}\n', '"text" must be a string, got int'),
    "null": (b'{"text": null}\n', '"text" must be a string, got NoneType'),
    "not UTF-8": (b'{"text": "\xff"}\n', "is not UTF-8: byte 0xff at place 11"),
    "half a pair": (b'{"text": "ab\\ud800"}\n', "character 2 of the text"),
    "deep": (b"[" * 100_000 + b"\n", "is not JSON"),
    "a huge number": (b'{"text": ' + b"9" * 5000 + b"}\n", "is not JSON"),
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_a_bad_line_is_named(kind: str, tmp_path: Path) -> None:
    """Whatever is wrong with a line, the error names the file and the line's number."""
    line, message = BAD_LINES[kind]
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl(["fine", "fine"]) + line + jsonl(["fine"]))

    with pytest.raises(PvmlError, match=message) as error:
        read(path)
    assert f"{path}, line 3" in str(error.value)


def test_invalid_utf8_in_a_text_file_is_named(tmp_path: Path) -> None:
    """A .txt in another encoding is an error with line and byte, not garbled text."""
    path = tmp_path / "a.txt"
    path.write_bytes("eins\nzwei\nfünf".encode("latin-1"))

    with pytest.raises(PvmlError, match="line 3 is not UTF-8: byte 0xfc at place 2"):
        read(path)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_plain_file_with_an_archives_name_is_refused(suffix: str, tmp_path: Path) -> None:
    """A file that is not what its suffix says is an error that names it."""
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(jsonl(DOCUMENTS))

    with pytest.raises(PvmlError, match="is damaged or cut short after line 0") as error:
        read(path)
    assert str(path) in str(error.value)


def test_missing_and_unknown_files_are_named(tmp_path: Path) -> None:
    """A missing file, an unknown suffix and a folder without texts each say what is known."""
    (tmp_path / "a.csv").write_text("text\none\n")
    with pytest.raises(PvmlError, match=r"missing\.txt cannot be read: No such file"):
        read(tmp_path / "missing.txt")
    with pytest.raises(PvmlError, match=r"a\.csv is of no known kind; known are \.txt and \.jsonl"):
        read(tmp_path / "a.csv")
    with pytest.raises(PvmlError, match=r"holds no file of a known kind; known are \.txt"):
        read(tmp_path)


def test_a_broken_link_in_a_folder_is_an_error(tmp_path: Path) -> None:
    """A file that cannot be opened is never passed over in silence."""
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").symlink_to(tmp_path / "gone.txt")

    with pytest.raises(PvmlError, match=r"b\.txt cannot be read"):
        read(tmp_path)


def test_a_faulty_parquet_is_named(tmp_path: Path) -> None:
    """Another column, another type, a null and a damaged file are errors that name the file."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    for column, values, message in (
        ("story", ["one"], 'has no column "text"; it has story'),
        ("text", [5], 'row 1: "text" must be a string, got int'),
        ("text", ["one", None], 'row 2: "text" must be a string, got NoneType'),
    ):
        parquet.write_table(pa.table({column: values}), path)
        with pytest.raises(PvmlError, match=message):
            read(path)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(PvmlError, match="cannot be read as parquet"):
        read(path)


def test_parquet_without_pyarrow_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where pyarrow is not installed, the error says which extra brings it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")

    with pytest.raises(PvmlError, match=r'pip install "pvml\[hub\]"'):
        read(tmp_path / "a.parquet")


def test_a_pipe_is_never_waited_for(tmp_path: Path) -> None:
    """A pipe is refused by name, and passed over in a folder."""
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "link.txt").symlink_to("pipe.txt")
    (tmp_path / "a.txt").write_text("A cat sat.")
    tally = Tally()

    with pytest.raises(PvmlError, match="is a pipe or a device"):
        list(read_documents(tmp_path / "pipe.txt", Tally()))
    assert list(read_documents(tmp_path, tally)) == ["A cat sat."]
    assert tally.other_files == 2
