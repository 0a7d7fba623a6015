"""Record a small store of the current format as text: tests/formats/format-N.json.

Every later release reads it, or refuses it, exactly as the file says. Run it with `python -m tools.formats`.
"""

import base64
import json
from pathlib import Path

from msgspec.msgpack import encode

from roost import __version__
from roost.core.state.records import FORMAT
from roost.model.events import Approve, PutRecords, Reserve, SaveCache, SetPool, SetProject
from roost.model.records.access import OPERATOR
from roost.model.records.files import FileSet, OutputGap, OutputProblem, Outputs
from roost.model.records.opaque import OpaqueRecord
from roost.model.records.project import Pool, Project, Reservation
from roost.model.records.result import Result, ResultProblem
from roost.model.records.template import Parameter, Template, TemplateHead, TemplateVersion
from roost.model.records.usage import RunUsage
from roost.ports.store import Change
from tests.core.scene import Scene, job, service, vm

DIGEST = "sha256:" + "0" * 64
FOLDER = Path(__file__).resolve().parent.parent / "tests" / "formats"


def records() -> list[Change]:
    """A store with every kind of record, and instances in many states."""
    scene = Scene("a", "b", "c")
    scene.hello("d", drivers=("qemu",))
    scene.step(SetProject(1, Project("red", quota={"cpu": 8_000})))
    scene.step(SetPool(1, Pool("default", "best_fit")))
    scene.step(PutRecords(1, (OpaqueRecord("secret", "default/key", b"sealed"),)))
    template = Template({"command": ["train", "{{lr}}"]}, {"lr": Parameter("number", default=0.5)})
    head, version = TemplateHead((1,), "", 1, "root"), TemplateVersion(template, 1, "root")
    kept = (OpaqueRecord("template", "default/train", encode(head)),
            OpaqueRecord("template-version", "default/train@1", encode(version)))  # fmt: skip
    scene.step(PutRecords(1, kept))
    scene.submit(
        job("many", count=4, each=["1", "2", "3", "4"], retries=1, timeout="1h", priority=5),
        service("web", count=2, update={"max_unavailable": 1}, restart={"pause": "1s"}),
        job("later", after=[{"workload": "many"}]),
        job("huge", resources={"cpu": 99}),
        job("nightly", schedule="0 3 * * *"),
        job("pack", count=2, gang=True),
        job("made", outputs=["dist/**"], inputs=[{"from": DIGEST, "to": "src"}]),
        job("used", inputs=[{"workload": "made", "to": "in"}]),
        job("deploy", after=["many"], approve={"role": "admin"}, **{"if": "needs.many.state == 'succeeded'"}),
        job("newest", concurrency={"group": "web main", "cancel": True}),
        job("skipped", **{"if": "false"}),
        job("approved", approve={}),
        service("db", until="deploy"),
        vm("machine"),
    )
    scene.running("many.0", "many.1", "web.0", "web.1")
    gaps = (OutputGap(OutputProblem.MISSING, "*.xml"),)
    scene.ended(
        "many.0",
        usage=RunUsage(900, 1 << 20, io_read=0, io_written=0),
        started_ago_ms=5_000,
        result=Result(b'{"n":1}', size=9),
        outputs=Outputs(FileSet(DIGEST, 2, 20), gaps),
    )
    scene.running("made.0")
    made = scene.instance("made.0")
    scene.step(SaveCache(1, made.node, made.token, "pip-1", FileSet(DIGEST, 2, 20)))
    scene.ended("made.0", outputs=Outputs(FileSet(DIGEST, 2, 20)))
    scene.step(Approve(1, "default/approved", OPERATOR))
    scene.ended("many.1", code=3, result=Result(problem=ResultProblem.TOO_LARGE, size=70_000))
    scene.cancel("huge")
    scene.submit(service("web", count=2, command="other"), same_ok=True)
    scene.drain("b", "1h")
    scene.powered("machine.0", "running")
    scene.power("machine", "stop")
    scene.step(Reserve(1, Reservation("night", "red", ("c",), 0)))
    return sorted(scene.memory.snapshot().records, key=lambda change: change.record)


def main() -> None:
    rows = [[*change.record, base64.b64encode(change.value or b"").decode()] for change in records()]
    recorded = {"format": FORMAT, "roost": __version__, "reads": True, "records": rows}
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"format-{FORMAT}.json"
    path.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
    print(f"formats: {path.name}: {len(rows)} records")


if __name__ == "__main__":
    main()
