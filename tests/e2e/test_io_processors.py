"""IO processors of real distributions: a form that the model fills in, and chats with images, over HTTP and offline."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from corefw.errors import ConfigError, PluginError, RequestError
from corefw.llm import LLM, SamplingParams
from corefw.testing.server_process import Server, serving
from corefw.testing.tiny_models import write_tiny_llama
from plugins.io_multimodal.tests.media_files import bomb_png, data_url, image_file
from plugins.io_multimodal.tests.media_host import MediaHost, content, endless, hosting, redirect, status, trickle
from tests.sample_plugins.install import install_sample

_FLAGS = ("--dtype", "float32", "--kv-cache-memory", "64MiB", "--served-model-name", "colours")
_SMALL = {"dtype": "float32", "kv_cache_memory": 2**24}
_GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
RED, BLUE = data_url(image_file("red")), data_url(image_file("blue"))


@dataclass(frozen=True)
class Site:
    folder: Path
    model: Path

    @property
    def env(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.folder)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    install_sample("colours", folder)
    names = {"architectures": ["ColoursForCausalLM"], "io_processor_plugin": "multimodal"}
    model = write_tiny_llama(tmp_path_factory.mktemp("model"), **names)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VLLM_PLUGINS", raising=False)
        patch.syspath_prepend(folder)
        yield Site(folder, model)


@pytest.fixture(scope="module")
def inside() -> Iterator[MediaHost]:
    """A server that nobody may reach."""
    with hosting({"/secret": content(image_file())}) as host:
        yield host


@pytest.fixture(scope="module")
def host(inside: MediaHost) -> Iterator[MediaHost]:
    answers = {
        "/red": content(image_file("red")),
        "/octets": content(image_file("red"), "application/octet-stream"),
        "/moved": redirect("/red"),
        "/to-inside": redirect(f"{inside.url}/secret"),
        "/to-file": redirect("file:///etc/passwd"),
        "/to-metadata": redirect("http://169.254.169.254/latest/meta-data"),
        "/endless": endless,
        "/trickle": trickle,
        "/page": content(b"<html></html>", "text/html"),
        "/500": status(500),
    }
    with hosting(answers) as running:
        yield running


@pytest.fixture(scope="module")
def server(site: Site, host: MediaHost) -> Iterator[Server]:
    limits = {
        "private_hosts": [host.name],
        "allowed_media_domains": ["*"],
        "max_item_bytes": 2**20,
        "max_pixels": 10**6,
        "fetch_timeout_s": 3.0,  # what isn't slow on purpose has to come in time on a busy machine, too
    }
    flags = [text for name, value in limits.items() for text in (f"--multimodal.{name}", json.dumps(value))]
    with serving(str(site.model), *_FLAGS, *flags, env=site.env) as running:
        yield running


def image(url: str | None, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": None if url is None else {"url": url}, **fields}


def body(*parts: Any, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": [{"type": "text", "text": "What colour?"}, *parts]}]
    return {"messages": messages, "temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}


def chat(server: Server, *parts: Any, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/chat/completions", json=body(*parts, **fields), timeout=60)


def text(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    said: str = answer.json()["choices"][0]["message"]["content"]
    return said


def refused(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_images_reach_the_model_however_they_are_sent(server: Server, host: MediaHost) -> None:
    red, blue = text(chat(server, image(RED))), text(chat(server, image(BLUE)))
    assert red != blue
    for url in (f"{host.url}/red", f"{host.url}/moved", f"{host.url}/octets", data_url(image_file("red", form="BMP"))):
        assert text(chat(server, image(url))) == red
    assert text(chat(server, image(RED), image(BLUE))) != text(chat(server, image(BLUE), image(RED)))
    assert chat(server, image(RED)).json()["usage"]["prompt_tokens"] == 4 + _num_prompt_tokens(server)


def _num_prompt_tokens(server: Server) -> int:
    without: int = chat(server, {"type": "text", "text": ""}).json()["usage"]["prompt_tokens"]
    return without


def test_streamed_and_whole_say_the_same_and_give_no_ids_for_embeddings(server: Server) -> None:
    whole = chat(server, image(RED), return_token_ids=True, n=2).json()
    assert "prompt_token_ids" not in whole
    pieces = ["", ""]
    for line in chat(server, image(RED), stream=True, n=2).text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                pieces[choice["index"]] += choice["delta"].get("content", "")
    assert pieces == [choice["message"]["content"] for choice in whole["choices"]]


def test_an_id_stands_for_an_image_sent_earlier(server: Server) -> None:
    red = text(chat(server, image(RED, uuid="mine")))
    assert text(chat(server, image(None, uuid="mine"))) == red
    error = refused(chat(server, image(None, uuid="mine"), cache_salt="other"))
    assert error["param"] == "messages[0].content[1].uuid"
    assert refused(chat(server, image(None, uuid="unknown")))["code"] == "media_not_kept"


def test_nothing_inside_is_ever_asked(server: Server, host: MediaHost, inside: MediaHost) -> None:
    urls = [
        f"{inside.url}/secret",
        inside.url.replace("127.0.0.1", "localhost") + "/secret",
        inside.url.replace("127.0.0.1", "[::ffff:127.0.0.1]") + "/secret",
        f"{host.url}/to-inside",
        f"{host.url}/to-file",
        f"{host.url}/to-metadata",
        "http://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "ftp://127.0.0.1/x",
    ]
    for url in urls:
        error = refused(chat(server, image(url)))
        assert error["param"] == "messages[0].content[1]"
        assert url not in error["message"]
    assert inside.hits == []


_BROKEN = {
    "base64": "data:image/png;base64,@@@",
    "no comma": "data:image/png;base64",
    "empty": data_url(b""),
    "png cut": data_url(image_file("blue", size=(64, 64))[:-40]),
    "jpeg cut": data_url(image_file(size=(64, 64), form="JPEG")[:-80], "image/jpeg"),
    "text": data_url(b"I am a picture."),
    "wrong type": data_url(image_file(), "audio/wav"),
    "one pixel": data_url(image_file(size=(1, 1))),
    "bomb": data_url(bomb_png(20_000, 20_000)),
    "large file": data_url(bytes(2**20 + 3)),
    "endless": "HOST/endless",
    "trickle": "HOST/trickle",
    "page": "HOST/page",
    "500": "HOST/500",
    "404": "HOST/none",
    "unreachable": "http://127.0.0.1:1/x",
    "unknown host": "http://no-such-host.invalid/x",
}


@pytest.mark.parametrize("name", _BROKEN)
def test_damaged_huge_and_unreachable_images_are_the_clients_fault(server: Server, host: MediaHost, name: str) -> None:
    answer = chat(server, image(_BROKEN[name].replace("HOST", host.url)))
    assert refused(answer)["param"] == "messages[0].content[1]"


def test_a_modality_that_the_model_lacks_and_too_many_items_are_named(server: Server) -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    error = refused(chat(server, sound))
    assert error["message"].endswith("the model takes text and image only, no audio input")
    assert error["param"] == "messages[0].content[1].type"
    assert "at most 2 image items" in refused(chat(server, image(RED), image(RED), image(RED)))["message"]


def test_chats_beside_broken_ones_say_what_they_say_alone(server: Server, host: MediaHost) -> None:
    red = text(chat(server, image(RED)))
    urls = [RED, f"{host.url}/red", _BROKEN["bomb"], f"{host.url}/endless", _BROKEN["png cut"]] * 4
    with ThreadPoolExecutor(10) as threads:
        answers = list(threads.map(lambda url: chat(server, image(url)), urls))
    assert [answer.status_code for answer in answers] == [200, 200, 400, 400, 400] * 4
    assert {text(answer) for answer in answers if answer.status_code == 200} == {red}
    server.wait_idle()


def test_a_client_that_goes_while_its_image_comes_leaves_nothing(server: Server, host: MediaHost) -> None:
    gone = threading.Thread(target=_give_up, args=(server, f"{host.url}/trickle"))
    gone.start()
    gone.join()
    assert text(chat(server, image(RED)))
    server.wait_idle()


def _give_up(server: Server, url: str) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/chat/completions", json=body(image(url)), timeout=httpx.Timeout(60, read=0.3))


def test_offline_chats_with_images_say_the_same(site: Site, server: Server) -> None:
    with LLM(str(site.model), **_SMALL) as llm:  # type: ignore[arg-type]
        (result,) = llm.chat(body(image(RED))["messages"], _GREEDY)
        assert result.outputs[0].text == text(chat(server, image(RED)))
        with pytest.raises(RequestError, match="no audio input") as raised:
            llm.chat([{"role": "user", "content": [{"type": "audio_url", "audio_url": {"url": RED}}]}], _GREEDY)
        assert raised.value.param == "messages[0].content[0].type"
        with pytest.raises(RequestError, match="prompt 0: this server fetches no media"):
            llm.chat(body(image("https://example.com/x"))["messages"], _GREEDY)


def test_a_text_model_names_the_modality_that_it_lacks(site: Site) -> None:
    settings = {**_SMALL, "io_processor_plugin": "none"}
    lacking = pytest.raises(RequestError, match="the model takes text only, no image input")
    with LLM(str(site.model), **settings) as llm, lacking:  # type: ignore[arg-type]
        llm.chat(body(image(RED))["messages"], _GREEDY)


def test_a_form_is_filled_in_and_every_way_ends(site: Site) -> None:
    log = site.model / "forms.log"
    log.touch()
    flags = (*_FLAGS, "--io-processor-plugin", "form")
    with serving(str(site.model), *flags, env=site.env) as server:

        def send(data: Any, patience_s: float = 60, **fields: Any) -> httpx.Response:
            asked = {"data": data, "max_tokens": 6, "ignore_eos": True, **fields}
            timeout = httpx.Timeout(60, read=patience_s)
            return httpx.post(f"{server.url}/v1/completions", json=asked, timeout=timeout)

        answer = send({"fields": ["name", "age"]}).json()
        assert answer["data"].keys() == {"name", "age"}
        assert answer["usage"]["completion_tokens"] == 12
        plain = httpx.post(
            f"{server.url}/v1/completions",
            json={"prompt": "The age of a person is", "max_tokens": 6, "temperature": 0, "ignore_eos": True},
        ).json()
        assert answer["data"]["age"] == [plain["choices"][0]["text"]]
        assert refused(send({"fields": []}))["param"] == "data.fields"
        assert refused(send({"fields": 7}))["param"] == "data"
        assert refused(send({"fields": ["x" * 5000]}))["code"] == "context_length_exceeded"
        with pytest.raises(httpx.ReadTimeout):
            send({"fields": ["name"]}, patience_s=0.01, max_tokens=200)
        server.wait_idle()
        assert "form 1.0 (io_processor_plugins): active" in server.log
    assert log.read_text().count("closed") in (4, 5)  # the last client may have gone before its body was read
    log.unlink()


def test_a_form_is_filled_in_offline(site: Site) -> None:
    settings = {**_SMALL, "io_processor_plugin": "form"}
    with LLM(str(site.model), **settings) as llm:  # type: ignore[arg-type]
        form, plain = llm.generate([{"data": {"fields": ["name", "age"]}}, "The age of a person is"], _GREEDY)
        assert form.data.keys() == {"name", "age"}
        assert form.data["age"] == [plain.outputs[0].text]
        assert [output.text for output in form.outputs] == [form.data["name"][0], form.data["age"][0]]
        assert plain.data is None
        with pytest.raises(RequestError, match="prompt 1: a form has at least one field"):
            llm.generate(["x", {"data": {"fields": []}}], _GREEDY)
        with pytest.raises(RequestError, match="nothing else"):
            llm.generate([{"data": {"fields": []}, "prompt": "x"}], _GREEDY)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"io_processor_plugin": "fom"},
            r"'fom', asked for by --io-processor-plugin, isn't installed; installed: form, multimodal",
        ),
        ({"io_processor_plugin": "form", "plugins": "ColoursForCausalLM"}, "form.*not allowed"),
    ],
)
def test_a_processor_that_isnt_there_stops_the_start(site: Site, settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, PluginError), match=message):
        LLM(str(site.model), **_SMALL, **settings)


def test_what_the_model_names_is_looked_for_and_may_be_overruled(site: Site, tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path, architectures=["ColoursForCausalLM"], io_processor_plugin="absent")
    with pytest.raises(PluginError, match="io_processor_plugin in the model's configuration, isn't installed"):
        LLM(str(model), **_SMALL)  # type: ignore[arg-type]
    refusing = pytest.raises(RequestError, match="there is no IO processor")
    with LLM(str(model), **_SMALL, io_processor_plugin="none") as llm, refusing:  # type: ignore[arg-type]
        llm.generate({"data": 1}, _GREEDY)


def test_media_need_a_model_that_takes_them(site: Site, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no plugin says so of LlamaForCausalLM"):
        LLM(str(write_tiny_llama(tmp_path)), **_SMALL, io_processor_plugin="multimodal")  # type: ignore[arg-type]
