"""What went wrong on the way to a hub, as one line that ends with a way out."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from vivavoce.checkpoint.hub.listing import Hub
from vivavoce.errors import DownloadError

_ADVICE_BY_STATUS = {
    401: "{permission}",
    403: "{permission}",
    404: "the hub has no such model, revision or file: check the revision, or use the other hub",
}
_SPACE = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def explained(hub: Hub, folder: Path) -> Iterator[None]:
    """Turn failures of the network and of the disk into DownloadError.

    Args:
        hub: whose variables the advice names.
        folder: where the model should have gone.
    """
    try:
        yield
    except httpx.HTTPStatusError as error:
        response = error.response
        permission = (
            f"set {hub.token_variable} to a token that may read it" if hub.token_variable else "use the other hub"
        )
        advice = _ADVICE_BY_STATUS.get(response.status_code, "try again later, or use the other hub")
        raise DownloadError(
            f"hub: {hub.title} answered {response.status_code} to {response.request.url}; "
            f"{advice.format(permission=permission)}, {by_hand(folder)}"
        ) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DownloadError(
            f"hub: {hub.title} cannot be reached ({reason}); check the network and try again (it goes on where it "
            f"stopped), or set {hub.endpoint_variable} to a mirror, {by_hand(folder)}"
        ) from None
    except OSError as error:
        if error.errno in _SPACE:
            raise DownloadError(
                f"disk: {folder} is full; free some space and try again (it goes on where it stopped), or "
                "choose another place with VIVAVOCE_HOME"
            ) from None
        raise DownloadError(
            f"disk: {error.filename or folder}: {error.strerror or error}; check that {folder} can be written, "
            "or choose another place with VIVAVOCE_HOME"
        ) from None


def by_hand(folder: Path) -> str:
    """The way out that needs no network."""
    return f"or copy the model's files by hand, for example to {folder}, and give that path in place of the name"
