"""The documents are true: their commands are understood and run, links lead somewhere, generated parts are current."""

import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gpt.benchmarks import bench
from gpt.common.errors import Exit
from tests.helpers.commands import COMMANDS, ROOT

SCRIPTS = [command for command in COMMANDS if command != "bench"]
READ_FLAGS = {**{f"{command}.py": importlib.import_module(command).read_flags for command in SCRIPTS},
              "gpt.benchmarks.bench": bench.read_flags}
DEMO = ROOT / "gpt/benchmarks/demo.py"
PAGES = (ROOT / "README.md", ROOT / "docs/LOG.md", *sorted(set((ROOT / "docs").glob("*.md")) - {ROOT / "docs/LOG.md"}))
TRUE_TODAY = [page for page in PAGES if page.name != "LOG.md"]  # whose commands are those of their day
COMMAND = r"python (?:\w+\.py|-m gpt\.benchmarks\.bench)"
VERSE = "ROMEO:\nTake me to me, I'll think from the world.\n\nNurse:\nWhy, that is the book, I have:\n\n"


def commands_in(path: Path) -> list[list[str]]:
    """Every command line in a document or script that starts one of the program's commands: the words after python.

    These are lines of code, also as sbatch's --wrap, and code within a sentence, which may go over several lines.
    """
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(rf"^ *({COMMAND}[^#|`\n]*)", text, re.MULTILINE)
    lines += re.findall(rf'--wrap "({COMMAND}[^"\n]*)"', text)
    lines += re.findall(rf"`({COMMAND}[^`]*)`", text)
    return [shlex.split(line.replace("-m ", ""))[1:] for line in lines]


def links_in(page: Path) -> list[str]:
    """The targets of a page's links and pictures that lie in this repository."""
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    return [target for target in targets if not target.startswith("https://")]


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings: lower case, without punctuation, a hyphen for each space."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# ---------------------------------------------------------------- what the documents say


