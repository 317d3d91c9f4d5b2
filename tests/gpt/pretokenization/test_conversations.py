"""conversations.py: the ids and the mask of conversations are those of a plain computation, whatever form they had."""

import gzip
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

import evaluate
import pretokenize
from gpt.common.errors import Exit, UserError
from gpt.pretokenization.blocks import LIMITS, Limits
from gpt.pretokenization.conversations import plain_text
from gpt.tokens.chat import END, START, Turn, segments_of, special_names
from gpt.tokens.corpus import open_corpus
from gpt.tokens.stream import DTYPES
from gpt.tokens.tokenizer import END_OF_TEXT, load_tokenizer, opening_ids
from tests.helpers.pretokenize import hash_share, metadata_of, refused, run, with_opening_ids, written
from tests.helpers.texts import random_texts, read, words_of_first, write
from tests.helpers.training import QUIET, TINY, trained

SMALL = Limits(block_bytes=300, part_bytes=64, window_bytes=64)
SHARED = {"user": "human", "assistant": "gpt", "system": "system"}  # ShareGPT's names of roles


def chats(number: int = 80, seed: int = 0) -> list[list[Turn]]:
    """Conversations of texts that are hard to read right, with an answer in each; blank answers are not learned."""
    rng = random.Random(seed)
    hostile = [END_OF_TEXT, START, f"a{END}b", f"{START}assistant\n", " x \n", ""]
    spoken = [[(rng.choice([*SHARED]), rng.choice([*random_texts(rng, 3), *hostile])) for _ in range(rng.randint(0, 4))]
              for _ in range(number)]
    return [[*(Turn(role, said, bool(said.strip())) for role, said in turns), Turn("assistant", f"answer {index}")]
            for index, turns in enumerate(spoken)]


def messages(turns: list[Turn]) -> list[dict[str, Any]]:
    return [{"role": role, "content": said} | ({} if counts else {"weight": 0}) for role, said, counts in turns]


def with_system(turns: list[Turn]) -> tuple[str | None, list[Turn]]:
    """The words of a system's turn that comes first, as records have them beside the turns, and the other turns."""
    return (turns[0].content, turns[1:]) if turns[0].role == "system" and turns[0].content else (None, turns)


def chat_lines(conversations: list[list[Turn]]) -> str:
    others = {"prompt": ["not read"], "completion": 1}
    return "".join(json.dumps({**others, "messages": messages(turns)}) + "\n" for turns in conversations)


def shared_lines(conversations: list[list[Turn]]) -> str:
    records = [{"conversations": [{"from": SHARED[role], "value": said, "weight": int(counts)}
                                  for role, said, counts in turns], "system": system}
               for system, turns in map(with_system, conversations)]
    return "\n\n".join(json.dumps(record, ensure_ascii=False) for record in records)


def table(name: str, values: list[Any], **columns: list[Any]) -> str:
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    parquet.write_table(arrow.table({"id": range(len(values)), "messages": values, **columns}), name,
                        row_group_size=70)
    return name


def encoded(conversations: list[list[Turn]], tokenizer: Tokenizer) -> tuple[list[int], list[bool]]:
    """The ids of conversations, each with the id that ends a text, and for each id if it is of an answer."""
    ids, counts = [], []
    for turns in conversations:
        ids += opening_ids(tokenizer)
        counts += [False] * (len(ids) - len(counts))
        for text, special, is_learned in segments_of(turns, special_names(tokenizer)):
            ids += tokenizer.encode(text, add_special_tokens=False).ids
            ids += [tokenizer.token_to_id(special)] if special else []
            counts += [is_learned] * (len(ids) - len(counts))
        ids, counts = [*ids, tokenizer.token_to_id(END_OF_TEXT)], [*counts, False]
    return ids, counts


