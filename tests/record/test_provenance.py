"""Where the source stands in git, in real repositories."""

from __future__ import annotations

import subprocess

import pytest

from qwen3lab.record.provenance import git_state


@pytest.fixture
def repository(tmp_path):
    def git(*arguments):
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")
        run = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return run.stdout.strip()

    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "code.py").write_text("1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    return tmp_path, git


def test_a_clean_tree_is_its_commit(repository):
    folder, git = repository
    state = git_state(folder / "pkg" / "code.py")
    assert (state.commit, state.dirty, state.changed) == (git("rev-parse", "HEAD"), False, [])


def test_source_that_differs_is_named_and_outputs_do_not_count(repository):
    folder, _ = repository
    for output in ("data/rounds/x", "reports/index.html"):
        (folder / output).parent.mkdir(parents=True)
        (folder / output).write_text("x")
    assert git_state(folder / "pkg" / "code.py").dirty is False
    (folder / "pkg" / "code.py").write_text("2\n")
    (folder / "pkg" / "data").mkdir()
    (folder / "pkg" / "data" / "new file.py").write_text("3\n")
    state = git_state(folder / "pkg" / "code.py")
    assert (state.dirty, state.changed) == (True, ["pkg/code.py", "pkg/data/"])


def test_a_hook_s_repository_is_not_taken_for_the_source_s(repository, monkeypatch, tmp_path_factory):
    folder, git = repository
    head = git("rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path_factory.mktemp("elsewhere")))
    assert git_state(folder / "pkg" / "code.py").commit == head


@pytest.mark.parametrize("kind", ["outside", "untracked", "no git"])
def test_no_commit_comes_with_its_reason(repository, tmp_path_factory, monkeypatch, kind):
    folder, _ = repository
    source = folder / "pkg" / "code.py"
    if kind == "outside":
        source = tmp_path_factory.mktemp("outside") / "code.py"
        source.touch()
    elif kind == "untracked":
        source = folder / "pkg" / "installed.py"
        source.touch()
    else:
        monkeypatch.setenv("PATH", "")
    state = git_state(source)
    assert (state.commit, state.dirty) == (None, None)
    assert state.why_absent
