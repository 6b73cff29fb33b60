/* Modules inside: the tree of names, and what other layers need to build a module again in another process.
 *
 * A module is described by its kind's name, its settings, its mode, and its children by name in the same way. To build it
 * again: sh_module_rebuild for the root, then, child by child in order, sh_module_rebuild_child, and at last sh_module_put
 * for each name that shoal_module_next gives. A child that the kind's init has made is found and checked; one that was
 * added afterwards (all of a Sequential's) is made and added. A parameter that init has made is replaced; one that was
 * added afterwards is added. */
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
    shoal_module *parent; /* who destroys it; NULL: the program */
    bool training;
    double settings[SHOAL_MODULE_SETTINGS];

    sh_module_tensor *entries; /* parameters, then buffers */
    size_t parameters, entry_count;
    sh_module_child *children;
    size_t child_count;

    /* Invariants: total = entry_count + Σ children's total; longest is the length of the longest dotted name of an entry or a
     * module below, and with the names above it stays within SHOAL_MODULE_NAME, so trees are no deeper than that. */
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

/* The i-th of all entries below module, in shoal_module_next's order, without its name; NULL beyond the last. */
const sh_module_tensor *sh_module_entry(const shoal_module *module, size_t i, bool *out_is_buffer);

/* The next parameter that did not come before under another name; *at begins with 0. NULL after the last. */
shoal_tensor *sh_module_next_parameter(const shoal_module *module, size_t *at);

/* Where this child stands in its parent; NULL for a root. */
const char *sh_module_name_in_parent(const shoal_module *module);

/* A parameter's grad is zero for the next backward: marked so when nobody else can see it, zeroed at once otherwise. */
void sh_parameter_zero_grad(shoal_tensor *parameter);

/* The public calls with what was just made: NULL is the failure of its maker, whose code is returned. */
shoal_err sh_module_add_parameter(shoal_module *module, const char *name, shoal_tensor *t);
shoal_err sh_module_add_child(shoal_module *module, const char *name, shoal_module *child);

/* ---- kinds ---- */

/* The kind of that name; NULL and SHOAL_ENOENT. From any thread. */
const shoal_module_type *sh_module_type_find(const char *name);

/* The library's own, ends with NULL. */
extern const shoal_module_type *const sh_module_types[];
extern const shoal_module_type *const sh_model_types[];

/* ---- building again ---- */

/* A module of the kind whose parameters have memory and no values: the kinds of this library draw no random numbers. Errors
 * as shoal_module_create; SHOAL_ENOENT when nobody registered the kind. */
shoal_module *sh_module_rebuild(const char *type_name, const double *settings, bool training);

/* The child of that name, found or made as the head of this file says; borrowed. NULL: SHOAL_ECORRUPT when init has made
 * another kind of child, or errors as for sh_module_rebuild and shoal_module_add_child. */
shoal_module *sh_module_rebuild_child(shoal_module *parent, const char *name, const char *type_name,
                                      const double *settings, bool training);

/* Puts t (retained) in the place of the parameter or buffer of that dotted name, of the same dtype and shape; t stays as it
 * is, requires_grad too. put adds it when there is none of that name. Errors: SHOAL_EINVAL for another dtype or shape;
 * SHOAL_ENOENT (put: when the module to add to is not there); as shoal_module_add_parameter. */
shoal_err sh_module_replace(shoal_module *module, const char *name, shoal_tensor *t);
shoal_err sh_module_put(shoal_module *module, const char *name, bool is_buffer, shoal_tensor *t);

/* True while sh_module_rebuild runs in this thread. */
bool sh_module_is_rebuilding(void);

#endif
