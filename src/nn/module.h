/* The internals of modules: the tree of names, and what other layers need to rebuild a module in another process.
 *
 * A module is described by the name of its kind, its settings, its mode, and its children, each by name and described
 * in the same way. To rebuild it, call sh_module_rebuild for the root, then sh_module_rebuild_child for each child in
 * order, and finally sh_module_put for each name that shoal_module_next gives. A child that the kind's init has made is
 * found and checked; a child that was added later (as all of a Sequential) is made and added. A parameter that init has
 * made is replaced; a parameter that was added later is added. */
#ifndef SH_NN_MODULE_H
#define SH_NN_MODULE_H

#include "tensor/tensor.h"

#include <shoal/nn.h>

typedef struct sh_module_tensor {
    char *name;
    shoal_tensor *tensor;
} sh_module_tensor;

typedef struct sh_module_child {
    char *name;
    shoal_module *module;
} sh_module_child;

struct shoal_module {
    const shoal_module_type *type;
    shoal_module *parent; /* destroys this module; NULL if the program does */
    bool training;
    double settings[SHOAL_MODULE_SETTINGS];

    sh_module_tensor *entries; /* parameters, then buffers */
    size_t parameters, entry_count;
    sh_module_child *children;
    size_t child_count;

    /* Invariants: total = entry_count + Σ children's total. longest is the length of the longest dotted name of an
     * entry or module below this one; together with the names above it stays within SHOAL_MODULE_NAME, which bounds the
     * depth of a tree. */
    size_t total, longest;

    max_align_t state[];
};

static inline shoal_tensor *sh_module_parameter(const shoal_module *module, size_t i)
{
    return module->entries[i].tensor;
}

static inline shoal_module *sh_module_child_at(const shoal_module *module, size_t i)
{
    return module->children[i].module;
}

/* ---- the tree ---- */

/* Returns entry i of all entries below module, in the order of shoal_module_next but without its name;
 * NULL beyond the last. */
const sh_module_tensor *sh_module_entry(const shoal_module *module, size_t i, bool *out_is_buffer);

/* Returns the next parameter, skipping those that came before under another name. *at starts at 0.
 * NULL after the last. */
shoal_tensor *sh_module_next_parameter(const shoal_module *module, size_t *at);

/* Returns the name of this child in its parent; NULL for a root. */
const char *sh_module_name_in_parent(const shoal_module *module);

/* Makes a parameter's grad zero for the next backward: only marks it so if nobody else can see it, otherwise zeroes it
 * at once. */
void sh_parameter_zero_grad(shoal_tensor *parameter);

/* The public calls for an argument that was just made. If it is NULL, they return the error of the call that failed to
 * make it. */
shoal_err sh_module_add_parameter(shoal_module *module, const char *name, shoal_tensor *t);
shoal_err sh_module_add_child(shoal_module *module, const char *name, shoal_module *child);

/* shoal_module_to, for any device. */
shoal_err sh_module_to(shoal_module *module, const sh_device *device);

/* ---- kinds ---- */

/* Returns the kind of that name, or NULL and sets SHOAL_ENOENT. May be called from any thread. */
const shoal_module_type *sh_module_type_find(const char *name);

/* The library's own kinds, terminated by NULL. */
extern const shoal_module_type *const sh_module_types[];
extern const shoal_module_type *const sh_model_types[];

/* ---- rebuilding ---- */

/* Makes a module of the kind, whose parameters have memory but no values: the kinds of this library draw no random
 * numbers. Errors: as shoal_module_create; SHOAL_ENOENT if the kind is not registered. */
shoal_module *sh_module_rebuild(const char *type_name, const double *settings, bool training);

/* Finds or makes the child of that name, as the head of this file says. The result is borrowed. Returns NULL after an
 * error. Errors: SHOAL_ECORRUPT if init has made a child of another kind; as sh_module_rebuild and
 * shoal_module_add_child. */
shoal_module *sh_module_rebuild_child(shoal_module *parent, const char *name, const char *type_name,
                                      const double *settings, bool training);

/* Replaces the parameter or buffer of that dotted name by t, which is retained and must have the same dtype and shape.
 * t does not change; it keeps its requires_grad. If the name does not exist, put adds it. Errors: SHOAL_EINVAL if the
 * dtype or shape differs; SHOAL_ENOENT if the name does not exist (put: if its module does not); as
 * shoal_module_add_parameter. */
shoal_err sh_module_replace(shoal_module *module, const char *name, shoal_tensor *t);
shoal_err sh_module_put(shoal_module *module, const char *name, bool is_buffer, shoal_tensor *t);

/* Returns true while sh_module_rebuild runs in this thread. */
bool sh_module_is_rebuilding(void);

#endif
