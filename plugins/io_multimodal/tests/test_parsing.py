"""Content parts: order, counts, ids, and what is malformed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from corefw.errors import RequestError
from corefw.interfaces.hooks.media import MediaItem
from corefw_io_multimodal.kept import KeptItems
from corefw_io_multimodal.parsing import parse_messages
from corefw_io_multimodal.sources import Encoded
from corefw_io_multimodal.tracker import MediaTracker

LIMITS = {"image": 2, "audio": 1, "video": 0}


def image(url: Any = "data:,x", **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}, **fields}


def parse(*parts: Any) -> MediaTracker:
    tracker = MediaTracker(LIMITS)
    parse_messages([{"role": "system", "content": "hi"}, {"role": "user", "content": list(parts)}], tracker)
    return tracker


def test_items_keep_their_order_and_leave_marks_in_their_places() -> None:
    tracker = MediaTracker(LIMITS)
    sound = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}, "uuid": "s"}
    content = [{"type": "text", "text": "look"}, image("data:,1"), sound, "and", image("data:,2", uuid="b")]
    before = [{"role": "user", "content": content}, {"role": "assistant", "content": "ok"}]
    parsed = parse_messages(before, tracker)
    assert [(item.modality, item.source, item.media_id) for item in tracker.items] == [
        ("image", "data:,1", None),
        ("audio", Encoded("aGk=", "audio/wav"), "s"),
        ("image", "data:,2", "b"),
    ]
    assert [item.path for item in tracker.items] == [f"messages[0].content[{i}]" for i in (1, 2, 4)]
    assert tracker.counts == {"image": 2, "audio": 1}
    marks = [item.mark for item in tracker.items]
    assert parsed[0]["content"] == [
        {"type": "text", "text": "look"},
        {"type": "text", "text": marks[0]},
        {"type": "text", "text": marks[1]},
        "and",
        {"type": "text", "text": marks[2]},
    ]
    assert parsed[1] == before[1]
    assert len(set(marks)) == 3
    assert content[1] == image("data:,1")


def test_more_items_than_the_model_takes_are_refused_at_the_first_that_is_too_many() -> None:
    with pytest.raises(RequestError, match="at most 2 image items") as raised:
        parse(image(), image(), image())
    assert raised.value.param == "messages[1].content[2]"


def test_a_modality_that_the_model_lacks_is_named() -> None:
    with pytest.raises(RequestError, match="takes text and audio and image only, no video input") as raised:
        parse({"type": "video_url", "video_url": {"url": "data:,x"}})
    assert raised.value.param == "messages[1].content[0].type"


def test_an_id_may_stand_alone() -> None:
    for value in (None, {}):
        (item,) = parse({"type": "image_url", "image_url": value, "uuid": "a"}).items
        assert (item.source, item.media_id) == (None, "a")


@pytest.mark.parametrize(
    ("part", "path"),
    [
        (image(None), "image_url.url"),
        (image(""), "image_url.url"),
        (image(["x"]), "image_url.url"),
        (image(extra=1), "extra"),
        (image(uuid=""), "uuid"),
        (image(uuid=7), "uuid"),
        (image(uuid="x" * 257), "uuid"),
        ({"type": "image_url", "image_url": 7}, "image_url"),
        ({"type": "image_url", "image_url": {"url": "x", "size": 1}}, "image_url.size"),
        ({"type": "image_url"}, ""),
        ({"type": "input_audio", "input_audio": "x"}, "input_audio"),
        ({"type": "input_audio", "input_audio": {"data": 1, "format": "wav"}}, "input_audio.data"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "exe"}}, "input_audio.format"),
        ({"type": "input_image", "image_url": "x"}, "type"),
    ],
)
def test_a_malformed_part_is_refused_with_its_path(part: Any, path: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse(part)
    assert raised.value.param == f"messages[1].content[0].{path}".rstrip(".")


def _item(num_bytes: int) -> MediaItem:
    return MediaItem(modality="image", pixels=np.zeros((1, num_bytes, 3), np.uint8))


def test_kept_items_are_the_last_used_and_belong_to_their_salt() -> None:
    kept = KeptItems(10_000)
    first = _item(1000)
    kept.put(None, "a", first)
    kept.put(None, "b", _item(1000))
    assert kept.get(None, "image", "a") is first
    assert kept.get("tenant", "image", "a") is None
    assert kept.get(None, "audio", "a") is None
    kept.put(None, "c", _item(1000))
    assert kept.get(None, "image", "b") is None
    assert kept.get(None, "image", "a") is first
    kept.put(None, "a", _item(10))
    assert kept.get(None, "image", "a") is not first
    kept.put(None, "huge", _item(9000))
    assert kept.get(None, "image", "huge") is None


def test_nothing_is_kept_where_nothing_may_be() -> None:
    kept = KeptItems(0)
    kept.put(None, "a", _item(1))
    assert kept.get(None, "image", "a") is None
