"""The parts of etcd transactions: comparisons, operations, and their answers."""

from roost.wire import etcd_pb2 as pb


def equals(key: bytes, value: bytes | None) -> pb.Compare:
    """The key holds exactly this; None: it is not there."""
    if value is None:
        return pb.Compare(key=key, target=pb.Compare.VERSION, result=pb.Compare.EQUAL, version=0)
    return pb.Compare(key=key, target=pb.Compare.VALUE, result=pb.Compare.EQUAL, value=value)


def untouched(key: bytes, revision: int) -> pb.Compare:
    """The key was not written since it was read; 0: it was not there."""
    return pb.Compare(key=key, target=pb.Compare.MOD, result=pb.Compare.EQUAL, mod_revision=revision)


def there(key: bytes) -> pb.Compare:
    return pb.Compare(key=key, target=pb.Compare.VERSION, result=pb.Compare.GREATER, version=0)


def put(key: bytes, value: bytes) -> pb.RequestOp:
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value))


def delete(key: bytes, end: bytes = b"") -> pb.RequestOp:
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key, range_end=end))


def get(key: bytes) -> pb.RequestOp:
    return pb.RequestOp(request_range=pb.RangeRequest(key=key))


def found(response: pb.TxnResponse, number: int) -> pb.KeyValue:
    """What the operation with this number, a `get`, has found; a pair of version 0: nothing."""
    return next(iter(response.responses[number].response_range.kvs), pb.KeyValue())


def value_of(pair: pb.KeyValue) -> bytes | None:
    return pair.value if pair.version else None
