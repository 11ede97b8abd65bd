// The payload of messages: ib_types::Payload in C.

#ifndef TESTS_PAYLOAD_H
#define TESTS_PAYLOAD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static const uint64_t STEP = 0x9e3779b97f4a7c15;

static inline uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

// Returns the first word of a message.
static inline uint64_t payload(uint64_t seed, uint64_t stream, uint64_t number) {
    return mix(mix(seed ^ stream) + number * STEP);
}

static inline void payload_fill(uint8_t *bytes, size_t length, uint64_t word) {
    for (size_t at = 0; at < length; at += 8, word += STEP) memcpy(bytes + at, &word, length - at < 8 ? length - at : 8);
}

// Returns the position of the first wrong byte, or `length`.
static inline size_t payload_mismatch(const uint8_t *bytes, size_t length, uint64_t word) {
    for (size_t at = 0; at < length; at += 8, word += STEP)
        for (size_t i = 0; i < 8 && at + i < length; i++)
            if (bytes[at + i] != (uint8_t)(word >> 8 * i)) return at + i;
    return length;
}

#endif
