"""One adapter, many threads: one call at a time, forks that share nothing, and a way back after any error."""

import threading

import pytest
import torch
from torch import nn

import offsupport
from offsupport.testing import NETWORKS, Case
from offsupport.testing.case import all_same_bits, promise_same_state, run, same_bits, stream


def at_once(calls):
    """Start all calls together in threads of their own; return what each returned or raised."""
    barrier, found = threading.Barrier(len(calls)), [None] * len(calls)

    def work(i):
        barrier.wait()
        try:
            found[i] = calls[i]()
        except Exception as error:
            found[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


@pytest.mark.parametrize(("method", "count"), [("tent", 8), ("sar", 8), ("tesla", 3)])
def test_threads_give_the_results_of_some_serial_order(method, count):
    adapted = Case(method, NETWORKS["batch_norm"]).wrap(lr=0.05, window=32)
    start, batches = adapted.fork(), [x for i in range(count) for x in stream(1, size=16, seed=i)]
    found = at_once([lambda x=x: adapted(x) for x in batches])
    assert all(isinstance(each, torch.Tensor) for each in found), found
    # Whoever came next is the one whose logits the serial replay gives: each batch moves the adapter on.
    left, replay = set(range(count)), start
    while left:
        tried = {i: replay.fork() for i in left}
        fit = [i for i, fork in tried.items() if all_same_bits(run(fork, [batches[i]]), [found[i]])]
        assert fit, f"{len(left)} of the calls fit no serial order"
        replay = tried[fit[0]]
        left.remove(fit[0])
    promise_same_state(replay.snapshot(), adapted.snapshot(), "Threads leave another state than one after the other.")
    assert adapted.events == replay.events
    adapted.reset()
    start.reset()
    promise_same_state(start.snapshot(), adapted.snapshot(), "reset() does not repair.")
    assert all_same_bits(run(adapted, batches[:2]), run(start, batches[:2]))


def test_forks_go_on_from_the_same_state_and_share_none():
    adapted = Case("tesla", NETWORKS["batch_norm"]).wrap(window=20, queue=2)
    first, *rest = stream(4)
    run(adapted, [first, first[:1] * 300])
    fork = adapted.fork()
    assert (fork.events, fork.passes) == (adapted.events, adapted.passes)
    assert fork.events["out_of_range"] == 1
    one, two = at_once([lambda: run(adapted, rest), lambda: run(fork, rest)])
    assert all_same_bits(one, two)
    fork.reset()
    assert adapted.events["out_of_range"] == 1


class Fragile(nn.Module):
    """Breaks in the middle of a step where a batch is marked, after so many passes."""

    def __init__(self):
        super().__init__()
        self.inner, self.left = NETWORKS["batch_norm"](), None

    def forward(self, x):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        return self.inner(x)


@pytest.mark.parametrize(("method", "passes"), [("sar", 1), ("tesla", 3), ("tesla", 8), ("tent", 0)])
def test_a_call_that_breaks_anywhere_leaves_all_state_as_it_was(method, passes):
    adapted = offsupport.adapt(Fragile(), method, window=20)
    first, second, third = stream(3)
    run(adapted, [first])
    before, events, untouched = adapted.snapshot(), dict(adapted.events), adapted.fork()
    adapted.model.left = passes
    with pytest.raises(KeyboardInterrupt):
        adapted(second)
    adapted.model.left = None
    promise_same_state(before, adapted.snapshot(), "A call that breaks changes state.")
    assert adapted.events == events
    assert same_bits(adapted(third), untouched(third))


def test_an_error_in_one_thread_is_nobody_elses():
    adapted = Case("tent", NETWORKS["batch_norm"]).wrap()
    good = stream(3)
    found = at_once([*(lambda x=x: adapted(x) for x in good), lambda: adapted(255 * good[0]), lambda: adapted(None)])
    assert [isinstance(each, torch.Tensor) for each in found] == [True, True, True, False, False]
    adapted.reset()
    assert all_same_bits(run(adapted, good), run(Case("tent", NETWORKS["batch_norm"]).wrap(), good))


def test_a_state_read_while_others_call_is_a_whole_one():
    adapted = Case("sar", NETWORKS["batch_norm"]).wrap(margin=2.0)
    batches, seen = stream(6), []
    at_once([lambda: run(adapted, batches), lambda: seen.extend(adapted.snapshot() for _ in range(20))])
    replay = Case("sar", NETWORKS["batch_norm"]).wrap(margin=2.0)
    moments = [replay.snapshot(), *(run(replay, [x]) and replay.snapshot() for x in batches)]
    sums = {float(next(iter(each.parameters.values())).double().sum()) for each in moments}
    assert {float(next(iter(each.parameters.values())).double().sum()) for each in seen} <= sums
