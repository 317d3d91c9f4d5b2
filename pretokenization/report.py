"""What reading a text brought up: counted while it is read, judged as it comes, said at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.errors import Exit, UserError
from common.progress import Progress
from common.words import printable, several
from pretokenization.blocks import Findings, Reading, TextBlock
from pretokenization.encodings import refuse_undecodable
from pretokenization.files import Source


@dataclass
class Report:
    """The findings of all blocks so far, in order, with names and places as the user knows them.

    What is counted is kept in the journal of a run.
    """

    sources: Sequence[Source]
    reading: Reading
    has_fields: bool = True  # there is a source that --text_field applies to
    has_text: bool = False
    replaced: int = 0
    first_replaced: str = ""
    bad_lines: int = 0
    first_bad_line: str = ""
    short_documents: int = 0
    separators: int = 0
    now_source: int = -1
    now_lines: int = 0
    now_undecodable: int = 0
    now_first: int = 0

    def state(self) -> dict[str, Any]:
        """All that add() has counted, for a later resumed()."""
        return {key: value for key, value in vars(self).items() if key not in ("sources", "reading", "has_fields")}

    def resumed(self, state: Mapping[str, Any]) -> Report:
        """This report, going on from the state of an earlier one."""
        vars(self).update(state)
        return self

    def add(self, block: TextBlock, found: Findings) -> None:
        """Counts the findings of the next block.

        Raises UserError (exit 3) for bytes that are not UTF-8 if strict, and as soon as there are too many of them.
        """
        if block.source != self.now_source:
            self.now_source, self.now_lines, self.now_undecodable = block.source, 0, 0
        source = self.sources[block.source]
        if found.first_replaced:
            byte, line, why = found.first_replaced
            place = f"byte {byte:,}, {found.unit} {self.now_lines + line + 1:,} of {source.shown}"
            if self.reading.strict:
                raise UserError(Exit.DATA, f"not UTF-8: {why} at {place}. Correct the text, or leave out --strict_utf8 "
                                           "to have such bytes replaced.")
            self.first_replaced = self.first_replaced or (f"{place}, {why}" if byte else place)
            self.now_first = self.now_first if self.now_undecodable else byte
        if found.first_bad_line and not self.first_bad_line:
            line, why = found.first_bad_line
            self.first_bad_line = f"{found.unit} {self.now_lines + line + 1:,} of {source.shown} {why}"
        self.has_text |= found.has_text
        self.replaced += found.replaced
        self.bad_lines += found.bad_lines
        self.short_documents += found.short_documents
        self.separators += found.separators
        self.now_lines += found.newlines
        self.now_undecodable += found.undecodable
        if found.undecodable:
            refuse_undecodable(source, self.now_undecodable, self.now_first)

    def say(self, progress: Progress) -> None:
        """Prints what was replaced or skipped in the text, and which flags had no effect."""
        reading = self.reading
        if self.replaced:
            progress.warn(f"not UTF-8 and replaced by U+FFFD: {several(self.replaced, 'place')}, the first: "
                          f"{self.first_replaced}")
        if self.bad_lines:
            progress.warn(f"skipped: {several(self.bad_lines, 'record')} without a document, the first: "
                          f"{self.first_bad_line}")
        if self.short_documents:
            short = f" of fewer than {reading.min_chars:,} characters" if reading.min_chars > 1 else ""
            progress.say(f"skipped: {several(self.short_documents, 'document' if short else 'blank document')}{short}")
        if reading.separator is not None and not self.separators:
            progress.warn(f"--document_separator {reading.separator!r} does not occur in any text file")
        if reading.text_field != "text" and not self.has_fields:
            progress.warn(f"--text_field {printable(reading.text_field)} has no effect: no .jsonl file is read")

    def nothing_there(self) -> UserError:
        """The error for text without a document."""
        why = "Apart from blanks it holds less than 2 bytes. Give a file with text."
        if self.bad_lines:
            is_object = "its fields are" in self.first_bad_line or "column" in self.first_bad_line
            cure = "Give --text_field." if is_object else "Give a file with one JSON object on each line."
            why = f"{several(self.bad_lines, 'record')} skipped, the first: {self.first_bad_line}. {cure}"
        return UserError(Exit.DATA, f"there is nothing to train on in {names_of(self.sources)}. {why}")


def names_of(sources: Sequence[Source]) -> str:
    """The names of the first three files."""
    return ", ".join(source.shown.rpartition("/")[2] for source in sources[:3]) + ", ..." * (len(sources) > 3)
