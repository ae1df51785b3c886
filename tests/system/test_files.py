"""Directories and files that exist whole or not at all; locks; manifests that tell which file is damaged."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from nmt.system.console import JsonLines
from nmt.system.errors import Interrupted, UserError
from nmt.system.files import (
    check_place,
    clear_parts,
    identify,
    make_directory,
    read_json,
    reading,
    remove_directory,
    replace_json,
    set_aside,
    sha256,
    whole_directory,
    whole_file,
    write_json,
    writing,
)
from nmt.system.processes import exclusive


def tree(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_a_directory_appears_only_when_its_block_is_done(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "er" / "out"
    with whole_directory(target, "a") as part:
        (part / "a").write_text("1")
        assert part.parent == target.parent  # on the same disk, so that renaming is atomic
        assert part.name.startswith(".")
        assert not target.exists()
    assert tree(tmp_path) == {"deep/er/out/a": "1"}


def write_directory(target: Path, content: str = "1", error: type[BaseException] | None = None) -> None:
    with whole_directory(target, "a") as part:
        (part / "a").write_text(content)
        if error:
            raise error


def write_file(target: Path, content: str = "1", error: type[BaseException] | None = None) -> None:
    with whole_file(target) as stream:
        stream.write(content.encode())
        if error:
            raise error


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("write", [write_directory, write_file])
def test_a_block_that_fails_leaves_what_was_there(
    tmp_path: Path, kind: type[BaseException], write: Callable[..., None]
) -> None:
    write(tmp_path / "out")
    before = tree(tmp_path)
    for target in (tmp_path / "out", tmp_path / "new"):
        with pytest.raises(kind):
            write(target, "2", kind)
    assert tree(tmp_path) == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_directory_that_cannot_be_removed_now_is_gone_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").write_text("1")

    def fail(path: str, *given: object, **named: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", fail)
        patched.setattr(os, "unlink", fail)
        remove_directory(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert len(list(tmp_path.iterdir())) == 1
    clear_parts(tmp_path, "out")
    assert list(tmp_path.iterdir()) == []


def test_lines_are_written_whole_or_not_at_all_and_a_full_disk_is_reported_once(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "log.jsonl"
    lines = JsonLines(path, said.append, head={"step": 0})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def append_limited(size: int, value: object) -> None:
        """Append where files may have this size; Python ignores SIGXFSZ."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            lines.append(value)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    append_limited(5, {"step": 1})
    assert path.read_bytes() == b""
    lines.append({"step": 2, "text": "ü"})
    whole = '{"step": 0}\n{"step": 2, "text": "ü"}\n'.encode()
    assert path.read_bytes() == whole
    for room in (0, 4):
        append_limited(len(whole) + room, {"step": 3})
    assert path.read_bytes() == whole
    lines.append({"step": 4})
    assert path.read_bytes() == whole + b'{"step": 4}\n'
    assert said == [f"{path}: lines cannot be written, but the run continues: No space left on device"]


def test_every_file_is_synced_before_the_directory_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    target = tmp_path / "out"
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append((Path(os.readlink(f"/proc/self/fd/{fd}")).name, target.exists()))
    )
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to see what is synced")
    with whole_directory(target, "a") as part:
        (part / "a").write_text("1")
        (part / "b").write_text("2")
    before = [name for name, exists in synced if not exists]
    assert set(before) == {"a", "b", part.name}
    assert synced[-1] == (tmp_path.name, True)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EIO])
def test_a_directory_need_not_be_synced_and_a_file_must_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refused = stat.S_ISDIR

    def sync(descriptor: int) -> None:
        if refused(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))

    def write() -> None:
        write_directory(tmp_path / "folder", "new")
        replace_json(tmp_path / "file", {})

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(UserError, match="cannot be written") if number == errno.EIO else nullcontext():
        write()
    refused = stat.S_ISREG
    with pytest.raises(UserError, match="cannot be written"):
        write()


def part_of(owner: str, target: Path) -> Path:
    """A half-written file or directory of another process."""
    part = target.with_name(f".{target.name}@{owner}.tmp")
    part.mkdir()
    (part / "a").write_text("half")
    return part


def a_process_that_has_ended() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(60)
    return child.pid


@pytest.mark.parametrize("write", [write_directory, write_file])
def test_parts_of_processes_that_are_gone_are_removed_and_all_others_stay(
    tmp_path: Path, write: Callable[..., None]
) -> None:
    target = tmp_path / "out[1]"
    here = os.uname().nodename
    gone = part_of(f"{here}-{a_process_that_has_ended()}", target)
    part_of(f"{here}-{os.getpid()}", target)  # of an earlier process with our number, as in a container
    of_parent = part_of(f"{here}-{os.getppid()}", target)
    of_other_hosts = [part_of(f"{host}-{a_process_that_has_ended()}", target) for host in ("0", "~")]
    of_another_name = part_of(f"{here}-{a_process_that_has_ended()}", tmp_path / "out1")
    if write is write_file:
        shutil.rmtree(gone)
        gone.write_text("half")
    write(target)
    assert sorted(tmp_path.iterdir()) == sorted([target, of_parent, *of_other_hosts, of_another_name])


