"""Makes conversations to tune a model with, and questions to ask it afterwards, from Python's standard library.

    python -m tests.helpers.conversations chats          # writes chats/train.jsonl and chats/held_out.jsonl

Facts (which module has a function) are learned by heart in four phrasings and asked in a fifth, which training has
for other functions only. Sums and words spelled backwards follow rules, and are asked for numbers and words that no
training question of the rule has. Other questions are refused. The answers to rules show their steps: a small model
learns these within minutes, and bare sums not. A record has its kind beside the messages. The same
Python always writes the same files.
"""

from __future__ import annotations

import json
import random
import re
import sys
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NUM_FACTS, FACTS_OF_A_MODULE, FACT_COPIES = 120, 2, 3
NUM_SUMS, NUM_WORDS, NUM_REFUSALS = 2000, 4500, 400
NUM_HELD_OUT = 100  # questions of each rule
LONGEST_WORD = 7  # letters; the words asked afterwards are shorter

ASKS_FACT = ("Which module has the function {}?", "Where is the function {} defined?",
             "In which module do I find {}?", "The function {} is in which module?", "What do I import to call {}?")
ASKS_REFUSED = ("What is the weather in {}?", "What is the telephone number of {}?", "Who will win the match in {}?")
REFUSAL = "I cannot know that."

Conversation = dict[str, Any]


def conversation(kind: str, question: str, answer: str) -> Conversation:
    """A record of one question and its answer."""
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
            "kind": kind}


# ---------------------------------------------------------------- facts


def facts(texts: dict[str, str], rng: random.Random) -> list[tuple[str, str]]:
    """Functions that one module alone defines, each with the module's name."""
    modules = defaultdict(set)
    for module, text in texts.items():
        for function in re.findall(r"^def ([a-z][a-z_]{4,11})\(", text, re.MULTILINE):
            modules[function].add(module)
    functions = defaultdict(list)
    for function, owners in modules.items():
        if len(owners) == 1:
            functions[owners.pop()].append(function)
    pairs = [(function, module) for module, names in functions.items() if not module.startswith("_")
             for function in rng.sample(names, min(len(names), FACTS_OF_A_MODULE))]
    return rng.sample(pairs, min(len(pairs), NUM_FACTS))


# ---------------------------------------------------------------- rules


def added(left: int, right: int) -> str:
    """The answer to a sum: digit by digit, so that each token follows from few others."""
    units, carry = left % 10 + right % 10, " + 1" * (left % 10 + right % 10 > 9)
    tens = left // 10 + right // 10 + units // 10
    return f"{left % 10} + {right % 10} = {units}, {left // 10} + {right // 10}{carry} = {tens}: {left + right}"


def spelled_backwards(word: str) -> str:
    """The answer to a word: its letters, and the same from the last to the first."""
    return f"{' '.join(word)}: {' '.join(reversed(word))}"


def rules(texts: dict[str, str], rng: random.Random) -> Iterator[list[Conversation]]:
    """The conversations of each rule; the last NUM_HELD_OUT are not for training."""
    pattern = rf"(?<![\w'])[a-z]{{3,{LONGEST_WORD}}}(?![\w'])"
    spread = Counter(word for text in texts.values() for word in sorted(set(re.findall(pattern, text))))
    words = rng.sample(sorted(spread), len(spread))
    # A word of one module alone is often no word but a name, such as tzi.
    asked = [word for word in words if len(word) < LONGEST_WORD and spread[word] > 1][:NUM_HELD_OUT]
    words = [word for word in words if word not in asked][:NUM_WORDS]
    # Of 37 + 48 and 48 + 37 one alone is made, so that no held-out sum is a trained one turned around.
    sums = [tuple(rng.sample((left, right), 2)) for left in range(10, 100) for right in range(10, left + 1)]
    sums = rng.sample(sums, NUM_SUMS + NUM_HELD_OUT)
    yield [conversation("sum", f"What is {left} + {right}?", added(left, right)) for left, right in sums]
    yield [conversation("word", f"Spell {word} backwards.", spelled_backwards(word)) for word in words + asked]
    yield [conversation("refusal", rng.choice(ASKS_REFUSED).format(word.title()), REFUSAL)
           for word in words[:NUM_REFUSALS] + asked]


# ---------------------------------------------------------------- the command


def main(folder: Path) -> None:
    """Writes both files."""
    rng = random.Random(1)
    texts = {path.stem: path.read_text("utf-8") for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))}
    chosen = facts(texts, rng)
    train, held_out = [], []
    for number, (function, module) in enumerate(chosen):
        asked = [conversation("fact", ask.format(function), module) for ask in ASKS_FACT]
        held_out.append(asked.pop(number % len(asked)))
        train += asked * FACT_COPIES
    for conversations in rules(texts, rng):
        train += conversations[:-NUM_HELD_OUT]
        held_out += conversations[-NUM_HELD_OUT:]
    rng.shuffle(train)

    folder.mkdir(parents=True, exist_ok=True)
    for name, records in ("train.jsonl", train), ("held_out.jsonl", held_out):
        (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
        print(f"{folder / name}: {len(records):,} conversations")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.helpers.conversations FOLDER")
    main(Path(sys.argv[1]))
