"""A probed function does what it did, whatever its kind, aliases, thread or task; and is told of in time."""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from typing import Any

import pytest

from minivllm.sourcemap import registry
from minivllm.trace.install import Installation
from minivllm.trace.wrap import Around, Call

_SOURCE = '''
import contextlib
from minivllm.sourcemap.registry import on_map

def mapped(name):
    return on_map(name, vllm="vllm/x.py::" + name)

@mapped("plain")
def plain(a, b=1):
    """Adds."""
    return a + b

@mapped("failing")
def failing():
    raise KeyError("its own")

@mapped("coroutine")
async def coroutine(event):
    await event.wait()
    return plain(1)

@mapped("generator")
def generator(n):
    try:
        for i in range(n):
            got = yield plain(i)
            if got is not None:
                yield ("got", got)
        return "done"
    except ValueError as error:
        yield ("caught", str(error))

@mapped("asyncgen")
async def asyncgen(n, closed):
    try:
        for i in range(n):
            got = yield plain(i)
            if got is not None:
                yield ("got", got)
    except ValueError as error:
        yield ("caught", str(error))
    finally:
        closed.append(n)

class Thing:
    @mapped("method")
    def method(self, x):
        return self, x

    @classmethod
    @mapped("class method")
    def make(cls, x):
        return cls, x

    @staticmethod
    @mapped("static method")
    def static(x):
        return x

    @property
    @mapped("property")
    def size(self):
        return 3

@mapped("class")
class Other:
    pass
'''
NAME = "traced_things"


