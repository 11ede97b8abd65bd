/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* An HCA fails under a program. Arguments:
 * - "echo", the address, and a file: sends replies, and starts its own exchange once the file
 *   exists
 * - "recovered", the address and the peer's: the HCA fails and comes back
 * - "gone" and the address: the server of the HCA exits
 * - "passed" and the addresses of three HCAs: the first one's server exits */
#define _GNU_SOURCE
#include "system.h"

#include <errno.h>
#include <net/if.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define PORT 4000
#define BYTES 8192

static unsigned char memory[BYTES];
static const unsigned char loan[BYTES];

static void say(const char *line)
{
    printf("%s\n", line);
    fflush(stdout);
}

/* Sends a word and receives it back. */
static void exchange(int fd, const char *word, struct sockaddr_in *to)
{
    char text[16];

    HOLDS(rds_sendto(fd, word, strlen(word), 0, (struct sockaddr *)to, sizeof *to) == (ssize_t)strlen(word));
    HOLDS(rds_recv(fd, text, sizeof text, 0) == (ssize_t)strlen(word) && memcmp(text, word, strlen(word)) == 0);
}

/* Receives a word and sends it back. */
static struct sockaddr_in answer(int fd)
{
    struct sockaddr_in from;
    socklen_t length = sizeof from;
    char text[16];
    ssize_t got = rds_recvfrom(fd, text, sizeof text, 0, (struct sockaddr *)&from, &length);

    HOLDS(got > 0);
    HOLDS(rds_sendto(fd, text, (size_t)got, 0, (struct sockaddr *)&from, sizeof from) == got);
    return from;
}

static void echo(const char *own, const char *file)
{
    int fd = bound(own, PORT);
    struct sockaddr_in from;

    say("ready");
    from = answer(fd);
    while (access(file, F_OK) != 0)
        usleep(1000);
    HOLDS(rds_sendto(fd, "again", 5, 0, (struct sockaddr *)&from, sizeof from) == 5);
    answer(fd);
    answer(fd);
}

static void *hear_again(void *argument)
{
    char text[16];

    HOLDS(rds_recv(*(int *)argument, text, sizeof text, 0) == 5 && memcmp(text, "again", 5) == 0);
    return NULL;
}

/* Returns true if the link of the HCA is up. */
static int is_running(int fd)
{
    struct ifreq interface;

    memset(&interface, 0, sizeof interface);
    strcpy(interface.ifr_name, "ib0");
    HOLDS(rds_ioctl(fd, SIOCGIFFLAGS, &interface) == 0);
    return (interface.ifr_flags & IFF_RUNNING) != 0;
}

static rds_rdma_cookie_t offered(int fd)
{
    struct sockaddr_in nobody = at("10.0.0.77", PORT);

    return offered_to(fd, &nobody, memory, BYTES);
}

/* Lends memory to an address without a node. */
static void lend(int fd, uint64_t token)
{
    struct sockaddr_in nobody = at("10.0.0.77", PORT);

    HOLDS(rds_lend(fd, loan, BYTES, NO_WAIT, (struct sockaddr *)&nobody, sizeof nobody, token) == BYTES);
}

static void loan_ends(int fd, uint64_t token, int status)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(struct rds_rdma_notify))];
    } control;
    struct rds_rdma_notify notify;
    struct msghdr message;

    memset(&message, 0, sizeof message);
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    HOLDS(rds_recvmsg(fd, &message, 0) == 0 && CMSG_FIRSTHDR(&message));
    HOLDS(control.header.cmsg_level == SOL_RDS && control.header.cmsg_type == RDS_CMSG_RDMA_STATUS);
    memcpy(&notify, CMSG_DATA(&control.header), sizeof notify);
    HOLDS(notify.user_token == token && notify.status == status);
}

