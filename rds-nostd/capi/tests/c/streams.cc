/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A program in C++ (compiled with -include rds/sockets.h): library members with names of system
 * calls remain usable. Arguments: the address of the HCA, and a writable file. */
#include "system.h"

#include <fstream>
#include <functional>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <unistd.h>

struct Channel {
    int fd;

    int close() { return ::close(fd); }
    ssize_t write(const std::string &text) { return ::write(fd, text.data(), text.size()); }
    ssize_t read(char *text, size_t length) { return ::read(fd, text, length); }
};

static int sum(int one, int other)
{
    return one + other;
}

int main(int count, char **words)
{
    struct sockaddr_in here;
    Channel channel;
    char text[16];

    HOLDS(count == 3);
    alarm(60);
    std::ofstream out(words[2]);
    out.write("contents", 8);
    out.close();
    std::ifstream in(words[2]);
    in.read(text, 8);
    HOLDS(in.gcount() == 8 && memcmp(text, "contents", 8) == 0);
    HOLDS(std::bind(sum, 1, std::placeholders::_1)(2) == 3);
    here = at(words[1], 4000);
    channel.fd = socket(AF_RDS, SOCK_SEQPACKET, 0);
    HOLDS(bind(channel.fd, (struct sockaddr *)&here, sizeof here) == 0);
    HOLDS(connect(channel.fd, (struct sockaddr *)&here, sizeof here) == 0);
    HOLDS(rds_is_socket(channel.fd) == 1 && channel.write("words") == 5 && channel.read(text, sizeof text) == 5);
    HOLDS(memcmp(text, "words", 5) == 0 && channel.close() == 0 && rds_is_socket(channel.fd) == 0);
    FAILS(EBADF, channel.close());
    return EXIT_SUCCESS;
}
