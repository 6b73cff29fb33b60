/* What a job displays in cases that are rare in a real job:
 * short and long axes, single points, and losses that are not numbers. */
#include "cli/progress.h"
#include "cli/report_chart.h"
#include "cli/train_text.h"

#include "tests/harness/runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- charts ---- */

static char *chart_of(const cli_chart *chart)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    ck_assert_ptr_nonnull(file);
    cli_chart_write(file, chart);
    fclose(file);
    return text;
}

static int count_of(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)) != NULL; text += strlen(part)) {
        n++;
    }
    return n;
}

/* Asserts that consecutive labels of an axis ("x" or "y") differ. Returns how many there are. */
static int check_labels(const char *page, const char *axis)
{
    char begin[32], label[64], before[64] = "";
    int n = 0;
    snprintf(begin, sizeof begin, "class=\"%s", axis);
    for (const char *at = page; (at = strstr(at, begin)) != NULL; n++) {
        at = strchr(at, '>') + 1;
        snprintf(label, sizeof label, "%.*s", (int)strcspn(at, "<"), at);
        ck_assert_msg(strcmp(label, before) != 0, "'%s' is on axis %s twice", label, axis);
        ck_assert_msg(strcmp(label, "1000 k") != 0 && strcmp(label, "1000 M") != 0, "'%s' at the axis %s", label, axis);
        ck_assert_msg(label[0] != '-' || strspn(label + 1, "0. %") != strlen(label + 1), "'%s' is zero", label);
        memcpy(before, label, sizeof before);
    }
    return n;
}

START_TEST(labels_differ_however_short_or_long_the_axis_is)
{
    for (double most = 0.003; most < 1e11; most *= 1.37) {
        const double x[] = {0, most / 2, most}, y[] = {most / 3, most / 1.9, most / 2};
        for (cli_unit unit = CLI_UNIT_PLAIN; unit <= (most < 2 ? CLI_UNIT_PERCENT : CLI_UNIT_COUNT); unit++) {
            const cli_curve curve = {.name = "a", .x_key = "x", .y_key = "y", .x = x, .y = y, .count = 3, .color = 1};
            char *page = chart_of(&(cli_chart){.id = "i",
                                               .title = "t",
                                               .description = "d",
                                               .x_name = "n",
                                               .x_unit = unit == CLI_UNIT_COUNT ? CLI_UNIT_COUNT : CLI_UNIT_SECONDS,
                                               .y_unit = unit,
                                               .y_scale = unit == CLI_UNIT_COUNT ? CLI_SCALE_ZERO : CLI_SCALE_RANGE,
                                               .x_most = most,
                                               .curves = &curve,
                                               .curves_count = 1});
            ck_assert_int_ge(check_labels(page, "x"), 3);
            ck_assert_int_ge(check_labels(page, "y"), 3);
            free(page);
        }
    }
}
END_TEST

static char *chart_of_points(const double *y, const double *low, size_t count)
{
    static const double x[] = {0, 1, 2, 3, 4, 5, 6, 7};
    const cli_curve curve = {
        .name = "loss", .x_key = "x", .y_key = "y", .x = x, .y = y, .low = low, .count = count, .color = 1};
    return chart_of(&(cli_chart){.id = "i",
                                 .title = "t",
                                 .description = "d",
                                 .x_name = "n",
                                 .x_most = 7,
                                 .y_scale = CLI_SCALE_LOG,
                                 .curves = &curve,
                                 .curves_count = 1});
}

START_TEST(a_single_point_is_seen)
{
    char *page = chart_of_points((double[]){2}, NULL, 1);
    ck_assert_int_eq(count_of(page, "<circle class=\"dot c1\""), 1);
    free(page);
    page = chart_of_points((double[]){NAN, 2, NAN, 3, 4, NAN, NAN, 5}, NULL, 8);
    ck_assert_int_eq(count_of(page, "<circle class=\"dot c1\""), 2);
    free(page);
    /* In an area a point is a strip as wide as a line. Two pieces are two shapes. */
    page = chart_of_points((double[]){4, 5, NAN, 6}, (double[]){1, 2, NAN, 3}, 4);
    const char *path = strstr(page, "class=\"area");
    ck_assert_ptr_nonnull(path);
    ck_assert_int_eq(count_of(path, "h4.0L"), 1);
    ck_assert_int_eq(count_of(path, "Z"), 2);
    free(page);
}
END_TEST

