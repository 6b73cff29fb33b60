/* Modules: creation, naming, iteration. */
#include "nn/module.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* ---- creation ---- */

static shoal_err check_type(const shoal_module_type *type, size_t count)
{
    if (!type->name || !type->forward) {
        return sh_fail(SHOAL_EINVAL, "a module type needs a name and a forward function");
    }
    if (count > SHOAL_MODULE_SETTINGS) {
        return sh_fail(SHOAL_EINVAL, "%s: %zu settings, at most %d are possible", type->name, count,
                       SHOAL_MODULE_SETTINGS);
    }
    return SHOAL_OK;
}

shoal_module *shoal_module_create(const shoal_module_type *type, size_t count, const double *settings)
{
    SH_GIVEN_OR_NULL(type);
    if (count > 0) {
        SH_GIVEN_OR_NULL(settings);
    }
    if (check_type(type, count) != SHOAL_OK) {
        return NULL;
    }
    shoal_module *m = calloc(1, sizeof *m + type->state_size);
    if (!m) {
        (void)sh_fail(SHOAL_ENOMEM, "no memory for a module of kind %s", type->name);
        return NULL;
    }
    m->type = type;
    m->training = true;
    for (size_t i = 0; i < count; i++) {
        m->settings[i] = settings[i];
    }
    uint64_t mark = sh_callback_mark();
    if (type->init && sh_callback_err(mark, type->init(m, m->settings), type->name, "init") != SHOAL_OK) {
        shoal_module_destroy(m);
        return NULL;
    }
    return m;
}

void shoal_module_destroy(shoal_module *module)
{
    if (!module || module->parent) {
        return;
    }
    if (module->type->fini) {
        module->type->fini(module);
    }
    for (size_t i = 0; i < module->child_count; i++) {
        module->children[i].module->parent = NULL;
        shoal_module_destroy(module->children[i].module);
        free(module->children[i].name);
    }
    for (size_t i = 0; i < module->entry_count; i++) {
        shoal_tensor_release(module->entries[i].tensor);
        free(module->entries[i].name);
    }
    free(module->children);
    free(module->entries);
    free(module);
}

void *shoal_module_state(const shoal_module *module)
{
    return module ? (void *)(uintptr_t)module->state : NULL;
}

const char *shoal_module_type_name(const shoal_module *module)
{
    return module ? module->type->name : NULL;
}

const double *shoal_module_settings(const shoal_module *module)
{
    return module ? module->settings : NULL;
}

/* ---- adding ---- */

static size_t depth_of_names(const shoal_module *module)
{
    size_t length = 0;
    for (const shoal_module *m = module; m->parent; m = m->parent) {
        length += strlen(sh_module_name_in_parent(m)) + 1;
    }
    return length;
}

