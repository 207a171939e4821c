"""Artifacts that can chat: the tiny one of conftest.py, with a chat template."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.content == 'refuse' %}{{ raise_exception('not this message') }}{% endif %}"
    "{{ message.role[0] }}:{{ message.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


def with_template(artifact: Path, output: Path) -> Path:
    """A copy of an artifact, as if its checkpoint had come with TEMPLATE."""
    shutil.copytree(artifact, output)
    data = TEMPLATE.encode()
    (output / "tokenizer" / "chat_template.jinja").write_bytes(data)
    manifest = json.loads((output / "manifest.json").read_text())
    record = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest["files"]["tokenizer/chat_template.jinja"] = record
    (output / "manifest.json").write_text(json.dumps(manifest))
    return output
