"""The example's e-mails are read correctly, and no bytes make the reader fail."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_project.support.mailbox import MAILS, Mail, parse_mail, read_mails

RAW = {path.stem: path.read_bytes() for path in sorted(MAILS.glob("*.eml"))}


@pytest.fixture(scope="module")
def mails() -> Mapping[str, Mail]:
    return {name: parse_mail(raw) for name, raw in RAW.items()}


def test_the_mails_have_the_line_ends_of_rfc_5322() -> None:
    assert all(raw.count(b"\n") == raw.count(b"\r\n") for raw in RAW.values())


def test_the_mailbox_is_read_in_the_order_of_its_file_names(mails: Mapping[str, Mail]) -> None:
    assert read_mails() == tuple(mails.values())
    assert len(mails) >= 8


def test_no_two_mails_have_one_message_id(mails: Mapping[str, Mail]) -> None:
    assert len({mail.message_id for mail in mails.values()}) == len(mails)


def test_only_the_malformed_mails_have_defects(mails: Mapping[str, Mail]) -> None:
    assert {name for name, mail in mails.items() if mail.defects} == {
        "11-broken-boundary",
        "12-no-headers-bad-charset",
    }


def test_a_plain_mail_is_read(mails: Mapping[str, Mail]) -> None:
    mail = mails["01-plain"]
    assert mail.message_id == "<20260116.0901.1@mail.example>"
    assert (mail.sender, mail.sender_name) == ("clara.moreau@mail.example", "Clara Moreau")
    assert mail.subject == "Where is my order A-1001?"
    assert mail.text.startswith("Hello,\n\nI ordered a desk lamp")
    assert mail.text.endswith("Clara Moreau")


def test_the_plain_alternative_is_preferred_to_html(mails: Mapping[str, Mail]) -> None:
    text = mails["02-multipart-alternative"].text
    assert "order A-1002 leave your house?" in text
    assert "<" not in text


def test_quoted_printable_and_an_encoded_subject_are_decoded(mails: Mapping[str, Mail]) -> None:
    mail = mails["03-quoted-printable"]
    assert b"quoted-printable" in RAW["03-quoted-printable"]
    assert RAW["03-quoted-printable"].isascii()
    assert mail.subject == "Rückgabe der Kaffeemühle aus Bestellung A-1003"
    assert "größer, als ich dachte, und paßt nicht unter den Küchenschrank" in mail.text


@pytest.mark.parametrize(
    ("name", "sender_name", "subject", "text"),
    [
        ("04-base64", "佐藤 由紀", "注文した湯呑みについて", "いつ頃届きますでしょうか"),
        ("05-iso-2022-jp", "田中 健", "ご注文取り消しの確認", "はんだごての代金は返金されるのでしょうか"),
        ("07-no-order-number", "Lena Novák", "My parcel", "Děkuji, Lena"),
        ("10-unknown-order", "Omar Haddad", "Order number A-9999", "I paid 20€ for it."),
    ],
)
def test_other_charsets_are_decoded(
    mails: Mapping[str, Mail], name: str, sender_name: str, subject: str, text: str
) -> None:
    mail = mails[name]
    assert (mail.sender_name, mail.subject) == (sender_name, subject)
    assert text in mail.text


def test_attachments_keep_their_names_and_bytes(mails: Mapping[str, Mail]) -> None:
    pdf, csv = mails["06-attachments"].attachments
    assert (pdf.name, pdf.media_type) == ("Rücksendeschein.pdf", "application/pdf")
    assert pdf.data.startswith(b"%PDF-1.4")
    assert pdf.data.endswith(b"%%EOF\n")
    assert (csv.name, csv.media_type) == ("stations.csv", "text/csv")
    assert "Reykjavík" in csv.data.decode()
    assert "Reykjavík" not in mails["06-attachments"].text


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        (b"../../etc/passwd", "passwd"),
        (rb"..\\..\\boot.ini", "boot.ini"),
        (b"..", "attachment-1"),
        (b"/", "attachment-1"),
        (b"", "attachment-1"),
    ],
)
def test_an_attachment_cannot_name_a_directory(name: bytes, safe: str) -> None:
    mail = parse_mail(b'Content-Disposition: attachment; filename="%b"\n\nhello' % name)
    assert [part.name for part in mail.attachments] == [safe]


def test_of_an_html_mail_the_visible_text_is_read(mails: Mapping[str, Mail]) -> None:
    text = mails["08-html-only"].text
    assert "the total of 89\N{NO-BREAK SPACE}€" in text.replace(" €", "\N{NO-BREAK SPACE}€")
    assert "A-1001" in text
    assert "A-9999" not in text  # that stood in a script
    assert "<" not in text


def test_a_mail_with_a_broken_boundary_keeps_its_words(mails: Mapping[str, Mail]) -> None:
    mail = mails["11-broken-boundary"]
    assert "StartBoundaryNotFoundDefect" in mail.defects
    assert "Please cancel order A-1002" in mail.text
    assert mail.subject == "The blankets (A-1002"


def test_a_mail_without_headers_and_with_an_unknown_charset_is_read(mails: Mapping[str, Mail]) -> None:
    mail = mails["12-no-headers-bad-charset"]
    assert {"no sender", "no Message-ID", "charset x-martian-7: LookupError"} <= set(mail.defects)
    assert "My order is A-1001.\N{REPLACEMENT CHARACTER}" in mail.text
    assert mail.sender == ""


def test_a_missing_message_id_is_made_from_the_bytes() -> None:
    first, again, other = parse_mail(b"\n\nhello"), parse_mail(b"\n\nhello"), parse_mail(b"\n\nhello!")
    assert first.message_id == again.message_id
    assert first.message_id != other.message_id


def test_a_message_id_that_is_too_long_to_store_is_replaced() -> None:
    mail = parse_mail(b"Message-ID: <" + b"x" * 300 + b"@mail.example>\n\nhello")
    assert len(mail.message_id) <= 255
    assert "Message-ID too long" in mail.defects


def test_the_display_name_is_not_taken_for_the_address() -> None:
    mail = parse_mail(b"From: =?utf-8?q?clara=40mail.example=2C?= <Eve@Other.example>\n\nhello")
    assert mail.sender == "eve@other.example"


def test_a_prompt_tells_sender_subject_text_and_attachments(mails: Mapping[str, Mail]) -> None:
    prompt = mails["06-attachments"].as_prompt()
    assert prompt.startswith(
        "From: Björk Þórsdóttir <bjork@firma.example>\nSubject: Return slip for the rain coat\n\nHello,"
    )
    assert prompt.endswith("- stations.csv (text/csv, 57 bytes)")


def test_parts_within_parts_without_end_are_read() -> None:
    raw = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (i, i) for i in range(2000))
    assert_storable(parse_mail(raw + b"\nhello"))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=2000))
def test_no_bytes_make_the_reader_fail(raw: bytes) -> None:
    assert_storable(parse_mail(raw))


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_no_damage_to_a_real_mail_makes_the_reader_fail(data: st.DataObject) -> None:
    raw = bytearray(data.draw(st.sampled_from(list(RAW.values()))))
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(raw)))
        stop = min(len(raw), start + data.draw(st.integers(0, 40)))
        raw[start:stop] = data.draw(st.binary(max_size=8) | st.sampled_from(HOSTILE))
    assert_storable(parse_mail(bytes(raw)))


HOSTILE = (
    b"\r\n\r\n",
    b"=?utf-8?b?!!?=",
    b"=?x?q?=ff?=",
    b"\r\nContent-Transfer-Encoding: base64\r\n",
    b"\r\nContent-Type: multipart/mixed; boundary=\r\n",
    b"\r\nContent-Type: text/html; charset=idna\r\n",
    b"\r\nContent-Type: ;;;=;\r\n",
    b"\r\nFrom: <<>@,;:\r\n",
    b"\r\nMessage-ID: [\r\n",
    b"filename*0*=utf-8''%ff; filename*2=x",
    b"<![x<!--",
)


def assert_storable(mail: Mail) -> None:
    """What every mail promises, whatever it was made from."""
    texts = [mail.message_id, mail.sender, mail.sender_name, mail.subject, mail.text]
    for text in [*texts, *(part.name for part in mail.attachments), mail.as_prompt()]:
        assert "\x00" not in text
        text.encode()
    assert 0 < len(mail.message_id) <= 255
    assert not any("\n" in text for text in texts[:4])
