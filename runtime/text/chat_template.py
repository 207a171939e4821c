"""The chat template of a checkpoint: messages to the text of a prompt, rendered as in transformers.

The template is Jinja source that came with the model, so it runs in Jinja's sandbox, with the same globals as in
transformers and no others. `sscc run` does not need it, so no other module of the runtime imports this one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2.nodes import (
    Call,
    CallBlock,
    Concat,
    Const,
    Dict,
    EnvironmentAttribute,
    Expr,
    ExprStmt,
    For,
    List,
    Macro,
    Node,
    Scope,
    Template,
    TemplateData,
    Tuple,
)
from jinja2.parser import Parser
from jinja2.runtime import Context, markup_join
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer
from tokenizers import Tokenizer

from sscc.ir.errors import ErrorKind, InputError, UsageError, quoted
from sscc.ir.files import read_text
from sscc.runtime.text.template_bounds import (
    MOST_LETTERS,
    BoundedFormatter,
    TooLarge,
    bounded_filter,
    check_call,
    check_operator,
    check_size,
    weigh,
)
from sscc.runtime.text.tokenizer import encode

TEMPLATE_FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
DEFAULT_NAME = "default"
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MOST_STEPS = 1 << 18  # loop iterations and macro calls of one rendering, which take about a second
_MOST_WEIGHED = 1 << 23  # items of the lists that one rendering creates, which take a few seconds

Messages = Sequence[Mapping[str, Any]]
"""Messages, each with `role`, `content` and further fields that its template reads; plain JSON types only."""

Clock = Callable[[], datetime]
"""Returns the local time."""


REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Field names under which clients send the reasoning before an answer."""

_ARGUMENTS = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "  # transformers' mark for the end of the last message


class ChatTemplateErrors(ErrorKind):
    UNREADABLE = InputError, "{where} is not a chat template that can be read: {cause}"
    TOO_DEEP = (
        InputError,
        "{where} is not a chat template that can be read: its blocks or expressions are nested too deeply ({cause})",
    )
    REFUSES = UsageError, "the chat template refuses the messages: {cause}"
    CANNOT_RENDER = UsageError, "the chat template cannot render the messages: {cause}"
    VARIABLE_TAKEN = UsageError, "the chat template variable {name!r} has a reserved name: choose another one"
    NOTHING_TO_CONTINUE = UsageError, "the last message has no content to continue"
    NOT_CONTINUED = UsageError, "the chat template changes the end of the last message, so it cannot be continued"
    NOT_A_LIST = InputError, "{where}: chat_template is neither a template nor a list of named ones"
    NO_DEFAULT = InputError, "{where} has the chat templates {names}, but none called {default!r}"
    NOT_TEXT = InputError, "{where}: a chat template is {type}, not text"
    NOT_JSON = InputError, "{path} is not JSON: {cause}"
    NOT_AN_OBJECT = InputError, "{path} is not a JSON object"


