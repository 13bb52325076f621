"""Is it an AWH1 hub? The black-box part of the specification, tried against any hub at a socket (`runner.run`).

    outcome   what can come of a case other than that the hub did right
    peer      one connection, seen from the client's side, that can send anything
    guest     an agent of a bundle, and the proofs that it can give, also wrong ones
    lab       what a case works with: connections, sessions, time; it closes what it opened
    case      what a case is, and its result
    framing greeting identity sessions wakes absence topics deafness     the cases, by section of awh1.md
    runner    which cases, in which order, and the departure at the end
    report    lines for people, JSON for programs

Each case has 15 s, needs nobody else, and judges what came by the specification alone, never by another hub's habits.
Blocking sockets; nothing but the bundles' own agents is woken, subscribed or displaced.
"""