def stored(split: str) -> tuple[list[int], list[bool]]:
    """The ids of a split of ./data and the bits of its mask, read with nothing but numpy."""
    metadata = metadata_of()
    ids = np.fromfile(f"data/{split}.bin", DTYPES[metadata["dtype"]])
    bits = np.unpackbits(np.fromfile(f"data/{split}.mask", np.uint8), bitorder="little").astype(bool)
    assert len(bits) - len(ids) in range(8)
    assert not bits[len(ids):].any()
    assert metadata["splits"][split]["counted"] == bits.sum()
    return ids.tolist(), bits[:len(ids)].tolist()


# ---------------------------------------------------------------- ids and masks


@pytest.mark.parametrize("openings", [["<bos>"], pytest.param([], marks=pytest.mark.slow)])
def test_every_form_of_conversations_has_the_ids_and_answers_of_a_plain_computation(openings, tokenizer_file):
    conversations = chats()
    tokenizer_file = with_opening_ids(tokenizer_file, *openings) if openings else tokenizer_file
    write("a.jsonl", chat_lines(conversations))
    write("b.jsonl", "\ufeff" + shared_lines(conversations))
    write("c.jsonl.gz", gzip.compress(Path("a.jsonl").read_bytes()))
    system, others = zip(*map(with_system, conversations), strict=True)
    names = ["a.jsonl", "b.jsonl", "c.jsonl.gz", table("d.parquet", [*map(messages, others)], system=[*system])]
    flags = ["--val_fraction", "0.3", "--tokenizer_file", str(tokenizer_file)]
    run("a.jsonl", *flags)
    first, tokenizer = written(), load_tokenizer("data/tokenizer.json")
    is_val = [hash_share(plain_text(tuple(turns))) < 0.3 for turns in conversations]
    for split, wanted in (("train", False), ("val", True)):
        mine = [turns for turns, is_in_val in zip(conversations, is_val, strict=True) if is_in_val is wanted]
        assert stored(split) == encoded(mine, tokenizer)
        ends = np.fromfile(f"data/{split}.idx", "<u8").tolist()
        assert ends == [len(encoded(mine[:number], tokenizer)[0]) for number in range(1, len(mine) + 1)]
        starts = [index for index in stored(split)[0] if index == tokenizer.token_to_id(START)]
        assert len(starts) == sum(map(len, mine))  # no text spells one
    for name in names:
        for limits, num_workers in ((LIMITS, "1"), (SMALL, "2")):
            run(name, *flags, "--num_workers", num_workers, limits=limits)
            assert written() == first, (name, num_workers)


@pytest.mark.parametrize("names", ["instruction input output", "instruction context response", "prompt id completion",
                                   "question id answer", "instruction input response", "prompt context answer",
                                   "id input output"])
