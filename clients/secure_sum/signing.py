"""Who a client is, and whom it trusts: Ed25519 keys that do not come from the server.

Bonawitz et al. 2017 (CCS), Figure 4, rounds 0 and 3; RFC 8032 for Ed25519. Each client signs what
it announces in a round, and later the list of survivors. Its owner has installed the public keys of
the other clients: a server that swaps keys or invents clients has no signature of theirs.

Every signed text begins with protocol, purpose, run, round and the signer's number, so a signature
of one place is worthless in another. What is signed about survivors names the signer's announcement
too, whose keys are fresh: a server that uses the number of a run again has nothing to replay.

Such a client takes each step once. Flower hands it its state at the start of a message and takes it
back at the end. A node that handles two messages at the same time would start both from the same
state and answer both. So a run has one file whose name is the last step, and a step renames it: of
two requests that start from the same step one renames the file, the other finds it gone and looks
again. Renaming needs no lock. It is atomic within a file system, also on one without a lock
service, and a process that is killed leaves nothing locked.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from leakmeter.auditors.hook.wire import RefusedError
from leakmeter.clients.secure_sum.keys import KEY_BYTES, Session

SIGNATURE_BYTES = 64
KEY_FILE = "identity.pem"
MIN_CLIENTS = 3  # with two, each knows the other's update from the sum
_KIND = "leakmeter-ed25519"
_MAX_NAME = 100

# In the order in which they come; a sum without signatures has no draw and no survivors.
STAGES = ("keys", "draw", "shares", "train", "survivors", "unmask")
_FOLDER = "steps"
_START = "0-unmask"  # before the first round
_TRIES = 100  # each failed one means that another process has just advanced
_PAUSE = 0.002  # seconds between two tries


class KeyFileError(ValueError):
    """A key, a list of keys or a file of theirs is not as it must be. The text says why."""


class KeyExistsError(KeyFileError):
    """There is a key already, and it was left as it is."""


@dataclass(frozen=True)
class Identity:
    """A client's own signing key.

    Attributes:
        key: The private key.
        folder: Folder of the file that it came from; the steps that were taken are noted there.
    """

    key: Ed25519PrivateKey = field(repr=False)
    folder: Path | None = None

    @property
    def public(self) -> bytes:
        """The 32 bytes by which others know this client."""
        return self.key.public_key().public_bytes_raw()

    @property
    def line(self) -> str:
        """The line that others put on their lists."""
        return public_line(self.public)

    def sign(self, text: bytes) -> bytes:
        """Return a signature of 64 bytes."""
        return self.key.sign(text)

    @classmethod
    def create(cls, folder: Path) -> Self:
        """Make a new key in a folder, readable by its owner alone.

        Raises:
            KeyExistsError: There is a key already.
            KeyFileError: The folder cannot be written to.
        """
        made, path = cls(Ed25519PrivateKey.generate(), folder), folder / KEY_FILE
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise KeyFileError(f"{folder} cannot be made: {error.strerror}") from None
        try:
            # Exclusively, so that no key is lost, not even to a process that does the same.
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise KeyExistsError(
                f"{path} exists and is not overwritten: others know this client by it"
            ) from None
        except OSError as error:
            raise KeyFileError(f"{path} cannot be written: {error.strerror}") from None
        made._write(file, path)
        return made

    def _write(self, file: int, path: Path) -> None:
        """Write the key into a file that was made for it; without room for it there is no file."""
        text = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            with os.fdopen(file, "wb") as stream:
                stream.write(text)
        except OSError as error:
            path.unlink(missing_ok=True)  # half a key would be kept as if it were one
            raise KeyFileError(f"{path} cannot be written: {error.strerror}") from None

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the identity in a file, or in the folder that `create` was given.

        Raises:
            KeyFileError: It cannot be read, or is no Ed25519 key.
        """
        path = path.expanduser()
        path = path / KEY_FILE if path.is_dir() else path
        try:
            key = load_pem_private_key(path.read_bytes(), password=None)
        except OSError as error:
            raise KeyFileError(
                f"identity {path} cannot be read: {error.strerror}; make one with "
                "leakmeter keys new DIR"
            ) from None
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise KeyFileError(f"identity {path} must be an unencrypted PEM key") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise KeyFileError(f"identity {path} must be an Ed25519 key, got {type(key).__name__}")
        return cls(key, path.parent)

    @classmethod
    def of(cls, given: Identity | Ed25519PrivateKey | str | Path) -> Identity:
        """Return the identity that a setting names: one itself, a key, or a path."""
        if isinstance(given, Identity):
            return given
        return cls(given) if isinstance(given, Ed25519PrivateKey) else cls.load(Path(given))


