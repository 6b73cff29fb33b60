/* Subsets: some samples of a data set, with a transform. The splits are made of subsets. */
#include "data/dataset.h"

#include "base/error.h"
#include "device/device.h"
#include "kernels/random.h"
#include "tensor/tensor.h"

#include <shoal/share.h>

#include <stdlib.h>
#include <string.h>

typedef struct subset {
    shoal_dataset *parent;
    shoal_tensor *numbers; /* i64 [length]: samples of the parent */
    shoal_transform transform;
    void *context;
} subset;

static const int64_t *numbers_of(const subset *s)
{
    return shoal_tensor_data(s->numbers);
}

static shoal_err subset_fetch(void *state, const int64_t *numbers, int64_t count, shoal_tensor *x, shoal_tensor *y)
{
    const subset *s = state;
    size_t bytes = (size_t)count * sizeof(int64_t);
    int64_t *own = sh_tensor_check(s->numbers) == SHOAL_OK ? sh_cpu_cache_alloc(bytes) : NULL;
    if (own == NULL) {
        return shoal_last_error();
    }
    for (int64_t i = 0; i < count; i++) {
        own[i] = numbers_of(s)[numbers[i]];
    }
    shoal_err err = sh_dataset_fetch(s->parent, own, count, x, y);
    sh_cpu_cache_free(own, bytes);
    uint64_t mark = sh_callback_mark();
    SH_TRY(err);
    return s->transform != NULL
               ? sh_callback_err(mark, s->transform(x, s->context), s->parent->type.name, "the transform of a subset")
               : SHOAL_OK;
}

static void subset_destroy(void *state)
{
    subset *s = state;
    if (s != NULL) {
        shoal_dataset_release(s->parent);
        shoal_tensor_release(s->numbers);
        free(s);
    }
}

static shoal_err subset_labels(void *state, int64_t *out)
{
    const subset *s = state;
    if (sh_tensor_check(s->numbers) != SHOAL_OK) {
        return shoal_last_error();
    }
    int64_t *all = malloc((size_t)(s->parent->type.length + 1) * sizeof *all);
    if (all == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %lld labels", (long long)s->parent->type.length);
    }
    shoal_err err = sh_dataset_labels(s->parent, all);
    for (int64_t i = 0; err == SHOAL_OK && i < shoal_tensor_count(s->numbers); i++) {
        out[i] = all[numbers_of(s)[i]];
    }
    free(all);
    return err;
}

static shoal_value *subset_pack(void *state)
{
    const subset *s = state;
    if (s->context != NULL) {
        (void)sh_fail(
            SHOAL_EINVAL,
            "a subset whose transform has a context cannot be sent to another process: the pointer is invalid there");
        return NULL;
    }
    return shoal_map("parent", shoal_value_dataset(s->parent), "numbers", shoal_value_tensor(s->numbers), "transform",
                     sh_dataset_function((sh_any_function)s->transform));
}

static shoal_err subset_open(const shoal_value *packed, void **out_state)
{
    sh_any_function transform;
    subset *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for a data set");
    }
    shoal_err err = sh_dataset_function_of(shoal_value_find(packed, "transform"), &transform);
    if (err == SHOAL_OK) {
        s->transform = (shoal_transform)transform;
        s->numbers = shoal_tensor_retain(shoal_arg_tensor(packed, "numbers"));
        s->parent = s->numbers != NULL ? shoal_dataset_retain(shoal_arg_dataset(packed, "parent")) : NULL;
        err = s->parent != NULL ? sh_dataset_check(s->parent, numbers_of(s), shoal_tensor_count(s->numbers))
                                : shoal_last_error();
    }
    if (err != SHOAL_OK) {
        subset_destroy(s);
        return err;
    }
    *out_state = s;
    return SHOAL_OK;
}

/* Follows subsets without a transform down to the data set behind them and translates the numbers. So chains stay
 * short. */
static shoal_dataset *resolve_subsets(shoal_dataset *set, int64_t *numbers, int64_t count)
{
    while (set->type.fetch == subset_fetch && ((subset *)set->state)->transform == NULL) {
        const subset *s = set->state;
        for (int64_t i = 0; i < count; i++) {
            numbers[i] = numbers_of(s)[numbers[i]];
        }
        set = s->parent;
    }
    return set;
}

