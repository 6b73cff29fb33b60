/* Under valgrind, which makes no process that shares memory with its maker, the dead are recovered all the same. */
#include <shoal/shoal.h>

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
    shoal_queue *queue;
    shoal_world_info info;
    shoal_audit audit;
    if (shoal_world_create(&(shoal_world_options){.reserve = (uint64_t)1 << 30}) != SHOAL_OK ||
        shoal_queue_create(0, &queue) != SHOAL_OK) {
        return 1;
    }
    pid_t pid = fork();
    if (pid == 0) {
        raise(SIGKILL);
    }
    waitpid(pid, NULL, 0);
    shoal_err err = shoal_world_audit(&audit);
    if (err == SHOAL_OK) {
        err = shoal_world_info_get(&info);
    }
    shoal_release(queue);
    puts(err != SHOAL_OK ? shoal_last_error_text() : info.recovered == 1 ? "good" : "nobody was recovered");
    return 0;
}
