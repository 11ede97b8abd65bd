/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Effects that calls of several threads have on each other. Arguments: the addresses of two HCAs,
 * optionally with the socket of a third whose server never responds; or "refused": no HCA opens. */
#define _GNU_SOURCE
#include "system.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

static void none(int number)
{
    (void)number;
}

/* A thread that is about to wait writes its ID here. */
static int begins[2];

/* Waits for a message that never arrives, until the socket is closed. */
static void *hear_of_the_end(void *argument)
{
    long self = syscall(SYS_gettid);
    char text[16];

    HOLDS(write(begins[1], &self, sizeof self) == sizeof self);
    FAILS(EBADF, rds_recv(*(int *)argument, text, sizeof text, 0));
    return NULL;
}

/* Waits until the thread that has begun sleeps in the system's poll. */
static void asleep(void)
{
    char path[64], line[16];
    long thread, call = 0;
    FILE *file;

    HOLDS(read(begins[0], &thread, sizeof thread) == sizeof thread);
    snprintf(path, sizeof path, "/proc/self/task/%ld/syscall", thread);
    do {
        usleep(1000);
        file = fopen(path, "r");
        HOLDS(file);
        HOLDS(fgets(line, sizeof line, file));
        fclose(file);
        call = line[0] == 'r' ? -1 : atol(line);
    } while (call != SYS_poll && call != SYS_ppoll);
}

static pthread_t waiting;
static int awaited;

/* Runs after the library has given its HCAs back. */
static void last(void)
{
    rds_close(awaited);
    pthread_join(waiting, NULL);
}

static void waits_asleep(int fd)
{
    struct rusage before, after;
    struct itimerval timer = { { 1, 0 }, { 2, 0 } };
    struct sigaction action;
    char text[16];

    memset(&action, 0, sizeof action);
    action.sa_handler = none;
    HOLDS(sigaction(SIGALRM, &action, NULL) == 0);
    HOLDS(getrusage(RUSAGE_SELF, &before) == 0);
    HOLDS(setitimer(ITIMER_REAL, &timer, NULL) == 0);
    FAILS(EINTR, rds_recv(fd, text, sizeof text, 0));
    HOLDS(getrusage(RUSAGE_SELF, &after) == 0);
    HOLDS(after.ru_nvcsw - before.ru_nvcsw < 1000);
    /* Fail instead of hanging, from here on. */
    alarm(300);
    action.sa_handler = SIG_DFL;
    HOLDS(sigaction(SIGALRM, &action, NULL) == 0);
}

static void null_pointers(int fd, const char *own)
{
    struct sockaddr_in here = at(own, 4000);
    struct rds_msghdr message;
    struct iovec parts[2];
    char text[16];

    memset(&message, 0, sizeof message);
    parts[0].iov_base = (void *)text;
    parts[0].iov_len = 4;
    parts[1].iov_base = NULL;
    parts[1].iov_len = 4;
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    FAILS(EFAULT, rds_sendto(fd, NULL, 1, 0, (struct sockaddr *)&here, sizeof here));
    FAILS(EFAULT, rds_setsockopt(fd, SOL_RDS, RDS_RECVERR, NULL, 4));
    HOLDS(rds_sendto(fd, "messages", 8, 0, (struct sockaddr *)&here, sizeof here) == 8);
    /* The message remains queued for the next call. */
    do
        HOLDS(rds_recvmsg(fd, &message, 0) == -1);
    while (errno == EAGAIN);
    HOLDS(errno == EFAULT);
    parts[1].iov_base = (void *)(text + 4);
    HOLDS(rds_recvmsg(fd, &message, 0) == 8 && memcmp(text, "messages", 8) == 0);
    /* A length without a name. */
    HOLDS(rds_connect(fd, (struct sockaddr *)&here, sizeof here) == 0);
    message.msg_namelen = sizeof here;
    HOLDS(rds_sendmsg(fd, &message, 0) == 8);
    HOLDS(rds_recv(fd, text, sizeof text, 0) == 8);
}

static void bound_once(int fd, const char *own, const char *other)
{
    struct sockaddr_in there = at(other, 4001), found;
    socklen_t length = sizeof found;

    FAILS(EINVAL, rds_bind(fd, (struct sockaddr *)&there, sizeof there));
    HOLDS(rds_getsockname(fd, (struct sockaddr *)&found, &length) == 0);
    HOLDS(found.sin_addr.s_addr == at(own, 0).sin_addr.s_addr && found.sin_port == htons(4000));
}

