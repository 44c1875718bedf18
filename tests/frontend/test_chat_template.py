from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from corefw.errors import ConfigError, RequestError
from corefw.frontend.chat_template import (
    ChatTemplate,
    SlowTemplateError,
    templates_of_directory,
    templates_of_gguf,
    templates_of_option,
)


def _many_steps(count: int) -> str:
    """Thousands of small steps, ``count`` times."""
    return f"{{% for i in range({count}) %}}{{% for j in range(5000) %}}{{% endfor %}}{{% endfor %}}"


def render(source: str, **variables: Any) -> str:
    template = ChatTemplate({"default": source})
    template.check()
    return template.render({"messages": [], **variables})


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if true %}\n  {% if true %}\nx\n  {% endif %}\n{% endif %}", "x\n"),
        ("{{ {'a': '<é>', 'b': [1, none]} | tojson }}", '{"a": "<é>", "b": [1, null]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{% generation %}hi{% endgeneration %}", "hi"),
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{% for i in range(4) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "023"),
        ("{% generation %}{% set x = 1 %}{% endgeneration %}{{ x is defined }}", "False"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ strftime_now('%Z%z') }}", ""),
        ("{{ unknown }}|{{ messages }}", "|[]"),
    ],
)
def test_templates_are_rendered_as_models_expect(source: str, expected: str) -> None:
    assert render(source) == expected


def test_a_template_refuses_with_its_own_words() -> None:
    with pytest.raises(RequestError, match=r"refuses the messages: roles must alternate$") as raised:
        render("{{ raise_exception('roles must alternate') }}")
    assert (raised.value.param, raised.value.status) == ("messages", 400)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' + 1 }}",
        "{{ unknown.attribute.deeper }}",
        "{{ 1 // 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('x' * 100000) }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_a_template_that_fails_or_breaks_out_is_a_request_error(source: str) -> None:
    with pytest.raises(RequestError) as raised:
        render(source)
    assert raised.value.param == "messages"
    assert len(raised.value.message) < 700


def test_without_a_template_the_message_says_so() -> None:
    with pytest.raises(RequestError, match=r"no chat template.*--chat-template"):
        ChatTemplate({}).render({"messages": []})


def test_a_template_that_isnt_valid_stops_the_start() -> None:
    with pytest.raises(ConfigError, match=r"isn't valid.*--chat-template"):
        ChatTemplate({"default": "{% if %}"}).check()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ 'x' * 10**9 }}", "memory"),
        ("{{ 'x' | center(1000000000) }}", "memory"),
        ("{{ '%999999999d' % n }}", "memory"),
        ("{{ [n] * 10**9 }}", "memory"),
        ("{{ {'a': 1} | tojson(indent=10**9) }}", "memory"),
        ("{% set s = namespace(x='x') %}{% for i in range(60) %}{% set s.x = s.x ~ s.x %}{% endfor %}", "memory"),
        ("{{ 'x' * (10**8 + n) }}", "limit"),
        ("{% macro f(n) %}{{ f(n) + f(n) }}{% endmacro %}{{ f(n) }}", "recursion"),
    ],
)
def test_a_template_that_would_eat_memory_is_refused(source: str, said: str) -> None:
    with pytest.raises(RequestError, match=f"can't render the messages: .*{said}"):
        render(source, n=1)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",  # many small steps
        "{{ n ** (n ** n) }}",  # one long one
    ],
)
def test_a_template_that_takes_too_long_is_stopped_and_the_next_messages_are_rendered(source: str) -> None:
    template = ChatTemplate({"default": f"{{% if n %}}{source}{{% else %}}well{{% endif %}}"})
    template.check()
    begin = time.process_time()
    with pytest.raises(RequestError, match="takes too long, and was stopped") as raised:
        template.render({"n": 9})
    assert time.process_time() - begin < 0.5, "it must not compute here"
    assert (raised.value.param, raised.value.status) == ("messages", 400)
    assert template.render({"n": 0}) == "well"


