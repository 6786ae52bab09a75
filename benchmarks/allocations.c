/* Counts the bytes that onnxruntime's CPU allocator has at once: preloaded, it stands before the aligned allocations. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>

#define SLOTS (1u << 20)
#define DELETED ((void *)1)

static _Atomic long now, peak;
static _Atomic int counting;
static _Atomic(void *) keys[SLOTS];
static long sizes[SLOTS];

static unsigned slot(void *place) { return (unsigned)(((unsigned long)place >> 4) * 2654435761u) & (SLOTS - 1); }

static void add(void *place, long size) {
    for (unsigned i = slot(place);; i = (i + 1) & (SLOTS - 1)) {
        void *empty = NULL, *deleted = DELETED;
        if (atomic_compare_exchange_strong(&keys[i], &empty, place) ||
            atomic_compare_exchange_strong(&keys[i], &deleted, place)) {
            sizes[i] = size;
            break;
        }
    }
    long value = atomic_fetch_add(&now, size) + size, before = peak;
    while (value > before && !atomic_compare_exchange_strong(&peak, &before, value)) {
    }
}

static void drop(void *place) {
    for (unsigned i = slot(place), tries = 0; keys[i] && tries < 4096; i = (i + 1) & (SLOTS - 1), tries++) {
        void *key = place;
        long size = sizes[i];
        if (atomic_compare_exchange_strong(&keys[i], &key, DELETED)) {
            atomic_fetch_sub(&now, size);
            return;
        }
    }
}

void *aligned_alloc(size_t alignment, size_t size) {
    static void *(*real)(size_t, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "aligned_alloc");
    void *place = real(alignment, size);
    if (place && counting) add(place, (long)size);
    return place;
}

void free(void *place) {
    static void (*real)(void *);
    if (!real) real = dlsym(RTLD_NEXT, "free");
    if (place && counting) drop(place);
    real(place);
}

void count_allocations(void) {
    for (unsigned i = 0; i < SLOTS; i++) keys[i] = NULL;
    now = peak = 0;
    counting = 1;
}

long peak_of_allocations(void) {
    counting = 0;
    return peak;
}
