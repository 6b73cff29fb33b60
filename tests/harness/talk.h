/* A test that talks with one child: it asks with a value, and the child answers with one. What a child must remember
 * between two questions it keeps in static variables. */
#ifndef TESTS_TALK_H
#define TESTS_TALK_H

#include "tensor/tensor.h"
#include "tests/harness/children.h"
#include "tests/harness/numbers.h"

#include <stdlib.h>

/* ---- for the child ---- */

typedef shoal_err (*talk_answer)(const shoal_value *asked, shoal_value **out_answer);

/* Answers until the queue is closed; with null if there is nothing to report. */
static inline shoal_err talk_serve(const shoal_value *args, talk_answer answer)
{
    for (;;) {
        shoal_value *asked = NULL, *answered = NULL;
        shoal_err err = shoal_queue_get(ARG(queue, "in"), LIMIT, &asked);
        if (err == SHOAL_ECLOSED) {
            return SHOAL_OK;
        }
        must_ok(err);
        size_t mark = shoal_scope_mark();
        err = answer(asked, &answered);
        shoal_scope_release(mark);
        shoal_value_destroy(asked);
        if (err != SHOAL_OK) {
            shoal_queue_close(ARG(queue, "out")); /* so that the test learns it at once */
            return err;
        }
        must_ok(shoal_queue_put(ARG(queue, "out"), answered != NULL ? answered : shoal_value_null(), LIMIT));
    }
}

/* Defines a target that answers with the function of that name. */
#define TALK_TARGET(name, function)                                                                                    \
    static shoal_err name(int rank, const shoal_value *args)                                                           \
    {                                                                                                                  \
        (void)rank;                                                                                                    \
        return talk_serve(args, function);                                                                             \
    }

#define ASKED(kind, name) shoal_value_as_##kind(shoal_value_find(asked, name))

/* ---- tensors, in both processes ---- */

/* The tensors of these tests are on the CPU, or, with SHOAL_TALK_DEVICE=cuda, on a card: the stub driver's or a real
 * one. So the factories below make them there, and a child is never forked from a process that has opened the card: it
 * could not use it (tests/cuda/forks.c). */
static inline bool talk_is_card(void)
{
    return getenv("SHOAL_TALK_DEVICE") != NULL;
}

static inline shoal_device talk_device(void)
{
    return talk_is_card() ? SHOAL_CUDA : SHOAL_CPU;
}

/* Returns a copy of t on the device; releases t. */
static inline shoal_tensor *talk_moved(shoal_tensor *t)
{
    size_t mark = shoal_scope_mark();
    shoal_tensor *moved = t != NULL ? shoal_tensor_retain(shoal_to_device(t, talk_device())) : NULL;
    shoal_scope_release(mark);
    shoal_tensor_release(t);
    return moved;
}

#define shoal_empty(...) shoal_empty_on(talk_device(), __VA_ARGS__)
#define shoal_full(...) shoal_full_on(talk_device(), __VA_ARGS__)
#define shoal_from_data(...) shoal_from_data_on(talk_device(), __VA_ARGS__)
#define shoal_zeros(dtype, ...) shoal_full_on(talk_device(), dtype, 0, __VA_ARGS__)
#define shoal_ones(dtype, ...) shoal_full_on(talk_device(), dtype, 1, __VA_ARGS__)
#define shoal_eye(...) talk_moved((shoal_eye)(__VA_ARGS__))
#define shoal_arange(...) talk_moved((shoal_arange)(__VA_ARGS__))
#define shoal_randperm(...) talk_moved((shoal_randperm)(__VA_ARGS__))
#define shoal_scalar(dtype, value) shoal_full_on(talk_device(), dtype, value, SHOAL_SCALAR)

/* As start; a child that was forked could not use the card. */
static inline shoal_process *talk_start(int method, int rank, shoal_target target, shoal_value *args)
{
    return start(talk_is_card() && method == SHOAL_START_FORK ? SHOAL_START_SPAWN : method, rank, target, args);
}

