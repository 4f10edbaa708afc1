"""Disks that are full and folders that are closed: real ones. What fails stays unsealed, and can be tried again."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import threading

import pytest

from qwen3lab.record import SealedRound, rounds, verify_all

PAGE = 4096


@pytest.fixture
def mount(tmp_path):
    """A tmpfs of the size asked for; skipped where this user may not mount one."""
    point = tmp_path / "disk"
    point.mkdir()
    mounted = []

    def make(options):
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point)]
        try:
            run = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount command")
        if run.returncode:
            pytest.skip(f"cannot mount a tmpfs: {run.stderr.strip()}")
        mounted.append(point)
        return point

    yield make
    for point in mounted:
        subprocess.run(["umount", str(point)], check=True)


def nothing_sealed(rnd):
    root = rnd.folder.parents[2]
    assert rnd.folder.name.endswith(".open")
    assert rnd.folder.is_dir()
    assert [p.name for p in rnd.folder.parent.iterdir()] == [rnd.folder.name]
    assert list(rounds(root)) == []
    assert verify_all(root) == []


def whole(sealed):
    assert isinstance(sealed, SealedRound)
    assert sealed.outputs() == {"qwen3lab": {"w1_single_decode": [[5, 6, 7], []]}}
    assert set(sealed.record.raw.members) == {"logs/qwen3lab.txt", "trace.json"}
    assert verify_all(sealed.path.parents[2]) == []


def test_sealing_on_a_full_disk_fails_page_by_page_until_there_is_room(mount, opening, filling):
    disk = mount("size=1m")
    rnd = filling(opening(disk / "data"))
    failures = 0
    for free_pages in range(40):
        filler = disk / "filler"
        free = os.statvfs(disk).f_bavail
        with open(filler, "wb") as file:
            file.write(bytes(max(0, free - free_pages) * PAGE))
        try:
            sealed = rnd.seal()
        except OSError as error:
            assert error.errno == errno.ENOSPC
            assert "free some space" in str(error)
            assert str(disk) in str(error)
            failures += 1
            filler.unlink()
            nothing_sealed(rnd)
        else:
            break
    assert failures >= 2
    filler.unlink()
    whole(sealed)


def test_measuring_on_a_full_disk_names_the_file(mount, opening, filling):
    disk = mount("size=256k")
    rnd = opening(disk / "data")
    with pytest.raises(OSError, match="free some space") as caught:
        rnd.add_raw("big", bytes(1 << 20))
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(rnd.folder / "raw" / "big")
    nothing_sealed(rnd)
    whole(filling(rnd).seal())


def test_a_full_disk_inside_the_block_leaves_the_round_open(mount, opening, filling):
    disk = mount("size=128k")
    with pytest.raises(OSError, match="free some space"), opening(disk / "data") as rnd:
        filling(rnd)
        (disk / "filler").touch()
        with open(disk / "filler", "wb") as file:
            file.write(bytes(os.statvfs(disk).f_bavail * PAGE))
        rnd.seal()
    nothing_sealed(rnd)


def test_a_file_size_limit_fails_each_step_and_the_next_try_succeeds(data, opening, filling):
    """The same without a mount: the limit on a file's size is the kernel's own, and grows from nothing."""
    rnd = filling(opening(data))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    failed_at = set()
    for limit in range(0, 40_000, 150):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            sealed = rnd.seal()
        except OSError as error:
            assert error.errno == errno.EFBIG
            failed_at.add(os.path.basename(error.filename).split(".")[-1])
        else:
            break
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        nothing_sealed(rnd)
    assert failed_at >= {"parquet", "json"}
    whole(sealed)


def test_an_index_that_cannot_grow_leaves_the_round_open(data, opening, filling, sealing):
    """The last write of all: by then the folder has its final name, and must give it back."""
    for _ in range(9):
        sealing(data, variant="v" * 64, profile="p" * 64)
    before = (data / "index.jsonl").read_bytes()
    rnd = filling(opening(data))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before), hard))
    try:
        with pytest.raises(OSError, match="cannot write: File too large") as caught:
            rnd.seal()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.filename == str(data / "index.jsonl")
    assert (data / "index.jsonl").read_bytes() == before
    assert [p.name for p in rnd.folder.parent.iterdir()] == [rnd.folder.name]
    assert verify_all(data) == []
    assert rnd.seal().record.round == rnd.id
    assert verify_all(data) == []


def test_a_data_folder_that_cannot_be_made_is_refused_before_measuring(tmp_path, opening):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(NotADirectoryError, match="name a data folder that can be created") as caught:
        opening(tmp_path / "file" / "data")
    assert str(tmp_path / "file") in caught.value.filename


def test_a_read_only_disk_is_refused_before_measuring(mount, opening):
    disk = mount("size=64k,ro")
    with pytest.raises(OSError, match="make the folder writable, or name another") as caught:
        opening(disk / "data")
    assert caught.value.errno == errno.EROFS
    assert caught.value.filename.startswith(str(disk))


@pytest.mark.parametrize("closed", ["", "rounds/v01", "archive"])
def test_a_folder_of_somebody_else_is_refused_before_measuring(tmp_path, data, opening, closed):
    for folder in (data / "rounds" / "v01", data / "archive"):
        folder.mkdir(parents=True)
        folder.chmod(0o777)
    data.chmod(0o777)
    (data / closed).chmod(0o555)
    modes = {parent: parent.stat().st_mode for parent in data.parents if not parent.stat().st_mode & 0o001}
    root = os.geteuid() == 0
    try:
        if root:  # whom no permission binds: become nobody, who must be let through to here
            for parent, mode in modes.items():
                parent.chmod(mode | 0o011)
            os.seteuid(65534)
        with pytest.raises(PermissionError, match="make the folder writable, or name another") as caught:
            opening(data)
    finally:
        if root:
            os.seteuid(0)
        for parent, mode in modes.items():
            parent.chmod(mode)
    assert caught.value.filename.startswith(str(data / closed))


def test_rounds_sealed_at_once_queue_up(data, opening, filling):
    opened = [filling(opening(data)) for _ in range(6)]
    threads = [threading.Thread(target=rnd.seal) for rnd in opened]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {r.record.round for r in rounds(data)} == {rnd.id for rnd in opened}
    assert verify_all(data) == []
