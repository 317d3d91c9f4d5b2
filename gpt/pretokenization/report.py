"""What reading a text brought up: counted while it is read, judged as it comes, said at the end."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpt.common.errors import Exit, UserError
from gpt.common.progress import Progress
from gpt.common.words import several
from gpt.pretokenization.blocks import Findings, Reading, TextBlock
from gpt.pretokenization.encodings import refuse_undecodable
from gpt.pretokenization.files import Source


@dataclass
class Report:
    """The findings of all blocks so far, in order, with names and places as the user knows them."""

    sources: Sequence[Source]
    reading: Reading
    has_text: bool = False
    replaced: int = 0
    first_replaced: str = ""
    bad_lines: int = 0
    first_bad_line: str = ""
    separators: int = 0
    now_source: int = -1
    now: Findings = field(default_factory=Findings)  # of this source

    def add(self, block: TextBlock, found: Findings) -> None:
        """Counts the findings of the next block.

        Raises UserError (exit 3) for bytes that are not UTF-8 if strict, and as soon as there are too many of them.
        """
        if block.source != self.now_source:
            self.now_source, self.now = block.source, Findings()
        source, now = self.sources[block.source], self.now
        if found.first_replaced:
            byte, line, why = found.first_replaced
            place = f"byte {byte:,}, {found.unit} {now.newlines + line + 1:,} of {source.shown}"
            if self.reading.strict:
                raise UserError(Exit.DATA, f"not UTF-8: {why} at {place}. Correct the text, or leave out --strict_utf8 "
                                           "to have such bytes replaced.")
            self.first_replaced = self.first_replaced or f"{place}, {why}"
            now.first_replaced = now.first_replaced if now.undecodable else found.first_replaced
        if found.first_bad_line and not self.first_bad_line:
            line, why = found.first_bad_line
            self.first_bad_line = f"{found.unit} {now.newlines + line + 1:,} of {source.shown} {why}"
        self.has_text |= found.has_text
        self.replaced += found.replaced
        self.bad_lines += found.bad_lines
        self.separators += found.separators
        now.newlines += found.newlines
        now.undecodable += found.undecodable
        refuse_undecodable(source, now)

    def say(self, progress: Progress) -> None:
        """Prints what was replaced or skipped in the text."""
        if self.replaced:
            progress.warn(f"not UTF-8 and replaced by U+FFFD: {several(self.replaced, 'place')}, the first: "
                          f"{self.first_replaced}")
        if self.bad_lines:
            progress.warn(f"skipped: {several(self.bad_lines, 'record')} without a document, the first: "
                          f"{self.first_bad_line}")
        if self.reading.separator and not self.separators:
            progress.warn(f"--document_separator {self.reading.separator!r} does not occur in any text file")

    def refuse_nothing(self, num_bytes: int) -> None:
        """Raises UserError (exit 3) if the documents found, of so many bytes, are nothing to train on."""
        if num_bytes >= 2 and self.has_text:
            return
        why = "Apart from blanks it holds less than 2 bytes. Give a file with text."
        if self.bad_lines:
            why = (f"{several(self.bad_lines, 'record')} skipped, the first: {self.first_bad_line}. Give --text_field, "
                   "or a file with one JSON object on each line.")
        raise UserError(Exit.DATA, f"there is nothing to train on in {names_of(self.sources)}. {why}")


def names_of(sources: Sequence[Source]) -> str:
    """The names of the first three files."""
    return ", ".join(source.shown.rpartition("/")[2] for source in sources[:3]) + ", ..." * (len(sources) > 3)
