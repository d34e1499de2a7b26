"""Builds the view of a finished round and shows it to the auditors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from leakmeter.auditors.auditor import RoundFacts, RoundView
from leakmeter.auditors.codec import Kept, Resumable
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.hook import remarks
from leakmeter.auditors.hook.chain import known_facts, unused
from leakmeter.auditors.hook.health import Health
from leakmeter.auditors.hook.layout import LazyModel
from leakmeter.auditors.hook.open_round import OpenRound, Updates, collect_truth, round_facts
from leakmeter.auditors.hook.panel import Panel
from leakmeter.auditors.hook.seat import Answer
from leakmeter.auditors.hook.sending import Sending, in_blocks
from leakmeter.auditors.values import Vector


class RoundObserver(Resumable):
    """Shows finished rounds to the auditors.

    Args:
        strategy: The chain of strategies, which knows facts about a round.
        panel: The auditors.
        sending: What clients reply with, as far as it is decided.

    Attributes:
        health: What has damaged the run.
        has_tap: Whether clients keep plain updates; True until no client answers for a tap.
        timeout: Seconds to wait for what they kept.
    """

    health: Kept[Health]

    def __init__(self, strategy: Strategy | None, panel: Panel, sending: Sending) -> None:
        self._strategy, self._panel, self._sending = strategy, panel, sending
        self.health = Health()
        self.has_tap = True
        self.timeout = 0.0
        self._is_abandonment_noted = False
        self._has_answer = False

    def observe(
        self,
        opened: OpenRound,
        updates: Updates,
        answers: Mapping[int, Answer],
        arrays: ArrayRecord | None,
        silent: Mapping[int, bool],
        took: Mapping[int, bool],
    ) -> list[Finding]:
        """Show a round to the auditors and return what they find.

        Raises:
            LayoutError: The released model has other arrays than the one that was sent.
        """
        left_out = unused(self._strategy)
        updates.leave_out(c for node, c in opened.clients.items() if node in left_out)
        view = self._view(opened, updates, opened.by_client(answers), arrays, took)
        # First, and guarded separately: a failing auditor must not suppress the warnings.
        with self._panel.guarded(f"warnings may lack round {opened.server_round}"):
            self.health.note(
                view,
                asked=len(opened.clients),
                silent=silent,
                diverged=updates.diverged(),
                lost=updates.lost,
                plain=opened.plain(view.truth, updates),
            )
        return self._panel.observe(view)

    def _view(
        self,
        opened: OpenRound,
        updates: Updates,
        answers: Mapping[int, Answer],
        arrays: ArrayRecord | None,
        took: Mapping[int, bool],
    ) -> RoundView:
        """Return the view of the round, and note instruments that did not answer."""
        released = opened.model if arrays is None else LazyModel(opened.layout, arrays)
        facts = self._facts(opened, updates, answers, released, has_model=arrays is not None)
        # One client that answers shows that the app lists the mod; another may keep silent.
        self._has_answer |= bool(answers)
        asked = [] if self._has_answer else [c for c in opened.greeted if c in updates]
        for words in remarks.remarks(answers, asked):
            self._panel.note_canaries(words)
        if self._panel.replays(opened.server_round):
            for words in remarks.replayed(answers):
                self._panel.note_replays(opened.server_round, words)
        if facts.abandoned is not None and not self._is_abandonment_noted:
            self._is_abandonment_noted = True  # the first; the log has all
            self._panel.note(f"rounds without an aggregate are not audited: {facts.abandoned}")
        played = {c for c, answer in answers.items() if answer.outcome == "played"}
        obeyed = {c: order for c, order in opened.orders.items() if c in updates and c in played}
        truth, weights = self._truth(opened, updates, obeyed)
        nodes = {client: node for node, client in opened.clients.items()}
        return RoundView(
            server_round=opened.server_round,
            sent=cast(Vector, opened.model),  # vectors when somebody reads them
            replies=updates,
            released=cast(Vector, released),
            facts=facts,
            truth=truth,
            truth_weights=weights,
            instructed=obeyed,
            sends=updates.sends,
            sign=self._sending.sign,
            answers=answers,
            took={c: took.get(nodes[c], False) for c in sorted(opened.planted) if c in updates},
        )

    def _facts(
        self,
        opened: OpenRound,
        updates: Updates,
        answers: Mapping[int, Answer],
        released: LazyModel,
        *,
        has_model: bool,
    ) -> RoundFacts:
        """Return the facts of the round, once it is decided what clients send."""
        sending = self._sending
        if sending.sends is None and has_model and not opened.is_noised:
            # The mean as if replies were models, as a secure sum assumes.
            others = (c for c, a in answers.items() if a.outcome != "played")
            seats = set(opened.orders).difference(others)
            mean, hidden = updates.mean_reply(seats), list[Vector]()
            if mean is None and (change := known_facts(self._strategy).aggregate) is not None:
                hidden = [change + opened.sent]
                mean = in_blocks(hidden[0])
            replies = updates.replies(seats) if updates.are_plain else hidden
            sending.note(opened.model, replies, mean, released)
        for words in sending.hear([a.sends for a in answers.values() if a.sends is not None]):
            self._panel.note_canaries(words)
        updates.sends = sending.sends or "models"
        wants_mean = self._panel.wants_mean or (sending.needs_sign and not opened.orders)
        facts = round_facts(
            self._strategy, opened, updates, released=has_model, wants_mean=wants_mean
        )
        if sending.needs_sign:
            # Canaries' coins must not influence it. A secure sum cannot leave their seats out.
            honest = facts.aggregate if not opened.orders else updates.mean(without=opened.orders)
            sending.note_step(opened.sent, released.vector, honest)
            if sending.needs_sign and opened.orders and not updates.are_plain:
                self._panel.note_canaries(remarks.NO_SIGN)
        return facts

    def _truth(
        self, opened: OpenRound, updates: Updates, obeyed: Collection[int]
    ) -> tuple[Mapping[int, Vector], Mapping[int, float]]:
        """Return the plain updates and weights, if an auditor needs them and clients kept them."""
        if not self._panel.wants_truth or (opened.hides_updates and not self.has_tap):
            return {}, {}
        if not opened.hides_updates:
            return updates, updates.weights
        honest = sorted(set(updates) - set(obeyed))
        wanted = self._panel.truth_of(opened.server_round, honest)
        if wanted:  # what seats have sent is subtracted from the sum
            wanted |= set(obeyed)
        found = None
        with self._panel.guarded(f"round {opened.server_round} has no plain updates"):
            found = collect_truth(opened, wanted, sends=updates.sends, timeout=self.timeout)
        if found is None:
            return {}, {}
        truth, weights = found
        # A client may have kept an update that it did not send in the end.
        truth = {client: truth[client] for client in truth if client in updates}
        if updates and not weights:
            self.has_tap = False  # a client app without one is not asked again
            self._panel.note_truth(remarks.NO_TRUTH)
        return truth, weights
