"""What reading a text brought up: counted while it is read, judged at the end of each file, said at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from common.errors import Exit, UserError
from common.progress import Progress
from common.words import printable, several
from pretokenization.blocks import Findings, Reading, TextBlock
from pretokenization.encodings import ALWAYS_REPLACED, advice, refuse_undecodable, sample_of_text
from pretokenization.files import Source


@dataclass
class Report:
    """The findings of all blocks so far, in order, with names and places as the user knows them.

    What is counted is kept in the journal of a run.
    """

    sources: Sequence[Source]
    reading: Reading
    has_fields: bool = True  # there is a source that --text_field applies to
    replaced: int = 0
    first_replaced: str = ""
    doubtful: list[tuple[int, int]] = field(default_factory=list)  # files hardly UTF-8: index, the first invalid byte
    bad_lines: int = 0
    first_bad_line: str = ""
    short_documents: int = 0
    separators: int = 0
    now_source: int = -1
    now_bytes: int = 0
    now_lines: int = 0
    now_undecodable: int = 0
    now_first: int = 0
    now_valid: int = 0

    def state(self) -> dict[str, Any]:
        """All that add() has counted, for a later resumed()."""
        return {key: value for key, value in vars(self).items() if key not in ("sources", "reading", "has_fields")}

    def resumed(self, state: Mapping[str, Any]) -> Report:
        """This report, going on from the state of an earlier one, which another version may have written."""
        known = {key.name for key in fields(self)} - {"sources", "reading", "has_fields"}
        vars(self).update({key: value for key, value in state.items() if key in known})
        return self

    def add(self, block: TextBlock, found: Findings) -> None:
        """Counts the findings of the next block.

        Raises UserError (exit 3) for bytes that are not UTF-8 if strict, and as soon as there are too many of them.
        """
        if block.source != self.now_source:
            self.end_source()
            self.now_source = block.source
            self.now_bytes = self.now_lines = self.now_undecodable = self.now_valid = 0

        name = self.sources[block.source].shown
        if found.first_replaced:
            byte, line, why = found.first_replaced
            place = f"byte {byte:,}, {found.unit} {self.now_lines + line + 1:,} of {name}"
            if self.reading.strict:
                raise UserError(Exit.DATA, f"not UTF-8: {why} at {place}. Correct the text, or leave out --strict_utf8 "
                                           "to have such bytes replaced.")
            self.first_replaced = self.first_replaced or (f"{place}, {why}" if byte else place)
            self.now_first = self.now_first if self.now_undecodable else byte
        if found.first_bad_line:
            line, why = found.first_bad_line
            place = f"{found.unit} {self.now_lines + line + 1:,} of {name}"
            self.first_bad_line = self.first_bad_line or f"{place} {why}"

        self.replaced += found.replaced
        self.bad_lines += found.bad_lines
        self.short_documents += found.short_documents
        self.separators += found.separators
        self.now_bytes += found.num_bytes
        self.now_lines += found.newlines
        self.now_valid += found.valid
        if found.undecodable and found.num_bytes:
            self.now_undecodable += found.undecodable
            self._judge(has_ended=False)

    def end_source(self) -> None:
        """Judges the source that ends: in damaged UTF-8 most characters are valid, in other encodings hardly any."""
        if self.now_source < 0 or not self.now_undecodable:
            return
        self._judge(has_ended=True)
        if self.now_undecodable > max(ALWAYS_REPLACED, 4 * self.now_valid):
            self.doubtful.append((self.now_source, self.now_first))
        self.now_undecodable = 0  # it is judged once

    def _judge(self, has_ended: bool) -> None:
        refuse_undecodable(self.sources[self.now_source], self.now_undecodable, self.now_bytes, self.now_first,
                           has_ended)

    def say(self, progress: Progress) -> None:
        """Prints what was replaced or skipped in the text, and which flags had no effect."""
        reading = self.reading
        if self.replaced:
            progress.warn(f"not UTF-8 and replaced by U+FFFD: {several(self.replaced, 'place')}, the first: "
                          f"{self.first_replaced}")
        if self.doubtful:
            index, first_byte = self.doubtful[0]
            more = f" and {several(len(self.doubtful) - 1, 'more file')}" * (len(self.doubtful) > 1)
            progress.warn(f"{self.sources[index].shown}{more}: hardly any character beyond ASCII is valid UTF-8. "
                          f"{advice(sample_of_text(self.sources[index], first_byte))}")
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
        names = ", ".join(Path(source.shown).name for source in self.sources[:3])
        names += ", ..." * (len(self.sources) > 3)
        why = "Apart from blanks it holds less than 2 bytes. Give a file with text."
        if self.bad_lines:
            is_object = "its fields are" in self.first_bad_line or "column" in self.first_bad_line
            cure = "Give --text_field." if is_object else "Give a file with one JSON object on each line."
            why = f"{several(self.bad_lines, 'record')} skipped, the first: {self.first_bad_line}. {cure}"
        return UserError(Exit.DATA, f"there is nothing to train on in {names}. {why}")
