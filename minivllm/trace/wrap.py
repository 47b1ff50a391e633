"""Owns the wrapper around one probed function: it times the call and tells the probes, and changes nothing else.

One form for each kind of function: a coroutine is timed until it is done, a generator until it is exhausted or closed.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import msgspec

from minivllm.sourcemap.registry import MapEntry

# (id, depth) of the innermost probed call around, if calls are nested. Threads and tasks have their own.
_around: ContextVar[tuple[int, int] | None] = ContextVar("minivllm_trace_call", default=None)
_ids = itertools.count()


class Call(msgspec.Struct):
    """One finished call of a probed symbol.

    Attributes:
        entry: The symbol's row of the source map.
        args: Its positional arguments, `self` first for a method.
        result: What it returned; None for a generator.
        start_ns, end_ns: Monotonic clock around it.
        memo: What the probe noted before the call.
        error: What it raised, if it did.
        id, parent, depth: Its place in the tree of calls, if calls are nested.
    """

    entry: MapEntry
    args: tuple[Any, ...]
    result: Any
    start_ns: int
    end_ns: int
    memo: Any = None
    error: BaseException | None = None
    id: int = -1
    parent: int | None = None
    depth: int = 0


After = Callable[[Call], None]


@dataclass(frozen=True, slots=True)
class Around:
    """A probe that also looks before the call.

    Attributes:
        before: Gets the arguments; what it returns is `Call.memo` afterwards. None to look only afterwards.
        after: Gets the finished call; None if looking before is all.
        on_error: Gets a call that raised; None if only calls that returned count.
    """

    before: Callable[[tuple[Any, ...]], Any] | None
    after: After | None = None
    on_error: After | None = None


Probe = After | Around
# Symbol, and what the probe raised.
OnFailure = Callable[[str, str], None]


class ProbedSymbol:
    """The probes of one symbol, each until it fails.

    Args:
        entry: The symbol.
        probes: Its probes.
        on_failure: Is told of each that fails.
        nested: Keep the tree of calls.
    """

    def __init__(self, entry: MapEntry, probes: list[Probe], on_failure: OnFailure, *, nested: bool) -> None:
        self.entry = entry
        self.nested = nested
        self._probes: list[Around | None] = [p if isinstance(p, Around) else Around(None, p) for p in probes]
        self._on_failure = on_failure

    @property
    def only(self) -> Around | None:
        """The one probe, if there is one and it need not know of calls around it, or of calls that raise."""
        [*others, last] = self._probes
        return None if others or self.nested or last is None or last.on_error is not None else last

    def begin(self, args: tuple[Any, ...]) -> list[Any]:
        """Tell every probe that a call begins. Returns their notes."""
        return [self._note(index, probe, args) for index, probe in enumerate(self._probes)]

    def _note(self, index: int, probe: Around | None, args: tuple[Any, ...]) -> Any:
        if probe is None or probe.before is None:
            return None
        try:
            return probe.before(args)
        except Exception as error:
            self.fail(index, error)

    def end(self, call: Call, memos: list[Any]) -> None:
        """Tell every probe of a finished call."""
        for index, probe in enumerate(self._probes):
            if probe is None:
                continue
            tell = probe.after if call.error is None else probe.on_error
            if tell is None:
                continue
            call.memo = memos[index]
            try:
                tell(call)
            except Exception as error:
                self.fail(index, error)

    def fail(self, index: int, error: Exception) -> None:
        """Switch a probe off for good."""
        self._probes[index] = None
        self._on_failure(self.entry.ours, f"{type(error).__name__}: {error}")


class _Timed:
    """One call in progress."""

    __slots__ = ("_args", "_memos", "_outer", "_place", "_start_ns", "_symbol")

    def __init__(self, symbol: ProbedSymbol, args: tuple[Any, ...]) -> None:
        self._symbol = symbol
        self._args = args
        self._outer: tuple[int, int] | None = None
        self._place: tuple[int, int] | None = None
        if symbol.nested:
            self._outer = _around.get()
            self._place = (next(_ids), 0 if self._outer is None else self._outer[1] + 1)
        self._memos = symbol.begin(args)
        self.resume()
        self._start_ns = time.monotonic_ns()

    def resume(self) -> None:
        """The function's own code runs from here on."""
        if self._place is not None:
            _around.set(self._place)

    def pause(self) -> None:
        """Others' code runs."""
        if self._place is not None:
            _around.set(self._outer)

    def end(self, result: Any, error: BaseException | None = None) -> None:
        """The call has returned, or raised."""
        end_ns = time.monotonic_ns()
        self.pause()
        call = Call(self._symbol.entry, self._args, result, self._start_ns, end_ns, None, error)
        if self._place is not None:
            call.id, call.depth = self._place
            call.parent = None if self._outer is None else self._outer[0]
        self._symbol.end(call, self._memos)