static void recovered(const char *own, const char *peer)
{
    struct sockaddr_in to = at(peer, PORT), nobody = at("10.0.0.77", PORT), here = at(own, PORT + 2);
    int fd = bound(own, PORT), lender = bound(own, PORT + 1), closed = bound(own, PORT + 2);
    int offerer = bound(own, PORT + 3);
    pthread_t other;
    char text[16];

    exchange(fd, "first", &to);
    lend(lender, 1);
    HOLDS(rds_setsockopt(lender, SOL_RDS, RDS_CANCEL_SENT_TO, &nobody, sizeof nobody) == 0);
    loan_ends(lender, 1, RDS_RDMA_CANCELED);
    lend(lender, 2);
    lend(closed, 3);
    HOLDS(offered(offerer) != 0);
    HOLDS(offered(fd) != 0);
    HOLDS(pthread_create(&other, NULL, hear_again, &fd) == 0);
    HOLDS(is_running(fd));
    say("begun");
    while (is_running(fd))
        usleep(1000);
    /* Messages wait in the send queue, and receives continue to wait. */
    HOLDS(rds_sendto(fd, "meanwhile", 9, 0, (struct sockaddr *)&to, sizeof to) == 9);
    FAILS(EAGAIN, rds_recv(fd, text, sizeof text, NO_WAIT));
    HOLDS(offered(fd) == 0 && errno == ENODEV);
    FAILS(ENODEV, rds_lend(fd, loan, BYTES, NO_WAIT, (struct sockaddr *)&to, sizeof to, 4));
    /* The HCA may still access the memory that these sockets lent and offered. */
    FAILS(EAGAIN, rds_close(offerer));
    FAILS(EAGAIN, rds_close(closed));
    FAILS(EBADF, rds_close(closed));
    say("failed");
    HOLDS(pthread_join(other, NULL) == 0);
    loan_ends(lender, 2, RDS_RDMA_DROPPED);
    HOLDS(rds_close(lender) == 0);
    /* The library closes the socket later, which frees the port. */
    closed = rds_socket(FAMILY, SEQPACKET, 0);
    while (rds_bind(closed, (struct sockaddr *)&here, sizeof here) != 0)
        HOLDS(errno == EADDRINUSE && usleep(1000) == 0);
    HOLDS(rds_close(closed) == 0);
    HOLDS(rds_recv(fd, text, sizeof text, 0) == 9 && memcmp(text, "meanwhile", 9) == 0);
    exchange(fd, "last", &to);
    HOLDS(is_running(fd) && offered(fd) != 0);
    HOLDS(rds_close(fd) == 0);
}

static pthread_barrier_t begun;

static void *lose_while_receiving(void *argument)
{
    char text[16];

    pthread_barrier_wait(&begun);
    FAILS(ENODEV, rds_recv(*(int *)argument, text, sizeof text, 0));
    return NULL;
}

static void *lose_while_sending(void *argument)
{
    struct sockaddr_in nobody = at("10.0.0.77", PORT);
    char text[1000];

    memset(text, 0, sizeof text);
    pthread_barrier_wait(&begun);
    /* Until the send buffer is full. */
    while (rds_sendto(*(int *)argument, text, sizeof text, 0, (struct sockaddr *)&nobody, sizeof nobody) > 0)
        ;
    HOLDS(errno == ENODEV);
    return NULL;
}

static void *lose_while_polling(void *argument)
{
    struct pollfd one;

    one.fd = *(int *)argument;
    one.events = 0;
    pthread_barrier_wait(&begun);
    HOLDS(rds_poll(&one, 1, -1) == 1 && one.revents == (POLLERR | POLLHUP));
    return NULL;
}

static void *lose_while_in_epoll(void *argument)
{
    int set = epoll_create1(0);
    struct epoll_event event;

    memset(&event, 0, sizeof event);
    event.events = EPOLLIN;
    event.data.fd = *(int *)argument;
    HOLDS(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, event.data.fd, &event) == 0);
    pthread_barrier_wait(&begun);
    HOLDS(epoll_wait(set, &event, 1, -1) == 1 && event.events == EPOLLIN);
    close(set);
    return NULL;
}

