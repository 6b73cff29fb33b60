/* Using modules: forward, modes, counting, zeroing, copying, and text. */
#include "nn/module.h"

#include "base/error.h"
#include "base/writer.h"

#include <stdio.h>
#include <string.h>

shoal_tensor *shoal_module_forward(shoal_module *module, shoal_tensor *x)
{
    SH_NEED_OR_NULL(module);
    SH_NEED_TENSOR_OR_NULL(x);
    if (!module || !x) {
        if (!module && x) {
            (void)sh_fail(SHOAL_EINVAL, "shoal_module_forward: the module is NULL");
        }
        return NULL;
    }
    size_t mark = shoal_scope_mark();
    uint64_t told = sh_callback_mark();
    shoal_tensor *y = module->type->forward(module, x);
    if (!y) {
        (void)sh_callback_null(told, module->type->name, "forward");
    }
    sh_scope_release_but(mark, y);
    return y;
}

void shoal_module_train(shoal_module *module, bool training)
{
    if (module) {
        module->training = training;
        for (size_t i = 0; i < module->child_count; i++) {
            shoal_module_train(module->children[i].module, training);
        }
    }
}

bool shoal_module_training(const shoal_module *module)
{
    return module && module->training;
}

int64_t shoal_module_count(const shoal_module *module)
{
    int64_t count = 0;
    size_t at = 0;
    for (const shoal_tensor *t; (t = sh_module_next_parameter(module, &at)) != NULL;) {
        count += t->count;
    }
    return count;
}

void sh_parameter_zero_grad(shoal_tensor *parameter)
{
    shoal_tensor *grad = parameter->grad;
    if (!grad || parameter->grad_is_zero) {
        return;
    }
    /* Only the owner's backward and shoal_tensor_grad can read it, and both check the mark. */
    bool alone = sh_load_relaxed(&grad->refs) == 1 && sh_load_relaxed(&grad->storage->refs) == 1 &&
                 !grad->storage->owner_block && !grad->storage->foreign;
    if (alone) {
        parameter->grad_is_zero = true;
    } else {
        (void)sh_tensor_fill(grad, 0);
        sh_tensor_touch(grad);
    }
}

void shoal_module_zero_grad(shoal_module *module)
{
    bool is_buffer;
    const sh_module_tensor *e;
    for (size_t i = 0; (e = sh_module_entry(module, i, &is_buffer)) != NULL; i++) {
        if (!is_buffer) {
            sh_parameter_zero_grad(e->tensor);
        }
    }
}

/* ---- copying ---- */

static shoal_err check_same(const shoal_named *to, const shoal_named *from)
{
    if (strcmp(to->name, from->name) != 0) {
        return sh_fail(SHOAL_EINVAL, "shoal_module_copy: '%s' in the target, '%s' in the source", to->name, from->name);
    }
    const shoal_tensor *a = to->tensor, *b = from->tensor;
    if (a->ndim != b->ndim || memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof a->shape[0]) != 0) {
        sh_text own, given;
        return sh_fail(SHOAL_EINVAL, "shoal_module_copy: '%s' is %s in the target and %s in the source", to->name,
                       sh_tensor_text(&own, a), sh_tensor_text(&given, b));
    }
    return SHOAL_OK;
}

static shoal_err check_same_names(const shoal_module *to, const shoal_module *from)
{
    shoal_named a = {0}, b = {0};
    for (;;) {
        bool more_a = shoal_module_next(to, &a) == SHOAL_OK, more_b = shoal_module_next(from, &b) == SHOAL_OK;
        if (!more_a && !more_b) {
            break;
        }
        SH_TRY(more_a && more_b ? check_same(&a, &b)
                                : sh_fail(SHOAL_EINVAL, "shoal_module_copy: '%s' exists only in the %s",
                                          more_a ? a.name : b.name, more_a ? "target" : "source"));
    }
    return SHOAL_OK;
}

shoal_err shoal_module_copy(shoal_module *to, const shoal_module *from)
{
    SH_NEED(to);
    SH_NEED(from);
    if (!to || !from) {
        return sh_fail(SHOAL_EINVAL, "shoal_module_copy: the module to copy %s is NULL", to ? "from" : "to");
    }
    SH_TRY(check_same_names(to, from));
    bool is_buffer;
    for (size_t i = 0; i < to->total; i++) {
        shoal_tensor *t = sh_module_entry(to, i, &is_buffer)->tensor;
        shoal_err err = sh_tensor_copy_data(t, sh_module_entry(from, i, &is_buffer)->tensor);
        sh_tensor_touch(t);
        SH_TRY(err);
    }
    return SHOAL_OK;
}

/* ---- devices ---- */

/* Moves whole storages, so parameters that share one still do, and an optimiser's pointers stay right. */
shoal_err sh_module_to(shoal_module *module, const sh_device *device)
{
    SH_TRY(SHOAL_OK);
    bool is_buffer;
    for (size_t i = 0; i < module->total; i++) {
        shoal_tensor *t = sh_module_entry(module, i, &is_buffer)->tensor;
        SH_TRY(sh_storage_move(t->storage, device));
        if (t->grad) {
            SH_TRY(sh_storage_move(t->grad->storage, device));
        }
    }
    return SHOAL_OK;
}

shoal_err shoal_module_to(shoal_module *module, shoal_device device)
{
    SH_NEED(module);
    const sh_device *to = sh_device_get(device);
    return to ? sh_module_to(module, to) : shoal_last_error();
}

/* ---- text ---- */

static void put_indent(sh_writer *w, int depth)
{
    for (int i = 0; i < depth; i++) {
        sh_writer_put(w, "  ");
    }
}

/* Writes what is between the parentheses, except the children. */
static void describe(const shoal_module *m, char *text, size_t capacity)
{
    text[0] = '\0';
    if (m->type->describe) {
        m->type->describe(m, text, capacity);
        return;
    }
    int last = SHOAL_MODULE_SETTINGS;
    while (last > 0 && m->settings[last - 1] == 0) {
        last--;
    }
    size_t length = 0;
    for (int i = 0; i < last && length < capacity; i++) {
        length += (size_t)snprintf(text + length, capacity - length, "%s%.12g", i > 0 ? ", " : "", m->settings[i]);
    }
}

static void put_module(sh_writer *w, const shoal_module *m, int depth)
{
    char text[512];
    describe(m, text, sizeof text);
    sh_writer_put(w, m->type->name);
    sh_writer_put(w, "(");
    if (m->child_count > 0 && text[0]) {
        sh_writer_put(w, "\n");
        put_indent(w, depth + 1);
    }
    sh_writer_put(w, text);
    for (size_t i = 0; i < m->child_count; i++) {
        sh_writer_put(w, "\n");
        put_indent(w, depth + 1);
        sh_writer_put(w, "(");
        sh_writer_put(w, m->children[i].name);
        sh_writer_put(w, "): ");
        put_module(w, m->children[i].module, depth + 1);
    }
    if (m->child_count > 0) {
        sh_writer_put(w, "\n");
        put_indent(w, depth);
    }
    sh_writer_put(w, ")");
}

size_t shoal_module_format(const shoal_module *module, char *buffer, size_t capacity)
{
    sh_writer w = {.buffer = buffer, .capacity = buffer ? capacity : 0};
    if (module) {
        put_module(&w, module, 0);
    } else {
        sh_writer_put(&w, "NULL");
    }
    return sh_writer_end(&w);
}
