"""Adds up the findings of all blocks, refuses unusable text at once, and prints warnings at the end."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpt.common.errors import Exit, UserError
from gpt.common.progress import Progress
from gpt.common.words import first_of, several
from gpt.pretokenization.blocks import Findings, Reading, TextBlock
from gpt.pretokenization.files import Source
from gpt.pretokenization.json_lines import command_to_read, lines_of_widest_column
from gpt.pretokenization.sources import KINDS, is_table
from gpt.tokens.chat import REASONING

MAX_FAULTS = 0.01  # of a file's bytes, or of its records; fewer are replaced or left out, and counted
FEW_FAULTS = 3  # in any file: a stray byte in a short file is no sign of another encoding


@dataclass
class Report:
    """The findings of all blocks so far, and the findings of the newest source.

    In both, the reasons of first_replaced and first_bad_record begin with the place in the user's files.
    """

    sources: Sequence[Source]
    reading: Reading
    total: Findings = field(default_factory=Findings)
    source_index: int = -1
    in_source: Findings = field(default_factory=Findings)

    def add(self, block: TextBlock, findings: Findings) -> None:
        """Counts the findings of the next block; blocks come in the order of the sources.

        Raises UserError (exit 3) for bytes that are not UTF-8: for the first ones if strict_flag, else for more
        than three and 1% of the source's bytes. At the beginning of a source, raises the error of
        refuse_bad_records for the one before.
        """
        if block.source != self.source_index:
            self.refuse_bad_records()
            self.source_index, self.in_source = block.source, Findings()
        source, in_source = self.sources[block.source], self.in_source
        unit = "line" if block.rows is None else "row"
        if findings.first_replaced:
            byte, line, why = findings.first_replaced
            place = f"byte {byte:,}, {unit} {in_source.newlines + line + 1:,} of {source.shown}"
            if self.reading.strict_flag:
                raise UserError(Exit.DATA, f"not UTF-8: {why} at {place}. Correct the text, or leave out "
                                           f"{self.reading.strict_flag} to have such bytes replaced.")
            findings.first_replaced = byte, line, f"{place}, {why}"
        if findings.first_bad_record:
            line, why = findings.first_bad_record
            findings.first_bad_record = line, f"{unit} {in_source.newlines + line + 1:,} of {source.shown} {why}"
        self.total = self.total.plus(findings)
        self.in_source = found = in_source.plus(findings)
        if found.first_replaced and found.undecodable > max(FEW_FAULTS, MAX_FAULTS * source.text_bytes):
            raise source.error(f"is not UTF-8: {several(found.undecodable, 'place')} cannot be decoded, from "
                               f"byte {found.first_replaced[0]:,} on. Give its --encoding, such as cp1251 or "
                               "shift_jis. Beside files in UTF-8 convert it (iconv -f cp1251 -t utf-8 FILE > NEW).")

    def refuse_bad_records(self) -> None:
        """Raises UserError (exit 3) if more than three records and 1% of the newest source's hold no document.

        Does nothing with reading.allows_bad_records.
        """
        found = self.in_source
        most = max(FEW_FAULTS, MAX_FAULTS * found.records)
        if found.first_bad_record and found.bad_records > most and not self.reading.allows_bad_records:
            leave = ", or --allow_bad_records to leave them out" if found.bad_records < found.records else ""
            source = self.sources[self.source_index]
            raise source.error(f"has {found.records:,} records, and {found.bad_records:,} of them hold no document, "
                               f"the first: {found.first_bad_record[1]}. Give {KINDS[source.kind].form}{leave}.")

    def say(self, progress: Progress) -> None:
        """Warns of replaced bytes, skipped records, reasoning, and a separator that does not occur."""
        found = self.total
        if found.first_replaced:
            cure = (" If the text is in another encoding, such as cp1252 of Windows, make tokens of it with --encoding "
                    "cp1252 --overwrite." if found.undecodable else "")
            progress.warn(f"not UTF-8 and replaced by U+FFFD: {several(found.replaced, 'place')}, the first: "
                          f"{found.first_replaced[2]}.{cure}")
        if found.first_bad_record:
            progress.warn(f"skipped: {several(found.bad_records, 'record')} without a document, the first: "
                          f"{found.first_bad_record[1]}")
        if found.reasoned:
            progress.warn(f"{several(found.reasoned, 'turn')} with reasoning beside the content "
                          f"({', '.join(REASONING)}): the model does not learn it. Write it into the content, between "
                          "<think> and </think>, if it should.")
        if self.reading.separator and not found.separators:
            progress.warn(f"--document_separator {self.reading.separator!r} does not occur in any text file")

    def refuse_empty(self, num_bytes: int) -> None:
        """Raises UserError (exit 3) if the documents, num_bytes long, hold no text."""
        found = self.total
        if num_bytes < 2 or not found.has_text:
            why = (f"{several(found.bad_records, 'record')} skipped, the first: {found.first_bad_record[1]}. Give "
                   f"{KINDS[self.sources[self.source_index].kind].form}." if found.first_bad_record else
                   "It holds less than 2 bytes of text besides whitespace. Give a file with text.")
            raise UserError(Exit.DATA, f"there is no text in {names_of(self.sources)}. {why}")


def warn_of_unusual_texts(sources: Sequence[Source], progress: Progress) -> None:
    """Warns of the first text with Windows' line ends, and of the first table, which is read as plain text."""
    texts = [source for source in sources if source.kind == "text"]
    table = next((source for source in texts if is_table(source.path.name)), None)
    of_windows = next((source for source in texts if source.has_returns and not is_table(source.path.name)), None)
    if of_windows:
        cure = ("Save it with line ends of Unix." if of_windows.encoding else
                f"To drop them: {command_to_read(of_windows)} | tr -d '\\r' > unix.txt")
        progress.warn(f"{of_windows.shown} has Windows' line ends: to the model a \\r stands before each new line. "
                      f"{cure}")
    if table:
        progress.warn(f"{table.shown} is read as plain text: to the model its columns, commas and quotes are text too. "
                      f"{lines_of_widest_column(table)}")


def names_of(sources: Sequence[Source]) -> str:
    """The names of the first three files."""
    return first_of([source.shown.rpartition("/")[2] for source in sources])
