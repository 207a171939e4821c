"""The server's own pages: what they may fetch, what they show of a running server, and how they look in a browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from sscc.runtime.serving.server.pages import FOLDER, PAGES
from tests.browser import LAPTOP, PHONE, chromium, opened_tab
from tests.runtime.server.fake import CONTEXT, NAME, Running, reply, running

HOSTILE = "<img src=x onerror=\"document.title='run'\">"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


def test_pages_are_files_that_may_run_no_other_script(server: Running) -> None:
    for path in PAGES:
        answer = httpx2.get(server.url + path)
        assert answer.status_code == 200
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["connect-src"] == "'self'"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in answer.text
    assert set(PAGES.values()) == {file.name for file in FOLDER.iterdir()}
    for path in ("/static/", "/static/pages.py", "/static/..%2fapp.py", "/index.html"):
        assert httpx2.get(server.url + path).status_code == 404


def test_the_key_guards_what_they_show() -> None:
    with running(api_key="secret") as server:
        assert httpx2.get(server.url).status_code == 200
        assert httpx2.get(f"{server.v1}/status").status_code == 401
        answer = httpx2.get(f"{server.v1}/status", headers={"authorization": "Bearer secret"})
        assert answer.json()["model"] == NAME


def test_status_tells_every_slot(server: Running) -> None:
    server.interpreter.go.clear()
    body = {"model": NAME, "prompt": "x" * 40, "max_tokens": 5, "temperature": 0}
    asked = threading.Thread(target=lambda: httpx2.post(f"{server.v1}/completions", json=body))
    asked.start()
    try:
        server.wait_for(running=1)
        status = httpx2.get(f"{server.v1}/status").json()
    finally:
        server.interpreter.go.set()
        asked.join()
    assert status["program"]["max_context"] == CONTEXT
    (busy,) = [slot for slot in status["slots"] if slot["phase"] != "free"]
    assert busy["phase"] == "decode"
    assert (busy["prompt_tokens"], busy["new_tokens"], busy["kept_rows"], busy["evicted_rows"]) == (40, 1, 16, 24)
    assert len(status["slots"]) == 3
    assert status["totals"]["new_tokens"] >= 1


@pytest.mark.parametrize(("size", "dark"), [(LAPTOP, False), (PHONE, True)], ids=["laptop", "phone in the dark"])
def test_a_person_sees_the_server_and_talks_to_it(
    size: tuple[int, int], dark: bool, server: Running, browser: Any
) -> None:
    with opened_tab(browser, server.url, size, dark=dark) as tab:
        page = tab.page
        page.wait_for_selector("#state.ok")
        assert page.title() == f"{NAME} - sscc"
        assert page.locator(".slot").count() == 3
        page.fill("#temperature", "0")
        page.fill("#text", HOSTILE)
        page.press("#text", "Enter")
        page.wait_for_selector(".figures-of")
        assert page.text_content(".user") == HOSTILE
        assert page.text_content(".assistant") == reply(f"u:{HOSTILE};a:")
        assert page.locator("#talk img").count() == 0
        page.wait_for_selector("#line[d]", state="attached")
        assert tab.problems == []
        assert tab.overflow() == 0
        assert {url for url in tab.requests if not url.startswith(server.url)} == set()


def test_a_thought_is_folded_and_a_cut_is_told(scripted: Running, says: Any, browser: Any) -> None:
    says("<think>Hm, <b>who</b>?</think>\n\nHello.")
    with opened_tab(browser, scripted.url, PHONE) as tab:
        page = tab.page
        page.wait_for_selector("#state.ok")
        page.click("#system-box summary")
        page.fill("#system", "Be kind.")
        page.fill("#text", "hi")
        page.press("#text", "Enter")
        page.wait_for_selector(".figures-of")
        assert page.text_content(".assistant > .said") == "Hello."
        assert page.text_content(".thought div") == "Hm, <b>who</b>?"
        assert not page.is_visible(".thought div")
        assert page.locator(".cut").count() == 0
        page.fill("#count", "3")
        page.fill("#text", "hi")
        page.press("#text", "Enter")
        page.wait_for_selector(".cut")
        assert tab.problems == []
        assert tab.overflow() == 0


MARKDOWN = """# Title <b>