static void gone(const char *own)
{
    void *(*losers[4])(void *) = { lose_while_receiving, lose_while_sending, lose_while_polling, lose_while_in_epoll };
    struct sockaddr_in here = at(own, PORT), found;
    socklen_t length = sizeof found;
    pthread_t others[4];
    struct pollfd one;
    char text[16];
    int fd = bound(own, PORT), unbound = rds_socket(FAMILY, SEQPACKET, 0), lender = bound(own, PORT + 1), i;
    int offerer = bound(own, PORT + 2);

    lend(lender, 1);
    HOLDS(offered(offerer) != 0);
    /* The first poll reports a pending congestion change. */
    one.fd = fd;
    one.events = POLLIN;
    while (rds_poll(&one, 1, 0) > 0)
        ;
    HOLDS(pthread_barrier_init(&begun, NULL, 5) == 0);
    for (i = 0; i < 4; i++)
        HOLDS(pthread_create(&others[i], NULL, losers[i], &fd) == 0);
    pthread_barrier_wait(&begun);
    say("begun");
    for (i = 0; i < 4; i++)
        HOLDS(pthread_join(others[i], NULL) == 0);
    one.events = POLLIN | POLLOUT;
    HOLDS(rds_poll(&one, 1, 0) == 1 && (one.revents & (POLLIN | POLLERR | POLLHUP)) == (POLLIN | POLLERR | POLLHUP));
    FAILS(ENODEV, rds_recv(fd, text, sizeof text, NO_WAIT));
    FAILS(ENODEV, rds_sendto(fd, text, 1, NO_WAIT, (struct sockaddr *)&here, sizeof here));
    FAILS(ENODEV, rds_connect(fd, (struct sockaddr *)&here, sizeof here));
    FAILS(ENODEV, rds_bind(unbound, (struct sockaddr *)&here, sizeof here));
    HOLDS(offered(fd) == 0 && errno == ENODEV);
    FAILS(ENODEV, rds_socket(FAMILY, SEQPACKET, 0));
    HOLDS(rds_getsockname(fd, (struct sockaddr *)&found, &length) == 0 && found.sin_port == here.sin_port);
    HOLDS(!is_running(fd));
    HOLDS(rds_close(fd) == 0 && rds_close(unbound) == 0);
    FAILS(ENODEV, rds_recv(lender, text, sizeof text, NO_WAIT));
    FAILS(EAGAIN, rds_close(lender));
    FAILS(EAGAIN, rds_close(offerer));
    FAILS(EBADF, rds_close(lender));
}

/* Returns true if a socket is on the HCA with this address. */
static int is_on(int fd, const char *address)
{
    struct sockaddr_in wanted = at(address, 0), found;
    struct ifreq interface;

    memset(&interface, 0, sizeof interface);
    strcpy(interface.ifr_name, "ib0");
    HOLDS(rds_ioctl(fd, SIOCGIFADDR, &interface) == 0);
    memcpy(&found, &interface.ifr_addr, sizeof found);
    return found.sin_addr.s_addr == wanted.sin_addr.s_addr;
}

/* New and unbound sockets move to the next HCA that opens and that the process has not used before.
 */
static void passed_over(const char *own, const char *other, const char *last)
{
    struct sockaddr_in here = at(other, PORT);
    int first = bound(own, PORT), unbound = rds_socket(FAMILY, SEQPACKET, 0), fd = bound(last, PORT);
    char text[16];

    HOLDS(unbound >= 0 && is_on(unbound, own) && is_on(fd, last) && rds_close(fd) == 0);
    say("begun");
    FAILS(ENODEV, rds_recv(first, text, sizeof text, 0));
    fd = rds_socket(FAMILY, SEQPACKET, 0);
    HOLDS(fd >= 0 && is_running(fd) && is_on(fd, other) && rds_bind(fd, (struct sockaddr *)&here, sizeof here) == 0);
    exchange(fd, "other", &here);
    here.sin_port = 0;
    HOLDS(rds_bind(unbound, (struct sockaddr *)&here, sizeof here) == 0 && is_running(unbound));
    here = at(own, 0);
    HOLDS(rds_close(fd) == 0);
    /* The lost HCA retains its address. */
    fd = rds_socket(FAMILY, SEQPACKET, 0);
    HOLDS(fd >= 0);
    FAILS(ENODEV, rds_bind(fd, (struct sockaddr *)&here, sizeof here));
    FAILS(ENODEV, rds_recv(first, text, sizeof text, 0));
    HOLDS(rds_close(fd) == 0 && rds_close(first) == 0 && rds_close(unbound) == 0);
}

int main(int count, char **words)
{
    /* Fail instead of hanging. */
    alarm(60);
    HOLDS(count >= 3);
    if (strcmp(words[1], "echo") == 0)
        echo(words[2], words[3]);
    else if (strcmp(words[1], "recovered") == 0)
        recovered(words[2], words[3]);
    else if (strcmp(words[1], "passed") == 0)
        passed_over(words[2], words[3], words[4]);
    else
        gone(words[2]);
    return EXIT_SUCCESS;
}
