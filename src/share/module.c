/* Modules between processes, and state dicts.
 *
 * The bytes of a module's record are a value: {"tree": node, "names": [name, is_buffer, …]}, where a node is
 * [kind, training, [settings…], [child name, node, …]]. Tensor i of the record has name i. */
#include "share/module.h"

#include "base/error.h"
#include "ipc/value_codec.h"
#include "nn/module.h"

#include <stdlib.h>
#include <string.h>

shoal_err shoal_module_share(shoal_module *module)
{
    shoal_named it = {0};
    SH_NEED(module);
    while (shoal_module_next(module, &it) == SHOAL_OK) {
        SH_TRY(shoal_tensor_share(it.tensor));
    }
    return SHOAL_OK;
}

/* ---- describing ---- */

static shoal_value *node_of(const shoal_module *module)
{
    shoal_value *settings = shoal_value_list(), *children = shoal_value_list();
    for (int i = 0; i < SHOAL_MODULE_SETTINGS; i++) {
        settings = shoal_list_add(settings, shoal_value_float(module->settings[i]));
    }
    for (size_t i = 0; i < module->child_count; i++) {
        children = shoal_list_add(children, shoal_value_string(module->children[i].name));
        children = shoal_list_add(children, node_of(module->children[i].module));
    }
    return shoal_list(module->type->name, shoal_value_bool(module->training), settings, children);
}

/* Collects the descriptions of all tensors, borrowed from them, and their names. */
static shoal_err collect(shoal_module *module, shoal_block **objects, shoal_value **names)
{
    shoal_named it = {0};
    for (size_t n = 0; shoal_module_next(module, &it) == SHOAL_OK; n++) {
        SH_TRY(sh_share_describe_tensor(it.tensor, &objects[n]));
        *names = shoal_list_add(*names, shoal_value_string(it.name));
        *names = shoal_list_add(*names, shoal_value_bool(it.is_buffer));
        if (!*names) {
            return shoal_last_error();
        }
    }
    return SHOAL_OK;
}

static shoal_err write_record(const shoal_value *tree, shoal_block *const *objects, size_t count,
                              shoal_block **out_record)
{
    sh_encoding e;
    SH_TRY(sh_encoding_init(&e, tree));
    shoal_err err = sh_record_create(SH_KIND_MODULE, objects, count, e.bytes, e.size, out_record);
    sh_encoding_fini(&e);
    return err;
}

shoal_err sh_share_describe_module(shoal_module *module, shoal_block **out_record)
{
    shoal_block **objects = calloc(module->total + 1, sizeof(shoal_block *));
    shoal_value *names = shoal_value_list(), *tree = NULL;
    shoal_err err =
        objects && names ? collect(module, objects, &names) : sh_fail(SHOAL_ENOMEM, "no memory for a module");
    if (err == SHOAL_OK) {
        tree = shoal_map("tree", node_of(module), "names", names);
        names = NULL;
        err = tree ? write_record(tree, objects, module->total, out_record) : shoal_last_error();
    }
    shoal_value_destroy(names);
    shoal_value_destroy(tree);
    free(objects);
    return err;
}

/* ---- building a module from its record ---- */

/* A node that was read. Only the form of its contents is checked. */
typedef struct node {
    const char *type;
    bool training;
    double settings[SHOAL_MODULE_SETTINGS];
    const shoal_value *children;
} node;

static bool read_node(const shoal_value *value, node *out)
{
    if (shoal_value_type(value) != SHOAL_TYPE_LIST || shoal_value_count(value) != 4) {
        return false;
    }
    const shoal_value *settings = shoal_value_at(value, 2);
    *out = (node){.type = shoal_value_as_string(shoal_value_at(value, 0)), .children = shoal_value_at(value, 3)};
    if (!out->type || shoal_value_as_bool(shoal_value_at(value, 1), &out->training) != SHOAL_OK ||
        shoal_value_count(settings) != SHOAL_MODULE_SETTINGS || shoal_value_type(settings) != SHOAL_TYPE_LIST ||
        shoal_value_type(out->children) != SHOAL_TYPE_LIST || shoal_value_count(out->children) % 2 != 0) {
        return false;
    }
    for (size_t i = 0; i < SHOAL_MODULE_SETTINGS; i++) {
        if (shoal_value_as_float(shoal_value_at(settings, i), &out->settings[i]) != SHOAL_OK) {
            return false;
        }
    }
    return true;
}

static shoal_err corrupt(void)
{
    return sh_fail(SHOAL_ECORRUPT, "a record does not describe a module");
}

static shoal_err build_children(shoal_module *parent, const shoal_value *children)
{
    for (size_t i = 0; i < shoal_value_count(children); i += 2) {
        const char *name = shoal_value_as_string(shoal_value_at(children, i));
        node n;
        if (!name || !read_node(shoal_value_at(children, i + 1), &n)) {
            return corrupt();
        }
        shoal_module *child = sh_module_rebuild_child(parent, name, n.type, n.settings, n.training);
        SH_TRY(child ? build_children(child, n.children) : shoal_last_error());
    }
    return SHOAL_OK;
}

