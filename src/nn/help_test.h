/* Shared by the tests of this layer. */
#ifndef SH_NN_HELP_TEST_H
#define SH_NN_HELP_TEST_H

#include "nn/module.h"
#include "tests/harness/runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static inline float *data(const shoal_tensor *t)
{
    return shoal_tensor_data(t);
}

static inline void ck_shape(const shoal_tensor *t, int ndim, const int64_t *shape)
{
    sh_text wanted, found;
    ck_assert_msg(t != NULL, "%s", shoal_last_error_text());
    ck_assert_msg(t->ndim == ndim && memcmp(t->shape, shape, (size_t)ndim * sizeof *shape) == 0, "%s, wanted %s",
                  sh_tensor_text(&found, t), sh_shape_text(&wanted, ndim, shape));
}

/* Asserts that the last call failed with err, and that its error text contains words. */
static inline void ck_failed(shoal_err err, const char *words)
{
    ck_assert_msg(shoal_last_error() == err && strstr(shoal_last_error_text(), words), "%s: %s; wanted %s with '%s'",
                  shoal_err_name(shoal_last_error()), shoal_last_error_text(), shoal_err_name(err), words);
    (void)shoal_fail(SHOAL_OK, "none");
}

/* Returns "name [shape]" of every parameter and buffer, joined by "; ". A buffer has a * after it. */
static inline const char *names_of(const shoal_module *m)
{
    static char text[4096];
    size_t n = 0;
    text[0] = '\0';
    for (shoal_named it = {0}; shoal_module_next(m, &it) == SHOAL_OK;) {
        sh_text shape;
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s %s%s", n > 0 ? "; " : "", it.name,
                              sh_shape_text(&shape, it.tensor->ndim, it.tensor->shape), it.is_buffer ? "*" : "");
    }
    return text;
}

static inline const char *text_of(const shoal_module *m)
{
    static char text[4096];
    size_t length = shoal_module_format(m, text, sizeof text);
    ck_assert_uint_eq(length, strlen(text));
    return text;
}

#endif
