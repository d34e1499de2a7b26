"""Messages of the hook to the user: about the answers of `canary_mod`, and the project."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from leakmeter.auditors.hook.seat import Answer, Size

NO_ANSWER: Final = (
    "no client answered for canary_mod, so no canary was played: list it in the client app, "
    "ClientApp(mods=[canary_mod]). If it is there, a mod before it builds its own replies and "
    "drops the answer"
)
NO_TRUTH: Final = (
    "no client kept its plain update, so the sum that was really released gets no verdict: in a "
    "simulation list tap_mod in the client app, after the mods that mask or noise"
)
UNDECIDED: Final = (
    "a seat could not tell whether its client app replies with a model or a difference, because "
    "its update is zero or longer than the model, so it played no canary in that round; in code, "
    "set sends='models' or sends='differences'"
)
MISTAKEN: Final = (
    "seats took what their client app replies with for the wrong one of models and differences, so "
    "the canaries of a round have bent the model: set sends='models' or sends='differences'"
)
UNRELEASED: Final = (
    "the model after the last round is not known, so that round is not audited: hand it over, "
    "AuditedGrid.finish(model)"
)
IN_PARTS: Final = (
    "the loop sends one model in several goes. Each go is taken for a round of its own, so the "
    "numbers are about parts of rounds: send to all clients of a round at once"
)
SEVERAL_RECORDS: Final = (
    "clients are sent several ArrayRecords, or none, so it is not known what their updates are "
    "added to: no round is audited"
)
OWN_MODELS: Final = (
    "clients of one round are sent different models, such as slices or those of clusters, so their "
    "updates have no common base: no round is audited"
)
UNPLANNED: Final = (
    "the strategy's own start has no argument num_rounds, so canaries are planned for three "
    "rounds: say how many there are before it starts, audited.num_rounds = 20"
)
CHANGED: Final = "the model has changed its arrays"
REPEATED: Final = (
    "the strategy aggregates a round more than once, or gives two rounds the same number: only the "
    "first aggregate of each number is audited. Let its loop give each aggregate its own number"
)
UNCOUNTED: Final = (
    "the strategy gives a round a number that is not a whole number from 1 on: such a round is not "
    "audited. Let its loop count from 1"
)
UNSEEN: Final = (
    "the strategy's start never called self.configure_train and self.aggregate_train, so no "
    "auditor saw a round: let its loop call these two"
)
NOT_OUTERMOST: Final = (
    "Audited must be outermost: write Audited(Wrapper(strategy), ...), "
    "not Wrapper(Audited(strategy, ...)). A loop that calls its methods without start says how "
    "many rounds it has, audited.num_rounds = 20, and ends with audited.finish()"
)
NO_SIGN: Final = (
    "clients send differences under masks, and it is not known whether the server adds or "
    "subtracts them: if it subtracts them, the audit does not see their canaries"
)
# Mods that change no update.
_NEUTRAL: Final = frozenset(
    {"message_size_mod", "arrays_size_mod", "parameters_size_mod", "canary_mod", "tap_mod"}
)
# Those, and mods that do nothing that matters to a canary of the trained update's length.
_HARMLESS: Final = _NEUTRAL | {"fixedclipping_mod", "adaptiveclipping_mod"}
# Known mods that keep no state, or none that a replay without masks changes.
_STATELESS: Final = _HARMLESS | {"LocalDpMod", "MaskMod", "mask_mod"}
_NOISE: Final = frozenset({"LocalDpMod", "NoiseMod", "noise_mod", "FillMod", "fill_mod"})
MASKS: Final = frozenset({"MaskMod", "mask_mod", "secaggplus_mod", "secagg_mod"})
HIDING: Final = _NOISE | MASKS


def remarks(answers: Mapping[int, Answer], asked: Collection[int]) -> list[str]:
    """Return what is wrong with the canaries of a round, each sentence once.

    Args:
        answers: The answer of each client's `canary_mod`.
        asked: Clients that were asked and have replied.
    """
    if asked and not answers:
        return [NO_ANSWER]
    said = (words for answer in answers.values() for words in _about(answer))
    return list(dict.fromkeys(said))


CLAIMED: Final = (
    "canaries test the claim, and they replace what the training returns. Noise that the app adds "
    "inside its training function misses them, so a claim that counts on it would be refuted "
    "wrongly: add such noise in a mod before canary_mod"
)


def oversized(size: Size) -> str:
    """Return that canaries are longer than updates, and why."""
    least = f" or than the clip norm {size.least_norm:g}" if size.least_norm else ""
    return (
        f"a claim is tested, so canaries are {size.times:g} times as long as the update that they "
        f"replace{least}: with shorter ones, a clip per parameter, a clip after the noise and "
        "weights that undo the clip would stay invisible. Without a clip that works, they distort "
        "the model; leave the claims out to train one for use"
    )


def replayed(answers: Mapping[int, Answer]) -> list[str]:
    """Return what replays of a round do to mods before `canary_mod`, each sentence once."""
    names = dict.fromkeys(name for answer in answers.values() for name in answer.outer)
    return [
        f"{name} is before canary_mod and sees every replay: what it keeps in context.state is not "
        f"restored. If it keeps something there, list it after canary_mod, [canary_mod, {name}]"
        for name in names
        if name not in _STATELESS
    ]


def noise_around(answers: Mapping[int, Answer]) -> str | None:
    """Return the name of a mod that adds noise to what clients send, if there is one."""
    names = (name for a in answers.values() for name in (*a.outer, *a.inner))
    return next((name for name in names if name in _NOISE), None)


def bypasses_noise(answer: Answer) -> bool:
    """Whether a mod adds noise to a client's own update, but not to a canary."""
    return not _NOISE.isdisjoint(answer.inner)


def may_bypass(answer: Answer) -> bool:
    """Whether the training, or a mod that nobody knows, may protect updates but no canary."""
    return answer.trains_privately or not (_HARMLESS | HIDING).issuperset(answer.inner)


def may_be_longer(answer: Answer) -> bool:
    """Whether a canary may be longer than the update: not if a mod behind it may have clipped."""
    return _NEUTRAL.issuperset(answer.inner)


def _about(answer: Answer) -> Iterator[str]:
    for name in answer.inner:
        order = f"list canary_mod after it, [{name}, canary_mod]"
        if name in _NOISE:
            yield (
                f"canaries bypass the noise of {name}, so the numbers are those of a run without "
                f"it: {order}"
            )
        elif name in MASKS:
            yield f"{name} hides the update from canary_mod, so no canary was played: {order}"
        elif name not in _HARMLESS:
            yield (
                f"{name} handles the update before a canary replaces it, so canaries bypass it and "
                f"test no claim about the whole app: if it protects clients, {order}"
            )
    if answer.outcome == "other-arrays" and not MASKS & set(answer.inner):
        yield (
            "clients reply with other arrays than they are sent, so no canary was played: a canary "
            "must look like the update it replaces"
        )
    if answer.outcome == "undecided":
        yield UNDECIDED
    if answer.trains_privately:
        yield (
            "clients have loaded opacus: DP-SGD protects records inside a client. A canary "
            "replaces the update after the training, so the numbers are about clients, not "
            "records, and test no claim about the whole app. DpSgdAccountant() composes what "
            "records are guaranteed, and planted records test it"
        )
