"""Files over http and https: inputs from a URL, and blobs straight from and to S3. Standard library only."""

import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import IO, Any
from urllib.parse import urlsplit

CHUNK_BYTES = 1 << 20
SILENCE_S_MAX = 60.0  # without a byte
SCHEMES = ("http", "https")
LATER = {408, 425, 429}  # of 4xx: the answer may be another one later

Read = Callable[[int, int], bytes | memoryview]  # bytes from an offset on; so many are enough


class WebTrouble(Exception):
    """It did not work. `is_final`: it will not, however often it is tried."""

    def __init__(self, message: str, *, is_final: bool = False, status: int = 0) -> None:
        super().__init__(message)
        self.status = status  # of HTTP; 0: there was no answer
        self.is_final = is_final


def get(url: str, offset: int, size_max: int, check: Callable[[], None]) -> Iterator[bytes]:
    """The bytes from offset on, up to size_max in all. `check` is called before each chunk. Raises WebTrouble."""
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    with _open(urllib.request.Request(url, headers=headers)) as answer:
        if offset and answer.status != http.client.PARTIAL_CONTENT:
            raise WebTrouble(f"{_host(url)} does not go on at byte {offset}", is_final=True)
        at = offset
        while True:
            check()
            try:
                chunk = answer.read(CHUNK_BYTES)
            except (OSError, http.client.HTTPException) as error:
                raise WebTrouble(f"{_host(url)}: {error}") from None
            if not chunk:
                return
            at += len(chunk)
            if at > size_max:
                raise WebTrouble(f"{_host(url)} sent more than {size_max} bytes", is_final=True)
            yield chunk


def put(url: str, size: int, read: Read, check: Callable[[], None]) -> None:
    """Send a whole blob. Raises WebTrouble."""

    def body() -> Iterator[Any]:
        at = 0
        while at < size:
            check()
            chunk = read(at, min(CHUNK_BYTES, size - at))
            if not chunk:
                raise WebTrouble("the file became shorter while it was sent", is_final=True)
            at += len(chunk)
            yield chunk

    headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
    with _open(urllib.request.Request(url, data=body(), method="PUT", headers=headers)):
        pass


class _Redirects(urllib.request.HTTPRedirectHandler):
    """To http and https, as the base class has it, and never away from TLS."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:  # fmt: skip
        if req.type == "https" and urlsplit(newurl).scheme != "https":
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(request: urllib.request.Request) -> http.client.HTTPResponse:
    if request.type not in SCHEMES:
        raise WebTrouble(f"only http and https, not {request.type}", is_final=True)
    context = ssl.create_default_context()
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler(context=context),
        urllib.request.HTTPDefaultErrorHandler(), urllib.request.HTTPErrorProcessor(), _Redirects(),
    ):  # fmt: skip
        opener.add_handler(handler)
    try:
        answer = opener.open(request, timeout=SILENCE_S_MAX)
    except urllib.error.HTTPError as error:
        is_final = error.code < 500 and error.code not in LATER
        answer_text = "redirects to another scheme" if error.code < 400 else f"answers {error.code} {error.reason}"
        raise WebTrouble(f"{_host(request.full_url)} {answer_text}", is_final=is_final, status=error.code) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        is_final = isinstance(error, ValueError) or isinstance(reason, ssl.SSLCertVerificationError)
        raise WebTrouble(f"{_host(request.full_url)}: {reason}", is_final=is_final) from None
    assert isinstance(answer, http.client.HTTPResponse)
    return answer


def _host(url: str) -> str:
    """What an error may say of a URL: its query may be a password."""
    return urlsplit(url).hostname or "the URL"
