"""Who is admitted: the registry, the allowlist signed from it, and the delegations that were given out."""

import os
import shlex
import time
from pathlib import Path

from wakehub.client import advice, diagnosis
from wakehub.errors import WakehubError
from wakehub.identity.addresses import is_reserved
from wakehub.identity.allowlist import Unusable
from wakehub.identity.audit import AuditLog, BrokenChain
from wakehub.identity.delegation import Bundle
from wakehub.identity.owner import load_owner_public
from wakehub.identity.registry import Registry
from wakehub.identity.stamps import NS
from wakehub.limits import RENEW_BEFORE_END_SECONDS
from wakehub.ops.doctor.case import Case
from wakehub.ops.doctor.report import Line


def admission(case: Case) -> Line:
    """The registry must be proven line by line, and the allowlist be signed from it and fresh."""
    if not os.path.lexists(case.paths.config_file):
        return Line("admission", "critical", "nobody is admitted: nothing is set up", advice.to_set_up(case.paths))
    chain = AuditLog(case.paths.audit, load_owner_public(case.paths)).read()
    if not chain.events:  # nothing is signed from it, as from one that is broken
        raise BrokenChain(case.paths.audit, 1, "the line that begins it is missing")
    Registry.derive(chain.events)
    admitted = case.admitted
    if isinstance(admitted, Unusable):
        detail = f"nobody is admitted: the allowlist is {admitted.label}: {admitted.detail}"
        return Line("admission", "critical", detail, advice.to_sign(case.config, admitted))
    names = [name for name in admitted.agents if not is_reserved(name)]
    age_s = max(0, int(time.time()) - admitted.refreshed_at // NS)
    signed = f"the allowlist, {age_s} s old, admits {len(names)} agents"
    detail = f"{len(chain.events)} lines of the registry proven; {signed}"
    if chain.torn:
        return Line("admission", "warning", f"{detail}; the last line was never finished", "enroll or revoke a name")
    return Line("admission", "ok", detail)


def delegations(case: Case) -> Line:
    found = sorted(case.paths.agents.glob("*.a2a-hub.json")) if case.paths.agents.is_dir() else []
    troubles = [trouble for path in found if (trouble := _bundle_trouble(case, path))]
    if not troubles:
        return Line("delegations", "ok", f"{len(found)} given out as bundles, none about to end")
    detail, remedy = troubles[0]
    more = f"; {len(troubles) - 1} more" if len(troubles) > 1 else ""
    return Line("delegations", "warning", detail + more, remedy)


def _bundle_trouble(case: Case, path: Path) -> tuple[str, str] | None:
    """Why a bundle admits nobody, or soon will not, and what to do; None when it is good for a while."""
    try:
        bundle = Bundle.load(path)
    except WakehubError as error:
        return str(error), error.remedy
    unused = f"; or remove it: rm {shlex.quote(str(path))}"
    anew = f"wakehub delegate {bundle.agent_id} --ttl 12h{unused}"
    if bundle.hub_id != case.config.hub_id:
        return f"{path} is for hub {bundle.hub_id}, not {case.config.hub_id}", anew
    left_s = bundle.window()[1] // NS - int(case.now_s)
    if left_s > 0 and isinstance(case.admitted, Unusable):
        return None  # that nobody is admitted is said once
    why = diagnosis.reason(bundle, case.config, case.now_s)
    if why is not None:
        return f"the bundle of {bundle.agent_id}: {why[0]}", why[1] + unused
    if left_s < RENEW_BEFORE_END_SECONDS:
        return f"the bundle of {bundle.agent_id} ends in {left_s} s", anew
    return None