@pytest.fixture
def things(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType(NAME)
    monkeypatch.setitem(sys.modules, NAME, module)
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    exec(_SOURCE, module.__dict__)
    user = types.ModuleType("traced_user")
    user.renamed = module.plain
    monkeypatch.setitem(sys.modules, "traced_user", user)
    return module


def installed(names: list[str], calls: list[Call], **options: Any) -> Installation:
    probe = Around(None, calls.append, calls.append)
    return Installation({f"{NAME}:{name}": probe for name in names}, **options)


def test_every_kind_gives_what_it_gave_and_is_restored(things: Any) -> None:
    names = ["plain", "Thing.method", "Thing.make", "Thing.static"]
    before = {name: vars(things.Thing).get(name.rpartition(".")[2], things.plain) for name in names}
    assert len({id(value) for value in before.values()}) == 4
    calls: list[Call] = []
    with installed(names, calls):
        thing = things.Thing()
        assert things.plain(1, b=5) == 6
        assert thing.method(2) == (thing, 2)
        assert things.Thing.make(3) == (things.Thing, 3)
        assert thing.make(3) == (things.Thing, 3)
        assert (things.Thing.static(4), thing.static(4)) == (4, 4)
        assert things.plain.__doc__ == "Adds."
    assert [call.entry.concept for call in calls] == [
        "plain", "method", "class method", "class method", "static method", "static method"
    ]  # fmt: skip
    assert all(call.end_ns >= call.start_ns for call in calls)
    assert {name: vars(things.Thing).get(name.rpartition(".")[2], things.plain) for name in names} == before
    assert all(vars(things.Thing)[n] is before[f"Thing.{n}"] for n in ("method", "make", "static"))
    things.Thing().method(1)
    assert len(calls) == 6, "nothing is told any more"


def test_a_name_that_another_module_bound_is_replaced_and_restored(things: Any) -> None:
    user, original, calls = sys.modules["traced_user"], things.plain, []
    with installed(["plain"], calls):
        assert user.renamed(1) == 2
        user.late = things.plain  # what a module does that is first imported now
    assert len(calls) == 1
    assert user.renamed is original
    assert user.late is original
    assert things.plain is original


@pytest.mark.parametrize(("name", "what"), [("Thing.size", "property"), ("Other", "class")])
def test_what_is_no_function_is_refused_and_nothing_is_changed(things: Any, name: str, what: str) -> None:
    registry._ENTRIES[f"{NAME}:{name}"] = registry._ENTRIES[f"{NAME}:plain"]
    before = things.plain
    with pytest.raises(TypeError, match=f"is a {what}"), installed(["plain", name], []):
        pass
    assert things.plain is before


def test_an_exception_passes_and_is_told(things: Any) -> None:
    calls: list[Call] = []
    with installed(["failing"], calls), pytest.raises(KeyError, match="its own"):
        things.failing()
    assert isinstance(calls[0].error, KeyError)


def test_a_generator_is_timed_until_it_is_exhausted_and_hears_all_that_it_is_sent(things: Any) -> None:
    calls: list[Call] = []
    with installed(["generator", "plain"], calls, nested=True):
        running = things.generator(2)
        assert next(running) == 1
        assert [call.entry.concept for call in calls] == ["plain"]
        things.plain(7)  # not inside the generator, which is paused
        assert running.send("hi") == ("got", "hi")
        assert next(running) == 2
        with pytest.raises(StopIteration) as stop:
            next(running)
        assert stop.value.value == "done"
        failing = things.generator(1)
        next(failing)
        assert failing.throw(ValueError("thrown")) == ("caught", "thrown")
        failing.close()
    assert [call.entry.concept for call in calls].count("generator") == 2
    [first] = [call for call in calls if call.entry.concept == "generator"][:1]
    inside = [call.parent == first.id for call in calls if call.entry.concept == "plain"]
    assert inside == [True, False, True, False]


def test_coroutines_and_async_generators_are_timed_to_their_end_and_tasks_are_kept_apart(things: Any) -> None:
    calls: list[Call] = []
    closed: list[int] = []

    async def main() -> None:
        events = [asyncio.Event(), asyncio.Event()]
        tasks = [asyncio.create_task(things.coroutine(event)) for event in events]
        await asyncio.sleep(0)
        assert not calls, "neither is done"
        events[1].set()
        assert await tasks[1] == 2
        events[0].set()
        assert await tasks[0] == 2
        assert [item async for item in things.asyncgen(2, closed)] == [1, 2]
        stream = things.asyncgen(3, closed)
        assert await anext(stream) == 1
        assert await stream.asend("hi") == ("got", "hi")
        assert await anext(stream) == 2
        assert await stream.athrow(ValueError("thrown")) == ("caught", "thrown")
        await stream.aclose()
        left = things.asyncgen(9, closed)
        await anext(left)
        await left.aclose()

    with installed(["coroutine", "asyncgen", "plain"], calls, nested=True):
        asyncio.run(main())
    assert closed == [2, 3, 9]
    by_id = {call.id: call.entry.concept for call in calls}
    names = [call.entry.concept for call in calls]
    assert names[:4] == ["plain", "coroutine", "plain", "coroutine"]
    assert names.count("asyncgen") == 3
    parents = [by_id[call.parent] for call in calls if call.entry.concept == "plain"]
    assert parents == ["coroutine"] * 2 + ["asyncgen"] * 5
    assert len({call.parent for call in calls[:4] if call.parent is not None}) == 2, "each task has its own tree"


def test_each_thread_has_its_own_tree(things: Any) -> None:
    calls: list[Call] = []
    with installed(["plain"], calls, nested=True):
        threads = [threading.Thread(target=lambda: [things.plain(i) for i in range(50)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(calls) == 200
    assert len({call.id for call in calls}) == 200
    assert all(call.parent is None and call.depth == 0 for call in calls)


def test_a_probe_that_fails_is_told_no_more_and_the_others_go_on(things: Any) -> None:
    failures, calls, tries = [], [], []

    def failing(call: Call) -> None:
        tries.append(call)
        raise ZeroDivisionError("a mistake")

    probes = {f"{NAME}:plain": [failing, calls.append, Around(lambda args: args[99])]}
    with Installation(probes, lambda symbol, message: failures.append((symbol, message))) as installation:
        assert [things.plain(i) for i in range(3)] == [1, 2, 3]
    assert (len(tries), len(calls)) == (1, 3)
    assert failures == [
        (f"{NAME}:plain", "IndexError: tuple index out of range"),
        (f"{NAME}:plain", "ZeroDivisionError: a mistake"),
    ]
    assert installation.failures == dict(failures)