/* ---- for the test ---- */

typedef struct talk {
    shoal_queue *in, *out;
    shoal_process *process;
} talk;

static inline void talk_begin(talk *t, int method, shoal_target target)
{
    t->in = make_queue(0);
    t->out = make_queue(0);
    t->process = talk_start(method, 0, target, shoal_map("in", t->in, "out", t->out));
}

static inline shoal_value *talk_hear(talk *t)
{
    shoal_value *answer = NULL;
    if (shoal_queue_get(t->out, LIMIT, &answer) != SHOAL_OK) {
        shoal_status status = {.text = "?"};
        (void)!shoal_process_join(t->process, SH_PATIENCE, &status);
        ck_abort_msg("no answer: %s", status.text);
    }
    return answer;
}

/* Sends the value, which it consumes, and returns the answer, which the caller owns. */
static inline shoal_value *talk_ask(talk *t, shoal_value *value)
{
    if (value == NULL || shoal_queue_put(t->in, value, LIMIT) != SHOAL_OK) {
        ck_abort_msg("cannot ask: %s", shoal_last_error_text());
    }
    return talk_hear(t);
}

static inline void talk_tell(talk *t, shoal_value *value)
{
    shoal_value_destroy(talk_ask(t, value));
}

static inline void talk_release(talk *t)
{
    shoal_release(t->in);
    shoal_release(t->out);
}

static inline void talk_end(talk *t)
{
    shoal_queue_close(t->in);
    finish(t->process);
    talk_release(t);
}

/* ---- numbers, in both processes ---- */

#define AT(t, ...) item_at(t, SHOAL_SHAPE(__VA_ARGS__))

/* Writes one element of an f32 tensor. Returns when it is there: no message says so to the other process. */
static inline void set_f32(shoal_tensor *t, int64_t i, int64_t k, double value)
{
    size_t mark = shoal_scope_mark();
    shoal_tensor *place = shoal_select(shoal_detach(t), 0, i);
    place = shoal_tensor_ndim(t) > 1 ? shoal_select(place, 0, k) : place;
    (void)item_of(shoal_fill_(place, value));
    shoal_scope_release(mark);
}

/* Makes a tensor of rows times columns, with numbers counted up from first. */
static inline shoal_tensor *counted(int64_t rows, int64_t columns, double first)
{
    size_t count = (size_t)(rows * columns);
    float *data = malloc((count + 1) * sizeof *data);
    for (size_t i = 0; data != NULL && i < count; i++) {
        data[i] = (float)(first + (double)i);
    }
    shoal_tensor *t = data != NULL ? shoal_from_data(SHOAL_F32, data, SHOAL_SHAPE(rows, columns)) : NULL;
    free(data);
    return t;
}

static inline bool is_counted(const shoal_tensor *t, double first)
{
    bool good = t != NULL && shoal_tensor_is_contiguous(t) && shoal_tensor_dtype(t) == SHOAL_F32;
    size_t count = good ? (size_t)shoal_tensor_count(t) : 0;
    float *data = malloc((count + 1) * sizeof *data);
    good = good && data != NULL && shoal_tensor_read(t, data, count * sizeof *data) == SHOAL_OK;
    for (size_t i = 0; good && i < count; i++) {
        good = data[i] == (float)(first + (double)i);
    }
    free(data);
    return good;
}

/* Returns the address of the first element, also on a card. */
static inline char *address_of(const shoal_tensor *t)
{
    return sh_tensor_ptr(t);
}

static inline bool same_memory(const shoal_tensor *a, const shoal_tensor *b)
{
    return a != NULL && b != NULL && shoal_tensor_storage_id(a) == shoal_tensor_storage_id(b) &&
           address_of(a) - shoal_tensor_offset(a) * (int64_t)shoal_dtype_size(shoal_tensor_dtype(a)) ==
               address_of(b) - shoal_tensor_offset(b) * (int64_t)shoal_dtype_size(shoal_tensor_dtype(b));
}

#endif