/* Returns tensor i of the record, which the caller owns. A tensor with two names is one tensor here too, with one
 * grad. */
static shoal_tensor *tensor_at(const shoal_module *module, const sh_record *record, const shoal_value *names, size_t i)
{
    uint64_t id = sh_ref_id(sh_load_acquire(&record->references[i]));
    for (size_t k = 0; k < i; k++) {
        if (sh_ref_id(sh_load_acquire(&record->references[k])) == id) {
            return shoal_tensor_retain(shoal_module_get(module, shoal_value_as_string(shoal_value_at(names, 2 * k))));
        }
    }
    return sh_share_tensor_at(record, i);
}

static shoal_err put_tensors(shoal_module *module, const sh_record *record, const shoal_value *names)
{
    if (shoal_value_type(names) != SHOAL_TYPE_LIST || shoal_value_count(names) != 2 * record->count) {
        return corrupt();
    }
    for (size_t i = 0; i < record->count; i++) {
        const char *name = shoal_value_as_string(shoal_value_at(names, 2 * i));
        bool is_buffer;
        if (!name || shoal_value_as_bool(shoal_value_at(names, 2 * i + 1), &is_buffer) != SHOAL_OK) {
            return corrupt();
        }
        shoal_tensor *t = tensor_at(module, record, names, i);
        shoal_err err = t ? sh_module_put(module, name, is_buffer, t) : shoal_last_error();
        shoal_tensor_release(t);
        if (err != SHOAL_OK) {
            return err;
        }
    }
    return SHOAL_OK;
}

static shoal_module *build(const sh_record *record, const shoal_value *description)
{
    node root;
    if (shoal_value_type(description) != SHOAL_TYPE_MAP || !read_node(shoal_value_find(description, "tree"), &root)) {
        (void)corrupt();
        return NULL;
    }
    shoal_module *module = sh_module_rebuild(root.type, root.settings, root.training);
    if (module && (build_children(module, root.children) != SHOAL_OK ||
                   put_tensors(module, record, shoal_value_find(description, "names")) != SHOAL_OK)) {
        shoal_module_destroy(module);
        module = NULL;
    }
    return module;
}

shoal_module *sh_share_module_of(shoal_block *record)
{
    sh_record r;
    shoal_value *description;
    if (record->kind != SH_KIND_MODULE || !sh_record_read(record, &r)) {
        (void)corrupt();
        return NULL;
    }
    if (sh_value_decode(r.bytes, r.size, NULL, 0, &description) != SHOAL_OK) {
        return NULL;
    }
    shoal_module *module = build(&r, description);
    shoal_value_destroy(description);
    return module;
}

/* ---- state dicts ---- */

shoal_value *shoal_module_state_dict(shoal_module *module)
{
    SH_NEED_OR_NULL(module);
    shoal_named it = {0};
    shoal_value *state = module ? shoal_value_map() : NULL;
    while (state && shoal_module_next(module, &it) == SHOAL_OK) {
        state = shoal_map_set(state, it.name, shoal_value_tensor(it.tensor));
    }
    return state;
}

static shoal_err check_state(shoal_module *module, const shoal_value *state)
{
    shoal_named it = {0};
    size_t names = 0;
    for (; shoal_module_next(module, &it) == SHOAL_OK; names++) {
        const shoal_value *value = shoal_value_find(state, it.name);
        if (shoal_value_object_kind(value) != SHOAL_KIND_TENSOR) {
            return sh_fail(SHOAL_EINVAL, "the state dict has no tensor %s", it.name);
        }
        const shoal_tensor *from = shoal_value_as_tensor(value);
        if (!from) {
            return shoal_last_error();
        }
        if (from->ndim != it.tensor->ndim ||
            memcmp(from->shape, it.tensor->shape, sizeof from->shape[0] * (size_t)from->ndim) != 0) {
            sh_text own, other;
            return sh_fail(SHOAL_EINVAL, "%s is %s in the module and %s in the state dict", it.name,
                           sh_tensor_text(&own, it.tensor), sh_tensor_text(&other, from));
        }
    }
    for (size_t i = 0; names != shoal_value_count(state) && i < shoal_value_count(state); i++) {
        if (!shoal_module_get(module, shoal_value_key_at(state, i))) {
            return sh_fail(SHOAL_EINVAL, "the module has no tensor %s", shoal_value_key_at(state, i));
        }
    }
    return SHOAL_OK;
}

shoal_err shoal_module_load_state_dict(shoal_module *module, const shoal_value *state)
{
    if (!module || !state) {
        return sh_null_error("shoal_module_load_state_dict", module ? "state" : "module");
    }
    if (shoal_value_type(state) != SHOAL_TYPE_MAP) {
        return sh_fail(SHOAL_ETYPE, "a state dict must be a map");
    }
    SH_TRY(check_state(module, state));
    shoal_named it = {0};
    while (shoal_module_next(module, &it) == SHOAL_OK) {
        shoal_err err = sh_tensor_copy_data(it.tensor, shoal_value_as_tensor(shoal_value_find(state, it.name)));
        sh_tensor_touch(it.tensor);
        SH_TRY(err);
    }
    return SHOAL_OK;
}
