/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A program that sends and exits at once: all its messages arrive. Arguments: its address and the
 * number of messages, to receive; or also the destination, to send. */
#include "system.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned char message[40000];

int main(int count, char **arguments)
{
    struct sockaddr_in own = at(arguments[1], count > 3 ? 0 : 4000), peer;
    int fd = rds_socket(FAMILY, SEQPACKET, 0), i, wanted = atoi(arguments[2]);

    if (fd < 0 || rds_bind(fd, (struct sockaddr *)&own, sizeof own) != 0)
        return EXIT_FAILURE;
    if (count <= 3) {
        puts("ready");
        fflush(stdout);
    }
    for (i = 0; i < wanted; i++)
        if (count > 3) {
            peer = at(arguments[3], 4000);
            message[0] = (unsigned char)i;
            if (rds_sendto(fd, message, sizeof message, 0, (struct sockaddr *)&peer, sizeof peer) != (ssize_t)sizeof message)
                return EXIT_FAILURE;
        } else if (rds_recv(fd, message, sizeof message, 0) != (ssize_t)sizeof message || message[0] != (unsigned char)i)
            return EXIT_FAILURE;
    /* The sender's buffer has taken the messages. Its socket may be open or closed at exit. */
    return count > 3 && wanted % 2 != 0 && rds_close(fd) != 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
