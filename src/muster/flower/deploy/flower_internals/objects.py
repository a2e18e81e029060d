"""The objects that a message consists of: fetched with short waits, and no more than a message may have."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any

from flwr.app import Array
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_children_ids_from_object_content,
    get_object_type_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, pull_objects

#: A message can be seen before its objects are uploaded. Flower waits 1 to 10 s before it asks for them again,
#: which is longer than all the rest of an exchange.
pull_patiently = partial(pull_objects, initial_backoff=0.02, backoff_cap=0.5)
#: Objects of an honest answer beside the pieces of its vectors; the least bytes of such a piece (Flower's own have
#: 5 MB).
_MAX_OBJECTS, _LEAST_CHUNK = 100, 2**16


def object_ids(tree: Any, max_bytes: int) -> list[str]:
    """The objects of a message, if they are not more than such a message can have."""
    most = _MAX_OBJECTS + max_bytes // _LEAST_CHUNK
    ids = [node.object_id for node in islice(iterate_object_tree(tree), most + 1)]
    if len(ids) > most:
        raise too_large(max_bytes, f"more than {most} objects")
    return ids


def check_inflated(contents: Mapping[str, bytes], limit: int) -> None:
    """Refuse vectors that are larger than what was downloaded for them: a vector may list a piece many times."""
    weight = 0
    for content in contents.values():
        if get_object_type_from_object_content(content) == Array.__name__:
            pieces = get_object_children_ids_from_object_content(content)
            listed = json.loads(get_object_body(content, Array))["arraychunk_ids"]
            weight += sum(len(contents[pieces[position]]) for position in listed)
    if weight > limit:
        raise too_large(limit, f"vectors of {weight:,} bytes")


def too_large(limit: int, found: str) -> ObjectPullError:
    """What is said of a message that is larger than it may be."""
    return ObjectPullError("of an answer", f"{found}, where a message may have {limit:,} bytes")


class Limited:
    """Pulls objects until together they are too large. Two are pulled at a time, so up to two may be in excess."""

    def __init__(self, pull: Callable[[str], bytes], limit: int) -> None:
        self._pull, self._limit, self._weight = pull, limit, 0

    def __call__(self, object_id: str) -> bytes:
        if self._weight > self._limit:
            raise too_large(self._limit, f"{self._weight:,} bytes and more")
        content = self._pull(object_id)
        self._weight += len(content)
        return content
