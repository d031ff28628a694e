from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from phronomy_django.domain.errors import ConfigurationError
from phronomy_django.llm import (
    LLMAdapter,
    ScriptedLLM,
    model_label,
    register_model,
    resolve_model,
    unregister_model,
)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    for prefix in ("scripted", "scripted:demo", "mine"):
        unregister_model(prefix)


def scripted(name: str) -> LLMAdapter:
    return ScriptedLLM([name], name=f"scripted:{name}")


def test_an_adapter_is_used_as_it_is() -> None:
    model = ScriptedLLM(["x"], name="scripted:demo")
    assert resolve_model(model) == (model, "demo")
    assert resolve_model(ScriptedLLM(["x"]))[1] == "scripted"


def test_a_registered_prefix_makes_an_adapter_once() -> None:
    register_model("scripted", scripted)
    adapter, name = resolve_model("scripted:demo:v2")
    assert (adapter.name, name) == ("scripted:demo:v2", "demo:v2")
    assert resolve_model("scripted:demo:v2")[0] is adapter


def test_a_whole_name_wins_over_its_prefix() -> None:
    special = ScriptedLLM(["special"])
    register_model("scripted", scripted)
    assert resolve_model("scripted:demo")[0] is not special
    register_model("scripted:demo", lambda name: special)
    assert resolve_model("scripted:demo")[0] is special
    assert resolve_model("scripted:other")[0] is not special


def test_a_prefix_belongs_to_one_factory_until_it_is_unregistered() -> None:
    register_model("mine", scripted)
    register_model("mine", scripted)
    with pytest.raises(ConfigurationError, match="registered already"):
        register_model("mine", lambda name: ScriptedLLM([]))
    before = resolve_model("mine:x")[0]
    unregister_model("mine")
    register_model("mine", lambda name: ScriptedLLM([]))
    assert resolve_model("mine:x")[0] is not before


@pytest.mark.parametrize("prefix", ["", ":", "mine:", ":mine"])
def test_a_prefix_that_names_nothing_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        register_model(prefix, scripted)


@pytest.mark.parametrize("model", ["", "gpt-5", "openai:", ":gpt-5", "nosuch:x", "scripted:unknown"])
def test_an_unknown_model_is_an_error_that_lists_what_is_known(model: str) -> None:
    register_model("mine", scripted)
    with pytest.raises(ConfigurationError, match=r"registered ones \(mine\).*anthropic"):
        resolve_model(model)


@pytest.mark.parametrize("model", [None, 5, ["openai:x"]])
def test_what_is_no_model_is_refused_by_its_type(model: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"not a {type(model).__name__}"):
        resolve_model(model)


def test_a_factory_has_to_make_an_adapter() -> None:
    register_model("mine", lambda name: name)  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigurationError, match="made a str, not an LLMAdapter"):
        resolve_model("mine:x")


def test_a_missing_extra_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("phronomy_django.llm.pydantic_ai")]:
        monkeypatch.delitem(sys.modules, module)
    real = builtins.__import__

    def without_extra(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name.partition(".")[0] == "pydantic_ai":
            raise ImportError("No module named 'pydantic_ai'", name="pydantic_ai")
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without_extra)
    with pytest.raises(ConfigurationError, match=r"pip install 'phronomy-django\[llm\]'"):
        resolve_model("openai:never-resolved-before")


def test_a_provider_without_its_sdk_or_unknown_to_pydantic_ai_is_told_by_name() -> None:
    with pytest.raises(ConfigurationError, match="knows no provider 'nosuch'"):
        resolve_model("nosuch:x")


def test_a_label_resolves_nothing() -> None:
    assert model_label("nosuch:x") == "nosuch:x"
    assert model_label(ScriptedLLM([], name="scripted:a")) == "scripted:a"
    assert model_label(ScriptedLLM([], name="")) == "ScriptedLLM"


def test_the_room_imports_neither_django_nor_pydantic_ai() -> None:
    code = (
        "import sys, phronomy_django.llm;"
        "print([name for name in ('django', 'pydantic_ai', 'openai') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
