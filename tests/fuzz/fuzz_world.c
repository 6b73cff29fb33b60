/* A member of a world finds garbage in its memory. It must not crash, access memory outside the mapping, or loop
 * forever.
 *
 * Each run makes a small world that contains some of everything, leaves it as a killed process would, writes data from
 * the input to places that the input chooses, and joins again as a new member, which then uses all that it finds. The
 * input is a sequence of writes of WRITE_SIZE bytes: the place, its index, how to write, and eight bytes of data. */
#include "ipc/queue.h"
#include "shm/block.h"
#include "shm/kind.h"
#include "shm/slot.h"
#include "tests/fuzz/fuzz.h"

#include <shoal/shoal.h>

#include <string.h>
#include <unistd.h>

#define RESERVE SH_RESERVE_MIN
#define HEAP_LIMIT (UINT64_C(32) << 20)
#define WRITE_SIZE 12
#define WRITES_MAX 64
#define IDS_MAX 160
#define NOBODYS_PID 0x3ffffff0 /* above the greatest pid of the kernel */

/* The blocks that were in the world when it was left. */
static struct {
    uint64_t ids[IDS_MAX];
    size_t count;
} known;

/* ---- a world that contains some of everything ---- */

static void fill_queue(shoal_queue *q, shoal_block *block, shoal_queue *other)
{
    char text[300] = "a message that does not fit into a word";
    for (int i = 0; i < 5; i++) {
        require(shoal_queue_put_bytes(q, &i, sizeof i, SHOAL_NOW) == SHOAL_OK);
        require(shoal_queue_put_bytes(q, text, sizeof text, SHOAL_NOW) == SHOAL_OK);
        require(shoal_queue_put_block(q, block, SHOAL_NOW) == SHOAL_OK);
        require(shoal_queue_put(q, shoal_map("a", block, "b", shoal_list(1, 2.5, "three", other)), SHOAL_NOW) ==
                SHOAL_OK);
        require(shoal_queue_put(q, shoal_value_int(i), SHOAL_NOW) == SHOAL_OK);
    }
}

static void make_queues(void)
{
    shoal_queue *inner = NULL, *grown = NULL, *bounded = NULL;
    shoal_block *small = NULL, *large = NULL;
    shoal_pipe *a = NULL, *b = NULL;
    require(shoal_block_create(100, &small) == SHOAL_OK && shoal_block_create_zeroed(50000, &large) == SHOAL_OK);
    require(shoal_queue_create(0, &inner) == SHOAL_OK && shoal_queue_create(0, &grown) == SHOAL_OK);
    require(shoal_queue_create(40, &bounded) == SHOAL_OK && shoal_pipe_create(true, &a, &b) == SHOAL_OK);
    fill_queue(grown, small, inner);
    fill_queue(bounded, large, grown);
    for (int i = 0; i < 70; i++) {
        require(shoal_queue_put_bytes(grown, &i, sizeof i, SHOAL_NOW) == SHOAL_OK);
    }
    require(shoal_queue_put(inner, shoal_value_of(b), SHOAL_NOW) == SHOAL_OK);
    require(shoal_pipe_send_bytes(a, "0123456789abcdef", 16, SHOAL_NOW) == SHOAL_OK);
}

/* Makes the world. Releases no handle, so that the slot keeps holding all objects. */
static void make_world(void)
{
    shoal_lock *lock;
    shoal_rlock *rlock;
    shoal_semaphore *semaphore;
    shoal_event *event;
    shoal_barrier *barrier;
    shoal_condition *condition;
    shoal_world_options options = {.name = "fuzz", .heap_limit = HEAP_LIMIT, .reserve = RESERVE};
    require(shoal_world_create(&options) == SHOAL_OK);
    make_queues();
    require(shoal_lock_create(&lock) == SHOAL_OK && shoal_lock_lock(lock, SHOAL_NOW) == SHOAL_OK);
    require(shoal_rlock_create(&rlock) == SHOAL_OK && shoal_semaphore_create(1, 2, &semaphore) == SHOAL_OK);
    require(shoal_event_create(&event) == SHOAL_OK && shoal_barrier_create(2, &barrier) == SHOAL_OK);
    require(shoal_condition_create(&condition) == SHOAL_OK);
    for (int i = 0; i < 70; i++) { /* more than the slot has cells */
        shoal_block *b;
        require(shoal_block_create(64, &b) == SHOAL_OK);
    }
}

static void list_blocks(void)
{
    uint64_t spans = sh_load_acquire(&sh_the_world.header->frontier.hi) >> SH_TAG_BITS;
    known.count = 0;
    for (uint64_t s = 0; s < spans; s++) {
        sh_found f;
        for (uint64_t i = 0; sh_heap_find(s << SH_INDEX_BITS | i, &f) && known.count < IDS_MAX; i++) {
            if (sh_word_weight(sh_load_acquire(&f.meta->word)) != 0) {
                known.ids[known.count++] = s << SH_INDEX_BITS | i;
            }
        }
    }
}

