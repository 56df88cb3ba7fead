"""The protocol of a secure sum, between its parties alone: what sites give away, and to whom."""

import numpy as np
import pytest

from fedminimax.engines.federated import Secure
from fedminimax.engines.federated.messages import Withheld
from fedminimax.engines.federated.secure import primitives
from fedminimax.engines.federated.secure.party import Party
from fedminimax.engines.federated.secure.primitives import KEY, NotTogether
from fedminimax.engines.federated.secure.unmasking import joined, unmasked

WORDS, SECURE = 11, Secure()


class Sum:
    """Five sites, up to the step that is asked for. Site numbers have gaps, as in a cohort."""

    numbers = (0, 2, 3, 7, 8)

    def __init__(self, name="s/0/0/0", secure=SECURE, numbers=numbers):
        self.secure, self.numbers, self.name = secure, numbers, name
        self.parties = {k: Party(name, k, secure) for k in numbers}
        self.vectors = {k: np.random.default_rng(k).integers(0, 2**64, WORDS, np.uint64) for k in numbers}
        self.known = {k: party.announce() for k, party in self.parties.items()}
        self.masked, self.sealed = {}, {}

    def share(self):
        self.sealed = {k: party.share(self.known) for k, party in self.parties.items()}
        return self

    def mask(self, sharing=None, masking=None):
        self.sharing = set(sharing or self.numbers)
        for k in masking or self.sharing:
            self.parties[k].receive({j: self.sealed[j][k] for j in self.sharing - {k}})
            self.masked[k] = self.parties[k].mask(self.vectors[k])
        return self

    def unmask(self, telling=None):
        told = {k: self.parties[k].tell(list(self.masked)) for k in telling or self.masked}
        lost = self.sharing - set(self.masked)
        return unmasked(self.name, self.secure.needed(len(self.numbers)), self.known, self.masked, lost, told)

    def plain(self):
        return sum((self.vectors[k] for k in self.masked), np.zeros(WORDS, np.uint64))


def refused(call, *args):
    with pytest.raises(Withheld):
        call(*args)


LEFT = [Sum.numbers, (0, 3, 7, 8), (3, 7, 8), (0, 3, 7)]
"""Who is still there."""
LOSSES = [(a, b, c) for a in LEFT for b in LEFT for c in LEFT if set(c) <= set(b) <= set(a)]


@pytest.mark.parametrize(("sharing", "masking", "telling"), LOSSES)
def test_masks_come_off_whoever_is_lost(sharing, masking, telling):
    found = Sum().share().mask(sharing, masking)
    np.testing.assert_array_equal(found.unmask(telling), found.plain())


def test_fewer_shares_than_are_needed_give_nothing():
    secret = bytes(range(32))
    shares = dict(enumerate(primitives.split(secret, 3, 5), start=1))
    three, two = dict(list(shares.items())[1:4]), dict(list(shares.items())[:2])
    assert joined(three, 3, lambda found: found == secret) == secret
    assert primitives.join(two) != secret
    with pytest.raises(NotTogether):
        joined(two, 3, lambda found: found == secret)
    wrong = {**shares, 2: bytes(32)}
    assert joined(wrong, 3, lambda found: found == secret) == secret  # a lie among enough true ones is found out
    with pytest.raises(NotTogether):
        joined({k: wrong[k] for k in (1, 2, 3)}, 3, lambda found: found == secret)


def test_of_each_site_one_secret_is_told_and_never_both():
    found = Sum().share().mask(masking=(0, 3, 7, 8))
    told = found.parties[0].tell([0, 3, 7, 8])
    assert (set(told.seeds), set(told.keys)) == ({0, 3, 7, 8}, {2})
    for again in ([0, 2, 3, 7, 8], [0, 3, 7], [0, 3, 7, 8]):  # it has forgotten them: the desk keeps what it said
        refused(found.parties[0].tell, again)


@pytest.mark.parametrize("survivors", [[0, 3], [2, 3, 7], [0, 2, 3, 5], [], [0]], ids=str)
def test_masks_stay_on_for_too_few_or_for_others(survivors):
    party = Sum().share().mask().parties[0]
    refused(party.tell, survivors)
    assert set(party.tell([0, 2, 3, 7, 8]).seeds) == set(Sum.numbers)  # the refusal has cost nothing


