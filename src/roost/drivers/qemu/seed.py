"""The NoCloud seed of a virtual machine: the texts of its files, with secrets in their places."""

import base64
import json

from roost.drivers.qemu.request import machine_name
from roost.model.errors import Invalid
from roost.model.protocol import Run
from roost.model.records.secret import Handed, Hidden
from roost.model.spec.document import Document
from roost.model.spec.runs.vm import secret_in

CLOUD_CONFIG = "#cloud-config\n"  # JSON is YAML


def seed(document: Document, run: Run, handed: Handed | None) -> Hidden:
    """The files by their names, in base64; none without `cloud_init`. Raises Invalid when a secret is not to be had."""
    block = document.vm.cloud_init if document.vm is not None else None
    if block is None:
        return Hidden()
    if handed is not None and handed.refusal:
        raise Invalid("", handed.refusal)
    values = handed.values if handed is not None else {}
    user_data = _filled(block.user_data, values)
    identity = {"instance-id": machine_name(run), "local-hostname": document.name}
    files = {
        "user-data": user_data if isinstance(user_data, str) else CLOUD_CONFIG + json.dumps(user_data),
        "meta-data": json.dumps({**identity, **_mapping(_filled(block.meta_data, values))}),
    }
    if block.network:
        files["network-config"] = json.dumps(_filled(block.network, values))
    return Hidden({name: base64.b64encode(text.encode()).decode() for name, text in files.items()})


def _filled(value: object, values: dict[str, bytes]) -> object:
    name = secret_in(value)
    if name is not None:
        if name not in values:
            raise Invalid("", f"secret {name} cannot be opened: the server has not sent it")
        try:
            return values[name].decode()
        except UnicodeDecodeError:
            raise Invalid("", f"secret {name} is not text, which cloud-init needs") from None
    if isinstance(value, dict):
        return {key: _filled(item, values) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, values) for item in value]
    return value


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
