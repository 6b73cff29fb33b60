/* A test that talks with one child: it asks with a value, and the child answers with one. What a child must remember
 * between two questions it keeps in static variables. */
#ifndef TESTS_TALK_H
#define TESTS_TALK_H

#include "testing/numbers.h"
#include "tests/children.h"

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

/* ---- for the test ---- */

typedef struct talk {
    shoal_queue *in, *out;
    shoal_process *process;
} talk;

static inline void talk_begin(talk *t, int method, shoal_target target)
{
    ck_assert_ok(shoal_queue_create(0, &t->in));
    ck_assert_ok(shoal_queue_create(0, &t->out));
    t->process = start(method, 0, target, shoal_map("in", t->in, "out", t->out));
}

static inline shoal_value *talk_hear(talk *t)
{
    shoal_value *answer = NULL;
    if (shoal_queue_get(t->out, LIMIT, &answer) != SHOAL_OK) {
        shoal_status status = {.text = "?"};
        (void)!shoal_process_join(t->process, SHOAL_SECONDS(10), &status);
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

static inline void talk_end(talk *t)
{
    shoal_queue_close(t->in);
    finish(t->process);
    shoal_release(t->in);
    shoal_release(t->out);
}

/* ---- tensors, in both processes ---- */

#define AT(t, ...) item_at(t, SHOAL_SHAPE(__VA_ARGS__))

/* Writes one element of an f32 tensor, using its strides. */
static inline void set_f32(shoal_tensor *t, int64_t i, int64_t k, double value)
{
    float *data = shoal_tensor_data(t);
    int64_t at = i * shoal_tensor_stride(t, 0);
    at += shoal_tensor_ndim(t) > 1 ? k * shoal_tensor_stride(t, 1) : 0;
    data[at] = (float)value;
}

/* Makes a tensor of rows times columns, with numbers counted up from first. */
static inline shoal_tensor *counted(int64_t rows, int64_t columns, double first)
{
    shoal_tensor *t = shoal_empty(SHOAL_F32, SHOAL_SHAPE(rows, columns));
    for (int64_t i = 0; t != NULL && i < rows * columns; i++) {
        ((float *)shoal_tensor_data(t))[i] = (float)(first + (double)i);
    }
    return t;
}

static inline bool is_counted(const shoal_tensor *t, double first)
{
    bool good = t != NULL && shoal_tensor_is_contiguous(t) && shoal_tensor_dtype(t) == SHOAL_F32;
    for (int64_t i = 0; good && i < shoal_tensor_count(t); i++) {
        good = ((float *)shoal_tensor_data(t))[i] == (float)(first + (double)i);
    }
    return good;
}

static inline bool same_memory(const shoal_tensor *a, const shoal_tensor *b)
{
    return a != NULL && b != NULL && shoal_tensor_storage_id(a) == shoal_tensor_storage_id(b) &&
           (char *)shoal_tensor_data(a) - shoal_tensor_offset(a) * (int64_t)shoal_dtype_size(shoal_tensor_dtype(a)) ==
               (char *)shoal_tensor_data(b) - shoal_tensor_offset(b) * (int64_t)shoal_dtype_size(shoal_tensor_dtype(b));
}

#endif
