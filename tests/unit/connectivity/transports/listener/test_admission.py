"""Which sockets a listener accepts, from their numbers."""

from __future__ import annotations

from connectivity.transports.listener.admission import Admission, AdmissionLimits


def test_sockets_are_bounded_in_total_and_by_address_until_they_leave() -> None:
    admission = Admission(AdmissionLimits(sockets=3, per_address=2))
    assert [admission.enter("a", 0.0) for _ in range(3)] == [None, None, "too many sockets of one address"]
    assert [admission.enter("b", 0.0) for _ in range(2)] == [None, "too many sockets"]
    admission.leave("a")
    assert admission.enter("a", 0.0) is None
    for address in ("a", "a", "b"):
        admission.leave(address)
    assert admission._sockets == {}, "nothing is kept of those that have left"


def test_an_address_has_its_accepts_again_in_the_next_second() -> None:
    admission = Admission(AdmissionLimits(sockets=100, accepts=2))
    refusal = "too many sockets of one address in a second"
    assert [admission.enter("a", 7.0), admission.enter("a", 7.5), admission.enter("a", 7.9)] == [None, None, refusal]
    assert admission.enter("b", 7.9) is None
    assert [admission.enter("a", 8.0), admission.enter("a", 8.0), admission.enter("a", 8.9)] == [None, None, refusal]


def test_a_refused_socket_is_not_counted() -> None:
    admission = Admission(AdmissionLimits(sockets=1))
    assert admission.enter("a", 0.0) is None
    for _ in range(5):
        assert admission.enter("b", 0.0) == "too many sockets"
    admission.leave("a")
    assert admission.enter("b", 0.0) is None


def test_zero_is_no_limit_of_an_address() -> None:
    admission = Admission(AdmissionLimits(sockets=5_000))
    assert {admission.enter("a", 0.0) for _ in range(5_000)} == {None}
