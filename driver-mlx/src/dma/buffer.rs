//! Memory that consumers own, and views of it.

use super::{DmaMemory, OutOfBounds};
use core::fmt;
use core::marker::PhantomData;

/// Memory that [`Hca::alloc`](crate::Hca::alloc) gave out, shared with the device.
///
/// It belongs to whoever has it and is given back with [`Hca::free`](crate::Hca::free); one that is dropped instead stays taken. It can
/// change threads, but no two threads can access it at the same time, so that accesses of different widths never race. The device may
/// write to it at any time while a memory key leads to it; accesses are relaxed atomic ones and no reference to the bytes is lent.
///
/// It has one owner:
///
/// ```compile_fail,E0382
/// use driver_mlx::{DmaBuffer, Hca, Platform};
///
/// fn twice<P: Platform>(hca: &mut Hca<'_, P>, buffer: DmaBuffer) {
///     let _ = hca.free(buffer);
///     let _ = hca.free(buffer);
/// }
/// ```
///
/// ```compile_fail,E0599
/// fn copies(buffer: driver_mlx::DmaBuffer) -> driver_mlx::DmaBuffer {
///     buffer.clone()
/// }
/// ```
///
/// No view of it outlives it:
///
/// ```compile_fail,E0505
/// use driver_mlx::{DmaBuffer, Hca, Platform};
///
/// fn stale<P: Platform>(hca: &mut Hca<'_, P>, buffer: DmaBuffer) {
///     let view = buffer.as_slice();
///     let _ = hca.free(buffer);
///     let _ = view.load_be32(0);
/// }
/// ```
///
/// And no two threads reach it:
///
/// ```compile_fail,E0277
/// fn shared(buffer: &'static driver_mlx::DmaBuffer) {
///     std::thread::spawn(move || buffer.load_be32(0));
/// }
/// ```
#[must_use = "a buffer that is dropped is never given back"]
pub struct DmaBuffer {
    memory: DmaMemory,
}

impl DmaBuffer {
    pub(crate) const fn new(memory: DmaMemory) -> Self {
        Self { memory }
    }

    pub(crate) const fn memory(&self) -> DmaMemory {
        self.memory
    }

    /// All of it.
    #[inline]
    pub const fn as_slice(&self) -> DmaSlice<'_> {
        DmaSlice { memory: self.memory, is_foreign: false, buffer: PhantomData }
    }
}

/// A range of a [`DmaBuffer`], borrowed from it. Copies of it stay with the thread that has the buffer:
///
/// ```compile_fail,E0277
/// fn other_thread(slice: driver_mlx::DmaSlice<'static>) {
///     std::thread::spawn(move || slice.load_be32(0));
/// }
/// ```
#[derive(Clone, Copy)]
pub struct DmaSlice<'b> {
    memory: DmaMemory,
    /// Not of any HCA's region.
    is_foreign: bool,
    /// Makes it neither `Send` nor `Sync`, as the buffer is not `Sync`.
    buffer: PhantomData<&'b DmaBuffer>,
}

impl<'b> DmaSlice<'b> {
    /// A view of memory that is no buffer, for whoever stands on the other side of the bus: an emulated device, or a bridge. No
    /// memory key can be made for it.
    ///
    /// # Safety
    /// For `'b`, `va` to `va + len` must be mapped memory that no Rust reference covers and that no other thread accesses at the same
    /// time.
    pub const unsafe fn from_raw(va: *mut u8, device_address: u64, len: usize) -> Self {
        // SAFETY: the caller's promise.
        let memory = unsafe { DmaMemory::from_raw(va, device_address, len) };
        Self { memory, is_foreign: false, buffer: PhantomData }
    }

    /// A view of memory of the application's own, for calls that register what they are given: each registration makes it visible to the
    /// device for as long as it lasts, as [`Hca::register_foreign`](crate::Hca::register_foreign) does. It has no device address
    /// otherwise.
    ///
    /// # Safety
    /// As long as any copy is used, as for `from_raw`; and until whatever is registered of it is so no more, as for
    /// `register_foreign`.
    pub const unsafe fn foreign(va: *mut u8, len: usize) -> Self {
        // SAFETY: the caller's promise.
        let memory = unsafe { DmaMemory::from_raw(va, 0, len) };
        Self { memory, is_foreign: true, buffer: PhantomData }
    }

    /// What a memory key leads to, for as long as that is borrowed.
    pub(crate) const fn of_region(memory: DmaMemory, is_foreign: bool) -> Self {
        Self { memory, is_foreign, buffer: PhantomData }
    }

    /// Whether it is from [`foreign`](Self::foreign).
    #[must_use]
    pub const fn is_foreign(&self) -> bool {
        self.is_foreign
    }

    pub(crate) const fn memory(&self) -> DmaMemory {
        self.memory
    }

    /// `len` bytes from `offset` on; `None` if they are not all inside.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Option<Self> {
        Some(Self { memory: self.memory.slice(offset, len)?, ..*self })
    }
}

impl<'b> From<&'b DmaBuffer> for DmaSlice<'b> {
    fn from(buffer: &'b DmaBuffer) -> Self {
        buffer.as_slice()
    }
}

