"""A failing assertion of the contract shows its values, though the contract is not a test file itself."""

import pytest

pytest.register_assert_rewrite("tests.blobs.contract")
