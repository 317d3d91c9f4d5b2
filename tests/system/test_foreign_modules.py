"""Commands started in a folder whose files have the names of modules: none of those files ever runs."""

import shlex

import pytest

from tests.helpers.commands import run
from tests.helpers.poison import marks, poison
from tests.helpers.texts import words

TINY = ("train --data_dir corpus --n_layer 1 --n_head 2 --n_embd 32 --seq_length 16 --no-use_gpu --max_steps 2 "
        "--output_dir out --eval_interval 1 --sample_interval 0 --verbose --batch_size")
LINES = {  # and what they print, once they start other processes
    "pretokenize text.txt --num_workers 2 --vocab_size 300": "",
    f"{TINY} auto --gradient_accumulation_steps 2": "tried)",
    f"{TINY} 2 --compile": "compiled    in",
    "bench --rungs 0,5 --shape tiny,32,2,300 --steps 2 --no-use_gpu": "",
}


@pytest.mark.parametrize("line", [next(iter(LINES)), *(pytest.param(line, marks=pytest.mark.slow)
                                                       for line in [*LINES][1:])])
def test_no_file_of_the_current_folder_is_imported(line, tmp_path, corpus_folder):
    (tmp_path / "text.txt").write_text(words(20_000, 1))
    poison(tmp_path)
    done = run(*shlex.split(line), cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"),
               TORCHINDUCTOR_COMPILE_THREADS="2")
    assert done.returncode == 0, done.stderr
    assert LINES[line] in done.stdout
    assert marks(tmp_path) == []
