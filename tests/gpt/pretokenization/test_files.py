"""files.py: a packed file holds what the plain one does; a damaged one is named, and a bomb is refused."""

import importlib
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpt.common.errors import Exit
from gpt.pretokenization.files import pieces_of, unpacked
from tests.helpers.refusals import refused
from tests.helpers.texts import ALPHABET, BYTE_ORDER_MARK, PACK, random_texts, read, sources_of, write


@pytest.mark.parametrize("ending", PACK)
def test_a_packed_file_holds_what_the_plain_one_does_in_one_stream_or_many(ending):
    content = "".join(random_texts(random.Random(0), 300)).encode()
    write("a.txt", BYTE_ORDER_MARK + content)
    expected = read("a.txt")[0]
    assert expected == [content.decode()]
    cut = len(content) // 3
    whole, many = PACK[ending](content), b"".join(map(PACK[ending], (content[:cut], b"", content[cut:])))
    for packed in (whole, many, PACK[ending](BYTE_ORDER_MARK + content)):
        write(f"a.txt.{ending}", packed)
        assert read(f"a.txt.{ending}")[0] == expected
    if ending == "zst":  # pzstd begins each frame with one to skip; others end with one
        skips = [bytes([number]) + b"\x2a\x4d\x18\4\0\0\0abcd" for number in (0x50, 0x5f)]
        write("a.txt.zst", skips[0] + PACK[ending](content[:cut]) + skips[1] + PACK[ending](content[cut:]) + skips[0])
        assert read("a.txt.zst")[0] == expected
    if ending in ("gz", "xz"):
        write(f"a.txt.{ending}", many + b"\0" * 8)
        assert read(f"a.txt.{ending}")[0] == expected


def test_a_packed_file_that_is_gone_when_it_is_unpacked_is_named(tmp_path):
    write("a.txt.gz", PACK["gz"](b"text"))
    [source] = sources_of("a.txt.gz")
    source.path.unlink()
    with refused(r"a\.txt\.gz: No such file or directory while it was read", Exit.DATA):
        unpacked(source, tmp_path / "unpacked", lambda: None)


@pytest.mark.parametrize("ending", PACK)
def test_a_packed_file_that_was_cut_or_changed_is_named(ending):
    rng = random.Random(1)
    content = "".join(rng.choices(ALPHABET, k=5000)).encode()
    if ending == "zst":
        compressor = pytest.importorskip("zstandard").ZstdCompressor(write_checksum=True)
        packed = compressor.compress(content)
    else:
        packed = PACK[ending](content)
    name = f"a.txt.{ending}"
    broken = [packed[:length] for length in (12, 20, len(packed) // 2, len(packed) - 9, len(packed) - 1)]
    broken += [packed + packed[:length] for length in (15, len(packed) - 1)]
    for place in (len(packed) // 3, len(packed) // 2, len(packed) - 30):
        broken.append(packed[:place] + bytes([packed[place] ^ 0x55]) + packed[place + 1 :])
    if ending != "zst":
        broken.append(packed + packed[:1] + bytes([packed[1] ^ 1]) + packed[2:])  # the second stream's first bytes
    for damaged in broken:
        write(name, damaged)
        with refused(rf"^{re.escape(name)} ", Exit.DATA):
            read(name)


@pytest.mark.skipif(shutil.which("gunzip") is None, reason="needs gunzip")
def test_the_cure_for_bytes_behind_a_gzip_file_unpacks_all_of_its_text():
    write("a b.txt.gz", PACK["gz"](b"the cat") + b"rubbish")
    with refused("gunzip", Exit.DATA) as caught:
        read("a b.txt.gz")
    subprocess.run(str(caught.value).partition("readable: ")[2], shell=True, check=False, capture_output=True)
    assert Path("NEW").read_bytes() == b"the cat"


@pytest.mark.parametrize("ending", PACK)
def test_a_bomb_is_refused_long_before_it_fills_the_disk(ending, monkeypatch):
    write(f"bomb.txt.{ending}", PACK[ending](b"\n" * 2**24))
    [source] = sources_of(f"bomb.txt.{ending}")
    assert sum(map(len, pieces_of(source))) == 2**24
    monkeypatch.setattr("gpt.pretokenization.files.BOMB_BYTES", 2**22)
    seen = []
    with refused(rf"bomb\.txt\.{ending} .*100 times", Exit.DATA):
        seen.extend(map(len, pieces_of(source)))
    assert sum(seen) < 2**24


def test_a_missing_optional_package_is_named_with_the_command(monkeypatch):
    write("a.txt.zst", b"\x28\xb5\x2f\xfd")
    monkeypatch.setattr(importlib, "import_module", lambda name: (_ for _ in ()).throw(ModuleNotFoundError(name=name)))
    with refused(r"a\.txt\.zst .*pip install zstandard", Exit.MACHINE):
        sources_of("a.txt.zst")