A *word*, **two _words_**, `a < b` and [a page](https://example.org/a?b=1&c=2) or https://example.org/x.
[bad](javascript:alert(1)) <img src=x onerror=alert(1)>

* one
* two
  1. inner
  2. more
- three

> quoted
> **text**

| a | b |
|---|--:|
| 1 | `2` |

```python
def f(x):
    return "*no emphasis*"
```
---
last"""


def test_answers_are_markdown_and_never_markup(scripted: Running, says: Any, browser: Any) -> None:
    says(MARKDOWN)
    with opened_tab(browser, scripted.url, PHONE) as tab:
        page = tab.page
        page.wait_for_selector("#state.ok")
        page.fill("#count", "400")
        page.fill("#text", "hi")
        page.press("#text", "Enter")
        page.wait_for_selector(".figures-of")
        said = page.locator(".said")

        def texts(selector: str) -> list[str]:
            return said.locator(selector).all_text_contents()

        assert texts("h3") == ["Title <b>"]
        assert (texts("em"), texts("strong")) == (["word"], ["two _words_", "text"])
        assert texts(":not(pre) > code") == ["a < b", "2"]
        assert texts("pre code") == ['def f(x):\n    return "*no emphasis*"']
        links = [link.get_attribute("href") for link in said.locator("a").all()]
        assert links == ["https://example.org/a?b=1&c=2", "https://example.org/x"]
        assert said.locator("img, script, b").count() == 0
        assert "[bad](javascript:alert(1)) <img src=x onerror=alert(1)>" in (said.text_content() or "")
        assert [text.split("\n")[0].strip()[:5] for text in texts(":scope > ul > li")] == ["one", "twoin", "three"]
        assert texts("ol > li") == ["inner", "more"]
        assert (texts("th"), texts("td"), texts("hr")) == (["a", "b"], ["1", "2"], [""])
        assert texts("blockquote p") == ["quoted\ntext"]
        assert texts(":scope > p")[-1] == "last"
        assert tab.problems == []
        assert tab.overflow() == 0


def test_an_answer_by_a_schema(scripted: Running, says: Any, browser: Any) -> None:
    says('{"a": 1}')
    with opened_tab(browser, scripted.url, LAPTOP) as tab:
        page = tab.page
        page.wait_for_selector("#state.ok")
        page.click("#schema-box summary")
        page.fill("#schema", "{")
        page.fill("#text", "hi")
        page.press("#text", "Enter")
        page.wait_for_selector("#talk .error")
        assert page.input_value("#text") == "hi"
        page.fill("#schema", '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}')
        page.press("#text", "Enter")
        page.wait_for_selector(".figures-of")
        assert page.text_content(".said") == '{"a": 1}'
        assert tab.problems == []


def test_a_key_and_a_hostile_name(browser: Any) -> None:
    with (
        running(api_key="secret", name=HOSTILE, chat_template=None) as server,
        opened_tab(browser, server.url) as tab,
    ):
        page = tab.page
        page.wait_for_selector("#key-form:not([hidden])")
        page.fill("#key", "secret")
        page.click("#key-form button")
        page.wait_for_selector("#state.ok")
        assert page.text_content("#model") == HOSTILE
        assert page.text_content("#chat-title") == "Text completion"
        page.fill("#temperature", "0")
        page.fill("#text", "ab")
        page.click("#send")
        page.wait_for_selector(".figures-of")
        assert page.text_content(".assistant") == reply("ab")
        assert {problem for problem in tab.problems if "401" not in problem} == set()


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_the_api_is_documented_without_a_network(size: tuple[int, int], server: Running, browser: Any) -> None:
    with opened_tab(browser, f"{server.url}/docs", size) as tab:
        tab.page.wait_for_selector("section:nth-of-type(6)")
        shown = tab.page.inner_text("body")
        for text in ("/v1/chat/completions", "repetition_penalty", "/v1/status", "curl -N"):
            assert text in shown
        assert tab.problems == []
        assert tab.overflow() == 0
        assert {url for url in tab.requests if not url.startswith(server.url)} == set()
