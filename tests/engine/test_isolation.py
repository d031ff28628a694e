"""What holds for a whole process: no framework behind the engine, nothing carried across a fork."""

from __future__ import annotations

import subprocess
import sys

import phronomy_django.engine


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_engine_leaves_django_out() -> None:
    code = (
        "import sys, phronomy_django.engine, phronomy_django.engine.failpoints\n"
        "print([m for m in ('django', 'celery', 'psycopg', 'pydantic') if m in sys.modules])"
    )
    assert run(code) == "[]"


def test_the_engine_imports_the_standard_library_and_itself_only() -> None:
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "import phronomy_django.engine\n"
        "tops = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(t for t in tops if t not in sys.stdlib_module_names))"
    )
    assert run(code) == "['phronomy_django']"


def test_a_forked_child_has_no_default_runtime_and_may_set_its_own() -> None:
    code = (
        "import os\n"
        "from phronomy_django.engine import DeterministicScheduler, Runtime\n"
        "Runtime.set_default(Runtime(scheduler=DeterministicScheduler()))\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    assert Runtime.default() is None\n"
        "    Runtime.set_default(Runtime(scheduler=DeterministicScheduler()))\n"
        "    os._exit(7)\n"
        "assert Runtime.default() is not None\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert run(code) == "7"


def test_a_forked_child_gives_other_session_ids() -> None:
    code = (
        "import os\n"
        "from phronomy_django.engine import FSMSession, Rule, SessionTable\n"
        "rules = [Rule(state='a', event='e', target='b')]\n"
        "table = SessionTable(initial='a', rules=rules, endings={'b': 'finished'})\n"
        "def fresh(): return FSMSession(table=table, data=0, execute=print).fsm_session_id\n"
        "reader, writer = os.pipe()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os.write(writer, fresh().encode())\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print(os.read(reader, 100).decode() == fresh())"
    )
    assert run(code) == "False"


def test_the_public_names_are_exported_on_purpose() -> None:
    names = phronomy_django.engine.__all__
    assert sorted(set(names)) == sorted(names)
    assert all(hasattr(phronomy_django.engine, name) for name in names)
    public = {name for name in vars(phronomy_django.engine) if name.isidentifier() and name[0] != "_"}
    modules = {name.rpartition(".")[2] for name in sys.modules if name.startswith("phronomy_django.engine.")}
    assert public - modules - {"annotations"} == set(names) - modules
