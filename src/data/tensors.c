/* Sets of named tensors and named texts. */
#include "data/tensors.h"

#include "base/error.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

/* FNV-1a. */
static uint64_t hash_of(const char *name)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *name != 0; name++) {
        h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    }
    return h ^ h >> 32;
}

static sh_named *names_find(const sh_names *names, const char *name)
{
    uint64_t hash = hash_of(name);
    sh_named *n = names->bucket_count > 0 ? names->buckets[hash & (names->bucket_count - 1)] : NULL;
    while (n != NULL && (n->hash != hash || strcmp(n->name, name) != 0)) {
        n = n->next;
    }
    return n;
}

static void names_link(sh_names *names, sh_named *n)
{
    sh_named **bucket = &names->buckets[n->hash & (names->bucket_count - 1)];
    n->next = *bucket;
    *bucket = n;
}

static bool names_grow(sh_names *names)
{
    if (names->count < names->room) {
        return true;
    }
    size_t room = names->room > 0 ? names->room * 2 : 16;
    sh_named **items = realloc(names->items, room * sizeof(sh_named *));
    if (items == NULL) {
        return false;
    }
    names->items = items;
    sh_named **buckets = calloc(room, sizeof(sh_named *));
    if (buckets == NULL) {
        return false;
    }
    free(names->buckets);
    names->buckets = buckets;
    names->bucket_count = names->room = room;
    for (size_t i = 0; i < names->count; i++) {
        names_link(names, items[i]);
    }
    return true;
}

/* Adds an item with that name. Returns NULL if there is no memory. */
static sh_named *names_add(sh_names *names, const char *name)
{
    sh_named *n = names_grow(names) ? calloc(1, sizeof *n) : NULL;
    if (n == NULL || (n->name = strdup(name)) == NULL) {
        free(n);
        return NULL;
    }
    n->hash = hash_of(name);
    names_link(names, n);
    names->items[names->count++] = n;
    return n;
}

static void names_destroy(sh_names *names)
{
    for (size_t i = 0; i < names->count; i++) {
        shoal_tensor_release(names->items[i]->tensor);
        free(names->items[i]->text);
        free(names->items[i]->name);
        free(names->items[i]);
    }
    free(names->items);
    free(names->buckets);
}

shoal_tensors *shoal_tensors_create(void)
{
    shoal_tensors *set = calloc(1, sizeof *set);
    if (set == NULL) {
        (void)sh_fail(SHOAL_ENOMEM, "no memory for a set of tensors");
    }
    return set;
}

void shoal_tensors_destroy(shoal_tensors *set)
{
    if (set != NULL) {
        names_destroy(&set->tensors);
        names_destroy(&set->texts);
        free(set);
    }
}

size_t shoal_tensors_count(const shoal_tensors *set)
{
    return set != NULL ? set->tensors.count : 0;
}

const char *shoal_tensors_name(const shoal_tensors *set, size_t i)
{
    return i < shoal_tensors_count(set) ? set->tensors.items[i]->name : NULL;
}

shoal_tensor *shoal_tensors_at(const shoal_tensors *set, size_t i)
{
    SH_NEED_OR_NULL(set);
    return i < shoal_tensors_count(set) ? set->tensors.items[i]->tensor : NULL;
}

shoal_tensor *shoal_tensors_find(const shoal_tensors *set, const char *name)
{
    SH_NEED_OR_NULL(set);
    SH_GIVEN_OR_NULL(name);
    const sh_named *n = set != NULL && name != NULL ? names_find(&set->tensors, name) : NULL;
    if (n == NULL) {
        (void)sh_fail(SHOAL_ENOENT, "there is no tensor '%s'", name != NULL ? name : "");
    }
    return n != NULL ? n->tensor : NULL;
}

shoal_err shoal_tensors_add(shoal_tensors *set, const char *name, shoal_tensor *t)
{
    SH_NEED(set);
    SH_NEED(name);
    SH_NEED_TENSOR(t);
    if (set == NULL || name == NULL || t == NULL) {
        return sh_fail(SHOAL_EINVAL, "shoal_tensors_add: set, name or tensor is NULL");
    }
    if (names_find(&set->tensors, name) != NULL) {
        return sh_fail(SHOAL_EINVAL, "the set already has a tensor '%s'", name);
    }
    sh_named *n = names_add(&set->tensors, name);
    if (n == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for the tensor '%s' of a set", name);
    }
    n->tensor = shoal_tensor_retain(t);
    return SHOAL_OK;
}

shoal_err shoal_tensors_set_text(shoal_tensors *set, const char *name, const char *text)
{
    SH_NEED(set);
    SH_NEED(name);
    SH_NEED(text);
    if (set == NULL || name == NULL || text == NULL) {
        return sh_fail(SHOAL_EINVAL, "shoal_tensors_set_text: set, name or text is NULL");
    }
    char *copy = strdup(text);
    sh_named *n = copy != NULL ? names_find(&set->texts, name) : NULL;
    if (copy != NULL && n == NULL) {
        n = names_add(&set->texts, name);
    }
    if (n == NULL) {
        free(copy);
        return sh_fail(SHOAL_ENOMEM, "no memory for the text '%s' of a set", name);
    }
    free(n->text);
    n->text = copy;
    return SHOAL_OK;
}

const char *shoal_tensors_text(const shoal_tensors *set, const char *name)
{
    if (!set) {
        return NULL;
    }
    if (!name) {
        return NULL;
    }
    const sh_named *n = set != NULL && name != NULL ? names_find(&set->texts, name) : NULL;
    if (n == NULL) {
        (void)sh_fail(SHOAL_ENOENT, "there is no text '%s'", name != NULL ? name : "");
    }
    return n != NULL ? n->text : NULL;
}

size_t shoal_tensors_text_count(const shoal_tensors *set)
{
    return set != NULL ? set->texts.count : 0;
}

const char *shoal_tensors_text_name(const shoal_tensors *set, size_t i)
{
    return i < shoal_tensors_text_count(set) ? set->texts.items[i]->name : NULL;
}

shoal_err sh_write_elements(sh_atomic_file *file, shoal_tensor *t)
{
    size_t size = (size_t)shoal_tensor_count(t) * shoal_dtype_size(shoal_tensor_dtype(t));
    if (size == 0) {
        return SHOAL_OK;
    }
    if (shoal_tensor_is_contiguous(t) && shoal_tensor_data(t) != NULL) {
        return sh_atomic_file_write(file, shoal_tensor_data(t), size);
    }
    void *copy = malloc(size);
    shoal_err err = copy != NULL ? shoal_tensor_read(t, copy, size)
                                 : sh_fail(SHOAL_ENOMEM, "%s: no memory for %zu bytes to write", file->path, size);
    if (err == SHOAL_OK) {
        err = sh_atomic_file_write(file, copy, size);
    }
    free(copy);
    return err;
}