@pytest.mark.parametrize("path", [*TRUE_TODAY, DEMO], ids=lambda path: path.name)
def test_every_command_line_is_understood_by_its_command(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for script, *words in commands_in(path):
        if "--config" in words:
            named = Path(words[words.index("--config") + 1])
            named.parent.mkdir(exist_ok=True)
            named.write_text("seed = 1\n")
        if "--help" not in words:
            READ_FLAGS[script](words)


def test_the_documents_show_every_command():
    assert {words[0] for page in PAGES for words in commands_in(page)} == set(READ_FLAGS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_script_that_a_page_starts_exists(page):
    for script in re.findall(r"\b(?:python|bash) ([\w/]+\.(?:py|sh))\b", page.read_text(encoding="utf-8")):
        assert (ROOT / script).exists(), script
    for module in re.findall(r"\bpython -m (\w+(?:\.\w+)+)", page.read_text(encoding="utf-8")):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page):
    for target in links_in(page):
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors_of(linked), target


def test_every_page_and_picture_is_linked_and_every_picture_is_small():
    linked = {(page.parent / target.partition("#")[0]).resolve() for page in PAGES for target in links_in(page)}
    pictures = [path for path in (ROOT / "docs/pictures").iterdir() if path.suffix in (".png", ".svg")]
    assert {*(ROOT / "docs").glob("*.md"), *pictures} <= linked
    assert all(path.stat().st_size < 150_000 for path in pictures)


def test_every_entry_of_the_log_has_a_question_a_command_one_table_and_an_outcome():
    log = (ROOT / "docs/LOG.md").read_text(encoding="utf-8")
    entries = re.split(r"\n## (?=\d{4}-\d\d-\d\d )", log)[1:]
    titles = [entry.split("\n")[0] for entry in entries]
    assert [title[:10] for title in titles] == sorted((title[:10] for title in titles), reverse=True)
    for entry in entries:
        assert re.findall(r"^\*\*(\w+)\.\*\*", entry, re.MULTILINE) == ["Question", "Command", "Outcome"], entry[:80]
        assert len(re.findall(r"^\| -", entry, re.MULTILINE)) == 1, entry[:80]


def test_the_readme_is_one_sitting():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 140


def test_the_generated_parts_are_what_the_code_says():
    command = [sys.executable, str(ROOT / "docs/generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_flags_that_help_leaves_out_have_a_table():
    program = (ROOT / "train.py").read_text(encoding="utf-8")
    hidden = re.findall(r'"--(\w+)".*help=SUPPRESS', program)
    page = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    section = page.split("\n## Flags that --help leaves out\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `--(\w+)", section, re.MULTILINE)) == set(hidden)


def test_every_file_and_folder_at_the_top_is_named():
    pages = [ROOT / "README.md", ROOT / "docs/architecture.md"]
    named = "".join(page.read_text(encoding="utf-8") for page in pages)
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    for name in {path.split("/")[0] for path in done.stdout.splitlines()}:
        assert name == "README.md" or name.startswith(".git") or name in named, name


def test_the_tables_in_which_something_is_entered_are_where_the_page_says():
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    tables = re.findall(r"`([A-Z]+)` in `(\S+\.py)`", page)
    assert len(tables) >= 7
    for name, file in tables:
        assert re.search(rf"^{name}\b.* = ", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), name


def test_the_exit_codes_on_the_page_are_those_of_the_program():
    page = (ROOT / "docs/exit_codes.md").read_text(encoding="utf-8")
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == {*map(int, Exit), 1}


# ---------------------------------------------------------------- the commands, run on a small scale


def made_small(words: list[str], values: dict[str, str]) -> list[str]:
    """The words with other values for some flags; a flag that is not among the words stays away."""
    return [values.get(before, word) for before, word in zip(["", *words], words, strict=False)]


def test_the_demo_does_what_it_says(tmp_path, forks):
    """The demo's own three commands, with a corpus and a horizon of seconds, in an empty folder."""
    (tmp_path / "corpus.txt").write_text("def read_line(file):\n    return file.readline()\n\n\n" * 300)
    outputs = []
    for script, *words in commands_in(DEMO):
        words = ["corpus.txt" if word == "--demo" else word for word in words]
        done = forks.run([script, *made_small(words, {"--max_minutes": "0.03"})], cwd=tmp_path)
        assert done.code == 0, done.stderr
        outputs.append(done)
    assert "next: python train.py" in outputs[0].stdout
    assert "next: python generate.py" in outputs[1].stdout
    assert outputs[2].stdout.startswith("def read_")
    assert "tok/s" in outputs[2].stderr


@pytest.mark.slow
def test_the_laptop_recipe_of_the_readme_runs_and_its_outcome_can_be_used_as_the_pages_say(tmp_path, forks):
    """The README's laptop recipe on a smaller corpus and horizon, then evaluating, exporting and drawing it."""
    (tmp_path / "tinyshakespeare.txt").write_text(VERSE * 60)
    (tmp_path / "held-out.txt").write_text(VERSE * 5)
    readme = commands_in(ROOT / "README.md")
    recipe = [words for words in readme if {"tinyshakespeare.txt", "1", "ROMEO:"} & {*words}]
    assert [words[0] for words in recipe] == ["pretokenize.py", "train.py", "generate.py"]
    uses = [
        ["pretokenize.py", "--verify", "data", "--peek", "3"],
        ["generate.py", "--ckpt", "out", "--prompt", "ROMEO:", "--num_samples", "3", "--seed", "7"],
        ["evaluate.py", "--ckpt", "out", "--text", "held-out.txt"],
        ["export.py", "--ckpt", "out", "--output", "my-gpt2", "--format", "huggingface", "--dtype", "bf16"],
        ["train.py", "--init_from", "hf://openai-community/gpt2", "--use_gpu", "--use_amp", "--compile", "--dropout",
         "0.1"],
    ]
    shown = [words for page in PAGES for words in commands_in(page)]
    assert all(use in shown for use in uses)
    uses[-1] = ["train.py", "--init_from", "out", "--dropout", "0.1", "--epochs", "1", "--output_dir", "tuned"]
    small = {"--max_minutes": "0.1", "--vocab_size": "300"}
    for script, *words in [*recipe, *uses]:
        done = forks.run([script, *made_small(words, small)], cwd=tmp_path)
        assert done.code == 0, done.stderr
    assert (tmp_path / "my-gpt2/model.safetensors").exists()
    logged = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert any("bits_per_byte" in line for line in logged)


def test_the_reading_tour_has_the_true_lengths():
    tour = re.findall(r"\]\(([\w/]+\.py)\), (\d+) lines", (ROOT / "README.md").read_text("utf-8"))
    assert len(tour) == 5
    for file, lines in tour:
        assert len((ROOT / file).read_text("utf-8").splitlines()) == int(lines), file