def wrap(original: Callable[..., Any], symbol: ProbedSymbol) -> Callable[..., Any]:
    """A function that does what `original` does, and tells the symbol's probes."""
    if inspect.isasyncgenfunction(original):
        wrapper = _async_generator(original, symbol)
    elif inspect.iscoroutinefunction(original):
        wrapper = _coroutine(original, symbol)
    elif inspect.isgeneratorfunction(original):
        wrapper = _generator(original, symbol)
    elif (probe := symbol.only) is not None:
        wrapper = _one_probe(original, symbol, probe)
    else:
        wrapper = _function(original, symbol)
    return functools.wraps(original)(wrapper)


def _one_probe(original: Callable[..., Any], symbol: ProbedSymbol, probe: Around) -> Callable[..., Any]:
    # The common case, written out: it is in the way of every step.
    is_on = True
    entry, clock, before, after = symbol.entry, time.monotonic_ns, probe.before, probe.after

    def fail(error: Exception) -> None:
        nonlocal is_on
        is_on = False
        symbol.fail(0, error)

    def probed(*args: Any, **kwargs: Any) -> Any:
        memo = None
        if before is not None and is_on:
            try:
                memo = before(args)
            except Exception as error:
                fail(error)
        start_ns = clock()
        result = original(*args, **kwargs)
        end_ns = clock()
        if after is not None and is_on:
            try:
                after(Call(entry, args, result, start_ns, end_ns, memo))
            except Exception as error:
                fail(error)
        return result

    return probed


def _function(original: Callable[..., Any], symbol: ProbedSymbol) -> Callable[..., Any]:
    def probed(*args: Any, **kwargs: Any) -> Any:
        timed = _Timed(symbol, args)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            timed.end(None, error)
            raise
        timed.end(result)
        return result

    return probed


def _coroutine(original: Callable[..., Any], symbol: ProbedSymbol) -> Callable[..., Any]:
    async def probed(*args: Any, **kwargs: Any) -> Any:
        timed = _Timed(symbol, args)
        try:
            result = await original(*args, **kwargs)
        except BaseException as error:
            timed.end(None, error)
            raise
        timed.end(result)
        return result

    return probed


def _generator(original: Callable[..., Any], symbol: ProbedSymbol) -> Callable[..., Any]:
    def probed(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        timed = _Timed(symbol, args)
        generator = original(*args, **kwargs)
        try:
            item = next(generator)
            while True:
                timed.pause()
                try:
                    sent = yield item
                except GeneratorExit:
                    timed.resume()
                    generator.close()
                    raise
                except BaseException as error:
                    timed.resume()
                    item = generator.throw(error)
                else:
                    timed.resume()
                    item = generator.send(sent)
        except StopIteration as stop:
            timed.end(None)
            return stop.value
        except GeneratorExit:
            timed.end(None)
            raise
        except BaseException as error:
            timed.end(None, error)
            raise

    return probed


def _async_generator(original: Callable[..., Any], symbol: ProbedSymbol) -> Callable[..., Any]:
    async def probed(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        timed = _Timed(symbol, args)
        generator = original(*args, **kwargs)
        try:
            item = await anext(generator)
            while True:
                timed.pause()
                try:
                    sent = yield item
                except GeneratorExit:
                    timed.resume()
                    await generator.aclose()
                    raise
                except BaseException as error:
                    timed.resume()
                    item = await generator.athrow(error)
                else:
                    timed.resume()
                    item = await generator.asend(sent)
        except StopAsyncIteration:
            timed.end(None)
        except GeneratorExit:
            timed.end(None)
            raise
        except BaseException as error:
            timed.end(None, error)
            raise

    return probed
