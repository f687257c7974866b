"""The effort of evaluating a filter, in steps: the same for the same filter and values, on any machine and at any time.

A filter and the values that it is evaluated on come from different clients, and each of them may be within its limits
while every literal against every value takes minutes. A step is one to three microseconds.
"""

from __future__ import annotations

from ackstream.protocol.errors import BAD_REQUEST, error_factory

MAX_STEPS = 30_000
"""The steps that one evaluation may take: less than 100 ms, and enough for 100 comparisons with 300 values each."""

CHARACTERS = 100
"""As many characters of a text are looked at in one step."""

rql_expression_expensive = error_factory(
    BAD_REQUEST,
    "rql.expression.expensive",
    "Evaluating the RQL expression on these values takes more than {} steps.",
    "Compare with fewer values: each literal of the expression is compared with each element of an array, and each ? of"
    " a pattern is tried at each place of a text.",
)


class Effort:
    """The steps that are left."""

    __slots__ = ("_most", "left")

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self._most = self.left = steps

    def spend(self, steps: int) -> None:
        """Take some steps.

        :raises DittoError: 400 ``rql.expression.expensive``, no more are left
        """
        self.left -= steps
        if self.left < 0:
            raise rql_expression_expensive(self._most)

    @property
    def spent(self) -> int:
        """The steps taken."""
        return self._most - self.left
