#include "base/interrupt.h"

#include <shoal/interrupt.h>

#include <stdarg.h>
#include <stdio.h>

_Thread_local sh_interrupt sh_interrupt_mine __attribute__((tls_model("initial-exec")));

void shoal_set_interrupt(bool (*check)(void *context), void *context)
{
    sh_interrupt_mine = (sh_interrupt){.check = check, .context = context};
}

bool sh_interrupt_ask(void)
{
    sh_interrupt asked = sh_interrupt_suspend(); /* check may call the library */
    bool hit = asked.hit || asked.check(asked.context);
    sh_interrupt_resume(asked);
    sh_interrupt_mine.hit = hit;
    return hit;
}

sh_interrupt sh_interrupt_suspend(void)
{
    sh_interrupt suspended = sh_interrupt_mine;
    sh_interrupt_mine = (sh_interrupt){.check = NULL};
    return suspended;
}

void sh_interrupt_resume(sh_interrupt suspended)
{
    sh_interrupt_mine = suspended;
}

shoal_err sh_fail_waiting(int64_t timeout, const char *format, ...)
{
    if (timeout > SHOAL_NOW && sh_interrupt_mine.check != NULL && sh_interrupt_mine.hit) {
        return sh_fail(SHOAL_EINTR, "a signal ended the wait");
    }
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return sh_fail(SHOAL_ETIMEDOUT, "%s", text);
}
