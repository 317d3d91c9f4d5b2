"""Conversations: the turns of a record, their one template (ChatML), and which of its tokens are answers.

    <|im_start|>user
    What is 2 + 2?<|im_end|>
    <|im_start|>assistant
    4<|im_end|>

A tokenizer's opening id comes before the first turn, as before any text. The answers are the assistant's words
with the <|im_end|> after them: a model learns these, and reads the rest. The template exists twice, as
segments_of for this program and as template_of in Jinja for others, and a test compares them. No text of a turn
becomes a special token: the names of special tokens get a space inside.

Source: OpenAI's ChatML (openai-python, chatml.md); the generation marks are transformers'.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from gpt.common.words import shell_word
from gpt.tokens.tokenizer import END, START, opening_ids

FIELDS = ("messages", "conversations")  # of a record, for its list of turns
SYSTEM = ("system", "system_prompt")  # of a record, for the system's turn
RATING = "label"  # of a record, in KTO's format: false for a bad answer
REASONING = ("reasoning_content", "reasoning", "thinking")  # of a turn, beside its content: not read
LEARNED = ("train", "training", "trainable")  # of a turn: false for context, as the weight 0
# Of a record with one question, which may be about a text, and its answer: Alpaca's,
# Dolly's, TRL's, GSM8K's names.
ASKED, ABOUT = ("instruction", "prompt", "question"), ("input", "context")
ANSWERED = ("output", "completion", "response", "answer")
NAMES = {"role": "content", "from": "value"}  # a turn's fields: the usual names, and ShareGPT's
ROLES = {"system": "system", "user": "user", "assistant": "assistant", "human": "user", "gpt": "assistant"}


class Turn(NamedTuple):
    """The words of one side; role is system, user or assistant."""

    role: str
    content: str
    counts: bool = True  # of an answer: it is learned


class Segment(NamedTuple):
    """A piece of a conversation that is encoded by itself, and the special token after it, '' for none."""

    text: str
    special: str
    counts: bool  # the text and the special token count in the loss


# ---------------------------------------------------------------- the turns of a record


def is_conversation(names: Collection[str]) -> bool:
    """True if fields of these names hold turns, or a question and its answer, and no text."""
    return "text" not in names and (not {*FIELDS}.isdisjoint(names) or _holds_answer(names))


def _holds_answer(names: Collection[str]) -> bool:
    """True if fields of these names hold a question and its answer."""
    return not ({*ASKED, *ABOUT}.isdisjoint(names) or {*ANSWERED}.isdisjoint(names))


def turns_of(record: Any) -> tuple[Turn, ...]:
    """Reads the turns of a record of JSON or of a table: {"messages": [{"role": ..., "content": ...}, ...]}.

    Accepts ShareGPT's names too: conversations, from, value, human, gpt; a field of SYSTEM beside the turns; and
    a question with its answer. Raises ValueError, with the reason for the user, for anything else and for a
    conversation without an answer to learn.
    """
    fields = record if isinstance(record, dict) else {}
    if fields.get(RATING) is False:
        raise ValueError(f"has an answer that is rated bad ({RATING})")
    read = [_turn_of(turn, f"turn {number}") for number, turn in enumerate(_unread_turns(fields), 1)]
    answers = [turn.content.strip() for turn in read if turn.role == "assistant" and turn.counts]
    if not answers or "" in answers:
        raise ValueError('has an empty answer (with "weight": 0 it is not learned)' if answers else
                         "has no answer to learn")
    name = next(filter(fields.get, SYSTEM), "")
    if name:
        system = _turn_of({"role": "system", "content": fields[name]}, f"the field {name}")
        if read[0] != system:  # the turns may begin with it
            read.insert(0, system)
    return tuple(read)


def num_reasoned(record: dict[str, Any]) -> int:
    """The number of a conversation's turns that hold reasoning beside their content."""
    return sum(any(turn.get(name) and isinstance(turn[name], str) for name in REASONING)
               for turn in _unread_turns(record))


def _unread_turns(fields: dict[str, Any]) -> list[Any]:
    """The turns of a record, as they stand there. Raises ValueError for a record without any."""
    lists = [fields[field] for field in FIELDS if fields.get(field) and isinstance(fields[field], list)]
    if not (lists or _holds_answer(fields)):
        raise ValueError(f"has no turns in a list {' or '.join(FIELDS)}, nor a question with an answer")
    return lists[0] if lists else _question_and_answer(fields)


def _question_and_answer(fields: dict[str, Any]) -> list[Any]:
    """The turns of a record with one question: the question, the text that it is about, if any, and the answer.

    Question and answer may be lists of turns, as in TRL; answers within the question are then not learned. Raises
    ValueError.
    """
    asked, about, answered = (next((name for name in names if fields.get(name) is not None), names[0])
                              for names in (ASKED, ABOUT, ANSWERED))
    if isinstance(fields.get(asked), list) and isinstance(fields.get(answered), list):
        context = ({**turn, "weight": 0} if isinstance(turn, dict) else turn for turn in fields[asked])
        return [*context, *fields[answered]]
    given = {name: fields[name] for name in (asked, about, answered) if fields.get(name) is not None}
    for name, value in given.items():
        if not isinstance(value, str):
            raise ValueError(f"has no text as its {name}")
    question = "\n\n".join(filter(str.strip, (given.get(asked, ""), given.get(about, ""))))
    if not question or fields.get("history"):
        raise ValueError("has an empty question" if not question else "has a history besides its question")
    return [{"role": "user", "content": question}, {"role": "assistant", "content": given.get(answered, "")}]


