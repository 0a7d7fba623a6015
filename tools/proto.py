"""Make the Python of every proto/**/v*/*.proto, so that `from roost.wire import agent_pb2` works.

    python tools/proto.py [folder, default src]

protoc takes the import path from the file's place, so each file is mapped to roost/wire, where its Python shall live.
"""

import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "roost/wire"


def main(out: Path) -> int:
    """0 when everything was made; protoc's own code otherwise."""
    sources = sorted((ROOT / "proto").glob("**/v*/*.proto"))
    if not sources:
        print("proto: no file matches proto/**/v*/*.proto", file=sys.stderr)
        return 1
    (out / PACKAGE).mkdir(parents=True, exist_ok=True)
    for source in sources:
        code = compile_one(source, out)
        if code != 0:
            return code
        print(f"proto: {source.relative_to(ROOT)} -> {PACKAGE}/{source.stem}_pb2.py, _pb2_grpc.py and their .pyi")
    return 0


def compile_one(source: Path, out: Path) -> int:
    """Run protoc in this process; the mypy plugins are programs beside our Python."""
    programs = Path(sys.executable).parent
    well_known = Path(protoc.__file__).parent / "_proto"
    code: int = protoc.main(
        [
            "protoc",
            f"-I{PACKAGE}={source.parent}",
            f"-I{well_known}",
            f"--plugin=protoc-gen-mypy={programs / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={programs / 'protoc-gen-mypy_grpc'}",
            f"--python_out={out}",
            f"--grpc_python_out={out}",
            f"--mypy_out=quiet:{out}",
            f"--mypy_grpc_out=quiet:{out}",
            f"{PACKAGE}/{source.name}",
        ]
    )
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "src")))
