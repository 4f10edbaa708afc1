"""Verification names what was touched: any byte, any name, the index, the archive."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen3lab.record import (
    SealedRound,
    UnverifiedRound,
    canonical,
    check,
    check_all,
    complete,
    index,
    repair,
    rounds,
    verify,
    verify_all,
)
from qwen3lab.record import sums as sha256sums
from qwen3lab.record.schema import read_record


@pytest.fixture(scope="module")
def sealed(tmp_path_factory, sealing):
    root = tmp_path_factory.mktemp("sealed") / "data"
    sealing(root, profile="full")
    return sealing(root)


def named(problems):
    return {problem.member for problem in problems}


def test_a_fresh_round_verifies(sealed):
    root = sealed.path.parents[2]
    assert verify(sealed.path) == []
    assert verify_all(root) == []
    folders = sorted(path.name for path in sealed.path.parent.iterdir())
    assert [found.round for found in check_all(root)] == ["index.jsonl", *folders]


@settings(max_examples=100, deadline=None)
@given(choice=st.data())
def test_any_flipped_bit_is_found_in_its_member(sealed, choice):
    member = choice.draw(st.sampled_from([*sealed.sums, "SHA256SUMS"]))
    path = sealed.path / member
    before = path.read_bytes()
    place = choice.draw(st.integers(0, len(before) - 1))
    flipped = bytearray(before)
    flipped[place] ^= 1 << choice.draw(st.integers(0, 7))
    try:
        path.write_bytes(flipped)
        with pytest.raises(UnverifiedRound, match=member) as refused:
            SealedRound.load(sealed.path)
        assert member in named(refused.value.problems)
    finally:
        path.write_bytes(before)


@settings(max_examples=30, deadline=None)
@given(choice=st.data())
def test_truncated_and_lengthened_members_are_found(sealed, choice):
    member = choice.draw(st.sampled_from([*sealed.sums, "SHA256SUMS"]))
    path = sealed.path / member
    before = path.read_bytes()
    try:
        path.write_bytes(before[: choice.draw(st.integers(0, len(before) - 1))])
        assert member in named(verify(sealed.path))
        path.write_bytes(before + choice.draw(st.binary(min_size=1, max_size=3)))
        assert member in named(verify(sealed.path))
    finally:
        path.write_bytes(before)


def test_every_deleted_and_renamed_member_is_found(sealed):
    for member in [*sealed.sums, "SHA256SUMS"]:
        path, aside = sealed.path / member, sealed.path / f"{member}.old"
        path.rename(aside)
        problems = verify(sealed.path)
        assert member in named(problems)
        if member != "SHA256SUMS":
            assert f"{member}.old" in named(problems)
            assert any("renamed to" in problem.what for problem in problems)
        aside.rename(sealed.path.parents[2] / "aside")
        assert member in named(verify(sealed.path))
        (sealed.path.parents[2] / "aside").rename(path)
    assert verify(sealed.path) == []


@pytest.mark.parametrize("kind", ["file", "hidden", "folder", "link", "link to a member", "fifo"])
def test_whatever_is_added_is_found(sealed, kind):
    path = sealed.path / (".hidden" if kind == "hidden" else "extra")
    try:
        if kind in ("file", "hidden"):
            path.write_bytes(b"")
        elif kind == "folder":
            path.mkdir()
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            path.symlink_to("record.json" if kind == "link to a member" else "/etc/hostname")
        assert named(verify(sealed.path)) == {path.name}
    finally:
        path.rmdir() if kind == "folder" else path.unlink()


def test_a_member_replaced_by_a_link_to_its_own_bytes_is_found(sealed, tmp_path):
    path = sealed.path / "samples.parquet"
    path.rename(tmp_path / "samples.parquet")
    path.symlink_to(tmp_path / "samples.parquet")
    try:
        assert any("symbolic link" in problem.what for problem in verify(sealed.path))
    finally:
        path.unlink()
        shutil.move(tmp_path / "samples.parquet", path)


@pytest.mark.parametrize("name", ["../../../index.jsonl", "/etc/hostname", ".hidden", "a/b", "-c", "SHA256SUMS", ""])
def test_sums_that_lead_elsewhere_are_refused(sealed, name):
    path = sealed.path / "SHA256SUMS"
    before = path.read_bytes()
    try:
        path.write_bytes(before + f"{'0' * 64}  {name}\n".encode())
        problems = verify(sealed.path)
        assert named(problems) == {"SHA256SUMS"}
        assert "cannot be read" in problems[0].what
    finally:
        path.write_bytes(before)


def test_a_forged_round_does_not_match_the_index(data, sealing):
    sealed = sealing(data)
    record = json.loads((sealed.path / "record.json").read_bytes())
    record["verdicts"][0]["ratio"] = 0.1
    forged = canonical.dumps(record, "record")
    (sealed.path / "record.json").write_bytes(forged)
    hashes = sealed.sums | {"record.json": canonical.sha256(forged)}
    (sealed.path / "SHA256SUMS").write_bytes(sha256sums.render(hashes))
    (problem,) = verify(sealed.path)
    assert problem.member == "SHA256SUMS"
    assert "not the file that was sealed" in problem.what


def test_a_record_that_speaks_of_other_members_is_found(data, sealing):
    """Even where every hash and the index agree."""
    sealed = sealing(data)
    (sealed.path / "extra.parquet").write_bytes(b"x")
    hashes = sealed.sums | {"extra.parquet": canonical.sha256(b"x")}
    (sealed.path / "SHA256SUMS").write_bytes(sha256sums.render(hashes))
    (data / "index.jsonl").unlink()
    assert repair(data) == []
    assert any("speaks of" in problem.what for problem in verify(sealed.path))


def test_a_renamed_or_moved_round_is_found(data, sealing):
    sealed = sealing(data)
    moved = sealed.path.with_name(f"{sealed.path.name[:-8]}00000000")
    sealed.path.rename(moved)
    problems = verify_all(data)
    assert any(problem.round == "index.jsonl" and "absent" in problem.what for problem in problems)
    assert any(problem.round == moved.name and "record belongs in" in problem.what for problem in problems)
    assert repair(data) == []


def test_members_are_hashed_again_when_they_are_handed_out(data, sealing):
    sealed = sealing(data)
    path = sealed.path / "samples.parquet"
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(UnverifiedRound, match="changed since it was verified"):
        sealed.frame("samples")


def test_a_line_taken_away_edited_or_swapped_shows(data, sealing):
    for _ in range(3):
        sealing(data)
    path = data / "index.jsonl"
    whole = path.read_bytes()
    one, two, three = whole.splitlines(keepends=True)
    for tampered in (
        two + three, one + three, one + two, two + one + three, whole + three, whole[:-1], whole[:-20], whole + b"\n",
        whole + b"{}\n", one + b"\xff\n" + three, b"", one.replace(b"smoke", b"full_") + two + three,
        one + two + three.replace(b"smoke", b"full_"), one + two + three.replace(b"rounds/v01", b"../../../x"),
        one + two.replace(b'"profile"', b' "profile"') + three,
    ):  # fmt: skip
        path.write_bytes(tampered)
        assert verify_all(data), tampered
    path.write_bytes(whole)
    assert verify_all(data) == []


def test_a_broken_index_stops_reading_and_opening(data, sealing, opening):
    sealing(data)
    sealing(data)
    path = data / "index.jsonl"
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))
    for refused in (lambda: list(rounds(data)), lambda: opening(data), lambda: repair(data)):
        with pytest.raises(UnverifiedRound, match=r"line 1 does not continue .* restore index.jsonl from git"):
            refused()
    assert not list(data.glob("rounds/*/*.open"))


@settings(max_examples=40, deadline=None)
@given(choice=st.data())
def test_any_flipped_bit_of_the_index_is_found(sealed, choice):
    root = sealed.path.parents[2]
    path = root / "index.jsonl"
    before = path.read_bytes()
    flipped = bytearray(before)
    flipped[choice.draw(st.integers(0, len(before) - 1))] ^= 1 << choice.draw(st.integers(0, 7))
    try:
        path.write_bytes(flipped)
        assert verify_all(root)
    finally:
        path.write_bytes(before)


def test_strays_among_the_rounds_are_found(data, sealing):
    sealed = sealing(data)
    (sealed.path.parent / "notes.txt").write_text("?")
    (data / "rounds" / "v09").symlink_to(sealed.path.parent)
    assert {problem.member for problem in verify_all(data)} == {"v01/notes.txt", "v09"}


def test_no_data_folder_is_an_error_and_an_empty_one_is_sound(data):
    with pytest.raises(FileNotFoundError, match="no such data folder"):
        verify_all(data)
    data.mkdir()
    assert verify_all(data) == []
    assert "not a folder" in verify(data / "rounds" / "v01" / "x")[0].what
    assert verify("/")


def measured(data, opening, filling, monkeypatch, count=1):
    monkeypatch.setenv("QWEN3LAB_ROUND_SEALED_BY", "runner")
    monkeypatch.setenv("QWEN3LAB_ROUND_MARK", str(data.parent / "mark"))
    return [filling(opening(data)).seal().folder for _ in range(count)]


def test_a_crash_between_name_and_index_is_found_and_repaired(data, opening, filling, monkeypatch):
    (folder,) = measured(data, opening, filling, monkeypatch)
    child = os.fork()
    if child == 0:  # a process that dies at the worst moment
        index.append = lambda *args, **kwargs: os._exit(9)
        complete(folder)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    final = folder.with_name(folder.name.removesuffix(".open"))
    (problem,) = verify_all(data)
    assert (problem.round, problem.what) == (final.name, "sealed, but not in the index")
    assert list(rounds(data)) == []
    assert repair(data) == [final.name]
    assert verify_all(data) == []
    assert [r.record.round for r in rounds(data)] == [final.name]
    assert repair(data) == []


def test_killed_at_any_moment_nothing_half_sealed_is_taken_for_whole(data, opening, filling, monkeypatch):
    folders = measured(data, opening, filling, monkeypatch, count=8)
    for delay_s in (0.0, 0.004, 0.011, 0.023, 0.04):
        child = os.fork()
        if child == 0:
            for folder in sorted(data.glob("rounds/*/*.open")):
                complete(folder)
            os._exit(0)
        time.sleep(delay_s)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert {problem.what for problem in verify_all(data)} <= {"sealed, but not in the index"}
        repair(data)
        assert verify_all(data) == []
    for folder in data.glob("rounds/*/*.open"):
        complete(folder)
    assert len(list(rounds(data))) == len(folders)


def test_the_archive_is_checked_where_it_is_and_its_absence_is_stated(data, sealing):
    sealed = sealing(data)
    archive = data / "archive" / f"{sealed.record.round}.tar.zst"
    assert check(sealed.path).notes == (f"{archive.name}: 2 members checked",)
    archive.rename(data / "elsewhere")
    found = check(sealed.path)
    assert found.problems == ()
    assert "not on this machine: its 2 members were not checked" in found.notes[0]
    archive.symlink_to(data / "elsewhere")
    assert "not a plain file" in verify(sealed.path)[0].what


def test_a_record_names_its_version(sealed):
    record = json.loads((sealed.path / "record.json").read_bytes())
    with pytest.raises(ValueError, match="schema_version=2, readable: 1; it was written by a newer qwen3lab"):
        read_record(canonical.dumps(record | {"schema_version": 2}, "r"), "r")