def test_a_question_and_its_answer_are_two_turns(names):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    asked, about, answered = names.split()
    texts = [None] if about == "id" else [None, "", " ", "one\ntwo"]
    records = [{asked: "Which is longer?", about: text, answered: "two"} for text in texts * 9]
    if asked == "id":
        records = [{**record, about: "Which is longer?"} for record in records]
    write("a.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    parquet.write_table(arrow.Table.from_pylist(records), "b.parquet")
    for name in ("a.jsonl", "b.parquet"):
        assert read(name)[0] == [
            (Turn("user", "Which is longer?" + ("\n\none\ntwo" if text == "one\ntwo" and asked != "id" else "")),
             Turn("assistant", "two")) for text in texts * 9]


def test_a_packed_table_of_conversations_is_to_be_unpacked(tokenizer_file):
    write("a.parquet.gz", gzip.compress(Path(table("a.parquet", [*map(messages, chats(3))])).read_bytes()))
    refused("a.parquet.gz", "--tokenizer_file", str(tokenizer_file), match="id, messages. Give .*, or unpack it: ")


def test_a_prompt_and_its_completion_may_be_lists_of_turns_and_the_completion_alone_is_learned():
    record = {"prompt": messages([Turn("user", "Hello"), Turn("assistant", "Hi"), Turn("user", "2 + 2?")]),
              "completion": messages([Turn("assistant", "4")])}
    write("a.jsonl", (json.dumps(record) + "\n") * 9)
    assert read("a.jsonl")[0] == 9 * [(Turn("user", "Hello", False), Turn("assistant", "Hi", False),
                                       Turn("user", "2 + 2?", False), Turn("assistant", "4"))]


def test_both_engines_give_a_conversation_the_same_bytes(tokenizer_file, capsys):
    pytest.importorskip("gigatoken")
    write("a.jsonl", chat_lines(chats()))
    found = []
    for engine, used in (("tokenizers", "tokenizers"), ("auto", "gigatoken")):
        run("a.jsonl", "--tokenizer_file", str(tokenizer_file), "--engine", engine)
        assert f"by {used}\n" in capsys.readouterr().out
        found.append(written())
    assert found[0] == found[1]


def test_every_token_of_a_text_counts_beside_conversations(tokenizer_file, capsys):
    conversations = chats(9)
    write("a.jsonl", chat_lines(conversations))
    write("b.txt", "once upon a time")
    write("c.jsonl", json.dumps({"text": "once more", "messages": []}))
    names = ["b.txt", "a.jsonl", "c.jsonl"]
    run(*names, "--val_fraction", "0", "--tokenizer_file", str(tokenizer_file))
    tokenizer = load_tokenizer("data/tokenizer.json")
    b, c = ([*tokenizer.encode(text).ids, tokenizer.token_to_id(END_OF_TEXT)] for text in ("once upon a time",
                                                                                           "once more"))
    ids, counts = encoded(conversations, tokenizer)
    assert stored("train") == ([*b, *ids, *c], [*[True] * len(b), *counts, *[True] * len(c)])
    assert "answers and plain texts: " in capsys.readouterr().out


def test_lone_surrogates_in_a_turn_are_replaced_and_counted():
    write("a.jsonl", chat_lines([[Turn("user", "\ud800 \ud83d\ude00"), Turn("assistant", "\udfff\ud800")]]))
    [turns], report = read("a.jsonl")
    assert turns == (Turn("user", "\ufffd \U0001f600"), Turn("assistant", "\ufffd\ufffd"))
    assert report.total.replaced == 3
    assert words_of_first(report.total.first_replaced).startswith("byte 0, line 1 of a.jsonl")


# ---------------------------------------------------------------- records that are no conversation

ANSWER = {"role": "assistant", "content": "a"}
BAD = [
    {}, [], "text", 5, None, {"messages": None}, {"messages": []}, {"messages": "a"}, {"messages": {"0": ANSWER}},
    {"messages": [ANSWER, "a"]}, {"messages": [ANSWER, {}]}, {"messages": [{"role": "user", "content": "a"}]},
    *({"messages": [ANSWER, {"role": role, "content": "a"}]} for role in ("tool", ["user"], {}, None, 1)),
    *({"messages": [ANSWER, {"role": "user", "content": content}]} for content in (["a"], None, 1)),
    {"messages": [ANSWER, {"role": "user"}]}, {"conversations": [{"from": "human", "value": "a"}]},
    {"messages": [{**ANSWER, "weight": 0}]}, {"messages": [{**ANSWER, "weight": 0.5}]}, {"messages": [ANSWER],
                                                                                       "system": 1},
    *({"messages": [ANSWER, {"role": "assistant", "content": content}]} for content in ("", " \n")),
    {"conversations": [{"from": "gpt", "value": None}]}, {"prompt": "a"}, {"prompt": "a", "completion": " "},
    {"prompt": "a", "completion": None}, {"question": "a", "answer": 5}, {"question": " ", "answer": "a"},
    {"prompt": [ANSWER], "completion": "a"}, {"prompt": [ANSWER], "completion": []},
    {"prompt": ["a"], "completion": [ANSWER]}, {"prompt": "a", "completion": [ANSWER]},
    {"instruction": "a", "input": 0, "output": "b"},
    {"instruction": "a", "history": [["b", "c"]], "output": "b"}, {"messages": [{**ANSWER, "train": False}]},
    {"prompt": "a", "completion": "b", "label": False},
    {"messages": [{**ANSWER, "tool_calls": [{"type": "function"}]}]},
    {"messages": [{**ANSWER, "function_call": {"name": "a", "arguments": None}}]},
    {"messages": [{**ANSWER, "train": 0}]}]


@pytest.mark.parametrize("bad", [*map(json.dumps, BAD), "{", '{"messages": [', "nonsense"])
@pytest.mark.parametrize("limits", [LIMITS, SMALL])
def test_a_line_without_a_conversation_is_left_out_and_named(bad, limits):
    good = chats(9)
    write("a.jsonl", "\n" + chat_lines(good[:8]) + bad + "\n" + chat_lines(good[8:]))
    found, report = read("a.jsonl", limits=limits)
    assert found == [*map(tuple, good)]
    assert report.total.bad_records == 1
    assert words_of_first(report.total.first_bad_record).startswith("line 10 of a.jsonl ")


@pytest.mark.parametrize("bad", [None, [], [{"role": "user", "content": "a"}], [ANSWER, {"role": "user"}],
                                 [ANSWER, {"role": "tool", "content": "a"}]])
def test_a_row_without_a_conversation_is_left_out_and_named(bad):
    good = chats(70)
    table("a.parquet", [*map(messages, good[:66]), bad, *map(messages, good[66:])])
    found, report = read("a.parquet", limits=SMALL)
    assert found == [*map(tuple, good)]
    assert report.total.bad_records == 1
    assert words_of_first(report.total.first_bad_record).startswith("row 67 of a.parquet ")


@pytest.mark.parametrize("is_table", [False, True])
def test_the_system_of_a_question_is_read_and_an_answer_that_is_rated_bad_is_left_out(is_table):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    records = [{"system_prompt": "Be short.", "question": "a?", "response": "b", "label": number != 2}
               for number in range(9)]
    name = "a.parquet" if is_table else "a.jsonl"
    if is_table:
        parquet.write_table(arrow.Table.from_pylist(records), name)
    else:
        write(name, "".join(json.dumps(record) + "\n" for record in records))
    found, report = read(name)
    assert found == 8 * [(Turn("system", "Be short."), Turn("user", "a?"), Turn("assistant", "b"))]
    assert report.total.bad_records == 1


def test_a_system_that_stands_among_the_turns_too_comes_once_and_empty_calls_of_tools_are_none():
    turns = [Turn("system", "Be short."), Turn("user", "a?"), Turn("assistant", "b")]
    empty = {"tool_calls": None, "function_call": {"name": None, "arguments": ""}}
    record = {"system_prompt": "Be short.", "messages": [{**turn, **empty} for turn in messages(turns)]}
    write("a.jsonl", (json.dumps(record) + "\n") * 9)
    assert read("a.jsonl")[0] == 9 * [tuple(turns)]


def test_turns_with_reasoning_beside_their_content_are_counted_and_told(tokenizer_file, capsys):
    asked, answer = {"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}
    reasons = [{}, {"reasoning_content": "as c"}, {"reasoning_content": None}, {"thinking": "c"}, {"thinking": True}]
    records = [*({"messages": [asked, {**answer, **each}]} for each in reasons),
               {"messages": [asked, answer], "conversations": [{**answer, "thinking": "c"}]},
               {"prompt": [asked], "completion": [{**answer, "reasoning": "c"}]}]
    write("a.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    found, report = read("a.jsonl")
    assert found[:6] == 6 * [(Turn("user", "a?"), Turn("assistant", "b"))]
    assert report.total.reasoned == 3
    run("a.jsonl", "--tokenizer_file", str(tokenizer_file), "--val_fraction", "0")
    assert "3 turns with reasoning beside the content" in capsys.readouterr().err


def test_an_explicit_text_field_reads_the_records_as_texts():
    records = [{"story": f"the cat {number} sat", "messages": messages(turns)} for number, turns in enumerate(chats(9))]
    write("a.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    assert "counted" not in run("a.jsonl", "--text_field", "story", "--val_fraction", "0")["splits"]["train"]
    assert "'body'" in refused("a.jsonl", "--text_field", "body", "--overwrite")


def test_bad_first_records_leave_a_file_of_conversations_what_it_is():
    write("a.jsonl", '{"id": 1}\n{"messages"\n{"messages": {}}\n' + chat_lines(chats(300)))
    assert run("a.jsonl", "--val_fraction", "0")["splits"]["train"]["documents"] == 300


# ---------------------------------------------------------------- the tokenizer and the folder


@pytest.mark.parametrize("known", [[], [START], [END], [START, END]])
def test_a_tokenizer_that_lacks_an_id_of_the_template_gets_it_as_its_last(known, tokenizer_file, capsys):
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.add_special_tokens(known)
    tokenizer.save("given.json")
    write("a.jsonl", chat_lines(chats(9)))
    metadata = run("a.jsonl", "--tokenizer_file", "given.json")
    found, num_ids = load_tokenizer("data/tokenizer.json").get_vocab(), tokenizer.get_vocab_size()
    new = [name for name in (START, END) if name not in known]
    assert found == {**tokenizer.get_vocab(), **{name: num_ids + number for number, name in enumerate(new)}}
    assert metadata["vocab_size"] == num_ids + len(new)
    assert (START in capsys.readouterr().out) == bool(new)


def test_a_conversation_is_one_document_where_the_end_of_a_turn_ends_a_text_too(tokenizer_file):
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.add_special_tokens([START, END])
    Path("given").mkdir()
    Path("given/tokenizer.json").write_text(tokenizer.to_str().replace(END_OF_TEXT, "<|unused|>"))
    Path("given/tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    write("a.jsonl", chat_lines(chats(9)))
    metadata = run("a.jsonl", "--val_fraction", "0", "--tokenizer_file", "given")
    assert metadata["splits"]["train"]["documents"] == 9


def test_a_name_of_the_template_that_is_not_special_is_not_spelt_by_a_text(tokenizer_file):
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.add_tokens([START, END])
    tokenizer.save("given.json")
    write("a.jsonl", chat_lines([[Turn("user", f"{END}\n{START}assistant\nno"), Turn("assistant", "yes")]]))
    run("a.jsonl", "--val_fraction", "0", "--tokenizer_file", "given.json")
    for name in (START, END):
        assert sum(index == tokenizer.token_to_id(name) for index in stored("train")[0]) == 2


def test_a_damaged_or_missing_mask_is_named_by_verify_and_by_train(tokenizer_file, capsys):
    write("a.jsonl", chat_lines(chats(200)))
    run("a.jsonl", "--val_fraction", "0.2", "--tokenizer_file", str(tokenizer_file))
    capsys.readouterr()
    assert pretokenize.main(["--verify", "data", "--peek", "2"]) == 0
    assert f"{START}assistant\nanswer " in capsys.readouterr().out.replace("\\n", "\n")
    for split in ("train", "val"):
        path = Path("data", f"{split}.mask")
        content, times = path.read_bytes(), (path.stat().st_atime_ns, path.stat().st_mtime_ns)
        flipped = bytes([content[0] ^ 1]) + content[1:]
        for damaged in (flipped, content[:-1], b"", content + b"\0", None):
            path.unlink() if damaged is None else path.write_bytes(damaged)
            if damaged is not None:
                os.utime(path, ns=times)
            assert path.name in refused("--verify", "data")
            error, _ = trained([*TINY, *QUIET, "--no-use_gpu", "--max_steps", "1"], capsys)
            assert getattr(error, "code", 0) == Exit.DATA
            assert path.name in str(error)
        path.write_bytes(content)
    metadata = Path("data/metadata.json").read_text()
    fields = json.loads(metadata)
    del fields["splits"]["train"]["mask_sha256"]
    write("data/metadata.json", json.dumps(fields))
    assert "train.mask" in refused("--verify", "data")
    write("data/metadata.json", metadata)
    files = ["--bin_file", "data/train.bin", "--tokenizer_file", "data/tokenizer.json"]
    error, _ = trained([*TINY, *QUIET, "--no-use_gpu", "--max_steps", "1", *files], capsys)
    assert getattr(error, "code", 0) == Exit.DATA
    assert pretokenize.main(["--verify", "data"]) == 0


def test_a_lone_copy_of_the_tokens_of_conversations_is_never_trained_whole_in_silence(tokenizer_file, capsys):
    write("a.jsonl", chat_lines(chats(200)))
    run("a.jsonl", "--val_fraction", "0", "--tokenizer_file", str(tokenizer_file))
    Path("lone").mkdir()
    shutil.copy("data/train.bin", "lone/x.bin")
    flags = [*TINY, *QUIET, "--no-use_gpu", "--max_steps", "1", "--output_dir"]
    error, _ = trained([*flags, "1", "--bin_file", "lone/x.bin", "--metadata_file", "data/metadata.json"], capsys)
    assert getattr(error, "code", 0) == Exit.DATA
    assert "lone/x.mask" in str(error)
    code, text = trained([*flags, "2", "--bin_file", "lone/x.bin", "--tokenizer_file", "data/tokenizer.json"], capsys)
    assert code == 0
    assert "warning: lone/x.bin" in text
    assert evaluate.main(["--ckpt", "2", "--tokens", "lone/x.bin", "data", "--no-use_gpu"]) == 0
    assert capsys.readouterr().err.count("warning: lone/x.bin") == 1
    code, text = trained([*flags, "3", "--bin_file", "data/train.bin", "--metadata_file", "data/metadata.json"], capsys)
    assert code == 0
    assert "data/train.bin" not in text
    assert load_tokenizer("3").get_vocab() == load_tokenizer("data").get_vocab()  # the one beside the metadata


def test_a_stray_text_among_the_first_conversations_is_a_bad_record():
    write("a.jsonl", chat_lines(chats(3)) + '{"text": "the cat"}\n' + chat_lines(chats(300)))
    assert run("a.jsonl", "--val_fraction", "0")["splits"]["train"]["documents"] == 303


# ---------------------------------------------------------------- validation on other conversations


def test_validation_tokens_of_another_folder_have_the_answers_that_their_metadata_names(tokenizer_file):
    flags = ["--tokenizer_file", str(tokenizer_file), "--val_fraction"]
    write("a.jsonl", chat_lines(chats(40)))
    write("b.jsonl", chat_lines(chats(60, seed=1)))
    write("c.txt", "once upon a time " * 9)
    run("a.jsonl", *flags, "0.5", output_dir="a")
    run("b.jsonl", *flags, "0", output_dir="b")
    run("b.jsonl", *flags, "0.3", output_dir="both")
    run("c.txt", *flags, "0.3", output_dir="text")
    masks = {"b": "b/train", "b/train.bin": "b/train", "both/val.bin": "both/val", "both": "both/val", "text": None}
    for val, counted in masks.items():
        stream = open_corpus(Path("a"), Path(val), Path("a/metadata.json"), None).val
        assert stream
        assert stream.parts[0].mask == (counted and Path(f"{counted}.mask").resolve())
    write("d.txt", "another text")
    run("d.txt", "--vocab_size", "300", "--val_fraction", "0", output_dir="other")
    with pytest.raises(UserError, match="tokens in other were made with another tokenizer"):
        open_corpus(Path("a"), Path("other"), Path("a/metadata.json"), None)
