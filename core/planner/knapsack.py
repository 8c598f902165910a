"""The best filling of one node, compiled: branch and bound over several dimensions, bounded at all times."""

from __future__ import annotations

import numpy as np

from qtandem.core.planner.kernels import compiled

# Weights of the dimensions in the surrogate that bounds a filling; the one with the smallest bound is used.
MIXES = np.array(
    [
        [0.5, 0.5, 0.0, 0.0, 0.0],
        [0.75, 0.25, 0.0, 0.0, 0.0],
        [0.25, 0.75, 0.0, 0.0, 0.0],
        [1.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 1.0, 0.0, 0.0, 0.0],
        [0.35, 0.35, 0.3, 0.0, 0.0],
        [0.35, 0.35, 0.0, 0.3, 0.0],
        [0.3, 0.3, 0.0, 0.0, 0.4],
    ]
)


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
def fill(value, demand, count, cap, mix, limit, taken):  # type: ignore[no-untyped-def]
    """Maximise the value of what one node holds; `taken` receives how many of each type.

    `mix` is one more surrogate to try. Returns (best, upper bound).
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
        return 0.0, 0.0
    useful = useful[:found]
    free = cap.copy()
    best_root, size, order = 1e300, np.zeros(types), useful
    for m in range(len(MIXES) + 1):
        weights = MIXES[m] if m < len(MIXES) else mix
        trial = np.zeros(types)
        ratio = np.zeros(found)
        for p in range(found):
            t = useful[p]
            for k in range(dims):
                if cap[k] > 0:
                    trial[t] += weights[k] * demand[t, k] / cap[k]
            trial[t] += 1e-9
            ratio[p] = -value[t] / trial[t]
        ranked = useful[np.argsort(ratio)]
        root = _bound(0, value, trial, ranked, demand, count, free, 1.0 + 1e-6)
        if root < best_root:
            best_root, size, order = root, trial, ranked
    chosen = np.zeros(found, dtype=np.int64)
    best, worth, room, depth, steps = 0.0, 0.0, 1.0 + 1e-6, 0, 0
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
            return best, min(upper, best_root)
        if depth == 0:
            return best, best


@compiled
def fill_all(worth, pair, allowed, demand, count, caps, mixes, limit, best, upper, taken):  # type: ignore[no-untyped-def]
    """`fill` for every class; `pair[t, c]` is taken off the worth where it has more than one row."""
    types, classes = allowed.shape
    value = np.empty(types)
    priced = pair.shape[0] == types
    for c in range(classes):
        for t in range(types):
            value[t] = worth[t] if allowed[t, c] else 0.0
            if priced and allowed[t, c]:
                value[t] -= pair[t, c]
        best[c], upper[c] = fill(value, demand, count, caps[c], mixes[c], limit, taken[c])
