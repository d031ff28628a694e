"""What several tables share: identities, content names, and constraints that hold the status words."""

from __future__ import annotations

import uuid
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ValidationError
from django.db import models

if TYPE_CHECKING:  # in Python an id is a str, whatever the column is
    _UuidColumn = models.CharField[Any, Any]
    _TextColumn = models.CharField[Any, Any]
else:
    _UuidColumn = models.UUIDField
    _TextColumn = models.CharField

__all__ = ["ContentIdField", "IdField", "words_check"]


class IdField(_UuidColumn):
    """An identity of ours (``domain.ids``): native uuid in the database, 32 hex digits in Python.

    Code, URLs and JSON use the one ``str`` form; no layer above has to convert.
    """

    def to_python(self, value: Any) -> str | None:
        if value is None:
            return None
        if isinstance(value, uuid.UUID):
            return value.hex
        try:
            return uuid.UUID(str(value)).hex
        except ValueError:
            raise ValidationError(
                self.error_messages["invalid"], code="invalid", params={"value": value}
            ) from None

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> str | None:
        return value.hex if isinstance(value, uuid.UUID) else value

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        text = self.to_python(value)
        if text is None:
            return None
        return uuid.UUID(text) if connection.features.has_native_uuid_field else text


class ContentIdField(_TextColumn):
    """``sha256:<hex>``: compared whole, never by prefix, so PostgreSQL needs no pattern index for it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("max_length", 71)
        super().__init__(*args, **kwargs)

    def db_type(self, connection: Any) -> str | None:
        if connection.vendor == "postgresql":
            return f"character varying({self.max_length})"
        return super().db_type(connection)


def words_check(column: str, words: type[StrEnum], name: str) -> models.CheckConstraint:
    """The database itself refuses a word that is not one of ``words`` (DESIGN §5)."""
    values = [str(word) for word in words]
    return models.CheckConstraint(condition=models.Q(**{f"{column}__in": values}), name=name)