START_TEST(what_is_not_a_number_is_marked_and_what_is_not_there_is_not)
{
    char *page = chart_of_points((double[]){NAN, 2, 1.5, INFINITY, INFINITY, NAN}, NULL, 6);
    ck_assert_int_eq(count_of(page, "class=\"nan c1\""), 2);
    ck_assert_int_eq(count_of(page, "loss: not a number"), 2);
    ck_assert_ptr_nonnull(strstr(page, "data-points=\"2\""));
    ck_assert_int_eq(count_of(page, "no values to draw"), 0);
    ck_assert_msg(strstr(page, "inf") == NULL && strstr(page, "\"nan\"") == NULL, "%s", page);
    free(page);
    /* Nothing else: no axis of values, which would be meaningless, only the name beside the marks. */
    page = chart_of_points((double[]){INFINITY, INFINITY}, NULL, 2);
    ck_assert_int_eq(count_of(page, "class=\"y\""), 0);
    ck_assert_int_eq(count_of(page, "no values to draw"), 1);
    ck_assert_int_eq(count_of(page, ">loss</text>"), 1);
    free(page);
}
END_TEST

/* ---- numbers ---- */

START_TEST(zero_has_no_sign)
{
    char text[CLI_NUMBER_TEXT];
    ck_assert_str_eq(cli_fixed(-0.00001, 4, text), "0.0000");
    ck_assert_str_eq(cli_fixed(-0.0, 2, text), "0.00");
    ck_assert_str_eq(cli_fixed(-0.00006, 4, text), "-0.0001");
    ck_assert_str_eq(cli_fixed(-10, 0, text), "-10");
    ck_assert_str_eq(cli_loss_text(-1e-9, true, text), "0.0000");
}
END_TEST

/* ---- rows that change ---- */

static char *frame_of(shoal_train_worker *workers, int count, double loss, int64_t epochs)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    ck_assert_ptr_nonnull(file);
    const shoal_train_options job = {.epochs = epochs};
    const shoal_train_event event = {.kind = SHOAL_TRAIN_TICK,
                                     .loss = loss,
                                     .images_total = 1000000,
                                     .workers = workers,
                                     .workers_count = count,
                                     .so_far = {.seconds = 1, .train_seconds = 1, .images = 1000}};
    cli_progress progress = {.unicode = false};
    cli_progress_draw(&progress, file, &job, &event, true);
    free(progress.paces);
    fclose(file);
    return text;
}

START_TEST(a_loss_that_is_not_a_number_is_shown_as_such)
{
    shoal_train_worker workers[] = {
        {.images = 640, .loss = NAN}, {.images = 0, .loss = NAN}, {.images = 360, .loss = 2.5}};
    char *text = frame_of(workers, 3, NAN, 3);
    const char *all = strstr(text, "all "), *first = strstr(text, "worker 0"), *second = strstr(text, "worker 1");
    ck_assert(all != NULL && first != NULL && second != NULL);
    ck_assert_msg(memmem(all, (size_t)(first - all), " nan ", 5) != NULL, "%s", all);
    ck_assert_msg(memmem(first, (size_t)(second - first), " nan ", 5) != NULL, "%s", first);
    ck_assert_msg(strstr(second, " nan ") == NULL && strstr(second, " - ") != NULL, "%s", second); /* has not started */
    free(text);
}
END_TEST

/* A terminal as narrow as 60 columns wraps none of the rows. */
START_TEST(rows_are_not_wider_than_60_columns_allow)
{
    shoal_train_worker workers[] = {{.images = 640, .loss = 1}, {.images = 360, .loss = 2.5, .deaths = 12}};
    for (int64_t epochs = 1; epochs <= 1000000; epochs *= 10) {
        char *text = frame_of(workers, 2, 1.5, epochs);
        const char *at = strstr(text, "all ");
        ck_assert_ptr_nonnull(at);
        ck_assert_int_ge((int)strcspn(at, "\033"), 50);
        ck_assert_int_lt((int)strcspn(at, "\033"), CLI_PROGRESS_COLUMNS);
        ck_assert_msg(epochs > 10 || strstr(text, "/1") != NULL, "the epoch is not shown: %s", text);
        free(text);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("train_shown");
    TCase *tc = tcase_create("train_shown");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_test(tc, labels_differ_however_short_or_long_the_axis_is);
    tcase_add_test(tc, a_single_point_is_seen);
    tcase_add_test(tc, what_is_not_a_number_is_marked_and_what_is_not_there_is_not);
    tcase_add_test(tc, zero_has_no_sign);
    tcase_add_test(tc, a_loss_that_is_not_a_number_is_shown_as_such);
    tcase_add_test(tc, rows_are_not_wider_than_60_columns_allow);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