/* ---- damage ---- */

typedef enum place { HEADER, SLOT, SPAN, META, TOPS, MAPS, BLOCK_HEAD, BLOCK_ANY, SPAN_HEAD, ANYWHERE, PLACES } place;

/* Returns where the write goes; NULL for nowhere. */
static sh_a64 *place_of(const uint8_t *w)
{
    uint64_t n = w[1] | (uint64_t)w[2] << 8, id = known.ids[w[1] % known.count], offset;
    sh_found f;
    require(sh_heap_find(id, &f));
    switch ((place)(w[0] % PLACES)) {
    case HEADER: offset = 64 + n % (sizeof(sh_world_shm) / 8 - 8) * 8; break;
    case SLOT: offset = SH_SLOTS_AT + (n & 1) * sizeof(sh_slot_shm) + (n >> 1) % (sizeof(sh_slot_shm) / 8) * 8; break;
    case SPAN: offset = SH_SPANS_AT + n % 64 * 8; break;
    case META: offset = sh_offset_of(f.meta) + (w[2] & 1) * 8; break;
    case TOPS: offset = SH_TOPS_AT + n % (SH_CLASSES * SH_MAP_2) * 8; break;
    case MAPS: offset = SH_MAPS_AT + (uint64_t)(w[1] % SH_CLASSES) * SH_MAP_BYTES + (w[2] & 1) * SH_MAP_0 * 8; break;
    case BLOCK_HEAD: offset = sh_offset_of(f.data) + w[2] % 8 * 8; break;
    case BLOCK_ANY: offset = sh_offset_of(f.data) + (w[2] * 4 + (w[3] >> 4)) % (f.room / 8) * 8; break;
    case SPAN_HEAD: offset = sh_load_relaxed(&sh_span_at((uint32_t)(id >> SH_INDEX_BITS))->base) + w[2] % 16 * 8; break;
    default: offset = SH_HEAP_AT + n * 8; break;
    }
    return sh_at(offset);
}

static void damage(const uint8_t *w, sh_a64 *at)
{
    uint64_t value;
    memcpy(&value, w + 4, sizeof value);
    switch (w[3] % 5) {
    case 0: sh_store_relaxed(at, value); break;
    case 1: sh_store_relaxed(at, sh_load_relaxed(at) ^ value); break;
    case 2: sh_store_relaxed(at, sh_load_relaxed(at) + (uint64_t)(int64_t)(int8_t)w[4]); break;
    case 3: sh_store_relaxed(at, sh_ref_make(known.ids[w[4] % known.count], w[5] | (uint64_t)w[6] << 20)); break;
    default: sh_store_relaxed(at, sh_load_relaxed(at) ^ UINT64_C(1) << (w[4] % 64)); break;
    }
}

/* Leaves the world as a killed process does, and damages it. Returns its fd. */
static int abandon(const uint8_t *bytes, size_t size, bool dead)
{
    sh_a64 *places[WRITES_MAX];
    size_t count = size / WRITE_SIZE < WRITES_MAX ? size / WRITE_SIZE : WRITES_MAX;
    int fd = dup(sh_the_world.fd);
    require(fd >= 0);
    if (dead) {
        sh_store_relaxed(&sh_the_world.self.slot->pid, NOBODYS_PID);
    }
    for (size_t i = 0; i < count; i++) { /* find all places before damaging the first */
        places[i] = place_of(bytes + i * WRITE_SIZE);
    }
    for (size_t i = 0; i < count; i++) {
        damage(bytes + i * WRITE_SIZE, places[i]);
    }
    sh_peers_set(NULL, 0);
    sh_attachment_set(SH_FORKED); /* so that leaving only forgets the world */
    shoal_world_leave();
    return fd;
}

/* ---- the newcomer ---- */

static void use_queue(shoal_queue *q)
{
    char text[64];
    size_t size;
    for (int i = 0; i < 12; i++) {
        shoal_value *v;
        shoal_block *b;
        if (shoal_queue_get_bytes(q, text, sizeof text, SHOAL_NOW, &size) == SHOAL_OK) {
            require(size <= sizeof text);
        } else if (shoal_queue_get_block(q, SHOAL_NOW, &b) == SHOAL_OK) {
            shoal_release(b);
        } else if (shoal_queue_get(q, SHOAL_NOW, &v) == SHOAL_OK) {
            char shown[64];
            shoal_value_format(v, shown, sizeof shown);
            shoal_value_destroy(v);
        }
    }
    (void)!shoal_queue_put_bytes(q, text, 4, SHOAL_NOW);
    (void)!shoal_queue_put_bytes(q, text, sizeof text, SHOAL_NOW);
    for (int i = 0; i < 40; i++) {
        (void)!shoal_queue_put_bytes(q, &i, sizeof i, SHOAL_NOW);
    }
    (void)!shoal_queue_task_done(q);
    (void)!shoal_queue_join(q, SHOAL_NOW);
    shoal_queue_size(q);
    shoal_queue_close(q);
}

