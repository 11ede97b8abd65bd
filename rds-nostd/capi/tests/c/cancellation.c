/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Threads are cancelled while they sleep in a call or run in one, by either type of cancellation.
 * Their sockets still work, and no lock stays held.
 *
 *     cancellation ADDRESS UNUSED-ADDRESS */
#define _GNU_SOURCE
#include "system.h"

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ROUNDS 20
/* Rounds of calls that do not wait. A thread is rarely struck at the worst moment. */
#define MANY 500

static int type, fd, sending, begins[2];
static struct sockaddr_in here, nobody;

static int descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;

    HOLDS(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static void begin(void)
{
    long self = syscall(SYS_gettid);

    HOLDS(pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, NULL) == 0);
    HOLDS(write(begins[1], &self, sizeof self) == sizeof self);
    HOLDS(pthread_setcanceltype(type, NULL) == 0);
}

static void *receive(void *argument)
{
    char text[16];

    begin();
    rds_recv(fd, text, sizeof text, 0);
    return argument;
}

static void *receive_message(void *argument)
{
    struct rds_msghdr message;
    struct iovec part;
    char text[16];

    memset(&message, 0, sizeof message);
    part.iov_base = (void *)text;
    part.iov_len = sizeof text;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    begin();
    rds_recvmsg(fd, &message, 0);
    return argument;
}

static void *wait_ready(void *argument)
{
    struct pollfd fds[2];

    memset(fds, 0, sizeof fds);
    fds[0].fd = fd;
    fds[0].events = POLLIN;
    fds[1].fd = begins[0];
    begin();
    rds_poll(fds, 2, -1);
    return argument;
}

static void *send_all(void *argument)
{
    static char bytes[60000];

    begin();
    /* Sends to an address without a node until the buffer is full. */
    while (rds_sendto(sending, bytes, sizeof bytes, 0, (struct sockaddr *)&nobody, sizeof nobody) == sizeof bytes)
        ;
    return argument;
}

/* Calls that need not wait. */
static void *make_calls(void *argument)
{
    struct sockaddr_in name;
    socklen_t length;
    struct pollfd one;
    char text[16];

    begin();
    for (;;) {
        length = sizeof name;
        rds_getsockname(fd, (struct sockaddr *)&name, &length);
        rds_recv(fd, text, sizeof text, NO_WAIT);
        one.fd = fd;
        one.events = POLLIN;
        rds_poll(&one, 1, 0);
    }
    return argument;
}

/* Waits until the thread that has begun sleeps in the system's poll. */
static void asleep(long thread)
{
    char path[64], line[16];
    long call = 0;
    FILE *file;

    snprintf(path, sizeof path, "/proc/self/task/%ld/syscall", thread);
    do {
        usleep(1000);
        file = fopen(path, "r");
        HOLDS(file);
        HOLDS(fgets(line, sizeof line, file));
        fclose(file);
        call = line[0] == 'r' ? -1 : atol(line);
    } while (call != SYS_ppoll);
}

/* Waits until a socket takes no more. A thread that sleeps may wait for the HCA instead. */
static void full(int socket)
{
    struct pollfd one;

    one.fd = socket;
    one.events = POLLOUT;
    while (rds_poll(&one, 1, 0) != 0)
        usleep(1000);
}

static void cancelled(void *(*body)(void *), int sleeps)
{
    void *result = NULL;
    pthread_t thread;
    long number;

    HOLDS(pthread_create(&thread, NULL, body, NULL) == 0);
    HOLDS(read(begins[0], &number, sizeof number) == sizeof number);
    if (body == send_all)
        full(sending);
    if (sleeps)
        asleep(number);
    else
        usleep(200);
    HOLDS(pthread_cancel(thread) == 0);
    HOLDS(pthread_join(thread, &result) == 0);
    HOLDS(result == PTHREAD_CANCELED);
}

/* The socket receives. */
static void works(void)
{
    struct pollfd one;
    char text[16];

    HOLDS(rds_sendto(fd, "again", 5, 0, (struct sockaddr *)&here, sizeof here) == 5);
    one.fd = fd;
    one.events = POLLIN;
    HOLDS(rds_poll(&one, 1, 10000) == 1 && one.revents == POLLIN);
    HOLDS(rds_recv(fd, text, sizeof text, 0) == 5 && memcmp(text, "again", 5) == 0);
}

int main(int count, char **arguments)
{
    static const int types[] = { PTHREAD_CANCEL_DEFERRED, PTHREAD_CANCEL_ASYNCHRONOUS };
    int round, before = 0;
    unsigned each;

    if (count != 3)
        return EXIT_FAILURE;
    /* A lock that is not released hangs the test. */
    alarm(120);
    HOLDS(pipe(begins) == 0);
    here = at(arguments[1], 4000);
    nobody = at(arguments[2], 4000);
    fd = rds_socket(FAMILY, SEQPACKET, 0);
    HOLDS(fd >= 0);
    HOLDS(rds_bind(fd, (struct sockaddr *)&here, sizeof here) == 0);
    for (each = 0; each < sizeof types / sizeof types[0]; each++) {
        type = types[each];
        for (round = 0; round < ROUNDS; round++) {
            cancelled(receive, round % 2);
            cancelled(receive_message, round % 2);
            works();
            cancelled(wait_ready, round % 2);
            works();
            cancelled(make_calls, 0);
            works();
            if (each == 0 && round == 1)
                before = descriptors();
        }
        for (round = 0; round < MANY; round++)
            cancelled(make_calls, 0);
        works();
        sending = rds_socket(FAMILY, SEQPACKET, 0);
        here = at(arguments[1], 4001);
        HOLDS(sending >= 0);
        HOLDS(rds_bind(sending, (struct sockaddr *)&here, sizeof here) == 0);
        here = at(arguments[1], 4000);
        cancelled(send_all, 1);
        /* The buffer is still full. */
        FAILS(EAGAIN, rds_sendto(sending, "more", 4, NO_WAIT, (struct sockaddr *)&nobody, sizeof nobody));
        HOLDS(rds_close(sending) == 0);
        works();
        HOLDS(descriptors() == before);
    }
    HOLDS(rds_close(fd) == 0);
    return EXIT_SUCCESS;
}
