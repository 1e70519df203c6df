"""Whether the Hugging Face hub can be reached from here, asked within a bounded time.

Downloading is not here: `pvml.data.sources` and `pvml.loading` do it, after asking.
"""

import os
import ssl
import threading
import urllib.error
import urllib.request

from pvml.errors import HubUnavailable

DEFAULT_ENDPOINT = "https://huggingface.co"


def endpoint() -> str:
    """The hub's address: HF_ENDPOINT where it is set, without a trailing slash."""
    return (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


def offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids the network; the hub's own library reads the same words."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def require_hub(what: str, timeout_s: float = 4.0, *, instead: str = "Give a local path.") -> None:
    """Nothing, where the hub answers; an error that says what to do, where it does not.

    what: what is wanted from the hub, as the subject of a sentence. timeout_s: seconds, in all.
    instead: a sentence that says what works without the hub.

    Raises: HubUnavailable if HF_HUB_OFFLINE is set, or nothing answers in time.
    """
    if offline():
        raise HubUnavailable(
            f"{what} must come from the Hugging Face hub, and HF_HUB_OFFLINE is set. {instead}"
        )
    reason = _why_unreachable(endpoint(), timeout_s)
    if reason is not None:
        raise HubUnavailable(
            f"{what} must come from the Hugging Face hub, and {endpoint()} cannot be reached "
            f"({reason}). {instead}"
        )


def _why_unreachable(address: str, timeout_s: float) -> str | None:
    # In a thread of its own: a socket's timeout covers neither a hanging name server nor a server
    # that sends a byte now and then.
    outcome: list[str | None] = []
    probe = threading.Thread(
        target=lambda: outcome.append(_probe(address, timeout_s)), name="hub-probe", daemon=True
    )
    probe.start()
    probe.join(timeout_s)
    return outcome[0] if outcome else f"no answer within {timeout_s:g} s"


def _probe(address: str, timeout_s: float) -> str | None:
    if not address.startswith(("https://", "http://")):
        return "HF_ENDPOINT must begin with https:// or http://"
    try:
        request = urllib.request.Request(address, method="HEAD")
        with urllib.request.urlopen(request, timeout=timeout_s):
            return None
    except urllib.error.HTTPError as error:
        with error:
            # Any refusal below 500 was spoken by a server; from 500 a gateway speaks in its place.
            return f"HTTP {error.code}" if error.code >= 500 else None
    except urllib.error.URLError as error:
        # The downloading library has certificate settings of its own, so it may succeed here.
        certificate = isinstance(error.reason, ssl.SSLCertVerificationError)
        return None if certificate else str(error.reason)
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except Exception as error:  # whatever else goes wrong, the hub has not answered
        return f"{type(error).__name__}: {error}"
