"""The best filling of one node, compiled: branch and bound over several dimensions, bounded at all times."""

from __future__ import annotations

import numpy as np

from qtandem.core.planner.kernels import compiled

# Further mixes of the dimensions that are tried as the surrogate, beside the best of cpu and mem and the caller's own.
MIXES = np.array(
    [
        [0.35, 0.35, 0.3, 0.0, 0.0],
        [0.35, 0.35, 0.0, 0.3, 0.0],
        [0.3, 0.3, 0.0, 0.0, 0.4],
    ]
)
PROBES = 7


@compiled
def _bound(first, value, size, order, demand, count, free, room):  # type: ignore[no-untyped-def]
    """What items order[first:] can add at most: fractions by surrogate size, of items that still fit one by one."""
    total = 0.0
    for position in range(first, len(order)):
        t = order[position]
        fits = True
        for k in range(len(free)):
            if demand[t, k] > free[k]:
                fits = False
                break
        if not fits:
            continue
        need = count[t] * size[t]
        if need <= room:
            total += count[t] * value[t]
            room -= need
        else:
            total += room / size[t] * value[t]
            break
    return total


@compiled
def _rank(useful, value, demand, cap, mix, size):  # type: ignore[no-untyped-def]
    """Surrogate sizes under this mix into `size`; the useful types by worth for their size."""
    ratio = np.zeros(len(useful))
    for p in range(len(useful)):
        t = useful[p]
        size[t] = 1e-9
        for k in range(len(cap)):
            if cap[k] > 0:
                size[t] += mix[k] * demand[t, k] / cap[k]
        ratio[p] = -value[t] / size[t]
    return useful[np.argsort(ratio)]


@compiled
def _root(useful, value, demand, count, cap, mix, size):  # type: ignore[no-untyped-def]
    order = _rank(useful, value, demand, cap, mix, size)
    return _bound(0, value, size, order, demand, count, cap, 1.0 + 1e-6)


@compiled
def _best_mix(useful, value, demand, count, cap, mix, size):  # type: ignore[no-untyped-def]
    """The mix with the smallest bound at the root: bisection between cpu and mem, then the others; and that bound."""
    dims = len(cap)
    trial, chosen = np.zeros(dims), mix.copy()
    least = _root(useful, value, demand, count, cap, mix, size)
    for m in range(len(MIXES)):
        bound = _root(useful, value, demand, count, cap, MIXES[m], size)
        if bound < least:
            least, chosen = bound, MIXES[m].copy()
    low, high = 0.0, 1.0
    for _ in range(PROBES):
        left, right = low + (high - low) * 0.382, low + (high - low) * 0.618
        trial[0], trial[1] = left, 1 - left
        one = _root(useful, value, demand, count, cap, trial, size)
        if one < least:
            least, chosen = one, trial.copy()
        trial[0], trial[1] = right, 1 - right
        two = _root(useful, value, demand, count, cap, trial, size)
        if two < least:
            least, chosen = two, trial.copy()
        if one < two:
            high = right
        else:
            low = left
    return chosen, least


@compiled
def fill(value, demand, count, cap, mix, floor, limit, taken):  # type: ignore[no-untyped-def]
    """Maximise the value of what one node holds, where it is over `floor`; `taken` receives how many of each type.

    `mix` is one more surrogate to try. Returns (best, upper bound, steps), the first two at least `floor`.
    """
    types, dims = demand.shape
    taken[:] = 0
    useful = np.empty(types, dtype=np.int64)
    found = 0
    for t in range(types):
        if value[t] > 1e-9:
            fits = True
            for k in range(dims):
                if demand[t, k] > cap[k]:
                    fits = False
                    break
            if fits:
                useful[found] = t
                found += 1
    if found == 0:
        return floor, floor, 0
    useful = useful[:found]
    size = np.zeros(types)
    own, best_root = _best_mix(useful, value, demand, count, cap, mix, size)
    if best_root <= floor:
        return floor, floor, 0
    order = _rank(useful, value, demand, cap, own, size)
    free = cap.copy()
    chosen = np.zeros(found, dtype=np.int64)
    best, worth, room, depth, steps = floor, 0.0, 1.0 + 1e-6, 0, 0
    while True:
        while depth < found:
            steps += 1
            if worth + _bound(depth, value, size, order, demand, count, free, room) <= best + 1e-9:
                break
            t = order[depth]
            quantity = count[t]
            for k in range(dims):
                if demand[t, k] > 0:
                    quantity = min(quantity, free[k] // demand[t, k])
            chosen[depth] = quantity
            for k in range(dims):
                free[k] -= quantity * demand[t, k]
            worth += quantity * value[t]
            room -= quantity * size[t]
            depth += 1
        if worth > best + 1e-9:
            best = worth
            taken[:] = 0
            for p in range(depth):
                taken[order[p]] = chosen[p]
        truncated = steps > limit
        upper = best
        while depth > 0:
            depth -= 1
            t = order[depth]
            if chosen[depth] == 0:
                continue
            chosen[depth] -= 1
            for k in range(dims):
                free[k] += demand[t, k]
            worth -= value[t]
            room += size[t]
            if not truncated:
                depth += 1
                break
            rest = worth + _bound(depth + 1, value, size, order, demand, count, free, room)
            upper = max(upper, rest)
            for k in range(dims):
                free[k] += chosen[depth] * demand[t, k]
            worth -= chosen[depth] * value[t]
            room += chosen[depth] * size[t]
            chosen[depth] = 0
        if truncated:
            return best, min(upper, best_root), steps
        if depth == 0:
            return best, best, steps


@compiled
def fill_all(worth, pair, allowed, demand, count, caps, mixes, floors, limit, best, upper, taken):  # type: ignore[no-untyped-def]
    """`fill` for every class over its own floor; `pair` is taken off the worth where it has a row for each type.

    Returns the steps of all.
    """
    types, classes = allowed.shape
    value = np.empty(types)
    total = 0
    priced = pair.shape[0] == types
    for c in range(classes):
        for t in range(types):
            value[t] = worth[t] if allowed[t, c] else 0.0
            if priced and allowed[t, c]:
                value[t] -= pair[t, c]
        best[c], upper[c], steps = fill(value, demand, count, caps[c], mixes[c], floors[c], limit, taken[c])
        total += steps
    return total
