/* Messages that a hostile member of the world forged: get returns an error, touches nothing outside, and the queue
 * continues: B62. */
#include "base/random.h"
#include "ipc/message_write.h"
#include "ipc/queue.h"
#include "shm/kind.h"
#include "tests/harness/children.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#define SEED 31337u

/* The queue under attack and its first ring. */
static shoal_queue *queue;
static sh_ring ring;

static sh_queue_shm *queue_shm(void)
{
    return shoal_block_data((shoal_block *)queue);
}

static void begin(void)
{
    sh_leaks_begin();
    ck_assert_ok(shoal_queue_create(0, &queue));
    ck_assert(sh_ring_open(sh_ref_id(sh_load_acquire(&queue_shm()->rings)), &ring));
}

/* Forged memory never adds up, so there is no audit. But leaving such a world works, and nothing of it remains. */
static void end(void)
{
    shoal_release(queue);
    shoal_world_leave();
    ck_assert_int_eq(sh_count_mappings(), 0);
}

static void forge(sh_entry_kind kind, uint64_t word)
{
    sh_ctx *c = sh_enter();
    hot(c != NULL);
    hot(sh_ring_put(c, &ring, kind, word, 0, 0, 0, ((shoal_block *)queue)->id) == SH_RING_DONE);
    sh_leave();
}

/* A valid message still gets through. */
static void ck_goes_on(void)
{
    static int number;
    shoal_value *v = NULL;
    hot_ok(shoal_queue_put(queue, shoal_list(++number, "well"), SHOAL_NOW));
    hot_ok(shoal_queue_get(queue, SHOAL_NOW, &v));
    hot(sh_int_of(shoal_value_at(v, 0)) == number);
    shoal_value_destroy(v);
}

static void ck_corrupt(void)
{
    shoal_value *v = NULL;
    ck_assert_err(shoal_queue_get(queue, SHOAL_NOW, &v), SHOAL_ECORRUPT);
    ck_assert_ptr_null(v);
    ck_goes_on();
}

START_TEST(b62_references_to_unknown_objects)
{
    shoal_block *b;
    ck_assert_ok(shoal_block_create(64, &b));
    uint64_t freed = b->id, span = b->id >> SH_INDEX_BITS;
    sh_block_release(b);
    const uint64_t ids[] = {
        SH_ID_MASK,                                      /* the greatest id that can be written */
        (uint64_t)(SH_SPANS - 1) << SH_INDEX_BITS,       /* a span that does not exist */
        (span << SH_INDEX_BITS) | 0xfff,                 /* beyond the blocks of its span */
        freed,                                           /* free */
        sh_ref_id(sh_load_acquire(&queue_shm()->rings)), /* a ring, which is never sent */
    };
    for (int round = 0; round < 30; round++) {
        for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
            forge(SH_ENTRY_BLOCK, sh_ref_make(ids[i], 1 + (uint64_t)round));
            ck_corrupt();
            forge(SH_ENTRY_MESSAGE, sh_ref_make(ids[i], 1));
            ck_corrupt();
            forge(SH_ENTRY_BLOCK, sh_ref_make(ids[i], 1));
            shoal_block *got = NULL;
            ck_assert_err(shoal_queue_get_block(queue, SHOAL_NOW, &got), SHOAL_ECORRUPT);
            ck_assert_ptr_null(got);
            ck_goes_on();
        }
        forge(SH_ENTRY_BLOCK, sh_ref_make(((shoal_block *)queue)->id + 1, 0)); /* no weight */
        ck_corrupt();
        forge(SH_ENTRY_BLOCK, 0);
        ck_corrupt();
    }
}
END_TEST

