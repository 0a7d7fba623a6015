"""The proto keeps its promises: no field, method or number of a release changes its meaning or is used again.

A field that is added is added to controller-fields.txt as well. A change of a line here breaks a controller somewhere.
"""

from pathlib import Path

from google.protobuf import descriptor_pb2

from roost.wire import controller_pb2 as pb

METHODS = {
    "Schedule": "ScheduleRequest -> ScheduleReply",
    "Update": "UpdateRequest -> Workload",
    "Unschedule": "UnscheduleRequest -> Workload",
    "Approve": "ApproveRequest -> Workload",
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

FIELDS = (Path(__file__).parent / "controller-fields.txt").read_text()


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
