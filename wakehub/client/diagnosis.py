"""Why there is no session with the hub, as far as it can be seen from here, and what to do (receive.md §3).

On the wire every identity refusal is the same. The client can read most of what the hub reads, with the same code, so
it says which of the known reasons holds and what to do, or that it must be in the hub's log.
"""

from wakehub.client import advice
from wakehub.client.failures import Failure, HubError
from wakehub.config import Config
from wakehub.errors import WakehubError
from wakehub.identity.allowlist import AllowlistFile, Entry, Unusable
from wakehub.identity.delegation import Bundle, Certificate
from wakehub.identity.keys import load_public, verify
from wakehub.identity.owner import read_registry
from wakehub.identity.stamps import NS
from wakehub.limits import CLOCK_LEEWAY_SECONDS
from wakehub.visible import visible


def explain(error: HubError, bundle: Bundle, config: Config, now_s: float, anew: str = "") -> HubError:
    """What `error` means in the instance that `config` describes: a 401 with the reason that its files show, as
    `reason`, a hub that is not there or keeps silent with the next step that fits what lives."""
    match error.failure:
        case Failure.UNAUTHORIZED:
            why, remedy = reason(bundle, config, now_s, anew) or _unseen(config)
            what = f"the hub refused {visible(bundle.agent_id)} (401)"
        case Failure.ABSENT | Failure.REFUSED:
            what, why, remedy = error.what, error.why, advice.to_start(config.paths, advice.HUB)
        case Failure.TIMEOUT:
            what = error.what
            why, remedy = advice.to_answer(config.paths, advice.HUB)
        case _:
            return error
    return HubError(error.failure, what, why=why, remedy=remedy)


def reason(bundle: Bundle, config: Config, now_s: float, anew: str = "") -> tuple[str, str] | None:
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
        owner_public = load_public(config.owner_pub)
    except (OSError, WakehubError) as error:
        return f"owner.pub cannot be read ({visible(str(error))})", "wakehub init, or allow the file in the sandbox"
    found = AllowlistFile(config.allowlist, owner_public).current(now_s, 0.0)
    if isinstance(found, Unusable):
        return f"the allowlist is {found.label}: {found.detail}", advice.to_sign(config, found)
    entry = found.agents.get(bundle.agent_id)
    if entry is None:
        return f"the allowlist does not show {name}", _to_be_listed(bundle.agent_id, config)
    return _bad_binding(bundle, entry, anew)


def _unseen(config: Config) -> tuple[str, str]:
    log = advice.log_of(config.paths, advice.HUB)
    return "no reason can be seen from here", f"the hub's log names it ({log}); is it the hub of this owner?"


def _to_be_listed(agent_id: str, config: Config) -> str:
    """What to do about a name that the allowlist lacks: it is not enrolled, or the publisher does not sign."""
    try:
        agent = read_registry(config.paths).agents.get(agent_id)
    except WakehubError:
        agent = None
    if agent is not None and agent.key is not None:
        return advice.to_sign(config)
    return f"wakehub enroll {visible(agent_id)}"


def _bad_binding(bundle: Bundle, entry: Entry, anew: str) -> tuple[str, str] | None:
    if bundle.delegate.public in entry.revoked_keys:
        return "this session key is revoked", anew
    certificate = Certificate.decode(bundle.certificate)
    if not verify(entry.public, certificate.signed_bytes(), certificate.signature):
        return f"the delegation is not signed by the key that {visible(bundle.agent_id)} is enrolled with", anew
    if bundle.window()[0] // NS < entry.bound_at // NS:
        return "the delegation is older than the enrolment", anew
    return None