START_TEST(b62_a_message_that_is_something_else)
{
    shoal_block *data;
    shoal_lock *lock;
    char buffer[64];
    size_t size;
    ck_assert_ok(shoal_block_create_zeroed(100, &data));
    ck_assert_ok(shoal_lock_create(&lock));
    const uint64_t ids[] = {data->id, ((shoal_block *)lock)->id, ((shoal_block *)queue)->id};
    for (size_t i = 0; i < 3; i++) { /* as a message: rejected, and it has no bytes either */
        forge(SH_ENTRY_MESSAGE, sh_ref_make(ids[i], 1));
        shoal_err err = shoal_queue_get_bytes(queue, buffer, sizeof buffer, SHOAL_NOW, &size);
        ck_assert(err == SHOAL_ETYPE || err == SHOAL_ECORRUPT);
        if (err == SHOAL_ETYPE) {
            ck_corrupt();
        }
    }
    sh_ctx *c = sh_enter();
    shoal_block *message;
    ck_assert_ok(sh_message_new(c, 0, 23, true, &message));
    sh_leave();
    forge(SH_ENTRY_BLOCK, sh_ref_make(message->id, 1)); /* a message as a block: not a kind that a program has */
    shoal_value *v = NULL;
    shoal_err err = shoal_queue_get(queue, SHOAL_NOW, &v);
    ck_assert(err != SHOAL_OK || shoal_value_object_kind(v) == SHOAL_KIND_NONE);
    shoal_value_destroy(v);
    ck_goes_on();
    sh_block_release(message);
    shoal_release(data);
    shoal_release(lock);
}
END_TEST

/* Makes a message with `count` references to one block, then bytes. */
static shoal_block *make_message(uint64_t count, const void *bytes, size_t size, shoal_block *refer)
{
    shoal_block *message, *objects[8];
    sh_ctx *c = sh_enter();
    hot(c != NULL && count <= 8);
    hot_ok(sh_message_new(c, count, size, false, &message));
    for (uint64_t i = 0; i < count; i++) {
        objects[i] = refer;
    }
    hot_ok(sh_message_refer(c, message, objects, count));
    sh_leave();
    memcpy(message->data + sizeof(sh_message_shm) + count * 8, bytes, size);
    return message;
}

/* Puts a valid message, so that it lives; its words are overwritten afterwards. */
static void put_real(shoal_block *message)
{
    sh_ref ref = sh_load_relaxed((sh_a64 *)sh_at(message->cell));
    forge(SH_ENTRY_MESSAGE, ref);
    sh_store_release((sh_a64 *)sh_at(message->cell), 0);
    sh_block_release(message);
}

START_TEST(b62_heads_that_lie)
{
    static const uint64_t lies[] = {2, 100, 1000, UINT32_MAX, UINT64_C(1) << 33 | 7, UINT64_MAX, UINT64_MAX / 8};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        for (int field = 0; field < 2; field++) {
            shoal_block *b;
            ck_assert_ok(shoal_block_create(10, &b));
            shoal_block *message = make_message(1, "\xc0", 1, b); /* null, and an object that it does not name */
            sh_message_shm *m = (sh_message_shm *)message->data;
            if (field == 0) {
                sh_store_relaxed(&m->count, lies[i]);
            } else {
                sh_store_relaxed(&m->size, lies[i]);
            }
            put_real(message);
            shoal_value *v = NULL;
            shoal_err err = shoal_queue_get(queue, SHOAL_NOW, &v);
            ck_assert_msg(err == SHOAL_ECORRUPT, "field %d, %llx: %s", field, (unsigned long long)lies[i],
                          shoal_err_name(err));
            ck_goes_on();
            sh_block_release(b);
        }
    }
}
END_TEST

#if defined(__x86_64__)

/* Changes a word directly after the first instruction that reads it: the page of the word cannot be read, so the read
 * faults; it is done again alone, by a single step, and then the word changes. */
#define TRAP_FLAG 0x100

static struct {
    sh_a64 *word;
    uint64_t value;
    char *page;
    bool hit; /* the instruction that is being stepped reads the word */
} change;

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)number;
    change.hit = info->si_addr == (void *)change.word;
    mprotect(change.page, SH_PAGE, PROT_READ | PROT_WRITE);
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
}

static void on_step(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
    if (change.hit) {
        sh_store_relaxed(change.word, change.value);
    } else {
        mprotect(change.page, SH_PAGE, PROT_NONE);
    }
}

static void change_when_read(sh_a64 *word, uint64_t value)
{
    struct sigaction fault = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    struct sigaction step = {.sa_sigaction = on_step, .sa_flags = SA_SIGINFO};
    ck_assert_int_eq(sigaction(SIGSEGV, &fault, NULL), 0);
    ck_assert_int_eq(sigaction(SIGTRAP, &step, NULL), 0);
    change.word = word;
    change.value = value;
    change.hit = false;
    change.page = (char *)((uintptr_t)word & ~(uintptr_t)(SH_PAGE - 1));
    ck_assert_int_eq(mprotect(change.page, SH_PAGE, PROT_NONE), 0);
}

