"""roost blobs credentials: the keys with which the servers use S3."""

import sys

import click

from roost.blobs.keys import FILE_BYTES_MAX, LINES, S3Keys, parse_keys
from roost.cli.common.exit_codes import USAGE, Failure
from roost.cli.common.format import ago
from roost.cli.common.output import Output, print_fields
from roost.cli.common.session import client_output, connect, json_output, showing_group
from roost.client import Client
from roost.schema.access.blob_keys import BlobKeysBody


@showing_group
@client_output
def credentials(client: Client) -> Output:
    """Show, set and remove the credentials with which the servers use S3. For admins.

    They are encrypted in the store with the key of the servers. All servers use them, and no command shows them.
    Without them, each server uses its environment, its file (`keys=`) or the role of its machine.

    Examples:
      roost blobs credentials
      roost blobs credentials set < s3-keys       lines AWS_ACCESS_KEY_ID=..., AWS_SECRET_ACCESS_KEY=...
      roost blobs credentials remove

    Next: `roost doctor` checks them.
    """
    keys = client.blob_keys.get()
    fields = {"Bucket": "none: the blobs are in a directory"}
    if keys.bucket:
        source = f"sealed in the store, set {ago(keys.changed_ms)} by {keys.changed_by}"
        fields = {
            "Bucket": keys.bucket,
            "Endpoint": keys.endpoint or "that of Amazon",
            "Region": keys.region,
            "Credentials": source if keys.sealed else "those that each server was started with",
        }
    if not keys.readable:
        fields["State"] = "the key of the server does not open them"
    return Output(keys, lambda: print_fields(fields, 13))


@credentials.command("set")
@click.option("--endpoint", default="", metavar="URL", help="Instead of that of --blobs.")
@click.option("--region", default="", help="Instead of that of --blobs.")
@click.option("--no-check", is_flag=True, help="Do not try them first; for example when S3 is down.")
@json_output
def set_(endpoint: str, region: str, no_check: bool) -> Output:
    """Set the credentials; they come from standard input or a prompt. No restart is needed.

    \b
    The lines are those of the environment:
      AWS_ACCESS_KEY_ID=...
      AWS_SECRET_ACCESS_KEY=...
      AWS_SESSION_TOKEN=...          if there is one

    They are never arguments: other users of this machine and shell histories see arguments. One request tries them
    before anything changes. To rotate keys: make new ones, set them, and revoke the old ones a minute later.

    Examples:
      roost blobs credentials set < s3-keys
      pass show s3 | roost blobs credentials set --region eu-central-1

    Next: `roost doctor`.
    """
    keys = _read()
    with connect() as client:
        body = BlobKeysBody(*keys, endpoint=endpoint, region=region)
        found = client.blob_keys.set(body, check=not no_check)
    return Output(found, f"the credentials of bucket {found.bucket} are set; all servers use them within seconds")


@credentials.command()
@client_output
def remove(client: Client) -> Output:
    """Remove the credentials: every server uses those again that it was started with.

    Examples:
      roost blobs credentials remove

    Next: `roost doctor`.
    """
    client.blob_keys.remove()
    return Output({"removed": True}, "the credentials are removed; each server uses those that it was started with")


def _read() -> S3Keys:
    if sys.stdin.isatty():
        return S3Keys(click.prompt("AWS_ACCESS_KEY_ID"), click.prompt("AWS_SECRET_ACCESS_KEY", hide_input=True))
    keys = parse_keys(sys.stdin.buffer.read(FILE_BYTES_MAX + 1))
    if keys is None:
        raise Failure("standard input has no credentials", f"it has the lines {LINES}", USAGE)
    return keys
