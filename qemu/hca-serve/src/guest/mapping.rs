//! A client's file in this process' memory.
//!
//! The file stays the client's: it can be truncated at any time, or a page of it may not be had because the file system is
//! full. The kernel says so by SIGBUS in the middle of an access. The handler puts empty memory in the place of the page (only of that,
//! because where memory is not overcommitted it is charged), so that the access goes on, and the access then fails: the mapping is lost,
//! and with it its device, but nobody else's.
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
/// On all others it may wait without limit, and not even SIGKILL ends the wait: on FUSE for a
/// client's own program, elsewhere for another machine or a block device. Overlayfs reports only
/// itself, and its files may lie on FUSE. Any user can mount both in a user namespace.
const MEMORY: [u32; 3] = [TMPFS, HUGETLBFS, RAMFS];
/// memfd and `/dev/shm`. Linux `include/uapi/linux/magic.h`, as the other two.
const TMPFS: u32 = 0x0102_1994;
const HUGETLBFS: u32 = 0x9584_58f6;
const RAMFS: u32 = 0x8584_58f6;

/// Files that may be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sources {
    /// Files that are memory of this machine.
    Memory,
    /// Files of any file system: every client is trusted not to hold up the server.
    Any,
}

impl Sources {
    /// Returns whether files of the file system with this `f_type` may be mapped.
    fn allows(self, system: u32) -> bool {
        self == Self::Any || MEMORY.contains(&system)
    }
}

/// The `f_type` of the file system that a file is on.
///
/// # Errors
/// The system's.
pub fn file_system(file: impl AsFd) -> Result<u32, Errno> {
    Ok(fstatfs(file)?.f_type as u32)
}

/// The memory behind the mapping is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

/// Part of a file, mapped.
#[derive(Debug)]
pub struct Mapping {
    base: *mut c_void,
    /// Bytes that the client meant.
    len: usize,
    /// Bytes that are mapped: whole pages of the file's.
    mapped: usize,
    /// Bytes of such a page.
    page: usize,
    lost: Cell<bool>,
}

impl Mapping {
    /// Maps `size` bytes of `file` from `offset` on.
    ///
    /// # Errors
    /// `EOVERFLOW`: the file is shorter; `EMEDIUMTYPE`: its file system is none of `sources`;
    /// otherwise the system's, as for an offset that is not page-aligned.
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
        // Pages behind a file's end can be mapped but not touched.
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
        // SAFETY: the kernel picks the place of a new mapping; nothing of this process lies there.
        let base = unsafe { mmap(null_mut(), mapped, protection, MapFlags::SHARED, file, offset) }?;
        Ok(Self { base, len, mapped, page, lost: Cell::new(false) })
    }

    /// Bytes of it.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Whether its memory is gone.
    pub fn is_lost(&self) -> bool {
        self.lost.get()
    }

    /// Calls `access` with the mapping's bytes.
    ///
    /// # Errors
    /// [`Lost`]: they are gone; what `access` read is worth nothing.
    pub fn with<T>(&self, access: impl FnOnce(VolatileSlice<'_>) -> T) -> Result<T, Lost> {
        if self.lost.get() {
            return Err(Lost);
        }
        // SAFETY: `base` to `base + len` are mapped until `self` is dropped, which the slice cannot outlive. Others may write
        // there at any time: a `VolatileSlice` allows for that.
        let slice = unsafe { VolatileSlice::new(self.base.cast(), self.len) };
        ACCESS.with(|current| {
            current.len.store(self.mapped, Ordering::Relaxed);
            current.page.store(self.page, Ordering::Relaxed);
            current.base.store(self.base as usize, Ordering::Relaxed);
            // The handler runs on this thread.
            compiler_fence(Ordering::SeqCst);
            let answer = access(slice);
            compiler_fence(Ordering::SeqCst);
            current.base.store(0, Ordering::Relaxed);
            if current.hit.load(Ordering::Relaxed) {
                current.hit.store(false, Ordering::Relaxed);
                self.lost.set(true);
                return Err(Lost);
            }
            Ok(answer)
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `new` with this length and never given away. It cannot fail then, and could only leave pages mapped.
        let _ = unsafe { munmap(self.base, self.mapped) };
    }
}

/// The access that a thread makes now.
struct Access {
    /// Where its mapping begins; 0 for none.
    base: AtomicUsize,
    len: AtomicUsize,
    page: AtomicUsize,
    /// The mapping was lost meanwhile.
    hit: AtomicBool,
}

thread_local! {
    static ACCESS: Access = const {
        Access {
            base: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            page: AtomicUsize::new(PAGE as usize),
            hit: AtomicBool::new(false),
        }
    };
}

/// What happened at a SIGBUS before the handler here.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler, once.
fn install_handler() -> Result<(), Errno> {
    static INSTALLED: OnceLock<Result<(), Errno>> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        // SAFETY: zero is a valid value of each field of the structure: no handler, an empty mask, no flags.
        let (mut action, mut previous): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both structures are valid; the handler has the form that SA_SIGINFO asks for and does only what a handler may.
        if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut previous) } != 0 {
            return Err(Errno::INVAL);
        }
        let _ = PREVIOUS.set(previous);
        Ok(())
    })
}

extern "C" fn on_bus_error(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid structure to a handler with SA_SIGINFO, and SIGBUS has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    // Thread-local without initialiser or destructor: a plain access.
    let replaced = ACCESS.with(|current| {
        let base = current.base.load(Ordering::Relaxed);
        let len = current.len.load(Ordering::Relaxed);
        if base == 0 || !(base..base + len).contains(&address) {
            return false;
        }
        let page = current.page.load(Ordering::Relaxed);
        // `base` is where one of the file's pages begins: the kernel mapped it so.
        let start = address - (address - base) % page;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the page is one of the `Mapping` in whose `with` this thread is; it may be replaced because nobody holds references
        // to it. mmap is a bare system call.
        let place = unsafe { libc::mmap(start as *mut c_void, page, protection, flags, -1, 0) };
        let replaced = place != libc::MAP_FAILED;
        current.hit.store(replaced, Ordering::Relaxed);
        replaced
    });
    if !replaced {
        // Somebody else's fault: it happens again, to whoever was there before.
        // SAFETY: zero is the default action; the pointers are valid; sigaction may be called in a handler.
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

    /// Page faults on disks, on other machines and in clients' programs have no bound.
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
