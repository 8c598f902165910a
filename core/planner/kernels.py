"""The inner loops, compiled: greedy placement, and annealing of a packing's overflow.

numba compiles at the first call (seconds) and caches beside the source or in the user's cache folder; where it can
write to neither, each process compiles anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

FIRST_FIT, LEAST_ALLOCATED, BEST_FIT = 0, 1, 2


def compiled(function: Callable[..., Any]) -> Any:
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)


@compiled
def place_units(order, starts, demand, cap, free, rows, row_of, used, rule, assign):  # type: ignore[no-untyped-def]
    """Place units (gangs) one by one; a unit that does not fit whole leaves no trace.

    `order` lists workloads, unit u being order[starts[u]:starts[u+1]]; who has assign >= 0 is skipped. `used` marks
    nodes that may be taken; `free` (J, K) and `assign` are changed. Returns the number of units placed.
    """
    nodes, dims = cap.shape
    placed = 0
    before = assign.copy()
    for u in range(len(starts) - 1):
        whole = True
        for p in range(starts[u], starts[u + 1]):
            i = order[p]
            if assign[i] >= 0:
                continue
            best, best_score = -1, 1e300
            row = rows[row_of[i]]
            for j in range(nodes):
                if not used[j] or not row[j]:
                    continue
                fit = True
                for k in range(dims):
                    if demand[i, k] > free[j, k]:
                        fit = False
                        break
                if not fit:
                    continue
                if rule == FIRST_FIT:
                    best = j
                    break
                score = 0.0
                for k in range(dims):
                    if cap[j, k] > 0:
                        rest = (free[j, k] - demand[i, k]) / cap[j, k]
                        score += -rest if rule == LEAST_ALLOCATED else rest * rest
                if score < best_score:
                    best, best_score = j, score
            if best < 0:
                whole = False
                break
            assign[i] = best
            for k in range(dims):
                free[best, k] -= demand[i, k]
        if whole:
            placed += 1
            continue
        for p in range(starts[u], starts[u + 1]):
            i = order[p]
            if assign[i] >= 0 and before[i] < 0:
                for k in range(dims):
                    free[assign[i], k] += demand[i, k]
                assign[i] = -1
    return placed


@compiled
def _next(state):  # type: ignore[no-untyped-def]
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    return x


@compiled
def _below(state, n):  # type: ignore[no-untyped-def]
    return np.int64(((_next(state) >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


@compiled
def _unit(state):  # type: ignore[no-untyped-def]
    return np.float64(_next(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@compiled
def _over(load, cap, inv, j, dims):  # type: ignore[no-untyped-def]
    total = 0.0
    for k in range(dims):
        extra = load[j, k] - cap[j, k]
        if extra > 0:
            total += extra * inv[k]
    return total


@compiled
def _over_with(load, cap, inv, j, dims, demand, out, into):  # type: ignore[no-untyped-def]
    """Overflow of node j without workload `out` and with `into` (either may be -1)."""
    total = 0.0
    for k in range(dims):
        extra = load[j, k] - cap[j, k]
        if out >= 0:
            extra -= demand[out, k]
        if into >= 0:
            extra += demand[into, k]
        if extra > 0:
            total += extra * inv[k]
    return total


@compiled
def anneal(demand, cap, inv, options, counts, allow, row_of, assign, moves, hot, cold, state, pair, weight, mu, tries):  # type: ignore[no-untyped-def]
    """Anneal E = overflow + mu * (pair cost + weight of the nodes in use) by shifts and swaps.

    Without pair cost (an array of one row) nothing is priced, and the first packing without overflow ends it.

    `options[s, :counts[s]]` are the nodes of row s, `allow[s, j]` the same as a table. `state` is the generator's
    word. `assign` is changed; with pair cost it ends as the best assignment met, else as the last.
    Returns (overflow, moves done).
    """
    items, dims = demand.shape
    nodes = cap.shape[0]
    priced = pair.shape[0] > 1
    load = np.zeros((nodes, dims), dtype=np.int64)
    held = np.zeros(nodes, dtype=np.int64)
    for p in range(items):
        held[assign[p]] += 1
    room = min(items, int(held.max()) * 2 + 16)
    lists = np.empty((nodes, room), dtype=np.int32)
    place = np.empty(items, dtype=np.int32)
    held[:] = 0
    for p in range(items):
        j = assign[p]
        place[p] = held[j]
        lists[j, held[j]] = p
        held[j] += 1
        for k in range(dims):
            load[j, k] += demand[p, k]
    over = np.empty(nodes)
    bad = np.empty(nodes, dtype=np.int32)
    where = np.full(nodes, -1, dtype=np.int32)
    bad_count = 0
    overflow = 0.0
    for j in range(nodes):
        over[j] = _over(load, cap, inv, j, dims)
        overflow += over[j]
        if over[j] > 0:
            where[j] = bad_count
            bad[bad_count] = j
            bad_count += 1
    price = 0.0
    if priced:
        for p in range(items):
            price += mu * pair[p, assign[p]]
        for j in range(nodes):
            if held[j] > 0:
                price += mu * weight[j]
    best_energy, best_overflow = overflow + price, overflow
    best = assign.copy() if priced else assign
    best_free = bad_count == 0
    temperature = hot
    factor = (cold / hot) ** (1.0 / max(1, moves // 256))
    done = 0
    every = 1 + items // 32
    no_one = np.int64(-1)
    for step in range(moves):
        done = step + 1
        if bad_count == 0 and not priced:
            break
        if step % 256 == 0:
            temperature *= factor
        if bad_count > 0 and (step & 1) == 0:
            a = np.int64(bad[_below(state, bad_count)])
            if held[a] == 0:
                continue
            i = np.int64(lists[a, _below(state, held[a])])
        else:
            i = np.int64(_below(state, items))
            a = assign[i]
        row = row_of[i]
        if counts[row] < 2:
            continue
        b = np.int64(options[row, _below(state, counts[row])])
        if b == a:
            continue
        other = no_one
        if _unit(state) > 0.35 and held[b] > 0:
            for _ in range(tries):
                other = np.int64(lists[b, _below(state, held[b])])
                if allow[row_of[other], a]:
                    break
                other = no_one
            if other < 0:
                continue
        elif held[b] >= room:
            continue
        new_a = _over_with(load, cap, inv, a, dims, demand, i, other)
        new_b = _over_with(load, cap, inv, b, dims, demand, other, i)
        delta = new_a + new_b - over[a] - over[b]
        extra = 0.0
        if priced:
            extra = mu * (pair[i, b] - pair[i, a])
            if other >= 0:
                extra += mu * (pair[other, a] - pair[other, b])
            else:
                if held[a] == 1:
                    extra -= mu * weight[a]
                if held[b] == 0:
                    extra += mu * weight[b]
        change = delta + extra
        if change > 0 and (change > 25 * temperature or _unit(state) >= np.exp(-change / temperature)):
            continue
        for k in range(dims):
            shift = demand[i, k]
            if other >= 0:
                shift -= demand[other, k]
            load[a, k] -= shift
            load[b, k] += shift
        spot = np.int64(place[i])
        if other >= 0:
            lists[a, spot] = other
            lists[b, place[other]] = i
            place[i], place[other] = place[other], spot
            assign[other] = a
        else:
            held[a] -= 1
            last = np.int64(lists[a, held[a]])
            lists[a, spot] = last
            place[last] = spot
            lists[b, held[b]] = i
            place[i] = held[b]
            held[b] += 1
        assign[i] = b
        overflow += delta
        price += extra
        for side in range(2):
            j = a if side == 0 else b
            now = new_a if side == 0 else new_b
            if now > 0 and over[j] <= 0:
                where[j] = bad_count
                bad[bad_count] = j
                bad_count += 1
            elif now <= 0 and over[j] > 0:
                bad_count -= 1
                moved = bad[bad_count]
                bad[where[j]] = moved
                where[moved] = where[j]
                where[j] = -1
            over[j] = now
        free = bad_count == 0
        if free:
            overflow = 0.0
        if (
            priced
            and step % every == 0
            and ((free and not best_free) or (free == best_free and overflow + price < best_energy - 1e-9))
        ):
            best_energy, best_overflow, best_free = overflow + price, overflow, free
            best[:] = assign
    if priced:
        assign[:] = best
        return best_overflow, done
    return overflow, done


@compiled
def cheapest_node(  # type: ignore[no-untyped-def]
    demand, free, cap, mask, posture, floor, zone_of, zone, count, weight, risk, lam, regret, fragmentation, gpu, costs
):
    """The node that adds least to the objective, and what it adds; -1 if none fits. Ties go to the fullest node.

    `costs`, unless it is empty, gets what each node adds that fits; the others are left as they are.
    """
    best, best_cost, best_rest = -1, 0.0, 0.0
    for j in range(len(free)):
        if not mask[j] or posture[j] < floor or (zone != -1 and zone_of[j] != zone) or regret[zone_of[j]] < 0:
            continue
        fit, rest = True, 0.0
        for k in range(len(demand)):
            if demand[k] > free[j, k]:
                fit = False
                break
            if cap[j, k] > 0:
                rest += (free[j, k] - demand[k]) / cap[j, k]
        if not fit:
            continue
        cost = np.round(lam * risk[j]) + regret[zone_of[j]]
        if count[j] == 0:
            cost += weight[j]
        if fragmentation > 0 and cap[j, gpu] > 0:
            share = 0.0
            for k in range(len(demand)):
                if cap[j, k] > 0:
                    share = max(share, demand[k] / cap[j, k])
            cost += np.round(fragmentation * share)
        if len(costs):
            costs[j] = cost
        if best < 0 or cost < best_cost or (cost == best_cost and rest < best_rest):
            best, best_cost, best_rest = j, cost, rest
    return best, best_cost


@compiled
def evacuate(  # type: ignore[no-untyped-def]
    node, members, demand, free, allowed, used, target
):
    """Best fit of a node's workloads on the other nodes in use, largest first as given; fills `target`.

    True if all fit. `free` is changed as the workloads go; the caller restores it where the answer is False.
    """
    nodes, dims = free.shape
    for p in range(len(members)):
        i = members[p]
        best, best_rest = -1, 1e300
        for j in range(nodes):
            if j == node or not used[j] or not allowed[i, j]:
                continue
            fit, rest = True, 0.0
            for k in range(dims):
                left = free[j, k] - demand[i, k]
                if left < 0:
                    fit = False
                    break
                if k < 2:
                    rest += left
            if fit and rest < best_rest:
                best, best_rest = j, rest
        if best < 0:
            return False
        target[p] = best
        for k in range(dims):
            free[best, k] -= demand[i, k]
    return True