def test_a_site_takes_part_among_enough_others_only():
    few = Sum(numbers=(0, 2))
    refused(few.parties[0].share, few.known)
    strict = Sum(secure=Secure(least=5))
    refused(strict.parties[0].share, {k: strict.known[k] for k in (0, 2, 3, 7)})
    cautious = Sum(secure=Secure(threshold=4)).share()
    refused(cautious.parties[0].receive, {k: cautious.sealed[k][0] for k in (2, 3)})
    crowded = Sum(numbers=tuple(range(5)), secure=Secure(bits=40, limit=2.0**21))
    refused(crowded.parties[0].share, crowded.known)  # 5 * 2^61 does not fit
    assert [Secure().needed(5), Secure().needed(4), Secure(threshold=2).needed(6)] == [3, 3, 4]


def test_steps_are_taken_in_their_order_and_with_ones_own_keys():
    found = Sum()
    one = found.parties[0]
    refused(one.receive, {})
    refused(one.mask, found.vectors[0])
    refused(one.tell, list(found.numbers))
    refused(one.share, {k: keys for k, keys in found.known.items() if k != 0})
    refused(one.share, {**found.known, 0: found.known[2]})
    found.share()
    refused(one.share, found.known)  # a second set of shares of the same secrets would be half of what gives them
    refused(one.mask, found.vectors[0])
    refused(one.receive, {k: found.sealed[k][0] for k in (2, 3)} | {9: found.sealed[7][0]})
    found.mask()
    refused(one.mask, found.vectors[0])  # two vectors under one mask tell their difference
    refused(one.receive, {k: found.sealed[k][0] for k in (2, 3, 7)})


def test_sealed_shares_are_for_one_site_and_one_sum():
    found, other = Sum().share(), Sum("s/0/0/1").share()
    right = {k: found.sealed[k][0] for k in (2, 3, 7, 8)}
    wrong = {
        "altered": bytes([right[2][0] ^ 1]) + right[2][1:],
        "altered text": right[2][:20] + bytes([right[2][20] ^ 1]) + right[2][21:],
        "another's": right[3],
        "for another": found.sealed[2][3],
        "of another sum": other.sealed[2][0],
        "cut": right[2][:-1],
    }
    for text in wrong.values():
        with pytest.raises(Withheld) as withheld:
            found.parties[0].receive({**right, 2: text})
        assert (withheld.value.kind, withheld.value.whom) == ("accuses", [2])
    found.parties[0].receive(right)


def test_what_was_told_for_one_sum_is_no_use_in_another():
    one = Sum("s/0/0/0").share().mask()
    told = {k: one.parties[k].tell(one.numbers) for k in one.numbers}
    np.testing.assert_array_equal(unmasked("s/0/0/0", 3, one.known, one.masked, [], told), one.plain())
    with pytest.raises(NotTogether):
        unmasked("s/0/1/0", 3, one.known, one.masked, [], told)


def test_a_lie_about_a_share_is_found_out_while_enough_tell_the_truth():
    found = Sum().share().mask(masking=(0, 3, 7, 8))
    told = {k: found.parties[k].tell([0, 3, 7, 8]) for k in (0, 3, 7, 8)}
    lie = told | {0: told[0]._replace(seeds={k: bytes(KEY) for k in told[0].seeds}, keys={2: bytes(KEY)})}
    total = lambda told: unmasked(found.name, 3, found.known, found.masked, [2], told)
    np.testing.assert_array_equal(total(lie), found.plain())
    with pytest.raises(NotTogether):
        total({k: lie[k] for k in (0, 3, 7)})


def test_public_keys_that_are_none_are_refused():
    for kind in ("cipher", "mask"):
        found = Sum()
        bad = {site: found.known[site]._replace(**{kind: bytes(32)}) for site in (2, 7)}
        with pytest.raises(Withheld) as withheld:
            found.parties[0].share({**found.known, **bad})
        assert (withheld.value.kind, withheld.value.whom) == ("accuses", [2, 7])


def test_masked_vectors_look_random_and_differ_each_time():
    zeros = []
    for _ in range(40):
        found = Sum()
        found.vectors = {k: np.zeros(WORDS, np.uint64) for k in found.numbers}
        zeros += list(found.share().mask().masked.values())
    assert len({row.tobytes() for row in zeros}) == len(zeros)
    bits = np.unpackbits(np.stack(zeros).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(bits.size)