shoal_dataset *shoal_subset_with(shoal_dataset *set, const int64_t *numbers, int64_t count, shoal_transform transform,
                                 void *context)
{
    SH_NEED_OR_NULL(set);
    if (count > 0 && !numbers) {
        return sh_not_given(__func__, "numbers");
    }
    if (set == NULL || sh_dataset_check(set, numbers, count) != SHOAL_OK) {
        if (set == NULL) {
            (void)sh_fail(SHOAL_EINVAL, "a subset of a data set that is NULL");
        }
        return NULL;
    }
    subset *s = calloc(1, sizeof *s);
    shoal_tensor *own = s != NULL ? shoal_from_data(SHOAL_I64, numbers, SHOAL_SHAPE(count)) : NULL;
    if (own == NULL) {
        (void)(s == NULL && sh_fail(SHOAL_ENOMEM, "no memory for a data set") != SHOAL_OK);
        free(s);
        return NULL;
    }
    *s = (subset){.numbers = own, .transform = transform, .context = context};
    s->parent = shoal_dataset_retain(resolve_subsets(set, shoal_tensor_data(own), count));
    shoal_dataset_type type = s->parent->type;
    type.length = count;
    type.fetch = subset_fetch;
    type.destroy = subset_destroy;
    type.pack = subset_pack;
    type.open = subset_open;
    shoal_dataset *made = shoal_dataset_create(&type, s);
    if (made != NULL) {
        made->labels = subset_labels;
    } else {
        subset_destroy(s);
    }
    return made;
}

shoal_dataset *shoal_subset(shoal_dataset *set, const int64_t *numbers, int64_t count)
{
    SH_NEED_OR_NULL(set);
    if (count > 0 && !numbers) {
        return sh_not_given(__func__, "numbers");
    }
    return shoal_subset_with(set, numbers, count, NULL, NULL);
}

/* ---- splits ---- */

/* Returns the numbers of all samples, in order. The caller calls free() on the result. Returns NULL and sets the error
 * if it fails. */
static int64_t *all_numbers(const shoal_dataset *set, int64_t parts)
{
    int64_t length = shoal_dataset_length(set);
    if (set == NULL || parts < 1 || parts > length) {
        (void)sh_fail(SHOAL_EINVAL, "%lld samples cannot be split into %lld parts", (long long)length,
                      (long long)parts);
        return NULL;
    }
    int64_t *numbers = malloc((size_t)length * sizeof *numbers);
    if (numbers == NULL) {
        (void)sh_fail(SHOAL_ENOMEM, "no memory to split %lld samples", (long long)length);
        return NULL;
    }
    for (int64_t i = 0; i < length; i++) {
        numbers[i] = i;
    }
    return numbers;
}

/* Makes n subsets of the numbers; part i ends at ends[i]. */
static shoal_err cut(shoal_dataset *set, const int64_t *numbers, int64_t n, const int64_t *ends, shoal_dataset **out)
{
    shoal_dataset **made = calloc((size_t)n, sizeof(shoal_dataset *));
    shoal_err err = made != NULL ? SHOAL_OK : sh_fail(SHOAL_ENOMEM, "no memory for %lld data sets", (long long)n);
    for (int64_t i = 0, at = 0; err == SHOAL_OK && i < n; at = ends[i++]) {
        made[i] = shoal_subset(set, numbers + at, ends[i] - at);
        err = made[i] != NULL ? SHOAL_OK : shoal_last_error();
    }
    for (int64_t i = 0; err != SHOAL_OK && made != NULL && i < n; i++) {
        shoal_dataset_release(made[i]);
    }
    if (err == SHOAL_OK) {
        memcpy(out, made, (size_t)n * sizeof(shoal_dataset *));
    }
    free(made);
    return err;
}

/* Returns where n parts end. The remainder goes to the last part, or, with spread, to the first parts, one sample each.
 * Returns NULL and sets the error if it fails. */
static int64_t *make_ends(int64_t length, int64_t n, bool spread)
{
    int64_t *ends = malloc((size_t)n * sizeof *ends);
    if (ends == NULL) {
        (void)sh_fail(SHOAL_ENOMEM, "no memory for %lld parts", (long long)n);
        return NULL;
    }
    for (int64_t i = 0, at = 0; i < n; i++) {
        at += length / n + (spread && i < length % n);
        ends[i] = at;
    }
    ends[n - 1] = length;
    return ends;
}

shoal_err shoal_split_shard(shoal_dataset *set, int64_t n, shoal_dataset **out)
{
    SH_NEED(set);
    SH_NEED(out);
    int64_t *numbers = all_numbers(set, n);
    int64_t *ends = numbers != NULL ? make_ends(set->type.length, n, false) : NULL;
    shoal_err err = ends != NULL ? cut(set, numbers, n, ends, out) : shoal_last_error();
    free(ends);
    free(numbers);
    return err;
}