static void use_object(shoal_block *b)
{
    uint32_t index;
    char text[32];
    size_t size;
    switch (sh_block_kind(b)) {
    case SHOAL_KIND_QUEUE: use_queue((shoal_queue *)b); break;
    case SHOAL_KIND_PIPE:
        (void)!shoal_pipe_recv_bytes((shoal_pipe *)b, text, sizeof text, SHOAL_NOW, &size);
        (void)!shoal_pipe_send_bytes((shoal_pipe *)b, text, sizeof text, SHOAL_NOW);
        (void)!shoal_pipe_poll((shoal_pipe *)b, SHOAL_NOW);
        break;
    case SHOAL_KIND_CONDITION:
        (void)!shoal_condition_lock((shoal_condition *)b, SHOAL_NOW);
        (void)!shoal_condition_wait((shoal_condition *)b, SHOAL_NOW);
        (void)!shoal_condition_notify_all((shoal_condition *)b);
        (void)!shoal_condition_unlock((shoal_condition *)b);
        break;
    case SHOAL_KIND_LOCK:
        (void)!shoal_lock_lock_consistent((shoal_lock *)b, SHOAL_NOW);
        (void)!shoal_lock_lock((shoal_lock *)b, SHOAL_NOW);
        (void)!shoal_lock_mark_consistent((shoal_lock *)b);
        break;
    case SHOAL_KIND_RLOCK: (void)!shoal_rlock_lock((shoal_rlock *)b, SHOAL_NOW); break;
    case SHOAL_KIND_SEMAPHORE: (void)!shoal_semaphore_wait((shoal_semaphore *)b, SHOAL_NOW); break;
    case SHOAL_KIND_EVENT: (void)!shoal_event_wait((shoal_event *)b, SHOAL_NOW); break;
    case SHOAL_KIND_BARRIER: (void)!shoal_barrier_wait((shoal_barrier *)b, SHOAL_NOW, &index); break;
    default:
        if (shoal_block_size(b) > 0) {
            memset(shoal_block_data(b), 1, shoal_block_size(b) < 64 ? shoal_block_size(b) : 64);
        }
        break;
    }
}

static void use_blocks(void)
{
    for (size_t i = 0; i < known.count; i++) {
        shoal_block *b = NULL;
        sh_ctx *c = sh_enter();
        shoal_err err = c == NULL ? SHOAL_ESTATE : sh_block_open(c, known.ids[i], &b);
        if (c != NULL) {
            sh_leave();
        }
        if (err == SHOAL_OK) {
            use_object(b);
            if (i % 2 == 0) {
                shoal_release(b);
            }
        }
    }
}

static void allocate(void)
{
    static const size_t sizes[] = {1, 64, 100, 200, 1000, 4096, 20000, 40000};
    for (size_t i = 0; i < 40; i++) {
        shoal_block *b;
        size_t size = sizes[i % (sizeof sizes / sizeof sizes[0])];
        if (shoal_block_create(size, &b) == SHOAL_OK) {
            memset(shoal_block_data(b), 2, size);
            if (i % 3 != 0) {
                shoal_release(b);
            }
        }
    }
}

static bool show(const shoal_ps_entry *entry, void *context)
{
    *(size_t *)context += strlen(entry->world) + strlen(entry->name) + strlen(entry->state) + strlen(entry->doing);
    return true;
}

/* The bits of the first byte, which chooses what else the new member does,
 * because scans of the whole world are slow. */
enum { DEAD = 1, SWEEP = 2, TRIM = 4, AUDIT = 8, INFO = 16, LIST = 0xe0 };

static void visit(unsigned what)
{
    shoal_audit audit;
    shoal_world_info info;
    size_t length = 0;
    if ((what & SWEEP) != 0) {
        (void)!shoal_world_sweep(NULL);
    }
    if ((what & LIST) == LIST) {
        (void)!shoal_world_list(show, &length);
    }
    allocate();
    use_blocks();
    if ((what & TRIM) != 0) {
        (void)!shoal_world_trim();
    }
    (void)!shoal_world_sweep(NULL);
    allocate();
    if ((what & INFO) != 0) {
        (void)!shoal_world_info_get(&info);
    }
    if ((what & AUDIT) != 0) {
        (void)!shoal_world_audit(&audit);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size < 1 + WRITE_SIZE) {
        return 0;
    }
    make_world();
    list_blocks();
    int fd = abandon(bytes + 1, size - 1, (bytes[0] & DEAD) != 0);
    if (sh_world_attach(fd, SH_SLOT_NEW, "newcomer") == SHOAL_OK) {
        visit(bytes[0]);
        shoal_world_leave();
    }
    require(!sh_attached());
    return 0;
}
