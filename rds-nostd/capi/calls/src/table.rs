//! All calls with their arguments.

/// Hands the calls to a macro: `checked name(argument: type, …) -> type`, or `waits` for one that
/// may wait. The calls of `poll` are the library's own.
#[macro_export]
macro_rules! for_each_call {
    ($with:ident) => { $with! {
        checked rds_socket(domain: i32, kind: i32, protocol: i32) -> i32,
        checked rds_close(fd: i32) -> i32,
        checked rds_bind(fd: i32, address: *const c_void, len: u32) -> i32,
        checked rds_connect(fd: i32, address: *const c_void, len: u32) -> i32,
        checked rds_getsockname(fd: i32, address: *mut c_void, len: *mut u32) -> i32,
        checked rds_getpeername(fd: i32, address: *mut c_void, len: *mut u32) -> i32,
        waits rds_sendmsg(fd: i32, message: *const c_void, flags: i32) -> isize,
        waits rds_sendto(
            fd: i32, buffer: *const c_void, len: usize, flags: i32, address: *const c_void, address_len: u32
        ) -> isize,
        waits rds_send(fd: i32, buffer: *const c_void, len: usize, flags: i32) -> isize,
        waits rds_lend(
            fd: i32, buffer: *const c_void, len: usize, flags: i32, address: *const c_void, address_len: u32,
            token: u64
        ) -> isize,
        waits rds_recvmsg(fd: i32, message: *mut c_void, flags: i32) -> isize,
        waits rds_recvfrom(
            fd: i32, buffer: *mut c_void, len: usize, flags: i32, address: *mut c_void, address_len: *mut u32
        ) -> isize,
        waits rds_recv(fd: i32, buffer: *mut c_void, len: usize, flags: i32) -> isize,
        checked rds_setsockopt(fd: i32, level: i32, name: i32, value: *const c_void, len: u32) -> i32,
        checked rds_getsockopt(fd: i32, level: i32, name: i32, value: *mut c_void, len: *mut u32) -> i32,
        checked rds_ioctl(fd: i32, request: c_ulong, argument: *mut c_void) -> i32,
    } };
}
