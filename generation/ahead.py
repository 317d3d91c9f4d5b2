"""The loop that makes several texts with a GraphDecoder: the GPU computes a step while the host reads the one before.

The host learns one step late that a text has ended, and has by then launched a step in which its row took part. Nothing
comes of that: the row's result is dropped, and the next text writes over what the row holds. So the texts are those of
the loop in sampling.py.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from common.errors import Exit, UserError
from generation.continuation import Continuation, Sampling
from generation.graphs import GraphDecoder, RowResult

AnyContinuation = TypeVar("AnyContinuation", bound=Continuation)


@dataclass
class Seat(Generic[AnyContinuation]):
    """A row's text: the ids of it that are no longer in the window, and the steps launched and not yet read."""

    text: AnyContinuation
    num_dropped: int
    num_ahead: int = 0

    @property
    def length(self) -> int:
        """The slots in use before the next launch."""
        return len(self.text.ids) - 1 - self.num_dropped + self.num_ahead

    @property
    def num_left(self) -> int:
        """The ids that may still be made, those launched not counted."""
        return self.text.max_new_tokens - len(self.text.log_probabilities) - self.num_ahead


@dataclass(frozen=True)
class Launched(Generic[AnyContinuation]):
    """A step that was launched: its number, and the texts that took part by their row."""

    number: int
    seats: dict[int, Seat[AnyContinuation]]


def decode_ahead(decoder: GraphDecoder, continuations: Iterable[AnyContinuation], sampling: Sampling,
                 end_ids: Container[int]) -> Iterator[AnyContinuation]:
    """As decode in sampling.py."""
    waiting = iter(continuations)
    seats: dict[int, Seat[AnyContinuation]] = {}
    unread: Launched[AnyContinuation] | None = None
    decoder.prepare(sampling)
    while True:
        _seat_texts(decoder, seats, waiting, sampling)
        launched = _launch(decoder, seats)
        if unread is not None:
            results = decoder.read(unread.number)
            if _are_void(unread, results):
                _return_to_what_was_read(decoder, seats)
                launched = None
            else:
                yield from _take_in(unread, results, end_ids)
        elif launched is None:
            return
        unread = launched


def _seat_texts(decoder: GraphDecoder, seats: dict[int, Seat[AnyContinuation]], waiting: Iterator[AnyContinuation],
                sampling: Sampling) -> None:
    """Gives free rows to the texts that wait; where a window is full, drops the older half of it."""
    for row in range(decoder.num_rows):
        seat = seats.get(row)
        if seat is not None and seat.text.finish:
            del seats[row]
            seat = None
        if seat is None:
            text = next(waiting, None)
            if text is not None:
                seats[row] = _sit_down(decoder, row, text, decoder.window, sampling)
        elif seat.length == decoder.window and not seat.num_ahead:
            seats[row] = _sit_down(decoder, row, seat.text, decoder.window // 2 or 1, sampling)


def _sit_down(decoder: GraphDecoder, row: int, text: AnyContinuation, most: int, sampling: Sampling,
              ) -> Seat[AnyContinuation]:
    """Makes a row hold the text's last ids, at most so many, and the random numbers of all steps until it is full."""
    ids = text.ids[-most:]
    seat = Seat(text, len(text.ids) - len(ids))
    decoder.fill(row, ids[:-1])
    decoder.place(row, text.ids, seat.length)
    if not sampling.is_greedy:
        num = min(decoder.window - seat.length, seat.num_left)
        decoder.give_uniforms(row, [text.uniform() for _ in range(num)])
    return seat


def _launch(decoder: GraphDecoder, seats: dict[int, Seat[AnyContinuation]]) -> Launched[AnyContinuation] | None:
    """Launches a step for the texts that can go on whatever the step before has found; None if there are none."""
    going = {row: seat for row, seat in seats.items() if seat.num_left > 0 and seat.length < decoder.window}
    if not going:
        return None
    number = decoder.launch(list(going))
    for seat in going.values():
        seat.num_ahead += 1
    return Launched(number, going)


def _are_void(step: Launched[AnyContinuation], results: list[RowResult]) -> bool:
    """True if a row needed more candidates than were sorted. Raises UserError (exit 6) for logits not finite."""
    of_texts = [results[row] for row, seat in step.seats.items() if not seat.text.finish]
    if not all(result.is_finite for result in of_texts):
        raise UserError(Exit.DIVERGED, "the model's logits are not finite: it diverged, or overflows in fp16. Give an "
                                       "earlier checkpoint, or --no-use_amp.")
    return not all(result.is_enough for result in of_texts)


def _return_to_what_was_read(decoder: GraphDecoder, seats: dict[int, Seat[AnyContinuation]]) -> None:
    """Drops all steps that were not taken in. Those that follow sort the whole vocabulary."""
    decoder.widen()
    for row, seat in seats.items():
        seat.num_ahead = 0
        decoder.place(row, seat.text.ids, seat.length)


def _take_in(step: Launched[AnyContinuation], results: list[RowResult], end_ids: Container[int],
             ) -> Iterator[AnyContinuation]:
    """Adds what the step has found to the texts that have not ended meanwhile; yields each of them."""
    for row, seat in step.seats.items():
        if seat.text.finish:
            continue
        seat.num_ahead -= 1
        if results[row].new_id in end_ids:
            seat.text.finish = "end_of_text"
        else:
            seat.text.add(results[row].new_id, results[row].log_probability)
        yield seat.text
