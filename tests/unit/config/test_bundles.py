"""Bundles of others: what is in them is unpacked as it is, and a hostile one writes nothing anywhere."""

import hashlib
import json
import os
import stat
import struct
import zipfile
from pathlib import Path

import pytest

from grue.config import bundles
from grue.errors import MCPConfigError

MANIFEST = json.dumps({"name": "notes"}).encode()


def written(folder: Path, *entries: tuple[str | zipfile.ZipInfo, bytes], deflate: bool = False) -> Path:
    path = folder / "it.mcpb"
    method = zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return path


def unpacked(path: Path, executable: str = "") -> Path:
    folder = path.parent / "out" / "notes"
    with bundles.opened(path) as bundle:
        bundle.unpack(folder, executable=executable)
    return folder


def refusal(path: Path) -> str:
    before = sorted(str(each) for each in path.parent.parent.rglob("*") if each.name != "out")
    with pytest.raises(MCPConfigError) as caught:
        unpacked(path)
    after = sorted(str(each) for each in path.parent.parent.rglob("*") if each.name != "out")
    assert after == before
    assert str(caught.value).isprintable()
    return str(caught.value)


def special(name: str, kind: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = (kind | 0o777) << 16
    return info


def test_a_bundle_is_unpacked_as_it_is(tmp_path: Path) -> None:
    path = written(
        tmp_path, ("manifest.json", MANIFEST), ("server/", b""), ("server/run", b"#!"), ("a/b.txt", b"x" * 99)
    )
    with bundles.opened(path) as bundle:
        assert bundle.manifest == {"name": "notes"}
        assert bundle.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    folder = unpacked(path, executable="./server/run")
    assert (folder / "a" / "b.txt").read_bytes() == b"x" * 99
    assert os.access(folder / "server" / "run", os.X_OK)
    assert not (folder / "a" / "b.txt").stat().st_mode & stat.S_IXUSR
    assert [each.name for each in folder.parent.iterdir()] == ["notes"]


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/etc/evil",
        "a/../../evil",
        "a//b",
        "./a",
        "C:/evil",
        "C:evil",
        "..\\evil",
        "a\nb",
        "a\x1b[2Jb",
        "a\u202eb",
        "x" * 300,
        "/".join(["d" * 200] * 30),
        "a/" * 1900 + "b",
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    assert "has a file with the name" in refusal(written(inner, ("manifest.json", MANIFEST), (name, b"evil")))


def test_a_name_that_is_cut_at_a_nul_is_refused(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = written(inner, ("manifest.json", MANIFEST), ("aXb", b"evil"))
    path.write_bytes(path.read_bytes().replace(b"aXb", b"a\0b"))
    assert "has a file with the name" in refusal(path)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
def test_links_and_devices_are_refused(tmp_path: Path, kind: int) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = written(inner, ("manifest.json", MANIFEST), (special("link", kind), b"/etc/passwd"))
    assert "a link or a device" in refusal(path)


@pytest.mark.parametrize(
    "names", [("a", "A"), ("a", "a/b"), ("a/b", "A"), ("a/x", "A/X"), ("a/x/y", "a!", "A")]
)
def test_two_files_of_one_name_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = written(inner, ("manifest.json", MANIFEST), *((name, b"") for name in names))
    assert "twice" in refusal(path)


def test_a_bundle_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = written(inner, ("manifest.json", MANIFEST), ("zeros", b"\0" * 5_000_000), deflate=True)
    monkeypatch.setattr(bundles, "MOST_UNPACKED", 1_000_000)
    assert "too large" in refusal(path)
    # One that declares less than comes out of it.
    content = path.read_bytes().replace(struct.pack("<L", 5_000_000), struct.pack("<L", 10))
    path.write_bytes(content)
    assert "damaged" in refusal(path)


def test_a_long_list_of_files_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = written(inner, ("manifest.json", MANIFEST), *((f"f{number}", b"") for number in range(20)))
    monkeypatch.setattr(bundles, "MOST_FILES", 10)
    monkeypatch.setattr(zipfile, "ZipFile", lambda *_: pytest.fail("the list was read"))
    assert "more than 10 files" in refusal(path)


def test_names_with_too_many_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = written(inner, ("manifest.json", MANIFEST), ("/".join("a" * 30), b""), ("/".join("b" * 30), b""))
    monkeypatch.setattr(bundles, "_MOST_FOLDERS", 57)
    assert "too large" in refusal(path)


def test_the_list_of_more_files_than_a_zip_file_counts_is_refused(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = inner / "it.mcpb"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", MANIFEST)
    content = path.read_bytes()
    at = content.rfind(b"PK\x05\x06")
    path.write_bytes(content[:at] + b"PK\x06\x07" + b"\0" * 16 + content[at:])
    assert "a ZIP64 file" in refusal(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not a zip file"),
        (b"no zip", "not a zip file"),
        (b"PK\x05\x06", "not a zip file"),
        (b"PK\x05\x06" + b"\0" * 18, "has no manifest.json"),
        (b"PK\x05\x06" + b"\xff" * 18, "too many files"),
    ],
)
def test_what_is_no_bundle_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = inner / "it.mcpb"
    path.write_bytes(content)
    assert problem in refusal(path)


def test_damaged_and_encrypted_files_are_refused(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = written(inner, ("manifest.json", MANIFEST), ("a", b"hello hello"))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"hello hello", b"hello jello", 1))
    assert "damaged" in refusal(path)
    marks = [at for at in range(len(whole)) if whole[at : at + 4] in (b"PK\x03\x04", b"PK\x01\x02")]
    encrypted = bytearray(whole)
    for at in marks:
        encrypted[at + (6 if whole[at + 2] == 3 else 8)] |= 1
    path.write_bytes(bytes(encrypted))
    assert "encrypted" in refusal(path)


def test_a_bundle_of_a_later_zip_format_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, ("manifest.json", MANIFEST))
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\x01\x02") + 6] = 99  # the version that is needed to unpack
    path.write_bytes(content)
    assert "packed in an unusual way" in refusal(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.slow
def test_only_the_usual_ways_of_packing_are_read(tmp_path: Path, method: int) -> None:
    path = tmp_path / "it.mcpb"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("manifest.json", MANIFEST * 100)
    content = bytearray(path.read_bytes())
    content[60:80] = b"x" * 20  # its compressed text
    path.write_bytes(content)
    assert "packed in an unusual way" in refusal(path)


def test_an_error_of_the_program_that_reads_a_bundle_stays_as_it_is(tmp_path: Path) -> None:
    path = written(tmp_path, ("manifest.json", MANIFEST))
    for error in (BrokenPipeError("no terminal"), ValueError("no number")):
        with pytest.raises(type(error), match="no"), bundles.opened(path):
            raise error


def test_a_manifest_that_is_no_json_is_refused(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    assert "is not JSON" in refusal(written(inner, ("manifest.json", b"{")))
    assert "is not JSON" in refusal(written(inner, ("manifest.json", b"[" * 100_000)))


def test_the_digest_is_compared_and_a_folder_is_not_written_over(tmp_path: Path) -> None:
    path = written(tmp_path, ("manifest.json", MANIFEST))
    with (
        pytest.raises(MCPConfigError, match="not the file that was promised"),
        bundles.opened(path, "0" * 64),
    ):
        pass
    unpacked(path)
    with pytest.raises(MCPConfigError, match="is there already"):
        unpacked(path)
