"""A failing assertion of a contract shows its values, though a contract is not a test file itself."""

import pytest

pytest.register_assert_rewrite("tests.blobs.contract", "tests.blobs.log_contract", "tests.blobs.object_contract")
