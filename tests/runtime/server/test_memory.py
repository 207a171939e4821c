"""Release of free memory to the system."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from sscc.runtime.serving.server import freed_memory as memory
from sscc.runtime.serving.server.freed_memory import IdleTrim


def test_it_is_given_back_once_when_the_server_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[int] = []
    monkeypatch.setattr(memory, "IDLE_SECONDS", 0.05)

    async def requests() -> list[int]:
        idle, counts = IdleTrim(lambda: trims.append(1)), []
        with idle.busy():
            with idle.busy():
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            counts.append(len(trims))  # one is still answered
        for _ in range(10):
            with idle.busy():
                pass
        until = time.monotonic() + 30
        while not trims and time.monotonic() < until:
            await asyncio.sleep(0.01)
        counts.append(len(trims))
        await asyncio.sleep(0.2)
        return [*counts, len(trims)]

    assert asyncio.run(requests()) == [0, 1, 1]


def test_the_calls_are_those_of_the_library() -> None:
    """No call fails, with glibc or another C library."""
    memory.keep_little()
    memory.give_back()


_MADE_UP_WORDS = r"""
import random, re, sys
from tokenizers import Tokenizer, models, pre_tokenizers
from sscc.runtime.serving.server.freed_memory import keep_few_words

def used():
    return int(re.search(r"VmRSS:\s+(\d+)", open("/proc/self/status").read())[1]) / 1024

tokenizer = Tokenizer(models.BPE({chr(97 + n): n for n in range(26)}, []))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
if sys.argv[1] == "True":
    keep_few_words(tokenizer)
words = random.Random(0)
tokenizer.encode("some words to begin with")
before = used()
for _ in range(2000):
    tokenizer.encode(" ".join("".join(words.choices("abcdefgh", k=150)) for _ in range(10)))
print(used() - before)
"""


@pytest.mark.parametrize("bounded", [True, False])
def test_words_that_clients_make_up_are_not_all_remembered(bounded: bool) -> None:
    words = [sys.executable, "-c", _MADE_UP_WORDS, str(bounded)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert (float(done.stdout) < 15) == bounded  # MiB
