/* Two processes on two processors: store(pin); load(id) against store(id = 0); membarrier; load(pin).
 *
 * litmus CPU CPU SECONDS BARRIER WRONG_MAX prints: reads, objects replaced, times one was found pinned, reads of a
 * wrong object. BARRIER 0: without the barrier. Ends early at WRONG_MAX wrong ones (0: never).
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GLOBAL_EXPEDITED (1 << 1)
#define REGISTER_GLOBAL_EXPEDITED (1 << 2)
#define LOOKS 8
#define STEPS 1024
#define PAUSE_MAX 256

/* Plain loads and stores, each done where it stands, as Python does them. */
#define LOAD(word) (*(volatile uint64_t *)&(word))
#define STORE(word, value) (*(volatile uint64_t *)&(word) = (value))

/* Each word in a line of its own. */
struct shared {
    _Alignas(64) uint64_t id;
    _Alignas(64) uint64_t bytes;
    _Alignas(64) uint64_t pin;
    _Alignas(64) uint64_t reads;
    _Alignas(64) uint64_t wrong;
    _Alignas(64) uint64_t end;
};

static int membarrier(int command) { return (int)syscall(SYS_membarrier, command, 0, 0); }

static void run_on(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) {
        perror("sched_setaffinity");
        exit(2);
    }
}

static void read_on(struct shared *shared) {
    uint64_t reads = 0, wrong = 0;
    while (!LOAD(shared->end)) {
        for (int step = 0; step < STEPS; step++) {
            uint64_t id = LOAD(shared->id);
            if (!id)
                continue;
            STORE(shared->pin, id);
            if (LOAD(shared->id) == id) {
                int good = 1;
                for (int look = 0; look < LOOKS; look++)
                    good &= LOAD(shared->bytes) == id;
                reads += good;
                wrong += !good;
            }
            STORE(shared->pin, 0);
        }
        STORE(shared->reads, reads);
        STORE(shared->wrong, wrong);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc != 6)
        return 2;
    int barrier = atoi(argv[4]);
    double end = now() + atof(argv[3]);
    uint64_t wrong_max = strtoull(argv[5], NULL, 10);
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || membarrier(REGISTER_GLOBAL_EXPEDITED)) {
        perror("mmap or membarrier");
        return 2;
    }
    uint64_t id = 1, replaced = 0, pinned = 0;
    shared->bytes = shared->id = id;
    pid_t reader = fork();
    if (reader < 0) {
        perror("fork");
        return 2;
    }
    if (!reader) {
        run_on(atoi(argv[1]));
        read_on(shared);
        return 0;
    }
    run_on(atoi(argv[2]));
    while (now() < end && !(wrong_max && LOAD(shared->wrong) >= wrong_max)) {
        for (int step = 0; step < STEPS; step++) {
            STORE(shared->id, 0);
            if (barrier && membarrier(GLOBAL_EXPEDITED)) {
                perror("membarrier");
                STORE(shared->end, 1);
                return 2;
            }
            if (LOAD(shared->pin) == id) {
                pinned++;
            } else {
                replaced++;
                id++;
                STORE(shared->bytes, id);
            }
            STORE(shared->id, id);
            /* Long enough for the reader to come by, now and then. */
            for (volatile int pause = step % PAUSE_MAX; pause > 0; pause--)
                ;
        }
    }
    STORE(shared->end, 1);
    int status;
    if (waitpid(reader, &status, 0) != reader || status)
        return 2;
    printf("%llu %llu %llu %llu\n", (unsigned long long)shared->reads, (unsigned long long)replaced,
           (unsigned long long)pinned, (unsigned long long)shared->wrong);
    return 0;
}
