"""E-mails as frozen values.

Mail comes from strangers: every header and body may be missing, cut off, or in a charset that nobody knows.
Reading one never raises, whatever the bytes are; what is wrong with it is told in ``defects``.
"""

from __future__ import annotations

import email
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email import policy
from email.errors import MessageError
from email.message import EmailMessage, MIMEPart
from html.parser import HTMLParser
from pathlib import Path
from typing import TypeVar

from phronomy_django.domain.canonical import storable_text

__all__ = ["Attachment", "Mail", "parse_mail", "read_mails"]

MAILS = Path(__file__).resolve().parent / "mails"
MAX_MESSAGE_ID = 255
MAX_SUBJECT = 998  # RFC 5322, 2.1.1
MAX_SENDER = 320

# What the standard library's parser and decoders raise on input that they did not expect.
_PARSER_ERRORS = (
    MessageError,
    ValueError,
    LookupError,
    AttributeError,
    TypeError,
    AssertionError,
    RecursionError,
)
_BLANK_LINES = re.compile(r"\n{3,}")
_SPACES = re.compile(r"\s+")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file that came with an e-mail."""

    name: str
    media_type: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """One e-mail, decoded.

    ``message_id`` identifies it: the same bytes always give the same one, also where the header is missing.
    ``sender`` is a bare address in lower case. All texts can be stored: they hold neither NUL nor lone
    surrogates.
    """

    message_id: str
    sender: str
    sender_name: str
    subject: str
    text: str
    attachments: tuple[Attachment, ...] = ()
    defects: tuple[str, ...] = ()

    def as_prompt(self) -> str:
        """What an agent reads: the headers that matter, the text, and the names of the attachments."""
        lines = [f"From: {self.sender_name} <{self.sender}>", f"Subject: {self.subject}", "", self.text]
        if self.attachments:
            lines += ["", "Attachments:"]
            lines += [
                f"- {part.name} ({part.media_type}, {len(part.data)} bytes)" for part in self.attachments
            ]
        return "\n".join(lines)


def read_mails(directory: Path = MAILS) -> tuple[Mail, ...]:
    """Every ``*.eml`` of ``directory``, in the order of the file names."""
    return tuple(parse_mail(path.read_bytes()) for path in sorted(directory.glob("*.eml")))


def parse_mail(raw: bytes) -> Mail:
    """Read one RFC 5322 message; never raises because of what ``raw`` holds."""
    defects: list[str] = []
    message = _try(lambda: email.message_from_bytes(raw, policy=policy.default), defects, "the message")
    if message is None:
        message = EmailMessage(policy=policy.default)
        message.set_content(raw.decode("utf-8", "replace"))
    sender_name, sender = _sender(message, defects)
    message_id = _message_id(message, raw, defects)
    subject = _one_line(_header(message, "Subject", defects))[:MAX_SUBJECT]
    text = _text(message, defects)
    attachments = tuple(_attachments(message, defects))
    defects += _parser_defects(message)
    return Mail(
        message_id=message_id,
        sender=sender,
        sender_name=sender_name,
        subject=subject,
        text=text,
        attachments=attachments,
        defects=tuple(dict.fromkeys(defects)),
    )


def _try(action: Callable[[], T], defects: list[str], what: str) -> T | None:
    try:
        return action()
    except _PARSER_ERRORS as error:
        defects.append(f"{what}: {type(error).__name__}")
        return None


def _header(message: EmailMessage, name: str, defects: list[str]) -> str:
    value = _try(lambda: message[name], defects, f"header {name}")
    return "" if value is None else str(value)


def _sender(message: EmailMessage, defects: list[str]) -> tuple[str, str]:
    """The display name and the address of the first author."""
    addresses = _try(lambda: getattr(message["From"], "addresses", ()), defects, "header From") or ()
    name = addresses[0].display_name if addresses else ""
    address = _one_line(addresses[0].addr_spec).lower()[:MAX_SENDER] if addresses else ""
    if "@" not in address.strip("@<>"):
        defects.append("no sender")
        address = ""
    return _one_line(name)[:MAX_SENDER], address


def _message_id(message: EmailMessage, raw: bytes, defects: list[str]) -> str:
    found = _one_line(_header(message, "Message-ID", defects))
    if found and len(found) <= MAX_MESSAGE_ID:
        return found
    defects.append("Message-ID too long" if found else "no Message-ID")
    return f"<{hashlib.sha256(raw).hexdigest()}@no-message-id.invalid>"


def _text(message: EmailMessage, defects: list[str]) -> str:
    body = _try(lambda: message.get_body(("plain", "html")), defects, "body")
    if body is None:
        body = next(
            (part for part in _leaves(message, defects) if part.get_content_maintype() == "text"), None
        )
    if body is None and message.get_content_maintype() == "multipart" and not message.is_multipart():
        body = message  # its boundary is broken: better all of it as it came than nothing
    if body is None:
        return ""
    text = _part_text(body, defects)
    if body.get_content_subtype() == "html":
        text = _try(lambda: _html_text(text), defects, "HTML") or ""
    text = storable_text(text.replace("\r\n", "\n").replace("\r", "\n"))
    return _BLANK_LINES.sub("\n\n", text).strip()


def _part_text(part: MIMEPart, defects: list[str]) -> str:
    data = _part_bytes(part, defects)
    charset = _try(part.get_content_charset, defects, "charset") or "utf-8"
    text = _try(lambda: data.decode(charset), defects, f"charset {charset}")
    return data.decode("utf-8", "replace") if text is None else text


def _part_bytes(part: MIMEPart, defects: list[str]) -> bytes:
    data = _try(lambda: part.get_payload(decode=True), defects, "transfer encoding")
    return data if isinstance(data, bytes) else b""


def _leaves(message: EmailMessage, defects: list[str]) -> Iterator[MIMEPart]:
    parts = _try(lambda: [part for part in message.walk() if not part.is_multipart()], defects, "parts")
    yield from parts or ()


def _attachments(message: EmailMessage, defects: list[str]) -> Iterator[Attachment]:
    for number, part in enumerate(_leaves(message, defects), start=1):
        name = _try(part.get_filename, defects, "attachment name")
        if not name and _try(part.get_content_disposition, defects, "disposition") != "attachment":
            continue
        yield Attachment(
            name=_file_name(name or "") or f"attachment-{number}",
            media_type=part.get_content_type(),
            data=_part_bytes(part, defects),
        )


def _file_name(name: str) -> str:
    """The last part of a path, whichever way its slashes lean; "" for what would name a directory."""
    return _one_line(name.replace("\\", "/").rpartition("/")[2]).strip(".")


def _parser_defects(message: EmailMessage) -> Iterator[str]:
    for part in _try(lambda: list(message.walk()), [], "parts") or ():
        yield from (type(defect).__name__ for defect in part.defects)


def _one_line(text: str) -> str:
    return _SPACES.sub(" ", storable_text(text)).strip()


class _Text(HTMLParser):
    """Collects what a reader of the page would see."""

    HIDDEN = frozenset({"script", "style", "head", "title"})
    BREAKS = frozenset({"br", "p", "div", "tr", "li", "h1", "h2", "h3", "table", "blockquote"})

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in self.HIDDEN
        if tag in self.BREAKS:
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(0, self._hidden - (tag in self.HIDDEN))
        if tag in self.BREAKS:
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.pieces.append(_SPACES.sub(" ", data))


def _html_text(html: str) -> str:
    parser = _Text()
    parser.feed(html)
    parser.close()
    return "\n".join(line.strip() for line in "".join(parser.pieces).split("\n"))
