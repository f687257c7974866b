"""Filters of subscriptions and queries, in either syntax: AMPS's, or RQL, in which a property is a path in the message.

``/order/price > 10 AND /state == 'open'`` and ``and(gt(order/price,10),eq(state,"open"))`` select the same messages.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec

from ackstream.jobs.query.amps_filters import MAX_NODES, AmpsFilter, FilterSyntaxError, parse_filter
from ackstream.protocol.errors import DittoError
from ackstream.protocol.json import UNREADABLE
from ackstream.protocol.rql.effort import Effort
from ackstream.protocol.rql.evaluation import checked, matches
from ackstream.protocol.rql.parser import Combination, Membership, Node, leaves, parse

MAX_LENGTH: Final = 10_000
"""The maximum length of a filter, in characters."""

_VARIABLE = "${"

Selection: TypeAlias = AmpsFilter | Node
"""A condition in AMPS's syntax, or an RQL tree for :func:`fits_filter`."""

_TOP = "attributes"
"""Among the paths of a thing that RQL knows, only those below this one are free."""

_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


@lru_cache(maxsize=8_192)
def read_filter(text: str) -> Selection:
    """Parse a filter in AMPS's syntax, or else in RQL.

    :raises FilterSyntaxError: it is neither, or too large
    """
    if len(text) > MAX_LENGTH:
        raise FilterSyntaxError(f"The filter is longer than {MAX_LENGTH:,} characters.")
    if _VARIABLE in text:
        # Spark's language has variables of this form, with the secrets of the job among them
        place = text.index(_VARIABLE) + 1
        raise FilterSyntaxError(f"The filter has {_VARIABLE} from character {place} on: filters have no variables.")
    try:
        return parse_filter(text)
    except FilterSyntaxError as error:
        try:
            tree = checked(_below(parse(text)))
        except (DittoError, RecursionError):
            raise error from None
    if sum(1 + len(leaf.values) if isinstance(leaf, Membership) else 2 for leaf in leaves(tree)) > MAX_NODES:
        raise FilterSyntaxError(f"The filter has more than {MAX_NODES} properties and values.")
    return tree


def fits_filter(tree: Node, text: str | None) -> bool:
    """Return whether a message matches RQL; only a JSON object can, and what cannot be evaluated does not.

    Nor does one whose values take too much effort.
    """
    try:
        message = _decode_object(text or "")
    except UNREADABLE:
        return False
    try:
        return matches(tree, {_TOP: message}, effort=Effort())
    except Exception:  # noqa: BLE001 - one message would stop the results of all clients, at every start
        return False


def _below(node: Node) -> Node:
    if isinstance(node, Combination):
        return Combination(node.op, tuple(map(_below, node.args)))
    return msgspec.structs.replace(node, property=f"{_TOP}/{node.property.removeprefix('/')}")
