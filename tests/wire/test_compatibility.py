"""The proto keeps its promises: no field, method or number of a release changes its meaning or is used again.

A field that is added is added to the list as well. A change of a line here breaks a controller somewhere.
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
    "StartPipeline": "StartPipelineRequest -> StartPipelineReply",
    "Why": "WhyRequest -> WhyReply",
    "Plan": "PlanRequest -> PlanReply",
    "ListNodes": "ListNodesRequest -> ListNodesReply",
    "GetNode": "NodeRequest -> GetNodeReply",
    "Drain": "DrainRequest -> Node",
    "PreviewDrain": "DrainRequest -> DrainPreview",
    "Cordon": "NodeRequest -> Node",
    "Uncordon": "NodeRequest -> Node",
    "CreateJoinToken": "CreateJoinTokenRequest -> CreateJoinTokenReply",
    "ListJoinTokens": "ListJoinTokensRequest -> ListJoinTokensReply",
    "RevokeJoinToken": "RevokeJoinTokenRequest -> RevokeJoinTokenReply",
    "History": "HistoryRequest -> HistoryReply",
    "Events": "EventsRequest -> EventsReply",
}

FIELDS = """
ScheduleRequest.documents = 1 repeated string
ScheduleRequest.apply = 2 bool
ScheduleReply.workloads = 1 repeated Workload
StartPipelineRequest.pipeline = 1 string
StartPipelineRequest.variables = 2 repeated VariablesEntry
StartPipelineRequest.only = 3 repeated string
StartPipelineRequest.retention = 4 string
StartPipelineRequest.run = 5 string
StartPipelineReply.project = 1 string
StartPipelineReply.pipeline = 2 string
StartPipelineReply.run = 3 string
StartPipelineReply.name = 4 string
StartPipelineReply.actions = 5 repeated Action
Action.action = 1 string
Action.needs = 2 repeated NeedsEntry
Action.workload = 3 Workload
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
Position.incarnation = 7 uint64
Position.stderr_offset = 8 uint64
RunRequest.document = 1 string
RunRequest.attach = 2 bool
RunRequest.position = 3 Position
AttachRequest.project = 1 string
AttachRequest.name = 2 string
AttachRequest.index = 3 uint32
AttachRequest.position = 4 Position
Stage.state = 1 string
Stage.message = 2 string
Stage.at_ms = 3 int64
Stage.revision = 4 uint64
Stage.attempt = 5 uint32
Stage.node = 6 string
Stage.step = 7 uint32
Stage.reason = 8 string
RunFrame.stages = 1 repeated Stage
RunFrame.log = 2 LogPiece
RunFrame.result = 3 Result
RunFrame.position = 4 Position
RunFrame.gap = 5 bool
RunFrame.log_missing = 9 int64
RunFrame.state_lost = 10 bool
RunFrame.stderr_missing = 11 int64
RunFrame.project = 6 string
RunFrame.name = 7 string
RunFrame.index = 8 uint32
LogPiece.attempt = 1 uint32
LogPiece.offset = 2 uint64
LogPiece.data = 3 bytes
LogPiece.stream = 4 LogStream
Result.state = 1 string
Result.message = 2 string
Result.exit_code = 3 optional int32
Result.signal = 4 optional int32
Result.attempt = 5 uint32
Result.reason = 6 string
Result.data = 7 string
Result.problem = 8 string
Result.outputs = 9 Outputs
Outputs.digest = 1 string
Outputs.files = 2 uint64
Outputs.size = 3 uint64
Outputs.gaps = 4 repeated OutputGap
Outputs.gaps_count = 5 uint32
OutputGap.path = 1 string
OutputGap.problem = 2 string
OutputGap.required = 3 bool
OutputGap.message = 4 string
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
WatchFrame.reason = 4 string
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
Workload.message = 8 string
Workload.submitted_ms = 9 int64
Workload.finished_ms = 10 int64
Workload.version = 11 uint32
Instance.project = 1 string
Instance.name = 2 string
Instance.index = 3 uint32
Instance.state = 4 string
Instance.attempt = 5 uint32
Instance.node = 6 string
Instance.message = 7 string
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
Instance.reason = 21 string
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
Workload.result = 12 string
Workload.reason = 13 string
Workload.template = 14 string
WhyRequest.project = 1 string
WhyRequest.name = 2 string
WhyRequest.index = 3 optional uint32
WhyRequest.brief = 4 bool
WhyReply.instance = 1 string
WhyReply.state = 2 string
WhyReply.message = 3 string
WhyReply.code = 4 string
WhyReply.blockers = 5 repeated Blocker
WhyReply.node = 6 string
WhyReply.strategy = 7 string
WhyReply.eligible = 8 uint32
WhyReply.considered = 9 uint32
WhyReply.candidates = 10 repeated Candidate
WhyReply.verdict = 11 string
WhyReply.suggestions = 12 repeated Suggestion
WhyReply.contradiction = 13 repeated Need
WhyReply.position = 14 uint32
WhyReply.queued_before = 15 repeated string
WhyReply.estimate = 16 Estimate
Blocker.filter = 1 string
Blocker.reason = 2 string
Blocker.nodes = 3 uint32
Blocker.code = 4 string
Candidate.node = 1 string
Candidate.score = 2 double
Suggestion.kind = 1 string
Suggestion.message = 2 string
Suggestion.node = 3 string
Suggestion.path = 4 string
Suggestion.amounts = 5 repeated AmountsEntry
Suggestion.instances = 6 repeated string
Suggestion.facts = 7 repeated FactsEntry
Need.path = 1 string
Need.message = 2 string
Need.nodes = 3 uint32
Estimate.message = 1 string
Estimate.earliest_ms = 2 int64
Estimate.likely_ms = 3 int64
Estimate.latest_ms = 4 int64
PlanRequest.documents = 1 repeated string
PlanReply.token = 1 string
PlanReply.revision = 2 uint64
PlanReply.changes = 3 bool
PlanReply.created = 4 repeated string
PlanReply.changed = 5 repeated string
PlanReply.unchanged = 6 repeated string
PlanReply.placed = 7 repeated Placing
PlanReply.pending = 8 repeated Pending
PlanReply.stopped = 9 repeated Stopping
Placing.instance = 1 string
Placing.node = 2 string
Placing.strategy = 3 string
Placing.devices = 4 repeated uint32
Placing.ports = 5 repeated uint32
Pending.workload = 1 string
Pending.count = 2 uint32
Pending.code = 3 string
Pending.message = 4 string
Pending.blockers = 5 repeated PendingReason
PendingReason.code = 1 string
PendingReason.message = 2 string
PendingReason.nodes = 3 uint32
Stopping.instance = 1 string
Stopping.node = 2 string
Stopping.message = 3 string
ListNodesRequest.status = 1 string
ListNodesRequest.limit = 2 uint32
ListNodesRequest.after = 3 string
ListNodesReply.nodes = 1 repeated Node
ListNodesReply.next = 2 string
NodeRequest.name = 1 string
GetNodeReply.node = 1 Node
GetNodeReply.instances = 2 repeated Instance
DrainRequest.name = 1 string
DrainRequest.deadline = 2 string
DrainPreview.node = 1 string
DrainPreview.revision = 2 uint64
DrainPreview.whole = 3 bool
DrainPreview.leaving = 4 repeated Leaving
Leaving.project = 1 string
Leaving.name = 2 string
Leaving.index = 3 uint32
Leaving.node = 4 string
Leaving.strategy = 5 string
Leaving.code = 6 string
Leaving.message = 7 string
Leaving.may_finish = 8 bool
CreateJoinTokenRequest.pool = 1 string
CreateJoinTokenRequest.uses = 2 optional uint32
CreateJoinTokenRequest.unlimited = 3 bool
CreateJoinTokenRequest.expires = 4 string
CreateJoinTokenReply.token = 1 string
CreateJoinTokenReply.about = 2 JoinToken
JoinToken.id = 1 string
JoinToken.pool = 2 string
JoinToken.uses = 3 optional uint32
JoinToken.created_ms = 4 int64
JoinToken.expires_ms = 5 int64
ListJoinTokensReply.items = 1 repeated JoinToken
RevokeJoinTokenRequest.id = 1 string
HistoryRequest.project = 1 string
HistoryRequest.name = 2 string
HistoryRequest.state = 3 string
HistoryRequest.since = 4 string
HistoryRequest.until = 5 string
HistoryRequest.limit = 6 uint32
HistoryRequest.after = 7 string
HistoryReply.items = 1 repeated Finished
HistoryReply.next = 2 string
Finished.project = 1 string
Finished.name = 2 string
Finished.serial = 3 uint64
Finished.kind = 4 string
Finished.state = 5 string
Finished.count = 6 uint32
Finished.counts = 7 repeated CountsEntry
Finished.submitted_ms = 8 int64
Finished.started_ms = 9 int64
Finished.finished_ms = 10 int64
Finished.node = 11 string
Finished.exit_code = 12 optional int32
Finished.attempts = 13 uint32
Finished.message = 14 string
Finished.priority = 15 uint32
Finished.reason = 16 string
EventsRequest.project = 1 string
EventsRequest.workload = 2 string
EventsRequest.index = 3 optional uint32
EventsRequest.node = 4 string
EventsRequest.kind = 5 string
EventsRequest.what = 6 string
EventsRequest.since = 7 string
EventsRequest.until = 8 string
EventsRequest.limit = 9 uint32
EventsRequest.after = 10 string
EventsReply.items = 1 repeated Event
EventsReply.next = 2 string
Event.id = 1 uint64
Event.at_ms = 2 int64
Event.revision = 3 uint64
Event.kind = 4 string
Event.project = 5 string
Event.workload = 6 string
Event.index = 7 optional uint32
Event.node = 8 string
Event.what = 9 string
Event.message = 10 string
Event.who = 11 string
Event.reason = 12 string
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
    stored = FIELDS.strip().splitlines()
    assert [line for line in stored if line not in now] == [], "these were promised"
    assert [line for line in now if line not in stored] == [], (
        "add these to the list, and to docs/guides/controllers.md"
    )


def test_methods_are_only_added() -> None:
    service = pb.DESCRIPTOR.services_by_name["Controller"]
    assert service.full_name == "roost.controller.v1.Controller"
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
