#include "ipc/receipt.h"

#include "base/error.h"
#include "base/fork.h"
#include "base/grow.h"

#include <stdlib.h>

/* A place for a receipt. */
typedef struct place {
    sh_receipt receipt;
    uint64_t serial; /* 0: free */
    size_t next;     /* of a free place: the next one + 1 */
} place;

/* The lock protects all of these. It is the innermost one: nothing else is called while it is held. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static place *places;
static size_t count, room;
static size_t first_free; /* + 1; 0: none */
static uint64_t serials;

/* A child of fork has the parent's receipts, as it has the parent's handles: to end one fails, and drops the child's
 * reference. */
__attribute__((constructor)) static void install(void)
{
    static const sh_fork_part part = {.lock = &lock};
    sh_fork_register(SH_FORK_RECEIPTS, &part);
}

/* Under the lock. Returns NULL if there is no memory. */
static place *free_place(void)
{
    if (first_free != 0) {
        place *p = &places[first_free - 1];
        first_free = p->next;
        return p;
    }
    return sh_grow(&places, count, &room, sizeof *places) ? &places[count++] : NULL;
}

/* Under the lock. */
static place *find(sh_receipt_key key)
{
    place *p = key.place < count ? &places[key.place] : NULL;
    return p != NULL && key.serial != 0 && p->serial == key.serial ? p : NULL;
}

/* Under the lock. */
static void make_free(place *p)
{
    p->serial = 0;
    p->next = first_free;
    first_free = (size_t)(p - places) + 1;
}

shoal_err sh_receipt_add(const sh_receipt *receipt, sh_receipt_key *out_key)
{
    sh_fork_lock(&lock);
    place *p = free_place();
    if (p != NULL) {
        *p = (place){.receipt = *receipt, .serial = ++serials};
        *out_key = (sh_receipt_key){.place = (uint64_t)(p - places), .serial = p->serial};
    }
    sh_fork_unlock(&lock);
    return p != NULL ? SHOAL_OK : sh_fail(SHOAL_ENOMEM, "no memory for a delivery");
}

bool sh_receipt_find(sh_receipt_key key, sh_receipt *out_receipt)
{
    sh_fork_lock(&lock);
    const place *p = find(key);
    if (p != NULL) {
        *out_receipt = p->receipt;
    }
    sh_fork_unlock(&lock);
    return p != NULL;
}

void sh_receipt_set(sh_receipt_key key, uint64_t state)
{
    sh_fork_lock(&lock);
    place *p = find(key);
    if (p != NULL) {
        p->receipt.state = state;
    }
    sh_fork_unlock(&lock);
}

bool sh_receipt_drop(sh_receipt_key key)
{
    sh_fork_lock(&lock);
    place *p = find(key);
    if (p != NULL) {
        make_free(p);
    }
    sh_fork_unlock(&lock);
    return p != NULL;
}

void sh_receipts_forget(const void *view)
{
    sh_fork_lock(&lock);
    for (size_t i = 0; i < count; i++) {
        if (places[i].serial != 0 && places[i].receipt.view == view) {
            make_free(&places[i]);
        }
    }
    sh_fork_unlock(&lock);
}