static bool has_name(const shoal_module *m, const char *name)
{
    for (size_t i = 0; i < m->entry_count; i++) {
        if (strcmp(m->entries[i].name, name) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < m->child_count; i++) {
        if (strcmp(m->children[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Checks a new name. below is how much longer than name the longest dotted name under it is. */
static shoal_err check_name(const shoal_module *m, const char *name, size_t below)
{
    if (!name || name[0] == '\0' || strchr(name, '.')) {
        return sh_fail(SHOAL_EINVAL, "%s: '%s' cannot be a name: it is empty or contains a dot", m->type->name,
                       name ? name : "");
    }
    size_t length = depth_of_names(m) + strlen(name) + below;
    if (length > SHOAL_MODULE_NAME) {
        return sh_fail(SHOAL_ELIMIT, "%s: with '%.40s' a dotted name would have %zu bytes; the limit is %d",
                       m->type->name, name, length, SHOAL_MODULE_NAME);
    }
    return has_name(m, name) ? sh_fail(SHOAL_EINVAL, "%s: '%s' exists already", m->type->name, name) : SHOAL_OK;
}

/* Updates the counts of m and its parents after entries were added below m.
 * length is the longest new name as seen from m. */
static void count_up(shoal_module *m, size_t entries, size_t length)
{
    for (; m; m = m->parent) {
        m->total += entries;
        m->longest = m->longest > length ? m->longest : length;
        length += m->parent ? strlen(sh_module_name_in_parent(m)) + 1 : 0;
    }
}

/* Makes room for one more member in an array of count members.
 * Returns NULL and leaves the array unchanged on failure. */
static void *grown(void *array, size_t count, size_t size)
{
    void *fresh = realloc(array, (count + 1) * size);
    if (!fresh) {
        (void)sh_fail(SHOAL_ENOMEM, "no memory for %zu names in a module", count + 1);
    }
    return fresh;
}

static char *copy_name(const char *name)
{
    char *copy = strdup(name);
    if (!copy) {
        (void)sh_fail(SHOAL_ENOMEM, "no memory for a name");
    }
    return copy;
}

static shoal_err insert_entry(shoal_module *m, size_t place, const char *name, shoal_tensor *t)
{
    char *copy = copy_name(name);
    sh_module_tensor *fresh = copy ? grown(m->entries, m->entry_count, sizeof *fresh) : NULL;
    if (!fresh) {
        free(copy);
        return shoal_last_error();
    }
    m->entries = fresh;
    memmove(&fresh[place + 1], &fresh[place], (m->entry_count - place) * sizeof *fresh);
    fresh[place] = (sh_module_tensor){.name = copy, .tensor = shoal_tensor_retain(t)};
    m->entry_count++;
    count_up(m, 1, strlen(name));
    return SHOAL_OK;
}

static shoal_err check_tensor(const shoal_module *m, const char *name, const shoal_tensor *t, bool is_buffer)
{
    if (t->node) {
        return sh_fail(SHOAL_EINVAL, "%s: '%s' is the result of an op; use shoal_detach", m->type->name, name);
    }
    if (!is_buffer && !t->contiguous) {
        return sh_fail(SHOAL_EINVAL, "%s: the parameter '%s' is not contiguous", m->type->name, name);
    }
    return SHOAL_OK;
}

static shoal_err add_entry(shoal_module *m, const char *name, shoal_tensor *t, bool is_buffer)
{
    if (!m || !name || !t) {
        return sh_null_error(is_buffer ? "shoal_module_add_buffer" : "shoal_module_add_parameter", !m      ? "module"
                                                                                                   : !name ? "name"
                                                                                                           : "t");
    }
    if (sh_tensor_is_released(t)) {
        return sh_released_error(is_buffer ? "shoal_module_add_buffer" : "shoal_module_add_parameter");
    }
    SH_TRY(check_name(m, name, 0));
    SH_TRY(check_tensor(m, name, t, is_buffer));
    SH_TRY(insert_entry(m, is_buffer ? m->entry_count : m->parameters, name, t));
    if (!is_buffer) {
        m->parameters++;
    }
    return SHOAL_OK;
}

shoal_err shoal_module_add_parameter(shoal_module *module, const char *name, shoal_tensor *t)
{
    shoal_err err = add_entry(module, name, t, false); /* consumes t in every case, so it checks for NULL itself */
    if (err == SHOAL_OK && shoal_dtype_is_float(t->dtype)) {
        t->requires_grad = true;
    }
    shoal_tensor_release(t);
    return err;
}

shoal_err shoal_module_add_buffer(shoal_module *module, const char *name, shoal_tensor *t)
{
    shoal_err err = add_entry(module, name, t, true);
    shoal_tensor_release(t);
    return err;
}

static bool is_ancestor(const shoal_module *module, const shoal_module *candidate)
{
    while (module && module != candidate) {
        module = module->parent;
    }
    return module != NULL;
}

static shoal_err append_child(shoal_module *m, const char *name, shoal_module *child)
{
    char *copy = copy_name(name);
    sh_module_child *fresh = copy ? grown(m->children, m->child_count, sizeof *fresh) : NULL;
    if (!fresh) {
        free(copy);
        return shoal_last_error();
    }
    m->children = fresh;
    fresh[m->child_count++] = (sh_module_child){.name = copy, .module = child};
    child->parent = m;
    count_up(m, child->total, strlen(name) + (child->longest > 0 ? child->longest + 1 : 0));
    return SHOAL_OK;
}

shoal_err shoal_module_add_child(shoal_module *module, const char *name, shoal_module *child)
{
    if (!child) {
        return sh_null_error(__func__, "child");
    }
    bool stays = child->parent || is_ancestor(module, child); /* the child keeps its owner, also on failure */
    shoal_err err = !module || !name ? sh_null_error(__func__, module ? "name" : "module")
                    : stays          ? sh_fail(SHOAL_EINVAL, "the module for '%s', a %s, %s", name, child->type->name,
                                      child->parent ? "has a parent already" : "cannot be a child of itself")
                                     : check_name(module, name, child->longest > 0 ? child->longest + 1 : 0);
    if (err == SHOAL_OK) {
        err = append_child(module, name, child);
    }
    if (err != SHOAL_OK && !stays) {
        shoal_module_destroy(child);
    }
    return err;
}

shoal_err sh_module_add_parameter(shoal_module *module, const char *name, shoal_tensor *t)
{
    return t ? shoal_module_add_parameter(module, name, t) : shoal_last_error();
}

shoal_err sh_module_add_child(shoal_module *module, const char *name, shoal_module *child)
{
    return child ? shoal_module_add_child(module, name, child) : shoal_last_error();
}

/* ---- lookup ---- */

const char *sh_module_name_in_parent(const shoal_module *module)
{
    const shoal_module *parent = module->parent;
    for (size_t i = 0; parent && i < parent->child_count; i++) {
        if (parent->children[i].module == module) {
            return parent->children[i].name;
        }
    }
    return NULL;
}

/* Descends to entry i. If text is given, writes the names on the way, each followed by a dot. */
static const sh_module_tensor *descend(const shoal_module *m, size_t i, char *text, bool *out_is_buffer)
{
    while (i >= m->entry_count) {
        const sh_module_child *child = m->children;
        i -= m->entry_count;
        while (i >= child->module->total) {
            i -= child->module->total;
            child++;
        }
        if (text) {
            text = stpcpy(text, child->name);
            *text++ = '.';
        }
        m = child->module;
    }
    if (text) {
        strcpy(text, m->entries[i].name);
    }
    *out_is_buffer = i >= m->parameters;
    return &m->entries[i];
}

const sh_module_tensor *sh_module_entry(const shoal_module *module, size_t i, bool *out_is_buffer)
{
    return module && i < module->total ? descend(module, i, NULL, out_is_buffer) : NULL;
}

shoal_err shoal_module_next(const shoal_module *module, shoal_named *it)
{
    _Static_assert(sizeof it->private_.text > SHOAL_MODULE_NAME, "a dotted name fits");
    if (!module || !it) {
        return sh_null_error("shoal_module_next", module ? "it" : "module");
    }
    if (it->private_.at >= module->total) {
        return SHOAL_END;
    }
    const sh_module_tensor *e = descend(module, it->private_.at++, it->private_.text, &it->is_buffer);
    it->name = it->private_.text;
    it->tensor = e->tensor;
    return SHOAL_OK;
}

static bool is_earlier_parameter(const shoal_module *module, const shoal_tensor *t, size_t end)
{
    bool is_buffer;
    for (size_t i = 0; i < end; i++) {
        if (descend(module, i, NULL, &is_buffer)->tensor == t && !is_buffer) {
            return true;
        }
    }
    return false;
}

shoal_tensor *sh_module_next_parameter(const shoal_module *module, size_t *at)
{
    bool is_buffer;
    for (const sh_module_tensor *e; (e = sh_module_entry(module, *at, &is_buffer)) != NULL;) {
        size_t i = (*at)++;
        if (!is_buffer && !is_earlier_parameter(module, e->tensor, i)) {
            return e->tensor;
        }
    }
    return NULL;
}

/* Returns the child whose name is the first length bytes of name. */
static shoal_module *own_child(const shoal_module *m, const char *name, size_t length)
{
    for (size_t i = 0; i < m->child_count; i++) {
        if (strncmp(m->children[i].name, name, length) == 0 && m->children[i].name[length] == '\0') {
            return m->children[i].module;
        }
    }
    return NULL;
}

/* Follows all parts of the dotted name except the last, which it returns in *out_last. */
static shoal_module *follow(const shoal_module *module, const char *name, const char **out_last)
{
    const shoal_module *m = module;
    for (const char *dot; m && (dot = strchr(name, '.')) != NULL; name = dot + 1) {
        m = own_child(m, name, (size_t)(dot - name));
    }
    *out_last = name;
    return (shoal_module *)(uintptr_t)m;
}

static sh_module_tensor *find_entry(const shoal_module *module, const char *name)
{
    const char *last;
    shoal_module *m = follow(module, name, &last);
    for (size_t i = 0; m && i < m->entry_count; i++) {
        if (strcmp(m->entries[i].name, last) == 0) {
            return &m->entries[i];
        }
    }
    return NULL;
}

static shoal_err no_such(const shoal_module *module, const char *what, const char *name)
{
    return module && name ? sh_fail(SHOAL_ENOENT, "%s has no %s '%s'", module->type->name, what, name)
                          : sh_fail(SHOAL_EINVAL, "the %s is NULL", module ? "name" : "module");
}

shoal_tensor *shoal_module_get(const shoal_module *module, const char *name)
{
    SH_NEED_OR_NULL(module);
    SH_GIVEN_OR_NULL(name);
    const sh_module_tensor *e = module && name ? find_entry(module, name) : NULL;
    if (!e) {
        (void)no_such(module, "parameter or buffer", name);
    }
    return e ? e->tensor : NULL;
}

shoal_module *shoal_module_child(const shoal_module *module, const char *name)
{
    SH_NEED_OR_NULL(module);
    SH_GIVEN_OR_NULL(name);
    const char *last = name;
    shoal_module *m = module && name ? follow(module, name, &last) : NULL;
    shoal_module *child = m ? own_child(m, last, strlen(last)) : NULL;
    if (!child) {
        (void)no_such(module, "child", name);
    }
    return child;
}

shoal_tensor *shoal_module_parameter_at(const shoal_module *module, size_t i)
{
    SH_NEED_OR_NULL(module);
    return module && i < module->parameters ? module->entries[i].tensor : NULL;
}

shoal_module *shoal_module_child_at(const shoal_module *module, size_t i)
{
    SH_NEED_OR_NULL(module);
    return module && i < module->child_count ? module->children[i].module : NULL;
}

/* ---- replacement ---- */

static bool is_like(const shoal_tensor *a, const shoal_tensor *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof a->shape[0]) == 0;
}

static shoal_err replace(sh_module_tensor *e, const char *name, shoal_tensor *t)
{
    if (!is_like(e->tensor, t)) {
        sh_text own, given;
        return sh_fail(SHOAL_EINVAL, "'%s' is %s, not %s", name, sh_tensor_text(&own, e->tensor),
                       sh_tensor_text(&given, t));
    }
    (void)shoal_tensor_retain(t);
    shoal_tensor_release(e->tensor);
    e->tensor = t;
    return SHOAL_OK;
}

shoal_err sh_module_replace(shoal_module *module, const char *name, shoal_tensor *t)
{
    if (!t) {
        return shoal_last_error();
    }
    sh_module_tensor *e = module && name ? find_entry(module, name) : NULL;
    return e ? replace(e, name, t) : no_such(module, "parameter or buffer", name);
}

shoal_err sh_module_put(shoal_module *module, const char *name, bool is_buffer, shoal_tensor *t)
{
    if (!t) {
        return shoal_last_error();
    }
    sh_module_tensor *e = module && name ? find_entry(module, name) : NULL;
    if (e) {
        return replace(e, name, t);
    }
    const char *last;
    shoal_module *m = module && name ? follow(module, name, &last) : NULL;
    return m ? add_entry(m, last, t, is_buffer) : no_such(module, "module for", name);
}
