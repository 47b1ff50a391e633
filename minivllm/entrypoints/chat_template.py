"""Owns rendering a chat template: a program that came with a model, and is trusted no more than its other files.

It runs in jinja2's immutable sandbox, with the environment that templates are written for (the one of transformers:
`raise_exception`, `strftime_now`, `tojson`, `break` and `continue`, generation blocks). The sandbox keeps it from the
machine; the limits here keep it from running or growing without end.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_SOURCE_CHARS = 1_000_000
MAX_PROMPT_CHARS = 10_000_000
MAX_ITERATIONS = 1_000_000
MAX_SECONDS = 5.0

# Names that no template can write.
_LIMITS, _COUNTED, _JOINED, _MEASURED = "limits of this rendering", "counted loop", "joined texts", "measured text"
# A width of five digits or more, or one that comes as an argument.
# Filters that do much work for each character or count; no template needs them for long texts.
_SLOW_FILTERS = frozenset({"batch", "pprint", "slice", "striptags", "urlize", "wordwrap", "xmlattr"})
_MAX_FOR_SLOW = 100_000
_WIDE_FORMAT = re.compile(r"[%:{][^%{}]*?(\d{5,}|\*)|\{[^{}]*\{")


class ChatTemplateError(ValueError):
    """A chat template that cannot be used, or that refuses the messages; the message says which and why."""


def render(source: str, **variables: Any) -> str:
    """Run a chat template.

    Args:
        source: The template.
        **variables: What it can use: `messages`, `tools`, `add_generation_prompt`, `bos_token` and so on.

    Raises:
        ChatTemplateError: It is broken, does something forbidden or endless, or refuses these messages.
    """
    if len(source) > MAX_SOURCE_CHARS:
        raise ChatTemplateError(f"the chat template has {len(source)} characters; at most {MAX_SOURCE_CHARS} are read")
    try:
        template = _compile(source)
        limits = _Limits()
        return "".join(limits.text(template.generate(**variables, **{_LIMITS: limits})))
    except ChatTemplateError:
        raise
    except jinja2.TemplateSyntaxError as error:
        raise ChatTemplateError(f"the chat template is broken: line {error.lineno}: {error.message}") from None
    except jinja2.TemplateError as error:
        raise ChatTemplateError(f"the chat template failed: {error.message}") from None
    except Exception as error:  # a template can raise whatever an expression can
        raise ChatTemplateError(f"the chat template failed: {type(error).__name__}: {error}") from None


class _Limits:
    """How much more one rendering may do."""

    def __init__(self) -> None:
        self._iterations = 0
        self._deadline = time.monotonic() + MAX_SECONDS

    def count(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items of a loop, as long as there may be another round."""
        for item in items:
            self._iterations += 1
            if self._iterations > MAX_ITERATIONS:
                raise ChatTemplateError(f"the chat template failed: its loops take more than {MAX_ITERATIONS} rounds")
            if time.monotonic() > self._deadline:
                raise ChatTemplateError(f"the chat template failed: it takes more than {MAX_SECONDS:g} seconds")
            yield item

    def text(self, pieces: Iterable[str]) -> Iterator[str]:
        """The pieces of the prompt, as long as it may grow."""
        size = 0
        for piece in pieces:
            size += len(piece)
            if size > MAX_PROMPT_CHARS:
                _too_long()
            yield piece


def _too_long() -> NoReturn:
    raise ChatTemplateError(f"the chat template failed: its text takes more than {MAX_PROMPT_CHARS} characters")


def _checked(value: Any) -> Any:
    """A value that an expression gave, unless it is larger than any prompt."""
    if isinstance(value, str | list | tuple | dict) and len(value) > MAX_PROMPT_CHARS:
        _too_long()
    if isinstance(value, int) and value.bit_length() > 256:
        raise ChatTemplateError("the chat template failed: a number of more than 256 bits")
    return value


def _check_operands(name: str, operands: Sequence[Any]) -> None:
    """Refuse what would make a huge value: by a large number, a wide format, or many copies of a long text."""
    if any(isinstance(value, int) and abs(value) > MAX_PROMPT_CHARS for value in operands):
        _too_long()
    sizes = sorted((len(value) for value in operands if isinstance(value, str | list | tuple)), reverse=True)
    if name in ("replace", "join") and len(sizes) > 1 and sizes[0] * sizes[1] > 100 * MAX_PROMPT_CHARS:
        _too_long()
    if name in _SLOW_FILTERS:
        numbers = [abs(value) for value in operands if isinstance(value, int)]
        if max([*numbers, *sizes], default=0) > _MAX_FOR_SLOW:
            raise ChatTemplateError(
                f"the chat template failed: {name} of more than {_MAX_FOR_SLOW} characters or parts"
            )
    if name in ("format", "%") and isinstance(operands[0], str) and _WIDE_FORMAT.search(operands[0]):
        _too_long()


def _with_limits(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses operands which would let its result grow beyond any prompt."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_operands(name, [*args, *kwargs.values()])
        return _checked(function(*args, **kwargs))

    # jinja2 marks the filters that want the context or the environment.
    checked.__dict__.update(getattr(function, "__dict__", {}))
    return checked


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with limits on what a single expression can make."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for text, count in ((left, right), (right, left)):
                if isinstance(text, Sized) and isinstance(count, int) and len(text) * count > MAX_PROMPT_CHARS:
                    _too_long()
        elif operator == "**" and isinstance(right, int | float) and abs(right) > 64:
            raise ChatTemplateError(f"the chat template failed: {right} is too large an exponent")
        elif operator == "%":
            _check_operands("%", [left, right])
        return _checked(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 (as in jinja2)
        owner = getattr(__obj, "__self__", None)
        _check_operands(getattr(__obj, "__name__", ""), [owner, *args, *kwargs.values()])
        return _checked(super().call(__context, __obj, *args, **kwargs))


class _GenerationBlock(Extension):
    """`{% generation %}` marks what an assistant says, for training; here its content is just rendered."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise ChatTemplateError(f"the chat template refuses the messages: {message}")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Not jinja2's own filter, which escapes for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@jinja2.pass_context
def _counted(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    limits = context[_LIMITS]
    assert isinstance(limits, _Limits), "every rendering brings its limits"
    return limits.count(items)


class _AddLimits(NodeTransformer):
    """Puts a count around what every loop goes through, and a measure around every text that is put together."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (jinja2 calls it so)
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _COUNTED)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes), _JOINED)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.filter = _filtered(node.filter, _MEASURED)
        return node


def _filtered(node: nodes.Node | None, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None)


@lru_cache(maxsize=1)
def _environment() -> _Environment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.filters = {name: _with_limits(name, function) for name, function in environment.filters.items()}
    environment.filters[_COUNTED] = _counted
    environment.filters[_JOINED] = lambda parts: _checked("".join(map(str, parts)))
    environment.filters[_MEASURED] = _checked
    del environment.globals["lipsum"]  # any amount of text, made in one call
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda text: datetime.now().strftime(text)
    return environment


@lru_cache(maxsize=16)
def _compile(source: str) -> jinja2.Template:
    environment = _environment()
    code = environment.compile(_AddLimits().visit(environment.parse(source)))
    return environment.template_class.from_code(environment, code, environment.make_globals(None))
