//! What each socket that the thread waits for is known by.

/// What wakes the thread for a message of another thread.
pub const WAKE: u64 = 0;

/// A socket that takes connections.
pub fn listener(index: usize) -> u64 {
    1 + 2 * index as u64
}

/// A client's connection.
pub fn client(index: usize) -> u64 {
    2 + 2 * index as u64
}
