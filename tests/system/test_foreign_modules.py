"""Commands started in a folder whose files have the names of modules: none of those files ever runs."""

import shlex
import sys

import pytest

from tests.helpers.commands import run
from tests.helpers.poison import marks, poison
from tests.helpers.texts import words

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="child processes look into the current folder")
SHAPE = "--n_layer 1 --n_head 2 --n_embd 32 --seq_length 16 --batch_size 2 --no-use_gpu --no-compile"
FROM_TEXT_TO_TEXT = (
    "pretokenize text.txt --num_workers 2 --vocab_size 300",
    f"train {SHAPE} --max_steps 2",
    "generate --ckpt out --max_new_tokens 5 --no-use_gpu",
)
LINES = {  # and what they print, once they start other processes
    f"train --data_dir corpus {SHAPE.replace('--no-compile', '--compile')} --max_steps 2 --verbose": "compiled    in",
    "bench --rungs 0,5 --shape tiny,32,2,300 --steps 2 --no-use_gpu": "",
}


def test_from_text_to_text_no_file_of_the_current_folder_is_imported(tmp_path):
    (tmp_path / "text.txt").write_text(words(20_000, 1))
    poison(tmp_path)
    for line in FROM_TEXT_TO_TEXT:
        done = run(*shlex.split(line), cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"))
        assert done.returncode == 0, (line, done.stderr)
    assert marks(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_no_file_of_the_current_folder_is_imported(line, tmp_path, corpus_folder):
    poison(tmp_path)
    done = run(*shlex.split(line), cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"),
               TORCHINDUCTOR_COMPILE_THREADS="2")
    assert done.returncode == 0, done.stderr
    assert LINES[line] in done.stdout
    assert marks(tmp_path) == []
