"""Raw members: the same bytes in, the same archive out, and nothing dangerous out of a foreign one."""

from __future__ import annotations

import io
import os
import tarfile

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen3lab.record import canonical, extract, raw, verify
from qwen3lab.record.schema import RawMember

FILES = {"a.txt": b"one\n" * 300, "deep/er/b.bin": bytes(range(256)) * 9}
KNOWN = {name: RawMember(bytes=len(data), sha256=canonical.sha256(data)) for name, data in FILES.items()}


def stage(folder, order):
    for name in order:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(FILES[name])
    return folder


def write_archive(path, entries):
    """An archive as anybody could write it: (name, type, bytes, link) entries."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, data, link in entries:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(data), link
            tar.addfile(info, io.BytesIO(data))
    path.write_bytes(zstandard.ZstdCompressor().compress(buffer.getvalue()))
    return path


def honest():
    return [(name, tarfile.REGTYPE, data, "") for name, data in FILES.items()]


def test_packing_is_deterministic(tmp_path):
    one, two = stage(tmp_path / "one", sorted(FILES)), stage(tmp_path / "two", sorted(FILES, reverse=True))
    os.utime(one / "a.txt", (1, 1))
    (two / "a.txt").chmod(0o755)
    assert raw.pack(one, tmp_path / "1.tar.zst") == raw.pack(two, tmp_path / "2.tar.zst") == KNOWN
    assert (tmp_path / "1.tar.zst").read_bytes() == (tmp_path / "2.tar.zst").read_bytes()
    assert raw.faults(tmp_path / "1.tar.zst", KNOWN) == []


def test_a_round_gives_its_raw_members_back(data, opening, filling, tmp_path):
    log = tmp_path / "arm.log"
    log.write_text("a line\n")
    rnd = filling(opening(data))
    rnd.add_raw("logs/arm.log", log)
    log.write_text("changed afterwards\n")
    sealed = rnd.seal()
    out = extract(sealed, tmp_path / "out")
    assert (out / "logs" / "arm.log").read_text() == "a line\n"
    assert {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()} == set(sealed.record.raw.members)
    with pytest.raises(ValueError, match="not an empty folder"):
        extract(sealed, tmp_path / "out")
    with pytest.raises(ValueError, match="raise limit_bytes"):
        extract(sealed.path, tmp_path / "small", limit_bytes=10)
    (data / "archive" / sealed.record.raw.archive).unlink()
    with pytest.raises(FileNotFoundError, match="not on this machine"):
        extract(sealed, tmp_path / "none")


@pytest.mark.parametrize(
    "name", ["../up", "/abs", "a/../b", ".hidden", "a//b", "a/", "", "a\\b", "a b", "x" * 201, "a\n"]
)
def test_raw_names_cannot_climb(data, opening, name):
    with pytest.raises(ValueError, match="raw member"):
        opening(data).add_raw(name, b"")


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([*honest(), ("../evil", tarfile.REGTYPE, b"x", "")], "not a member that the round knows"),
        ([*honest(), ("/tmp/evil", tarfile.REGTYPE, b"x", "")], "not a member that the round knows"),
        ([("a.txt", tarfile.SYMTYPE, b"", "/etc/passwd"), *honest()], "not a plain file"),
        ([("a.txt", tarfile.LNKTYPE, b"", "deep/er/b.bin"), *honest()], "not a plain file"),
        ([("a.txt", tarfile.DIRTYPE, b"", ""), *honest()], "not a plain file"),
        ([("a.txt", tarfile.FIFOTYPE, b"", ""), *honest()], "not a plain file"),
        ([*honest(), honest()[0]], "there twice"),
        ([("a.txt", tarfile.REGTYPE, b"short", ""), honest()[1]], "has 5 bytes"),
        ([("a.txt", tarfile.REGTYPE, b"two\n" * 300, ""), honest()[1]], "differ|not those that were packed"),
        (honest()[:1], "missing"),
    ],
)
def test_foreign_archives_are_refused_whole(tmp_path, entries, words):
    archive = write_archive(tmp_path / "x.tar.zst", entries)
    assert any(_matches(words, what) for _, what in raw.faults(archive, KNOWN))
    with pytest.raises(ValueError, match=words):
        raw.unpack(archive, KNOWN, tmp_path / "out", 1 << 20)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.tar.zst"]


def _matches(words, text):
    return any(word in text for word in words.split("|"))


def test_a_bomb_is_not_unpacked(tmp_path):
    """A pax header of half a gigabyte would be read into memory by tarfile itself."""
    bomb = tarfile.TarInfo("pax")
    bomb.type, bomb.size = tarfile.XHDTYPE, 1 << 29
    with open(tmp_path / "x.tar.zst", "wb") as file, zstandard.ZstdCompressor().stream_writer(file) as packed:
        packed.write(bomb.tobuf())
        for _ in range(1 << 9):
            packed.write(bytes(1 << 20))
    assert "more bytes than its members have" in str(raw.faults(tmp_path / "x.tar.zst", KNOWN))
    with pytest.raises(ValueError, match="more bytes than its members have"):
        raw.unpack(tmp_path / "x.tar.zst", KNOWN, tmp_path / "out", 1 << 40)


@settings(max_examples=50, deadline=None)
@given(choice=st.data())
def test_a_flipped_bit_never_passes_for_a_member(tmp_path_factory, choice):
    """Compressed bytes are not hashed: a flip may be harmless, but then every member is read back as it was packed."""
    folder = tmp_path_factory.mktemp("flip")
    archive = folder / "x.tar.zst"
    raw.pack(stage(folder / "raw", FILES), archive)
    flipped = bytearray(archive.read_bytes())
    flipped[choice.draw(st.integers(0, len(flipped) - 1))] ^= 1 << choice.draw(st.integers(0, 7))
    archive.write_bytes(flipped)
    if not raw.faults(archive, KNOWN):
        raw.unpack(archive, KNOWN, folder / "out", 1 << 20)
        assert {name: (folder / "out" / name).read_bytes() for name in FILES} == FILES


def test_verify_names_the_member_of_the_archive(data, sealing):
    sealed = sealing(data)
    archive = data / "archive" / sealed.record.raw.archive
    write_archive(archive, [("trace.json", tarfile.REGTYPE, b"[]", "")])
    problems = {problem.member: problem for problem in verify(sealed.path)}
    assert set(problems) == {f"{archive.name}:trace.json", f"{archive.name}:logs/qwen3lab.txt"}
    archive.write_bytes(b"not an archive")
    (problem,) = [problem for problem in verify(sealed.path) if problem.member == archive.name]
    assert "cannot be read" in problem.what
    assert "delete it: the round stands without it" in problem.remedy


def test_a_logged_row_is_on_the_disk_at_once_and_outlives_what_ended_the_round(data, opening):
    with pytest.raises(KeyboardInterrupt), opening(data) as rnd:
        log = rnd.logger("trials.jsonl")
        log({"trial_id": 0, "times_s": [0.5, 1.0]})
        log({"trial_id": 1})
        kept = rnd.folder / "raw" / "trials.jsonl"
        assert kept.read_bytes() == b'{"times_s":[0.5,1],"trial_id":0}\n{"trial_id":1}\n'
        with pytest.raises(ValueError, match=r"trials.jsonl.*NaN|not JSON|finite"):
            log({"trial_id": float("nan")})
        raise KeyboardInterrupt
    assert len(kept.read_bytes().splitlines()) == 2
    assert rnd.state == "abandoned" and "KeyboardInterrupt" in (rnd.folder / "failure.txt").read_text()
