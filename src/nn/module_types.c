/* The kinds by name, and rebuilding a module from them. */
#include "nn/module.h"

#include "base/error.h"
#include "base/fork.h"
#include "base/grow.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct {
    pthread_mutex_t lock;
    const shoal_module_type **list; /* the program's kinds; never shrinks */
    size_t count, room;
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER};

__attribute__((constructor)) static void register_lock(void)
{
    static const sh_fork_part part = {.lock = &registry.lock};
    sh_fork_register(SH_FORK_MODULES, &part);
}

static _Thread_local bool rebuilding __attribute__((tls_model("initial-exec")));

static const shoal_module_type *find_in(const shoal_module_type *const *list, const char *name)
{
    for (; *list; list++) {
        if (strcmp((*list)->name, name) == 0) {
            return *list;
        }
    }
    return NULL;
}

/* The caller holds the lock. */
static const shoal_module_type *find(const char *name)
{
    const shoal_module_type *type = find_in(sh_module_types, name);
    type = type ? type : find_in(sh_model_types, name);
    for (size_t i = 0; !type && i < registry.count; i++) {
        type = strcmp(registry.list[i]->name, name) == 0 ? registry.list[i] : NULL;
    }
    return type;
}

const shoal_module_type *sh_module_type_find(const char *name)
{
    sh_fork_lock(&registry.lock);
    const shoal_module_type *type = find(name);
    sh_fork_unlock(&registry.lock);
    if (!type) {
        (void)sh_fail(SHOAL_ENOENT, "unknown module type '%s'; register it with shoal_module_register", name);
    }
    return type;
}

/* The caller holds the lock. */
static shoal_err append(const shoal_module_type *type)
{
    if (!sh_grow(&registry.list, registry.count, &registry.room, sizeof *registry.list)) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %zu module types", registry.count + 1);
    }
    registry.list[registry.count++] = type;
    return SHOAL_OK;
}

shoal_err shoal_module_register(const shoal_module_type *type)
{
    SH_NEED(type);
    if (!type || !type->name || !type->forward) {
        return sh_fail(SHOAL_EINVAL, "a module type needs a name and a forward function");
    }
    sh_fork_lock(&registry.lock);
    const shoal_module_type *known = find(type->name);
    shoal_err err = !known          ? append(type)
                    : known == type ? SHOAL_OK
                                    : sh_fail(SHOAL_ESTATE, "another module type has the name '%s'", type->name);
    sh_fork_unlock(&registry.lock);
    return err;
}

/* ---- rebuilding ---- */

bool sh_module_is_rebuilding(void)
{
    return rebuilding;
}

shoal_module *sh_module_rebuild(const char *type_name, const double *settings, bool training)
{
    const shoal_module_type *type = sh_module_type_find(type_name);
    if (!type) {
        return NULL;
    }
    bool outer = rebuilding;
    rebuilding = true;
    shoal_module *m = shoal_module_create(type, SHOAL_MODULE_SETTINGS, settings);
    rebuilding = outer;
    shoal_module_train(m, training);
    return m;
}

static shoal_module *find_child(const shoal_module *parent, const char *name)
{
    for (size_t i = 0; i < parent->child_count; i++) {
        if (strcmp(parent->children[i].name, name) == 0) {
            return parent->children[i].module;
        }
    }
    return NULL;
}

shoal_module *sh_module_rebuild_child(shoal_module *parent, const char *name, const char *type_name,
                                      const double *settings, bool training)
{
    shoal_module *child = find_child(parent, name);
    if (!child) {
        child = sh_module_rebuild(type_name, settings, training);
        return child && shoal_module_add_child(parent, name, child) == SHOAL_OK ? child : NULL;
    }
    if (strcmp(child->type->name, type_name) != 0 || memcmp(child->settings, settings, sizeof child->settings) != 0) {
        (void)sh_fail(SHOAL_ECORRUPT, "%s: the child '%s' is a %s%s, but the description says %s", parent->type->name,
                      name, child->type->name, strcmp(child->type->name, type_name) == 0 ? " with other settings" : "",
                      type_name);
        return NULL;
    }
    child->training = training;
    return child;
}