class ChatTemplate:
    """A compiled template, with the special tokens that it may name.

    Args:
        source: the template.
        special_tokens: texts of `bos_token`, `eos_token` and others, by these names.
        where: name of the template in errors.
        clock: source of the date, for templates that write it.

    Attributes:
        source: the template.

    Raises InputError if the source is not a template.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        where: str = TEMPLATE_FILE,
        clock: Clock = datetime.now,
    ) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        self._environment = _environment(clock)
        try:
            self._template = self._environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateErrors.UNREADABLE(where=where, cause=quoted(error)) from None
        except (SyntaxError, RecursionError, MemoryError, ValueError) as error:  # from generated Python code
            raise ChatTemplateErrors.TOO_DEEP(where=where, cause=type(error).__name__) from None

    @classmethod
    def load(
        cls, folder: Path, clock: Clock = datetime.now, names: Collection[str] | None = None
    ) -> ChatTemplate | None:
        """Return the template in a tokenizer's folder, considering only the files in `names`; None if it has none.

        It is in chat_template.jinja, or else in tokenizer_config.json: a string, or a list of named ones, of which the
        one called "default" is used, or the only one. Raises InputError if a file is damaged.
        """
        config = _read_json(folder, CONFIG_FILE, names)
        # As in transformers, the older file takes precedence if the newer one does not describe the tokens itself.
        older = {} if "added_tokens_decoder" in config else _read_json(folder, SPECIAL_TOKENS_FILE, names)
        special_tokens = special_token_texts(config, older)
        file = folder / TEMPLATE_FILE
        if _is_held(folder, TEMPLATE_FILE, names):
            return cls(read_text(file), special_tokens, str(file), clock)
        where = str(folder / CONFIG_FILE)
        source = _chosen(config.get("chat_template"), where)
        return None if source is None else cls(source, special_tokens, where, clock)

    def render(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text of a conversation, as transformers' `apply_chat_template` does.

        Args:
            messages: fields that are None count as absent. Reasoning may be in any of `REASONING_FIELDS`; the template
                finds it under the first two.
            tools: functions that the model may call, in OpenAI's form; None for none.
            documents: for templates that read them.
            add_generation_prompt: end the text where the assistant's next message begins.
            continue_final_message: end the text with the content of the last message, so that the answer continues it.
            variables: other names that the template may read.

        Raises UsageError if the template refuses the messages, or a variable has a reserved name.
        """
        conversation = [_plain_message(message) for message in messages]
        taken = sorted(_ARGUMENTS & set(variables or ()))
        if taken:
            raise ChatTemplateErrors.VARIABLE_TAKEN(name=taken[0])
        final = ""
        if continue_final_message:
            final = str((conversation or [{}])[-1].get("content") or "")
            if not final:
                raise ChatTemplateErrors.NOTHING_TO_CONTINUE()
            conversation[-1]["content"] = final + _CONTINUED
        self._environment.begin()
        try:
            text = self._template.render(
                **{
                    **self._special_tokens,
                    **(variables or {}),
                    "messages": conversation,
                    "tools": tools,
                    "documents": documents,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
            text.encode()  # fails for half of a surrogate pair, which Python and JSON allow and tokenizers do not
        except jinja2.TemplateError as error:
            raise ChatTemplateErrors.REFUSES(cause=quoted(error)) from None
        except Exception as error:  # an expression of the template may raise anything on values that it did not expect
            cause = quoted(f"{type(error).__name__}: {error}")
            raise ChatTemplateErrors.CANNOT_RENDER(cause=cause) from None
        return _continued(text, final) if continue_final_message else text

    def encode(self, tokenizer: Tokenizer, messages: Messages) -> list[int]:
        """Return the token ids of `render`. The template itself writes the special tokens, so none are added."""
        return encode(tokenizer, self.render(messages), special=False)


def _plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a message without None fields, with its reasoning under the names that templates read."""
    calls = bool(message.get("tool_calls"))  # a message with only tool calls has a content of null
    plain = {name: value for name, value in message.items() if value is not None or (calls and name == "content")}
    thought = next((plain[name] for name in REASONING_FIELDS if name in plain), None)
    return plain if thought is None else {"thinking": thought} | plain | {"reasoning_content": thought}


def _continued(text: str, final: str) -> str:
    """Return a rendered conversation up to the mark of where its last message ends. Raises UsageError."""
    at = text.rfind(_CONTINUED.strip())
    if at < 0 or final.strip() not in text:
        raise ChatTemplateErrors.NOT_CONTINUED()
    return text[:at] if text[at:].startswith(_CONTINUED) else text[:at].rstrip()


def special_token_texts(*sources: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of special tokens that configurations name ("bos_token", ..); later sources take precedence."""
    tokens: dict[str, Any] = {}
    for source in sources:
        extra = source.get("extra_special_tokens")
        tokens |= extra if isinstance(extra, dict) else {}
        tokens |= {name: source[name] for name in _SPECIAL_TOKENS if source.get(name) is not None}
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in tokens.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


# ------------------------------------------------------------------------------------------------ the environment


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` .. `{% endgeneration %}`, with which templates mark the assistant's text: rendered as ordinary
    text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _Namespace(Namespace):
    """Jinja's `namespace`, without names that begin with an underscore: those reach into Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # no `self`, so that a template may use that name
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _refuse_private(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        """Return a representation without the contents, which may be large, or contain the namespace itself."""
        return "<namespace>"


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox with limits on loops and texts: templates come with models, and a server renders them for all
    users."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=self.write, **options)
        self._left = threading.local()  # several threads may render at the same time
        self.begin()
        self.globals.pop("lipsum")  # generates texts of any length
        filters = self.filters.items()
        self.filters = {name: bounded_filter(name, function, self.count_items) for name, function in filters}

    def begin(self) -> None:
        """Reset the limits. Each thread calls it before it renders."""
        self._left.steps = _MOST_STEPS
        self._left.letters = MOST_LETTERS
        self._left.weighed = _MOST_WEIGHED

    def step(self, letters: int) -> None:
        """Count an iteration of a loop, or a call of a macro whose own text has `letters` letters."""
        self._left.steps -= 1
        if self._left.steps < 0:
            raise jinja2.TemplateRuntimeError(f"its loops have more than {_MOST_STEPS} iterations")
        self._charge(letters)

    def write(self, value: Any) -> str:
        """Check a value that is written, also into a variable."""
        text = value if isinstance(value, str) else str(value)
        self._charge(len(text))
        return text

    def join(self, *values: Any) -> str:
        """Return the result of `~`."""
        texts = [value if isinstance(value, str) else str(value) for value in values]
        check_size(sum(map(len, texts)), "a sum")
        return markup_join(texts)

    def count_items(self, value: Any) -> Any:
        """Count the items of every list and dictionary that the template creates, and return it unchanged."""
        if isinstance(value, list | tuple | dict) and hasattr(self._left, "weighed"):
            self._left.weighed -= weigh(value)
            if self._left.weighed < 0:
                raise TooLarge(f"it makes lists of more than {_MOST_WEIGHED} items")
        return value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_operator(operator, left, right)
        return self.count_items(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        text = getattr(function, "__self__", None)
        if isinstance(text, str) and function.__name__ != "format":
            check_call(function.__name__, text, args, kwargs)
        self.count_items((args, kwargs))
        return self.count_items(super().call(context, function, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return the sandbox's format function with bounded widths. Texts are never marked as HTML here."""
        if super().wrap_str_format(value) is None:
            return None
        text, mapped = str(value.__self__), value.__name__ == "format_map"

        def wrapper(*args: Any, **kwargs: Any) -> str:
            values = args[0] if mapped else kwargs
            return BoundedFormatter(self).vformat(text, () if mapped else args, values)

        return wrapper

    def _charge(self, letters: int) -> None:
        if not hasattr(self._left, "letters"):
            return  # Jinja evaluates constants at compile time, possibly in a thread that has not called `begin`
        self._left.letters -= letters
        if self._left.letters < 0:
            raise TooLarge(f"it writes more than {MOST_LETTERS} letters")

    def _generate(self, source: Template, *args: Any, **kwargs: Any) -> str:
        source = _Bounds().visit(source)
        blocks: list[Any] = list(source.find_all((For, Macro, CallBlock)))
        for block in blocks:
            letters = sum(len(data.data) for data in block.find_all(TemplateData))
            called = Call(EnvironmentAttribute("step"), [Const(letters)], [], None, None)
            block.body.insert(0, ExprStmt(called).set_lineno(block.lineno))
        return super()._generate(source, *args, **kwargs)


class _Bounds(NodeTransformer):
    """Turns `a ~ b`, and lists and dictionaries that are not constant, into calls of the environment, which limits
    their size."""

    def visit_Concat(self, node: Concat) -> Node:
        self.generic_visit(node)
        return _call("join", node.nodes, node)

    def visit_List(self, node: List | Dict | Tuple) -> Node:
        self.generic_visit(node)
        constant = all(isinstance(item, Const) for item in node.items)
        return node if constant else _call("count_items", [node], node)

    visit_Dict = visit_List

    def visit_Tuple(self, node: Tuple) -> Node:
        """Leave tuples that are assignment targets (the names of a loop or of a `set`) unchanged, because they are not
        values."""
        return self.visit_List(node) if node.ctx == "load" else node


def _call(name: str, arguments: list[Expr], node: Node) -> Node:
    return Call(EnvironmentAttribute(name), arguments, [], None, None).set_lineno(node.lineno)


class _Dict:
    """`dict(..)` for templates: only the call, without the class's attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


def _environment(clock: Clock) -> _Environment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda format: clock().strftime(format),
        "namespace": _Namespace,
        "dict": _Dict(),
    }
    return environment


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace takes no attribute {name!r}: it begins with an underscore")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return a value as JSON. Unlike Jinja's own filter it does not escape <, > and &."""
    check_size((indent or 0) << 12, "an indentation")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


# -------------------------------------------------------------------------------------------------------- files


def _chosen(entry: Any, where: str) -> str | None:
    """Return the template from the entry `chat_template` of a tokenizer_config.json."""
    if entry is None or isinstance(entry, str):
        return entry
    try:
        named = entry if isinstance(entry, dict) else {item["name"]: item["template"] for item in entry}
    except (TypeError, KeyError):
        raise ChatTemplateErrors.NOT_A_LIST(where=where) from None
    if DEFAULT_NAME not in named and len(named) != 1:
        raise ChatTemplateErrors.NO_DEFAULT(where=where, names=sorted(named, key=str), default=DEFAULT_NAME)
    source = named.get(DEFAULT_NAME, next(iter(named.values())))
    if not isinstance(source, str):
        raise ChatTemplateErrors.NOT_TEXT(where=where, type=type(source).__name__)
    return source


def _is_held(folder: Path, name: str, names: Collection[str] | None) -> bool:
    return (names is None or name in names) and (folder / name).is_file()


def _read_json(folder: Path, name: str, names: Collection[str] | None) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is no such file, or it is not considered."""
    path = folder / name
    if not _is_held(folder, name, names):
        return {}
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ChatTemplateErrors.NOT_JSON(path=path, cause=quoted(error)) from None
    if not isinstance(value, dict):
        raise ChatTemplateErrors.NOT_AN_OBJECT(path=path)
    return value