def test_a_template_that_takes_too_long_to_compile_stops_the_start() -> None:
    with pytest.raises(ConfigError, match=r"takes too long.*--chat-template"):
        ChatTemplate({"default": "{{ 9 ** (9 ** 9) }}"}).check()


def test_messages_in_a_benign_template_may_be_anything() -> None:
    template = ChatTemplate({"default": "{% for m in messages %}{{ m.content | trim }}{{ m | tojson }}{% endfor %}"})
    hostile = ["{{ 'x' * 10**9 }}", "{% for i in range(10**9) %}", "\ud800", "\x00", "x" * 2**20, "%s%n{0.__class__}"]
    rendered = template.render({"messages": [{"content": content} for content in hostile]})
    assert all(content.strip() in rendered for content in hostile)
    many = template.render({"messages": [{"content": ""}] * 100_000})
    assert len(many) == 100_000 * len('{"content": ""}')


def test_a_variable_that_isnt_data_is_a_request_error() -> None:
    with pytest.raises(RequestError, match="must be plain data"):
        ChatTemplate({"default": "x"}).render({"x": lambda: 1})


def test_threads_may_render_at_once() -> None:
    template = ChatTemplate({"default": "{{ n }}" * 1000})
    with ThreadPoolExecutor(8) as threads:
        texts = list(threads.map(lambda n: template.render({"n": n}), range(200)))
    assert texts == [str(n) * 1000 for n in range(200)]


def test_the_process_ends_with_its_template() -> None:
    template = ChatTemplate({"default": "{{ pid }}"})
    template.check()
    assert template._processes is not None
    pid = template._processes._first._child.pid
    assert Path(f"/proc/{pid}").exists()
    del template
    gc.collect()
    assert not Path(f"/proc/{pid}").exists()


def test_a_process_that_was_killed_is_replaced() -> None:
    template = ChatTemplate({"default": "well"})
    template.check()
    assert template._processes is not None
    template._processes._first._child.kill()
    template._processes._first._child.wait(10)
    assert template.render({}) == "well"


def test_a_process_that_is_killed_while_it_renders_costs_no_answer() -> None:
    template = ChatTemplate({"default": _many_steps(1_000) + "well"})
    template.check()
    assert template._processes is not None
    child = template._processes._first._child
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(template.render, {})
        time.sleep(0.02)
        assert not answer.done()
        child.kill()
        assert answer.result() == "well"


def test_a_process_that_took_too_long_is_replaced_at_once() -> None:
    template = ChatTemplate({"default": "{{ n ** (n ** n) }}"})
    with pytest.raises(RequestError, match="takes too long"):
        template.render({"n": 9})
    assert template._processes is not None
    assert template._processes._first._child.poll() is None


def test_others_are_rendered_while_one_does_not_end() -> None:
    template = ChatTemplate({"default": f"{{% if n %}}{_many_steps(100_000)}{{% endif %}}well"})
    template.check()
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(template.render, {"n": 1})
        time.sleep(0.05)
        assert [template.render({}) for _ in range(20)] == ["well"] * 20
        assert not slow.done()
        with pytest.raises(RequestError, match="takes too long"):
            slow.result()


@pytest.mark.parametrize("source", [_many_steps(100_000), "{{ n ** (n ** n) }}"], ids=["many steps", "one long step"])
def test_the_quick_lane_gives_up_what_is_slow_and_goes_on(source: str) -> None:
    template = ChatTemplate({"default": f"{{% if n %}}{source}{{% endif %}}well"})
    template.check()
    begin_s = time.monotonic()
    with pytest.raises(RequestError, match="takes too long"):
        template.render({"n": 9}, lane="slow")
    limit_s = time.monotonic() - begin_s
    for _ in range(3):
        with pytest.raises(SlowTemplateError):
            template.render({"n": 9}, lane="quick")
        assert template.render({"n": 0}, lane="quick") == "well"
    assert time.monotonic() - begin_s < 3 * limit_s, "giving up takes less than the limit"