@dataclass(frozen=True)
class TrustedKeys:
    """The public keys of all clients that an owner trusts to be clients.

    Attributes:
        names: Public key to the name on its line, which may be empty.
    """

    names: Mapping[bytes, str]

    def __contains__(self, public: bytes) -> bool:
        return public in self.names

    def __len__(self) -> int:
        return len(self.names)

    def __hash__(self) -> int:
        return hash(frozenset(self.names))

    def check_enough(self) -> None:
        """Raise if no secure sum can come about between the clients of this list.

        Raises:
            KeyFileError: The list is too short.
        """
        if len(self) < MIN_CLIENTS:
            raise KeyFileError(
                f"trusted must have the public keys of at least {MIN_CLIENTS} clients, as many "
                f"as a secure sum needs; got {len(self)}. Add the line of each other client: its "
                "owner prints it with leakmeter keys show DIR"
            )

    @classmethod
    def of(
        cls, given: TrustedKeys | str | Path | Mapping[str, str] | Iterable[str | bytes]
    ) -> TrustedKeys:
        """Return the list that a setting names: lines, name to line, raw keys, or a file.

        Raises:
            KeyFileError: The file cannot be read, a line is malformed, or a key occurs twice.
        """
        if isinstance(given, TrustedKeys):
            return given
        if isinstance(given, str | Path):
            return cls._read(Path(given).expanduser())
        if isinstance(given, Mapping):
            named = {name: _parsed(line, name)[0] for name, line in given.items()}
            return cls._distinct([(key, name) for name, key in named.items()])
        entries = list(given)
        return cls._distinct(
            [
                (_checked(one), "") if isinstance(one, bytes) else _parsed(one, f"line {i}")
                for i, one in enumerate(entries, start=1)
            ]
        )

    @classmethod
    def _read(cls, path: Path) -> TrustedKeys:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise KeyFileError(
                f"{path} cannot be read: {error.strerror}; it must have the public line of each "
                "client, which leakmeter keys show DIR prints"
            ) from None
        except UnicodeDecodeError:
            raise KeyFileError(
                f"{path} must be a text file with one public line per client"
            ) from None
        numbered = [(i, line.strip()) for i, line in enumerate(lines, start=1)]
        meant = [(i, line) for i, line in numbered if line and not line.startswith("#")]
        return cls._distinct([_parsed(line, f"{path}, line {i}") for i, line in meant])

    @classmethod
    def _distinct(cls, entries: list[tuple[bytes, str]]) -> TrustedKeys:
        names: dict[bytes, str] = {}
        for key, name in entries:
            if key in names:
                raise KeyFileError(
                    f"keys must be distinct, got {public_line(key)} twice; delete one of the lines"
                )
            names[key] = name
        return cls(names)


def roster(clients: Mapping[int, bytes]) -> bytes:
    """Return the fingerprint of who takes part: number to public key."""
    listed = (struct.pack("<Q", number) + clients[number] for number in sorted(clients))
    return hashlib.sha256(b"".join([b"roster", *listed])).digest()


def announcement_text(session: Session, number: int, keys: bytes) -> bytes:
    """Return what a client signs when it announces its keys."""
    return session.context("sign announcement", number) + keys


def survivors_text(
    session: Session, number: int, own: bytes, digest: bytes, survivors: Iterable[int]
) -> bytes:
    """Return what a client signs about who has survived.

    Args:
        session: Run and round.
        number: The signer's.
        own: Fingerprint of its announcement.
        digest: What it was told in the round.
        survivors: Those that it will count as survivors, itself among them.
    """
    listed = sorted(survivors)
    body = struct.pack(f"<Q{len(listed)}Q", len(listed), *listed)
    return session.context("sign survivors", number) + own + digest + body


