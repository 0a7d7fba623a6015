"""Places that are shared: a bound for each principal, and the last places for higher roles."""

from roost.model.errors import NoService
from roost.server.auth.principal import Access, Principal
from roost.server.auth.shares import Shares


def principal(name: str, role: str) -> Principal:
    return Principal(name, "", Access({"*": role}))


def filled(shares: Shares, subject: Principal) -> int:
    """How many places it gets."""
    count = 0
    while True:
        try:
            shares.take(subject)
        except NoService as error:
            assert error.code == "busy"
            return count
        count += 1


def test_no_principal_takes_the_places_of_all() -> None:
    shares = Shares(100, "streams")
    assert filled(shares, principal("viewer", "viewer")) == 25
    assert filled(shares, principal("other", "viewer")) == 25
    assert filled(shares, principal("submitter", "submitter")) == 38  # of 50: the others are for operators
    assert filled(shares, principal("third", "viewer")) == 0
    assert filled(shares, principal("operator", "operator")) == 6
    assert filled(shares, principal("admin", "admin")) == 6
    assert len(shares) == 100


def test_a_place_is_given_back() -> None:
    shares, subject = Shares(4, "streams"), principal("viewer", "viewer")
    with shares.one(subject):
        assert filled(shares, subject) == 0
    assert not shares
    with shares.one(subject):
        pass
