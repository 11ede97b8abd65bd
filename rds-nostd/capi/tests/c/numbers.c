/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Numbers of descriptors: queried in signal handlers, and closed or reused by the system's calls
 * with and without the wrappers of the header (compiled with -include rds/sockets.h). Arguments:
 * the addresses of two HCAs, and a writable file. */
#include "system.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *own, *other, *path;

/* Rounds of sockets that are created and closed while signals are handled. */
#define ROUNDS 2000

static int ends[2];
static volatile sig_atomic_t handled, has_changed_errno;
static pthread_t handling;
static int is_over;

static void tell(int number)
{
    struct pollfd many[200];
    int before = errno, i;

    (void)number;
    for (i = 0; i < 200; i++) {
        many[i].fd = ends[i % 2];
        many[i].events = POLLOUT;
    }
    poll(many, 200, 0);
    errno = 12345;
    has_changed_errno |= rds_is_socket(ends[1]) != 0 || errno != 12345;
    /* Calls of the system, by a name that the header maps to another function. A full pipe does no
     * harm. */
    (void)!write(ends[1], "x", 1);
    handled = handled + 1;
    errno = before;
}

static void *signals(void *argument)
{
    while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED))
        HOLDS(pthread_kill(handling, SIGUSR1) == 0);
    return argument;
}

/* Another thread's sockets, created and closed as well. */
static void *sockets(void *argument)
{
    while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
        int fd = socket(AF_RDS, SOCK_SEQPACKET, 0);

        HOLDS(fd >= 0 && close(fd) == 0);
    }
    return argument;
}

