//! A client's file, mapped into this process.
//!
//! The client can truncate the file at any time, and a full file system can lack a page. The kernel
//! then raises SIGBUS in the middle of an access. The handler replaces the page by empty memory, so
//! that the access completes. It replaces only this page, because memory is charged on systems
//! without overcommit. The access then fails: this mapping and its device are lost, but all other
//! devices continue.
#![allow(unsafe_code)]

use rustix::fs::{fstat, fstatfs};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::os::fd::AsFd;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};
use vm_memory::VolatileSlice;

/// Bytes of a page, unless the file has larger ones.
const PAGE: u64 = 4096;
/// File systems whose files are memory of this machine, so that a page fault ends in bounded time.
///
/// On all others it may wait without limit, even after SIGKILL. On FUSE it waits for a client's own
/// program, elsewhere for a remote machine or a block device. Overlayfs reports only itself, and
/// its files may be on FUSE. Any user can mount both in a user namespace.
const MEMORY: [u32; 3] = [TMPFS, HUGETLBFS, RAMFS];
/// `f_type` of memfd and `/dev/shm`. Source of the three numbers: Linux
/// `include/uapi/linux/magic.h`.
const TMPFS: u32 = 0x0102_1994;
const HUGETLBFS: u32 = 0x9584_58f6;
const RAMFS: u32 = 0x8584_58f6;

/// Files that may be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sources {
    /// Files in memory of this machine.
    Memory,
    /// Files of any file system. Every client is trusted not to block the server.
    Any,
}

impl Sources {
    /// Returns whether files of the file system with this `f_type` may be mapped.
    fn allows(self, system: u32) -> bool {
        self == Self::Any || MEMORY.contains(&system)
    }
}

/// Returns the `f_type` of a file's file system.
///
/// # Errors
/// Errors of the system.
pub fn file_system(file: impl AsFd) -> Result<u32, Errno> {
    Ok(fstatfs(file)?.f_type as u32)
}

/// The memory of a mapping is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

/// A mapped part of a file.
#[derive(Debug)]
pub struct Mapping {
    base: *mut c_void,
    /// Bytes that the client requested.
    len: usize,
    /// Mapped bytes: complete pages of the file.
    mapped: usize,
    /// Bytes of a page of the file.
    page: usize,
    lost: Cell<bool>,
}

