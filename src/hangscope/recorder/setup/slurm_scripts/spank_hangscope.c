/* A SPANK plugin for Slurm: `--hangscope[=off]` of srun, sbatch and salloc. It runs what hangscope wrote as
 * TaskProlog for each task, and puts what that prints into the task's environment.
 *
 *     cc -shared -fPIC -O2 -o /etc/slurm/hangscope/spank_hangscope.so /etc/slurm/hangscope/spank_hangscope.c
 *
 * and in plugstack.conf, in place of the lines in slurm.conf, where `hangscope agent` is a service of the nodes:
 *
 *     optional /etc/slurm/hangscope/spank_hangscope.so /etc/slurm/hangscope
 *
 * With `default=off` behind it, only jobs that say --hangscope have it. No function here reports an error to Slurm: a
 * script that is missing, fails or hangs leaves the task as without it, after two seconds at most. Slurm itself is
 * less kind: it drains a node where the file of Prolog cannot be run, and ends tasks for that of TaskProlog. */
#define _GNU_SOURCE
#include <slurm/spank.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

SPANK_PLUGIN(hangscope, 1)

#define MOST_OUTPUT 65536
#define LIMIT_MS 2000

enum { BY_DEFAULT, ON, OFF };
static int chosen = BY_DEFAULT;

static int choose(int value, const char *given, int remote)
{
    (void)value;
    bool off = given && (!strcasecmp(given, "off") || !strcasecmp(given, "no") || !strcmp(given, "0"));
    if (given && !off && strcasecmp(given, "on") && strcasecmp(given, "yes") && strcmp(given, "1")) {
        if (!remote)
            slurm_error("--hangscope=%s: say on or off", given);
        return remote ? ESPANK_SUCCESS : ESPANK_BAD_ARG;
    }
    chosen = off ? OFF : ON;
    if (!remote) /* the job's steps, and the node's agent, see it in their environment */
        setenv("HANGSCOPE", off ? "off" : "on", 1);
    return ESPANK_SUCCESS;
}

int slurm_spank_init(spank_t sp, int ac, char **av)
{
    (void)ac;
    (void)av;
    static struct spank_option option = {"hangscope", "on|off", "have the job watched by hangscope, or (off) left alone", 2,
                                         0, choose};
    if (spank_option_register(sp, &option) != ESPANK_SUCCESS)
        slurm_debug("hangscope: --hangscope is not available here");
    return ESPANK_SUCCESS;
}

static long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000L + t.tv_nsec / 1000000;
}

/* What a script of ours in the folder prints until its end, within the limit. */
static size_t output_of(const char *folder, const char *name, char **environment, char *text)
{
    char script[4096];
    int ends[2];
    if (snprintf(script, sizeof script, "%s/%s", folder, name) >= (int)sizeof script)
        return 0;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return 0;
    pid_t child = fork();
    if (child == 0) {
        int nothing = open("/dev/null", O_RDWR);
        setpgid(0, 0);
        if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(nothing, 2) < 0 || dup2(ends[1], 1) < 0)
            _exit(127);
        execle(script, script, (char *)NULL, environment);
        _exit(127);
    }
    close(ends[1]);
    size_t length = 0;
    bool whole = false;
    long until = now_ms() + LIMIT_MS, left;
    while (child > 0 && length < MOST_OUTPUT && (left = until - now_ms()) > 0) {
        struct pollfd one = {ends[0], POLLIN, 0};
        int ready = poll(&one, 1, (int)left);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            break;
        ssize_t got = read(ends[0], text + length, MOST_OUTPUT - length);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            whole = got == 0;
            break;
        }
        length += (size_t)got;
    }
    close(ends[0]);
    if (child > 0) {
        if (!whole) {
            kill(-child, SIGKILL);
            kill(child, SIGKILL);
        }
        /* One that cannot be killed, because a disk hangs, is not waited for. */
        for (int i = 0; i < 100 && waitpid(child, NULL, WNOHANG) == 0; i++)
            usleep(i < 10 ? 1000 : 10000);
    }
    return whole ? length : 0;
}

static void apply(spank_t sp, char *line)
{
    if (!strncmp(line, "export ", 7)) {
        char *name = line + 7, *value = strchr(name, '=');
        if (value && value != name) {
            *value = '\0';
            spank_setenv(sp, name, value + 1, 1);
        }
    } else if (!strncmp(line, "unset ", 6)) {
        spank_unsetenv(sp, line + 6);
    }
}

/* Our arguments in plugstack.conf. */
static const char *folder_in(int ac, char **av, bool *by_default)
{
    const char *folder = NULL;
    *by_default = true;
    for (int i = 0; i < ac; i++) {
        if (!strncmp(av[i], "default=", 8))
            *by_default = strcasecmp(av[i] + 8, "off") != 0;
        else
            folder = av[i];
    }
    return folder;
}

int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
    bool by_default;
    const char *folder = folder_in(ac, av, &by_default);
    char said[16] = "";
    char **environment = NULL;
    if (!folder || spank_get_item(sp, S_JOB_ENV, &environment) != ESPANK_SUCCESS || !environment)
        return ESPANK_SUCCESS;
    if (chosen == OFF) {
        spank_setenv(sp, "HANGSCOPE", "off", 1);
        return ESPANK_SUCCESS;
    }
    bool given = spank_getenv(sp, "HANGSCOPE", said, sizeof said) == ESPANK_SUCCESS;
    if (!by_default && chosen != ON && !(given && !strcasecmp(said, "on")))
        return ESPANK_SUCCESS;
    char *text = malloc(MOST_OUTPUT + 1), *rest = NULL;
    if (!text)
        return ESPANK_SUCCESS;
    text[output_of(folder, "task_prolog.sh", environment, text)] = '\0';
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        apply(sp, line);
    free(text);
    return ESPANK_SUCCESS;
}
