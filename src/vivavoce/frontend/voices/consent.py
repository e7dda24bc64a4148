"""The consent of the person whose voice is stored."""

from __future__ import annotations

from dataclasses import dataclass, field

from vivavoce.errors import InvalidRequest, check_kind
from vivavoce.frontend.audio.tag import utc_now
from vivavoce_textnorm import excerpt

MAX_STATEMENT_CHARS = 2_000
MAX_WHO_CHARS = 200


@dataclass(frozen=True)
class Consent:
    """A person's consent to the use of their voice. Raises InvalidRequest if `statement` is empty or a text too long.

    statement: what the person allows, in words. who: the person's name, or "". at: UTC time of the entry in ISO 8601.
    """

    statement: str
    who: str = ""
    at: str = field(default_factory=utc_now)

    def __post_init__(self) -> None:
        for name, text, limit in (
            ("consent", self.statement, MAX_STATEMENT_CHARS),
            ("consent_by", self.who, MAX_WHO_CHARS),
        ):
            check_kind(name, text, str, "say it in words")
            if len(text) > limit:
                raise InvalidRequest(
                    f"{name}: {excerpt(text)} has {len(text)} characters, more than the limit of {limit}; shorten it"
                )
        if not self.statement.strip():
            raise InvalidRequest("consent: is empty; say in words what the person allows, or leave consent_by out")


def given_consent(statement: str, who: str) -> Consent | None:
    """Return a consent with the current time, or None if both fields of a request are empty. Raises as `Consent`."""
    return Consent(statement, who) if statement.strip() or who.strip() else None


def check_consent(consent: Consent | None) -> None:
    """Raise InvalidRequest if the consent is missing or does not name the person."""
    if consent is None:
        raise InvalidRequest(
            "consent: is missing, and this server stores no voice without it; send consent (what the person allows, in "
            "words) and consent_by (the person's name)"
        )
    if not consent.who.strip():
        raise InvalidRequest(
            "consent_by: is missing, and this server stores no voice without it; send the name of the person who "
            "gave the consent"
        )