impl Mapping {
    /// Maps `size` bytes of `file` from `offset` on.
    ///
    /// # Errors
    /// - `EOVERFLOW`: the file is shorter.
    /// - `EMEDIUMTYPE`: its file system is not permitted by `sources`.
    /// - Errors of the system, for example for an offset that is not page-aligned.
    pub fn new(
        file: impl AsFd,
        offset: u64,
        size: u64,
        writable: bool,
        sources: Sources,
    ) -> Result<Self, Errno> {
        install_handler()?;
        let system = file_system(&file)?;
        if !sources.allows(system) {
            return Err(Errno::MEDIUMTYPE);
        }
        let status = fstat(&file)?;
        let file_size = u64::try_from(status.st_size).unwrap_or(0);
        // Pages after the end of a file can be mapped but not accessed.
        if offset.checked_add(size).is_none_or(|end| file_size < end) {
            return Err(Errno::OVERFLOW);
        }
        let page = if system == HUGETLBFS { u64::try_from(status.st_blksize).unwrap_or(PAGE) } else { PAGE };
        let page = page.max(PAGE);
        let whole = size.checked_next_multiple_of(page).ok_or(Errno::OVERFLOW)?;
        let page = usize::try_from(page).map_err(|_| Errno::OVERFLOW)?;
        let len = usize::try_from(size).map_err(|_| Errno::OVERFLOW)?;
        let mapped = usize::try_from(whole).map_err(|_| Errno::OVERFLOW)?;
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the kernel chooses an unused address range for the new mapping.
        let base = unsafe { mmap(null_mut(), mapped, protection, MapFlags::SHARED, file, offset) }?;
        Ok(Self { base, len, mapped, page, lost: Cell::new(false) })
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns whether its memory is lost.
    pub fn is_lost(&self) -> bool {
        self.lost.get()
    }

    /// Calls `access` with the mapping's bytes.
    ///
    /// # Errors
    /// [`Lost`]: the bytes are lost, and the data that `access` read is invalid.
    pub fn with<T>(&self, access: impl FnOnce(VolatileSlice<'_>) -> T) -> Result<T, Lost> {
        guarded([self], |[slice]| access(slice))
    }

    /// Copies `len` bytes at `from` to `to` of another mapping. Returns whether both ranges are
    /// inside the mappings.
    ///
    /// # Errors
    /// [`Lost`]: the bytes of one mapping are lost, see [`is_lost`](Self::is_lost).
    pub fn copy(&self, from: usize, target: &Self, to: usize, len: usize) -> Result<bool, Lost> {
        guarded([self, target], |[source, target]| {
            let (Ok(source), Ok(target)) = (source.subslice(from, len), target.subslice(to, len)) else {
                return false;
            };
            source.copy_to_volatile_slice(target);
            true
        })
    }

    fn slice(&self) -> VolatileSlice<'_> {
        // SAFETY: `base` to `base + len` is mapped until `self` is dropped, and the slice cannot
        // outlive `self`. Other processes may write there at any time, which `VolatileSlice`
        // permits.
        unsafe { VolatileSlice::new(self.base.cast(), self.len) }
    }
}

/// Calls `access` with the bytes of `mappings`, at most [`ACCESS`] holds. Not to be nested.
///
/// # Errors
/// [`Lost`]: the bytes of a mapping are lost, and the data that `access` read is invalid.
#[inline]
fn guarded<const N: usize, T>(
    mappings: [&Mapping; N],
    access: impl FnOnce([VolatileSlice<'_>; N]) -> T,
) -> Result<T, Lost> {
    const { assert!(N <= ACCESSES) };
    if mappings.iter().any(|mapping| mapping.lost.get()) {
        return Err(Lost);
    }
    ACCESS.with(|accesses| {
        for (current, mapping) in accesses.iter().zip(mappings) {
            current.len.store(mapping.mapped, Ordering::Relaxed);
            current.page.store(mapping.page, Ordering::Relaxed);
            current.base.store(mapping.base as usize, Ordering::Relaxed);
        }
        // The handler runs on this thread.
        compiler_fence(Ordering::SeqCst);
        let answer = access(mappings.map(Mapping::slice));
        compiler_fence(Ordering::SeqCst);
        let mut lost = false;
        for (current, mapping) in accesses.iter().zip(mappings) {
            current.base.store(0, Ordering::Relaxed);
            if current.hit.load(Ordering::Relaxed) {
                current.hit.store(false, Ordering::Relaxed);
                mapping.lost.set(true);
                lost = true;
            }
        }
        if lost { Err(Lost) } else { Ok(answer) }
    })
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` created the mapping with this length, and `self` owns it. An error would
        // only leave pages mapped.
        let _ = unsafe { munmap(self.base, self.mapped) };
    }
}

/// Mappings that a thread accesses at the same time.
const ACCESSES: usize = 2;

/// Current access of a thread to a mapping.
struct Access {
    /// Start of the mapping; 0 for none.
    base: AtomicUsize,
    len: AtomicUsize,
    page: AtomicUsize,
    /// True if the mapping was lost during the access.
    hit: AtomicBool,
}

thread_local! {
    static ACCESS: [Access; ACCESSES] = const {
        [const {
            Access {
                base: AtomicUsize::new(0),
                len: AtomicUsize::new(0),
                page: AtomicUsize::new(PAGE as usize),
                hit: AtomicBool::new(false),
            }
        }; ACCESSES]
    };
}

/// SIGBUS action before this handler was installed.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler once.
fn install_handler() -> Result<(), Errno> {
    static INSTALLED: OnceLock<Result<(), Errno>> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        // SAFETY: zero is a valid value of every field: no handler, an empty mask, no flags.
        let (mut action, mut previous): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both structures are valid. The handler has the signature for SA_SIGINFO and is
        // async-signal-safe.
        if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut previous) } != 0 {
            return Err(Errno::INVAL);
        }
        let _ = PREVIOUS.set(previous);
        Ok(())
    })
}

extern "C" fn on_bus_error(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid structure, and SIGBUS sets the address.
    let address = unsafe { (*info).si_addr() } as usize;
    // Async-signal-safe: a thread-local without initialiser or destructor is a plain access.
    let replaced = ACCESS.with(|accesses| {
        let holds = |current: &&Access| {
            let base = current.base.load(Ordering::Relaxed);
            let len = current.len.load(Ordering::Relaxed);
            base != 0 && (base..base + len).contains(&address)
        };
        let Some(current) = accesses.iter().find(holds) else { return false };
        let base = current.base.load(Ordering::Relaxed);
        let page = current.page.load(Ordering::Relaxed);
        // `base` is at the start of a page of the file, because the kernel mapped it there.
        let start = address - (address - base) % page;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the page belongs to a `Mapping` that this thread accesses. No reference to it
        // exists, only volatile accesses, so it may be replaced. mmap is a plain system call.
        let place = unsafe { libc::mmap(start as *mut c_void, page, protection, flags, -1, 0) };
        let replaced = place != libc::MAP_FAILED;
        current.hit.store(replaced, Ordering::Relaxed);
        replaced
    });
    if !replaced {
        // The fault is not ours: restore the previous handler, which gets the fault when the access
        // is repeated.
        // SAFETY: zero is the default action; the pointers are valid; sigaction is
        // async-signal-safe.
        unsafe {
            let default = std::mem::zeroed();
            let previous = PREVIOUS.get().unwrap_or(&default);
            libc::sigaction(libc::SIGBUS, previous, null_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::sync::atomic::Ordering::{Acquire, Release};
    use vm_memory::Bytes;

    fn file(pages: u64) -> File {
        let descriptor = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        let file = File::from(descriptor);
        file.set_len(pages * PAGE).expect("length");
        file
    }

    #[test]
    fn a_file_that_is_truncated_is_lost_and_nothing_else() {
        let (short, whole) = (file(4), file(4));
        let lost = Mapping::new(&short, 0, 4 * PAGE, true, Sources::Memory).expect("mapped");
        let kept = Mapping::new(&whole, 0, 4 * PAGE, true, Sources::Memory).expect("mapped");
        let store =
            |mapping: &Mapping, at: usize| mapping.with(|slice| slice.store(7u32, at, Release).is_ok());
        assert_eq!(store(&lost, 0x3000), Ok(true));
        short.set_len(PAGE).expect("truncated");
        assert_eq!(store(&lost, 0), Ok(true), "this page is still there");
        assert_eq!(store(&lost, 0x3000), Err(Lost));
        assert_eq!(store(&lost, 0), Err(Lost), "and stays lost");
        assert_eq!(store(&kept, 0x3000), Ok(true));
        let mut copied = vec![0; 0x4000];
        assert!(kept.with(|slice| slice.read_slice(&mut copied, 0).is_ok()).expect("read"));
        assert_eq!(copied[0x3000..0x3004], 7u32.to_ne_bytes());
        whole.set_len(0).expect("truncated");
        assert_eq!(kept.with(|slice| slice.load::<u64>(0, Acquire).is_ok()), Err(Lost), "a second loss");
    }

    #[test]
    fn a_copy_across_the_new_end_is_lost() {
        let short = file(4);
        let mapping = Mapping::new(&short, 0, 4 * PAGE, true, Sources::Memory).expect("mapped");
        short.set_len(2 * PAGE).expect("truncated");
        let data = vec![1; 4 * PAGE as usize];
        let written = mapping.with(|slice| slice.subslice(0, data.len()).map(|s| s.copy_from(&data)).is_ok());
        assert_eq!(written, Err(Lost));
    }

    #[test]
    fn copy_between_mappings_finds_the_lost_one() {
        let (from, to) = (file(2), file(2));
        let map = |file| Mapping::new(file, 0, 2 * PAGE, true, Sources::Memory).expect("mapped");
        let (source, target) = (map(&from), map(&to));
        assert_eq!(source.with(|slice| slice.store(7u32, 0x1000, Release).is_ok()), Ok(true));
        assert_eq!(source.copy(0xffc, &target, 0x10, 8), Ok(true));
        assert_eq!(target.with(|slice| slice.load::<u32>(0x14, Acquire).ok()), Ok(Some(7)));
        assert_eq!(source.copy(0x1fff, &target, 0, 2), Ok(false), "beyond the source");
        assert_eq!(source.copy(0, &target, 0x1fff, 2), Ok(false), "beyond the target");
        to.set_len(PAGE).expect("truncated");
        assert_eq!(source.copy(0, &target, 0xfff, 2), Err(Lost));
        assert_eq!((source.is_lost(), target.is_lost()), (false, true));
        let target = map(&file(2));
        from.set_len(PAGE).expect("truncated");
        assert_eq!(source.copy(0xfff, &target, 0, 2), Err(Lost));
        assert_eq!((source.is_lost(), target.is_lost()), (true, false));
    }

    #[test]
    fn files_that_cannot_be_mapped_are_refused() {
        let refused = |file, offset, size| Mapping::new(file, offset, size, true, Sources::Memory).err();
        assert_eq!(refused(file(1), 0, 2 * PAGE), Some(Errno::OVERFLOW));
        assert_eq!(refused(file(2), 1, PAGE), Some(Errno::INVAL));
        assert_eq!(refused(file(1), u64::MAX, 2), Some(Errno::OVERFLOW));
        let process = || File::open("/proc/self/mem").expect("opens");
        let mapped = |sources| Mapping::new(process(), 0, PAGE, false, sources).err();
        assert_eq!(mapped(Sources::Memory), Some(Errno::MEDIUMTYPE));
        assert_eq!(mapped(Sources::Any), Some(Errno::OVERFLOW), "it has no length");
    }

    /// Page faults on disks, remote machines and client programs have no time limit.
    #[test]
    fn only_memory_of_this_machine_is_mapped_unless_clients_are_trusted() {
        for memory in [0x0102_1994, 0x9584_58f6, 0x8584_58f6] {
            assert!(Sources::Memory.allows(memory) && Sources::Any.allows(memory));
        }
        for (name, other) in [
            ("overlayfs", 0x794c_7630),
            ("FUSE", 0x6573_5546),
            ("NFS", 0x6969),
            ("CIFS", 0xff53_4d42),
            ("9P", 0x0102_1997),
            ("ext4", 0xef53),
            ("XFS", 0x5846_5342),
            ("btrfs", 0x9123_683e),
            ("F2FS", 0xf2f5_2010),
            ("ZFS", 0x2fc1_2fc1),
            ("bcachefs", 0xca45_1a4e),
            ("secret memory", 0x5345_434d),
            ("none", 0),
        ] {
            assert!(!Sources::Memory.allows(other), "{name}");
            assert!(Sources::Any.allows(other), "{name}");
        }
    }
}