shoal_err sh_split_iid(const shoal_dataset *set, int64_t n, uint64_t seed, sh_split *out_split)
{
    int64_t *numbers = all_numbers(set, n);
    int64_t *ends = numbers != NULL ? make_ends(set->type.length, n, true) : NULL;
    if (ends == NULL) {
        free(numbers);
        return shoal_last_error();
    }
    sh_random_key key = {.seed = seed, .stream = sh_stream(SH_STREAM_SPLIT, 0)};
    sh_random_permutation(key, numbers, set->type.length);
    *out_split = (sh_split){numbers, ends};
    return SHOAL_OK;
}

void sh_split_fini(sh_split *split)
{
    free(split->numbers);
    free(split->ends);
    *split = (sh_split){NULL, NULL};
}

shoal_err shoal_split_iid(shoal_dataset *set, int64_t n, uint64_t seed, shoal_dataset **out)
{
    SH_NEED(set);
    SH_NEED(out);
    sh_split split = {NULL, NULL};
    shoal_err err = sh_split_iid(set, n, seed, &split);
    if (err == SHOAL_OK) {
        err = cut(set, split.numbers, n, split.ends, out);
    }
    sh_split_fini(&split);
    return err;
}

typedef struct labelled {
    int64_t label, number;
} labelled;

static int compare_labels(const void *left, const void *right)
{
    const labelled *a = left, *b = right;
    return a->label != b->label ? (a->label < b->label ? -1 : 1) : (a->number > b->number) - (a->number < b->number);
}

/* Sorts the samples by label, then by number. */
static shoal_err sort_by_label(shoal_dataset *set, int64_t *numbers)
{
    int64_t length = set->type.length;
    labelled *pairs = malloc((size_t)length * sizeof *pairs);
    shoal_err err = pairs != NULL ? sh_dataset_labels(set, numbers)
                                  : sh_fail(SHOAL_ENOMEM, "no memory to sort %lld labels", (long long)length);
    if (err == SHOAL_OK) {
        for (int64_t i = 0; i < length; i++) {
            pairs[i] = (labelled){numbers[i], i};
        }
        qsort(pairs, (size_t)length, sizeof *pairs, compare_labels);
        for (int64_t i = 0; i < length; i++) {
            numbers[i] = pairs[i].number;
        }
    }
    free(pairs);
    return err;
}

/* Copies the shards of the sorted numbers to dealt in the order drawn, and sets where each part of `each` shards
 * ends. */
static void gather_shards(const int64_t *sorted, const int64_t *shard_ends, const int64_t *drawn, int64_t shards,
                          int64_t each, int64_t *dealt, int64_t *ends)
{
    int64_t at = 0;
    for (int64_t i = 0; i < shards; i++) {
        int64_t begin = drawn[i] > 0 ? shard_ends[drawn[i] - 1] : 0, count = shard_ends[drawn[i]] - begin;
        memcpy(dealt + at, sorted + begin, (size_t)count * sizeof *dealt);
        at += count;
        ends[i / each] = at;
    }
}

shoal_err sh_split_label(shoal_dataset *set, int64_t n, int64_t shards_each, uint64_t seed, sh_split *out_split)
{
    int64_t shards;
    if (n < 1 || shards_each < 1 || __builtin_mul_overflow(n, shards_each, &shards)) {
        return sh_fail(SHOAL_EINVAL, "cannot make %lld parts of %lld shards each", (long long)n,
                       (long long)shards_each);
    }
    int64_t *sorted = all_numbers(set, shards);
    int64_t *shard_ends = sorted != NULL ? make_ends(set->type.length, shards, false) : NULL;
    int64_t *dealt = shard_ends != NULL ? all_numbers(set, shards) : NULL;
    int64_t *drawn = dealt != NULL ? make_ends(shards, shards, false) : NULL;
    int64_t *ends = drawn != NULL ? make_ends(n, n, false) : NULL;
    shoal_err err = ends != NULL ? sort_by_label(set, sorted) : shoal_last_error();
    if (err == SHOAL_OK) {
        sh_random_key key = {.seed = seed, .stream = sh_stream(SH_STREAM_SPLIT, 1)};
        sh_random_permutation(key, drawn, shards);
        gather_shards(sorted, shard_ends, drawn, shards, shards_each, dealt, ends);
        *out_split = (sh_split){dealt, ends};
    } else {
        free(ends);
        free(dealt);
    }
    free(drawn);
    free(shard_ends);
    free(sorted);
    return err;
}

shoal_err shoal_split_label(shoal_dataset *set, int64_t n, int64_t shards_each, uint64_t seed, shoal_dataset **out)
{
    SH_NEED(set);
    SH_NEED(out);
    sh_split split = {NULL, NULL};
    shoal_err err = sh_split_label(set, n, shards_each, seed, &split);
    if (err == SHOAL_OK) {
        err = cut(set, split.numbers, n, split.ends, out);
    }
    sh_split_fini(&split);
    return err;
}
