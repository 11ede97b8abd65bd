/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Files, pipes and sockets of other families next to RDS sockets, by the system's names (compiled
 * with -include rds/sockets.h). Arguments: the address of the HCA, and a writable file. */
#include "system.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Calls used as values. */
static int (*const closes)(int) = close;
static int (*const polls)(struct pollfd *, nfds_t, int) = poll;

/* Creates a bound socket of a family, and returns its address. */
static int named(int family, int type, const char *text, struct sockaddr_in *here)
{
    int fd = socket(family, type, 0), number = 100000;
    socklen_t length = sizeof *here;

    *here = at(text, 0);
    HOLDS(fd >= 0 && bind(fd, (struct sockaddr *)here, sizeof *here) == 0);
    HOLDS(getsockname(fd, (struct sockaddr *)here, &length) == 0 && length == sizeof *here && here->sin_port != 0);
    HOLDS(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &number, sizeof number) == 0);
    length = sizeof number;
    HOLDS(getsockopt(fd, SOL_SOCKET, SO_TYPE, &number, &length) == 0 && number == type);
    return fd;
}

/* A buffer of 0 bytes leaves the message queued and does not wait; only write sends an empty
 * message. */
static void nothing(int fd)
{
    struct iovec many[1025];
    /* Volatile, because compilers assume a non-null pointer. */
    struct iovec *volatile nowhere = NULL;
    char text[8];

    memset(many, 0, sizeof many);
    HOLDS(read(fd, text, 0) == 0 && readv(fd, many, 2) == 0 && readv(fd, nowhere, 0) == 0);
    HOLDS(writev(fd, many, 2) == 0 && writev(fd, nowhere, 0) == 0);
    HOLDS(send(fd, "left", 4, 0) == 4);
    HOLDS(read(fd, text, 0) == 0 && readv(fd, many, 2) == 0);
    FAILS(EINVAL, readv(fd, many, 1025));
    FAILS(EINVAL, writev(fd, many, 1025));
    FAILS(EFAULT, readv(fd, nowhere, 1));
    FAILS(EFAULT, writev(fd, nowhere, 1));
    many[0].iov_len = SIZE_MAX;
    FAILS(EINVAL, writev(fd, many, 1));
    HOLDS(recv(fd, text, sizeof text, MSG_DONTWAIT) == 4 && memcmp(text, "left", 4) == 0);
    HOLDS(write(fd, text, 0) == 0 && recv(fd, text, sizeof text, 0) == 0);
    FAILS(EAGAIN, recv(fd, text, sizeof text, MSG_DONTWAIT));
}

/* Sends messages to the socket itself by every pair of calls. */
static void talk(int fd, struct sockaddr_in *here)
{
    struct sockaddr_in from;
    socklen_t length = sizeof from;
    struct msghdr message;
    struct iovec part, parts[2];
    /* Volatile, because compilers assume a count that is not negative. */
    volatile int negative = -1;
    char text[8], rest[8];
    int bytes = -1;

    HOLDS(sendto(fd, "one", 3, 0, (struct sockaddr *)here, sizeof *here) == 3);
    HOLDS(recvfrom(fd, text, sizeof text, 0, (struct sockaddr *)&from, &length) == 3 && memcmp(text, "one", 3) == 0);
    HOLDS(from.sin_port == here->sin_port);
    HOLDS(connect(fd, (struct sockaddr *)here, sizeof *here) == 0);
    length = sizeof from;
    HOLDS(getpeername(fd, (struct sockaddr *)&from, &length) == 0 && from.sin_port == here->sin_port);
    HOLDS(send(fd, "three", 5, 0) == 5);
    HOLDS(recv(fd, text, sizeof text, MSG_PEEK) == 5);
    HOLDS(ioctl(fd, FIONREAD, &bytes) == 0 && bytes == 5);
    HOLDS(recv(fd, text, sizeof text, 0) == 5 && memcmp(text, "three", 5) == 0);
    HOLDS(write(fd, "four", 4) == 4);
    HOLDS(read(fd, text, sizeof text) == 4 && memcmp(text, "four", 4) == 0);
    memset(&message, 0, sizeof message);
    part.iov_base = (void *)text;
    part.iov_len = 2;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    HOLDS(sendmsg(fd, &message, 0) == 2);
    part.iov_len = sizeof text;
    HOLDS(recvmsg(fd, &message, 0) == 2 && memcmp(text, "fo", 2) == 0);
    parts[0].iov_base = (void *)"eight";
    parts[0].iov_len = 5;
    parts[1].iov_base = (void *)"...";
    parts[1].iov_len = 3;
    HOLDS(writev(fd, parts, 2) == 8);
    parts[0].iov_base = (void *)text;
    parts[1].iov_base = (void *)rest;
    HOLDS(readv(fd, parts, 2) == 8 && memcmp(text, "eight", 5) == 0 && memcmp(rest, "...", 3) == 0);
    FAILS(EINVAL, readv(fd, parts, negative));
    FAILS(EINVAL, writev(fd, parts, negative));
    nothing(fd);
    bytes = 1;
    HOLDS(ioctl(fd, FIONBIO, &bytes) == 0);
    FAILS(EAGAIN, recv(fd, text, sizeof text, 0));
}

int main(int count, char **words)
{
    struct sockaddr_in rds_address, address;
    struct pollfd three[3];
    char text[16];
    int file, ends[2], rds, other, status;
    pid_t child;

    HOLDS(count == 3);
    alarm(60);
    rds = named(AF_RDS, SOCK_SEQPACKET, words[1], &rds_address);
    other = named(AF_INET, SOCK_DGRAM, "127.0.0.1", &address);
    talk(rds, &rds_address);
    talk(other, &address);
    file = open(words[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
    HOLDS(file >= 0 && write(file, "contents", 8) == 8 && lseek(file, 0, SEEK_SET) == 0);
    HOLDS(read(file, text, sizeof text) == 8 && memcmp(text, "contents", 8) == 0);
    FAILS(ENOTSOCK, send(file, text, 1, 0));
    HOLDS(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
    /* Polls three readable descriptors together. */
    memset(three, 0, sizeof three);
    three[0].fd = ends[0];
    three[1].fd = rds;
    three[2].fd = other;
    three[0].events = three[1].events = three[2].events = POLLIN;
    HOLDS(send(rds, "y", 1, 0) == 1 && send(other, "z", 1, 0) == 1);
    while (polls(three, 3, 1000) != 3)
        ;
    HOLDS(read(ends[0], text, 1) == 1 && read(rds, text + 1, 1) == 1 && read(other, text + 2, 1) == 1);
    HOLDS(memcmp(text, "xyz", 3) == 0);
    /* In a child the number is a plain descriptor, not a socket. */
    child = fork();
    HOLDS(child >= 0);
    if (child == 0)
        _exit(close(rds) == 0 && fcntl(rds, F_GETFD) == -1 ? EXIT_SUCCESS : EXIT_FAILURE);
    HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
    HOLDS(close(file) == 0 && fcntl(file, F_GETFD) == -1);
    HOLDS(close(ends[0]) == 0 && close(ends[1]) == 0 && close(other) == 0 && fcntl(other, F_GETFD) == -1);
    HOLDS(closes(rds) == 0 && fcntl(rds, F_GETFD) == -1);
    FAILS(EBADF, close(rds));
    FAILS(EAFNOSUPPORT, socket(12345, SOCK_DGRAM, 0));
    return EXIT_SUCCESS;
}
