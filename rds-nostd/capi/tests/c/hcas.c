/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* One process on two HCAs: a bound socket is on the HCA with its address. Arguments: the addresses
 * of the HCAs, in the order of RDS_DEVICE. */
#include "system.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int made_and_bound(const char *text, int port)
{
    struct sockaddr_in address = at(text, port), found;
    socklen_t length = sizeof found;
    int fd = rds_socket(FAMILY, SEQPACKET, 0), on = 1;
    socklen_t on_length = sizeof on;

    HOLDS(fd >= 0);
    /* Options move with the socket. */
    HOLDS(rds_setsockopt(fd, SOL_RDS, RDS_RECVERR, &on, sizeof on) == 0);
#ifdef SO_RDS_MSG_RXPATH_LATENCY
    HOLDS(rds_setsockopt(fd, SOL_RDS, SO_RDS_MSG_RXPATH_LATENCY, "\3\2\1\0", 4) == 0);
    HOLDS(rds_setsockopt(fd, SOL_RDS, SO_RDS_MSG_RXPATH_LATENCY, "\1\3\0\0", 4) == -1 && errno == EFAULT);
    HOLDS(rds_setsockopt(fd, SOL_RDS, SO_RDS_MSG_RXPATH_LATENCY, "\0\0\0", 3) == -1 && errno == EFAULT);
#endif
    HOLDS(rds_bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    on = 0;
    HOLDS(rds_getsockopt(fd, SOL_RDS, RDS_RECVERR, &on, &on_length) == 0 && on == 1);
    HOLDS(rds_getsockname(fd, (struct sockaddr *)&found, &length) == 0);
    HOLDS(found.sin_addr.s_addr == address.sin_addr.s_addr && found.sin_port == address.sin_port);
    return fd;
}

int main(int count, char **arguments)
{
    struct sockaddr_in first, second, from, nowhere;
    struct pollfd both[2];
    char text[16];
    socklen_t length;
    int near, far, third, round;

    HOLDS(count == 3);
    first = at(arguments[1], 4000);
    second = at(arguments[2], 4000);
    near = made_and_bound(arguments[1], 4000);
    /* The same port, on the other HCA. */
    far = made_and_bound(arguments[2], 4000);
    third = rds_socket(FAMILY, SEQPACKET, 0);
    nowhere = at("10.9.9.9", 4000);
    HOLDS(rds_bind(third, (struct sockaddr *)&nowhere, sizeof nowhere) == -1);
    HOLDS(rds_bind(third, (struct sockaddr *)&second, sizeof second) == -1);
    HOLDS(rds_close(third) == 0);
    for (round = 0; round < 100; round++) {
        HOLDS(rds_sendto(near, "there", 6, 0, (struct sockaddr *)&second, sizeof second) == 6);
        both[0].fd = near;
        both[1].fd = far;
        both[0].events = both[1].events = POLLIN;
        /* As on Linux, a congestion change wakes the other socket, too. */
        do
            HOLDS(rds_poll(both, 2, 60000) > 0);
        while (both[1].revents != POLLIN);
        length = sizeof from;
        HOLDS(rds_recvfrom(far, text, sizeof text, 0, (struct sockaddr *)&from, &length) == 6 && strcmp(text, "there") == 0);
        HOLDS(from.sin_addr.s_addr == first.sin_addr.s_addr && from.sin_port == first.sin_port);
        HOLDS(rds_sendto(far, "back", 5, 0, (struct sockaddr *)&from, length) == 5);
        HOLDS(rds_recv(near, text, sizeof text, 0) == 5 && strcmp(text, "back") == 0);
    }
    HOLDS(rds_close(near) == 0 && rds_close(far) == 0 && rds_close(far) == -1 && errno == EBADF);
    return EXIT_SUCCESS;
}
