// cp.async: copies that a thread issues, commits in groups, and waits for.
//
// Until it has been waited for, a copy may write at any time. So from its issue its destination is marked as pending, and
// whoever touches it then is at fault; at the wait it is written, as seen by others, by the thread that waits. The bytes
// move at the earliest moment, the issue, or at the latest, the wait (Launch::late_copies).
#pragma once

#include <stdlib.h>
#include <string.h>

#include "shadow.h"

struct AsyncCopy {
    void* to;
    const void* from;
    uint32_t bytes, valid;
    uint32_t group;
};

static void move_copy(const AsyncCopy& copy) {
    memcpy(copy.to, copy.from, copy.valid);
    memset(static_cast<char*>(copy.to) + copy.valid, 0, copy.bytes - copy.valid);
}

static AsyncCopy* add_copy(Worker* w, Thread* t) {
    if (t->copies_end == t->copies_capacity) {
        t->copies_capacity = t->copies_capacity ? 2 * t->copies_capacity : 16;
        __atomic_store_n(&w->allocating, true, __ATOMIC_RELEASE);
        t->copies = static_cast<AsyncCopy*>(realloc(t->copies, t->copies_capacity * sizeof(AsyncCopy)));
        __atomic_store_n(&w->allocating, false, __ATOMIC_RELEASE);
        if (!t->copies) abort();
    }
    return &t->copies[t->copies_end++];
}

// All but the thread's `groups` latest groups end.
static void end_copies(Worker* w, Thread* t, uint32_t groups) {
    for (; t->copies_begin < t->copies_end; ++t->copies_begin) {
        const AsyncCopy& copy = t->copies[t->copies_begin];
        if (copy.group + groups >= t->groups_committed) break;
        if (w->launch->late_copies) move_copy(copy);
        if (w->launch->check) end_pending(w, t, copy.to, copy.bytes);
    }
    if (t->copies_begin == t->copies_end) t->copies_begin = t->copies_end = 0;
}
