"""A message whose record cannot be written from here, left in a spool for the publisher."""

import time
from collections.abc import Mapping
from dataclasses import replace

from wakehub.client import spool
from wakehub.client.credentials import Credentials
from wakehub.client.home import AgentKey
from wakehub.client.receipts import Receipts, SendRequest, State
from wakehub.client.send.storing import recipients_of, registry_of, row_for
from wakehub.config import Config
from wakehub.identity.keys import KeyPair
from wakehub.inbox.attachments import Attachments
from wakehub.inbox.clock import Now
from wakehub.inbox.envelope import Envelope
from wakehub.inbox.ids import new_group
from wakehub.inbox.refusals import RecordUnwritable
from wakehub.inbox.signing import signer
from wakehub.inbox.tenure import is_namespace
from wakehub.visible import visible


def proof_of(agent: AgentKey | None, credentials: Credentials, environ: Mapping[str, str]) -> tuple[KeyPair, bytes]:
    """What proves to the publisher who writes: the enrolled key, else a bundle's session key with its certificate."""
    if agent is not None:
        return agent.pair, b""
    bundle = credentials.bundle(time.time(), environ)
    return bundle.delegate, bundle.certificate


def leave_in_spool(
    config: Config,
    request: SendRequest,
    own_name: str,
    proof: tuple[KeyPair, bytes],
    receipts: Receipts,
    denied: RecordUnwritable,
) -> list[Envelope]:
    """Leave the message in a spool, signed, since the record may not be written from here (fault F57)."""
    pair, certificate = proof
    attached = Attachments.measured(request.attach)
    registry = registry_of(config)
    now = Now.read()
    group = new_group(now.ms) if is_namespace(request.to) else None
    recipients = recipients_of(config, request, own_name, registry, None, receipts)
    new = [replace(row_for(request, own_name, None, to, group, registry), attachments=attached) for to in recipients]
    envelopes = [Envelope.seal(row, signer(pair), now, certificate=certificate) for row in new]
    receipts.note(f"{denied.what}: {denied.why}; {denied.remedy}")
    if request.wait is not None:
        receipts.note(f"nothing is waited for: whether it is {request.wait} cannot be seen from here")
    for envelope, path in zip(envelopes, spool.drop(config.spool_dirs, envelopes, request.attach), strict=True):
        receipts.say(State.SPOOLED, envelope.id, f"{visible(str(path.parent))}; the publisher takes it in from there")
    return envelopes