def test_parts_of_another_users_process_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int, signal: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    part_of(f"{os.uname().nodename}-{a_process_that_has_ended()}", tmp_path / "out")
    monkeypatch.setattr(os, "kill", refuse)
    clear_parts(tmp_path, "out")
    assert list(tree(tmp_path).values()) == ["half"]


def test_whoever_holds_the_lock_clears_parts_of_other_hosts_too(tmp_path: Path) -> None:
    part_of("0123456789ab-1", tmp_path / "step-00000007")
    part_of("gone", tmp_path / "step-00000009")
    part_of("old", tmp_path / "step-00000010")
    clear_parts(tmp_path, "step-*", locked=True)
    assert tree(tmp_path) == {"step-00000010/a": "half"}


def test_a_killed_process_leaves_a_part_that_the_next_one_removes(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path\n"
        "from nmt.system.files import replace_json\n"
        "os.fsync = lambda descriptor: os._exit(9)\n"
        "replace_json(Path(sys.argv[1]), 1)\n"
    )
    target = tmp_path / "x.json"
    assert subprocess.run([sys.executable, "-c", program, target]).returncode == 9
    assert [path.name.startswith(".x.json@") for path in tmp_path.iterdir()] == [True]
    replace_json(target, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_what_is_set_aside_never_takes_the_place_of_another(tmp_path: Path) -> None:
    for content in "123":
        (tmp_path / "step").write_text(content)
        set_aside(tmp_path / "step")
    assert tree(tmp_path) == {"damaged-step": "1", "damaged-step-2": "2", "damaged-step-3": "3"}


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff", b"[" * 100_000, b"1" * 5_000])
def test_json_that_is_missing_or_broken_is_a_user_error_naming_the_file(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.json"):
        read_json(tmp_path / "x.json")


def test_only_a_directory_of_the_same_kind_is_replaced_and_not_on_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("1")
    with pytest.raises(UserError, match="out: holds other files"), whole_directory(tmp_path / "out", "a"):
        pass
    for code in (errno.ENOSPC, errno.EDQUOT):
        with pytest.raises(UserError, match="out: the disk is full"), whole_directory(tmp_path / "out", "precious"):
            raise OSError(code, os.strerror(code))
    assert tree(tmp_path) == {"out/precious": "1"}


def test_a_directory_set_aside_by_a_killed_process_is_put_back(tmp_path: Path) -> None:
    write_directory(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / ".out@old.tmp")  # killed between its two renames
    with pytest.raises(ValueError, match=r"^$"):
        write_directory(tmp_path / "out", "2", ValueError)
    assert tree(tmp_path) == {"out/a": "1"}


@pytest.mark.parametrize("there", [True, False], ids=["old", "dangling"])
def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path, there: bool) -> None:
    (tmp_path / "big disk").mkdir()
    real, link = tmp_path / "big disk" / "real", tmp_path / "out"
    link.symlink_to(real)
    if there:
        real.mkdir()
        (real / "a").write_text("old")
    with whole_directory(link, "a") as part:
        assert part.parent == real.parent  # on the same disk, so that renaming is atomic
        (part / "a").write_text("new")
    assert link.readlink() == real
    assert tree(tmp_path) == {"big disk/real/a": "new"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["big disk", "out"]


def test_json_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_json(path, 1)
    replace_json(path, 2)
    assert read_json(path) == 2

    def fail(path: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(UserError, match="the disk is full"):
        replace_json(path, 3)
    assert read_json(path) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_signal_right_after_a_part_was_opened_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop_after(self: Path, mode: str) -> None:
        open(self, mode).close()
        raise Interrupted("terminated", 15)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", stop_after)
        with pytest.raises(Interrupted), whole_file(tmp_path / "out"):
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
@pytest.mark.parametrize("wait", [False, True])
def test_a_file_system_without_locks_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, wait: bool
) -> None:
    def refuse(file: object, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    said, ran = [], False
    with exclusive(tmp_path / ".lock", "ckpts", said.append, wait):
        ran = True
    assert ran
    assert said == [f"ckpts: cannot be locked ({os.strerror(number)}): see that no other nmt writes there meanwhile"]
    number = errno.EIO
    with pytest.raises(OSError, match="Input/output error"), exclusive(tmp_path / ".lock", "ckpts", print, wait):
        pass


def test_a_lock_may_be_waited_for(tmp_path: Path) -> None:
    lock, order, said = tmp_path / ".lock", [], []

    def wait() -> None:
        with exclusive(lock, "it", said.append, wait=True):
            order.append("second")

    second = threading.Thread(target=wait)
    with exclusive(lock, "it", print):
        second.start()
        second.join(0.1)
        order.append("first")
    second.join(60)
    assert order == ["first", "second"]
    assert said == ["it: another nmt is writing there; waiting until it ends"]


# --- single files -------------------------------------------------------------------------------------------


def test_a_file_keeps_its_mode_and_the_links_to_it(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    real, link = tmp_path / "folder" / "real", tmp_path / "link"
    real.write_bytes(b"old")
    real.chmod(0o640)
    link.symlink_to(real)
    with whole_file(link) as stream:
        stream.write(b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert real.stat().st_mode & 0o777 == 0o640


def test_pipes_and_devices_are_written_as_they_are(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    with whole_file(tmp_path / "pipe") as stream:
        stream.write(b"through")
    reader.join(60)
    assert found == [b"through"]
    assert (tmp_path / "pipe").is_fifo()
    with whole_file(Path(os.devnull)) as stream:
        stream.write(b"away")
    assert not Path(os.devnull).is_file()


def test_what_an_open_file_holds_already_is_kept(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb", buffering=0) as opened:
        opened.write(b"before, ")
        with whole_file(Path(f"/dev/fd/{opened.fileno()}")) as stream:
            stream.write(b"after")
    assert (tmp_path / "out").read_bytes() == b"before, after"


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    for target in (tmp_path, tmp_path / "missing" / "out"):
        with pytest.raises(UserError, match=f"{target}: cannot be written: "), whole_file(target):
            pass
    if Path("/dev/full").exists():
        with pytest.raises(UserError, match="/dev/full: the disk is full"), whole_file(Path("/dev/full")) as stream:
            stream.write(b"1")


def test_a_folder_in_place_of_a_file_is_said_to_be_one(tmp_path: Path) -> None:
    for doing in (writing(tmp_path), reading(tmp_path, "take another copy")):
        with pytest.raises(UserError) as refused, doing:
            tmp_path.open()
        assert refused.value.hint == "this is a folder: name a file in it"


def test_a_link_into_no_directory_is_named_with_its_target(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("missing/real")
    target = tmp_path / "missing" / "real"
    for write in (write_file, check_place):
        with pytest.raises(UserError, match=rf"out, a link to {target}: cannot be written: No such file") as caught:
            write(tmp_path / "out")
        assert str(tmp_path / "missing") in caught.value.hint
    make_directory(tmp_path / "out")
    assert target.is_dir()
    make_directory(tmp_path / "out")  # it is there
    check_place(tmp_path / "new")
    target.rmdir()
    target.write_text("a file")
    with pytest.raises(UserError, match=r"out, a link to .*: cannot be written: File exists") as caught:
        make_directory(tmp_path / "out")
    assert caught.value.hint == "a file is where a folder is needed: rename it, or name another place"


@pytest.mark.parametrize("is_renamed", [True, False])
def test_a_file_of_the_same_size_and_time_is_read_again(tmp_path: Path, is_renamed: bool) -> None:
    there, new = tmp_path / "there", tmp_path / "new"
    there.write_bytes(b"one")
    new.write_bytes(b"two")
    before = identify(there, None)
    later = there.stat().st_mtime_ns
    os.utime(new, ns=(later, later))
    time.sleep(0.02)  # clocks of kernels tick every 4 to 10 ms
    if is_renamed:
        new.rename(there)
    else:
        there.write_bytes(new.read_bytes())
        shutil.copystat(new, there)
    assert identify(there, before)[-1] == sha256(there) != before[-1]


def test_a_file_that_nobody_touches_is_not_read_again(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"one")
    before = [*identify(tmp_path / "there", None)[:-1], "as known"]
    assert identify(tmp_path / "there", before) is before


def test_a_name_that_is_not_utf8_is_kept_in_json(tmp_path: Path) -> None:
    names = {"files": [os.fsdecode(b"caf\xe9.en"), "Größe"]}
    write_json(tmp_path / "a.json", names)
    replace_json(tmp_path / "b.json", names)
    JsonLines(tmp_path / "c.jsonl", lambda problem: None).append(names)
    assert [read_json(tmp_path / name) for name in ("a.json", "b.json", "c.jsonl")] == [names] * 3
    assert "Größe" in (tmp_path / "a.json").read_text()


def test_a_name_that_the_locale_cannot_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsencode", lambda name: os.fspath(name).encode("ascii"))
    for use in (write_file, write_directory, read_json, make_directory):
        with pytest.raises(UserError, match=r"Größe: this name has characters that the locale, of .*, cannot write"):
            use(tmp_path / "Größe")


def test_a_missing_temporary_directory_is_not_taken_for_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "missing")])
    with (
        pytest.raises(UserError, match="no directory for temporary files") as caught,
        whole_directory(tmp_path / "a", None),
    ):
        tempfile.mkdtemp()
    assert "TMPDIR" in caught.value.hint
