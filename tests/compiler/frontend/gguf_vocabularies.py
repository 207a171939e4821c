"""Published vocabularies with the token ids that the models' own tokenizers give, reduced to what these cases need.

    python -m tests.compiler.frontend.gguf_vocabularies FOLDER

reads ggml-vocab-NAME.gguf, .gguf.inp and .gguf.out in the folder `models` of llama.cpp's source, and writes
gguf_vocabularies.json.gz beside this file. Of each vocabulary it keeps the tokens that are part of a case's text,
spelled as the vocabulary spells it, and the merges that make these; all tokens of single letters and of bytes; all
control tokens and those with a role. A token that is not part of a text cannot come about in it, however the text is
split. So a reduced vocabulary gives the same tokens for the cases as the whole one. llama.cpp publishes all of them
under the MIT licence.
"""

from __future__ import annotations

import argparse
import gzip
import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from sscc.compiler.frontend.gguf.header import GgufHeader, read_header
from sscc.compiler.frontend.gguf.tokenizer import tokenizer_files
from sscc.runtime.text.tokenizer import byte_of_letter
from tests.compiler.frontend.gguf_metadata import (
    BYTE,
    CONTROL,
    MERGES,
    SCORES,
    SPACE,
    TOKENS,
    TYPES,
    USER_DEFINED,
    header_of,
)

FILE = Path(__file__).with_suffix(".json.gz")
SEPARATOR = "\n__ggml_vocab_test__\n"
SHOWN_USER_DEFINED = 4
"""User-defined tokens that are kept although no case has them."""


@dataclass(frozen=True)
class Published:
    """A vocabulary, and texts with the tokens that its model's own tokenizer gives for them, no special ones added."""

    name: str
    header: GgufHeader
    cases: Sequence[tuple[str, list[int]]]


@cache
def published() -> dict[str, Published]:
    """Return the reduced vocabularies by name."""
    data = json.loads(gzip.decompress(FILE.read_bytes()))
    return {
        name: Published(
            name,
            header_of(entry["metadata"], name),
            list(zip(data["texts"][entry["texts"]], entry["ids"], strict=True)),
        )
        for name, entry in data["vocabularies"].items()
    }


def published_tokenizer(name: str) -> Tokenizer:
    return Tokenizer.from_str(tokenizer_files(published()[name].header)["tokenizer.json"].decode())


def whole(folder: Path) -> Iterator[Published]:
    """Yield the vocabularies in llama.cpp's folder that have cases."""
    for path in sorted(folder.glob("ggml-vocab-*.gguf")):
        texts, results = path.with_suffix(".gguf.inp"), path.with_suffix(".gguf.out")
        if texts.is_file():
            ids = [list(map(int, line.split())) for line in results.read_text().splitlines()]
            cases = texts.read_text("utf-8").split(SEPARATOR)[: len(ids)]
            name = path.stem.removeprefix("ggml-vocab-")
            yield Published(name, read_header(path), list(zip(cases, ids, strict=True)))


# -------------------------------------------------------------------------------------------------- to reduce them


def spellings(text: str) -> Iterator[str]:
    """Yield a text as it stands and as vocabularies spell it, with and without what normalizers do to it."""
    letters = {byte: letter for letter, byte in byte_of_letter().items()}
    stripped = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    for form in {text, unicodedata.normalize("NFC", text), stripped}:
        yield form
        yield (SPACE + form).replace(" ", SPACE)
        yield "".join(letters[byte] for byte in form.encode())


def kept_tokens(metadata: Mapping[str, Any], texts: Iterable[str]) -> list[int]:
    """Return the tokens that the texts need, in the order of the vocabulary."""
    parts = "\0".join(spelling for text in texts for spelling in spellings(text))
    bert = metadata["tokenizer.ggml.model"] == "bert"
    roles = {value for key, value in metadata.items() if key.endswith("_token_id")}
    user_defined, kept = 0, []
    for token, (text, kind) in enumerate(zip(metadata[TOKENS], metadata[TYPES].tolist(), strict=True)):
        user_defined += kind == USER_DEFINED
        single = len(text) == 1 and text in byte_of_letter()
        shown = kind == USER_DEFINED and user_defined <= SHOWN_USER_DEFINED
        needed = (text.removeprefix(SPACE) if bert else text) in parts
        if kind in (CONTROL, BYTE) or token in roles or single or shown or needed:
            kept.append(token)
    return kept


def reduced(vocabulary: Published) -> tuple[dict[str, Any], list[list[int]]]:
    """Return the metadata of a reduced vocabulary, and the tokens of the cases in it."""
    metadata = vocabulary.header.metadata
    kept = kept_tokens(metadata, [text for text, _ in vocabulary.cases])
    places = {token: place for place, token in enumerate(kept)}
    small: dict[str, Any] = {}
    for key, value in metadata.items():
        if key.endswith("_token_id"):
            small[key] = places[value]
        elif key.startswith(("tokenizer.ggml.", "general.architecture", "general.name")) and np.isscalar(value):
            small[key] = value
    texts: list[str] = [metadata[TOKENS][token] for token in kept]
    small |= {TOKENS: texts, TYPES: [int(metadata[TYPES][token]) for token in kept]}
    if metadata["tokenizer.ggml.model"] == "llama":
        small[SCORES] = [float(metadata[SCORES][token]) for token in kept]
    if MERGES in metadata:
        made = set(texts)
        small[MERGES] = [merge for merge in metadata[MERGES] if merge.replace(" ", "", 1) in made]
    return small, [[places[token] for token in ids] for _, ids in vocabulary.cases]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    texts: list[list[str]] = []
    vocabularies = {}
    for vocabulary in whole(parser.parse_args().folder):
        cases = [text for text, _ in vocabulary.cases]
        if cases not in texts:
            texts.append(cases)
        metadata, ids = reduced(vocabulary)
        vocabularies[vocabulary.name] = {"metadata": metadata, "texts": texts.index(cases), "ids": ids}
    data = json.dumps({"texts": texts, "vocabularies": vocabularies}, ensure_ascii=False, separators=(",", ":"))
    FILE.write_bytes(gzip.compress(data.encode(), mtime=0))


if __name__ == "__main__":
    main()