/* Fault F14: a peer changes a reference between two looks at it. The reader uses the value that it checked: it does not
 * abort. */
START_TEST(b62_a_reference_that_changes_while_it_is_read)
{
    static const uint8_t bytes[] = {0x93, 1, 2, 3};
    shoal_block *data = NULL, *other = NULL;
    ck_assert_ok(shoal_block_create_zeroed(100, &data));
    ck_assert_ok(shoal_block_create_zeroed(100, &other));
    const sh_ref scribbles[] = {0, sh_ref_make(data->id, 1), sh_ref_make(other->id, 7), UINT64_MAX};
    for (size_t i = 0; i < 8; i++) {
        shoal_block *message = make_message(2, bytes, sizeof bytes, data), **objects = NULL;
        bool move = i % 2 == 0;
        size_t count = 0;
        sh_ctx *c = sh_enter();
        change_when_read(&((sh_message_shm *)message->data)->references[i / 4], scribbles[i / 2]);
        shoal_err err = sh_message_objects(c, message, move, &objects, &count);
        mprotect(change.page, SH_PAGE, PROT_READ | PROT_WRITE);
        hot(change.hit && err == SHOAL_OK && count == 2 && objects[0] == data && objects[1] == data);
        hot_ok(sh_message_refer(c, message, objects, count)); /* whatever is there now */
        sh_message_objects_drop(c, objects, count);
        sh_leave();
        sh_block_release(message);
    }
    shoal_release(data);
    shoal_release(other);
}
END_TEST

#endif

START_TEST(b62_objects_that_are_not_in_the_message)
{
    shoal_block *b;
    ck_assert_ok(shoal_block_create(10, &b));
    shoal_value *v = shoal_list(b, b);
    sh_encoding e;
    ck_assert_ok(sh_encoding_init(&e, v));
    for (uint64_t count = 0; count <= 3; count++) { /* fewer references than the bytes name, as many, more */
        put_real(make_message(count, e.bytes, e.size, b));
        shoal_value *got = NULL;
        shoal_err err = shoal_queue_get(queue, SHOAL_NOW, &got);
        if (count == e.object_count) {
            ck_assert_int_eq(err, SHOAL_OK);
            ck_assert(shoal_value_equal(got, v));
            shoal_value_destroy(got);
        } else if (count < e.object_count) {
            ck_assert_int_eq(err, SHOAL_ECORRUPT);
        } else {
            shoal_value_destroy(got); /* one too many does no harm */
        }
        ck_goes_on();
    }
    sh_encoding_fini(&e);
    shoal_value_destroy(v);
    sh_block_release(b);
}
END_TEST

/* Random damage to valid messages: there is an answer each time, and the queue continues. */
START_TEST(b62_random_damage_to_messages)
{
    uint64_t state = SEED;
    int refused = 0;
    for (int i = 0; i < SH_REPEAT(20000); i++) {
        shoal_block *b;
        hot_ok(shoal_block_create(40, &b));
        shoal_value *v =
            shoal_map("number", i, "text", "some text", "in", shoal_list(b, 1.5, shoal_value_bytes("bytes", 5)));
        sh_encoding e;
        hot_ok(sh_encoding_init(&e, v));
        shoal_block *message = make_message(e.object_count, e.bytes, e.size, b);
        uint64_t words = message->size / 8, damage = 1 + sh_splitmix_below(&state, 3);
        for (uint64_t k = 0; k < damage; k++) { /* a bit, a byte, or a word, anywhere from the head to the end */
            uint64_t at = 2 + sh_splitmix_below(&state, words - 2), kind = sh_splitmix_below(&state, 3),
                     r = sh_splitmix_next(&state);
            sh_a64 *word = (sh_a64 *)message->data + at;
            uint64_t old = sh_load_relaxed(word);
            sh_store_relaxed(word, kind == 0   ? old ^ UINT64_C(1) << (r % 64)
                                   : kind == 1 ? old ^ (r & 0xff) << (r >> 8 & 56)
                                               : r >> (r & 63));
        }
        put_real(message);
        shoal_value *got = NULL;
        shoal_err err = shoal_queue_get(queue, SHOAL_NOW, &got);
        hot(err == SHOAL_OK || err == SHOAL_ECORRUPT || err == SHOAL_ENOMEM);
        hot((err == SHOAL_OK) == (got != NULL));
        refused += err != SHOAL_OK;
        shoal_value_destroy(got);
        ck_goes_on();
        sh_encoding_fini(&e);
        shoal_value_destroy(v);
        sh_block_release(b);
    }
    printf("%d of %d damaged messages were refused (seed %u)\n", refused, SH_REPEAT(20000), SEED);
    ck_assert_int_gt(refused, 0);
}
END_TEST

