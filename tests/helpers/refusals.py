"""Errors of the user, as a test expects them."""

import contextlib
from collections.abc import Iterator

import pytest

from gpt.common.errors import Exit, UserError


@contextlib.contextmanager
def refused(match: str = "", code: Exit | None = None) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expects a UserError whose message matches, with this exit code where one is given."""
    with pytest.raises(UserError, match=match or None) as caught:
        yield caught
    assert code is None or caught.value.code == code
