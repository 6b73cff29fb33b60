/* Shared by every test program: a main that runs as a child if it was started as one, and a leak check around each
 * test.
 *
 *
 *     START_TEST(round_trip) { ... } END_TEST
 *     static Suite *suite(void) { ... tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end) ... }
 *     SH_TEST_MAIN(suite)
 *
 * libcheck runs each test in a separate process with a timeout. sh_leaks_end fails the test if it left a child, an fd,
 * a mapping or a live block behind, or if the audit of its world is not clean. */
#ifndef TESTING_RUNNER_H
#define TESTING_RUNNER_H

#include <check.h>

#include <shoal/shoal.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SH_SLOW 1
#else
#define SH_SLOW 0
#endif

/* Limits of time, far above what a test takes on a crowded machine: they end what hangs. The first is that of a test
 * function, in seconds; test cases that set none have it too. The second is for a single wait in a test. */
#define SH_TEST_SECONDS 300
#define SH_PATIENCE SHOAL_SECONDS(100)

/* Returns a time in nanoseconds that stands still while any process of the machine waits for a core. For what must
 * happen within a second or two: between two calls less time passes than by the clock, and the difference is that to
 * other work. */
int64_t sh_quiet_now(void);

/* n repetitions; with a sanitizer a tenth of them, but at least 30 or n. */
#define SH_REPEAT(n) (SH_SLOW ? ((n) / 10 > 30 ? (n) / 10 : (n) < 30 ? (n) : 30) : (n))

/* Returns whether the test is to be short: with a sanitizer, and with SHOAL_TEST_SHORT in the environment, for
 * compute-sanitizer, under which a launch takes a hundred times as long. */
bool sh_is_short(void);

/* SH_REPEAT(n); a few of them with SHOAL_TEST_SHORT. */
int sh_repeats(int n);

/* 1; n with SHOAL_TEST_SHORT: the step of a loop over many cases. */
int sh_every(int n);

/* libcheck writes the location of every ck_assert that holds to a file, to name it if the test crashes afterwards. That
 * took most of the time of tests that assert a million times. This function writes only the first times at each line; a
 * crash then names the last location written. */
void sh_mark_point(const char *file, int line);
#define _mark_point(file, line) sh_mark_point(file, line)

void sh_leaks_begin(void);
void sh_leaks_end(void);

/* Sweeps until no other process is in the world. For tests that kill a process whose own children, a fork server among
 * them, end by themselves a moment later. */
void sh_await_alone(void);

/* Counts for this process, for tests that print or compare them. */
int sh_count_fds(void);
int sh_count_mappings(void);
int sh_count_children(void);

/* Fails with the library's error text. */
#define ck_assert_ok(expression)                                                                                       \
    do {                                                                                                               \
        shoal_err err_ = (expression);                                                                                 \
        ck_assert_msg(err_ == SHOAL_OK, "%s: %s: %s", #expression, shoal_err_name(err_), shoal_last_error_text());     \
    } while (0)

#define ck_assert_err(expression, wanted)                                                                              \
    do {                                                                                                               \
        shoal_err err_ = (expression);                                                                                 \
        ck_assert_msg(err_ == (wanted), "%s: %s, wanted %s (%s)", #expression, shoal_err_name(err_),                   \
                      shoal_err_name(wanted), shoal_last_error_text());                                                \
    } while (0)

/* Returns the integer in a value; for any other value, a number that no test expects. Targets use it too. */
static inline int64_t sh_int_of(const shoal_value *value)
{
    int64_t i;
    return shoal_value_as_int(value, &i) == SHOAL_OK ? i : INT64_MIN;
}

static inline double sh_float_of(const shoal_value *value)
{
    double d;
    return shoal_value_as_float(value, &d) == SHOAL_OK ? d : -1e300;
}

static inline bool sh_bool_of(const shoal_value *value)
{
    bool b;
    return shoal_value_as_bool(value, &b) == SHOAL_OK && b;
}

/* Asserts that the audit of the world is clean. */
void sh_assert_audit(const char *where);

/* Returns the figures of the world. */
shoal_world_info sh_test_world(void);

/* Makes a suite of one test case, with the leak check around each test. */
Suite *sh_test_suite(const char *name, const TTest *const *tests, size_t count);

/* Runs the suite. argv[1], if given, names the one test case (tcase) to run. */
int sh_test_main(int argc, char **argv, Suite *(*suite)(void));

#define SH_TEST_MAIN(suite)                                                                                            \
    int main(int argc, char **argv)                                                                                    \
    {                                                                                                                  \
        return sh_test_main(argc, argv, suite);                                                                        \
    }

#endif