/* Random entries in the ring itself. */
START_TEST(b62_random_words_in_entries)
{
    uint64_t state = SEED;
    for (int i = 0; i < SH_REPEAT(20000); i++) {
        sh_entry_kind kind = sh_splitmix_below(&state, 2) == 0 ? SH_ENTRY_BLOCK : SH_ENTRY_MESSAGE;
        uint64_t r = sh_splitmix_next(&state);
        forge(kind, sh_splitmix_below(&state, 2) == 0 ? r : sh_ref_make(r % (64u << SH_INDEX_BITS), 1 + (r >> 60)));
        shoal_value *got = NULL;
        shoal_err err = shoal_queue_get(queue, SHOAL_NOW, &got);
        hot(err == SHOAL_ECORRUPT || err == SHOAL_OK || err == SHOAL_EINVAL || err == SHOAL_ETYPE);
        if (err != SHOAL_OK) { /* a reference to something real is accepted: that is within the heap */
            ck_goes_on();
        }
        if (err == SHOAL_OK) {
            shoal_value_destroy(got);
            shoal_world_leave(); /* and may have destroyed what it names: start again */
            ck_assert_ok(shoal_queue_create(0, &queue));
            ck_assert(sh_ring_open(sh_ref_id(sh_load_acquire(&queue_shm()->rings)), &ring));
        }
    }
}
END_TEST

/* Objects with forged inner references. */
START_TEST(b62_objects_that_refer_to_nothing)
{
    static const uint64_t ids[] = {SH_ID_MASK, UINT64_C(3) << SH_INDEX_BITS | 0xfff, UINT64_C(99) << SH_INDEX_BITS};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        shoal_pipe *a, *b;
        shoal_condition *condition;
        shoal_queue *other;
        shoal_value *v = shoal_value_keep(shoal_value_int(1)), *got = NULL;
        ck_assert_ok(shoal_pipe_create(true, &a, &b));
        ck_assert_ok(shoal_condition_create(&condition));
        ck_assert_ok(shoal_queue_create(0, &other));
        /* As a process sees them that has just received them: it has no handles for the parts yet. */
        sh_pipe_shm *pipe = shoal_block_data((shoal_block *)a);
        sh_store_relaxed(&pipe->reads, sh_ref_make(ids[i], 5));
        sh_store_relaxed(&pipe->writes, sh_ref_make(ids[i], 5));
        ck_assert_err(shoal_pipe_recv(a, SHOAL_NOW, &got), SHOAL_ECORRUPT);
        ck_assert_err(shoal_pipe_send(a, v, SHOAL_NOW), SHOAL_ECORRUPT);
        ck_assert_err(shoal_pipe_poll(a, SHOAL_NOW), SHOAL_ECORRUPT);
        sh_condition_shm *c = shoal_block_data((shoal_block *)condition);
        shoal_block *handle = (shoal_block *)condition;
        sh_block_release(handle->parts[0]);
        sh_block_release(handle->parts[1]);
        handle->parts[0] = handle->parts[1] = NULL;
        sh_store_relaxed(&c->lock, sh_ref_make(ids[i], 5));
        ck_assert_err(shoal_condition_lock(condition, SHOAL_NOW), SHOAL_ECORRUPT);
        sh_store_relaxed(&c->lock, sh_ref_make(((shoal_block *)other)->id, 5)); /* it exists, but is not a lock */
        ck_assert_err(shoal_condition_lock(condition, SHOAL_NOW), SHOAL_ECORRUPT);
        handle = (shoal_block *)other;
        free(handle->extra);
        handle->extra = NULL;
        sh_store_relaxed(&((sh_queue_shm *)handle->data)->rings, sh_ref_make(ids[i], 5));
        ck_assert_err(shoal_queue_get(other, SHOAL_NOW, &got), SHOAL_ECORRUPT);
        ck_assert_err(shoal_queue_put(other, v, SHOAL_NOW), SHOAL_ECORRUPT);
        shoal_value_destroy(v);
        ck_goes_on();
    }
}
END_TEST