def is_signed(public: bytes, signature: bytes, text: bytes) -> bool:
    """Whether a signature of this text was made with the key behind `public`."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_line(public: bytes, name: str = "") -> str:
    """Return a public key as one line of a list."""
    text = base64.b64encode(public).decode()
    return " ".join([_KIND, text, name]).rstrip()


def _parsed(line: str, where: str) -> tuple[bytes, str]:
    """Return the key and the name on a public line."""
    words = str(line).split(maxsplit=2)
    if len(words) < 2 or words[0] != _KIND:
        raise KeyFileError(
            f"{where}: a public line must be '{_KIND} KEY [name]', got {str(line)[:80]!r}"
        )
    try:
        key = base64.b64decode(words[1], validate=True)
    except (binascii.Error, ValueError):
        raise KeyFileError(f"{where}: the key must be base64, got {words[1][:80]!r}") from None
    return _checked(key, where), words[2][:_MAX_NAME] if len(words) > 2 else ""


def _checked(key: bytes, where: str = "trusted") -> bytes:
    try:
        Ed25519PublicKey.from_public_bytes(key)
    except ValueError:
        raise KeyFileError(f"{where}: a key must be {KEY_BYTES} bytes, got {len(key)}") from None
    return key


@dataclass(frozen=True)
class PublicKeys:
    """What a client announces, with who has signed it where clients sign.

    Attributes:
        share: Public key of the boxes.
        mask: Public key of the masks.
        commitment: To its self-mask seed.
        signer: The client's public signing key; empty where nothing is signed.
        signature: Over run, round, number and the three above.
    """

    share: bytes
    mask: bytes
    commitment: bytes
    signer: bytes = b""
    signature: bytes = b""

    @property
    def keys(self) -> bytes:
        """The 96 bytes that are signed."""
        return self.share + self.mask + self.commitment

    @property
    def announced(self) -> bytes:
        """Fingerprint of the announcement, whose keys are fresh in every round."""
        return hashlib.sha256(self.keys).digest()

    def to_bytes(self) -> bytes:
        """Return the bytes that travel: 96, or 192 with a signature."""
        return self.keys + self.signer + self.signature

    @classmethod
    def from_bytes(cls, data: bytes, *, is_signed: bool = False) -> Self:
        """Return the announcement behind 96 bytes, or 192 if it must be signed."""
        size = 4 * KEY_BYTES + SIGNATURE_BYTES if is_signed else 3 * KEY_BYTES
        if len(data) != size:
            kind = "signed" if is_signed else "public"
            raise RefusedError(f"{kind} keys must be {size} bytes, got {len(data)}")
        ends = (*range(0, 4 * KEY_BYTES + 1, KEY_BYTES), size)
        return cls(*(data[start:end] for start, end in pairwise(ends)))

    def check(self, session: Session, number: int, trusted: TrustedKeys) -> None:
        """Refuse an announcement that nobody trusted has made here, in this round, for itself."""
        if self.signer not in trusted:
            raise RefusedError(f"client {number} must have a key on the trusted list, it has none")
        text = announcement_text(session, number, self.keys)
        if not is_signed(self.signer, self.signature, text):
            raise RefusedError(
                f"keys of client {number} must be signed for it, in this run and round"
            )


class StepTakenError(ValueError):
    """This step was taken before, perhaps a moment ago by another process of this node."""


class _Position(NamedTuple):
    """A step of a run: later steps are larger."""

    server_round: int
    at: int  # in `STAGES`

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the position that a file's name says."""
        server_round, _, stage = name.partition("-")
        return cls(int(server_round), STAGES.index(stage))

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.server_round}-{STAGES[self.at]}"


def take_once(folder: Path | None, session: Session, stage: str) -> None:
    """Note that a step is taken; a step that is not after the last one is refused.

    To be called when everything else was checked, and before anything is sent.

    Args:
        folder: The client's own; None notes nothing (simulations, where messages come in turn).
        session: Run and round. Rounds of a run only go forward.
        stage: Which step. Each comes once in a round, in the order of `STAGES`.

    Raises:
        StepTakenError: It was taken before, comes too late, or cannot be noted.
    """
    if folder is None:
        return
    if stage not in STAGES:
        raise StepTakenError(f"stage must be {', '.join(STAGES)}, got {stage!r}")
    try:
        _advance(
            folder / _FOLDER, str(session.run), _Position.of(f"{session.server_round}-{stage}")
        )
    except OSError as error:
        # No path: the text travels to the server.
        raise StepTakenError(f"stage {stage!r} cannot be noted here: {error.strerror}") from None


def _advance(folder: Path, run: str, step: _Position) -> None:
    """Rename the run's file to this step, if it is after the last one."""
    for _ in range(_TRIES):
        if (last := _last(folder, run)) is None:
            time.sleep(_PAUSE)
            continue
        _check(step, last)
        with suppress(FileNotFoundError):  # another process was faster, perhaps with this step
            (folder / run / last.name).rename(folder / run / step.name)
            return
    words = "the last step is not clear"
    raise StepTakenError(f"stage {STAGES[step.at]!r} cannot be noted here: {words}")


def _last(folder: Path, run: str) -> _Position | None:
    """Return the last step of a run; None while its file is being made or renamed."""
    try:
        names = os.listdir(folder / run)
    except FileNotFoundError:
        _begin(folder, run)
        return None
    with suppress(ValueError):
        # A listing during a rename may show both names or none.
        return _Position.of(names[0]) if len(names) == 1 else None
    return None


def _begin(folder: Path, run: str) -> None:
    """Make the run's folder with its file in it, both at once: of two processes one succeeds."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".", dir=folder))
    try:
        (made / _START).touch(mode=0o600)
        made.rename(folder / run)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not (folder / run).is_dir():
            raise


def _check(step: _Position, last: _Position) -> None:
    """Refuse a step that is not after the last one."""
    if step > last:
        return
    number, stage = step.server_round, STAGES[step.at]
    if number < last.server_round:
        raise StepTakenError(f"round must be {last.server_round} or later, got {number}")
    if step == last:
        raise StepTakenError(f"stage {stage!r} comes once in round {number}, and has come")
    later = STAGES[last.at]
    raise StepTakenError(
        f"stage {stage!r} comes before {later!r}, which has come in round {number}"
    )
