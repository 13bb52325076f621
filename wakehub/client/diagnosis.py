"""Why a hub may have answered 401, as far as it can be seen from here (receive.md §3).

On the wire every identity refusal is the same. The client can read most of what the hub reads, with the same code, so
it says which of the known reasons holds and what to do, or that it must be in the hub's log.
"""

from pathlib import Path
from typing import Final

from wakehub.client.failures import Failure, HubError
from wakehub.errors import WakehubError
from wakehub.identity.allowlist import AllowlistFile, Entry, Unusable
from wakehub.identity.delegation import Bundle, Certificate
from wakehub.identity.keys import load_public, verify
from wakehub.identity.stamps import NS
from wakehub.limits import CLOCK_LEEWAY_SECONDS
from wakehub.visible import visible

_PUBLISHER: Final = "see that the publisher runs: wakehub up"
_UNSEEN: Final = ("no reason can be seen from here", "the hub's log names it; is it the hub of this owner?")


def explain(bundle: Bundle, allowlist: Path, owner_pub: Path, now_s: float, anew: str = "") -> HubError:
    """The 401 with the reason that the files at `allowlist` and `owner_pub` show, and the remedy; as `reason`."""
    why, remedy = reason(bundle, allowlist, owner_pub, now_s, anew) or _UNSEEN
    return HubError(Failure.UNAUTHORIZED, f"the hub refused {visible(bundle.agent_id)} (401)", why=why, remedy=remedy)


def reason(bundle: Bundle, allowlist: Path, owner_pub: Path, now_s: float, anew: str = "") -> tuple[str, str] | None:
    """Why a hub must refuse this bundle now (`now_s`: wall clock, seconds) and the remedy; None: nothing is seen.

    `anew` says what makes another bundle, which is the remedy when this one is at fault (default: `wakehub delegate`).
    """
    begin, end = bundle.window()
    now = int(now_s) * NS
    name = visible(bundle.agent_id)
    anew = anew or f"wakehub delegate {name} --ttl 12h"
    if now >= end:
        return f"the delegation ended at {bundle.not_after}", anew
    if now < begin - CLOCK_LEEWAY_SECONDS * NS:
        return f"the delegation begins at {bundle.not_before}; this clock is behind", "set the clock"
    try:
        owner_public = load_public(owner_pub)
    except (OSError, WakehubError) as error:
        return f"owner.pub cannot be read ({visible(str(error))})", "wakehub init, or allow the file in the sandbox"
    found = AllowlistFile(allowlist, owner_public).current(now_s, 0.0)
    if isinstance(found, Unusable):
        return f"the allowlist is {found.label}: {found.detail}", _PUBLISHER
    entry = found.agents.get(bundle.agent_id)
    if entry is None:
        return f"the allowlist does not show {name}", f"wakehub enroll {name}; {_PUBLISHER}"
    return _bad_binding(bundle, entry, anew)


def _bad_binding(bundle: Bundle, entry: Entry, anew: str) -> tuple[str, str] | None:
    if bundle.delegate.public in entry.revoked_keys:
        return "this session key is revoked", anew
    certificate = Certificate.decode(bundle.certificate)
    if not verify(entry.public, certificate.signed_bytes(), certificate.signature):
        return f"the delegation is not signed by the key that {visible(bundle.agent_id)} is enrolled with", anew
    if bundle.window()[0] // NS < entry.bound_at // NS:
        return "the delegation is older than the enrolment", anew
    return None
