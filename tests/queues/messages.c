/* Messages that the caller writes in place, and foreign values. */
#include "tests/harness/runner.h"

#include <shoal/binding.h>

#include <string.h>

#define LIMIT SH_PATIENCE

START_TEST(written_in_place)
{
    static const size_t sizes[] = {0, 5, 8, 9, 4096, 1 << 20};
    size_t size = sizes[_i];
    shoal_queue *queue;
    shoal_message *message, *got;
    ck_assert_ok(shoal_queue_create(1, &queue));
    ck_assert_ok(shoal_message_create(size, &message));
    ck_assert_uint_eq(shoal_message_size(message), size);
    void *data = shoal_message_data(message);
    ck_assert_ptr_nonnull(data);
    memset(data, 'm', size);
    ck_assert_ok(shoal_queue_give_message(queue, message, SHOAL_NOW));
    ck_assert_ok(shoal_queue_get_message(queue, LIMIT, &got));
    ck_assert_uint_eq(shoal_message_size(got), size);
    ck_assert_ptr_eq(shoal_message_data(got), data); /* no copy */
    ck_assert(size == 0 || ((char *)shoal_message_data(got))[size - 1] == 'm');
    /* If the queue is full, the caller keeps the message. */
    ck_assert_ok(shoal_queue_put_bytes(queue, "small", 5, SHOAL_NOW));
    ck_assert_err(shoal_queue_give_message(queue, got, SHOAL_NOW), SHOAL_ETIMEDOUT);
    ck_assert_ok(shoal_queue_get_message(queue, LIMIT, &message)); /* a message that fits into the ring */
    ck_assert_uint_eq(shoal_message_size(message), 5);
    ck_assert_mem_eq(shoal_message_data(message), "small", 5);
    shoal_message_destroy(message);
    ck_assert_ok(shoal_queue_give_message(queue, got, SHOAL_NOW));
    shoal_value *value;
    ck_assert_ok(shoal_queue_get(queue, LIMIT, &value)); /* every get can read it as bytes */
    size_t n;
    ck_assert_ptr_nonnull(shoal_value_as_bytes(value, &n));
    ck_assert_uint_eq(n, size);
    shoal_value_destroy(value);
    shoal_message_destroy(NULL);
    shoal_queue_release(queue);
}
END_TEST

START_TEST(through_a_pipe_and_refused)
{
    shoal_pipe *a, *b;
    shoal_message *message, *got = NULL;
    shoal_queue *queue;
    ck_assert_ok(shoal_pipe_create(false, &a, &b));
    ck_assert_ok(shoal_message_create(100, &message));
    memset(shoal_message_data(message), 7, 100);
    ck_assert_err(shoal_pipe_give_message(a, message, SHOAL_NOW), SHOAL_EINVAL); /* a only receives */
    ck_assert_ok(shoal_pipe_give_message(b, message, SHOAL_NOW));
    ck_assert_err(shoal_pipe_recv_message(b, SHOAL_NOW, &got), SHOAL_EINVAL);
    ck_assert_ok(shoal_pipe_recv_message(a, LIMIT, &got));
    ck_assert_int_eq(((char *)shoal_message_data(got))[99], 7);
    shoal_message_destroy(got);
    ck_assert_ok(shoal_queue_create(0, &queue));
    ck_assert_err(shoal_queue_give_message(queue, NULL, SHOAL_NOW), SHOAL_EINVAL);
    ck_assert_ok(shoal_queue_put(queue, shoal_value_string("a value, not raw bytes"), SHOAL_NOW));
    ck_assert_err(shoal_queue_get_message(queue, SHOAL_NOW, &got), SHOAL_ETYPE);
    ck_assert_ptr_null(shoal_message_data(NULL));
    shoal_queue_release(queue);
    shoal_pipe_release(a);
    shoal_pipe_release(b);
}
END_TEST

START_TEST(foreign_values)
{
    shoal_queue *queue;
    uint32_t tag;
    size_t size;
    char text[64];
    ck_assert_ok(shoal_queue_create(0, &queue));
    ck_assert_ok(shoal_queue_put(queue, shoal_list(shoal_value_foreign(0xdecafbad, "pick\0le", 7)), LIMIT));
    shoal_value *value, *copy;
    ck_assert_ok(shoal_queue_get(queue, LIMIT, &value));
    const shoal_value *one = shoal_value_at(value, 0);
    ck_assert_int_eq(shoal_value_type(one), SHOAL_TYPE_FOREIGN);
    const void *bytes = shoal_value_as_foreign(one, &tag, &size);
    ck_assert_uint_eq(tag, 0xdecafbad);
    ck_assert_uint_eq(size, 7);
    ck_assert_mem_eq(bytes, "pick\0le", 7);
    ck_assert_ptr_null(shoal_value_as_bytes(one, NULL));
    copy = shoal_value_copy(value);
    ck_assert(shoal_value_equal(copy, value));
    shoal_value *other = shoal_list(shoal_value_foreign(1, "pick\0le", 7));
    ck_assert(!shoal_value_equal(other, value)); /* the tag matters */
    shoal_value_format(one, text, sizeof text);
    ck_assert_str_eq(text, "<foreign 3737844653, 7 bytes>");
    shoal_value_destroy(value);
    shoal_value_destroy(copy);
    shoal_value_destroy(other);
    ck_assert_ptr_null(shoal_value_foreign(1, NULL, 1));
    shoal_queue_release(queue);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("messages");
    TCase *tc = tcase_create("messages");
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_loop_test(tc, written_in_place, 0, 6);
    tcase_add_test(tc, through_a_pipe_and_refused);
    tcase_add_test(tc, foreign_values);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