/// What a buffer and a slice have in common.
macro_rules! access {
    ($type:ty, $name:literal) => {
        impl $type {
            /// Virtual address of the first byte.
            #[inline]
            pub fn va(&self) -> usize {
                self.memory.va()
            }

            /// Address of the first byte as the device sees it.
            #[inline]
            pub const fn device_address(&self) -> u64 {
                self.memory.device_address()
            }

            /// Number of bytes.
            #[inline]
            pub const fn len(&self) -> usize {
                self.memory.len()
            }

            /// Whether it has no bytes.
            #[inline]
            pub const fn is_empty(&self) -> bool {
                self.memory.len() == 0
            }

            /// Copies bytes from `offset` on into `out`.
            ///
            /// # Errors
            /// [`OutOfBounds`]; nothing was copied.
            #[inline]
            pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
                self.memory.read(offset, out)
            }

            /// Copies `data` to `offset`.
            ///
            /// # Errors
            /// [`OutOfBounds`]; nothing was copied.
            #[inline]
            pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), OutOfBounds> {
                self.memory.write(offset, data)
            }

            /// Copies `len` bytes from `from_offset` of `from` to `offset` here. Ranges that overlap give a mixture.
            ///
            /// # Errors
            /// [`OutOfBounds`]; nothing was copied.
            pub fn copy_from(
                &self,
                offset: usize,
                from: DmaSlice<'_>,
                from_offset: usize,
                len: usize,
            ) -> Result<(), OutOfBounds> {
                self.memory.copy_from(offset, &from.memory, from_offset, len)
            }

            /// Sets `len` bytes from `offset` on to `value`.
            ///
            /// # Errors
            /// [`OutOfBounds`]; nothing was changed.
            pub fn fill(&self, offset: usize, len: usize, value: u8) -> Result<(), OutOfBounds> {
                self.memory.fill(offset, len, value)
            }

            /// The big-endian dword at `offset` (a multiple of 4), with acquire ordering.
            ///
            /// # Errors
            /// [`OutOfBounds`].
            #[inline]
            pub fn load_be32(&self, offset: usize) -> Result<u32, OutOfBounds> {
                self.memory.load_be32(offset)
            }

            /// Stores a big-endian dword at `offset` (a multiple of 4), with release ordering.
            ///
            /// # Errors
            /// [`OutOfBounds`].
            #[inline]
            pub fn store_be32(&self, offset: usize, value: u32) -> Result<(), OutOfBounds> {
                self.memory.store_be32(offset, value)
            }

            /// The big-endian quadword at `offset` (a multiple of 8), with acquire ordering.
            ///
            /// # Errors
            /// [`OutOfBounds`].
            #[inline]
            pub fn load_be64(&self, offset: usize) -> Result<u64, OutOfBounds> {
                self.memory.load_be64(offset)
            }

            /// Stores a big-endian quadword at `offset` (a multiple of 8), with release ordering.
            ///
            /// # Errors
            /// [`OutOfBounds`].
            #[inline]
            pub fn store_be64(&self, offset: usize, value: u64) -> Result<(), OutOfBounds> {
                self.memory.store_be64(offset, value)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($name, "({:?})"), self.memory)
            }
        }

        #[cfg(feature = "defmt")]
        impl defmt::Format for $type {
            fn format(&self, f: defmt::Formatter<'_>) {
                defmt::write!(
                    f,
                    "{=str}({=usize:#x}, device {=u64:#x}, {=usize} bytes)",
                    $name,
                    self.va(),
                    self.device_address(),
                    self.len()
                );
            }
        }
    };
}

access!(DmaBuffer, "DmaBuffer");
access!(DmaSlice<'_>, "DmaSlice");

impl DmaBuffer {
    /// `len` bytes from `offset` on; `None` if they are not all inside.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Option<DmaSlice<'_>> {
        self.as_slice().slice(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{buffer, memory};
    use std::thread;

    /// Two buffers of one region, side by side, each with accesses of all widths in a thread of its own.
    #[test]
    fn two_threads_on_two_buffers_of_one_region() {
        let region = memory(2 * 4096);
        let halves = [0, 1].map(|half| region.slice(half * 4096, 4096).map(DmaBuffer::new).expect("inside"));
        let run = |buffer: DmaBuffer, mark: u8| {
            for round in 0..16 {
                buffer.fill(0, 64, mark).expect("inside");
                buffer.write(3 + round, &[mark; 13]).expect("inside");
                buffer.store_be32(8, u32::from(mark)).expect("inside");
                buffer.store_be64(16, u64::from(mark)).expect("inside");
                let mut back = [0; 8];
                buffer.read(5, &mut back[..3]).expect("inside");
                assert_eq!(back[..3], [mark; 3]);
                assert_eq!((buffer.load_be32(8), buffer.load_be64(16)), (Ok(mark.into()), Ok(mark.into())));
            }
            buffer
        };
        let [first, second] = halves;
        let other = thread::spawn(move || run(second, 2));
        let first = run(first, 1);
        let second = other.join().expect("no assertion failed");
        // They come back to one thread, and neither has touched the other's bytes.
        assert_eq!((first.load_be32(8), second.load_be32(8)), (Ok(1), Ok(2)));
        assert_eq!(second.copy_from(64, first.as_slice(), 8, 4), Ok(()));
        assert_eq!(second.load_be32(64), Ok(1));
    }

    #[test]
    fn a_slice_is_a_range_of_its_buffer() {
        let buffer = buffer(4096);
        let slice = buffer.slice(16, 32).expect("inside");
        assert_eq!((slice.va(), slice.len()), (buffer.va() + 16, 32));
        slice.store_be32(0, 7).expect("inside");
        assert_eq!(buffer.load_be32(16), Ok(7));
        assert_eq!(slice.load_be32(32), Err(OutOfBounds));
        assert!(slice.slice(1, 32).is_none() && buffer.slice(4096, 1).is_none());
        assert!(slice.slice(32, 0).is_some_and(|end| end.is_empty()));
    }
}