/* The hints and the entries of a ring, overwritten while it is in use: every call returns, whatever its result. */
START_TEST(b62_a_ring_of_nonsense_is_left_soon)
{
    uint64_t state = SEED;
    for (int i = 0; i < SH_REPEAT(1000); i++) {
        shoal_queue *q;
        sh_ring r;
        shoal_value *got = NULL;
        hot_ok(shoal_queue_create(i % 3 == 0 ? 5 : 0, &q));
        hot(sh_ring_open(sh_ref_id(sh_load_acquire(&((sh_queue_shm *)((shoal_block *)q)->data)->rings)), &r));
        for (int k = 0; k < 3; k++) {
            hot_ok(shoal_queue_put_bytes(q, "word", 4, SHOAL_NOW));
        }
        sh_store_relaxed(i % 2 == 0 ? &r.shm->tail.hint : &r.shm->head.hint,
                         sh_splitmix_next(&state) >> sh_splitmix_below(&state, 64));
        if (i % 5 == 0) {
            for (int k = 0; k < 16; k++) {
                sh_store_relaxed(&r.shm->entries[k].lo, sh_splitmix_next(&state));
            }
        }
        (void)(shoal_queue_put_bytes(q, "more", 4, SHOAL_NOW) == SHOAL_OK);
        if (shoal_queue_get(q, SHOAL_NOW, &got) == SHOAL_OK) {
            shoal_value_destroy(got);
        }
        (void)shoal_queue_size(q);
        for (int k = 0; k < 16; k++) { /* leaves no forged reference for recovery */
            sh_store_relaxed(&r.shm->entries[k].lo, 0);
        }
        shoal_release(q);
    }
}
END_TEST

/* The counts of a queue with a bound in bytes, and a ring that seems to hold 2^60 messages: to correct the counts takes
 * no longer than a walk over the ring. */
START_TEST(b62_counts_of_bytes_that_lie)
{
    static const char bytes[20000];
    uint64_t state = SEED;
    for (int i = 0; i < SH_REPEAT(1000); i++) {
        shoal_queue *q;
        sh_ring r;
        hot_ok(shoal_queue_create_with(&(shoal_queue_options){.bytes = 1000}, &q));
        sh_queue_shm *shm = (sh_queue_shm *)((shoal_block *)q)->data;
        hot(sh_ring_open(sh_ref_id(sh_load_acquire(&shm->rings)), &r));
        hot_ok(shoal_queue_put_bytes(q, bytes, sizeof bytes, SHOAL_NOW)); /* so that the next put looks at the counts */
        sh_store_relaxed(&shm->taken_bytes, sh_splitmix_next(&state) >> sh_splitmix_below(&state, 64));
        sh_store_relaxed(i % 2 == 0 ? &r.shm->tail.hint : &r.shm->head.hint,
                         sh_splitmix_next(&state) >> sh_splitmix_below(&state, 64));
        (void)(shoal_queue_put_bytes(q, "more", 4, SHOAL_NOW) == SHOAL_OK);
        shoal_release(q);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("forged");
    TCase *tc = tcase_create("forged");
    tcase_add_checked_fixture(tc, begin, end);
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_test(tc, b62_references_to_unknown_objects);
    tcase_add_test(tc, b62_a_message_that_is_something_else);
    tcase_add_test(tc, b62_heads_that_lie);
    tcase_add_test(tc, b62_objects_that_are_not_in_the_message);
#if defined(__x86_64__)
    tcase_add_test(tc, b62_a_reference_that_changes_while_it_is_read);
#endif
    tcase_add_test(tc, b62_random_damage_to_messages);
    tcase_add_test(tc, b62_random_words_in_entries);
    tcase_add_test(tc, b62_objects_that_refer_to_nothing);
    tcase_add_test(tc, b62_a_ring_of_nonsense_is_left_soon);
    tcase_add_test(tc, b62_counts_of_bytes_that_lie);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