def test_what_takes_longer_than_a_moment_is_rendered_all_the_same() -> None:
    template = ChatTemplate({"default": _many_steps(1_000) + "well"})
    with pytest.raises(SlowTemplateError):
        template.render({}, lane="quick")
    assert [template.render({}), template.render({}, lane="slow")] == ["well"] * 2


def test_the_limit_holds_where_its_signal_was_ignored_and_blocked() -> None:
    code = (
        "import signal\n"
        "from corefw.frontend.chat_template import ChatTemplate\n"
        "signal.signal(signal.SIGPROF, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF})\n"
        "try: ChatTemplate({'default': '{{ n ** (n ** n) }}'}).render({'n': 9})\n"
        "except Exception as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "takes too long" in done.stdout, done.stderr


def test_variables_beyond_the_limit_are_refused() -> None:
    with pytest.raises(RequestError, match=r"take \d+ bytes"):
        ChatTemplate({"default": "x"}).render({"x": "y" * (64 * 2**20)})


def test_what_a_template_says_is_valid_text() -> None:
    with pytest.raises(RequestError, match="the chat template refuses") as raised:
        render("{{ raise_exception('no \\ud800') }}")
    assert str(raised.value).encode().endswith(b": no ?")


def test_the_process_ends_with_its_parent_even_while_it_computes() -> None:
    code = (
        "import os, threading, time\n"
        "from corefw.frontend.chat_template import ChatTemplate\n"
        "t = ChatTemplate({'default': '{{ n ** (n ** n) }}'}); t.check()\n"
        "print(t._processes._first._child.pid, flush=True)\n"
        "threading.Thread(target=t.render, args=({'n': 9},), daemon=True).start()\n"
        "time.sleep(0.2); os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    child = Path(f"/proc/{int(done.stdout)}")
    end = time.monotonic() + 30
    while child.exists() and child.joinpath("stat").read_text().split()[2] != "Z" and time.monotonic() < end:
        time.sleep(0.05)
    assert time.monotonic() < end


def test_tools_choose_the_template_for_tools() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "tools"})
    assert template.render({"tools": [{}]}) == "tools"
    assert template.render({"tools": None}) == "plain"


def test_the_option_is_a_file_or_the_text_itself(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{{ 1 }}", encoding="utf-8")
    assert templates_of_option(str(file)) == templates_of_option("{{ 1 }}") == {"default": "{{ 1 }}"}
    with pytest.raises(ConfigError, match="neither a readable file nor template text"):
        templates_of_option(str(tmp_path / "missing.jinja"))
    with pytest.raises(ConfigError):
        templates_of_option("x" * 10_000)


def test_a_gguf_file_has_one_template_and_perhaps_named_ones() -> None:
    metadata = {
        "tokenizer.chat_template": "d",
        "tokenizer.chat_template.tool_use": "t",
        "tokenizer.chat_templates": ["x"],
    }
    assert templates_of_gguf(metadata) == {"default": "d", "tool_use": "t"}
    assert templates_of_gguf({}) == {}


def test_a_directory_has_a_template_file_or_an_entry(tmp_path: Path) -> None:
    assert templates_of_directory(tmp_path) == {}
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps({"chat_template": "c"}), encoding="utf-8")
    assert templates_of_directory(tmp_path) == {"default": "c"}
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    settings.write_text(json.dumps({"chat_template": named}), encoding="utf-8")
    assert templates_of_directory(tmp_path) == {"default": "d", "tool_use": "t"}
    (tmp_path / "chat_template.jinja").write_text("j", encoding="utf-8")
    assert templates_of_directory(tmp_path) == {"default": "j"}


def test_a_parent_that_goes_early_leaves_no_complaint() -> None:
    code = (
        "import os\n"
        "from corefw.frontend.chat_template import ChatTemplate\n"
        "t = ChatTemplate({'default': 'x'}); os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)  # till both end
    assert done.returncode == -9
    assert done.stderr == b""
