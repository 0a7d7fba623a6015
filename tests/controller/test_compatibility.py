"""The proto keeps its promises: no field, method or number of a release changes its meaning or is used again.

A field that is added is added to the list, too. Whoever has to change a line here breaks a controller somewhere.
"""

from google.protobuf import descriptor_pb2

from roost.wire import controller_pb2 as pb

METHODS = {
    "Schedule": "ScheduleRequest -> ScheduleReply",
    "Update": "UpdateRequest -> Workload",
    "Unschedule": "UnscheduleRequest -> Workload",
    "Get": "GetRequest -> GetReply",
    "List": "ListRequest -> ListReply",
    "Run": "RunRequest -> stream RunFrame",
    "Attach": "AttachRequest -> stream RunFrame",
    "Watch": "WatchRequest -> stream WatchFrame",
}

FIELDS = """
ScheduleRequest.documents = 1 repeated string
ScheduleRequest.apply = 2 bool
ScheduleReply.workloads = 1 repeated Workload
UpdateRequest.document = 1 string
UnscheduleRequest.project = 1 string
UnscheduleRequest.name = 2 string
UnscheduleRequest.index = 3 optional uint32
GetRequest.project = 1 string
GetRequest.name = 2 string
GetRequest.index = 3 optional uint32
GetReply.workload = 1 Workload
GetReply.document = 2 string
GetReply.instances = 3 repeated Instance
ListRequest.project = 1 string
ListRequest.state = 2 string
ListRequest.limit = 3 uint32
ListRequest.after = 4 string
ListReply.workloads = 1 repeated Workload
ListReply.next = 2 string
Position.revision = 1 uint64
Position.attempt = 2 uint32
Position.step = 3 uint32
Position.log_attempt = 4 uint32
Position.log_offset = 5 uint64
Position.serial = 6 uint64
RunRequest.document = 1 string
RunRequest.attach = 2 bool
RunRequest.position = 3 Position
AttachRequest.project = 1 string
AttachRequest.name = 2 string
AttachRequest.index = 3 uint32
AttachRequest.position = 4 Position
Stage.state = 1 string
Stage.cause = 2 string
Stage.at_ms = 3 int64
Stage.revision = 4 uint64
Stage.attempt = 5 uint32
Stage.node = 6 string
Stage.step = 7 uint32
RunFrame.stages = 1 repeated Stage
RunFrame.log = 2 LogPiece
RunFrame.result = 3 Result
RunFrame.position = 4 Position
RunFrame.gap = 5 bool
RunFrame.project = 6 string
RunFrame.name = 7 string
RunFrame.index = 8 uint32
LogPiece.attempt = 1 uint32
LogPiece.offset = 2 uint64
LogPiece.data = 3 bytes
Result.state = 1 string
Result.cause = 2 string
Result.exit_code = 3 optional int32
Result.signal = 4 optional int32
Result.attempt = 5 uint32
WatchRequest.since = 1 string
WatchRequest.kinds = 2 repeated string
WatchRequest.project = 3 string
WatchRequest.workload = 4 string
WatchRequest.states = 5 repeated string
WatchRequest.interval_ms = 6 uint32
WatchRequest.metrics_ms = 7 uint32
WatchRequest.once = 8 bool
WatchFrame.changes = 1 repeated Change
WatchFrame.mark = 2 string
WatchFrame.reset = 3 bool
WatchFrame.words = 4 string
WatchFrame.whole = 5 bool
WatchFrame.metrics = 6 repeated Metrics
Change.revision = 1 uint64
Change.node = 2 Node
Change.instance = 3 Instance
Change.workload = 4 Workload
Change.gone = 5 Gone
Gone.kind = 1 string
Gone.key = 2 string
Metrics.node = 1 string
Metrics.at_ms = 2 int64
Metrics.usage = 3 Usage
Workload.project = 1 string
Workload.name = 2 string
Workload.kind = 3 string
Workload.state = 4 string
Workload.count = 5 uint32
Workload.counts = 6 repeated CountsEntry
Workload.priority = 7 uint32
Workload.cause = 8 string
Workload.submitted_ms = 9 int64
Workload.finished_ms = 10 int64
Workload.version = 11 uint32
Instance.project = 1 string
Instance.name = 2 string
Instance.index = 3 uint32
Instance.state = 4 string
Instance.attempt = 5 uint32
Instance.node = 6 string
Instance.cause = 7 string
Instance.since_ms = 8 int64
Instance.started_ms = 9 int64
Instance.finished_ms = 10 int64
Instance.exit_code = 11 optional int32
Instance.signal = 12 optional int32
Instance.step = 13 uint32
Instance.losses = 14 uint32
Instance.failures = 15 uint32
Instance.token = 16 uint64
Instance.stages = 17 repeated Stage
Instance.version = 18 uint32
Instance.ready = 19 bool
Instance.sick = 20 string
Room.used = 1 int64
Room.total = 2 int64
Usage.cpu_milli = 1 int64
Usage.memory = 2 int64
Usage.disk = 3 int64
Node.name = 1 string
Node.status = 2 string
Node.connected = 3 bool
Node.draining = 4 bool
Node.pool = 5 string
Node.zone = 6 string
Node.rack = 7 string
Node.region = 8 string
Node.arch = 9 string
Node.drivers = 10 repeated string
Node.gpu_model = 11 string
Node.taints = 12 repeated string
Node.labels = 13 repeated LabelsEntry
Node.resources = 14 repeated ResourcesEntry
Node.usage = 15 Usage
Node.running = 16 uint32
Node.joined_ms = 17 int64
Node.cordoned = 18 bool
Node.flaky_until_ms = 19 int64
"""


def listed() -> list[str]:
    """Every field as `Message.field = number type`."""
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    lines: list[str] = []
    for message in file.message_type:
        for field in message.field:
            kind = descriptor_pb2.FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
            kind = field.type_name.rpartition(".")[2] or kind
            many = "repeated " if field.label == field.LABEL_REPEATED else "optional " if field.proto3_optional else ""
            lines.append(f"{message.name}.{field.name} = {field.number} {many}{kind}")
    return lines


def test_fields_are_only_added() -> None:
    now = listed()
    kept = FIELDS.strip().splitlines()
    assert [line for line in kept if line not in now] == [], "these were promised"
    assert [line for line in now if line not in kept] == [], "add these to the list, and to docs/controller.md"


def test_methods_are_only_added() -> None:
    service = pb.DESCRIPTOR.services_by_name["Controller"]
    assert service.full_name == "roost.v1.Controller"
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    found = {
        method.name: f"{method.input_type.rpartition('.')[2]} -> {'stream ' if method.server_streaming else ''}"
        f"{method.output_type.rpartition('.')[2]}"
        for method in file.service[0].method
    }
    assert found == METHODS


def test_what_a_later_version_says_is_ignored() -> None:
    later = pb.WatchFrame(mark="1-1").SerializeToString() + bytes([0xFA, 0x3F, 3]) + b"new"
    assert pb.WatchFrame.FromString(later).mark == "1-1"