def _turn_of(turn: Any, which: str) -> Turn:
    """Reads one turn, which the message of a ValueError calls `which`."""
    fields = turn if isinstance(turn, dict) else {}
    role_field, content_field = next((names for names in NAMES.items() if fields.get(names[0]) is not None),
                                     ("role", "content"))
    role, content = fields.get(role_field), fields.get(content_field)
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError(f"has the {role_field} {role!r} in {which}, not one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise ValueError(f"has no text as the {content_field} of {which}")
    if _is_filled(fields.get("tool_calls")) or _is_filled(fields.get("function_call")):
        raise ValueError(f"has the call of a tool in {which}, which the template cannot hold")
    weight = fields.get("weight")
    if weight not in (None, 0, 1):
        raise ValueError(f"has the weight {weight!r} in {which}, not 0 or 1")
    return Turn(ROLES[role], content, weight != 0 and all(fields.get(name) != 0 for name in LEARNED))


def _is_filled(value: Any) -> bool:
    """False for a field that holds nothing, as a column of a table does in most of its rows."""
    return any(value.values()) if isinstance(value, dict) else bool(value) and value not in ("[]", "null")


# ---------------------------------------------------------------- the template


def segments_of(turns: Sequence[Turn], names: Sequence[str]) -> list[Segment]:
    """The segments of a conversation, whose ids follow each other; names are the special tokens of the tokenizer.

    The opening id before them is left out. An answer begins and ends without whitespace, so that it has the
    same ids in training as when it is generated.
    """
    segments = []
    for role, content, counts in turns:
        for name in names:
            content = content.replace(name, f"{name[0]} {name[1:]}")
        segments.append(Segment("", START, False))
        if role == "assistant":
            segments += [Segment("assistant\n", "", False), Segment(content.strip(), END, counts)]
        else:
            segments.append(Segment(f"{role}\n{content}", END, False))
        segments.append(Segment("\n", "", False))
    return segments


def template_of(tokenizer: Tokenizer) -> str:
    """The template of conversations in Jinja, as transformers' apply_chat_template and llama.cpp read it."""
    opening = "".join(str(tokenizer.id_to_token(index)) for index in opening_ids(tokenizer))
    return (
        (f"{{{{ {json.dumps(opening, ensure_ascii=False)} }}}}" if opening else "") +
        "{% for message in messages %}"
        "{% set said = namespace(text=message['content']) %}"
        f"{{% for name in {json.dumps(special_names(tokenizer), ensure_ascii=False)} %}}"
        "{% set said.text = said.text | replace(name, name[0] + ' ' + name[1:]) %}"
        "{% endfor %}"
        f"{{{{ '{START}' + message['role'] + '\\n' }}}}"
        "{% if message['role'] == 'assistant' %}"
        f"{{% generation %}}{{{{ said.text | trim + '{END}' }}}}{{% endgeneration %}}"
        f"{{% else %}}{{{{ said.text + '{END}' }}}}{{% endif %}}"
        "{{ '\\n' }}"
        "{% endfor %}"
        f"{{% if add_generation_prompt %}}{{{{ '{START}assistant\\n' }}}}{{% endif %}}")


# ---------------------------------------------------------------- the tokenizer's side


def special_names(tokenizer: Tokenizer) -> list[str]:
    """The special tokens that a text must not spell, in the order of their ids.

    A name of one character cannot be kept out. The template's own tokens are among them, even where the
    tokenizer does not call them special.
    """
    return [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items())
            if (token.special and len(token.content) > 1) or token.content in (START, END)]


def can_converse(tokenizer: Tokenizer) -> bool:
    """True if the tokenizer has ids for the template's special tokens."""
    return None not in map(tokenizer.token_to_id, (START, END))


def prompt_ids(turns: Sequence[Turn], tokenizer: Tokenizer) -> list[int]:
    """The ids of a conversation up to where the assistant's next answer begins; the tokenizer can converse."""
    ids: list[Any] = opening_ids(tokenizer)
    question = segments_of(turns, special_names(tokenizer))
    for text, special, _ in [*question, Segment("", START, False), Segment("assistant\n", "", False)]:
        ids += tokenizer.encode(text, add_special_tokens=False).ids
        ids += [tokenizer.token_to_id(special)] if special else []
    return ids


def how_to_converse(folder: object) -> str:
    """The commands that train a folder's model on conversations."""
    model = shell_word(folder)
    return ("Train it on conversations:\n"
            f"python pretokenize.py chats.jsonl --output_dir chats \\\n    --tokenizer_file {model}\n"
            f"python train.py --init_from {model} \\\n    --data_dir chats --output_dir chats-out")
