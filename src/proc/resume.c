/* shoal_fork: a fork that returns in parent and child, and calls the caller's hooks around it. */
#include "base/error.h"
#include "proc/child.h"

#include <shoal/binding.h>

shoal_err shoal_fork(const shoal_fork_options *options, shoal_process **out_process)
{
    SH_NEED(out_process);
    static const shoal_fork_options none;
    static const shoal_process_options plain;
    const shoal_fork_options *o = options != NULL ? options : &none;
    const shoal_process_options *process = o->process != NULL ? o->process : &plain;
    const sh_target nothing = {.path = ""};
    shoal_process *made = NULL;
    if (out_process == NULL) {
        return sh_fail(SHOAL_EINVAL, "shoal_fork: out_process is NULL");
    }
    if (process->start != SHOAL_START_DEFAULT && process->start != SHOAL_START_FORK) {
        return sh_fail(SHOAL_EINVAL, "shoal_fork: the start method must be fork");
    }
    SH_TRY(sh_process_check_options("shoal_fork", process, SH_OPTIONS_OF_START));
    sh_hook_call(o->before, o->context);
    shoal_err err =
        sh_process_make(sh_start_resume_fork, &(sh_launch){.target = NULL}, &nothing, NULL, process, "fork", &made);
    if (err == SHOAL_OK && made == NULL) {
        sh_hook_call(o->after_child, o->context);
    } else {
        sh_hook_call(o->after_parent, o->context); /* also if there is no child */
    }
    SH_TRY(err);
    *out_process = made;
    return SHOAL_OK;
}