static void transport_goes_along(const char *other)
{
    struct sockaddr_in there = at(other, 4002);
    int fd = rds_socket(FAMILY, SEQPACKET, 0), transport = 3;

    /* The loopback transport does not have the address. */
    HOLDS(fd >= 0 && rds_setsockopt(fd, SOL_RDS, SO_RDS_TRANSPORT, &transport, sizeof transport) == 0);
    FAILS(NO_OPTION, rds_bind(fd, (struct sockaddr *)&there, sizeof there));
    HOLDS(rds_close(fd) == 0);
}

static void passed_over(int fd)
{
    struct pollfd two[2];

    /* A congestion change is reported once. */
    two[0].fd = fd;
    two[0].events = POLLIN;
    two[1].fd = -1;
    two[1].events = POLLIN;
    two[0].revents = two[1].revents = POLLIN;
    while (rds_poll(two, 1, 0) > 0)
        ;
    two[0].revents = POLLIN;
    HOLDS(rds_poll(two, 2, 0) == 0 && two[0].revents == 0 && two[1].revents == 0);
}

static void closed_and_used_again(const char *own)
{
    int round;

    for (round = 0; round < 20; round++) {
        int fd = bound(own, 4100), again;
        pthread_t other;

        HOLDS(pthread_create(&other, NULL, hear_of_the_end, &fd) == 0);
        asleep();
        HOLDS(rds_close(fd) == 0);
        again = bound(own, 4100);
        HOLDS(pthread_join(other, NULL) == 0);
        HOLDS(rds_close(again) == 0);
    }
}

static void *go_where_nobody_answers(void *argument)
{
    struct sockaddr_in there = at("10.0.0.99", 4000);
    int fd = rds_socket(FAMILY, SEQPACKET, 0);

    (void)argument;
    rds_bind(fd, (struct sockaddr *)&there, sizeof there);
    return NULL;
}

/* While one thread opens an HCA, sockets of other HCAs continue. */
static void opens_beside(int fd, const char *path)
{
    struct sockaddr_un name;
    struct pollfd one;
    pthread_t other;
    int listening = socket(AF_UNIX, SOCK_STREAM, 0), again;

    memset(&name, 0, sizeof name);
    name.sun_family = AF_UNIX;
    HOLDS(strlen(path) < sizeof name.sun_path);
    strcpy(name.sun_path, path);
    HOLDS(listening >= 0 && bind(listening, (struct sockaddr *)&name, sizeof name) == 0 && listen(listening, 1) == 0);
    HOLDS(pthread_create(&other, NULL, go_where_nobody_answers, NULL) == 0);
    HOLDS(accept(listening, NULL, NULL) >= 0);
    one.fd = fd;
    one.events = POLLIN;
    HOLDS(rds_poll(&one, 1, 10) >= 0);
    again = rds_socket(FAMILY, SEQPACKET, 0);
    HOLDS(again >= 0 && rds_close(again) == 0);
}

/* A failed open leaks no memory. */
static void leaves_nothing(void)
{
    size_t before = 0;
    int round;

    for (round = 0; round < 6; round++) {
        struct mallinfo2 info = mallinfo2();

        if (round == 1)
            before = info.uordblks + info.hblkhd;
        HOLDS(round < 2 || info.uordblks + info.hblkhd < before + 100000);
        HOLDS(rds_socket(FAMILY, SEQPACKET, 0) == -1);
    }
}

int main(int count, char **words)
{
    int fd;

    if (count == 2) {
        leaves_nothing();
        return EXIT_SUCCESS;
    }
    HOLDS(count == 4 && pipe(begins) == 0);
    HOLDS(atexit(last) == 0);
    fd = bound(words[1], 4000);
    passed_over(fd);
    waits_asleep(fd);
    null_pointers(fd, words[1]);
    bound_once(fd, words[1], words[2]);
    transport_goes_along(words[2]);
    closed_and_used_again(words[1]);
    opens_beside(fd, words[3]);
    awaited = bound(words[1], 4200);
    HOLDS(pthread_create(&waiting, NULL, hear_of_the_end, &awaited) == 0);
    asleep();
    return EXIT_SUCCESS;
}