static void handlers_write(void)
{
    struct sigaction action;
    pthread_t others[2];
    char text[64];
    int i, number;

    memset(&action, 0, sizeof action);
    action.sa_handler = tell;
    HOLDS(pipe(ends) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0 && fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    HOLDS(sigaction(SIGUSR1, &action, NULL) == 0);
    handling = pthread_self();
    HOLDS(pthread_create(&others[0], NULL, signals, NULL) == 0 && pthread_create(&others[1], NULL, sockets, NULL) == 0);
    for (i = 0; i < ROUNDS; i++) {
        int fd = socket(AF_RDS, SOCK_SEQPACKET, 0);

        HOLDS(fd >= 0 && rds_is_socket(fd) == 1 && close(fd) == 0);
        for (number = 0; number < 1000; number++) {
            rds_is_socket(number);
            /* The signal handler must not need the allocator's lock either. */
            free(malloc((size_t)number * 10));
        }
        while (read(ends[0], text, sizeof text) > 0)
            ;
    }
    __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
    HOLDS(pthread_join(others[0], NULL) == 0 && pthread_join(others[1], NULL) == 0);
    HOLDS(handled > 0 && !has_changed_errno);
    signal(SIGUSR1, SIG_DFL);
    HOLDS(close(ends[0]) == 0 && close(ends[1]) == 0);
}

/* Direct system calls, as another library of the program might make them. */
static int system_close(int fd)
{
    return (int)syscall(SYS_close, fd);
}

static int opened(void)
{
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

    HOLDS(file >= 0 && write(file, "contents", 8) == 8 && lseek(file, 0, SEEK_SET) == 0);
    return file;
}

static int is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

/* A message arrives at a socket whose number now names another file. */
static void message_for(int port)
{
    struct sockaddr_in there = at(own, port);
    int sender = bound(own, 0), left = 1;

    HOLDS(sendto(sender, "message", 7, 0, (struct sockaddr *)&there, sizeof there) == 7);
    while (left != 0)
        HOLDS(ioctl(sender, TIOCOUTQ, &left) == 0);
    HOLDS(close(sender) == 0);
}

/* A file has got the number of a socket: it receives no message, and is neither read nor closed. */
static void file_has_its_number(void)
{
    int fd = bound(own, 5100), file = opened(), again;
    struct pollfd one;
    char text[16];

    HOLDS((int)syscall(SYS_dup2, file, fd) == fd && system_close(file) == 0);
    message_for(5100);
    HOLDS(lseek(fd, 0, SEEK_CUR) == 0 && lseek(fd, 0, SEEK_END) == 8 && lseek(fd, 0, SEEK_SET) == 0);
    HOLDS(rds_is_socket(fd) == 0 && read(fd, text, sizeof text) == 8 && memcmp(text, "contents", 8) == 0);
    one.fd = fd;
    one.events = POLLIN | POLLOUT;
    HOLDS(poll(&one, 1, 0) == 1 && one.revents == (POLLIN | POLLOUT));
    /* Closing the socket does not close the file. */
    HOLDS(rds_close(fd) == 0);
    HOLDS(is_open(fd) && lseek(fd, 0, SEEK_SET) == 0 && read(fd, text, sizeof text) == 8);
    FAILS(EBADF, rds_close(fd));
    HOLDS(close(fd) == 0 && !is_open(fd));
    again = bound(own, 5100);
    HOLDS(close(again) == 0);
}

/* Another socket has got the number, on the same HCA or on another. The earlier socket is closed.
 */
static void socket_has_its_number(const char *before)
{
    struct sockaddr_in here = at(own, 5101);
    int fd = bound(before, 5100), again, third;
    FILE *stream = fdopen(fd, "r+");
    char text[16];

    HOLDS(stream && fclose(stream) == 0 && !is_open(fd) && rds_is_socket(fd) == 0);
    again = bound(own, 5101);
    HOLDS(again == fd && rds_is_socket(fd) == 1 && is_open(fd));
    third = bound(before, 5100);
    HOLDS(third != fd && close(third) == 0);
    HOLDS(sendto(fd, "self", 4, 0, (struct sockaddr *)&here, sizeof here) == 4);
    HOLDS(recv(fd, text, sizeof text, 0) == 4 && memcmp(text, "self", 4) == 0);
    HOLDS(close(fd) == 0 && !is_open(fd));
    FAILS(EBADF, close(fd));
}

/* Another process, e.g. a child, has read the event descriptor. The library makes it readable
 * again. */
static void taken(void)
{
    struct sockaddr_in here = at(own, 5100);
    int fd = bound(own, 5100);
    struct pollfd one;
    char text[16];

    one.fd = fd;
    one.events = POLLIN;
    HOLDS(sendto(fd, "message", 7, 0, (struct sockaddr *)&here, sizeof here) == 7);
    HOLDS((int)syscall(SYS_poll, &one, 1, -1) == 1 && syscall(SYS_read, fd, text, sizeof text) == 8);
    message_for(5100);
    HOLDS((int)syscall(SYS_poll, &one, 1, -1) == 1);
    HOLDS(read(fd, text, sizeof text) == 7 && read(fd, text, sizeof text) == 7 && (int)syscall(SYS_poll, &one, 1, 0) == 0);
    HOLDS(close(fd) == 0);
}

/* Sockets that the system closes do not use up the table. */
static void closed_behind_the_library(void)
{
    int i, fd;

    for (i = 0; i < 3000; i++) {
        fd = socket(AF_RDS, SOCK_SEQPACKET, 0);
        HOLDS(fd >= 0 && system_close(fd) == 0);
    }
    fd = socket(AF_RDS, SOCK_SEQPACKET, 0);
    HOLDS(fd >= 0 && close(fd) == 0);
}

/* Duplicates, by the names that the header maps to other functions. */
static void duplicates(void)
{
    int fd = bound(own, 5100), file = opened(), again;
    char text[16];

    FAILS(EINVAL, dup(fd));
    FAILS(EINVAL, dup2(fd, 100));
    FAILS(EINVAL, fcntl(fd, F_DUPFD, 0));
    FAILS(EINVAL, fcntl(fd, F_DUPFD_CLOEXEC, 0));
    HOLDS(!is_open(100) && dup2(fd, fd) == fd && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
    HOLDS(fcntl(fd, F_GETFD) == FD_CLOEXEC && ioctl(fd, FIONCLEX) == 0 && fcntl(fd, F_GETFD) == 0);
    FAILS(EBADF, dup2(1000, fd));
    HOLDS(rds_is_socket(fd) == 1);
    HOLDS(dup2(file, fd) == fd && rds_is_socket(fd) == 0);
    HOLDS(read(fd, text, sizeof text) == 8 && memcmp(text, "contents", 8) == 0);
    again = bound(own, 5100);
#ifdef _GNU_SOURCE
    FAILS(EINVAL, dup3(again, 100, 0));
    HOLDS(dup3(file, again, O_CLOEXEC) == again && fcntl(again, F_GETFD) == FD_CLOEXEC && rds_is_socket(again) == 0);
#endif
    HOLDS(close(again) == 0 && close(fd) == 0);
    fd = dup(file);
    HOLDS(fd >= 0 && fcntl(fd, F_DUPFD, 200) == 200 && close(200) == 0 && close(fd) == 0 && close(file) == 0);
#ifdef CLOSE_RANGE_CLOEXEC
    fd = bound(own, 5100);
    FAILS(EBUSY, close_range(3, ~0U, 0));
    HOLDS(close_range((unsigned)fd, (unsigned)fd, CLOSE_RANGE_CLOEXEC) == 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
    HOLDS(rds_is_socket(fd) == 1 && close(fd) == 0);
#endif
}

/* Returns the library's own descriptor of a socket, or -1. */
static int librarys(void)
{
    int fd;

    for (fd = 0; fd < 20000; fd++)
        if (rds_is_socket(fd) == 3)
            return fd;
    return -1;
}

/* The library's own descriptor of a socket stays open, and has a high number. */
static void librarys_own(void)
{
    int fd, file = opened(), last = 0, first, number, status;
    struct sockaddr_in here = at(own, 5100);
    struct rlimit before, less;
    char text[16];
    pid_t child;

    HOLDS(librarys() == -1);
    HOLDS(getrlimit(RLIMIT_NOFILE, &before) == 0);
    less = before;
    less.rlim_cur = before.rlim_cur < 1024 ? before.rlim_cur : 1024;
    HOLDS(setrlimit(RLIMIT_NOFILE, &less) == 0);
    fd = bound(own, 5100);
    number = librarys();
    HOLDS(number >= (int)less.rlim_cur / 2 && is_open(number));
    FAILS(EBADF, close(number));
    FAILS(EBADF, write(number, "message!", 8));
    FAILS(EBADF, read(number, text, sizeof text));
    FAILS(EINVAL, dup(number));
    FAILS(EINVAL, dup2(number, 100));
    FAILS(EBUSY, dup2(file, number));
#ifdef _GNU_SOURCE
    FAILS(EBUSY, dup3(file, number, 0));
#endif
    HOLDS(rds_is_socket(number) == 3 && is_open(number));
    child = fork();
    HOLDS(child >= 0);
    if (child == 0) {
        HOLDS(rds_is_socket(number) == 0 && close(number) == 0 && !is_open(number));
        _exit(EXIT_SUCCESS);
    }
    HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
    HOLDS(sendto(fd, "self", 4, 0, (struct sockaddr *)&here, sizeof here) == 4);
    HOLDS(read(fd, text, sizeof text) == 4 && close(fd) == 0);
    HOLDS(rds_is_socket(number) == 0 && !is_open(number) && librarys() == -1);
    /* Without free high numbers the library takes a low one, but not a standard one. */
    first = fcntl(file, F_DUPFD, (int)less.rlim_cur / 2);
    HOLDS(first >= 0);
    while ((number = fcntl(file, F_DUPFD, first)) >= 0)
        last = number;
    HOLDS(errno == EMFILE && system_close(STDIN_FILENO) == 0);
    fd = socket(AF_RDS, SOCK_SEQPACKET, 0);
    number = librarys();
    HOLDS(fd == STDIN_FILENO && number >= 3 && number < first);
    HOLDS(close(fd) == 0 && dup(file) == STDIN_FILENO);
    for (number = first; number <= last; number++)
        close(number);
    HOLDS(setrlimit(RLIMIT_NOFILE, &before) == 0 && close(file) == 0);
}

/* In a child, with its own memory or its parent's, the number can be closed and is not a socket. */
static void children(void)
{
    int fd = bound(own, 5100), status;
    struct sockaddr_in here = at(own, 5100);
    char text[16];
    pid_t child = fork();

    HOLDS(child >= 0);
    if (child == 0) {
        HOLDS(rds_is_socket(fd) == 2);
        FAILS(EBADF, read(fd, text, sizeof text));
        FAILS(EBADF, write(fd, "message!", 8));
        FAILS(EINVAL, dup(fd));
        HOLDS(close(fd) == 0 && !is_open(fd) && rds_is_socket(fd) == 0);
#ifdef CLOSE_RANGE_CLOEXEC
        HOLDS(close_range(3, ~0U, 0) == 0);
#endif
        _exit(EXIT_SUCCESS);
    }
    HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    child = vfork();
#pragma GCC diagnostic pop
    HOLDS(child >= 0);
    if (child == 0)
        _exit(close(fd) == 0 ? EXIT_SUCCESS : EXIT_FAILURE);
    HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
    HOLDS(is_open(fd) && sendto(fd, "self", 4, 0, (struct sockaddr *)&here, sizeof here) == 4);
    HOLDS(read(fd, text, sizeof text) == 4 && close(fd) == 0);
}

int main(int count, char **words)
{
    HOLDS(count == 4);
    /* Fail instead of hanging. */
    alarm(60);
    own = words[1];
    other = words[2];
    path = words[3];
    handlers_write();
    file_has_its_number();
    socket_has_its_number(own);
    socket_has_its_number(other);
    taken();
    closed_behind_the_library();
    duplicates();
    librarys_own();
    children();
    return EXIT_SUCCESS;
}
